/* SPDX-License-Identifier: Apache-2.0 */
/* The solvers of the planner's one problem (cost.h). Each leaves its answer in a stw_choice whose
 * acts the caller made (stw_choice_new). One thread at a time for the ILP. */
#ifndef STW_PLANNER_SOLVERS_H
#define STW_PLANNER_SOLVERS_H

#include "planner/cost.h"
#include "planner/milp.h"

/* Each later stage may give up this share of what the stage before it reached. */
#define STW_STAGE_SLACK 1e-4
/** The same where a proof is asked for (gap 0): the plan then takes the seconds that stage 1
 * proved. */
#define STW_STAGE_SLACK_OF_PROOF 1e-7

typedef struct stw_ilp_options {
    double time_limit_s; /* of all stages together */
    double gap;          /* of stage 1 */
    const char *write_lp;
    bool only_stage1;
} stw_ilp_options;

#define STW_MAX_STAGES 3

typedef struct stw_ilp_result {
    stw_milp_outcome outcome; /* of stage 1 */
    uint32_t rows, columns;   /* of stage 1 */
    uint32_t n_stages;
    const char *stage_names[STW_MAX_STAGES];
    stw_milp_result stages[STW_MAX_STAGES];
    double seconds;
} stw_ilp_result;

/** Least seconds; then the most GPU headroom; then the least host memory. A later stage that finds
 * nothing in its time leaves the choice of the one before. */
STW_MUST_USE stw_status stw_ilp_solve(const stw_cost *cost, const stw_ilp_options *options,
                                      stw_choice *choice, stw_ilp_result *result, stw_error *err);
/** For problems in which nothing fits: the least bytes over the limits, then the least seconds. The
 * stages of the result say so. */
STW_MUST_USE stw_status stw_ilp_solve_least_over(const stw_cost *cost,
                                                 const stw_ilp_options *options, stw_choice *choice,
                                                 stw_ilp_result *result, stw_error *err);

/** Share of stage 1's seconds that later stages may give up. */
static inline double stw_stage_slack(double gap) {
    return gap == 0 ? STW_STAGE_SLACK_OF_PROOF : STW_STAGE_SLACK;
}
/** Simplify a choice that all stages have settled, within their slack: fewer places, a smaller
 * ring.
 * @param seconds that the choice may take */
void stw_choice_tidy(const stw_cost *cost, double seconds, stw_choice *choice);

/** What somebody would do by hand: keep everything where it is fastest, and move state of the last
 * quanta away with a ring of 3 x 32 MiB until all rows hold. @return false where that finds nothing
 */
bool stw_greedy_solve(const stw_cost *cost, stw_choice *choice, stw_evaluation *evaluation);

#endif
