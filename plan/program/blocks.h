/* SPDX-License-Identifier: Apache-2.0 */
/* The activation policy of each block, and how long the activations of an offloaded block are on
 * the GPU. Programs, rows and reports all use this file. Pure functions, any thread. */
#ifndef STW_PLAN_BLOCKS_H
#define STW_PLAN_BLOCKS_H

#include "plan/program/decisions.h"

/** At most this many blocks at the end of a group have its last policy: keep if any block is kept,
 * else recompute, else offload. Their backward runs first and frees the room for the first fetched
 * block beside the block that is in its backward. */
#define STW_LAST_BLOCKS 2

/** The policy of every block; keep for blocks without a choice.
 * @param acts out, [model.n_blocks] */
void stw_block_acts(const stw_job *job, const stw_decisions *decisions, stw_act *acts);

/** Returns how many blocks of a group are recomputed in one chunk of a pipeline: the group's share,
 * rounded up.
 * @param recomputed blocks of the group that are recomputed in the model
 * @param in_chunk blocks of the group in the chunk
 * @param of_group blocks of the group in the model, above 0 */
uint64_t stw_blocks_recomputed_in_chunk(uint64_t recomputed, uint64_t in_chunk, uint64_t of_group);

/** Returns how far into the chain the activations of the offloaded block at `at` are on the GPU. A
 * chain is the list of blocks in forward order; backward runs it in reverse.
 * @param chain [n] blocks
 * @param acts [model.n_blocks]
 * @return position of a block after `at`: the activations leave when its forward has run, and
 * return before its backward. n: `at` is the last block */
uint32_t stw_block_held_to(const stw_job *job, const stw_decisions *decisions, const stw_act *acts,
                           const uint32_t *chain, uint32_t n, uint32_t at);

#endif
