/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a plan, for one line of a table of plans. */
#ifndef STW_PLANNER_POINT_BOUND_H
#define STW_PLANNER_POINT_BOUND_H

#include "plan/files/plan.h"

/** True if the status means that settings were refused, which is an answer and not a failure. */
bool stw_point_refuses(stw_status status);
/** The limit of a plan. If it fits: the resource with the most seconds of demand in the longest
 * phase of an iteration. Else: the limit that is exceeded most. */
typedef struct stw_point_bound {
    const char *resource; /* as in plan files, "nic", "gpu memory"; NULL: unknown */
    stw_phase phase;
    uint64_t over_bytes; /* 0 if it fits */
} stw_point_bound;
void stw_point_find_bound(const stw_plan *plan, stw_point_bound *out);
/** Returns the highest peak of a GPU or of a node's host over all phases. */
uint64_t stw_point_peak(const stw_plan *plan, stw_tier tier);

#endif
