/* SPDX-License-Identifier: Apache-2.0 */
/* In place of planner/glpk_solver.c, which libstowage does not link: GLPK is GPL-3.0. A problem is
 * left unsolved at once, as if its time were over, and descents on the rows stand in. */
#include <math.h>

#include "planner/milp.h"

stw_status stw_milp_solve(const stw_milp *milp, const stw_milp_options *options, double *values,
                          stw_milp_result *result, stw_error *err) {
    (void)options;
    (void)values;
    *result =
        (stw_milp_result){.outcome = STW_MILP_LIMIT, .objective = NAN, .bound = NAN, .gap = NAN};
    return stw_milp_check(milp, err);
}

stw_status stw_milp_write_lp(const stw_milp *milp, const char *path, stw_error *err) {
    (void)milp;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, path, "libstowage has no solver that writes it");
}

const char *stw_milp_solver_version(void) { return ""; }
