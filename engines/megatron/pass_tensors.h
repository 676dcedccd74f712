/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of an iteration as torch's allocator sees them, in the order of the 1F1B
 * schedule, where all of it is known (state->traced). */
#ifndef STW_ENGINES_MEGATRON_PASS_TENSORS_H
#define STW_ENGINES_MEGATRON_PASS_TENSORS_H

#include "engines/megatron/state.h"

/** A layer of the stage. */
typedef struct stw_traced_layer {
    uint32_t block;
    bool recompute, heads_segment; /* the first one of those that are recomputed together */
} stw_traced_layer;

/** Is the order of all tensors of forward and backward known, and asked for? */
bool stw_megatron_is_traced(const stw_builder *b);
/** Numbers for tensors that stay from one movement to the next. */
void stw_megatron_lasting_tensors(stw_builder *b, stw_megatron_state *state);
/** In place of the operations since `first_op`. @param layers [n] in the order of forward */
void stw_megatron_pass_tensors(stw_builder *b, const stw_megatron_state *state, uint32_t first_op,
                               const stw_traced_layer *layers, uint32_t n);

#endif
