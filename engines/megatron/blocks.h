/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a model as Megatron-LM builds them: of which kind they are, and which chunk of which
 * pipeline stage has them (job->chunks). Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_BLOCKS_H
#define STW_ENGINES_MEGATRON_BLOCKS_H

#include "plan/job/job.h"

/** The tensor group of layers of multi-token prediction. */
#define STW_MEGATRON_MTP_GROUP "mtp_layer"

/** Transformer blocks of the model, without layers of multi-token prediction; those. */
uint32_t stw_megatron_layers(const stw_job *job);
uint32_t stw_megatron_mtp_layers(const stw_job *job);
/** The chunk of a block, counted over all stages; a chunk of stage s is s modulo the stages. */
uint32_t stw_megatron_chunk_of(const stw_job *job, uint32_t block);
/** The chunk with the layers of multi-token prediction; the chunk with the final norm. */
uint32_t stw_megatron_mtp_chunk(const stw_job *job);
uint32_t stw_megatron_norm_chunk(const stw_job *job);
/** Does a chunk build a block, or a copy of it? The last chunk has a copy of a tied embedding,
 * that of multi-token prediction has one of the embedding (language_module.py,
 * setup_embeddings_and_output_layer). */
bool stw_megatron_builds(const stw_job *job, uint32_t chunk, uint32_t block);
bool stw_megatron_is_copy(const stw_job *job, uint32_t chunk, uint32_t block);
/** Does a chunk of this stage build the block? */
bool stw_megatron_holds(const stw_job *job, uint32_t stage, uint32_t block);
/** A transformer block; a layer of multi-token prediction. */
bool stw_megatron_is_layer(const stw_job *job, uint32_t block);
bool stw_megatron_is_mtp(const stw_job *job, uint32_t block);
/** Is the block the token embedding, or the head that makes logits? */
bool stw_megatron_is_embedding(const stw_job *job, uint32_t block);
bool stw_megatron_is_head(const stw_job *job, uint32_t block);

#endif
