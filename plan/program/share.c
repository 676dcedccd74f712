/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/share.h"

#include <math.h>
#include <stdbool.h>

/* Resources whose levels differ by less than this are full at the same level. */
static const double SAME_LEVEL = 1e-12;

enum { RISING = -1 }; /* the rate of a user that no resource has stopped yet */

static double priority_of(const stw_share_user *user) {
    return user->priority > 0 ? user->priority : 1;
}

/* The level that rising users could reach on one resource; infinite where it never stops them. */
static double level_of(const stw_share_user *users, uint32_t n, unsigned resource) {
    double left = 1, rising = 0;
    for (uint32_t i = 0; i < n; i++) {
        double weight = users[i].weight[resource];
        if (users[i].rate < 0)
            rising += weight * priority_of(&users[i]);
        else
            left -= weight * users[i].rate;
    }
    if (rising <= 0) return INFINITY;
    return left > 0 ? left / rising : 0;
}

/* The level at which the first rising user runs at full rate. */
static double first_full(const stw_share_user *users, uint32_t n) {
    double level = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (users[i].rate < 0) level = fmin(level, 1 / priority_of(&users[i]));
    return level;
}

void stw_share_rates(stw_share_user *users, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) users[i].rate = RISING;
    for (uint32_t rising = n; rising > 0;) {
        double levels[STW_N_RESOURCES], full = first_full(users, n), lowest = full;
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) {
            levels[r] = level_of(users, n, r);
            if (levels[r] < lowest) lowest = levels[r];
        }
        /* Who is at full rate stops, or else the users of the fullest resources do; there is at
         * least one of them, so that every round makes progress. */
        for (uint32_t i = 0; i < n; i++) {
            bool stops = 1 / priority_of(&users[i]) <= lowest + SAME_LEVEL;
            for (unsigned r = 0; r < STW_N_RESOURCES && !stops; r++)
                stops = levels[r] <= lowest + SAME_LEVEL && users[i].weight[r] > 0;
            if (users[i].rate >= 0 || !stops) continue;
            users[i].rate = fmin(lowest * priority_of(&users[i]), 1);
            rising--;
        }
    }
}
