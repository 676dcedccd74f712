/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of roles that are models of their own: reference, critic, reward. built_in.c lists them.
 */
#ifndef STW_ENGINES_MODELS_ROLES_H
#define STW_ENGINES_MODELS_ROLES_H

#include "plan/job/job.h"

extern const stw_role_engine stw_role_engine_fsdp2, stw_role_engine_megatron;

#endif
