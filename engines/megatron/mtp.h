/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of multi-token prediction (megatron/core/transformer/multi_token_prediction.py): blocks of
 * the group "mtp_layer" that follow the final norm. They share the output layer, and the embedding
 * where both are in one chunk; another chunk has a copy of it. Pure functions; any thread. */
#ifndef STW_ENGINES_MEGATRON_MTP_H
#define STW_ENGINES_MEGATRON_MTP_H

#include "engines/megatron/blocks.h"

/** Slot of stw_engine: the model with megatron.mtp_num_layers blocks more, each a projection, norms
 * and a copy of the last layer. */
STW_MUST_USE stw_status stw_megatron_trains(const stw_model *model, const stw_run_spec *run,
                                            stw_pool *pool, const stw_model **out, stw_error *err);

#endif
