/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of deadlines: one deadline holds for a whole call of the planner. */
#ifndef STW_PLANNER_CLOCK_H
#define STW_PLANNER_CLOCK_H

/** Wall clock, seconds. */
double stw_planner_now_s(void);

#endif
