/* SPDX-License-Identifier: Apache-2.0 */
/* How inference engines cut the weights of a rollout role: what a rank holds, and what a weight
 * sync fills. Sources are read at vLLM 35d5cda and SGLang 0005834; each formula names file and
 * function. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_ROLLOUT_WEIGHTS_H
#define STW_ENGINES_ROLLOUT_WEIGHTS_H

#include "plan/job/job.h"
#include "plan/sync/box.h"

/** A rollout role with what follows from its keys. */
typedef struct stw_rollout_role {
    const stw_model *model;
    const stw_role *spec;
    uint32_t tp, ep;
    uint64_t max_model_len;
    stw_dtype compute, kv_dtype;
} stw_rollout_role;

/** Weights of a rank as vLLM's layers cut them, with the table of rotary positions.
 * @param rounding out, may be NULL: what page-locking them block by block adds on the host */
uint64_t stw_rollout_weight_bytes(const stw_rollout_role *role, uint64_t *rounding);

/** A whole tensor as a box: dimensions from the fourth on are one. */
stw_box stw_rollout_whole(const stw_tensor *tensor);
/** Boxes of a tensor that rank `rank` of the engines holds, which are apart. @return how many */
#define STW_ROLLOUT_BOXES 3
uint32_t stw_rollout_boxes(const stw_rollout_role *role, const stw_tensor *tensor, uint32_t rank,
                           stw_box out[STW_ROLLOUT_BOXES]);
/** A rollout role with what its keys leave open. @param number of the role in the job */
stw_rollout_role stw_rollout_resolve(const stw_job *job, uint32_t number);
/** Refuse sizes by which vLLM cannot cut: BAD_INPUT. @param number of the role */
STW_MUST_USE stw_status stw_rollout_check_cuts(const stw_rollout_role *role, uint32_t number,
                                               stw_error *err);

#endif
