/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the planner's problem (cost.h) of a job. What can be chosen is asked of the engine's
 * table; the rows are read off its programs. */
#ifndef STW_PLANNER_PROBLEM_H
#define STW_PLANNER_PROBLEM_H

#include "planner/cost.h"
#include "planner/simulate.h"

/** Free with stw_cost_free. BAD_INPUT where the spec admits no place or no option.
 * @param simulate what rows of seconds are simulated with where choices are few; NULL: they are
 * sums of what programs ask for */
STW_MUST_USE stw_status stw_cost_new(const stw_job *job, stw_planner_simulate simulate,
                                     stw_cost **out, stw_error *err);
/** The same for a trial: of counts of blocks fewer are simulated. */
STW_MUST_USE stw_status stw_cost_new_rough(const stw_job *job, stw_planner_simulate simulate,
                                           stw_cost **out, stw_error *err);
/** The same without rows of seconds, in which every choice takes none: what fits? */
STW_MUST_USE stw_status stw_cost_new_bytes(const stw_job *job, stw_cost **out, stw_error *err);
/** What can be chosen alone, without any rows: places, rings, policies of blocks, loads. */
STW_MUST_USE stw_status stw_cost_new_options(const stw_job *job, stw_cost **out, stw_error *err);

#endif
