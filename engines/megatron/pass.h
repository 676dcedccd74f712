/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of Megatron-LM on one pipeline stage. */
#ifndef STW_ENGINES_MEGATRON_PASS_H
#define STW_ENGINES_MEGATRON_PASS_H

#include "engines/megatron/state.h"

/** Append the movement of one micro batch in the steady state of the schedule: the activations of
 * the other micro batches in flight are there, and the idle time of the stage at both ends of an
 * iteration has its share in each micro batch.
 * @param left [model.n_blocks] out: what backward leaves until the next forward */
void stw_megatron_build_pass(stw_builder *b, const stw_megatron_state *state, stw_extent *left);

/** What megatron.offload_modules page-locks on this rank (state->host_acts*). */
void stw_megatron_look_at_offload(stw_builder *b, stw_megatron_state *state);

#endif
