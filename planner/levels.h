/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a choice: attempts under limits of the GPU, level by level of risk, the best
 * first. What the planner does with what is found is in planner.c. */
#ifndef STW_PLANNER_LEVELS_H
#define STW_PLANNER_LEVELS_H

#include "planner/candidates.h"
#include "planner/planner.h"
#include "planner/risk.h"

/** A plan in the making: its problem, the attempt at hand, and what that has found. */
typedef struct stw_solving {
    stw_plan *plan;
    const stw_planner_options *options;
    stw_cost *cost;
    stw_bars bars;        /* of the attempt at hand */
    uint64_t limit_bytes; /* of a GPU in it */
    stw_risk_level level; /* of it */
    stw_choice choice;
    stw_ilp_result ilp;
    stw_judged judged; /* what was judged last */
    bool rows_fit;     /* without risk, before what is reserved was known */
    uint32_t proof;    /* stage of `ilp` whose bound is the plan's */
    bool proven;       /* it is a bound of the simulated seconds */
    double start_s, end_s;
    double here_s, fastest_s; /* an iteration of the choice, and of the fastest that was found */
    bool settled;             /* nothing fits: all that was to be looked at was */
} stw_solving;

/** The relative gap that is asked for. */
double stw_solving_gap(const stw_planner_options *options);
/** Seconds that are left, never none. */
double stw_solving_left_s(const stw_solving *s);
/** Time for a step that only adds information: what is left, at most `most_s`. */
double stw_solving_time_for(const stw_solving *s, double most_s);
/** An empty list of candidates under these bars. */
stw_candidates stw_solving_candidates(const stw_solving *s, const stw_bars *bars);
bool stw_solving_is_over(const stw_solving *s);
/** Has the solver found a choice? */
bool stw_solving_is_solved(const stw_solving *s);
/** Attempts, the best level first, until one finds something: s->choice. A plan at
 * risk is taken where none fits, or on request; one whose update the framework lacks where there is
 * no other. A sieve's most_s ends it as well. */
STW_MUST_USE stw_status stw_solving_search(stw_solving *s, stw_error *err);
/** Rows are upper bounds: where nothing fits by them, something may in the bytes by which they
 * overstate. First without risk, then under the limits at hand. */
STW_MUST_USE stw_status stw_solving_search_spare(stw_solving *s, stw_error *err);
/** A bound that no simulated plan within the limits lies below, as a stage of s->ilp. (proof.c)
 * @param all what was walked @param here_s of the plan: an iteration and its part of the load */
STW_MUST_USE stw_status stw_solving_prove(stw_solving *s, const stw_candidates *all, double here_s,
                                          stw_error *err);

#endif
