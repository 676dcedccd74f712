/* SPDX-License-Identifier: Apache-2.0 */
/* What an import made of a file, for tests. */
#ifndef STW_TESTS_UNIT_IMPORT_CASE_H
#define STW_TESTS_UNIT_IMPORT_CASE_H

#include <stdio.h>
#include <string.h>

#include "planner/frameworks/import/import.h"

static inline bool has_setting(const stw_import *import, const char *setting) {
    bool found = false;
    for (size_t i = 0; i < import->n_settings; i++)
        found = found || strcmp(import->settings[i], setting) == 0;
    if (!found) fprintf(stderr, "no setting %s\n", setting);
    return found;
}

static inline stw_import_use use_of(const stw_import *import, const char *flag) {
    for (size_t i = 0; i < import->n_lines; i++)
        if (strcmp(import->lines[i].flag, flag) == 0) return import->lines[i].use;
    return STW_N_IMPORT_USES;
}

#endif
