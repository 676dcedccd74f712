/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes counted twice: by the walk of the program, and by a counter written here from the run's
 * definition alone (element sizes, chunks of dim 0, ring, staging), without layout or planner code.
 */
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

/* ---- the independent counter ---- */

static uint64_t tensor_share(uint64_t rows, uint64_t row, uint32_t ranks, uint32_t rank) {
    uint64_t chunk = (rows + ranks - 1) / ranks, begin = rank * chunk, end = begin + chunk;
    if (begin > rows) begin = rows;
    if (end > rows) end = rows;
    return (end - begin) * row;
}

static uint64_t params_of_rank(fixture_size s, uint32_t ranks, uint32_t rank) {
    uint64_t layer = 2 * tensor_share(s.hidden, 1, ranks, rank) +
                     tensor_share(2 * s.hidden, s.hidden, ranks, rank) +
                     tensor_share(s.hidden, s.hidden, ranks, rank) +
                     tensor_share(2 * s.ffn, s.hidden, ranks, rank) +
                     tensor_share(s.hidden, s.ffn, ranks, rank);
    return tensor_share(s.vocab, s.hidden, ranks, rank) + s.layers * layer +
           tensor_share(s.hidden, 1, ranks, rank);
}

typedef struct counted {
    uint64_t gpu, host, nvme;
} counted;

/* Step bytes of rank 0: fp32 state, `units` quanta of `quantum` elements to each of the places. */
static counted count_step(uint64_t params, uint64_t quantum, uint32_t n, const stw_place *places,
                          const uint32_t *units, uint32_t slots, uint64_t slot_bytes, bool alone) {
    counted total = {0, 0, 0};
    uint64_t at = 0;
    bool gpu_ring = false, cpu_ring = false;
    uint64_t disk_slot = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t take = i + 1 == n ? params - at : units[i] * quantum;
        if (take > params - at) take = params - at;
        at += take;
        const stw_tier tiers[4] = {places[i].params, places[i].grads, places[i].moments,
                                   places[i].moments};
        for (int c = 0; c < 4; c++)
            *(tiers[c] == STW_TIER_GPU    ? &total.gpu
              : tiers[c] == STW_TIER_HOST ? &total.host
                                          : &total.nvme) += take * 4;
        if (take == 0) continue;
        if (places[i].update == STW_UPDATE_STREAM) gpu_ring = true;
        if (places[i].update == STW_UPDATE_CPU && places[i].params == STW_TIER_GPU) cpu_ring = true;
        if (places[i].moments == STW_TIER_NVME) disk_slot = slot_bytes; /* 8 B of 8 B per element */
    }
    if (gpu_ring) total.gpu += slots * slot_bytes;
    if (cpu_ring) total.host += slots * slot_bytes;
    total.host += slots * disk_slot;
    if (!alone) total.gpu += 1ull << 20; /* scratch of small collectives */
    return total;
}

/* ---- tests ---- */

static const stw_place all_places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM,  FIXTURE_STREAM_ALL,
                                       FIXTURE_CPU,      FIXTURE_CPU_ALL, FIXTURE_NVME};

static void compare_with_counter(uint32_t gpus, uint32_t n, const stw_place *places,
                                 const uint32_t *units) {
    stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    fixture_state(plan, n, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    uint64_t params = params_of_rank(small, gpus, 0);
    CU_ASSERT_EQUAL(plan->job->kinds[0].params, params);
    counted want =
        count_step(params, plan->job->unit_params, n, places, units, 3, 1ull << 20, gpus == 1);
    want.gpu += cluster.gpu.context_bytes + (gpus > 1 ? cluster.gpu.comm_bytes : 0);
    want.host += cluster.host.process_bytes;
    const stw_peak *peak = plan->peaks[0].phase[STW_PHASE_OPTIMIZER_STEP];
    CU_ASSERT_EQUAL(peak[STW_TIER_GPU].total, want.gpu);
    CU_ASSERT_EQUAL(peak[STW_TIER_HOST].total, want.host);
    CU_ASSERT_EQUAL(peak[STW_TIER_NVME].total, want.nvme);
    stw_plan_free(plan);
}

static void single_places(void) {
    for (size_t i = 0; i < sizeof all_places / sizeof all_places[0]; i++) {
        const uint32_t units[] = {0};
        compare_with_counter(1, 1, &all_places[i], units);
        compare_with_counter(4, 1, &all_places[i], units);
    }
}

static void mixed_places(void) {
    const uint32_t units[][6] = {
        {5, 7, 11, 13, 17, 0}, {100, 1, 1, 1, 1, 0}, {0, 0, 3, 0, 9, 0}, {1, 0, 0, 0, 400, 0}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        compare_with_counter(1, 6, all_places, units[i]);
        compare_with_counter(3, 6, all_places, units[i]);
    }
}

static void load_bytes(void) {
    /* rank 0 stages in 3 x 32 MiB on host and GPU; the others on the GPU alone */
    stw_cluster cluster = fixture_cluster(2);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    fixture_state(plan, 1, all_places, NULL);
    CHECK_OK(stw_plan_derive(plan, err));
    CU_ASSERT_EQUAL(plan->job->n_kinds, 2);
    for (uint32_t k = 0; k < 2; k++) {
        const stw_peak *peak = plan->peaks[k].phase[STW_PHASE_LOAD];
        uint64_t state = params_of_rank(small, 2, k) * 16 + (1ull << 20);
        CU_ASSERT_EQUAL(stw_peak_allocated(&peak[STW_TIER_GPU]), state + 3 * (32ull << 20));
        CU_ASSERT_EQUAL(peak[STW_TIER_HOST].total,
                        cluster.host.process_bytes + (k == 0 ? 3 * (32ull << 20) : 0));
    }
    stw_plan_free(plan);
}

static void falsified_plans_are_found(void) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    const uint32_t units[] = {5, 7, 11, 13, 17, 0};
    fixture_state(plan, 6, all_places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    plan->layouts[0]->regions[1].offset_bytes -= 4096;
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BUG, "overlaps");
    plan->layouts[0]->regions[1].offset_bytes += 4096;
    plan->peaks[0].phase[STW_PHASE_LOAD][STW_TIER_GPU].total++;
    CHECK_FAILS(stw_plan_check(plan, true, err), STW_STATUS_BUG, "peak");
    CHECK_OK(stw_plan_check(plan, false, err));
    plan->decisions.state[0].units++;
    CHECK_FAILS(stw_plan_check(plan, false, err), STW_STATUS_BAD_INPUT, "quanta");
    stw_plan_free(plan);
}

static void uneven_shards_may_be_empty(void) {
    const fixture_size tiny = {1, 4, 8, 5};
    stw_cluster cluster = fixture_cluster(4);
    stw_plan *plan = fixture_plan(tiny, &cluster, NULL);
    uint64_t sum = 0;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        sum += plan->job->kinds[k].params * plan->job->kinds[k].n_ranks;
    CU_ASSERT_EQUAL(sum, plan->model->params);
    for (uint32_t rank = 0; rank < 4; rank++) {
        stw_segment *segments = NULL;
        uint32_t n = 0;
        uint64_t flat = 0;
        CHECK_OK(stw_job_segments(plan->job, rank, plan->pool, &segments, &n, err));
        for (uint32_t i = 0; i < n; i++) {
            CU_ASSERT_EQUAL(segments[i].flat_first, flat);
            flat += segments[i].params;
        }
        CU_ASSERT_EQUAL(flat, params_of_rank(tiny, 4, rank));
        CU_ASSERT_EQUAL(flat, plan->job->kinds[stw_job_kind_of(plan->job, rank)].params);
    }
    stw_plan_free(plan);
}

static void both_engines_and_all_policies_check(void) {
    const char *const fsdp2[] = {"engine=fsdp2", NULL};
    const char *const streamed[] = {"engine=fsdp2", "optimizer.implementation=streamed", NULL};
    const char *const parked[] = {"engine=fsdp2", "park.moments=host", NULL};
    const char *const *const settings[] = {NULL, fsdp2, streamed, parked};
    for (size_t i = 0; i < 4; i++) {
        stw_cluster cluster = fixture_cluster(4);
        stw_plan *plan = fixture_plan(small, &cluster, settings[i]);
        plan->decisions.blocks = stw_pool_array(plan->pool, 3, sizeof(stw_block_decision));
        for (uint32_t a = 0; a < 3; a++)
            plan->decisions.blocks[a] = (stw_block_decision){1, (stw_act)a, 1};
        plan->decisions.n_blocks = 3;
        plan->decisions.prefetch.by_group = i > 0;
        plan->decisions.prefetch.depth = 1;
        fixture_state(plan, 1, &all_places[i == 2 || i == 0 ? 1 : 0], NULL);
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_plan_check(plan, true, err));
        CU_ASSERT_TRUE(plan->peaks[0].has[STW_PHASE_FORWARD_BACKWARD]);
        stw_plan_free(plan);
    }
}

STW_TEST_MAIN("plan program", {"one place at a time equals the counter", single_places},
              {"mixed places equal the counter", mixed_places}, {"load staging", load_bytes},
              {"falsified plans are found", falsified_plans_are_found},
              {"uneven and empty shards", uneven_shards_may_be_empty},
              {"engines and activation policies", both_engines_and_all_policies_check})
