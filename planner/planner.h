/* SPDX-License-Identifier: Apache-2.0 */
/* The planner: chooses decisions for a job so that every row of bytes holds and an iteration takes
 * the fewest seconds. If the ILP's solver (GLPK) has no answer, descents on the same rows
 * (least_over.c) replace it. Several threads may plan at once, each its own plan, because GLPK
 * keeps an environment per thread. */
#ifndef STW_PLANNER_PLANNER_H
#define STW_PLANNER_PLANNER_H

#include "planner/simulate.h"

#define STW_PLANNER_TIME_LIMIT_S 30.0

/** A sieve: stops planning early if bounds show that the plan is of no interest. */
typedef struct stw_planner_sieve {
    double most_s;          /* > 0: stop if every choice is slower; 0: no limit */
    double most_rows_s;     /* > 0: limit on the rows' seconds of the solver's choice */
    bool state_first;       /* first test whether the state alone exceeds the GPUs */
    bool bytes_alone;       /* only test whether it fits: rows have no seconds */
    bool rough;             /* do not search for a plan with less risk */
    double most_share;      /* if nothing fits: largest excess of rows, as a share of the GPU's
                               memory */
    bool too_slow, too_big; /* out: nothing was decided */
    bool too_much_state;    /* out: too big, in every layout with this many ranks */
    double over_share;      /* out, excess of a plan that is too big */
} stw_planner_sieve;

typedef struct stw_planner_options {
    /* Limit of the search; 0: STW_PLANNER_TIME_LIMIT_S. The thread's deadline (core/deadline.h)
     * limits the whole call; the search ends early enough for the steps after it. */
    double time_limit_s;
    double gap; /* relative MIP gap of stage 1; negative: 1e-4; 0 asks for a proof */
    bool gap_is_set;
    const char *write_lp;     /* path of the bound's program in CPLEX LP format, or NULL */
    bool no_fixes;            /* do not search for fixes when nothing fits */
    bool no_prices;           /* do not re-solve for prices */
    bool no_alternatives;     /* do not search for gains of a fuller GPU */
    bool no_reasons;          /* do not search for binding limits if nothing fits */
    bool only_stage1;         /* take the solver's choice without comparing others */
    bool tells_turns;         /* keys that are `auto` stay `auto`; the gain of a turn is reported */
    stw_planner_sieve *sieve; /* NULL: none */
    /* Gives the seconds to compare choices. NULL: the rows give them. */
    stw_planner_simulate simulate;
    /* Plans fixes as a command with their options does. stw_planner_solve sets it. */
    stw_status (*again)(stw_plan *plan, const struct stw_planner_options *options, stw_error *err);
} stw_planner_options;

/** Decide, derive, predict. Keys of the run that are `auto` and that the engine lists as turns
 * (stw_engine_turn) get the fastest values in plan->run. Fills plan->decisions, outcome, verdict,
 * solver, layouts, programs, peaks, time_s, objective_s, prices, bindings, fixes. If nothing fits,
 * the call does not fail: the outcome is INFEASIBLE, with the least-over decisions.
 * @return TIME_LIMIT if the limit passed without any plan, SOLVER if GLPK failed */
STW_MUST_USE stw_status stw_planner_solve(stw_plan *plan, const stw_planner_options *options,
                                          stw_error *err);

#endif
