/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.copies: auto. Internal to the planner. */
#ifndef STW_PLANNER_COPIES_H
#define STW_PLANNER_COPIES_H

#include "planner/planner.h"

/** Choose how much of the state a step may copy that it reaches before a save has written it: as
 * much as takes all waiting away, or as much as the hosts have room for; nothing where no step
 * waits. Decisions stay, the rest of the plan is derived again. Nothing where the run gives a size.
 */
STW_MUST_USE stw_status stw_planner_choose_copies(stw_plan *plan,
                                                  const stw_planner_options *options,
                                                  stw_error *err);

#endif
