/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on a shorter space. What an engine does per bucket and per load piece is read off small
 * programs of such jobs; it does not depend on how many of them there are. */
#ifndef STW_PLAN_PROGRAM_SHORTENED_H
#define STW_PLAN_PROGRAM_SHORTENED_H

#include "plan/program/layout.h"

/** A load piece of the average size, as a tensor of its own. */
typedef struct stw_average_piece {
    uint64_t pieces; /* of the whole model */
    stw_dtype dtype;
    uint64_t numel;
} stw_average_piece;

STW_MUST_USE stw_status stw_average_piece_of(const stw_job *job, stw_average_piece *out,
                                             stw_error *err);
/** The same cluster, run and kinds of rank, with another model: `pieces` tensors of the average
 * size in one block, of which nothing else is known (no forward and backward). The optimizer space
 * of every rank has `params` elements in one unit; its other spaces are as much shorter.
 * @param out lies in `pool` */
STW_MUST_USE stw_status stw_job_shortened(const stw_job *job, uint64_t params, uint32_t pieces,
                                          const stw_average_piece *average, stw_pool *pool,
                                          stw_job **out, stw_error *err);

#endif
