/* SPDX-License-Identifier: Apache-2.0 */
/* Plans again with changes: prices (the gain from more of a resource), and fixes (changes with
 * which the job fits). Each function fills its part of the plan. */
#ifndef STW_PLANNER_RESOLVE_H
#define STW_PLANNER_RESOLVE_H

#include "planner/clock.h"
#include "planner/simulate.h"
#include "planner/solvers.h"

/** The input of a search for prices: the solved problem. */
typedef struct stw_price_search {
    stw_cost *cost; /* its limits change during the call */
    const stw_choice *choice;
    double fastest_s; /* an iteration of the fastest candidate, without the load */
    stw_planner_simulate simulate;
    stw_bars bars;
    double time_limit_s; /* for all searches together */
} stw_price_search;

/** Fill plan->prices by a short search with a tenth more of each resource that the plan uses;
 * without time left, the remaining prices are omitted. */
STW_MUST_USE stw_status stw_planner_price(stw_plan *plan, const stw_price_search *search,
                                          stw_error *err);

/** Search a choice that keeps all rows of bytes.
 * @param choice out, such a choice, if there is one
 * @param fits out; also false if the time was over */
STW_MUST_USE stw_status stw_planner_feasible(const stw_cost *cost, double time_limit_s,
                                             stw_choice *choice, bool *fits, stw_error *err);

/** Fill plan->bindings with a minimal set of limits that contradict each other: without any one of
 * them, the others can be kept.
 * @param cost a problem in which nothing fits; its limits change during the call
 * @param time_limit_s for all questions together */
STW_MUST_USE stw_status stw_planner_conflict(stw_plan *plan, stw_cost *cost, double time_limit_s,
                                             stw_error *err);

/** For each binding find the smallest limit of its resource with which the job fits, other limits
 * unchanged, as options of the command. (fixes.c)
 * @param time_limit_s for the whole search */
STW_MUST_USE stw_status stw_planner_limits(stw_plan *plan, double time_limit_s, stw_error *err);

#define STW_MAX_FIXES 12

/** Solves a plan with given specs as the planner does, without reasons and fixes, and simulates
 * it. */
typedef struct stw_fix_judge {
    stw_status (*solve)(const void *by, stw_plan *plan, double time_limit_s, stw_error *err);
    const void *by;
} stw_fix_judge;

/** Fill plan->fixes with changes with which a new plan fits, the smallest first (fix_order.c). Each
 * change is as small as possible.
 * @param time_limit_s for the whole search
 * @param judge gives each fix its verdict and seconds; NULL: the trial's verdict stays, seconds are
 * unknown */
STW_MUST_USE stw_status stw_planner_fix(stw_plan *plan, double time_limit_s,
                                        const stw_fix_judge *judge, stw_error *err);

#endif
