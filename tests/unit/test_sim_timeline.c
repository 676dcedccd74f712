/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on the simulated time line: of a program whose list order hides what its streams do, and of
 * random plans, whose peaks must hold at every moment, whatever the rates. */
#include <math.h>

#include "planner/planner.h"
#include "sim/timeline.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { RANDOM_PLANS = 200, RANDOM_RATES = 3, ROOMS = 3 };

/* ---- one program by hand ---- */

/* Bytes are copied away for 2 s and freed in the list right after that; the next ones are there
 * when the computation of 1 s beside the copy has ended, unless the free waits for the copy. */
static void list_order_hides_a_copy(void) {
    const char *const settings[] = {NULL};
    const uint64_t bytes = 2000000000;
    enum { ALLOC, COPY, WORK, FREE, NEXT_ALLOC, NEXT_WORK, NEXT_FREE, N_OPS };
    stw_cluster cluster = fixture_cluster(1);
    cluster.pcie.d2h_bps = 1e9;
    cluster.pcie.both_bps = cluster.host.dma_bps = cluster.host.bandwidth_bps = 1e12;
    cluster.pcie.latency_s = 0;
    stw_plan *plan = fixture_plan((fixture_size){1, 64, 64, 64}, &cluster, settings);
    stw_op ops[N_OPS];
    for (int i = 0; i < N_OPS; i++) {
        bool frees = i == FREE || i == NEXT_FREE;
        ops[i] = stw_op_make(frees ? STW_OP_FREE : STW_OP_ALLOC, STW_STREAM_COMPUTE, STW_OP_NONE);
        ops[i].component = STW_COMPONENT_ACTIVATIONS;
        ops[i].bytes = bytes;
        if (i >= NEXT_ALLOC) ops[i].offset_bytes = 1 << 20;
    }
    ops[COPY] = stw_op_make(STW_OP_COPY_BLOCK, STW_STREAM_D2H, 0);
    ops[COPY].to = STW_TIER_HOST;
    ops[COPY].bytes = bytes;
    ops[WORK] = ops[NEXT_WORK] = stw_op_make(STW_OP_IDLE, STW_STREAM_COMPUTE, STW_OP_NONE);
    ops[WORK].wait_s = ops[NEXT_WORK].wait_s = 1;
    stw_movement movement = {.phase = STW_PHASE_FORWARD_BACKWARD, .n_ops = N_OPS};
    stw_program program = {.n_ops = N_OPS, .ops = ops, .n_movements = 1, .movements = &movement};
    for (int waits = 0; waits < 2; waits++) {
        stw_sim *sim = NULL;
        stw_peaks live;
        if (waits) ops[FREE].after[0] = COPY;
        CHECK_OK(stw_sim_run(plan->job, &program, &sim, err));
        CHECK_OK(stw_sim_live_peaks(sim, &live, err));
        CU_ASSERT_EQUAL(sim->peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total, bytes);
        CU_ASSERT_DOUBLE_EQUAL(sim->ops[FREE].end_s, waits ? 2 : 1, 1e-9);
        CU_ASSERT_EQUAL(live.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU].total,
                        waits ? bytes : 2 * bytes);
        if (waits)
            CHECK_OK(stw_sim_check_bytes(sim, err));
        else
            CHECK_FAILS(stw_sim_check_bytes(sim, err), STW_STATUS_BUG, "live at one time");
        stw_sim_free(sim);
    }
    stw_plan_free(plan);
}

/* ---- random plans ---- */

static const char *pick(uint64_t *seed, const char *const *words, uint32_t n) {
    return words[case_random(seed, n)];
}

static void random_cluster(uint64_t *seed, stw_cluster *c) {
    c->pcie.h2d_bps = (1 + case_random(seed, 100)) * 1e9;
    c->pcie.d2h_bps = (1 + case_random(seed, 100)) * 1e9;
    c->pcie.both_bps = 0.9 * fmin(c->pcie.h2d_bps, c->pcie.d2h_bps);
    c->nvlink_bps = (1 + case_random(seed, 400)) * 1e9;
    c->nic_bps = (1 + case_random(seed, 100)) * 1e9;
    c->gpu.bf16_flops = (1 + case_random(seed, 1000)) * 1e12;
    c->gpu.hbm_bps = (1 + case_random(seed, 40)) * 1e11;
    c->cpu_adamw_pps = (1 + case_random(seed, 100)) * 1e8;
}

/* @param act of all blocks; NULL: any */
static stw_plan *random_plan(uint64_t *seed, uint64_t memory_bytes, const char *act) {
    static const char *const acts[] = {
        "placement.activations=auto", "placement.activations=offload",
        "placement.activations=recompute", "placement.activations=keep"};
    static const char *const engines[] = {"engine=stowage", "engine=fsdp2"};
    static const char *const params[] = {"precision.params=fp32", "precision.params=bf16"};
    static const char *const reduce[] = {"precision.reduce=fp32", "precision.reduce=bf16"};
    static const char *const reshard[] = {"fsdp.reshard_after_forward=true",
                                          "fsdp.reshard_after_forward=false"};
    static const char *const where[] = {"placement.params=auto", "placement.params=host",
                                        "placement.params=auto"};
    static const char *const seq[] = {"batch.seq_len=64", "batch.seq_len=512",
                                      "batch.seq_len=4096"};
    const fixture_size size = {1 + case_random(seed, 16), 64 + 64 * case_random(seed, 8),
                               128 + 128 * case_random(seed, 8), 100 + case_random(seed, 5000)};
    stw_cluster cluster = fixture_cluster(1u << case_random(seed, 3));
    cluster.nodes = 1 + case_random(seed, 2);
    random_cluster(seed, &cluster);
    cluster.gpu.context_bytes = cluster.gpu.comm_bytes = 1 << 20;
    if (memory_bytes > 0) cluster.gpu.memory_bytes = memory_bytes;
    cluster.nvme.capacity_bytes = 0;
    const char *settings[] = {pick(seed, acts, 4),    pick(seed, engines, 2),
                              pick(seed, params, 2),  pick(seed, reduce, 2),
                              pick(seed, reshard, 2), pick(seed, where, 3),
                              pick(seed, seq, 3),     NULL};
    if (act != NULL) settings[0] = act;
    if (cluster.gpus * cluster.nodes == 1) settings[3] = settings[4] = settings[1]; /* no effect */
    return fixture_plan(size, &cluster, settings);
}

/* Rates change when operations run, not what waits for what. */
static void check_plan(uint64_t *seed, stw_plan *plan) {
    for (int rates = 0; rates < RANDOM_RATES; rates++) {
        for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
            stw_sim *sim = NULL;
            CHECK_OK(stw_sim_run(plan->job, plan->programs[k], &sim, err));
            if (sim == NULL) continue;
            CHECK_OK(stw_sim_check_bytes(sim, err));
            for (int p = 0; p < STW_N_PHASES; p++)
                CU_ASSERT_EQUAL(sim->peaks.phase[p][STW_TIER_GPU].total,
                                plan->peaks[k].phase[p][STW_TIER_GPU].total);
            stw_sim_free(sim);
        }
        random_cluster(seed, &plan->cluster);
    }
}

static uint32_t count_acts(const stw_plan *plan, stw_act act) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->decisions.n_blocks; i++)
        if (plan->decisions.blocks[i].act == act) n += plan->decisions.blocks[i].count;
    return n;
}

/* First with as much memory as there can be, then with less and less. */
static void random_plans_hold_their_peaks(void) {
    const stw_planner_options options = {
        .time_limit_s = 5, .gap = 0.05, .no_fixes = true, .no_prices = true};
    uint64_t seed = 11;
    uint32_t offloaded = 0, mixed = 0, plans = 0;
    while (plans < RANDOM_PLANS) {
        uint64_t memory = 0, same = seed + plans;
        for (int room = 0; room < ROOMS && plans < RANDOM_PLANS; room++) {
            uint64_t again = same;
            stw_error why = STW_ERROR_INIT;
            stw_plan *plan = random_plan(&again, memory, NULL);
            if (stw_planner_solve(plan, &options, &why) == STW_STATUS_OK) {
                check_plan(&again, plan);
                uint32_t out = count_acts(plan, STW_ACT_OFFLOAD);
                offloaded += out > 0;
                mixed += out > 0 && count_acts(plan, STW_ACT_KEEP) > 0;
            } else {
                printf("%s: %s\n", why.where, why.text);
                CU_FAIL("no plan");
            }
            plans++;
            uint64_t peak = 0;
            for (int p = 0; p < STW_N_PHASES; p++)
                peak = stw_max_u64(peak, plan->peaks[0].phase[p][STW_TIER_GPU].total);
            memory = peak / 10 * (5 + case_random(&again, 4));
            stw_plan_free(plan);
        }
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    }
    CU_ASSERT(offloaded >= RANDOM_PLANS / 5);
    printf("%u plans, %u with offloaded blocks, %u of them with others\n", plans, offloaded, mixed);
}

/* Policies, places and rings as no planner would choose them: rows hold for them, too. */
static void random_choices_hold_their_peaks(void) {
    uint64_t seed = 5;
    uint32_t offloaded = 0;
    for (uint32_t n = 0; n < RANDOM_PLANS; n++) {
        stw_plan *plan = random_plan(&seed, 0, "placement.activations=auto");
        stw_cost *cost = case_cost(plan);
        stw_choice choice = stw_choice_new(cost, cost->pool);
        case_choice(cost, &seed, &choice);
        CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
        CHECK_OK(stw_plan_derive(plan, err));
        CHECK_OK(stw_cost_check_walk(cost, &choice, plan->peaks, plan->node_peaks, err));
        check_plan(&seed, plan);
        offloaded += count_acts(plan, STW_ACT_OFFLOAD) > 0 && count_acts(plan, STW_ACT_KEEP) > 0;
        stw_cost_free(cost);
        stw_plan_free(plan);
    }
    CU_ASSERT(offloaded >= RANDOM_PLANS / 10);
}

STW_TEST_MAIN("sim timeline", {"list order hides a copy", list_order_hides_a_copy},
              {"random plans hold their peaks", random_plans_hold_their_peaks},
              {"random choices hold their peaks", random_choices_hold_their_peaks})
