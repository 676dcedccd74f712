/* SPDX-License-Identifier: Apache-2.0 */
/* Max-min fair rates of operations that share resources. A user's weight on a resource is the share
 * of it that the user takes at full rate (1: as if alone). All rates rise together from zero, in
 * proportion to the users' priorities. When a resource is full, its users stop rising and the
 * others go on (progressive filling: Bertsekas and Gallager, Data Networks, 2nd edition, section
 * 6.5.2). Pure function, any thread. */
#ifndef STW_PLAN_SHARE_H
#define STW_PLAN_SHARE_H

#include "plan/program/demand.h"

typedef struct stw_share_user {
    double weight[STW_N_RESOURCES]; /* in, 0 .. 1 */
    double priority;                /* in, relative to 1; 0 stands for 1 */
    double rate;                    /* out, 0 < rate <= 1 */
} stw_share_user;

/** Set the rates of n users: sum(weight x rate) <= 1 on every resource, none above 1. */
void stw_share_rates(stw_share_user *users, uint32_t n);

#endif
