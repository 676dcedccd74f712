/* SPDX-License-Identifier: Apache-2.0 */
/* What a folder of a model has besides its weights: config.json, tokenizer. */
#ifndef STW_BACKEND_CHECKPOINT_CONVERT_TEXTS_H
#define STW_BACKEND_CHECKPOINT_CONVERT_TEXTS_H

#include "backend/checkpoint/folder.h"
#include "models/model.h"

/** Copy them from a checkpoint, and from `like` (NULL: none) what the checkpoint lacks. config.json
 * says the dtype of the weights, and no longer how they were quantised.
 * @param to a folder @param dtype of all weights; STW_N_DTYPES: they differ, and it stays as it is
 * @return DISAGREE where a file of the checkpoint is damaged */
STW_MUST_USE stw_status stw_convert_texts(const stw_checkpoint *checkpoint, const char *like,
                                          const char *to, stw_dtype dtype, stw_error *err);

#endif
