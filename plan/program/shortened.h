/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs with a shorter space. The planner reads the operations per bucket and per load piece off the
 * small programs of such jobs, because they do not depend on the number of buckets and pieces. */
#ifndef STW_PLAN_PROGRAM_SHORTENED_H
#define STW_PLAN_PROGRAM_SHORTENED_H

#include "plan/program/layout.h"

/** A load piece of the average size, as a tensor of its own. */
typedef struct stw_average_piece {
    uint64_t pieces; /* number of pieces of the whole model */
    stw_dtype dtype;
    uint64_t numel;
} stw_average_piece;

STW_MUST_USE stw_status stw_average_piece_of(const stw_job *job, stw_average_piece *out,
                                             stw_error *err);
/** Make a job with the same cluster, run and kinds of rank, but another model: one block with
 * `pieces` tensors of the average size and no other facts (no forward and backward). The optimizer
 * space of every rank has `params` elements in one quantum; its other spaces shrink by the same
 * ratio.
 * @param out lies in `pool` */
STW_MUST_USE stw_status stw_job_shortened(const stw_job *job, uint64_t params, uint32_t pieces,
                                          const stw_average_piece *average, stw_pool *pool,
                                          stw_job **out, stw_error *err);

#endif
