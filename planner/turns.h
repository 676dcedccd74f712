/* SPDX-License-Identifier: Apache-2.0 */
/* Keys for which the planner's problem has no variable, turned one after the other: every engine
 * lists them (stw_engine_turn). A run is planned as it is; then each turn whose keys it leaves open
 * is planned, unless rows say that it is no faster. Internal to the planner. */
#ifndef STW_PLANNER_TURNS_H
#define STW_PLANNER_TURNS_H

#include "planner/planner.h"

/** What stw_planner_solve does with the run as it is: the plan's own keys, and no others. Plans of
 * fixes are made so as well: a command that takes a fix is no slower than the fix says.
 * (planner.c) */
STW_MUST_USE stw_status stw_planner_solve_run(stw_plan *plan, const stw_planner_options *options,
                                              stw_error *err);
/** Simulate every kind of rank: a phase takes as long as its slowest one. (planner.c) */
STW_MUST_USE stw_status stw_planner_time(stw_plan *plan, stw_planner_simulate simulate,
                                         stw_error *err);

#endif
