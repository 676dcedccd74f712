/* SPDX-License-Identifier: Apache-2.0 */
/* The step of an optimizer that updates matrix after matrix (blocks/optimizer.h). */
#ifndef STW_ENGINES_MEGATRON_MATRICES_H
#define STW_ENGINES_MEGATRON_MATRICES_H

#include "engines/megatron/state.h"

/** Append the updates of all matrices: temporaries, work and collectives. Nothing without such an
 * optimizer. @param first the step that makes the moments, whose tensors are taken here */
void stw_megatron_update_matrices(stw_builder *b, const stw_megatron_state *state, bool first);

#endif
