/* SPDX-License-Identifier: Apache-2.0 */
/* The clock for deadlines. One deadline holds for a whole call of the planner. */
#ifndef STW_PLANNER_CLOCK_H
#define STW_PLANNER_CLOCK_H

#include <stdint.h>

/** Wall clock, seconds. */
double stw_planner_now_s(void);

/** Number of cores that this process may use. */
uint32_t stw_planner_cores(void);

#endif
