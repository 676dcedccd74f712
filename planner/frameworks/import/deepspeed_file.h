/* SPDX-License-Identifier: Apache-2.0 */
/* The config that another file names, "deepspeed: examples/deepspeed/ds_z3_config.json". */
#ifndef STW_PLANNER_IMPORT_DEEPSPEED_FILE_H
#define STW_PLANNER_IMPORT_DEEPSPEED_FILE_H

#include "planner/frameworks/import/reading.h"

/** Look for a path beside the file that names it, then in that file's parents, then in the present
 * folder. @return where it is, in the pool; NULL: nowhere */
const char *stw_deepspeed_find(const stw_import *import, const char *path);
/** Read the config at `found` into `zeros`. A failure is r's. */
void stw_deepspeed_open(stw_reading *r, const char *found, stw_reading *zeros);

#endif
