/* SPDX-License-Identifier: Apache-2.0 */
/* How the NVMe arena's bytes move: two methods behind one table. Only backend/nvme*.c use it. */
#ifndef STW_BACKEND_NVME_IO_H
#define STW_BACKEND_NVME_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* Both methods cut a range into pieces of this size: large enough for the device's full speed,
 * small enough that a range of a few of them keeps several in flight. */
#define STW_NVME_PIECE_BYTES (1ull << 20)

/** Bytes of a file and where they lie in memory. */
typedef struct stw_nvme_range {
    int file;
    bool direct; /* `file` was opened for direct I/O; offset, memory and bytes are aligned */
    bool writes; /* from memory to the file; `memory` is not changed then */
    char *memory;
    uint64_t offset, bytes;
} stw_nvme_range;

/** Why a range was not moved completely. */
typedef struct stw_nvme_stop {
    int code;        /* errno; 0: the file gave or took nothing more */
    uint64_t offset; /* in the file, of the first byte of the piece that failed */
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

/** Of `moved` bytes (> 0) of a piece of `bytes`, those that count: a direct call that was cut short
 * inside a block must go on at the start of that block. */
static inline uint64_t stw_nvme_progress(bool direct, uint64_t moved, uint64_t bytes) {
    return direct && moved < bytes ? moved & ~(uint64_t)4095 : moved;
}

#endif
