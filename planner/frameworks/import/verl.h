/* SPDX-License-Identifier: Apache-2.0 */
/* Import of verl's settings: launch scripts with arguments a.b.c=value, and YAML files
 * (verl/trainer/config/ at 0.9.1). */
#ifndef STW_PLANNER_IMPORT_VERL_H
#define STW_PLANNER_IMPORT_VERL_H

#include "planner/frameworks/import/reading.h"

/** Keys of verl, and those of override_transformer_config that are no flags of Megatron-LM. */
extern const stw_flag_table stw_verl_flags, stw_verl_megatron_flags;
/** Read a script or a YAML file into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_verl_import(const char *text, size_t length, stw_import *out,
                                        stw_error *err);

#endif
