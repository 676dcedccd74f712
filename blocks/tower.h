/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of calls (list.h) of a vision tower of transformers: of its blocks, and of the mergers
 * that make tokens of patches. Pure functions of the job; any thread. */
#ifndef STW_BLOCKS_TOWER_H
#define STW_BLOCKS_TOWER_H

#include "blocks/list.h"
#include "plan/job/job.h"

/** Are the blocks of a group those of Qwen3-VL's tower, whose order is known: LayerNorm, queries,
 * keys and values in one product, an MLP without a gate, biases everywhere? */
bool stw_tower_has_block(const stw_job *job, uint32_t group);
/** Of such a block. @param constant its input has no gradient */
void stw_tower_calls_of_block(const stw_job *job, uint32_t block, bool constant, stw_calls *out);
/** Is a block a merger: a norm of patches, or of those of a token together, and two products? */
bool stw_tower_has_merger(const stw_job *job, uint32_t block);
/** Of a merger. */
void stw_tower_calls_of_merger(const stw_job *job, uint32_t block, stw_calls *out);

#endif
