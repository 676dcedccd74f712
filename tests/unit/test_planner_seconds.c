/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds against the simulator, which knows nothing of them: a step with all state in one
 * place, for every place, ring depth and kind of disk, and the load that makes masters. */
#include <math.h>

#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static void check_near(const char *what, const stw_place *place, uint32_t depth, double row,
                       double simulated, double tolerance) {
    bool near = fabs(row / simulated - 1) <= tolerance;
    CU_ASSERT(near);
    if (near) return;
    char text[96];
    stw_place_format(place, text, sizeof text);
    fprintf(stderr, "%s, %s, depth %u: %.6g s by the rows, %.6g s simulated\n", what, text, depth,
            row, simulated);
}

static void check_choice(stw_plan *plan, const stw_cost *cost, uint32_t p, const stw_choice *choice,
                         double tolerance) {
    stw_evaluation e;
    stw_sim *sim = NULL;
    uint32_t depth = cost->rings[choice->ring].depth;
    stw_cost_evaluate(cost, choice, &e);
    CHECK_OK(stw_cost_decide(cost, choice, plan->pool, &plan->decisions, err));
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_sim_run(plan->job, plan->programs[0], &sim, err));
    if (sim == NULL) return;
    check_near("step", &cost->places[p], depth,
               e.stretch_s[STW_STRETCH_NORM] + e.stretch_s[STW_STRETCH_STEP],
               stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP), tolerance);
    check_near("load", &cost->places[p], depth, e.load_s,
               stw_sim_phase_seconds(sim, STW_PHASE_LOAD), 0.02);
    stw_sim_free(sim);
}

static void check_places(const char *const *settings, double disk_both_bps, double tolerance) {
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    plan->cluster.nvme.both_bps = disk_both_bps;
    stw_cost *cost = case_cost(plan);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            stw_choice choice = stw_choice_new(cost, cost->pool);
            choice.units[p] = cost->n_units;
            choice.ring = r;
            for (uint32_t a = 0; a < cost->n_acts; a++)
                if (cost->acts[a].act == STW_ACT_KEEP) choice.acts[a] = cost->acts[a].blocks;
            check_choice(plan, cost, p, &choice, tolerance);
        }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* Shared links are where closed formulas and fair shares differ most. */
#define LINKS 0.12

static void places_in_memory(void) {
    case_use_fixture();
    const char *one[] = {"node.gpus=1", "node.nvme.capacity=0", "update.direct=auto",
                         "prefetch.bucket=32 MiB", NULL};
    const char *two[] = {"node.gpus=2",
                         "node.nvme.capacity=0",
                         "update.direct=auto",
                         "prefetch.bucket=16 MiB",
                         "node.host.dma_up=60 GB/s",
                         NULL};
    check_places(one, 0, LINKS);
    check_places(two, 0, LINKS);
}

static void places_on_disk(void) {
    const char *settings[] = {"node.gpus=1", "placement.moments=nvme", "prefetch.bucket=16 MiB",
                              NULL};
    check_places(settings, 0, 0.02);
    check_places(settings, 4e9, 0.02);
    check_places(settings, 5e9, 0.02);
}

static void places_with_a_master(void) {
    const char *settings[] = {"node.gpus=1",
                              "update.direct=auto",
                              "precision.params=bf16",
                              "precision.grads=bf16",
                              "precision.master=fp32",
                              "prefetch.depth=3",
                              "prefetch.bucket=32 MiB",
                              NULL};
    check_places(settings, 0, LINKS);
}

STW_TEST_MAIN("planner seconds", {"places in memory", places_in_memory},
              {"places on disk", places_on_disk}, {"places with a master", places_with_a_master})
