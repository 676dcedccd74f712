/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator on hand-made programs: rings of depth 1, 2 and 3 against closed formulas, shared
 * links, start-up costs, waiting, bytes, and what random programs must keep to. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "sim/sim.h"
#include "tests/unit/testing.h"

#define GB 1000000000ull
#define CHECK_NEAR(a, b) CU_ASSERT_DOUBLE_EQUAL((a), (b), 1e-9)
#define NONE STW_OP_NONE

enum { MOST_OPS = 60000 };

static stw_cluster cluster;
static stw_run_spec run;
static stw_job job;
static stw_program program;
static stw_movement movements[8];
static stw_op ops[MOST_OPS];

/* Rates at which a copy of n GB takes n seconds, an update of n Gparam on the GPU n seconds, and
 * nothing is shared; tests change what they are about. */
static void set_up(void) {
    memset(&cluster, 0, sizeof cluster);
    cluster.gpu.efficiency = 0.5;
    memset(&run, 0, sizeof run);
    memset(&job, 0, sizeof job);
    memset(&program, 0, sizeof program);
    cluster.gpus = 1;
    cluster.gpu.hbm_bps = 28e9;
    cluster.gpu.bf16_flops = 2e12;
    cluster.pcie.h2d_bps = cluster.pcie.d2h_bps = 1e9;
    cluster.cpu_adamw_pps = 1e9;
    run.precision.params = run.precision.grads = STW_DTYPE_F32;
    run.precision.exp_avg = run.precision.exp_avg_sq = STW_DTYPE_F32;
    job.cluster = &cluster;
    job.run = &run;
    job.world = job.group = job.ranks_per_node = 1;
    program.ops = ops;
}

static uint32_t append(stw_op_kind kind, stw_stream stream, uint64_t amount, uint32_t after0,
                       uint32_t after1) {
    stw_op op = {.kind = kind, .stream = stream, .unit = NONE, .after = {after0, after1}};
    bool up = stream == STW_STREAM_H2D;
    op.from = up || stream == STW_STREAM_CPU ? STW_TIER_HOST : STW_TIER_GPU;
    op.to = up || stream == STW_STREAM_COMPUTE ? STW_TIER_GPU : STW_TIER_HOST;
    op.update = stream == STW_STREAM_CPU ? STW_UPDATE_CPU : STW_UPDATE_STREAM;
    if (kind == STW_OP_UPDATE)
        op.params = amount;
    else
        op.bytes = amount;
    ops[program.n_ops] = op;
    return program.n_ops++;
}

static uint32_t bytes_op(stw_op_kind kind, stw_component component, stw_tier tier, uint64_t bytes) {
    uint32_t i = append(kind, STW_STREAM_COMPUTE, bytes, NONE, NONE);
    ops[i].component = component;
    ops[i].from = ops[i].to = tier;
    return i;
}

/* Everything appended since the last movement becomes one. */
static void end_movement(stw_phase phase) {
    uint32_t m = program.n_movements++;
    program.movements = movements;
    uint32_t first = m > 0 ? program.movements[m - 1].first_op + program.movements[m - 1].n_ops : 0;
    program.movements[m] =
        (stw_movement){.phase = phase, .first_op = first, .n_ops = program.n_ops - first};
}

static double simulate(stw_phase phase) {
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(&job, &program, &sim, err));
    if (sim == NULL) return NAN;
    double seconds = stw_sim_phase_seconds(sim, phase);
    stw_sim_free(sim);
    return seconds;
}

/* n buckets through a ring of `depth` slots: up, update, down; a slot is free after its down. */
static void build_ring(uint32_t n, uint32_t depth, uint64_t up, uint64_t update, uint64_t down) {
    set_up();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = i < depth ? NONE : 3 * (i - depth) + 2;
        uint32_t a = append(STW_OP_COPY, STW_STREAM_H2D, up, slot, NONE);
        uint32_t b = append(STW_OP_UPDATE, STW_STREAM_COMPUTE, update, a, NONE);
        (void)append(STW_OP_COPY, STW_STREAM_D2H, down, b, NONE);
    }
    end_movement(STW_PHASE_OPTIMIZER_STEP);
}

static double ring(uint32_t n, uint32_t depth, uint64_t up, uint64_t update, uint64_t down) {
    build_ring(n, depth, up, update, down);
    return simulate(STW_PHASE_OPTIMIZER_STEP);
}

static void ring_of_one_slot_is_serial(void) {
    CHECK_NEAR(ring(8, 1, 2 * GB, GB, 3 * GB), 8 * 6.0);
    CHECK_NEAR(ring(1, 1, 2 * GB, GB, 3 * GB), 6.0);
}

/* Equal stages of s: two slots start a pair every 3 s, the last pair's two buckets end 3 s and 4 s
 * after its start. */
static void ring_of_two_slots(void) {
    CHECK_NEAR(ring(8, 2, GB, GB, GB), 3.0 * 3 + 4);
    CHECK_NEAR(ring(2, 2, GB, GB, GB), 4);
    /* A cheap update: the cycle of a slot is 2.5 s long and holds two buckets, the links need 1 s
     * each: 2.5 s per pair, and 1 + 2.5 s for the last. */
    CHECK_NEAR(ring(8, 2, GB, GB / 2, GB), 3 * 2.5 + 3.5);
}

/* From three slots on equal stages never wait: fill, then one bucket every s. */
static void ring_of_three_slots(void) {
    CHECK_NEAR(ring(8, 3, GB, GB, GB), 8 + 2);
    CHECK_NEAR(ring(8, 4, GB, GB, GB), 8 + 2);
    /* Bound by the way up: its sum, then one update and one way down. */
    CHECK_NEAR(ring(8, 3, 2 * GB, GB, GB), 8 * 2 + 2);
    /* Bound by the way down. */
    CHECK_NEAR(ring(8, 3, GB, GB, 2 * GB), 2 + 8 * 2);
}

/* The recurrence of a ring without shared resources, for any times. */
static double ring_by_recurrence(uint32_t n, uint32_t depth, double up, double update,
                                 double down) {
    double up_end = 0, update_end = 0, down_ends[64] = {0};
    for (uint32_t i = 0; i < n; i++) {
        double slot = i < depth ? 0 : down_ends[i - depth];
        up_end = fmax(up_end, slot) + up;
        update_end = fmax(update_end, up_end) + update;
        down_ends[i] = fmax(i > 0 ? down_ends[i - 1] : 0, update_end) + down;
    }
    return down_ends[n - 1];
}

static uint64_t state = 7;
static uint64_t random_below(uint64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % n;
}

static void rings_follow_the_recurrence(void) {
    for (int round = 0; round < 300; round++) {
        uint32_t n = 1 + (uint32_t)random_below(40), depth = 1 + (uint32_t)random_below(5);
        uint64_t t[3];
        for (int i = 0; i < 3; i++) t[i] = (1 + random_below(50)) * GB / 10;
        double expected = ring_by_recurrence(n, depth, (double)t[0] / 1e9, (double)t[1] / 1e9,
                                             (double)t[2] / 1e9);
        CHECK_NEAR(ring(n, depth, t[0], t[1], t[2]), expected);
    }
}

/* Both ways at once at 0.8 GB/s each, then what is left of the longer one alone. */
static void both_directions_share_the_link(void) {
    set_up();
    cluster.pcie.both_bps = 0.8e9;
    append(STW_OP_COPY, STW_STREAM_H2D, 2 * GB, NONE, NONE);
    append(STW_OP_COPY, STW_STREAM_D2H, GB, NONE, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 1 / 0.8 + 1);
}

/* A ring of three slots in steady state is bound by the link's sum: n buckets both ways at
 * both_bps, plus the fill and drain in which only one direction moves. */
static void shared_link_bounds_the_ring(void) {
    build_ring(100, 3, GB, GB / 100, GB);
    cluster.pcie.both_bps = 0.9e9;
    double seconds = simulate(STW_PHASE_OPTIMIZER_STEP);
    CU_ASSERT(seconds > 100 / 0.9);
    CU_ASSERT(seconds < 100 / 0.9 + 2.1);
}

/* Four GPUs copying at once get what the host gives: 4 x 1 GB at 2 GB/s in all. */
static void ranks_of_a_node_share_the_host(void) {
    set_up();
    job.world = job.group = job.ranks_per_node = 4;
    cluster.host.dma_bps = 2e9;
    append(STW_OP_COPY, STW_STREAM_H2D, GB, NONE, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 2);
}

/* A CPU update (28 B of host traffic each) and a copy draw on one host memory of 28 GB/s: the
 * update alone takes 1 s and all of it; the copy of 14 GB at 14 GB/s alone takes 1 s and half. Fair
 * rates are 2/3; after 1.5 s both are done. */
static void cpu_and_copies_share_host_memory(void) {
    set_up();
    cluster.host.bandwidth_bps = 28e9;
    cluster.pcie.h2d_bps = cluster.pcie.d2h_bps = 14e9;
    append(STW_OP_UPDATE, STW_STREAM_CPU, GB, NONE, NONE);
    append(STW_OP_COPY, STW_STREAM_H2D, 14 * GB, NONE, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 1.5);
}

static void start_up_comes_before_sharing(void) {
    set_up();
    cluster.pcie.latency_s = 0.25;
    for (int i = 0; i < 4; i++) append(STW_OP_COPY, STW_STREAM_H2D, GB, NONE, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 4 * 1.25);
    /* While one direction starts up the other has the link for itself: 0.25 s of both starting,
     * then both at half rate. The way down is short and starts again while the way up goes on. */
    set_up();
    cluster.pcie.latency_s = 0.25;
    cluster.pcie.both_bps = 0.5e9;
    append(STW_OP_COPY, STW_STREAM_H2D, 2 * GB, NONE, NONE);
    append(STW_OP_COPY, STW_STREAM_D2H, GB / 2, NONE, NONE);
    append(STW_OP_COPY, STW_STREAM_D2H, GB / 2, NONE, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    /* 0.25 both start; 1.0 sharing ends the first down (up has 1.5 left); 0.25 alone (1.25 left);
     * 1.0 sharing ends the second down (0.75 left); 0.75 alone. */
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 0.25 + 1 + 0.25 + 1 + 0.75);
    /* A collective of nothing but latency: one hop between two nodes. */
    set_up();
    job.world = job.group = 2;
    uint32_t sum = append(STW_OP_ALL_GATHER, STW_STREAM_COMM, 64, NONE, NONE);
    ops[sum].group = STW_RANK_GROUP_SHARD;
    cluster.nvlink_bps = INFINITY;
    append(STW_OP_UPDATE, STW_STREAM_COMPUTE, GB, sum, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    CHECK_NEAR(simulate(STW_PHASE_OPTIMIZER_STEP), 1 + 6.6e-6 + 2.7e-6);
}

static void waits_and_streams_are_kept(void) {
    set_up();
    uint32_t a = append(STW_OP_COPY, STW_STREAM_H2D, GB, NONE, NONE);
    uint32_t b = append(STW_OP_COPY, STW_STREAM_D2H, 3 * GB, NONE, NONE);
    uint32_t c = append(STW_OP_UPDATE, STW_STREAM_COMPUTE, GB, a, b);
    uint32_t alloc = bytes_op(STW_OP_ALLOC, STW_COMPONENT_STAGE, STW_TIER_GPU, 100);
    uint32_t d = append(STW_OP_COPY, STW_STREAM_H2D, GB, c, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(&job, &program, &sim, err));
    if (sim == NULL) return;
    CHECK_NEAR(sim->ops[a].end_s, 1);
    CHECK_NEAR(sim->ops[b].end_s, 3);
    CHECK_NEAR(sim->ops[c].start_s, 3);
    CHECK_NEAR(sim->ops[c].end_s, 4);
    CHECK_NEAR(sim->ops[alloc].start_s, 4); /* behind c in its stream, and without a length */
    CHECK_NEAR(sim->ops[alloc].end_s, 4);
    CHECK_NEAR(sim->ops[d].start_s, 4);
    CHECK_NEAR(sim->ops[d].end_s, 5);
    CHECK_NEAR(sim->busy_s[STW_PHASE_OPTIMIZER_STEP][STW_RESOURCE_PCIE_UP], 2);
    CHECK_NEAR(sim->busy_s[STW_PHASE_OPTIMIZER_STEP][STW_RESOURCE_PCIE_DOWN], 3);
    CHECK_NEAR(sim->busy_s[STW_PHASE_OPTIMIZER_STEP][STW_RESOURCE_HBM], 1);
    stw_sim_free(sim);
}

static void movements_follow_each_other(void) {
    set_up();
    append(STW_OP_COPY, STW_STREAM_H2D, 2 * GB, NONE, NONE);
    end_movement(STW_PHASE_LOAD);
    end_movement(STW_PHASE_FORWARD_BACKWARD); /* empty: no time, but a phase */
    append(STW_OP_COPY, STW_STREAM_D2H, GB, 0, NONE);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(&job, &program, &sim, err));
    if (sim == NULL) return;
    CHECK_NEAR(stw_sim_phase_seconds(sim, STW_PHASE_LOAD), 2);
    CHECK_NEAR(stw_sim_phase_seconds(sim, STW_PHASE_FORWARD_BACKWARD), 0);
    CHECK_NEAR(sim->phase_start_s[STW_PHASE_OPTIMIZER_STEP], 2);
    CHECK_NEAR(sim->phase_end_s[STW_PHASE_OPTIMIZER_STEP], 3);
    CU_ASSERT(isnan(stw_sim_phase_seconds(sim, STW_PHASE_CHECKPOINT)));
    stw_sim_free(sim);
}

static void check_same_peaks(const stw_sim *sim) {
    static stw_peaks walk;
    stw_program_walk(&program, &walk);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        CU_ASSERT_EQUAL(walk.has[p], sim->peaks.has[p]);
        for (unsigned t = 0; t < STW_N_TIERS; t++)
            CU_ASSERT(memcmp(&walk.phase[p][t], &sim->peaks.phase[p][t], sizeof(stw_peak)) == 0);
    }
}

/* Peaks by hand, and equal to the walk's: list order is accounting order even where another stream
 * runs ahead in time. */
static void peaks_are_those_of_the_walk(void) {
    set_up();
    bytes_op(STW_OP_ALLOC, STW_COMPONENT_PARAMS, STW_TIER_GPU, 1000);
    bytes_op(STW_OP_ALLOC, STW_COMPONENT_EXP_AVG, STW_TIER_HOST, 500);
    uint32_t copy = append(STW_OP_COPY, STW_STREAM_H2D, GB, NONE, NONE);
    end_movement(STW_PHASE_LOAD);
    bytes_op(STW_OP_ALLOC, STW_COMPONENT_STAGE, STW_TIER_GPU, 30);
    uint32_t early = append(STW_OP_ALLOC, STW_STREAM_COMM, 7, NONE, NONE);
    ops[early].component = STW_COMPONENT_REDUCE;
    ops[early].from = ops[early].to = STW_TIER_GPU;
    append(STW_OP_UPDATE, STW_STREAM_COMPUTE, GB, copy, NONE);
    bytes_op(STW_OP_FREE, STW_COMPONENT_STAGE, STW_TIER_GPU, 30);
    bytes_op(STW_OP_ALLOC, STW_COMPONENT_STAGE, STW_TIER_GPU, 20);
    bytes_op(STW_OP_FREE, STW_COMPONENT_STAGE, STW_TIER_GPU, 20);
    end_movement(STW_PHASE_OPTIMIZER_STEP);
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(&job, &program, &sim, err));
    if (sim == NULL) return;
    const stw_peak *step = sim->peaks.phase[STW_PHASE_OPTIMIZER_STEP];
    CU_ASSERT_EQUAL(sim->peaks.phase[STW_PHASE_LOAD][STW_TIER_GPU].total, 1000);
    CU_ASSERT_EQUAL(step[STW_TIER_GPU].total, 1037);
    CU_ASSERT_EQUAL(step[STW_TIER_GPU].components[STW_COMPONENT_STAGE], 30);
    CU_ASSERT_EQUAL(step[STW_TIER_GPU].components[STW_COMPONENT_REDUCE], 7);
    CU_ASSERT_EQUAL(step[STW_TIER_HOST].total, 500);
    CU_ASSERT_FALSE(sim->peaks.has[STW_PHASE_CHECKPOINT]);
    check_same_peaks(sim);
    stw_sim_free(sim);
}

/* Any stream, any two earlier operations to wait for, allocs and frees in between. */
static void build_random(uint32_t n) {
    static const stw_stream streams[] = {STW_STREAM_H2D, STW_STREAM_D2H, STW_STREAM_COMPUTE,
                                         STW_STREAM_CPU};
    set_up();
    cluster.pcie.both_bps = 0.7e9;
    cluster.host.bandwidth_bps = 20e9;
    cluster.pcie.latency_s = random_below(2) > 0 ? 0.01 : 0;
    uint64_t held = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (random_below(5) == 0) {
            bool frees = held > 0 && random_below(2) > 0;
            bytes_op(frees ? STW_OP_FREE : STW_OP_ALLOC, STW_COMPONENT_STAGE, STW_TIER_GPU,
                     frees ? held : 1 + random_below(1000));
            held = frees ? 0 : held + ops[i].bytes;
            continue;
        }
        stw_stream stream = streams[random_below(4)];
        bool update = stream == STW_STREAM_COMPUTE || stream == STW_STREAM_CPU;
        uint32_t after = i > 0 && random_below(2) > 0 ? (uint32_t)random_below(i) : NONE;
        append(update ? STW_OP_UPDATE : STW_OP_COPY, stream, (1 + random_below(30)) * GB / 10,
               after, i > 3 ? i - 1 - (uint32_t)random_below(3) : NONE);
    }
    end_movement(STW_PHASE_OPTIMIZER_STEP);
}

static void check_random(const stw_sim *sim) {
    double alone = 0, busiest = 0, last[STW_N_STREAMS] = {0};
    for (uint32_t i = 0; i < program.n_ops; i++) {
        stw_demand demand;
        stw_demand_op(&job, &ops[i], &demand);
        double least = stw_demand_alone_s(&demand);
        alone += least;
        CU_ASSERT(sim->ops[i].end_s - sim->ops[i].start_s > least - 1e-9);
        CU_ASSERT(sim->ops[i].start_s >= last[ops[i].stream]);
        last[ops[i].stream] = sim->ops[i].end_s;
        for (int k = 0; k < 2; k++)
            if (ops[i].after[k] != NONE)
                CU_ASSERT(sim->ops[i].start_s >= sim->ops[ops[i].after[k]].end_s);
    }
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        busiest = fmax(busiest, sim->busy_s[STW_PHASE_OPTIMIZER_STEP][r]);
    double seconds = stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP);
    CU_ASSERT(seconds <= alone + 1e-6);   /* somebody always works */
    CU_ASSERT(seconds >= busiest - 1e-6); /* nothing is done faster than its resource allows */
}

static void random_programs_keep_the_rules(void) {
    for (int round = 0; round < 100; round++) {
        build_random(1 + (uint32_t)random_below(200));
        stw_sim *sim = NULL;
        CHECK_OK(stw_sim_run(&job, &program, &sim, err));
        if (sim == NULL) return;
        check_random(sim);
        check_same_peaks(sim);
        stw_sim_free(sim);
    }
}

static void fifty_thousand_operations_are_quick(void) {
    clock_t start = clock();
    CU_ASSERT_DOUBLE_EQUAL(ring(17000, 3, GB, GB, GB), 17002, 1e-4);
    CU_ASSERT((double)(clock() - start) / CLOCKS_PER_SEC < 5);
}

static void bad_programs_are_refused(void) {
    stw_sim *sim = NULL;
    set_up();
    append(STW_OP_COPY, STW_STREAM_H2D, GB, 1, NONE);
    append(STW_OP_COPY, STW_STREAM_D2H, GB, 0, NONE);
    end_movement(STW_PHASE_LOAD);
    CHECK_FAILS(stw_sim_run(&job, &program, &sim, err), STW_STATUS_BUG, "waits for operation 1");
    CU_ASSERT_PTR_NULL(sim);
    set_up();
    append(STW_OP_COPY, STW_STREAM_H2D, GB, 0, NONE);
    end_movement(STW_PHASE_LOAD);
    CHECK_FAILS(stw_sim_run(&job, &program, &sim, err), STW_STATUS_BUG, "expected an earlier one");
    set_up();
    append(STW_OP_COPY, STW_N_STREAMS, GB, NONE, NONE);
    end_movement(STW_PHASE_LOAD);
    CHECK_FAILS(stw_sim_run(&job, &program, &sim, err), STW_STATUS_BUG, "no stream");
    set_up();
    append(STW_OP_COPY, STW_STREAM_H2D, GB, NONE, NONE);
    end_movement(STW_PHASE_LOAD);
    program.movements[0].n_ops = 2;
    CHECK_FAILS(stw_sim_run(&job, &program, &sim, err), STW_STATUS_BUG, "load");
    stw_sim_free(NULL);
}

STW_TEST_MAIN("sim program", {"ring of one slot is serial", ring_of_one_slot_is_serial},
              {"ring of two slots", ring_of_two_slots},
              {"ring of three slots", ring_of_three_slots},
              {"rings follow the recurrence", rings_follow_the_recurrence},
              {"both directions share the link", both_directions_share_the_link},
              {"shared link bounds the ring", shared_link_bounds_the_ring},
              {"ranks of a node share the host", ranks_of_a_node_share_the_host},
              {"CPU and copies share host memory", cpu_and_copies_share_host_memory},
              {"start-up comes before sharing", start_up_comes_before_sharing},
              {"waits and streams are kept", waits_and_streams_are_kept},
              {"movements follow each other", movements_follow_each_other},
              {"peaks are those of the walk", peaks_are_those_of_the_walk},
              {"random programs keep the rules", random_programs_keep_the_rules},
              {"fifty thousand operations are quick", fifty_thousand_operations_are_quick},
              {"bad programs are refused", bad_programs_are_refused})
