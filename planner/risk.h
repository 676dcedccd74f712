/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict inside the search: the rows get limits with which the verdict will be the wanted one.
 * Rows predict host, page-locked memory and NVMe, so that their limits are set once. Rows do not
 * predict the GPU bytes that torch's allocator reserves: a choice is derived, replayed and judged
 * (stw_plan_gpu_excess), then the GPU's limit is lowered by the excess and the problem is solved
 * again. */
#ifndef STW_PLANNER_RISK_H
#define STW_PLANNER_RISK_H

#include "planner/cost.h"

/** The level of risk that a search accepts, the best first. */
typedef enum stw_risk_level {
    STW_RISK_NONE,      /* it fits */
    STW_RISK_AVOIDABLE, /* it fits with expandable segments, which cost nothing */
    STW_RISK_ANY        /* no limit is exceeded */
} stw_risk_level;

/** Returns the first level that a run asks for: ANY if placement.accept says so, or if
 * placement.gpu_fill is above the share that a plan without risk can use. */
stw_risk_level stw_risk_first(const stw_run_spec *run);
/** True if plans of this level can differ from those of the previous level. */
bool stw_risk_differs(const stw_plan *plan, stw_risk_level level);
/** True if a choice that keeps all rows must still be judged for this level. */
bool stw_risk_is_judged(const stw_plan *plan, stw_risk_level level);
/** Set the limits of the nodes' rows for a level. Rows that do not depend on the choice keep the
 * cluster's limits. */
void stw_risk_limit_nodes(const stw_plan *plan, stw_risk_level level, stw_cost *cost);
/** Returns the initial limit of GPU rows: the allocated bytes that a level admits. */
uint64_t stw_risk_gpu_limit(const stw_plan *plan, stw_risk_level level);
/** The choice that was judged last, and its result. */
typedef struct stw_judged {
    bool known;
    stw_choice choice; /* made by the caller */
    stw_risk_level level;
    uint64_t excess_bytes;  /* GPU bytes beyond the level's; 0: accepted */
    stw_replayed *replayed; /* [n_kinds], replayed without a GPU limit */
} stw_judged;

/** Judge a choice, unless it was judged last.
 * @param plan gives job, specs and model
 * @param judged in and out */
STW_MUST_USE stw_status stw_risk_judge(const stw_plan *plan, const stw_cost *cost,
                                       const stw_choice *choice, stw_risk_level level,
                                       stw_judged *judged, stw_error *err);
/** True if the replay of a choice is known. A choice within all limits has the same replay with and
 * without limits. */
bool stw_risk_has_replay(const stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                         const stw_judged *judged);
/** Give this replay to the plan, which is derived without one. */
void stw_risk_give_replay(const stw_judged *judged, stw_plan *plan);
#endif
