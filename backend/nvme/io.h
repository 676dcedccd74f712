/* SPDX-License-Identifier: Apache-2.0 */
/* How the NVMe arena's bytes move: two methods behind one table. A transfer of the arena is cut
 * into pieces of whole cells. Their checksums are computed beside the transfer: of a piece that is
 * read while others are under way, of one that is written while the disk takes it. Only
 * backend/nvme/ uses this. */
#ifndef STW_BACKEND_NVME_IO_H
#define STW_BACKEND_NVME_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/nvme/cells.h"
#include "core/checked.h"

/* The most bytes of a piece: large enough for the device's full speed, small enough that a transfer
 * of a few of them keeps several in flight. */
#define STW_NVME_PIECE_BYTES (1ull << 20)
/* Of a piece that is read and verified; of the last ones of a transfer, whose checksums are
 * computed when nothing else is under way. */
#define STW_NVME_READ_BYTES (256ull << 10)
#define STW_NVME_LAST_READ_BYTES STW_NVME_CELL_BYTES
#define STW_NVME_LAST_BYTES (1ull << 20) /* of a transfer: where those begin */
/* What direct I/O asks offsets, addresses and sizes to be multiples of. */
#define STW_NVME_BLOCK_BYTES 4096u

/** What checksums cost: time of threads; `alone`: of the caller, while nothing of its transfer was
 * under way (io_uring only). */
typedef struct stw_nvme_hashing {
    atomic_ullong bytes, nanoseconds, alone_nanoseconds;
} stw_nvme_hashing;

/** Bytes of a file and where they lie in memory. */
typedef struct stw_nvme_range {
    int direct, buffered; /* one file; direct is -1 where direct I/O is not used */
    bool writes;          /* from memory to the file; `memory` is not changed then */
    char *memory;
    uint64_t offset, bytes; /* in the file */
    /* Checksums; NULL cells: none. The range begins and ends where cells do. */
    const stw_nvme_cells *cells;
    uint64_t first; /* its first byte in the arena */
    uint64_t *sums; /* [cells->n] writes set them, reads compare */
    stw_nvme_hashing *hashing;
} stw_nvme_range;

/** A part of a range that is moved by one call. */
typedef struct stw_nvme_piece {
    uint64_t done; /* bytes of the range before it */
    uint64_t bytes;
} stw_nvme_piece;

/** Why a range was not moved completely. */
typedef struct stw_nvme_stop {
    int code;     /* errno; 0: the file gave or took nothing more */
    bool damaged; /* what was read does not have its checksum */
    uint64_t
        offset; /* in the file, of the first byte of the piece that failed; damaged: the cell */
    uint64_t found, expected; /* checksums */
} stw_nvme_stop;

/** A way of moving ranges. `move` may be called from several threads at once; it returns when
 * nothing is under way any more, true if all bytes were moved, else `stop` is filled. EINVAL from
 * direct I/O means that the device has stricter rules than ours. */
typedef struct stw_nvme_method_ops {
    const char *name;
    /** NOT_BUILT_IN where this build or the system does not have it. */
    STW_MUST_USE stw_status (*open)(void **out, stw_error *err);
    void (*close)(void *method); /* NULL is fine */
    STW_MUST_USE bool (*move)(void *method, const stw_nvme_range *range, stw_nvme_stop *stop);
} stw_nvme_method_ops;

extern const stw_nvme_method_ops stw_nvme_uring, stw_nvme_threads;

/** Move a range by this thread alone. */
STW_MUST_USE bool stw_nvme_move_here(const stw_nvme_range *range, stw_nvme_stop *stop);
/** Move a piece by this thread alone, without checksums. */
STW_MUST_USE bool stw_nvme_move_piece(const stw_nvme_range *range, stw_nvme_piece piece,
                                      stw_nvme_stop *stop);
/** The piece that begins after `done` bytes. */
stw_nvme_piece stw_nvme_piece_at(const stw_nvme_range *range, uint64_t done);
/** Set or compare the checksums of a piece. False, and `stop`, for the first that differs. */
STW_MUST_USE bool stw_nvme_piece_check(const stw_nvme_range *range, stw_nvme_piece piece,
                                       stw_nvme_stop *stop);
/** Nanoseconds of a clock that only goes forward. */
uint64_t stw_nvme_now_ns(void);

/** Can a piece, or what is left of it, go past the page cache? */
static inline bool stw_nvme_piece_is_direct(const stw_nvme_range *range, stw_nvme_piece piece) {
    return range->direct >= 0 && ((range->offset + piece.done) | piece.bytes |
                                  (uint64_t)(uintptr_t)(range->memory + piece.done)) %
                                         STW_NVME_BLOCK_BYTES ==
                                     0;
}

/** Of `moved` bytes (> 0) of a piece of `bytes`, those that count: a direct call that was cut short
 * inside a block must go on at the start of that block. */
static inline uint64_t stw_nvme_progress(bool direct, uint64_t moved, uint64_t bytes) {
    return direct && moved < bytes ? moved / STW_NVME_BLOCK_BYTES * STW_NVME_BLOCK_BYTES : moved;
}

#endif
