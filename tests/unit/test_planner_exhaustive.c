/* SPDX-License-Identifier: Apache-2.0 */
/* The ILP against trying everything, on small random problems: the same objective where something
 * fits, and nothing where nothing does; and the descents without a solver, which may not be better
 * than either.
 */
#include <math.h>

#include "tests/unit/exhaustive.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MOST_CHOICES 800000

/* What is left to the planner differs from case to case, so that all of it stays enumerable. */
static const char *const shapes[][7] = {
    {"prefetch.bucket=16 MiB", "load.method=sharded_read", "placement.activations=keep", NULL},
    {"prefetch.depth=2", "prefetch.bucket=4 MiB", "load.method=rank0_broadcast", NULL},
    {"prefetch.depth=1", "prefetch.bucket=32 MiB", "recompute.granularity=none", NULL},
    {"optimizer.implementation=fused", "prefetch.bucket=8 MiB", "placement.activations=recompute",
     NULL},
    {"optimizer.clip_norm=none", "prefetch.depth=3", "placement.params=gpu",
     "load.method=node_leader", NULL},
    {"engine=fsdp2", "optimizer.implementation=auto", NULL},
    {"update.direct=auto", "prefetch.depth=2", "prefetch.bucket=8 MiB", "load.method=node_leader",
     "placement.params=gpu", NULL},
    {"optimizer.implementation=direct", "precision.master=fp32", "precision.params=bf16", NULL},
    {"update.stream=0.4", "update.resident=0.3", "prefetch.bucket=16 MiB",
     "placement.activations=keep", NULL},
    {"update.cpu=0.5", "update.direct=0.25", "prefetch.depth=3", "prefetch.bucket=8 MiB",
     "placement.params=gpu", NULL},
    {"update.resident=0.5", "update.stream=0.2", "update.direct=0.1", "update.cpu=0.2",
     "prefetch.bucket=4 MiB", NULL},
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

/* As where the solver fails. */
static void descend(const stw_cost *cost, stw_choice *choice, stw_evaluation *e) {
    const stw_ilp_options options = {.time_limit_s = 60, .no_solver = true};
    stw_ilp_result result;
    CHECK_OK(stw_ilp_solve_least_over(cost, &options, choice, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_FEASIBLE);
    CU_ASSERT_TRUE(stw_choice_keeps_shares(cost, choice));
    stw_cost_evaluate(cost, choice, e);
}

static void compare(stw_plan *plan, const char *shape, uint32_t *fitting, uint32_t *not_fitting) {
    stw_cost *cost = case_cost(plan);
    stw_choice by_ilp = stw_choice_new(cost, cost->pool), rough = stw_choice_new(cost, cost->pool);
    stw_choice by_trying = stw_choice_new(cost, cost->pool);
    stw_evaluation best, of_ilp, of_rough;
    stw_ilp_result result;
    stw_ilp_options options = {.time_limit_s = 60, .gap = 0};
    CHECK_OK(stw_ilp_solve(cost, &options, &by_ilp, &result, err));
    bool fits = exhaustive_solve(cost, MOST_CHOICES, &by_trying, &best);
    descend(cost, &rough, &of_rough);
    CU_ASSERT_EQUAL(result.outcome, fits ? STW_MILP_OPTIMAL : STW_MILP_INFEASIBLE);
    if (fits && result.outcome == STW_MILP_OPTIMAL) {
        stw_cost_evaluate(cost, &by_ilp, &of_ilp);
        CU_ASSERT(of_ilp.fits);
        CU_ASSERT(stw_choice_keeps_shares(cost, &by_ilp));
        CU_ASSERT(stw_choice_keeps_shares(cost, &by_trying));
        CU_ASSERT(fabs(of_ilp.objective_s / best.objective_s - 1) < 1e-7);
        CU_ASSERT(fabs(result.stages[0].objective / of_ilp.objective_s - 1) < 1e-9);
        if (of_rough.fits) CU_ASSERT(of_rough.objective_s > best.objective_s * (1 - 1e-9));
        if (fabs(of_ilp.objective_s / best.objective_s - 1) >= 1e-7)
            fprintf(stderr, "%s: ILP %.12g, exhaustive %.12g\n", shape, of_ilp.objective_s,
                    best.objective_s);
        ++*fitting;
    } else {
        CU_ASSERT_FALSE(of_rough.fits);
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

/* ---- where nothing fits ---- */

/* Limits below what random choices take: of the GPU, of the host, or of both. */
static void too_small(stw_plan *plan, uint64_t *seed) {
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t gpu = UINT64_MAX, host = UINT64_MAX;
    for (int i = 0; i < 200; i++) {
        stw_evaluation e;
        case_choice(cost, seed, &choice);
        stw_cost_evaluate(cost, &choice, &e);
        gpu = stw_min_u64(gpu, e.gpu_bytes);
        host = stw_min_u64(host, e.host_bytes);
    }
    stw_cost_free(cost);
    const uint32_t which = case_random(seed, 3);
    if (which != 1) plan->cluster.gpu.memory_bytes = gpu / 16 * (1 + case_random(seed, 15));
    if (which != 0)
        plan->cluster.host.limit_bytes = plan->cluster.host.memory_bytes =
            host / 16 * (1 + case_random(seed, 15));
    if (case_random(seed, 3) == 0)
        plan->cluster.host.page_lock_limit_bytes = (uint64_t)case_random(seed, 512) << 20;
    if (plan->cluster.nvme.capacity_bytes > 0)
        plan->cluster.nvme.capacity_bytes = (uint64_t)case_random(seed, 256) << 20;
}

/* @param solver false: as if no solver answered in time */
static void check_least(const stw_cost *cost, const char *shape, bool solver,
                        const stw_evaluation *least) {
    stw_choice choice = stw_choice_new(cost, cost->pool);
    stw_evaluation e;
    stw_ilp_result result;
    const stw_ilp_options options = {.time_limit_s = 60, .no_solver = !solver};
    CHECK_OK(stw_ilp_solve_least_over(cost, &options, &choice, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_FEASIBLE);
    CU_ASSERT_TRUE(stw_choice_keeps_shares(cost, &choice));
    stw_cost_evaluate(cost, &choice, &e);
    CU_ASSERT(e.over_share <= least->over_share * (1 + 1e-3) + 1e-9);
    if (e.over_share > least->over_share * (1 + 1e-3) + 1e-9)
        fprintf(stderr, "%s%s: over by %.9g, the least is %.9g\n", shape,
                solver ? "" : ", no solver", e.over_share, least->over_share);
}

static void least_over_is_the_least(void) {
    uint32_t n = 0, over = 0;
    uint64_t seed = 12;
    for (int round = 0; round < 12; round++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            const fixture_size size = {1 + case_random(&seed, 3), 1024, 4096,
                                       4000 + 1000 * case_random(&seed, 20)};
            stw_cluster cluster = random_cluster(&seed);
            stw_plan *plan = fixture_plan(size, &cluster, shapes[s]);
            case_units(plan, 2 + case_random(&seed, 5));
            too_small(plan, &seed);
            stw_cost *cost = case_cost(plan);
            stw_choice choice = stw_choice_new(cost, cost->pool);
            stw_evaluation least = {.over_share = 0};
            if (exhaustive_least_over(cost, MOST_CHOICES, &choice, &least)) {
                n++;
                over += least.over_bytes > 0;
                check_least(cost, shapes[s][0], true, &least);
                check_least(cost, shapes[s][0], false, &least);
            }
            stw_cost_free(cost);
            stw_plan_free(plan);
        }
    fprintf(stderr, " (%u problems, nothing fits in %u) ", n, over);
    CU_ASSERT(n >= 60);
    CU_ASSERT(over >= 50);
}

/* Fixed shares are kept by all solvers, where they cost time and where they cost the plan. */
static void shares_are_kept(void) {
    const fixture_size size = {2, 1024, 4096, 8000};
    const char *const fixed[] = {"update.resident=0.25", "update.cpu=0.5", "prefetch.depth=2",
                                 "prefetch.bucket=8 MiB", NULL};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, fixed);
    case_units(plan, 8);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool), rough = stw_choice_new(cost, cost->pool);
    stw_evaluation evaluation;
    stw_ilp_result result;
    stw_ilp_options options = {.time_limit_s = 60, .gap = 0};
    CHECK_OK(stw_ilp_solve(cost, &options, &choice, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
    uint32_t n = cost->n_units;
    CU_ASSERT_EQUAL(stw_choice_update_units(cost, &choice, STW_UPDATE_RESIDENT), (n + 2) / 4);
    CU_ASSERT_EQUAL(stw_choice_update_units(cost, &choice, STW_UPDATE_CPU),
                    (3 * n + 2) / 4 - (n + 2) / 4);
    const stw_bars none = {.places = 0};
    /* units move between places, but not out of their shares */
    stw_choice_descend(cost, &none, n, &choice, &evaluation);
    CU_ASSERT_TRUE(stw_choice_keeps_shares(cost, &choice));
    descend(cost, &rough, &evaluation);
    CU_ASSERT_TRUE(evaluation.fits);
    /* rows that hold are not enough */
    stw_cost_evaluate(cost, &choice, &evaluation);
    CU_ASSERT_TRUE(evaluation.fits);
    uint32_t from = 0;
    while (choice.units[from] == 0 || cost->places[from].update != STW_UPDATE_CPU) from++;
    choice.units[from]--;
    choice.units[0]++;
    stw_cost_evaluate(cost, &choice, &evaluation);
    CU_ASSERT_EQUAL(evaluation.over_bytes, 0);
    CU_ASSERT_FALSE(evaluation.fits);
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* A share that is fixed where its bytes have no room makes the problem infeasible for all three. */
static void shares_without_room_fit_nowhere(void) {
    const fixture_size size = {2, 1024, 4096, 8000};
    const char *const fixed[] = {"update.resident=1", "update.stream=0", "update.cpu=0",
                                 "load.method=sharded_read", NULL};
    const char *const free_shares[] = {"prefetch.depth=2", "prefetch.bucket=8 MiB",
                                       "load.method=sharded_read", NULL};
    for (int i = 0; i < 2; i++) {
        stw_cluster cluster = fixture_cluster(1);
        stw_plan *plan = fixture_plan(size, &cluster, i == 0 ? fixed : free_shares);
        case_units(plan, 4);
        uint64_t state = plan->job->kinds[0].params * 16;
        plan->cluster.gpu.memory_bytes = cluster.gpu.context_bytes + state + (64ull << 20);
        stw_cost *cost = case_cost(plan);
        stw_choice choice = stw_choice_new(cost, cost->pool);
        stw_evaluation evaluation;
        stw_ilp_result result;
        stw_ilp_options options = {.time_limit_s = 60, .gap = 0};
        CHECK_OK(stw_ilp_solve(cost, &options, &choice, &result, err));
        CU_ASSERT_EQUAL(result.outcome, i == 0 ? STW_MILP_INFEASIBLE : STW_MILP_OPTIMAL);
        CU_ASSERT_EQUAL(exhaustive_solve(cost, MOST_CHOICES, &choice, &evaluation), i == 1);
        descend(cost, &choice, &evaluation);
        CU_ASSERT_EQUAL(evaluation.fits, i == 1);
        stw_cost_free(cost);
        stw_plan_free(plan);
    }
}

static void exhaustive_gives_up_on_large_problems(void) {
    const fixture_size size = {3, 1024, 4096, 4000};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, NULL);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    stw_evaluation evaluation;
    CU_ASSERT_FALSE(exhaustive_solve(cost, MOST_CHOICES, &choice, &evaluation));
    stw_cost_free(cost);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner exhaustive", {"the ILP agrees", ilp_agrees_with_trying_everything},
              {"the least over is the least", least_over_is_the_least},
              {"shares are kept", shares_are_kept},
              {"shares without room fit nowhere", shares_without_room_fit_nowhere},
              {"large problems are given up", exhaustive_gives_up_on_large_problems})
