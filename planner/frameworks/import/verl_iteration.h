/* SPDX-License-Identifier: Apache-2.0 */
/* What verl's trainer does between two weight syncs: mini batches, epochs, checkpoints. */
#ifndef STW_PLANNER_VERL_ITERATION_H
#define STW_PLANNER_VERL_ITERATION_H

#include "planner/frameworks/import/reading.h"

/** Set batch.mini_batches, batch.epochs and keys of checkpoints. BAD_INPUT: fewer prompts than a
 * mini batch. @param mini prompts of a mini batch @param sft of its trainer of SFT, which has none
 */
void stw_verl_set_iteration(stw_reading *r, uint64_t mini, bool sft);

#endif
