/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/clock.h"

#include "core/deadline.h"

double stw_planner_now_s(void) { return stw_now_s(); }
