/* SPDX-License-Identifier: Apache-2.0 */
/* Which pipeline stage and chunk builds which block. Pure functions; any thread. */
#ifndef STW_ENGINES_MEGATRON_STAGES_H
#define STW_ENGINES_MEGATRON_STAGES_H

#include "plan/job/job.h"

/** Blocks that a chunk of a stage builds. */
typedef struct stw_megatron_chunk {
    uint32_t layers, mtp; /* transformer layers; layers of multi-token prediction */
} stw_megatron_chunk;

/** Fill job->chunks from pp, vpp and the keys megatron.pipeline_layout, first_stage_layers,
 * last_stage_layers, account_for_embedding and account_for_loss. BAD_INPUT where the layers of the
 * model cannot be divided so; the error names the keys that divide them. */
STW_MUST_USE stw_status stw_megatron_place_blocks(stw_job *job, stw_error *err);
/** Read a layout string (pipeline_parallel_layer_layout.py, parse_str_to_list): chunks between
 * bars, E embedding, t layer, m multi-token prediction, L loss, x*n and (...)*n repeat, commas do
 * not count. Chunk i belongs to stage i modulo pp.
 * @param chunks out, [n_chunks], allocated in `pool`
 * @param expected out, static: what a bad layout should have been */
STW_MUST_USE bool stw_megatron_read_layout(const char *text, stw_pool *pool,
                                           stw_megatron_chunk **chunks, uint32_t *n_chunks,
                                           const char **expected);

/** A layout string for any number of layers: embedding and loss count as a layer each. */
void stw_megatron_propose_layout(uint64_t layers, uint64_t chunks, bool mtp, char *out,
                                 size_t out_size);

#endif
