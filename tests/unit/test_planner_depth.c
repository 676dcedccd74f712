/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ring rows decide: a case in which depth 1 is chosen and one in which it is not, both
 * checked against planning with the depth fixed; and the stages, which may cost no more than their
 * slack. */
#include <math.h>

#include "planner/candidates.h"
#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static const stw_planner_options proof = {
    .time_limit_s = 60, .gap_is_set = true, .no_fixes = true, .no_prices = true};

static stw_plan *solved(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    CHECK_OK(stw_planner_solve(plan, &proof, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
    return plan;
}

static uint32_t streamed_units(const stw_plan *plan) {
    uint32_t units = 0;
    for (uint32_t i = 0; i < plan->decisions.n_state; i++)
        if (plan->decisions.state[i].place.update == STW_UPDATE_STREAM)
            units += plan->decisions.state[i].units;
    return units;
}

/* All moments on the host: the link is the bottleneck, and with one slot each of its directions and
 * the GPU would wait for the others. */
static void a_full_link_needs_depth(void) {
    case_use_fixture();
    const char *settings[] = {"node.gpus=1", "optimizer.implementation=streamed",
                              "batch.seq_len=512", NULL};
    const char *depth_1[] = {"node.gpus=1", "optimizer.implementation=streamed",
                             "batch.seq_len=512", "prefetch.depth=1", NULL};
    stw_plan *free_depth = solved("Qwen3-0.6B", settings);
    stw_plan *one_slot = solved("Qwen3-0.6B", depth_1);
    CU_ASSERT(free_depth->decisions.prefetch.depth > 1);
    CU_ASSERT_EQUAL(streamed_units(free_depth), free_depth->job->n_units);
    CU_ASSERT_EQUAL(one_slot->decisions.prefetch.depth, 1);
    double faster =
        one_slot->time_s[STW_PHASE_OPTIMIZER_STEP] / free_depth->time_s[STW_PHASE_OPTIMIZER_STEP];
    CU_ASSERT(faster > 1.5);
    stw_plan_free(free_depth);
    stw_plan_free(one_slot);
}

/* The host has room for few moments only, and the GPU's memory is so slow that one slot at a time
 * hides behind the resident updates: more slots bring no second and cost memory. On GPUs with room
 * for three slots of 32 MiB in a hundredth of it fewer are not tried. */
#define LITTLE_STREAMING                                                                           \
    "node.gpus=1", "node.gpu.memory=9.3 GiB", "node.gpu.hbm=20 GB/s", "node.host.limit=2.6 GiB",   \
        "node.nvme.capacity=0", "node.cpu_adamw=0.001 Gparam/s", "batch.seq_len=64",               \
        "placement.params=gpu", "placement.grads=gpu", "placement.activations=recompute"

static void a_little_streaming_needs_one_slot(void) {
    const char *settings[] = {LITTLE_STREAMING, NULL};
    const char *fixed[] = {LITTLE_STREAMING, "prefetch.depth=4", NULL};
    stw_plan *plan = solved("Qwen3-0.6B", settings);
    stw_plan *four = solved("Qwen3-0.6B", fixed);
    CU_ASSERT(streamed_units(plan) > 0);
    CU_ASSERT_EQUAL(plan->decisions.prefetch.depth, 1);
    /* four slots would not have been faster beyond what the stages may give up */
    CU_ASSERT(plan->objective_s <= four->objective_s * (1 + STW_PLAIN_SLACK));
    stw_plan_free(plan);
    stw_plan_free(four);
}

/* Two ranks' rings of three slots each: 96 MiB of 16 MiB buckets, 192 of 32. */
#define ALL_ON_THE_CPU                                                                             \
    "node.gpus=2", "update.resident=0", "update.stream=0", "update.cpu=1", "placement.params=gpu", \
        "placement.grads=gpu", "batch.seq_len=512"

static void rings_of_cpu_buckets_fit_caches(void) {
    const char *known[] = {ALL_ON_THE_CPU, "node.host.cache=364 MiB", NULL};
    const char *unknown[] = {ALL_ON_THE_CPU, "node.host.cache=0", NULL};
    stw_plan *cached = solved("Qwen3-1.7B", known);
    stw_plan *any = solved("Qwen3-1.7B", unknown);
    CU_ASSERT_EQUAL(cached->decisions.prefetch.bucket_bytes, 16ull << 20);
    CU_ASSERT_EQUAL(cached->decisions.prefetch.depth, 3);
    CU_ASSERT(any->decisions.prefetch.bucket_bytes >= 32ull << 20);
    stw_plan_free(cached);
    stw_plan_free(any);
}

static void plainness_costs_no_more_than_its_slack(void) {
    const char *settings[] = {"node.gpus=4", "node.gpu.memory=40 GiB", NULL};
    stw_plan *staged = case_zoo("Qwen3-8B", settings);
    CHECK_OK(stw_planner_solve(staged, &proof, err));
    stw_planner_options only = proof;
    only.only_stage1 = true;
    stw_plan *first = case_zoo("Qwen3-8B", settings);
    CHECK_OK(stw_planner_solve(first, &only, err));
    CU_ASSERT_EQUAL(first->solver.n_stages, 1);
    CU_ASSERT_EQUAL(staged->solver.n_stages, 2);
    CU_ASSERT(fabs(first->objective_s / first->solver.objective - 1) < 1e-9);
    double sum = first->time_s[STW_PHASE_FORWARD_BACKWARD] +
                 first->time_s[STW_PHASE_OPTIMIZER_STEP] +
                 first->time_s[STW_PHASE_LOAD] / STW_LOAD_SPREAD;
    CU_ASSERT(fabs(first->objective_s / sum - 1) < 1e-9);
    CU_ASSERT(fabs(staged->solver.objective / first->solver.objective - 1) < 1e-9);
    CU_ASSERT(staged->objective_s <= first->objective_s * (1 + STW_PLAIN_SLACK) * (1 + 1e-6));
    stw_plan_free(staged);
    stw_plan_free(first);
}

static void more_of_anything_never_costs(void) {
    const char *settings[] = {"node.gpus=1",
                              "node.gpu.memory=16 GiB",
                              "batch.seq_len=1024",
                              "node.host.memory=20 GiB",
                              "node.host.limit=20 GiB",
                              NULL};
    stw_plan *plan = case_zoo("Qwen3-1.7B", settings);
    stw_planner_options options = proof;
    options.no_prices = options.gap_is_set = false;
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
    CU_ASSERT_EQUAL(plan->n_prices, 4);
    for (uint32_t i = 0; i < plan->n_prices; i++)
        CU_ASSERT(plan->prices[i].seconds <= 0 && plan->prices[i].amount > 0);
    /* 28 GB of state on a 16 GiB GPU: another GiB saves streaming */
    CU_ASSERT(plan->n_prices > 0 && plan->prices[0].seconds < 0);
    stw_plan_free(plan);
}

/* What an engine holds in one place is not divided, though fractions of it would be faster. */
static void an_undivided_state_has_one_place(void) {
    const char *settings[] = {"engine=fsdp2",          "precision.params=bf16",
                              "precision.grads=bf16",  "precision.master=fp32",
                              "node.gpu.memory=12GiB", "batch.seq_len=512",
                              "node.gpus=1",           NULL};
    stw_plan *plan = solved("Qwen3-0.6B", settings);
    CU_ASSERT_EQUAL(plan->decisions.n_state, 1);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner depth", {"a full link needs depth", a_full_link_needs_depth},
              {"a little streaming needs one slot", a_little_streaming_needs_one_slot},
              {"rings of CPU buckets fit caches", rings_of_cpu_buckets_fit_caches},
              {"plainness keeps its slack", plainness_costs_no_more_than_its_slack},
              {"an undivided state has one place", an_undivided_state_has_one_place},
              {"more of anything never costs", more_of_anything_never_costs})
