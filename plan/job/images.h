/* SPDX-License-Identifier: Apache-2.0 */
/* Images of a micro batch: the number of patches that a vision tower processes for the image tokens
 * of a sequence (batch.image_tokens). Sizes follow from the tower's tensors. Pure functions; any
 * thread. */
#ifndef STW_PLAN_JOB_IMAGES_H
#define STW_PLAN_JOB_IMAGES_H

#include "plan/job/job.h"

bool stw_model_has_vision(const stw_model *model);
/** Returns the number of patches that become one token of the language model: the input width of
 * the merger's first product, divided by the tower's width. 0: unknown (no tower, or a tower that
 * pools). */
uint64_t stw_model_merged_patches(const stw_model *model);
/** Returns the number of image pixels that become one token: (patch x merge) squared, 28 x 28 for
 * Qwen2-VL and Qwen2.5-VL, 32 x 32 for Qwen3-VL. 0: pixels alone do not give the number of tokens
 * (towers with fixed tiles). */
uint64_t stw_model_token_pixels(const stw_model *model);
/** Returns the patches of a micro batch on a rank; every context-parallel rank processes all
 * images. 0 without images. */
uint64_t stw_job_patches(const stw_job *job);
/** Returns the patches that a patch attends to: all patches of its sequence, as if they were one
 * image. 0 without images. */
uint64_t stw_job_seen_patches(const stw_job *job);
/** BAD_INPUT if the model has no vision tower or the sequence is shorter than its images;
 * NOT_BUILT_IN if the patches per token are unknown or the tower has adapters. */
STW_MUST_USE stw_status stw_job_check_images(const stw_job *job, stw_error *err);

#endif
