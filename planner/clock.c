/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "planner/clock.h"

#include <sched.h>

#include "core/deadline.h"

double stw_planner_now_s(void) { return stw_now_s(); }

uint32_t stw_planner_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}
