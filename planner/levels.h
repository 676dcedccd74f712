/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a choice: attempts under GPU limits, one level of risk after the other, the best
 * level first. planner.c uses the result. */
#ifndef STW_PLANNER_LEVELS_H
#define STW_PLANNER_LEVELS_H

#include "planner/candidates.h"
#include "planner/planner.h"
#include "planner/risk.h"

/** The state of a search: the problem, the present attempt, and its result. */
typedef struct stw_solving {
    stw_plan *plan;
    const stw_planner_options *options;
    stw_cost *cost;
    stw_bars bars;        /* bars of the present attempt */
    uint64_t limit_bytes; /* limit of a GPU in this attempt */
    stw_risk_level level; /* level of this attempt */
    stw_choice choice;
    stw_ilp_result ilp;
    stw_judged judged; /* the choice that was judged last */
    bool rows_fit;     /* the rows fit without risk, before reserved bytes are judged */
    uint32_t proof;    /* stage of `ilp` whose bound the plan reports */
    bool proven;       /* it is a bound on simulated seconds */
    double start_s, end_s;
    double here_s, fastest_s; /* an iteration of the choice, and of the fastest candidate */
    bool settled;             /* nothing fits, and the search was complete */
} stw_solving;

/** Returns the requested relative gap. */
double stw_solving_gap(const stw_planner_options *options);
/** Returns the seconds left, always above 0. */
double stw_solving_left_s(const stw_solving *s);
/** Returns the time for an optional step: the time left, at most `most_s`. */
double stw_solving_time_for(const stw_solving *s, double most_s);
/** Returns an empty list of candidates under these bars. */
stw_candidates stw_solving_candidates(const stw_solving *s, const stw_bars *bars);
bool stw_solving_is_over(const stw_solving *s);
/** True if the solver found a choice. */
bool stw_solving_is_solved(const stw_solving *s);
/** Try the levels, the best first, until one gives a choice: s->choice. A plan at risk is taken if
 * no plan fits, or on request. A plan with an update that the framework lacks is taken if there is
 * no other. A sieve's most_s ends the search, too. */
STW_MUST_USE stw_status stw_solving_search(stw_solving *s, stw_error *err);
/** If nothing fits by the rows, search with the bytes by which the rows overstate the walk: first
 * without risk, then under the present limits. */
STW_MUST_USE stw_status stw_solving_search_spare(stw_solving *s, stw_error *err);
/** Add a stage to s->ilp with a lower bound on the simulated seconds of all plans within the
 * limits. (proof.c)
 * @param all the walked candidates
 * @param here_s of the plan: an iteration and its share of the load */
STW_MUST_USE stw_status stw_solving_prove(stw_solving *s, const stw_candidates *all, double here_s,
                                          stw_error *err);

#endif
