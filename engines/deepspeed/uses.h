/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the modules of a block use its tensors. Pure functions of the job. */
#ifndef STW_ENGINES_DEEPSPEED_USES_H
#define STW_ENGINES_DEEPSPEED_USES_H

#include "plan/job/job.h"

/** Of a group's blocks. */
typedef struct stw_uses {
    uint32_t *tensors; /* [n_tensors] in the order of forward; 0 is a block's first tensor */
    uint32_t *first;   /* [n_calls + 1] of each call in that list; NULL: calls are not known */
} stw_uses;

/** @param pool for what `out` [model.n_groups] refers to
 * @return false: out of memory */
bool stw_uses_find(const stw_job *job, stw_pool *pool, stw_uses *out);

#endif
