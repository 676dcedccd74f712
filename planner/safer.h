/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of settings with which a plan at risk is without risk. Internal to the planner. */
#ifndef STW_PLANNER_SAFER_H
#define STW_PLANNER_SAFER_H

#include "planner/planner.h"
#include "planner/resolve.h"

/** Fill plan->fixes of a plan at risk with changes of one setting or of two, with which a new plan
 * has no risk, the fastest first. Samples, numerics, machines and engine stay. Does nothing for
 * other plans, for a run that accepts risk, and for options without fixes.
 * @param judge plans with the changes as a command does */
STW_MUST_USE stw_status stw_planner_avoid_risk(stw_plan *plan, const stw_planner_options *options,
                                               const stw_fix_judge *judge, stw_error *err);

#endif
