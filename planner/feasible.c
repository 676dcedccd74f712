/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/resolve.h"

/* Of one search. No answer by then counts as "does not fit". */
#define QUESTION_NODES 150

stw_status stw_planner_feasible(const stw_cost *cost, double time_limit_s, stw_choice *choice,
                                bool *fits, stw_error *err) {
    *fits = false;
    if (time_limit_s <= 0) return STW_STATUS_OK;
    stw_ilp_options options = {
        .time_limit_s = time_limit_s, .gap = 0.5, .most_nodes = QUESTION_NODES};
    stw_ilp_result result;
    stw_status status = stw_ilp_solve(cost, &options, choice, &result, err);
    *fits = status == STW_STATUS_OK &&
            (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE);
    return status;
}
