/* SPDX-License-Identifier: Apache-2.0 */
/* What a run says of the device and of memory that grows, on a backend whose figures the test makes
 * up; and the words in which a run is refused before it begins. */
#define _DEFAULT_SOURCE
#include <math.h>

#include "backend/executor/run.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)
static const fixture_size size = {2, 64, 128, 512};

static stw_plan *plan_on(uint32_t gpus, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 1, &(stw_place)FIXTURE_STREAM, &(uint32_t){UINT32_MAX});
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_executor_options options_of(uint32_t steps) {
    return (stw_executor_options){
        .backend = "host", .steps = steps, .seed = 3, .caller = lent_memory()};
}

static void same_words(const char *found, const char *expected, int line) {
    CU_ASSERT_STRING_EQUAL(found, expected);
    if (strcmp(found, expected) != 0)
        fprintf(stderr, "line %d: found    \"%s\"\n    expected \"%s\"\n", line, found, expected);
}
#define WORDS(found, expected) same_words(found, expected, __LINE__)

/* ---- the device ---- */

static stw_device_info told;
static void tell(stw_device *device, stw_device_info *out) {
    stw_backend_host.info(device, out);
    out->used_before = told.used_before;
    out->used_after_context = told.used_after_context;
    out->used_now = told.used_now;
    out->page_locked = told.page_locked;
    out->link_bytes = told.link_bytes;
}

static stw_backend backend_of(bool gpu) {
    stw_backend b = stw_backend_host;
    b.name = "told";
    b.gpu = gpu;
    b.info = tell;
    return b;
}

/* Bytes on the GPU beside the arena: those of the context, then those of everything else. */
static void bytes_beside_the_arena(void) {
    const uint64_t arena_less = 7 * MIB;
    stw_plan *plan = plan_on(1, NULL);
    const uint64_t arena = plan->layouts[0]->arena_bytes[STW_TIER_GPU];
    const struct {
        uint64_t before, after, now, context, comm;
    } cases[] = {{100 * MIB, 150 * MIB, 170 * MIB + arena, 50 * MIB, 20 * MIB},
                 {100 * MIB, 150 * MIB, 130 * MIB + arena, 30 * MIB, 0},
                 {100 * MIB, 150 * MIB, 150 * MIB + arena, 50 * MIB, 0},
                 {100 * MIB, 90 * MIB, 160 * MIB + arena, 0, 60 * MIB},
                 {100 * MIB, 150 * MIB, 100 * MIB + arena - arena_less, 0, 0},
                 {100 * MIB, 150 * MIB, 50 * MIB, 0, 0}};
    const stw_backend backend = backend_of(true);
    const stw_executor_options options = options_of(2);
    stw_peaks walk;
    stw_program_walk(plan->programs[0], &walk);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_result *result = NULL;
        told = (stw_device_info){.used_before = cases[i].before,
                                 .used_after_context = cases[i].after,
                                 .used_now = cases[i].now,
                                 .page_locked = 5 * MIB};
        CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(result);
        WORDS(result->backend, "told");
        const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FIRST_OPTIMIZER_STEP,
                                    STW_PHASE_OPTIMIZER_STEP};
        for (int p = 0; p < 3; p++) {
            const stw_measured *m = &result->ranks[0].phases[phases[p]];
            const uint64_t own = stw_peak_allocated(&walk.phase[phases[p]][STW_TIER_GPU]);
            CU_ASSERT_EQUAL(m->gpu_components[STW_COMPONENT_CONTEXT], cases[i].context);
            CU_ASSERT_EQUAL(m->gpu_components[STW_COMPONENT_COMM], cases[i].comm);
            CU_ASSERT_EQUAL(m->device, cases[i].context + cases[i].comm + own);
            CU_ASSERT_EQUAL(m->allocated, own);
            CU_ASSERT_EQUAL(m->reserved, arena);
            CU_ASSERT_EQUAL(m->page_locked, 5 * MIB);
        }
        CU_ASSERT_FALSE(result->ranks[0].phases[STW_PHASE_FORWARD_BACKWARD].known);
        stw_run_result_free(result);
    }
    stw_plan_free(plan);
}

static uint64_t process_bytes(const stw_plan *plan, bool gpu, uint64_t link_bytes) {
    const stw_backend backend = backend_of(gpu);
    stw_executor_options options = options_of(2);
    stw_run_result *result = NULL;
    told = (stw_device_info){.link_bytes = link_bytes};
    options.caller = NULL;
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    const stw_measured *m = &result->ranks[0].phases[STW_PHASE_LOAD];
    const uint64_t bytes = m->host_components[STW_COMPONENT_PROCESS];
    stw_peaks walk;
    stw_program_walk(plan->programs[0], &walk);
    const stw_peak *host = &walk.phase[STW_PHASE_LOAD][STW_TIER_HOST];
    CU_ASSERT_EQUAL(m->host, host->total - host->components[STW_COMPONENT_PROCESS] + bytes);
    stw_run_result_free(result);
    return bytes;
}

/* The process is what is resident and in no arena: that of a GPU is none of its memory. */
static void bytes_of_the_process(void) {
    stw_plan *plan = plan_on(1, NULL);
    const double arena = (double)plan->layouts[0]->arena_bytes[STW_TIER_GPU], near = 16.0 * MIB;
    const double host = (double)process_bytes(plan, false, 0);
    const double gpu = (double)process_bytes(plan, true, 0);
    const double linked = (double)process_bytes(plan, true, 48 * MIB);
    CU_ASSERT_TRUE(arena > 90.0 * MIB);
    CU_ASSERT_DOUBLE_EQUAL(gpu - host, arena, near);
    CU_ASSERT_DOUBLE_EQUAL(gpu - linked, 48.0 * MIB, near);
    stw_plan_free(plan);
}

/* ---- growth ---- */

static uint32_t iterations, fail_at = UINT32_MAX;
static stw_status after(void *state, stw_rank_run *run, uint32_t iteration, stw_error *err) {
    CU_ASSERT_PTR_EQUAL(state, &iterations);
    CU_ASSERT_EQUAL(iteration, iterations++);
    CU_ASSERT_EQUAL(run->step, iteration + 1);
    told.used_now = 1000 + (uint64_t)iteration * iteration;
    if (iteration == 41) told.used_now = 0;
    if (iteration == fail_at) return stw_fail(err, STW_STATUS_IO, "after", "it has failed");
    return STW_STATUS_OK;
}

static void growth_is_from_the_first_tenth_on(void) {
    static const struct {
        uint32_t steps;
        double growth; /* NaN: too few to tell */
    } cases[] = {{1, (double)NAN},  {2, (double)NAN},  {3, 4 - 1},        {9, 64 - 1},
                 {29, 28 * 28 - 1}, {30, 29 * 29 - 4}, {40, 39 * 39 - 9}, {42, 0}};
    const stw_backend backend = backend_of(true);
    stw_plan *plan = plan_on(1, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_executor_options options = options_of(cases[i].steps);
        stw_run_result *result = NULL;
        options.after_iteration = after;
        options.after_state = &iterations;
        options.no_digest = true;
        iterations = 0;
        CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(result);
        CU_ASSERT_EQUAL(iterations, cases[i].steps);
        if (isnan(cases[i].growth))
            CU_ASSERT_TRUE(isnan(result->gpu_growth_bytes) && isnan(result->host_growth_bytes))
        else
            CU_ASSERT_EQUAL(result->gpu_growth_bytes, cases[i].growth);
        CU_ASSERT_EQUAL(result->n_step_all, cases[i].steps);
        CU_ASSERT_EQUAL(result->checked, 0);
        WORDS(result->digest_of, "");
        for (int d = 0; d < STW_N_DIGESTS; d++) CU_ASSERT_EQUAL(result->digest[d], 0);
        stw_run_result_free(result);
    }
    stw_executor_options options = options_of(5);
    stw_run_result *result = NULL;
    options.after_iteration = after;
    options.after_state = &iterations;
    fail_at = 2;
    iterations = 0;
    CHECK_FAILS(stw_execute_with(plan, &options, &backend, &result, err), STW_STATUS_IO,
                "after: it has failed");
    CU_ASSERT_EQUAL(iterations, 3);
    fail_at = UINT32_MAX;
    stw_plan_free(plan);
}

/* ---- progress ---- */

static struct {
    char what[64];
    stw_progress_unit unit;
    uint64_t total, done;
} shown[32];
static unsigned n_shown, n_ended;
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total);
void __wrap_stw_progress_add(uint64_t count);
void __wrap_stw_progress_end(void);
void __wrap_stw_progress_phase(const char *what, stw_progress_unit unit, uint64_t total) {
    if (n_shown == 32) return; /* of another test */
    snprintf(shown[n_shown].what, sizeof shown[n_shown].what, "%s", what);
    shown[n_shown].unit = unit;
    shown[n_shown].total = total;
    shown[n_shown++].done = 0;
}
void __wrap_stw_progress_add(uint64_t count) {
    if (n_shown > 0) __atomic_fetch_add(&shown[n_shown - 1].done, count, __ATOMIC_RELAXED);
}
void __wrap_stw_progress_end(void) { n_ended++; }

/* All that a phase counts is done at its end. */
static void progress_is_that_of_the_work(void) {
    stw_plan *plan = plan_on(1, NULL);
    const uint64_t n = plan->model->params;
    const struct {
        const char *what;
        stw_progress_unit unit;
        uint64_t total;
    } expected[] = {{"taking memory", STW_PROGRESS_SECONDS, 0},
                    {"load", STW_PROGRESS_BYTES, 2 * n},
                    {"step 1 of 2, gradients", STW_PROGRESS_SHARE, n},
                    {"step 1 of 2", STW_PROGRESS_SHARE, n},
                    {"step 2 of 2, gradients", STW_PROGRESS_SHARE, n},
                    {"step 2 of 2", STW_PROGRESS_SHARE, n},
                    {"digest of the state", STW_PROGRESS_SHARE, 3 * n},
                    {"verification", STW_PROGRESS_SHARE, 0},
                    {"verification", STW_PROGRESS_SHARE, plan->model->n_tensors},
                    {"collecting results", STW_PROGRESS_SECONDS, 0}};
    const stw_executor_options options = options_of(2);
    stw_run_result *result = NULL;
    n_shown = n_ended = 0;
    CHECK_OK(stw_execute(plan, &options, &result, err));
    CU_ASSERT_EQUAL_FATAL(n_shown, sizeof expected / sizeof expected[0]);
    for (unsigned i = 0; i < n_shown; i++) {
        WORDS(shown[i].what, expected[i].what);
        CU_ASSERT_EQUAL(shown[i].unit, expected[i].unit);
        CU_ASSERT_EQUAL(shown[i].total, expected[i].total);
        CU_ASSERT_EQUAL(shown[i].done, shown[i].total);
        if (shown[i].done != expected[i].total)
            fprintf(stderr, "%s: %llu of %llu\n", shown[i].what, (unsigned long long)shown[i].done,
                    (unsigned long long)shown[i].total);
    }
    CU_ASSERT_EQUAL(n_ended, 1);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* ---- before it begins ---- */

static void refused(stw_plan *plan, const stw_executor_options *options, stw_status status,
                    const char *where, const char *text, int line) {
    stw_run_result *result = NULL;
    stw_error error = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_execute(plan, options, &result, &error), status);
    CU_ASSERT_PTR_NULL(result);
    same_words(error.where, where, line);
    same_words(error.text, text, line);
    stw_plan_free(plan);
}
#define REFUSED(...) refused(__VA_ARGS__, __LINE__)

#define NO_EFFECT "has no effect with load.method "

static void comparing_must_have_an_effect(void) {
    static const struct {
        stw_load load;
        uint32_t gpus;
        const char *weights, *text;
    } cases[] = {
        {STW_LOAD_SHARDED_READ, 2, NULL,
         NO_EFFECT "sharded_read: it needs --weights: random weights come from no file"},
        {STW_LOAD_SHARDED_READ, 1, "w",
         NO_EFFECT "sharded_read: the plan is for one rank, which has nobody to compare with"},
        {STW_LOAD_ALL_RANKS, 2, "w",
         NO_EFFECT "all_ranks: all ranks read everything, and compare it without this option"},
        {STW_LOAD_RANK0_BROADCAST, 2, "w",
         NO_EFFECT "rank0_broadcast: one rank, or one of each node, reads for all; several compare "
                   "without this option"},
        {STW_LOAD_NODE_LEADER, 2, "w",
         NO_EFFECT "node_leader: one rank, or one of each node, reads for all; several compare "
                   "without this option"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = plan_on(cases[i].gpus, NULL);
        stw_executor_options options = options_of(1);
        plan->decisions.load = cases[i].load;
        CHECK_OK(stw_plan_derive(plan, err));
        options.compare_weights = true;
        options.weights = cases[i].weights;
        REFUSED(plan, &options, STW_STATUS_USAGE, "--compare-weights", cases[i].text);
    }
    stw_executor_options options = options_of(1); /* it has one, and the next thing is looked at */
    stw_plan *plan = plan_on(2, NULL);
    plan->decisions.load = STW_LOAD_SHARDED_READ;
    CHECK_OK(stw_plan_derive(plan, err));
    options.compare_weights = true;
    options.weights = "w";
    REFUSED(plan, &options, STW_STATUS_DEVICE, "run",
            "the plan is for 2 ranks, the environment has 1; start 2 processes with mpirun, srun "
            "or torchrun");
}

static void plans_must_suit(void) {
    stw_executor_options options = options_of(0);
    REFUSED(plan_on(1, NULL), &options, STW_STATUS_USAGE, "--steps",
            "found 0, expected at least 1");
    options.steps = 1;
    static const char *const fsdp2[] = {"engine=fsdp2", NULL};
    REFUSED(plan_on(1, fsdp2), &options, STW_STATUS_NOT_BUILT_IN, "engine",
            "Stowage executes no part of this plan (engine fsdp2); plan with --set engine=stowage");
    static const char *const types[][2] = {{"precision.params=fp16", "precision.params"},
                                           {"precision.grads=fp16", "precision.grads"},
                                           {"precision.exp_avg=fp16", "precision.exp_avg"},
                                           {"precision.exp_avg_sq=fp16", "precision.exp_avg_sq"}};
    for (int i = 0; i < 4; i++) {
        const char *const settings[] = {types[i][0], NULL};
        REFUSED(plan_on(1, settings), &options, STW_STATUS_NOT_BUILT_IN, types[i][1],
                "found F16; this executor steps state in fp32 and bf16");
    }
    static const char *const twice[] = {"precision.master=fp32", NULL};
    REFUSED(plan_on(1, twice), &options, STW_STATUS_NOT_BUILT_IN, "precision.master",
            "found fp32 beside fp32 params, which are their own master; use precision.params: "
            "bf16, or precision.master: none");
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("STOWAGE_MPI_PLUGIN", "nowhere", 1);
    REFUSED(plan_on(1, NULL), &options, STW_STATUS_DEVICE, "mpirun",
            "the plan is for 1 ranks, the environment has 2; start 1 process with mpirun, srun or "
            "torchrun");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

/* The tiers of a node hold the arenas of all of its ranks, to the byte. */
static void nodes_must_have_the_bytes(void) {
    const stw_tier tiers[] = {STW_TIER_HOST, STW_TIER_NVME};
    for (int t = 0; t < 2; t++)
        for (uint64_t less = 0; less < 2; less++) {
            stw_executor_options options = options_of(1);
            stw_cluster cluster = fixture_cluster(1);
            stw_plan *plan = fixture_plan(size, &cluster, NULL);
            fixture_state(plan, 1, &(stw_place)FIXTURE_NVME, &(uint32_t){UINT32_MAX});
            CHECK_OK(stw_plan_derive(plan, err));
            options.nvme_in_memory = true;
            options.nvme_folder = ".";
            const uint64_t arena = plan->layouts[0]->arena_bytes[tiers[t]];
            if (t == 0)
                plan->cluster.host.limit_bytes -= stw_plan_host_capacity(plan) - arena + less;
            else
                plan->cluster.nvme.capacity_bytes = arena - less;
            if (t == 0) CU_ASSERT_EQUAL(stw_plan_host_capacity(plan), arena - less);
            stw_run_result *result = NULL;
            stw_error error = STW_ERROR_INIT;
            const stw_status status = stw_execute(plan, &options, &result, &error);
            CU_ASSERT_EQUAL(status, less == 0 ? STW_STATUS_OK : STW_STATUS_NO_RESOURCES);
            WORDS(error.where, less == 0 ? "" : stw_tier_name(tiers[t]));
            if (less > 0)
                CU_ASSERT_PTR_EQUAL(
                    strstr(error.text, "the state of the 1 rank of this node takes "), error.text);
            if (less > 0) CU_ASSERT_PTR_NOT_NULL(strstr(error.text, ", the plan's cluster has "));
            stw_run_result_free(result);
            stw_plan_free(plan);
        }
}

STW_TEST_MAIN("backend account", {"bytes beside the arena", bytes_beside_the_arena},
              {"bytes of the process", bytes_of_the_process},
              {"growth is from the first tenth on", growth_is_from_the_first_tenth_on},
              {"progress is that of the work", progress_is_that_of_the_work},
              {"comparing must have an effect", comparing_must_have_an_effect},
              {"plans must suit", plans_must_suit},
              {"nodes must have the bytes", nodes_must_have_the_bytes})
