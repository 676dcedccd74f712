/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/clock.h"

#include <time.h>

double stw_planner_now_s(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
