/* SPDX-License-Identifier: Apache-2.0 */
/* Planning again with something changed: what one more unit of a resource would bring, and what
 * would have to change for anything to fit. Both fill their part of the plan. */
#ifndef STW_PLANNER_RESOLVE_H
#define STW_PLANNER_RESOLVE_H

#include "planner/planner.h"
#include "planner/solvers.h"

/** Fill plan->prices by solving stage 1 again with one more unit of each resource.
 * @param gap of stage 1 @param time_limit_s of all re-solves together; prices that it leaves no
 * time for are left out */
STW_MUST_USE stw_status stw_planner_price(stw_plan *plan, const stw_cost *cost,
                                          const stw_choice *choice, double gap, double time_limit_s,
                                          stw_error *err);

#define STW_MAX_FIXES 5

/** Fill plan->fixes with single changes that were planned and fit, cheapest first.
 * @param time_limit_s of the whole search */
STW_MUST_USE stw_status stw_planner_fix(stw_plan *plan, double time_limit_s, stw_error *err);

#endif
