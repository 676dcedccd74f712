/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models as frameworks write them: a repository (Qwen/Qwen2.5-7B-Instruct) or a path. */
#ifndef STW_PLANNER_IMPORT_NAMES_H
#define STW_PLANNER_IMPORT_NAMES_H

#include <stdbool.h>

#include "core/pool.h"
#include "core/status.h"

/** The zoo's model with the shapes of a published one: by its name without the part before the
 * last slash and without an ending that changes no shape (-Instruct, -Base, -2507, ...), in any
 * case of letters. @param out in the pool; NULL if the zoo has none */
STW_MUST_USE stw_status stw_names_zoo(const char *data_folder, const char *name, stw_pool *pool,
                                      const char **out, stw_error *err);

/** Have two paths or names of the Hub the same last component? */
bool stw_names_same(const char *a, const char *b);

#endif
