/* SPDX-License-Identifier: Apache-2.0 */
/* Moves the NVMe arena's bytes, by two methods behind one table. A transfer is divided into pieces
 * of whole cells. Checksums are computed during the transfer: for a read piece while other pieces
 * are in flight, for a written piece while the disk writes it. Only backend/nvme/ uses this. */
#ifndef STW_BACKEND_NVME_IO_H
#define STW_BACKEND_NVME_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/nvme/cells.h"
#include "core/checked.h"

/* Most bytes of a piece: large enough for the device's full speed, small enough that a transfer has
 * several pieces in flight. */
#define STW_NVME_PIECE_BYTES (1ull << 20)
/* Bytes of a piece that is read and verified; bytes of the last pieces of a transfer, whose
 * checksums are computed when nothing else is in flight. */
#define STW_NVME_READ_BYTES (256ull << 10)
#define STW_NVME_LAST_READ_BYTES STW_NVME_CELL_BYTES
#define STW_NVME_LAST_BYTES (1ull << 20) /* end of a transfer that has such pieces */
/* Direct I/O requires offsets, addresses and sizes to be multiples of this. */
#define STW_NVME_BLOCK_BYTES 4096u

/** The cost of checksums in thread time. `alone`: time of the caller with nothing of its transfer
 * in flight (io_uring only). */
typedef struct stw_nvme_hashing {
    atomic_ullong bytes, nanoseconds, alone_nanoseconds;
} stw_nvme_hashing;

/** A range of a file and its place in memory. */
typedef struct stw_nvme_range {
    int direct, buffered; /* descriptors of one file; direct -1: no direct I/O */
    bool writes;          /* from memory to the file; `memory` stays unchanged */
    char *memory;
    uint64_t offset, bytes; /* in the file */
    /* Checksums; NULL cells: none. The range consists of whole cells. */
    const stw_nvme_cells *cells;
    uint64_t first; /* its first byte in the arena */
    uint64_t *sums; /* [cells->n] writes set them, reads compare them */
    stw_nvme_hashing *hashing;
} stw_nvme_range;

/** A part of a range, moved by one call. */
typedef struct stw_nvme_piece {
    uint64_t done; /* bytes of the range before this piece */
    uint64_t bytes;
} stw_nvme_piece;

/** Why a range was not moved completely. */
typedef struct stw_nvme_stop {
    int code;        /* errno; 0: the file gave or took nothing more */
    bool damaged;    /* the data read does not match its checksum */
    uint64_t offset; /* in the file: first byte of the failed piece, or of the damaged cell */
    uint64_t found, expected; /* checksums */
} stw_nvme_stop;

/** A method that moves ranges. Several threads may call `move` at once. It returns when nothing is
 * in flight: true if all bytes were moved, else `stop` is filled. EINVAL from direct I/O means that
 * the device has stricter alignment rules. */
typedef struct stw_nvme_method_ops {
    const char *name;
    /** NOT_BUILT_IN if the build or the system lacks it. */
    STW_MUST_USE stw_status (*open)(void **out, stw_error *err);
    void (*close)(void *method); /* NULL is fine */
    STW_MUST_USE bool (*move)(void *method, const stw_nvme_range *range, stw_nvme_stop *stop);
} stw_nvme_method_ops;

extern const stw_nvme_method_ops stw_nvme_uring, stw_nvme_threads;

/** Move a range in this thread. */
STW_MUST_USE bool stw_nvme_move_here(const stw_nvme_range *range, stw_nvme_stop *stop);
/** Move a piece in this thread, without checksums. */
STW_MUST_USE bool stw_nvme_move_piece(const stw_nvme_range *range, stw_nvme_piece piece,
                                      stw_nvme_stop *stop);
/** Returns the piece that begins after `done` bytes. */
stw_nvme_piece stw_nvme_piece_at(const stw_nvme_range *range, uint64_t done);
/** Set or compare the checksums of a piece. False, with `stop` filled, at the first difference. */
STW_MUST_USE bool stw_nvme_piece_check(const stw_nvme_range *range, stw_nvme_piece piece,
                                       stw_nvme_stop *stop);
/** Returns the nanoseconds of a monotonic clock. */
uint64_t stw_nvme_now_ns(void);

/** True if a piece, or the rest of it, can bypass the page cache. */
static inline bool stw_nvme_piece_is_direct(const stw_nvme_range *range, stw_nvme_piece piece) {
    return range->direct >= 0 && ((range->offset + piece.done) | piece.bytes |
                                  (uint64_t)(uintptr_t)(range->memory + piece.done)) %
                                         STW_NVME_BLOCK_BYTES ==
                                     0;
}

/** Returns how many of `moved` bytes (> 0) of a piece of `bytes` count as done: a direct call that
 * stopped inside a block must continue at the start of that block. */
static inline uint64_t stw_nvme_progress(bool direct, uint64_t moved, uint64_t bytes) {
    return direct && moved < bytes ? moved / STW_NVME_BLOCK_BYTES * STW_NVME_BLOCK_BYTES : moved;
}

#endif
