/* SPDX-License-Identifier: Apache-2.0 */
/* Judges where memory ended: phase, component, cause, and changes that are planned anew within what
 * the run had. One thread at a time. */
#ifndef STW_PLANNER_EXPLAIN_EXPLAIN_H
#define STW_PLANNER_EXPLAIN_EXPLAIN_H

#include "plan/measured/explanation.h"
#include "planner/frameworks/import/import.h"
#include "planner/simulate.h"

typedef struct stw_explain_options {
    double time_limit_s;      /* of all planning; 0: STW_PLANNER_TIME_LIMIT_S */
    const char *from;         /* FRAMEWORK:FILE that the plan was made from, or NULL */
    const stw_import *import; /* that was read from it, or NULL */
    const char *data_folder;
    stw_planner_simulate simulate;
} stw_explain_options;

/** @param plan NULL: none. Both must outlive *out, which the caller frees */
STW_MUST_USE stw_status stw_explain(const stw_failures *found, const stw_plan *plan,
                                    const stw_explain_options *options, stw_explanation **out,
                                    stw_error *err);

#endif
