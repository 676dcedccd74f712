/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "planner/resolve.h"

double stw_planner_now_s(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

stw_status stw_planner_feasible(const stw_cost *cost, double time_limit_s, stw_choice *choice,
                                bool *fits, stw_error *err) {
    stw_evaluation evaluation;
    *fits = stw_greedy_solve(cost, choice, &evaluation);
    if (*fits || time_limit_s <= 0) return STW_STATUS_OK;
    stw_ilp_options options = {.time_limit_s = time_limit_s, .gap = 0.5, .only_stage1 = true};
    stw_ilp_result result;
    stw_status status = stw_ilp_solve(cost, &options, choice, &result, err);
    *fits = status == STW_STATUS_OK &&
            (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE);
    return status;
}
