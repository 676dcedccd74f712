/* SPDX-License-Identifier: Apache-2.0 */
/* Planning again with something changed: what more of a resource would bring, and what would have
 * to change for anything to fit. Both fill their part of the plan. */
#ifndef STW_PLANNER_RESOLVE_H
#define STW_PLANNER_RESOLVE_H

#include "planner/clock.h"
#include "planner/simulate.h"
#include "planner/solvers.h"

/** What prices are asked of: the problem as it was solved. */
typedef struct stw_price_search {
    stw_cost *cost; /* its limits are changed meanwhile */
    const stw_choice *choice;
    double fastest_s; /* an iteration of the fastest candidate, without the load */
    stw_planner_simulate simulate;
    stw_bars bars;
    double time_limit_s; /* of all searches together */
} stw_price_search;

/** Fill plan->prices by a short search with a tenth more of each resource that the plan uses;
 * prices for which no time is left are left out. */
STW_MUST_USE stw_status stw_planner_price(stw_plan *plan, const stw_price_search *search,
                                          stw_error *err);

/** Does any choice keep all rows of bytes?
 * @param choice out, one that does, where there is one @param fits out; false where the time was
 * over first */
STW_MUST_USE stw_status stw_planner_feasible(const stw_cost *cost, double time_limit_s,
                                             stw_choice *choice, bool *fits, stw_error *err);

/** Fill plan->bindings with a minimal set of limits that contradict each other: with any one of
 * them dropped, the others can be kept.
 * @param cost in which nothing fits; its limits are changed meanwhile @param time_limit_s of all
 * questions together */
STW_MUST_USE stw_status stw_planner_conflict(stw_plan *plan, stw_cost *cost, double time_limit_s,
                                             stw_error *err);

/** Find the smallest limit of each binding's resource, as options of the command, with which the
 * plan fits while the others stay. (fixes.c)
 * @param time_limit_s of the whole search */
STW_MUST_USE stw_status stw_planner_limits(stw_plan *plan, double time_limit_s, stw_error *err);

#define STW_MAX_FIXES 12

/** Solves a plan whose specs are given as the planner does, without reasons and fixes, and
 * simulates it. */
typedef struct stw_fix_judge {
    stw_status (*solve)(const void *by, stw_plan *plan, double time_limit_s, stw_error *err);
    const void *by;
} stw_fix_judge;

/** Fill plan->fixes with changes that were planned and fit, the smallest first (fix_order.c); of
 * what is changed as little as fits.
 * @param time_limit_s of the whole search @param judge gives each fix its verdict and seconds;
 * NULL: the verdict of its trial stays, the seconds are not known */
STW_MUST_USE stw_status stw_planner_fix(stw_plan *plan, double time_limit_s,
                                        const stw_fix_judge *judge, stw_error *err);

#endif
