/* SPDX-License-Identifier: Apache-2.0 */
/* The keys megatron.* of a run spec. The engine is not built in yet. */
#ifndef STW_PLAN_MEGATRON_H
#define STW_PLAN_MEGATRON_H

#include "plan/spec/registry.h"

typedef struct stw_megatron_settings {
    bool distributed_optimizer, fsdp;
    double optimizer_offload_fraction;
    bool overlap_d2h_h2d, precision_aware, overlap_grad_reduce, overlap_param_gather;
    const char *ckpt_format;
} stw_megatron_settings;

stw_megatron_settings stw_megatron_settings_of(const stw_run_spec *run);

#endif
