/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.copies: auto. Internal to the planner. */
#ifndef STW_PLANNER_COPIES_H
#define STW_PLANNER_COPIES_H

#include "planner/planner.h"

/** Choose the bytes for copies of state that a step changes before a save has written it: enough to
 * remove all waiting, or as much as fits on the hosts; none if no step waits. Decisions stay; the
 * rest of the plan is derived again. Does nothing if the run sets a size. */
STW_MUST_USE stw_status stw_planner_choose_copies(stw_plan *plan,
                                                  const stw_planner_options *options,
                                                  stw_error *err);

#endif
