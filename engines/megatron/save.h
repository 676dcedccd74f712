/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of Megatron-LM writes into a checkpoint of format torch_dist. */
#ifndef STW_ENGINES_MEGATRON_SAVE_H
#define STW_ENGINES_MEGATRON_SAVE_H

#include "engines/checkpoint.h"
#include "engines/megatron/state.h"

stw_save stw_megatron_save(const stw_builder *b, const stw_megatron_state *state);
/** Slots of stw_engine. */
void stw_megatron_save_metadata(const stw_job *job, char *out, size_t out_size);
void stw_megatron_known_failure(const stw_job *job, char *out, size_t out_size);

#endif
