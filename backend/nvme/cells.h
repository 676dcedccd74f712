/* SPDX-License-Identifier: Apache-2.0 */
/* Divides an NVMe arena into cells, each with its own checksum. An interval between two cuts is
 * divided from its start into cells of STW_NVME_CELL_BYTES; the last one is shorter. If cuts are at
 * the ends of transfers, every transfer consists of whole cells and verifies exactly the bytes that
 * it moves. Read-only once made. */
#ifndef STW_BACKEND_NVME_CELLS_H
#define STW_BACKEND_NVME_CELLS_H

#include <stdint.h>

#include "core/status.h"

#define STW_NVME_CELL_BYTES (64ull << 10)

typedef struct stw_nvme_cells {
    uint64_t n;       /* cells */
    uint64_t n_cuts;  /* intervals; 0 for an empty arena */
    uint64_t *cuts;   /* [n_cuts + 1] ascending: 0 first, the arena's bytes last */
    uint64_t *before; /* [n_cuts + 1] cells before each */
} stw_nvme_cells;

/** Bytes [first, end) of the arena. */
typedef struct stw_nvme_cell {
    uint64_t first, end;
} stw_nvme_cell;

/** Make the cells of an arena. BUG for a cut beyond `bytes`.
 * @param cuts [n] in any order; 0 and `bytes` need not be among them */
STW_MUST_USE stw_status stw_nvme_cells_make(uint64_t bytes, const uint64_t *cuts, uint64_t n,
                                            stw_nvme_cells *out, stw_error *err);
void stw_nvme_cells_free(stw_nvme_cells *cells); /* frees the members; zeros are fine */
/** Returns the cell that holds a byte of the arena. */
uint64_t stw_nvme_cells_at(const stw_nvme_cells *cells, uint64_t offset);
stw_nvme_cell stw_nvme_cells_get(const stw_nvme_cells *cells, uint64_t index);
/** Returns the end of a transfer's piece: whole cells of one interval, at most `most` bytes.
 * @param offset start of a cell
 * @param most a multiple of STW_NVME_CELL_BYTES */
uint64_t stw_nvme_cells_piece_end(const stw_nvme_cells *cells, uint64_t offset, uint64_t most);

#endif
