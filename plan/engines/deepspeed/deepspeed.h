/* SPDX-License-Identifier: Apache-2.0 */
/* The keys deepspeed.* of a run spec. The engine is not built in yet. */
#ifndef STW_PLAN_DEEPSPEED_H
#define STW_PLAN_DEEPSPEED_H

#include "plan/spec/registry.h"

typedef struct stw_deepspeed_settings {
    uint32_t zero_stage;
    double ratio;
    uint64_t sub_group_size, prefetch_bucket, max_live_parameters;
} stw_deepspeed_settings;

stw_deepspeed_settings stw_deepspeed_settings_of(const stw_run_spec *run);

#endif
