/* SPDX-License-Identifier: Apache-2.0 */
/* The planner: chooses decisions for a job so that every row of bytes holds and seconds per
 * iteration are least. Where the ILP's solver (GLPK) has no answer, descents on the same rows
 * (least_over.c) stand in. Several threads may plan at once, each its
 * own plan: GLPK keeps an environment for each thread.
 */
#ifndef STW_PLANNER_PLANNER_H
#define STW_PLANNER_PLANNER_H

#include "planner/simulate.h"

#define STW_PLANNER_TIME_LIMIT_S 30.0

/** Asks that nothing is decided where bounds alone say that the plan is of no interest. */
typedef struct stw_planner_sieve {
    double most_s;          /* > 0: no choice takes less seconds; 0: any will do */
    double most_rows_s;     /* > 0: what the solver found takes less seconds, by the rows */
    bool state_first;       /* ask whether the state alone is over the GPUs before all else */
    bool bytes_alone;       /* whether it fits is all that is asked: rows have no seconds */
    bool rough;             /* whether a plan at risk could be at less is asked later */
    double most_share;      /* of the GPU's memory, by which rows may be over where nothing fits */
    bool too_slow, too_big; /* out: nothing was decided */
    bool too_much_state;    /* out: too big, in every layout of as many ranks */
    double over_share;      /* out, of what is too big */
} stw_planner_sieve;

typedef struct stw_planner_options {
    /* Of the search; 0: STW_PLANNER_TIME_LIMIT_S. It also ends in time for what follows before the
     * thread's deadline (core/deadline.h), which limits the whole call. */
    double time_limit_s;
    double gap; /* relative MIP gap of stage 1; negative: 1e-4; 0 asks for a proof */
    bool gap_is_set;
    const char *write_lp;     /* path of the bound's program in CPLEX LP format, or NULL */
    bool no_fixes;            /* do not search for fixes when nothing fits */
    bool no_prices;           /* do not re-solve for prices */
    bool no_alternatives;     /* nor for what a fuller GPU would bring */
    bool no_reasons;          /* do not search for what binds where nothing fits */
    bool only_stage1;         /* take the solver's choice as it is */
    bool tells_turns;         /* keys that are `auto` stay so: what a turn would bring is told */
    stw_planner_sieve *sieve; /* NULL: none */
    /* Compares choices. NULL: by the rows alone. */
    stw_planner_simulate simulate;
    /* Plans fixes, as a command with their options does: set by stw_planner_solve itself. */
    stw_status (*again)(stw_plan *plan, const struct stw_planner_options *options, stw_error *err);
} stw_planner_options;

/** Decide, derive, predict. Where keys of the run are `auto` that the engine lists as turns
 * (stw_engine_turn), they are set in plan->run to what is fastest. Fills plan->decisions, outcome,
 * verdict, solver, layouts, programs, peaks, time_s, objective_s, prices, bindings, fixes. Nothing
 * fits is not a failure of the call: outcome INFEASIBLE with the least-over decisions in place.
 * @return TIME_LIMIT where the limit passed without any plan, SOLVER where GLPK failed */
STW_MUST_USE stw_status stw_planner_solve(stw_plan *plan, const stw_planner_options *options,
                                          stw_error *err);

#endif
