/* SPDX-License-Identifier: Apache-2.0 */
/* The inference engines that rollout roles can name; engines/built_in.c lists them. */
#ifndef STW_ENGINES_ROLLOUT_ENGINES_H
#define STW_ENGINES_ROLLOUT_ENGINES_H

#include "plan/job/roles.h"

extern const stw_role_engine stw_role_engine_vllm, stw_role_engine_sglang;

#endif
