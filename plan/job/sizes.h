/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds on the sizes of a job, so that no sum of bytes in layouts, programs and rows comes near
 * 2^64. Formulas saturate (core/checked.h); these checks come before anything is planned with them.
 * Pure functions; any thread may call. */
#ifndef STW_PLAN_SIZES_H
#define STW_PLAN_SIZES_H

#include "plan/job/job.h"

/** Bytes that may stand in one node for one purpose: 2 EiB. Their sums stay below 2^63. */
#define STW_MOST_NODE_BYTES ((uint64_t)1 << 61)

/** Refuse a model whose state, and processes whose memory, exceed STW_MOST_NODE_BYTES: BAD_INPUT
 * with the number or key, and the largest that is accepted. Before there is a job. */
STW_MUST_USE stw_status stw_check_model_sizes(const stw_model *model, const stw_cluster *cluster,
                                              stw_error *err);
/** The same for what grows with the tokens of a micro batch: names batch.micro_batch or
 * batch.seq_len. */
STW_MUST_USE stw_status stw_check_batch_sizes(const stw_job *job, stw_error *err);

#endif
