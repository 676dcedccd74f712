/* SPDX-License-Identifier: Apache-2.0 */
/* Short macros for writing tables of rows, and the rows that all runs share. Only files that define
 * a table, and the registry, include this. */
#ifndef STW_PLAN_SPEC_ROWS_H
#define STW_PLAN_SPEC_ROWS_H

#include "plan/spec/spec_keys.h"

#define IN(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)
#define WORDS(name, list) .key = name, .kind = STW_SPEC_WORDS, .words = list
#define BOOL(name) .key = name, .kind = STW_SPEC_BOOL
#define COUNT(name) .key = name, .kind = STW_SPEC_COUNT, .unit = STW_UNIT_COUNT
#define BYTES(name) .key = name, .kind = STW_SPEC_BYTES, .unit = STW_UNIT_BYTES
#define TOKENS(name) .key = name, .kind = STW_SPEC_COUNT, .unit = STW_UNIT_TOKENS
#define RATIO(name) .key = name, .kind = STW_SPEC_NUMBER, .unit = STW_UNIT_RATIO
#define STRING(name) .key = name, .kind = STW_SPEC_STRING
#define STRINGS(name) .key = name, .kind = STW_SPEC_STRINGS

#define BOUNDS(first, last) .least = first, .most = last
#define NEEDS(name) (1ull << STW_NEED_##name)

/** The rows of run.yaml that belong to no engine, before and after the engines' rows. */
void stw_run_spec_common_rows(stw_spec_table *before, stw_spec_table *after);

#endif
