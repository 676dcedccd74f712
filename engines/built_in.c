/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/built_in.h"

#include "engines/models/roles.h"
#include "engines/rollout/engines.h"

const stw_engine_spec *const stw_engines_built_in[] = {
    &stw_engine_stowage.spec, &stw_engine_fsdp2.spec, &stw_engine_megatron.spec,
    &stw_engine_deepspeed.spec, NULL};

const stw_role_engine *const stw_role_engines_built_in[] = {
    &stw_role_engine_vllm, &stw_role_engine_sglang, &stw_role_engine_fsdp2,
    &stw_role_engine_megatron, NULL};
