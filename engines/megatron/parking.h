/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer moves to the host between updates around Megatron-LM (engines/park.h).
 * Sources: verl/utils/megatron_utils.py (offload_megatron_model_to_cpu, offload_megatron_optimizer
 * and their counterparts): the buffers of parameters get a page-locked copy each, those of
 * gradients are freed without one, main parameters and moments go tensor by tensor by to("cpu",
 * non_blocking=True), which page-locks. Before verl pull request 6193 copies of parameters were
 * made anew each time. */
#ifndef STW_ENGINES_MEGATRON_PARKING_H
#define STW_ENGINES_MEGATRON_PARKING_H

#include "engines/megatron/state.h"

/** At the end of a load: everything that is there and is parked leaves. */
void stw_megatron_look_at_parking(stw_builder *b, const stw_megatron_state *state);
/** Moments that a first step has made will leave after it. */
void stw_megatron_park_moments(stw_builder *b, const stw_megatron_state *state);
/** Padding of a component goes where the component goes. */
void stw_megatron_park_padding(stw_builder *b, stw_component component, stw_extent extent);

#endif
