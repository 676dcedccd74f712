/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of this version; built_in.c lists them for run specs. */
#ifndef STW_ENGINES_BUILT_IN_H
#define STW_ENGINES_BUILT_IN_H

#include "plan/job/engine.h"

extern const stw_engine stw_engine_stowage, stw_engine_fsdp2, stw_engine_megatron,
    stw_engine_deepspeed;

#endif
