/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the planner share: how they ask for seconds, since planner and simulator do not
 * know each other, and what they say where memory ends. */
#ifndef STW_PLANNER_SIMULATE_H
#define STW_PLANNER_SIMULATE_H

#include "plan/files/plan.h"

static inline stw_status stw_planner_no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the plan");
}

/** Simulate one program: seconds of each phase that it has a movement for, NaN elsewhere. */
typedef stw_status (*stw_planner_simulate)(const stw_job *job, const stw_program *program,
                                           double seconds[STW_N_PHASES], stw_error *err);

#endif
