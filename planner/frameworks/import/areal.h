/* SPDX-License-Identifier: Apache-2.0 */
/* Import of AReaL's YAML configs (areal/api/cli_args.py at 1.0.4). */
#ifndef STW_PLANNER_IMPORT_AREAL_H
#define STW_PLANNER_IMPORT_AREAL_H

#include "planner/frameworks/import/reading.h"

extern const stw_flag_table stw_areal_flags;
/** Read a YAML file into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_areal_import(const char *text, size_t length, stw_import *out,
                                         stw_error *err);

#endif
