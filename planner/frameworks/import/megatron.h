/* SPDX-License-Identifier: Apache-2.0 */
/* Import of Megatron-LM's arguments (megatron/training/arguments.py). */
#ifndef STW_PLANNER_IMPORT_MEGATRON_H
#define STW_PLANNER_IMPORT_MEGATRON_H

#include "planner/frameworks/import/reading.h"

extern const stw_flag_table stw_megatron_flags;
/** Read flags: settings of the run, without the model. Flags of line 0 are defaults that no line
 * tells of. @param r with flags and out; sorted by the table unless `known` has a row for it */
void stw_megatron_read(stw_reading *r, const stw_flag_table *known);
/** Read arguments into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_megatron_import(const char *text, size_t length, stw_import *out,
                                            stw_error *err);

#endif
