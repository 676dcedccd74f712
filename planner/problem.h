/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the planner's problem (cost.h) of a job. The engine's table gives the options; the rows
 * are read off its programs. */
#ifndef STW_PLANNER_PROBLEM_H
#define STW_PLANNER_PROBLEM_H

#include "planner/cost.h"
#include "planner/simulate.h"

/** Build the problem; free with stw_cost_free. BAD_INPUT if the spec admits no place or no option.
 * @param simulate gives rows of seconds if choices are few; NULL: these are sums of demands */
STW_MUST_USE stw_status stw_cost_new(const stw_job *job, stw_planner_simulate simulate,
                                     stw_cost **out, stw_error *err);
/** The same for a trial: fewer counts of blocks are simulated. */
STW_MUST_USE stw_status stw_cost_new_rough(const stw_job *job, stw_planner_simulate simulate,
                                           stw_cost **out, stw_error *err);
/** The same without rows of seconds, to find out only what fits: every choice takes 0 s. */
STW_MUST_USE stw_status stw_cost_new_bytes(const stw_job *job, stw_cost **out, stw_error *err);
/** The options only, without rows: places, rings, policies of blocks, loads. */
STW_MUST_USE stw_status stw_cost_new_options(const stw_job *job, stw_cost **out, stw_error *err);

#endif
