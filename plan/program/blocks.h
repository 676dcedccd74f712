/* SPDX-License-Identifier: Apache-2.0 */
/* Which block has which activation policy, and for how long the activations of an offloaded block
 * are on the GPU. Programs, rows and reports all ask here. Pure functions, any thread. */
#ifndef STW_PLAN_BLOCKS_H
#define STW_PLAN_BLOCKS_H

#include "plan/program/decisions.h"

/** Blocks at the end of a group that have its last policy (keep, where any block has it), as far as
 * there are that many. Their backward runs first; what they free is the room for the first fetched
 * block beside the one that is in its backward. */
#define STW_LAST_BLOCKS 2

/** The policy of every block; keep for blocks without a choice.
 * @param acts out, [model.n_blocks] */
void stw_block_acts(const stw_job *job, const stw_decisions *decisions, stw_act *acts);

/** Of the blocks of a group in one chunk of a pipeline, how many are recomputed: their share of the
 * group's, rounded up.
 * @param of_group blocks of the group in the model, above 0; `recomputed` of them are */
uint64_t stw_blocks_recomputed_in_chunk(uint64_t recomputed, uint64_t in_chunk, uint64_t of_group);

/** A chain is the blocks that run one after the other in forward and, in reverse, in backward.
 * @param chain [n] blocks
 * @param acts [model.n_blocks]
 * @return position in the chain up to whose block the activations of the offloaded block at `at`
 * are on the GPU: its forward has run when they go, and they come back before its backward. n: of
 * no block after `at`, it is the last one. */
uint32_t stw_block_held_to(const stw_job *job, const stw_decisions *decisions, const stw_act *acts,
                           const uint32_t *chain, uint32_t n, uint32_t at);

#endif
