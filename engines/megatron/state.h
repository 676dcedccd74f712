/* SPDX-License-Identifier: Apache-2.0 */
/* State of a rank of Megatron-LM: how it is made, and the optimizer step. */
#ifndef STW_ENGINES_MEGATRON_STATE_H
#define STW_ENGINES_MEGATRON_STATE_H

#include "engines/megatron/fsdp.h"
#include "plan/program/builder.h"

/** What a kind of rank holds, beside its spaces. */
typedef struct stw_megatron_state {
    stw_megatron_params params, shard;
    stw_megatron_fsdp fsdp; /* no buckets without Megatron-FSDP */
    uint64_t share;         /* elements of optimizer state, padding included */
    uint64_t offloaded;     /* of them, updated on the host */
    uint64_t matrices;      /* of them, of matrices that are updated otherwise than the rest */
    uint64_t host_acts, host_acts_rounding; /* page-locked tensors of activations */
    stw_extent workspace;
    bool traced;      /* forward and backward are known tensor by tensor (pass_tensors.h) */
    uint32_t lasting; /* first number of tensors that stay from one movement to the next */
} stw_megatron_state;

/** @param out lists lie in the program's pool */
void stw_megatron_look_at_state(stw_builder *b, stw_megatron_state *out);
/** Slot of stw_engine: regions of the state that stays on the GPU. */
STW_MUST_USE stw_status stw_megatron_regions(const stw_job *job, stw_layout *layout,
                                             stw_error *err);
/** Slot of stw_engine: the part that the CPU updates. */
const stw_cpu_rate *stw_megatron_cpu_rate(const stw_job *job);
double stw_megatron_cpu_step(const stw_job *job, bool norm, uint64_t params, double *bytes);
/** The load: model, buffers, optimizer. */
void stw_megatron_build_load(stw_builder *b, stw_megatron_state *state);
/** Reduction of the gradients of one of `parts` of the model among data-parallel ranks, or
 * all-gather of its updated parameters, which only the distributed optimizer needs. */
void stw_megatron_exchange(stw_builder *b, const stw_megatron_state *state, bool gathers,
                           uint64_t parts, uint32_t after);
/** A step. @param first moments are made
 * @param left [model.n_blocks] what the last backward left; freed. NULL: nothing */
void stw_megatron_build_step(stw_builder *b, const stw_megatron_state *state, bool first,
                             const stw_extent *left);

#endif
