/* SPDX-License-Identifier: Apache-2.0 */
/* What a weight sync is about: tensors, and the pieces of them that ranks have and get.
 *
 * The words of this folder. A piece is a box of a tensor that a rank has (a source) or gets (a
 * target). A cell is what some pieces have in common and no other piece meets: cells of a tensor's
 * sources are apart, and so are those of its targets. A lot is a part of a cell of targets, small
 * enough for a buffer: it travels in one round. A grain is what a lot and a cell of sources have in
 * common: one of the ranks that have it packs it once and sends it to every rank that lacks it. */
#ifndef STW_PLAN_SYNC_PIECES_H
#define STW_PLAN_SYNC_PIECES_H

#include "core/pool.h"
#include "core/status.h"
#include "models/model.h"
#include "plan/sync/box.h"

#define STW_SYNC_NONE UINT32_MAX
/** Alignment in bytes of groups of grains, of parts, and of the sizes of buffers. */
#define STW_SYNC_ALIGN 16
#define STW_SYNC_LEAST_BUCKET (1ull << 20)

typedef struct stw_sync_tensor {
    const char *name;
    stw_dtype dtype;              /* in which it travels and arrives: F32, BF16, F16 */
    uint32_t dims;                /* 0: one element */
    uint64_t shape[STW_BOX_DIMS]; /* 1 beyond `dims` */
} stw_sync_tensor;

typedef struct stw_sync_piece {
    stw_box box;
    /* Element `offset` of the memory is the box's first one; neighbours along dimension d are
     * stride[d] elements apart. Of the rank itself alone, and in no sum. */
    uint64_t offset, stride[STW_BOX_DIMS];
    uint32_t rank, tensor;
    uint32_t memory; /* number of the rank's memory; of a target that a bucket gives: NONE */
    stw_dtype dtype; /* as it lies; of a target the tensor's */
} stw_sync_piece;

typedef struct stw_sync_job {
    const stw_sync_tensor *tensors;
    const stw_sync_piece *sources, *targets;
    uint32_t n_tensors, n_sources, n_targets;
    uint32_t world;
    uint64_t bucket_bytes; /* the most that buffers of a rank take together, in one set */
} stw_sync_job;

/** Bytes of an element: 4 or 2. */
static inline uint64_t stw_sync_width(stw_dtype dtype) { return dtype == STW_DTYPE_F32 ? 4 : 2; }

/** A number of bytes, rounded up to STW_SYNC_ALIGN. */
static inline uint64_t stw_sync_aligned(uint64_t bytes) {
    return (bytes + (STW_SYNC_ALIGN - 1)) & ~(uint64_t)(STW_SYNC_ALIGN - 1);
}

/** Check shapes, boxes, ranks and dtypes. @return BAD_INPUT with the tensor and the piece */
STW_MUST_USE stw_status stw_sync_job_check(const stw_sync_job *job, stw_error *err);

#endif
