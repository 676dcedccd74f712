/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "core/deadline.h"

#include <math.h>
#include <time.h>

static _Thread_local double deadline_s = (double)INFINITY;

double stw_now_s(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double stw_deadline_set(double end_s) {
    double before = deadline_s;
    deadline_s = end_s;
    return before;
}

double stw_deadline_end_s(void) { return deadline_s; }

stw_status stw_deadline_check(const char *doing, stw_error *err) {
    if (isinf(deadline_s) || stw_now_s() < deadline_s) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_TIME_LIMIT, NULL,
                    "the time limit passed while %s; allow more (--time-limit)", doing);
}
