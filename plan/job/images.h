/* SPDX-License-Identifier: Apache-2.0 */
/* Images of a micro batch: how many patches a vision tower works on, for tokens of a sequence
 * (batch.image_tokens). Sizes follow from the tower's tensors. Pure functions; any thread. */
#ifndef STW_PLAN_JOB_IMAGES_H
#define STW_PLAN_JOB_IMAGES_H

#include "plan/job/job.h"

bool stw_model_has_vision(const stw_model *model);
/** Patches that become one token of the language model: the first product of the merger takes all
 * of their elements. 0: not known (no tower, or one that pools). */
uint64_t stw_model_merged_patches(const stw_model *model);
/** Pixels of an image that become one token: (patch x merge) squared, 28 x 28 of Qwen2-VL and
 * Qwen2.5-VL, 32 x 32 of Qwen3-VL. 0: the number of tokens does not follow from pixels alone
 * (towers with fixed tiles). */
uint64_t stw_model_token_pixels(const stw_model *model);
/** Patches of a micro batch on a rank: every rank of context parallelism runs all images. 0 without
 * images. */
uint64_t stw_job_patches(const stw_job *job);
/** Patches that one attends to: of a sequence, as one image. */
uint64_t stw_job_seen_patches(const stw_job *job);
/** BAD_INPUT where images do not suit the model. */
STW_MUST_USE stw_status stw_job_check_images(const stw_job *job, stw_error *err);

#endif
