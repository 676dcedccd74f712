/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator on programs of the engines: peaks equal to the walk's to the byte, times between
 * what resources and operations allow, and the ring's depth worth what it should be. */
#include <math.h>

#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};

static stw_plan *make_plan(uint32_t gpus, const char *engine, const stw_place *places, uint32_t n,
                           uint32_t depth) {
    const char *const settings[] = {engine, NULL};
    uint32_t units[STW_MAX_PLACES];
    stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    for (uint32_t i = 0; i < n; i++) units[i] = plan->job->n_units / n;
    fixture_state(plan, n, places, units);
    plan->decisions.prefetch.depth = depth;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_sim *simulate(const stw_plan *plan, uint32_t kind) {
    stw_sim *sim = NULL;
    CHECK_OK(stw_sim_run(plan->job, plan->programs[kind], &sim, err));
    return sim;
}

static void check_times(const stw_plan *plan, const stw_program *program, const stw_sim *sim) {
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        double seconds = stw_sim_phase_seconds(sim, movement->phase), alone = 0, busiest = 0;
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            stw_demand demand;
            stw_demand_op(plan->job, &program->ops[i], &demand);
            alone += stw_demand_alone_s(&demand);
        }
        for (unsigned r = 0; r < STW_N_RESOURCES; r++)
            busiest = fmax(busiest, sim->busy_s[movement->phase][r]);
        CU_ASSERT(seconds > 0);
        CU_ASSERT(seconds >= busiest * (1 - 1e-9));
        CU_ASSERT(seconds <= alone * (1 + 1e-9));
    }
}

static void check_plan(uint32_t gpus, const char *engine, const stw_place *places, uint32_t n) {
    stw_plan *plan = make_plan(gpus, engine, places, n, 3);
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        stw_sim *sim = simulate(plan, k);
        if (sim == NULL) continue;
        for (unsigned p = 0; p < STW_N_PHASES; p++) {
            CU_ASSERT_EQUAL(sim->peaks.has[p], plan->peaks[k].has[p]);
            CU_ASSERT_EQUAL(isnan(stw_sim_phase_seconds(sim, (stw_phase)p)) == 0,
                            plan->peaks[k].has[p]);
            for (unsigned t = 0; t < STW_N_TIERS; t++)
                CU_ASSERT(memcmp(&sim->peaks.phase[p][t], &plan->peaks[k].phase[p][t],
                                 sizeof(stw_peak)) == 0);
        }
        check_times(plan, plan->programs[k], sim);
        stw_sim_free(sim);
    }
    stw_plan_free(plan);
}

static void peaks_of_the_stowage_engine(void) {
    static const stw_place all[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_STREAM_ALL,
                                    FIXTURE_DIRECT,   FIXTURE_CPU,    FIXTURE_CPU_ALL,
                                    FIXTURE_NVME};
    for (uint32_t gpus = 1; gpus <= 4; gpus *= 2) {
        for (uint32_t i = 0; i < 7; i++) check_plan(gpus, "engine=stowage", &all[i], 1);
        check_plan(gpus, "engine=stowage", all, 7);
    }
}

static void peaks_of_the_fsdp2_engine(void) {
    static const stw_place resident[] = {FIXTURE_RESIDENT};
    for (uint32_t gpus = 1; gpus <= 4; gpus *= 2) check_plan(gpus, "engine=fsdp2", resident, 1);
}

static double step_seconds(const stw_place *place, uint32_t depth) {
    stw_plan *plan = make_plan(1, "engine=stowage", place, 1, depth);
    stw_sim *sim = simulate(plan, 0);
    double seconds = sim != NULL ? stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP) : NAN;
    stw_sim_free(sim);
    stw_plan_free(plan);
    return seconds;
}

/* One slot: each bucket goes up, is updated and comes down before the next one starts; the norm
 * comes before the first update and hides behind the first copies or not. */
static void depth_one_is_serial(void) {
    static const stw_place stream[] = {FIXTURE_STREAM};
    stw_plan *plan = make_plan(1, "engine=stowage", stream, 1, 1);
    const stw_program *program = plan->programs[0];
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    double copies = 0, updates = 0, norm = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        stw_demand demand;
        stw_demand_op(plan->job, &program->ops[i], &demand);
        double alone = stw_demand_alone_s(&demand);
        if (program->ops[i].kind == STW_OP_COPY) copies += alone;
        if (program->ops[i].kind == STW_OP_UPDATE) updates += alone;
        if (program->ops[i].kind == STW_OP_NORM || program->ops[i].kind == STW_OP_NORM_SUM)
            norm += alone;
    }
    double seconds = step_seconds(stream, 1);
    CU_ASSERT(copies > 0 && updates > 0);
    CU_ASSERT(seconds >= copies + updates - 1e-12);
    CU_ASSERT(seconds <= copies + updates + norm + 1e-12);
    stw_plan_free(plan);
}

static void deeper_rings_are_faster(void) {
    static const stw_place stream[] = {FIXTURE_STREAM};
    double one = step_seconds(stream, 1), two = step_seconds(stream, 2),
           three = step_seconds(stream, 3);
    CU_ASSERT(two < one && three <= two);
    double clip = 20e-6; /* before the first update, whatever the ring */
    CU_ASSERT((one - clip) / (three - clip) >
              1.5); /* up and down overlap; the link gives 45 of 50 GB/s each way */
}

/* Seconds of a step with all moments on NVMe; `both`: rate of reads and writes together. */
static double disk_seconds(uint32_t depth, double both) {
    static const stw_place nvme[] = {FIXTURE_NVME};
    stw_plan *plan = make_plan(1, "engine=stowage", nvme, 1, depth);
    plan->cluster.nvme.both_bps = both;
    stw_sim *sim = simulate(plan, 0);
    double seconds = sim != NULL ? stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP) : NAN;
    stw_sim_free(sim);
    stw_plan_free(plan);
    return seconds;
}

/* The fixture's disk reads 3 GB/s and writes 2. With one slot it does one thing at a time. With
 * more, a bucket is written while the next one is read: in turns where the disk can do no better;
 * at 4 GB/s together each keeps 0.8 of its speed while both go on, 5/12 s for 1 GB read, and what
 * is left of the write, a third of it, takes 1/6 s alone; at 5 GB/s the write decides. */
static void disk_reads_and_writes_overlap(void) {
    const fixture_size s = small;
    double gb = 8e-9 * (double)(s.vocab * s.hidden + s.hidden +
                                s.layers * (2 * s.hidden + 3 * s.hidden * s.hidden +
                                            3 * s.hidden * s.ffn)); /* each way */
    double turns = gb / 3 + gb / 2;
    CU_ASSERT(disk_seconds(1, 0) > turns * 1.02);
    CU_ASSERT(fabs(disk_seconds(1, 5e9) / disk_seconds(1, 0) - 1) < 1e-9);
    CU_ASSERT(fabs(disk_seconds(3, 0) / turns - 1) < 0.02);
    CU_ASSERT(fabs(disk_seconds(3, 4e9) / (gb * (5.0 / 12 + 1.0 / 6)) - 1) < 0.05);
    CU_ASSERT(fabs(disk_seconds(3, 5e9) / (gb / 2) - 1) < 0.08);
}

/* Direct updates of all moments take the link's time for them, and nothing else. */
static void direct_updates_take_the_link(void) {
    static const stw_place direct[] = {FIXTURE_DIRECT};
    stw_plan *plan = make_plan(1, "engine=stowage", direct, 1, 3);
    stw_sim *sim = simulate(plan, 0);
    if (sim != NULL) {
        double params = (double)plan->job->kinds[0].params;
        double want = 250e-6 + params * 4 / (0.8 * 4e12) + 10e-6 + params * 8 / (0.8 * 45e9);
        CU_ASSERT_DOUBLE_EQUAL(stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP), want, 1e-9);
    }
    stw_sim_free(sim);
    stw_plan_free(plan);
}

/* Seconds of a file are simulated again, whatever its checksums say. */
static void stated_seconds_are_held(void) {
    static const stw_place resident[] = {FIXTURE_RESIDENT};
    stw_plan *plan = make_plan(1, "engine=stowage", resident, 1, 3);
    CHECK_OK(stw_sim_plan(plan, NULL, err));
    CHECK_OK(stw_sim_check(plan, "plan.json", NULL, err));
    double load_s = plan->time_s[STW_PHASE_LOAD];
    plan->time_s[STW_PHASE_LOAD] = load_s * 1.001;
    CHECK_FAILS(stw_sim_check(plan, "plan.json", NULL, err), STW_STATUS_BAD_INPUT,
                "plan.json: time_s.load: found ");
    plan->time_s[STW_PHASE_LOAD] = (double)NAN;
    CHECK_FAILS(stw_sim_check(plan, "plan.json", NULL, err), STW_STATUS_BAD_INPUT,
                "time_s.load: found null");
    CU_ASSERT_EQUAL(plan->time_s[STW_PHASE_LOAD], load_s); /* what follows is kept */
    stw_plan_free(plan);
}

STW_TEST_MAIN("sim plan", {"stated seconds are held", stated_seconds_are_held},
              {"peaks of the stowage engine", peaks_of_the_stowage_engine},
              {"peaks of the fsdp2 engine", peaks_of_the_fsdp2_engine},
              {"depth one is serial", depth_one_is_serial},
              {"deeper rings are faster", deeper_rings_are_faster},
              {"disk reads and writes overlap", disk_reads_and_writes_overlap},
              {"direct updates take the link", direct_updates_take_the_link})
