/* SPDX-License-Identifier: Apache-2.0 */
/* What a search of sizes finds is the smallest and the cheapest of all counts; parts of nodes. */
#include "planner/point.h"
#include "planner/size.h"
#include "planner/sweep.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static stw_status finish(stw_plan *plan, stw_error *err) {
    stw_status status = stw_sim_plan(plan, NULL, err);
    return status == STW_STATUS_OK ? stw_plan_check(plan, true, err) : status;
}

static stw_cluster node_of(void) {
    stw_cluster cluster = fixture_cluster(4);
    cluster.nic_bps = 25e9;
    CHECK_OK(stw_cluster_set(&cluster, "node.gpu.memory", "8 GiB", "test", err));
    return cluster;
}

/* The smallest is the first count that fits; the cheapest is no dearer than a plan of any count
 * with any of a few layouts, and its row is that of its settings. */
static void sizes_of_all_counts(void) {
    static const char *const layouts[] = {"parallel.cp=1", "parallel.cp=2", "loss.fused=true"};
    static const char *const own[] = {"batch.seq_len=4096"};
    const stw_cluster node = node_of();
    stw_model *model = NULL;
    CHECK_OK(stw_model_open("Qwen3-0.6B", STW_SOURCE_MODELS, &model, err));
    stw_point_base base = {.model = model,
                           .cluster = &node,
                           .settings = own,
                           .n_settings = 1,
                           .simulate = stw_sim_seconds,
                           .finish = finish};
    const stw_point_base *bases[] = {&base};
    const stw_size_options options = {.time_limit_s = 600, .jobs = 1};
    const stw_point_options how = {.time_limit_s = 600};
    stw_size_answer a = {.model = base.model, .name = "test", .cluster = node};
    stw_pool *pool = stw_pool_new();
    CHECK_OK(stw_size_find(bases, &options, pool, &a, 1, err));
    CU_ASSERT_TRUE_FATAL(a.fits && a.cheapest.nodes > 0);
    const double least = stw_sweep_gpu_hours(&a.cheapest_row);
    CU_ASSERT(least <= stw_sweep_gpu_hours(&a.row) * 1.01 && a.bound_hours <= least * 1.01);
    for (uint32_t gpus = 1; gpus <= 4 * node.gpus; gpus += gpus < node.gpus ? 1 : node.gpus)
        for (uint32_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            stw_cluster here;
            stw_plan *plan = NULL;
            stw_error why = STW_ERROR_INIT;
            stw_sweep_row row = {.verdict = STW_SWEEP_NOT_PLANNED};
            stw_cluster_part(&node, gpus < node.gpus ? gpus : node.gpus, &here);
            here.nodes = gpus > node.gpus ? gpus / node.gpus : 1;
            base.cluster = &here;
            if (stw_point_plan(&base, &layouts[i], 1, &how, &plan, &why) != STW_STATUS_OK) continue;
            CHECK_OK(stw_sweep_fill_row(plan, pool, &row, err));
            stw_plan_free(plan);
            const bool below = gpus < a.cluster.gpus * a.cluster.nodes;
            CU_ASSERT_FALSE(below && stw_sweep_row_fits(&row));
            if (row.verdict == STW_SWEEP_FITS) CU_ASSERT(least <= 1.02 * stw_sweep_gpu_hours(&row));
        }
    stw_plan *again = NULL;
    base.cluster = &a.cheapest;
    CHECK_OK(stw_point_plan(&base, a.cheapest_settings, a.n_cheapest_settings, &how, &again, err));
    CU_ASSERT_DOUBLE_EQUAL(stw_plan_iteration_s(again), a.cheapest_row.iteration_s, 1e-12);
    CU_ASSERT_EQUAL(stw_point_peak(again, STW_TIER_GPU), a.cheapest_row.gpu_peak_bytes);
    stw_plan_free(again);
    stw_pool_free(pool);
    stw_model_free(model);
}

/* Part of a node has its share of all but the memory of a GPU and, where few GPUs copy, their
 * links' rate. */
static void parts_of_a_node(void) {
    const stw_cluster node = node_of();
    stw_cluster half;
    stw_cluster_part(&node, 2, &half);
    CU_ASSERT_EQUAL(half.gpus, 2);
    CU_ASSERT_EQUAL(half.gpu.memory_bytes, node.gpu.memory_bytes);
    CU_ASSERT_EQUAL(half.host.memory_bytes, node.host.memory_bytes / 2);
    CU_ASSERT_DOUBLE_EQUAL(half.host.bandwidth_bps, node.host.bandwidth_bps / 2, 1);
    CU_ASSERT_DOUBLE_EQUAL(half.nic_bps, node.nic_bps, 1);
    stw_cluster eight = node, one;
    eight.gpus = 8;
    eight.host.bandwidth_bps = 400e9;
    eight.host.dma_bps = 320e9;
    eight.host.dma_up_bps = 0;
    eight.pcie.both_bps = 50e9;
    stw_cluster_part(&eight, 1, &one);
    CU_ASSERT_DOUBLE_EQUAL(one.host.dma_bps, 100e9, 1);
    CU_ASSERT_DOUBLE_EQUAL(one.host.bandwidth_bps, 100e9, 1);
    CU_ASSERT_EQUAL(one.host.dma_up_bps, 0); /* not known */
    stw_cluster_part(&eight, 4, &one);
    CU_ASSERT_DOUBLE_EQUAL(one.host.dma_bps, 160e9, 1);
}

int main(void) {
    static const stw_test tests[] = {
        {"the smallest and the cheapest of all counts", sizes_of_all_counts},
        {"part of a node", parts_of_a_node},
    };
    return stw_test_run_all("planner_size", tests, sizeof tests / sizeof tests[0]);
}
