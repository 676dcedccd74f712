/* SPDX-License-Identifier: Apache-2.0 */
/* What both programs say of a plan. Everything is called from the main thread. */
#ifndef STW_CLI_COMMON_PLAN_H
#define STW_CLI_COMMON_PLAN_H

#include "plan/files/plan.h"

/** Warn if the plan does not fit: which resource and phase, by how much, and that a run is no proof
 * of the contrary. @param name of the plan's file */
void stw_warn_of_excess(const stw_plan *plan, const char *name);

#endif
