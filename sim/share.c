/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/share.h"

#include <stdbool.h>

/* Resources whose levels differ by less than this are full at the same level. */
static const double SAME_LEVEL = 1e-12;

enum { RISING = -1 }; /* the rate of a user that no resource has stopped yet */

/* The level that rising users could reach on one resource; above 1 where it never stops them. */
static double level_of(const stw_share_user *users, uint32_t n, unsigned resource) {
    double left = 1, rising = 0;
    for (uint32_t i = 0; i < n; i++) {
        double weight = users[i].weight[resource];
        if (users[i].rate < 0)
            rising += weight;
        else
            left -= weight * users[i].rate;
    }
    if (rising <= 0) return 2;
    return left > 0 ? left / rising : 0;
}

void stw_share_rates(stw_share_user *users, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) users[i].rate = RISING;
    for (uint32_t rising = n; rising > 0;) {
        double levels[STW_N_RESOURCES], lowest = 1;
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) {
            levels[r] = level_of(users, n, r);
            if (levels[r] < lowest) lowest = levels[r];
        }
        /* At level 1 everybody stops; below it the users of the fullest resources do, and there is
         * at least one of them, so that every round makes progress. */
        for (unsigned r = 0; r < STW_N_RESOURCES; r++) {
            if (levels[r] > lowest + SAME_LEVEL) continue;
            for (uint32_t i = 0; i < n; i++) {
                if (users[i].rate >= 0 || users[i].weight[r] <= 0) continue;
                users[i].rate = lowest;
                rising--;
            }
        }
        if (lowest >= 1) {
            for (uint32_t i = 0; i < n; i++)
                if (users[i].rate < 0) users[i].rate = 1;
            return;
        }
    }
}
