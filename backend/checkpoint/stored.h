/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a checkpoint, found by the names that a model gives them. */
#ifndef STW_BACKEND_CHECKPOINT_STORED_H
#define STW_BACKEND_CHECKPOINT_STORED_H

#include "backend/checkpoint/load.h"
#include "plan/checkpoint/saved.h"

/** Files of a model as this checkpoint has them: entries have its dtypes and places, and `file`
 * counts in manifest.files. The kinds are those that the checkpoint holds.
 * @param frozen [n_tensors] tensors without optimizer state; NULL: none
 * @return BAD_INPUT names a tensor that is missing, or of another shape */
STW_MUST_USE stw_status stw_checkpoint_stored(const stw_checkpoint *checkpoint,
                                              const stw_model *model, const bool *frozen,
                                              stw_saved_files **out, stw_error *err);

/** Needs of some rank of the job: all that is stored of a tensor. Twice is fine. */
STW_MUST_USE stw_status stw_stored_any_rank(const stw_saved_files *stored, stw_saved_kind kind,
                                            uint32_t tensor, stw_load_needs *needs, stw_error *err);

#endif
