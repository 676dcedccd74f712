/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models as frameworks write them: a repository (Qwen/Qwen2.5-7B-Instruct) or a path. */
#ifndef STW_PLANNER_IMPORT_NAMES_H
#define STW_PLANNER_IMPORT_NAMES_H

#include <stdbool.h>

/** Have two paths or names of the Hub the same last component? */
bool stw_names_same(const char *a, const char *b);

#endif
