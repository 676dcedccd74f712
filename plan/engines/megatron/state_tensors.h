/* SPDX-License-Identifier: Apache-2.0 */
/* State of a rank as torch's allocator sees it: flat buffers, and the optimizer's tensors. Every
 * function stands for the operations since `first_op`, and does nothing where no tensors are asked
 * for (plan/program/tensors.h), nor with Megatron-FSDP, an optimizer that is offloaded, state that
 * is parked, or frozen parameters. */
#ifndef STW_PLAN_MEGATRON_STATE_TENSORS_H
#define STW_PLAN_MEGATRON_STATE_TENSORS_H

#include "plan/engines/megatron/state.h"

/** Model, buffers, main parameters. */
void stw_megatron_load_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op);
/** Moments, parameter by parameter. */
void stw_megatron_moment_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op);

#endif
