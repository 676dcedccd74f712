/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of Megatron-LM stand: rank order tp-cp-ep-dp-pp
 * (megatron/core/parallel_state.py, RankGenerator), pipeline stages and the chunks of an
 * interleaved schedule (which block lies where: stages.h). Pure functions of the job; any thread.
 */
#ifndef STW_ENGINES_MEGATRON_RANKS_H
#define STW_ENGINES_MEGATRON_RANKS_H

#include "engines/megatron/blocks.h"

/** Sizes of the groups of the run. */
typedef struct stw_megatron_ways {
    uint32_t tp, cp, dp, pp, vpp, ep, etp, expert_dp;
} stw_megatron_ways;

stw_megatron_ways stw_megatron_ways_of(const stw_job *job);

/** Slots of stw_engine. */
STW_MUST_USE stw_status stw_megatron_sizes(stw_job *job, stw_error *err);
void stw_megatron_group_size(const stw_job *job, stw_rank_group group, uint32_t *ranks,
                             uint32_t *on_node);
uint32_t stw_megatron_stage(const stw_job *job, uint32_t rank);
uint32_t stw_megatron_representative(const stw_job *job, uint32_t rank);

/** Micro batches that a chunk of an interleaved schedule takes in turn
 * (microbatch_group_size_per_vp_stage). */
uint64_t stw_megatron_group_of_micro_batches(const stw_job *job);
/** Micro batches of an iteration, and chunk passes of a stage that are in flight when its first
 * backward begins (schedules.py, forward_backward_pipelining_without_interleaving and
 * get_pp_rank_microbatches). Without pipeline stages: one. */
uint64_t stw_megatron_in_flight(const stw_job *job, uint32_t stage);
/** Tokens of a micro batch on this rank outside the matrices that tp cuts. */
uint64_t stw_megatron_row_tokens(const stw_job *job);

#endif
