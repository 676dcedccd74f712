/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of a plan that does not fit, seen from the framework whose settings it was read from.
 * Internal to the writers of settings; one thread at a time. */
#ifndef STW_PLANNER_EMIT_SAID_H
#define STW_PLANNER_EMIT_SAID_H

#include "plan/files/plan.h"
#include "planner/frameworks/import/import.h"

typedef struct stw_said stw_said;
struct stw_said {
    const char *name; /* for people */
    const void *framework;
    const stw_plan *plan;
    const stw_import *import;
    const stw_run_spec *as_it_is; /* what its settings give without changes */
    /** Does something other than the settings say a key? */
    bool (*is_elsewhere)(const void *framework, const char *key);
    /** Write the settings of a plan and read them. @param out free with stw_run_spec_free */
    stw_status (*read_back)(const stw_said *by, const stw_plan *plan, stw_run_spec *out);
};

/** @param value out, NULL: the settings cannot say the key; else what they make of it with the fix,
 * in the plan's pool
 * @return the first key that a fix loses; NULL: the settings say all of it, or nobody knows */
const char *stw_said_lost(const stw_said *by, const stw_fix *fix, const char **value);
/** Put the fixes that the settings can say first, and name the key that they cannot in the others.
 */
STW_MUST_USE stw_status stw_said_order(const stw_said *by, stw_plan *plan, stw_error *err);

#endif
