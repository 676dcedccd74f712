/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: settings for which the planner's problem has no variable (stw_engine_turn). A run is
 * planned as it is; then each turn whose keys the run leaves open is planned, unless the rows show
 * that it is not faster. Internal to the planner. */
#ifndef STW_PLANNER_TURNS_H
#define STW_PLANNER_TURNS_H

#include "planner/planner.h"
#include "planner/resolve.h"

/** Plan the run as it is, without turns. Fixes are planned in the same way, so that a command with
 * a fix is not slower than the fix states. (planner.c) */
STW_MUST_USE stw_status stw_planner_solve_run(stw_plan *plan, const stw_planner_options *options,
                                              stw_error *err);
/** Simulate every kind of rank; a phase takes as long as the slowest kind. (planner.c) */
STW_MUST_USE stw_status stw_planner_time(stw_plan *plan, stw_planner_simulate simulate,
                                         stw_error *err);
/** The judge of fixes: plans with their changes as a command does. (planner.c)
 * @param options must outlive it; `again` is set */
stw_fix_judge stw_planner_judge(const stw_planner_options *options);

#endif
