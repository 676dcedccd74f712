/* SPDX-License-Identifier: Apache-2.0 */
/* The executor on the host backend: where state lies, how it was loaded and in which buckets it is
 * stepped changes no bit; what is measured is what the program says. What fails is
 * unit.backend_failing's. */
#define _DEFAULT_SOURCE /* mkstemps, setenv */
#include <math.h>
#include <unistd.h>

#include "backend/executor/run.h"
#include "backend/host/kernels.h"
#include "backend/norm.h"
#include "backend/process.h"
#include "core/log.h"
#include "plan/files/plan_terms.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"
#include "tests/unit/weights_file.h"

static const fixture_size small_size = {2, 64, 128, 512};
static const fixture_size middle_size = {3, 256, 512, 2000};

static stw_executor_options options_of(uint32_t steps) {
    stw_executor_options o = {.backend = "host",
                              .steps = steps,
                              .seed = 11,
                              .nvme_in_memory = true,
                              .caller = lent_memory()};
    return o;
}

static stw_plan *plan_of(fixture_size size, const char *const *settings, uint32_t n,
                         const stw_place *places, const uint32_t *units) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, n, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static const stw_place resident[] = {FIXTURE_RESIDENT};
static const uint32_t all_units[] = {UINT32_MAX};

/* ---- the same bits whatever the placement ---- */

static float kept(stw_dtype dtype, float value) {
    return dtype == STW_DTYPE_BF16 ? stw_float_from_bf16(stw_bf16_from_float(value)) : value;
}
static uint32_t kept_bits(stw_dtype dtype, float value) {
    return dtype == STW_DTYPE_BF16 ? stw_bf16_from_float(value) : stw_bits_from_float(value);
}

/* The tensor in which an element of the model lies. */
static uint32_t tensor_of(const stw_model *model, uint64_t element) {
    uint32_t t = 0;
    for (uint64_t end = model->tensors[0].numel; element >= end;) end += model->tensors[++t].numel;
    return t;
}

static stw_other_grad other_grad; /* of the replay, as in options */

static float grad_at(uint64_t seed, uint64_t step, uint64_t element) {
    bool other = step == other_grad.step && element == other_grad.element;
    return other ? other_grad.value : stw_seeded_grad(seed, step, element);
}

/* The whole run again, element by element, without layout, buckets or backend. */
static void replay(const stw_plan *plan, uint32_t steps, uint64_t seed,
                   uint64_t digest[STW_N_DIGESTS], double *norm) {
    uint64_t n = plan->model->params;
    const stw_run_spec *run = &plan->run;
    float *p = malloc(n * 4), *g = malloc(n * 4), *m = calloc(n, 4), *v = calloc(n, 4);
    float *w = malloc(n * 4);
    for (uint64_t i = 0; i < n; i++) p[i] = w[i] = stw_seeded_weight(seed, i);
    for (uint32_t step = 1; step <= steps; step++) {
        stw_norm_bins bins;
        memset(&bins, 0, sizeof bins);
        for (uint64_t i = 0; i < n; i++) g[i] = kept(run->precision.grads, grad_at(seed, step, i));
        stw_host_norm_add(NULL, g, STW_ELEMENT_F32, n, &bins);
        *norm = stw_norm_value(&bins);
        double clip = run->optimizer.clip_norm;
        float factor = clip > 0.0 ? stw_norm_clip_factor(*norm, clip) : 1.0f;
        stw_adamw a =
            stw_adamw_make(run->optimizer.lr, run->optimizer.beta1, run->optimizer.beta2,
                           run->optimizer.eps, run->optimizer.weight_decay, step, clip > 0.0);
        if (run->optimizer.n_groups > 0)
            stw_adamw_set_group(&a, 1, run->optimizer.lr, run->optimizer.groups[0].weight_decay,
                                step);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t group = stw_job_param_group(plan->job, tensor_of(plan->model, i));
            stw_adamw_element(&a, a.groups[group], factor, &w[i], g[i], &m[i], &v[i]);
            p[i] = kept(run->precision.params, w[i]);
            if (!run->precision.has_master) w[i] = p[i];
            m[i] = kept(run->precision.exp_avg, m[i]);
            v[i] = kept(run->precision.exp_avg_sq, v[i]);
        }
    }
    memset(digest, 0, STW_N_DIGESTS * sizeof *digest);
    for (uint64_t i = 0; i < n; i++) {
        digest[0] += stw_digest_element(i, kept_bits(run->precision.params, p[i]));
        digest[1] += stw_digest_element(i, kept_bits(run->precision.exp_avg, m[i]));
        digest[2] += stw_digest_element(i, kept_bits(run->precision.exp_avg_sq, v[i]));
        if (run->precision.has_master)
            digest[3] += stw_digest_element(i, stw_bits_from_float(w[i]));
    }
    free(p);
    free(g);
    free(m);
    free(v);
    free(w);
}

static void check_result(const stw_run_result *result, const uint64_t digest[STW_N_DIGESTS]) {
    for (int i = 0; i < STW_N_DIGESTS; i++) CU_ASSERT_EQUAL(result->digest[i], digest[i]);
    CU_ASSERT_EQUAL(result->mismatched, 0);
    CU_ASSERT_TRUE(result->checked >= 1000);
}

static void check_run(stw_plan *plan, const stw_executor_options *options,
                      const uint64_t digest[STW_N_DIGESTS]) {
    stw_run_result *result = NULL;
    CHECK_OK(stw_execute(plan, options, &result, err));
    if (result != NULL) check_result(result, digest);
    stw_run_result_free(result);
}

static void be_quiet(stw_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

/* @param other NULL: no gradient is replaced */
static void run_in_every_place(fixture_size size, const stw_other_grad *other) {
    static const stw_place stream[] = {FIXTURE_STREAM};
    static const stw_place stream_all[] = {FIXTURE_STREAM_ALL};
    static const stw_place cpu[] = {FIXTURE_CPU};
    static const stw_place cpu_all[] = {FIXTURE_CPU_ALL};
    static const stw_place nvme[] = {FIXTURE_NVME};
    static const stw_place direct[] = {FIXTURE_DIRECT};
    static const stw_place mixed[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_STREAM_ALL,
                                      FIXTURE_CPU, FIXTURE_CPU_ALL};
    static const stw_place mixed_direct[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_DIRECT,
                                             FIXTURE_CPU};
    static const stw_place mixed_nvme[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU,
                                           FIXTURE_NVME};
    static const uint32_t shares[] = {120, 90, 110, 81, 0};
    static const struct {
        uint32_t n;
        const stw_place *places;
        uint32_t depth;
        uint64_t bucket_bytes;
    } cases[] = {
        {1, resident, 1, 1 << 20}, {1, stream, 3, 1 << 20},      {1, stream_all, 2, 1 << 20},
        {1, cpu, 3, 1 << 20},      {1, cpu_all, 1, 1 << 20},     {1, nvme, 3, 1 << 20},
        {5, mixed, 2, 1 << 20},    {4, mixed_nvme, 3, 1 << 20},  {4, mixed_nvme, 1, 2 << 20},
        {1, direct, 1, 1 << 20},   {4, mixed_direct, 2, 1 << 20}};
    static const char *const settings[] = {"optimizer.clip_norm=0.5", NULL};
    stw_executor_options options = options_of(5);
    uint64_t digest[STW_N_DIGESTS] = {0};
    double norm = 0.0;
    other_grad = options.other_grad = other != NULL ? *other : (stw_other_grad){0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_cluster cluster = fixture_cluster(1);
        stw_plan *plan = fixture_plan(size, &cluster, settings);
        fixture_state(plan, cases[i].n, cases[i].places, shares);
        plan->decisions.prefetch.depth = cases[i].depth;
        plan->decisions.prefetch.bucket_bytes = cases[i].bucket_bytes;
        CHECK_OK(stw_plan_derive(plan, err));
        if (i == 0) replay(plan, 5, 11, digest, &norm);
        CU_ASSERT_TRUE(!(norm <= 0.5)); /* or clipping would be no test */
        check_run(plan, &options, digest);
        stw_plan_free(plan);
    }
    other_grad = (stw_other_grad){0};
}

static void placement_changes_no_bit(void) { run_in_every_place(middle_size, NULL); }

/* Nor does it where a gradient is no number. */
static void placement_changes_no_nan(void) {
    static const stw_other_grad others[] = {
        {3, 12345, (float)NAN}, {5, 0, (float)INFINITY}, {2, 100001, -(float)INFINITY}};
    stw_log_set(be_quiet, NULL);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        run_in_every_place(small_size, &others[i]);
    stw_log_set(NULL, NULL);
}

static void precision_is_kept_in_every_place(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM,  FIXTURE_DIRECT,
                                       FIXTURE_CPU,      FIXTURE_CPU_ALL, FIXTURE_NVME};
    static const stw_place all_stream[] = {FIXTURE_STREAM_ALL};
    static const uint32_t units[] = {10, 10, 10, 8, 7, 0};
    static const char *const cases[][6] = {
        {"precision.params=bf16", "precision.master=fp32", "precision.grads=bf16", NULL},
        {"precision.params=bf16", "precision.master=fp32", NULL},
        {"precision.exp_avg=bf16", "precision.exp_avg_sq=bf16", NULL},
        {"precision.exp_avg=bf16", "precision.grads=bf16", NULL},
        {"precision.params=bf16", "precision.grads=bf16", NULL},
        {"precision.params=bf16", "precision.master=fp32", "precision.exp_avg=bf16",
         "precision.exp_avg_sq=bf16", "precision.grads=bf16", NULL}};
    stw_executor_options options = options_of(3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t digest[STW_N_DIGESTS];
        double norm = 0.0;
        stw_plan *plan = plan_of(small_size, cases[i], 6, places, units);
        replay(plan, 3, 11, digest, &norm);
        check_run(plan, &options, digest);
        stw_plan_free(plan);
        plan = plan_of(small_size, cases[i], 1, all_stream, all_units);
        check_run(plan, &options, digest);
        stw_plan_free(plan);
    }
}

/* Tensors of one dimension without weight decay: the table of spans has many entries. */
static void groups_have_their_own_rates(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_DIRECT,
                                       FIXTURE_CPU};
    static const uint32_t units[] = {9, 11, 10, 0};
    static const char *const settings[] = {"optimizer.groups=[{match: [1d], weight_decay: 0}]",
                                           "optimizer.weight_decay=0.3", NULL};
    static const char *const none[] = {"optimizer.weight_decay=0.3", NULL};
    stw_executor_options options = options_of(3);
    uint64_t digest[STW_N_DIGESTS], without[STW_N_DIGESTS];
    double norm = 0.0;
    stw_plan *plan = plan_of(small_size, none, 4, places, units);
    replay(plan, 3, 11, without, &norm);
    stw_plan_free(plan);
    plan = plan_of(small_size, settings, 4, places, units);
    replay(plan, 3, 11, digest, &norm);
    CU_ASSERT_NOT_EQUAL(digest[0], without[0]);
    check_run(plan, &options, digest);
    stw_plan_free(plan);
}

static void without_clipping(void) {
    static const char *const settings[] = {"optimizer.clip_norm=0", NULL};
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    static const uint32_t units[] = {30, 0};
    stw_executor_options options = options_of(2);
    stw_plan *plan = plan_of(small_size, settings, 2, places, units);
    uint64_t digest[STW_N_DIGESTS];
    double norm = 0.0;
    replay(plan, 2, 11, digest, &norm);
    check_run(plan, &options, digest);
    stw_plan_free(plan);
}

/* ---- loading ---- */

static void write_weights(const stw_model *model, uint64_t seed, const char *path, bool shorten) {
    static const stw_dtype bf16 = STW_DTYPE_BF16;
    weights_write_part(model, seed, path, 0, model->n_tensors, &bf16, 1, shorten ? 1 : UINT32_MAX);
}

static void load_method_changes_no_bit(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_CPU_ALL};
    static const uint32_t units[] = {20, 0};
    static const stw_load methods[] = {STW_LOAD_ALL_RANKS, STW_LOAD_RANK0_BROADCAST,
                                       STW_LOAD_NODE_LEADER, STW_LOAD_SHARDED_READ};
    uint64_t digest[STW_N_DIGESTS];
    double norm = 0.0;
    char path[] = "weights-XXXXXX.safetensors";
    close(mkstemps(path, 12));
    for (int m = 0; m < 4; m++) {
        stw_plan *plan = plan_of(small_size, NULL, 2, places, units);
        stw_executor_options options = options_of(2);
        plan->decisions.load = methods[m];
        CHECK_OK(stw_plan_derive(plan, err));
        if (m == 0) replay(plan, 2, 11, digest, &norm);
        if (m == 0) write_weights(plan->model, 11, path, false);
        check_run(plan, &options, digest);
        options.weights = path;
        check_run(plan, &options, digest);
        options.seed = 12; /* other gradients: the digest must notice */
        stw_run_result *result = NULL;
        CHECK_OK(stw_execute(plan, &options, &result, err));
        if (result != NULL) CU_ASSERT_NOT_EQUAL(result->digest[0], digest[0]);
        stw_run_result_free(result);
        stw_plan_free(plan);
    }
    unlink(path);
}

static void bad_weights_are_named(void) {
    stw_plan *plan = plan_of(small_size, NULL, 1, resident, all_units);
    stw_executor_options options = options_of(1);
    stw_run_result *result = NULL;
    char path[] = "weights-XXXXXX.safetensors";
    close(mkstemps(path, 12));
    options.weights = path;
    write_weights(plan->model, 11, path, true);
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_BAD_INPUT, "has shape");
    const char *name = plan->model->tensors[3].name;
    plan->model->tensors[3].name = "absent.weight";
    write_weights(plan->model, 11, path, false);
    plan->model->tensors[3].name = name;
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_BAD_INPUT, name);
    options.weights = "no-such-file.safetensors";
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_IO, "no-such-file");
    CU_ASSERT_PTR_NULL(result);
    unlink(path);
    stw_plan_free(plan);
}

/* ---- what is measured ---- */

#ifdef __SANITIZE_THREAD__
#define PROCESS_MOST (16ull << 30) /* the sanitizer's shadow of the arenas counts */
#else
#define PROCESS_MOST (300ull << 20)
#endif

static void measured_bytes_are_the_walk(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};
    static const uint32_t units[] = {20, 20, 0};
    stw_plan *plan = plan_of(middle_size, NULL, 3, places, units);
    stw_executor_options options = options_of(3);
    stw_run_result *result = NULL;
    stw_peaks walk;
    options.caller = NULL;
    stw_program_walk(plan->programs[0], &walk);
    CHECK_OK(stw_execute(plan, &options, &result, err));
    static const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FIRST_OPTIMIZER_STEP,
                                       STW_PHASE_OPTIMIZER_STEP};
    for (int i = 0; i < 3 && result != NULL; i++) {
        const stw_measured *m = &result->ranks[0].phases[phases[i]];
        const stw_peak *gpu = &walk.phase[phases[i]][STW_TIER_GPU];
        const stw_peak *host = &walk.phase[phases[i]][STW_TIER_HOST];
        CU_ASSERT_TRUE(m->known);
        CU_ASSERT_EQUAL(m->allocated, stw_peak_allocated(gpu));
        CU_ASSERT_EQUAL(m->device, 0);
        for (int c = 0; c < STW_N_COMPONENTS; c++) {
            if (c == STW_COMPONENT_CONTEXT || c == STW_COMPONENT_PROCESS) continue;
            CU_ASSERT_EQUAL(m->gpu_components[c], gpu->components[c]);
            CU_ASSERT_EQUAL(m->host_components[c], host->components[c]);
        }
        uint64_t process = m->host_components[STW_COMPONENT_PROCESS];
        CU_ASSERT_EQUAL(m->host - process, host->total - host->components[STW_COMPONENT_PROCESS]);
        CU_ASSERT_TRUE(process > 100000 && process < PROCESS_MOST);
        CU_ASSERT_TRUE(result->time_s[phases[i]] > 0.0);
    }
    CU_ASSERT_FALSE(result->not_run[STW_PHASE_OPTIMIZER_STEP]);
    CU_ASSERT_TRUE(result->not_run[STW_PHASE_FORWARD_BACKWARD]);
    CU_ASSERT_TRUE(isnan(result->time_s[STW_PHASE_FORWARD_BACKWARD]));
    CU_ASSERT_EQUAL(result->n_step_all, 3);
    CU_ASSERT_EQUAL(result->nodes[0].host[STW_PHASE_LOAD],
                    result->ranks[0].phases[STW_PHASE_LOAD].host);
    stw_plan_terms terms = STW_PLAN_TERMS_INIT;
    CHECK_OK(stw_plan_terms_of(plan, &terms, err));
    CU_ASSERT_STRING_EQUAL(result->plan_hash, terms.hash);
    CU_ASSERT_STRING_EQUAL(result->plan_terms, terms.lines.data);
    stw_text_free(&terms.lines);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* ---- the time line ---- */

static double marked_s[4096];

static stw_status note_mark(stw_device *d, stw_stream stream, uint32_t mark, stw_error *err) {
    (void)d;
    (void)err;
    CU_ASSERT_TRUE_FATAL(mark < sizeof marked_s / sizeof marked_s[0] && stw_stream_is_gpu(stream));
    marked_s[mark] = stw_process_now_s();
    return STW_STATUS_OK;
}

static stw_status between_marks(stw_device *d, uint32_t from, uint32_t to, double *seconds,
                                stw_error *err) {
    (void)d;
    (void)err;
    *seconds = marked_s[to] - marked_s[from];
    return STW_STATUS_OK;
}

#define CLOCKS_S 5e-5 /* between the one of marks and the host's */

/* Every operation of the movement was run once what it names had ended, streams in order. */
static void check_times(const stw_program *program, const stw_movement *movement,
                        const stw_timeline *t) {
    double free_from_s[STW_N_STREAMS] = {0};
    unsigned early = 0, unknown = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        unknown += !isfinite(t->start_s[i]) || !isfinite(t->end_s[i]);
        early += t->end_s[i] < t->start_s[i] || t->start_s[i] + CLOCKS_S < free_from_s[op->stream];
        for (int a = 0; a < 2; a++)
            early +=
                op->after[a] != STW_OP_NONE && t->start_s[i] + CLOCKS_S < t->end_s[op->after[a]];
        free_from_s[op->stream] = t->end_s[i];
        early += t->end_s[i] > t->length_s + CLOCKS_S;
    }
    CU_ASSERT_EQUAL(unknown, 0);
    CU_ASSERT_EQUAL(early, 0);
}

static void the_time_line_is_whole(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};
    static const uint32_t units[] = {20, 20, 0};
    stw_backend marking = stw_backend_host;
    marking.mark = note_mark;
    marking.mark_seconds = between_marks;
    const stw_backend *backends[] = {&stw_backend_host, &marking};
    stw_plan *plan = plan_of(middle_size, NULL, 3, places, units);
    const stw_program *program = plan->programs[0];
    for (int b = 0; b < 2; b++) {
        stw_timeline timeline = {0};
        stw_executor_options options = options_of(3);
        stw_run_result *result = NULL;
        options.timeline = &timeline;
        CHECK_OK(stw_execute_with(plan, &options, backends[b], &result, err));
        CU_ASSERT_EQUAL_FATAL(timeline.n_ops, program->n_ops);
        for (uint32_t m = 0; m < program->n_movements; m++) {
            const stw_movement *movement = &program->movements[m];
            if (movement->executable)
                check_times(program, movement, &timeline);
            else if (movement->n_ops > 0)
                CU_ASSERT_TRUE(isnan(timeline.start_s[movement->first_op]));
        }
        stw_run_result_free(result);
        stw_timeline_free(&timeline);
        CU_ASSERT_PTR_NULL(timeline.start_s);
    }
    stw_plan_free(plan);
}

/* ---- a clock that stands still ---- */

static bool clock_stands;
double __real_stw_process_now_s(void);
double __wrap_stw_process_now_s(void);
double __wrap_stw_process_now_s(void) { return clock_stands ? 100 : __real_stw_process_now_s(); }

/* Seconds are zero, rates are not known. */
static void no_rates_without_seconds(void) {
    stw_plan *plan = plan_of(small_size, NULL, 1, resident, all_units);
    const stw_executor_options options = options_of(2);
    stw_run_result *result = NULL;
    clock_stands = true;
    CHECK_OK(stw_execute(plan, &options, &result, err));
    clock_stands = false;
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    CU_ASSERT_EQUAL(result->time_s[STW_PHASE_OPTIMIZER_STEP], 0);
    CU_ASSERT_TRUE(isnan(result->params_per_s) && isnan(result->up_bps));
    CU_ASSERT_TRUE(isnan(result->down_bps));
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* ---- refusals ---- */

static void refused(stw_plan *plan, stw_status status, const char *word) {
    stw_executor_options options = options_of(1);
    stw_run_result *result = NULL;
    CHECK_FAILS(stw_execute(plan, &options, &result, err), status, word);
    CU_ASSERT_PTR_NULL(result);
    stw_plan_free(plan);
}

static void what_cannot_run_is_refused(void) {
    static const char *const fp16[] = {"precision.exp_avg=fp16", NULL};
    static const char *const twice[] = {"precision.master=fp32", NULL};
    static const char *const fsdp2[] = {"engine=fsdp2", NULL};
    refused(plan_of(small_size, fp16, 1, resident, all_units), STW_STATUS_NOT_BUILT_IN, "F16");
    refused(plan_of(small_size, twice, 1, resident, all_units), STW_STATUS_NOT_BUILT_IN,
            "precision.params: bf16");
    refused(plan_of(small_size, fsdp2, 1, resident, all_units), STW_STATUS_NOT_BUILT_IN,
            "--set engine=stowage");
    stw_plan *plan = plan_of(small_size, NULL, 1, resident, all_units);
    plan->cluster.gpu.memory_bytes = 64ull << 20; /* less than the load's slots */
    refused(plan, STW_STATUS_NO_RESOURCES, "gpu");
    plan = plan_of(small_size, NULL, 1, resident, all_units);
    plan->cluster.host.limit_bytes = 1ull << 20;
    refused(plan, STW_STATUS_NO_RESOURCES, "host");
    static const stw_place nvme[] = {FIXTURE_NVME};
    plan = plan_of(small_size, NULL, 1, nvme, all_units);
    plan->cluster.nvme.capacity_bytes = 4096;
    refused(plan, STW_STATUS_NO_RESOURCES, "nvme");
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    refused(plan_of(small_size, NULL, 1, resident, all_units), STW_STATUS_DEVICE, "1 ranks");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    plan = plan_of(small_size, NULL, 1, resident, all_units);
    stw_executor_options options = options_of(0);
    stw_run_result *result = NULL;
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_USAGE, "--steps");
    options = options_of(1);
    options.backend = "vulkan";
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_USAGE, "vulkan");
    stw_plan_free(plan);
}

STW_TEST_MAIN("backend executor", {"placement changes no bit", placement_changes_no_bit},
              {"placement changes no NaN", placement_changes_no_nan},
              {"precision is kept in every place", precision_is_kept_in_every_place},
              {"groups have their own rates", groups_have_their_own_rates},
              {"without clipping", without_clipping},
              {"load method changes no bit", load_method_changes_no_bit},
              {"bad weights are named", bad_weights_are_named},
              {"measured bytes are the walk", measured_bytes_are_the_walk},
              {"the time line is whole", the_time_line_is_whole},
              {"no rates without seconds", no_rates_without_seconds},
              {"what cannot run is refused", what_cannot_run_is_refused})
