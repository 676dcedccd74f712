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
/** Bytes by which the GPUs of a choice are over what a level admits; 0: it may be taken.
 * @param plan of which job, specs and model are used */
STW_MUST_USE stw_status stw_risk_excess(const stw_plan *plan, const stw_cost *cost,
                                        const stw_choice *choice, stw_risk_level level,
                                        uint64_t *bytes, stw_error *err);
#endif
