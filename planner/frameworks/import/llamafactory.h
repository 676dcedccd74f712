/* SPDX-License-Identifier: Apache-2.0 */
/* Import of LLaMA-Factory's YAML files (src/llamafactory/hparams/ at 0.9.5). */
#ifndef STW_PLANNER_IMPORT_LLAMAFACTORY_H
#define STW_PLANNER_IMPORT_LLAMAFACTORY_H

#include "planner/frameworks/import/reading.h"

/** Is it a shell script (.sh), not a file of settings? */
bool stw_llamafactory_is_script(const char *path);
/** The flags of its last command `llamafactory-cli train`, the files that it names included. */
void stw_llamafactory_read_script(stw_reading *r, const char *text, size_t length);

extern const stw_flag_table stw_llamafactory_flags;
/** Read a YAML or JSON file, or a script, into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_llamafactory_import(const char *text, size_t length, stw_import *out,
                                                stw_error *err);

#endif
