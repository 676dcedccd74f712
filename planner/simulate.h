/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all files of the planner: a function type that gives seconds, since planner and
 * simulator do not include each other, and the out-of-memory error. */
#ifndef STW_PLANNER_SIMULATE_H
#define STW_PLANNER_SIMULATE_H

#include "plan/files/plan.h"

static inline stw_status stw_planner_no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the plan");
}

/** Simulate one program: the seconds of each phase with a movement, NaN for others. */
typedef stw_status (*stw_planner_simulate)(const stw_job *job, const stw_program *program,
                                           double seconds[STW_N_PHASES], stw_error *err);

#endif
