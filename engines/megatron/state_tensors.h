/* SPDX-License-Identifier: Apache-2.0 */
/* State of a rank as torch's allocator sees it: flat buffers, and the optimizer's tensors. Every
 * function stands for the operations since `first_op`. It does nothing where forward and backward
 * are not known tensor by tensor (state->traced): activations in large pieces have no use for what
 * small tensors of the load leave. Nor does it with an optimizer that is offloaded, or state that
 * is parked. */
#ifndef STW_ENGINES_MEGATRON_STATE_TENSORS_H
#define STW_ENGINES_MEGATRON_STATE_TENSORS_H

#include "engines/megatron/state.h"

/** Model, buffers, main parameters. */
void stw_megatron_load_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op);
/** Moments, parameter by parameter; with optimizers of matrices none, see below. */
void stw_megatron_moment_tensors(stw_builder *b, const stw_megatron_state *s, uint32_t first_op);
/** Moments of one of several optimizers, which makes them when its first step begins: dense
 * matrices or those of experts, or all that is no matrix. From the first module on. */
void stw_megatron_moments_of(stw_builder *b, const stw_megatron_state *s, bool matrix, bool expert);

#endif
