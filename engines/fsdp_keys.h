/* SPDX-License-Identifier: Apache-2.0 */
/* The keys fsdp.* of a run spec: fsdp2's, and the stowage engine's, which trains as fsdp2 does. */
#ifndef STW_ENGINES_FSDP_KEYS_H
#define STW_ENGINES_FSDP_KEYS_H

#include "plan/spec/registry.h"

typedef struct stw_fsdp_settings {
    bool reshard_after_forward, reshard_to_node, reshard_after_backward, offload_policy,
        wrap_embeddings, sync_each_micro_batch, loss_parallel, streamed_frees_at_once;
} stw_fsdp_settings;

/** What recompute.modules makes again: modules under torch's checkpoint, or operations. */
typedef struct stw_fsdp_modules {
    bool ops, mlp, self_attn, layernorm;
} stw_fsdp_modules;

extern const stw_spec_section stw_fsdp_section;
stw_fsdp_modules stw_fsdp_modules_of(const stw_run_spec *run);
/** Recomputation, dtypes and tensor parallelism, and shares of Stowage's optimizer; see
 * stw_engine_spec.check. */
STW_MUST_USE stw_status stw_fsdp2_check(const stw_run_spec *run, const char *origin,
                                        stw_error *err);
stw_fsdp_settings stw_fsdp_settings_of(const stw_run_spec *run);

#endif
