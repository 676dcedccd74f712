/* SPDX-License-Identifier: Apache-2.0 */
/* The exported stage-1 problem, solved by another solver (COIN-OR CBC): with both gaps at 0 its
 * objective is the plan's seconds, and the planner needed less than a second for it. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <unistd.h>

#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* CBC asks every new solution to be better by 1e-5 unless told otherwise (option increment). */
static double solved_by_cbc(const char *path) {
    char command[512], line[512];
    double objective = NAN;
    snprintf(command, sizeof command,
             "cbc '%s' ratioGap 0 allowableGap 0 increment 0 seconds 120 solve 2>&1", path);
    FILE *output = popen(command, "r");
    if (output == NULL) return NAN;
    while (fgets(line, sizeof line, output) != NULL) {
        double value;
        if (sscanf(line, "Objective value: %lf", &value) == 1) objective = value;
    }
    pclose(output);
    return objective;
}

static void compare(const char *model, const char *const *settings) {
    char unique[] = "/tmp/stw_lp_XXXXXX", path[64];
    int file = mkstemp(unique);
    CU_ASSERT(file >= 0);
    if (file < 0) return;
    close(file);
    snprintf(path, sizeof path, "%s.lp", unique); /* cbc goes by the name's end */
    stw_plan *plan = case_zoo(model, settings);
    stw_planner_options options = {.time_limit_s = 60,
                                   .gap_is_set = true,
                                   .write_lp = path,
                                   .no_fixes = true,
                                   .no_prices = true,
                                   .only_stage1 = true};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
    CU_ASSERT(plan->solver.gap <= 1e-9);
    CU_ASSERT(fabs(plan->objective_s / plan->solver.objective - 1) < 1e-9);
    double other = solved_by_cbc(path);
    CU_ASSERT(fabs(other / plan->objective_s - 1) < 1e-6);
    if (!(fabs(other / plan->objective_s - 1) < 1e-6))
        fprintf(stderr, "%s: here %.10g, cbc %.10g\n", model, plan->objective_s, other);
    unlink(path);
    unlink(unique);
    stw_plan_free(plan);
}

static void cbc_agrees_on_a_dense_model(void) {
    const char *roomy[] = {"nodes=4", "node.gpus=8", "node.host.memory=2000 GiB",
                           "node.host.limit=2000 GiB", NULL};
    const char *tight[] = {"nodes=1",
                           "node.gpus=8",
                           "node.gpu.memory=60 GiB",
                           "batch.seq_len=2048",
                           "node.host.memory=1000 GiB",
                           "node.host.limit=1000 GiB",
                           NULL};
    compare("Qwen3-32B", roomy);
    compare("Qwen3-32B", tight);
}

static void cbc_agrees_on_mixtures_of_experts(void) {
    const char *tight[] = {"nodes=4", "node.gpus=8", "node.gpu.memory=28 GiB",
                           "network.nic=50 GB/s", NULL};
    const char *large[] = {"nodes=12",
                           "node.gpus=8",
                           "parallel.ep=32",
                           "node.host.memory=2000 GiB",
                           "node.nvme.capacity=0",
                           "node.host.limit=2000 GiB",
                           NULL};
    const char *cycling[] = {"nodes=4",
                             "node.gpus=8",
                             "parallel.ep=8",
                             "network.nic=50 GB/s",
                             "node.host.memory=2000 GiB",
                             "node.host.limit=2000 GiB",
                             NULL};
    compare("Qwen3.5-35B-A3B", tight);
    compare("MiniMax-M2", cycling);
    compare("DeepSeek-V3", large);
}

/* The planner's own gap of 1e-4 and everything around it: rows, stages, derivation. */
static void plans_in_less_than_a_second(void) {
    const char *tight[] = {"nodes=4", "node.gpus=8", "node.gpu.memory=28 GiB",
                           "network.nic=50 GB/s", NULL};
    stw_plan *plan = case_zoo("Qwen3.5-35B-A3B", tight);
    stw_planner_options options = {.gap = -1, .no_prices = true};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
    CU_ASSERT(plan->solver.gap <= 1e-3);
    CU_ASSERT(plan->solver.stages[0].seconds < 1);
    stw_plan_free(plan);
}

int main(void) {
    static const stw_test tests[] = {
        {"cbc agrees on a dense model", cbc_agrees_on_a_dense_model},
        {"cbc agrees on mixtures of experts", cbc_agrees_on_mixtures_of_experts},
        {"plans in less than a second", plans_in_less_than_a_second}};
    case_use_fixture();
    FILE *cbc = popen("command -v cbc", "r");
    char line[16];
    bool found = cbc != NULL && fgets(line, sizeof line, cbc) != NULL;
    if (cbc != NULL) pclose(cbc);
    if (!found) {
        fprintf(stderr, "cbc is not installed (coinor-cbc): skipped\n");
        return 77;
    }
    return stw_test_run_all("planner lp", tests, sizeof tests / sizeof tests[0]);
}
