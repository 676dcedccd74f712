/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict inside the search: what the verdict judges of a plan becomes limits of the rows, so
 * that a plan that is meant to fit is planned to fit. Host, page-locked memory and NVMe follow the
 * rows, and their limits are set once. What torch's allocator reserves of a GPU does not: a choice
 * is derived, replayed and judged (stw_plan_gpu_excess), the GPU's limit is lowered by what it is
 * over, and the problem is solved again. */
#ifndef STW_PLANNER_RISK_H
#define STW_PLANNER_RISK_H

#include "planner/cost.h"

/** What a search takes for a plan, the best first. */
typedef enum stw_risk_level {
    STW_RISK_NONE,      /* it fits */
    STW_RISK_AVOIDABLE, /* it would fit with expandable segments, which cost nothing */
    STW_RISK_ANY        /* no limit is exceeded */
} stw_risk_level;

/** The best level that a run asks for: ANY where placement.accept says so, or placement.gpu_fill is
 * above what a plan that fits fills. */
stw_risk_level stw_risk_first(const stw_run_spec *run);
/** Can plans of this level differ from those of the level before it? */
bool stw_risk_differs(const stw_plan *plan, stw_risk_level level);
/** Is it not known of a choice that keeps all rows whether the level admits it? */
bool stw_risk_is_judged(const stw_plan *plan, stw_risk_level level);
/** Give the rows of nodes the limits of a level. Rows that no choice moves keep the cluster's. */
void stw_risk_limit_nodes(const stw_plan *plan, stw_risk_level level, stw_cost *cost);
/** The limit that GPU rows begin with: what a level admits of allocated bytes alone. */
uint64_t stw_risk_gpu_limit(const stw_plan *plan, stw_risk_level level);
/** The choice that was judged last, and what was found. */
typedef struct stw_judged {
    bool known;
    stw_choice choice; /* made by the caller */
    stw_risk_level level;
    uint64_t excess_bytes;  /* of GPUs, over what the level admits; 0: it may be taken */
    stw_replayed *replayed; /* [n_kinds], as on GPUs without a limit */
} stw_judged;

/** Judge a choice, unless it is the one that was judged last.
 * @param plan of which job, specs and model are used @param judged in and out */
STW_MUST_USE stw_status stw_risk_judge(const stw_plan *plan, const stw_cost *cost,
                                       const stw_choice *choice, stw_risk_level level,
                                       stw_judged *judged, stw_error *err);
/** Is the replay of a choice's plan known? What is within all limits is replayed without them as it
 * is with them. */
bool stw_risk_has_replay(const stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                         const stw_judged *judged);
/** Give it to the plan, which is derived without one. */
void stw_risk_give_replay(const stw_judged *judged, stw_plan *plan);
#endif
