/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and optimizer state on the GPU as torch's allocator sees them: DeepSpeed joins them
 * into flat buffers. Every function stands for the operations since `first_op`, and does nothing
 * where forward and backward are not known tensor by tensor (z->traced): activations in large
 * pieces have no use for what small tensors of the load leave. */
#ifndef STW_ENGINES_DEEPSPEED_STATE_TENSORS_H
#define STW_ENGINES_DEEPSPEED_STATE_TENSORS_H

#include "engines/deepspeed/zero.h"

/** Parameters are there: every tensor of the model; in stage 3 the rank's shards, in one buffer
 * (stage3.py, defragment). */
void stw_zero_params_tensors(stw_zero *z, uint32_t first_op);
/** Stages 1 and 2: the parameters of a group are copied into one buffer and go; the cache was
 * emptied before (stage_1_and_2.py, __init__). */
void stw_zero_flat_tensors(stw_zero *z, uint32_t first_op, uint32_t group);
/** State of four bytes per element that stays, `n` times for each group, or sub-group of stage
 * 3. */
void stw_zero_state_tensors(stw_zero *z, uint32_t first_op, uint32_t n);

#endif
