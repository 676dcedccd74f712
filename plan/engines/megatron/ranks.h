/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of Megatron-LM stand: rank order tp-cp-ep-dp-pp
 * (megatron/core/parallel_state.py, RankGenerator), pipeline stages and the chunks of an
 * interleaved schedule, and which block lies on which stage (transformer_block.py,
 * get_num_layers_to_build; transformer_layer.py, get_transformer_layer_offset). Pure functions of
 * the job; any thread. */
#ifndef STW_PLAN_MEGATRON_RANKS_H
#define STW_PLAN_MEGATRON_RANKS_H

#include "plan/job/job.h"

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

/** Is it a transformer block of the language model? */
bool stw_megatron_is_layer(const stw_job *job, uint32_t block);
/** Transformer blocks of the model, and of one chunk of a stage. */
uint32_t stw_megatron_layers(const stw_job *job);
uint32_t stw_megatron_chunk_layers(const stw_job *job);
/** The chunk, counted over all stages, of a transformer block; a chunk of stage s is s modulo the
 * stages. Blocks before the first transformer block are in chunk 0, those after the last one in the
 * last chunk. */
uint32_t stw_megatron_chunk_of(const stw_job *job, uint32_t block);
/** Does a stage hold a block? The last stage holds a copy of a tied embedding, too
 * (language_module.py, setup_embeddings_and_output_layer). */
bool stw_megatron_holds(const stw_job *job, uint32_t stage, uint32_t block);
/** Is this block of a stage the copy of a tied embedding that is its head? */
bool stw_megatron_is_head_copy(const stw_job *job, uint32_t stage, uint32_t block);
/** Is the block the token embedding, or the head that makes logits? */
bool stw_megatron_is_embedding(const stw_job *job, uint32_t block);
bool stw_megatron_is_head(const stw_job *job, uint32_t block);

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
