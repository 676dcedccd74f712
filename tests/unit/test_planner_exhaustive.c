/* SPDX-License-Identifier: Apache-2.0 */
/* The ILP against trying everything, on small random problems: the same objective where something
 * fits, and nothing where nothing does; and the greedy solver, which may not be better than either.
 */
#include <math.h>

#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MOST_CHOICES 600000

/* What is left to the planner differs from case to case, so that all of it stays enumerable. */
static const char *const shapes[][6] = {
    {"prefetch.bucket=16 MiB", "load.method=sharded_read", "placement.activations=keep", NULL},
    {"prefetch.depth=2", "prefetch.bucket=4 MiB", "load.method=rank0_broadcast", NULL},
    {"prefetch.depth=1", "prefetch.bucket=32 MiB", "recompute.granularity=none", NULL},
    {"optimizer.implementation=fused", "prefetch.bucket=8 MiB", "placement.activations=recompute",
     NULL},
    {"optimizer.clip_norm=none", "prefetch.depth=3", "placement.params=gpu",
     "load.method=node_leader", NULL},
    {"engine=fsdp2", "optimizer.implementation=auto", NULL},
};

/* Rates and capacities at random, within what machines have. */
static stw_cluster random_cluster(uint64_t *seed) {
    stw_cluster c = fixture_cluster(1 + case_random(seed, 4));
    c.gpu.context_bytes = (uint64_t)case_random(seed, 600) << 20;
    c.gpu.comm_bytes = (uint64_t)case_random(seed, 900) << 20;
    c.gpu.hbm_bps = 1e11 * (1 + case_random(seed, 40));
    c.host.bandwidth_bps = 1e9 * (20 + case_random(seed, 300));
    c.host.dma_bps = c.host.bandwidth_bps * (0.5 + 0.1 * case_random(seed, 5));
    c.host.process_bytes = (uint64_t)case_random(seed, 1024) << 20;
    c.pcie.h2d_bps = 1e9 * (5 + case_random(seed, 60));
    c.pcie.d2h_bps = 1e9 * (5 + case_random(seed, 60));
    c.pcie.both_bps = 0.9 * fmin(c.pcie.h2d_bps, c.pcie.d2h_bps);
    c.pcie.latency_s = 1e-6 * (1 + case_random(seed, 200));
    c.cpu_adamw_pps = 1e8 * (1 + case_random(seed, 100));
    c.nvme.capacity_bytes = case_random(seed, 3) == 0 ? 1ull << 40 : 0;
    return c;
}

/* Capacities between what the leanest and the most generous of some random choices take. */
static void random_capacities(stw_plan *plan, uint64_t *seed) {
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t gpu[2] = {UINT64_MAX, 0}, host[2] = {UINT64_MAX, 0};
    for (int i = 0; i < 200; i++) {
        stw_evaluation e;
        case_choice(cost, seed, &choice);
        stw_cost_evaluate(cost, &choice, &e);
        gpu[0] = stw_min_u64(gpu[0], e.gpu_bytes);
        gpu[1] = stw_max_u64(gpu[1], e.gpu_bytes);
        host[0] = stw_min_u64(host[0], e.host_bytes);
        host[1] = stw_max_u64(host[1], e.host_bytes);
    }
    stw_cost_free(cost);
    /* sometimes below the leanest, so that nothing fits */
    plan->cluster.gpu.memory_bytes =
        gpu[0] - gpu[0] / 64 + (gpu[1] - gpu[0]) / 16 * case_random(seed, 14);
    plan->cluster.host.limit_bytes = plan->cluster.host.memory_bytes =
        host[0] + (host[1] - host[0]) / 8 * (1 + case_random(seed, 8)) + (4ull << 20);
}

static void compare(stw_plan *plan, const char *shape, uint32_t *fitting, uint32_t *not_fitting) {
    stw_cost *cost = case_cost(plan);
    stw_choice by_ilp = stw_choice_new(cost, cost->pool), greedy = stw_choice_new(cost, cost->pool);
    stw_choice by_trying = stw_choice_new(cost, cost->pool);
    stw_evaluation best, of_ilp, of_greedy;
    stw_ilp_result result;
    stw_ilp_options options = {.time_limit_s = 60, .gap = 0, .only_stage1 = true};
    CHECK_OK(stw_ilp_solve(cost, &options, &by_ilp, &result, err));
    bool fits = stw_exhaustive_solve(cost, MOST_CHOICES, &by_trying, &best);
    bool greedy_fits = stw_greedy_solve(cost, &greedy, &of_greedy);
    CU_ASSERT_EQUAL(result.outcome, fits ? STW_MILP_OPTIMAL : STW_MILP_INFEASIBLE);
    if (fits && result.outcome == STW_MILP_OPTIMAL) {
        stw_cost_evaluate(cost, &by_ilp, &of_ilp);
        CU_ASSERT(of_ilp.fits);
        CU_ASSERT(fabs(of_ilp.objective_s / best.objective_s - 1) < 1e-7);
        CU_ASSERT(fabs(result.stages[0].objective / of_ilp.objective_s - 1) < 1e-9);
        if (greedy_fits) CU_ASSERT(of_greedy.objective_s > best.objective_s * (1 - 1e-9));
        if (fabs(of_ilp.objective_s / best.objective_s - 1) >= 1e-7)
            fprintf(stderr, "%s: ILP %.12g, exhaustive %.12g\n", shape, of_ilp.objective_s,
                    best.objective_s);
        ++*fitting;
    } else {
        CU_ASSERT_FALSE(greedy_fits);
        ++*not_fitting;
    }
    stw_cost_free(cost);
}

static void ilp_agrees_with_trying_everything(void) {
    case_use_fixture();
    uint32_t fitting = 0, not_fitting = 0;
    uint64_t seed = 2026;
    for (int round = 0; round < 8; round++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            const fixture_size size = {1 + case_random(&seed, 3), 1024, 4096,
                                       4000 + 1000 * case_random(&seed, 20)};
            stw_cluster cluster = random_cluster(&seed);
            stw_plan *plan = fixture_plan(size, &cluster, shapes[s]);
            case_units(plan, 2 + case_random(&seed, 5));
            random_capacities(plan, &seed);
            compare(plan, shapes[s][0], &fitting, &not_fitting);
            stw_plan_free(plan);
        }
    fprintf(stderr, " (%u fit, %u do not) ", fitting, not_fitting);
    CU_ASSERT(fitting >= 20);
    CU_ASSERT(not_fitting >= 2);
}

static void exhaustive_gives_up_on_large_problems(void) {
    const fixture_size size = {3, 1024, 4096, 4000};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, NULL);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    stw_evaluation evaluation;
    CU_ASSERT_FALSE(stw_exhaustive_solve(cost, MOST_CHOICES, &choice, &evaluation));
    stw_cost_free(cost);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner exhaustive", {"the ILP agrees", ilp_agrees_with_trying_everything},
              {"large problems are given up", exhaustive_gives_up_on_large_problems})
