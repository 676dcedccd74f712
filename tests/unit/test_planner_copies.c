/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.copies: auto: what the planner chooses by the host's memory and the disk's rate. */
#include "planner/copies.h"

#include <math.h>
#include <string.h>

#include "plan/checkpoint/buckets.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static stw_plan *solved(const char *const *settings) {
    const stw_planner_options options = {.time_limit_s = 60,
                                         .no_prices = true,
                                         .no_fixes = true,
                                         .no_reasons = true,
                                         .simulate = stw_sim_seconds};
    stw_plan *plan = case_zoo("Qwen3-4B", settings);
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_FITS);
    return plan;
}

#define SAVES "engine=stowage", "checkpoint.every=1000", "placement.moments=host"

/* With room for it training waits for the GPU's link alone, and longer with some buckets less. */
static void as_much_as_is_needed(void) {
    static const char *const none[] = {SAVES, NULL};
    static const char *const chosen[] = {SAVES, "checkpoint.copies=auto", NULL};
    stw_plan *a = solved(none), *b = solved(chosen);
    const uint64_t copies = b->run.checkpoint.copies_bytes;
    char less[64];
    CU_ASSERT_EQUAL(a->run.checkpoint.copies_bytes, 0);
    CU_ASSERT_TRUE(a->time_s[STW_PHASE_CHECKPOINT] > 1);
    const char *const roomy[] = {SAVES, "checkpoint.copies=8GiB", NULL};
    stw_plan *all = solved(roomy);
    const double least_s = all->time_s[STW_PHASE_CHECKPOINT];
    CU_ASSERT_TRUE(least_s > 0 && least_s < 0.2);
    CU_ASSERT_DOUBLE_EQUAL(b->time_s[STW_PHASE_CHECKPOINT], least_s, 1e-3);
    CU_ASSERT_TRUE(copies > 0 && copies % STW_SAVE_BUCKET_BYTES == 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(b->turned);
    CU_ASSERT_PTR_NOT_NULL(strstr(b->turned, "checkpoint.copies="));
    CU_ASSERT_DOUBLE_EQUAL(b->unturned_s, stw_plan_iteration_s(a), 1e-6 * b->unturned_s);
    snprintf(less, sizeof less, "checkpoint.copies=%lluMiB",
             (unsigned long long)((copies >> 20) - 4 * (STW_SAVE_BUCKET_BYTES >> 20)));
    const char *const fewer[] = {SAVES, less, NULL};
    stw_plan *c = solved(fewer);
    CU_ASSERT_TRUE(c->time_s[STW_PHASE_CHECKPOINT] > least_s + 1e-3);
    stw_plan_free(all);
    stw_plan_free(a);
    stw_plan_free(b);
    stw_plan_free(c);
}

/* Without room for all of it the hosts are filled, short of a risk, and the step waits less. */
static void as_much_as_there_is_room(void) {
    static const char *const none[] = {SAVES, "node.host.limit=64GiB", NULL};
    static const char *const chosen[] = {SAVES, "node.host.limit=64GiB", "checkpoint.copies=auto",
                                         NULL};
    stw_plan *a = solved(none), *b = solved(chosen);
    CU_ASSERT_TRUE(b->run.checkpoint.copies_bytes > 0);
    CU_ASSERT_TRUE(b->time_s[STW_PHASE_CHECKPOINT] > 0);
    CU_ASSERT_TRUE(b->time_s[STW_PHASE_CHECKPOINT] < a->time_s[STW_PHASE_CHECKPOINT]);
    stw_plan_free(a);
    stw_plan_free(b);
}

/* A disk that is ahead of training needs none. */
static void nothing_where_no_step_waits(void) {
    static const char *const fast[] = {SAVES, "node.nvme.write=2000GB/s", "node.nvme.both=2000GB/s",
                                       "checkpoint.copies=auto", NULL};
    stw_plan *plan = solved(fast);
    CU_ASSERT_EQUAL(plan->run.checkpoint.copies_bytes, 0);
    CU_ASSERT_PTR_NULL(plan->turned);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner copies", {"as much as is needed", as_much_as_is_needed},
              {"as much as there is room", as_much_as_there_is_room},
              {"nothing where no step waits", nothing_where_no_step_waits})
