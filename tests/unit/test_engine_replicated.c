/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that exists only here: params and grads are replicated, the optimizer's state is cut
 * into one contiguous range per rank, a step streams it through a window of its own and then sends
 * every rank's updated parameters to all. It is planned, simulated and run like the others, and
 * finds the bits of engine: stowage. */
#define _GNU_SOURCE
#include "backend/executor/executor.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/movements.h"
#include "plan/program/share.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/fixture.h"
#include "tests/unit/ranks.h"
#include "tests/unit/testing.h"

/* ---- the engine ---- */

static uint32_t itself(const stw_job *job, uint32_t rank) {
    (void)job;
    return rank;
}

static void range_of(const stw_job *job, uint32_t rank, uint64_t *first, uint64_t *end) {
    uint64_t each = stw_div_up_u64(job->model->params, job->world);
    *first = stw_min_u64(job->model->params, rank * each);
    *end = stw_min_u64(job->model->params, *first + each);
}

static stw_status cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t first = 0, end = job->model->params, global = 0;
    if (space == STW_SPACE_OPTIMIZER) range_of(job, rank, &first, &end);
    for (uint32_t t = 0; t < job->model->n_tensors; t++) {
        uint64_t numel = job->model->tensors[t].numel;
        uint64_t from = stw_max_u64(first, global), to = stw_min_u64(end, global + numel);
        if (from < to) STW_TRY(stw_space_add(out, t, global, from - global, to - from, err));
        global += numel;
    }
out:
    return status;
}

static bool counts(const stw_job *job, uint32_t space, uint32_t rank) {
    (void)job;
    return space == STW_SPACE_OPTIMIZER || rank == 0;
}

static uint32_t places(const stw_job *job, stw_place *out, stw_error *err) {
    static const stw_place all[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    uint32_t wish = job->run->placement.moments, n = 0;
    for (int i = 0; i < 2; i++)
        if (wish == STW_AUTO || wish == (uint32_t)all[i].moments) out[n++] = all[i];
    if (n == 0)
        (void)stw_fail(err, STW_STATUS_BAD_INPUT, "placement.moments", "expected gpu or host");
    return n;
}

/* Two slots, whatever the depth. */
static uint32_t ring(const stw_job *job, const stw_decisions *decisions, stw_ring_kind kind,
                     uint64_t *slot_bytes) {
    *slot_bytes = 0;
    for (uint32_t i = 0; kind == STW_RING_GPU && i < decisions->n_state; i++)
        if (stw_place_uses_ring(job, &decisions->state[i].place, kind))
            *slot_bytes = stw_ring_slot_bytes(job, &decisions->state[i].place, kind,
                                              decisions->prefetch.bucket_bytes);
    return *slot_bytes > 0 ? 2 : 0;
}

/* Updated parameters of one rank, in runs that are whole in the replicated space. */
static void send_range(stw_step *step, uint32_t rank) {
    stw_builder *b = step->b;
    const stw_space *params = &b->job->kinds[b->layout->kind].spaces[STW_SPACE_PARAMS];
    uint64_t element = stw_job_element_bytes(b->job, STW_COMPONENT_PARAMS);
    stw_space updated;
    stw_overlap run;
    b->status =
        stw_job_space(b->job, STW_SPACE_OPTIMIZER, rank, b->program->pool, &updated, b->err);
    if (b->status != STW_STATUS_OK) return;
    stw_meet meet = stw_meet_begin(stw_space_whole(&updated), stw_space_whole(params));
    while (stw_meet_next(&meet, &run)) {
        stw_op op = stw_op_make(STW_OP_SEND, STW_STREAM_COMM, STW_OP_NONE);
        op.component = STW_COMPONENT_PARAMS;
        op.from = op.to = STW_TIER_GPU;
        op.peer = rank;
        op.bytes = run.n * element;
        op.params = run.n;
        op.from_offset_bytes = op.offset_bytes =
            stw_layout_address(b->job, b->layout, STW_COMPONENT_PARAMS, run.b_first);
        op.after[0] = step->updated;
        (void)stw_append(b, op);
    }
}

static void build_step(stw_builder *b, stw_phase phase, stw_repeat repeat) {
    stw_step step;
    if (!stw_step_begin(&step, b, phase, repeat)) return;
    stw_step_buckets(&step);
    for (uint32_t rank = 0; b->job->world > 1 && rank < b->job->world; rank++)
        if (b->status == STW_STATUS_OK) send_range(&step, rank);
    stw_step_end(&step);
}

static bool every_region(const stw_region *region) {
    (void)region;
    return true;
}

static stw_status build(const stw_job *job, const stw_decisions *decisions,
                        const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_builder b;
    stw_builder_init(&b, job, decisions, layout, program, err);
    stw_begin_movement(&b, (stw_movement){.phase = STW_PHASE_LOAD,
                                          .by_stowage = true,
                                          .executable = true,
                                          .repeat = STW_REPEAT_ONCE,
                                          .threading = STW_THREADING_PER_STREAM,
                                          .barrier = true,
                                          .transfer = stw_load_transfer(&b)});
    stw_build_externals(&b);
    stw_build_regions(&b, true, every_region);
    if (job->world > 1)
        stw_alloc_at(&b, STW_COMPONENT_STAGE, STW_TIER_GPU, layout->comm_offset_bytes,
                     STW_COMM_SCRATCH_BYTES);
    stw_build_load(&b);
    stw_end_movement(&b);
    build_step(&b, STW_PHASE_FIRST_OPTIMIZER_STEP, STW_REPEAT_FIRST);
    build_step(&b, STW_PHASE_OPTIMIZER_STEP, STW_REPEAT_LATER);
    return stw_builder_finish(&b);
}

static const stw_engine replicated = {
    .spec = {.name = "replicated",
             .updates = 1u << STW_UPDATE_RESIDENT | 1u << STW_UPDATE_STREAM,
             .own_process = true,
             .own_step = true},
    .batch_bytes = stw_batch_bytes,
    .representative = itself,
    .cut = cut,
    .counts = counts,
    .places = places,
    .ring = ring,
    .build = build,
};

/* ---- plans ---- */

static const fixture_size size = {2, 64, 136, 515}; /* ranges end inside tensors */

typedef struct case_of {
    const char *name;
    uint32_t gpus;
    const char *const settings[7];
} case_of;

#define STEP "optimizer.clip_norm=0.5", "load.method=rank0_broadcast"
#define MASTER "precision.params=bf16", "precision.grads=bf16", "precision.master=fp32"
static const case_of cases[] = {
    {"stowage", 4, {STEP, NULL}},
    {"resident", 4, {STEP, "engine=replicated", "placement.moments=gpu", NULL}},
    {"streamed", 4, {STEP, "engine=replicated", "placement.moments=host", NULL}},
    {"alone", 1, {STEP, "engine=replicated", "placement.moments=host", NULL}},
    {"master", 4, {STEP, MASTER, NULL}},
    {"replicated-master", 4, {STEP, MASTER, "engine=replicated", NULL}},
};

static const case_of *case_named(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    exit(2);
}

/* As the planner decides. */
static stw_plan *planned(const char *name) {
    stw_error error = STW_ERROR_INIT;
    const case_of *c = case_named(name);
    stw_cluster cluster = fixture_cluster(c->gpus);
    stw_plan *plan = fixture_plan(size, &cluster, c->settings);
    stw_planner_options options = {.no_prices = true};
    if (stw_planner_solve(plan, &options, &error) != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", error.where, error.text);
        exit(70);
    }
    return plan;
}

static int be_rank(const char *name, const char *path) {
    stw_error err = STW_ERROR_INIT;
    stw_run_result *result = NULL;
    stw_plan *plan = planned(name);
    stw_executor_options options = {.backend = "host", .steps = 3, .seed = 5, .timeout_s = 30.0};
    stw_status status = stw_execute(plan, &options, &result, &err);
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "[%d] %s: %s\n", err.rank, err.where, err.text);
        _exit(stw_status_exit_code(status));
    }
    if (result != NULL) {
        FILE *file = fopen(path, "w");
        for (int i = 0; i < STW_N_DIGESTS; i++)
            fprintf(file, "%016llx ", (unsigned long long)result->digest[i]);
        fprintf(file, "%llu %.17g\n", (unsigned long long)result->mismatched, result->grad_norm);
        fclose(file);
    }
    stw_run_result_free(result);
    stw_plan_free(plan);
    return 0;
}

/* ---- tests ---- */

static void spaces_are_cut_apart(void) {
    stw_plan *plan = planned("streamed");
    const stw_job *job = plan->job;
    uint64_t updated = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        const stw_rank_kind *kind = &job->kinds[k];
        CU_ASSERT_EQUAL(kind->spaces[STW_SPACE_PARAMS].n, plan->model->params);
        CU_ASSERT_EQUAL(kind->spaces[STW_SPACE_GRADS].n, plan->model->params);
        updated += kind->n_ranks * kind->spaces[STW_SPACE_OPTIMIZER].n;
        const stw_peak *step = &plan->peaks[k].phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU];
        CU_ASSERT_EQUAL(step->components[STW_COMPONENT_PARAMS], 4 * plan->model->params);
        const stw_peak *host = &plan->peaks[k].phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_HOST];
        CU_ASSERT_EQUAL(host->components[STW_COMPONENT_EXP_AVG],
                        4 * kind->spaces[STW_SPACE_OPTIMIZER].n);
        CU_ASSERT_EQUAL(plan->layouts[k]->rings[STW_RING_GPU].slots, 2);
    }
    CU_ASSERT_EQUAL(updated, plan->model->params);
    CHECK_OK(stw_plan_check(plan, true, err));
    stw_plan_free(plan);
}

static void it_is_planned_and_simulated(void) {
    static const char *const names[] = {"resident", "streamed", "alone", "replicated-master"};
    for (int i = 0; i < 4; i++) {
        stw_plan *plan = planned(names[i]);
        stw_sim *sim = NULL;
        CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_OPTIMAL);
        CHECK_OK(stw_sim_run(plan->job, plan->programs[0], &sim, err));
        CU_ASSERT_TRUE(stw_sim_phase_seconds(sim, STW_PHASE_OPTIMIZER_STEP) > 0);
        stw_sim_free(sim);
        stw_plan_free(plan);
    }
}

static void its_bits_are_those_of_stowage(void) {
    static const char *const names[] = {"resident", "streamed"};
    char expected[300], found[300];
    CU_ASSERT_EQUAL(ranks_start(4, "stowage", "stowage"), 0);
    ranks_read("stowage", expected, sizeof expected);
    CU_ASSERT_TRUE(strlen(expected) > 17 * STW_N_DIGESTS);
    CU_ASSERT_PTR_NOT_NULL(strstr(expected, " 0 ")); /* nothing differs from its replay */
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(ranks_start(4, names[i], names[i]), 0);
        ranks_read(names[i], found, sizeof found);
        CU_ASSERT_STRING_EQUAL(found, expected);
    }
    CU_ASSERT_EQUAL(ranks_start(1, "alone", "alone"), 0);
    ranks_read("alone", found, sizeof found);
    CU_ASSERT_STRING_EQUAL(found, expected);
    CU_ASSERT_EQUAL(ranks_start(4, "master", "master"), 0);
    ranks_read("master", expected, sizeof expected);
    CU_ASSERT_EQUAL(ranks_start(4, "replicated-master", "replicated-master"), 0);
    ranks_read("replicated-master", found, sizeof found);
    CU_ASSERT_STRING_EQUAL(found, expected);
}

int main(int argc, char **argv) {
    static const stw_test tests[] = {
        {"spaces are cut apart", spaces_are_cut_apart},
        {"it is planned and simulated", it_is_planned_and_simulated},
        {"its bits are those of stowage", its_bits_are_those_of_stowage},
    };
    if (stw_engine_register(&replicated, NULL) != STW_STATUS_OK) return 2;
    if (argc == 4 && strcmp(argv[1], "rank") == 0) return be_rank(argv[2], argv[3]);
    if (!ranks_prepare()) {
        printf("no mpirun or no plugin: skipped\n");
        return 77;
    }
    return stw_test_run_all("engine replicated", tests, sizeof tests / sizeof tests[0]);
}
