/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of calls (list.h) of transformers' blocks, and what is known of a block by them. Pure
 * functions of the job; any thread. */
#ifndef STW_BLOCKS_CALLS_H
#define STW_BLOCKS_CALLS_H

#include "blocks/list.h"
#include "plan/job/job.h"

/** Of a transformer block; its adapters and trained weights count.
 * @param constant its input has no gradient */
void stw_calls_of_block(const stw_job *job, uint32_t block, bool constant, stw_calls *out);
/** The same of the blocks of a group, with a gradient of the input. */
void stw_calls_of_group(const stw_job *job, uint32_t group, stw_calls *out);
/** Bytes of the mask of a block's attention, if it has one; 0: it has none. */
uint64_t stw_mask_bytes(const stw_job *job, const stw_block_facts *facts, uint64_t element_bytes);
/** Elements of a head that have positions. */
uint64_t stw_rotary_dim(const stw_job *job, uint32_t block);
/** The norm after the last block, alone.
 * @return its block */
uint32_t stw_calls_of_norm(const stw_job *job, stw_calls *out);
/** Of a group's blocks: is the order of all tensors known? Else only what is saved is. */
bool stw_group_is_known(const stw_job *job, uint32_t group);
/** The same of a block of a group. */
void stw_group_saved(const stw_job *job, uint32_t group, uint64_t bytes[STW_N_PARTS]);

#endif
