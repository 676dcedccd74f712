/* SPDX-License-Identifier: Apache-2.0 */
/* How much stack a call of libstowage takes. Threads of musl have 128 KiB, those of some runtimes
 * less. Each call runs on a stack of a known pattern; what it overwrote is measured. */
#define _GNU_SOURCE /* MAP_STACK */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/library_case.h"

#define STACK_BYTES (1u << 20)
#define GUARD_BYTES (64u << 10)
#define PATTERN 0xa5
/* What include/stowage.h promises, less what a thread begins with. Compilers that do not optimise
 * give every variable a place. */
#ifdef NDEBUG
#define PROMISED_BYTES (44u << 10)
#else
#define PROMISED_BYTES (128u << 10)
#endif

/* Sanitizers put red zones between variables. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURES false
#else
#define MEASURES true
#endif

typedef struct job {
    stw_model_t *model;
    stw_plan_t *plan, *other;
    stw_session_t *session;
    stw_result_t *result;
    stw_plan_t *bound_plan;
    stw_optimizer_t *optimizer;
    stw_bound_t *tensors;
    uint32_t n;
    stw_schedule_t *schedule;
    stw_sync_t *sync;
    stw_status_t status;
    const char *name;
    void (*run)(struct job *);
} job;

static void *run_job(void *arg) {
    job *j = arg;
    j->run(j);
    return NULL;
}

/* Bytes of its stack that the call used. */
static size_t used_by(job *j) {
    pthread_t thread;
    pthread_attr_t attributes;
    unsigned char *all = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CU_ASSERT_FATAL(all != MAP_FAILED);
    CU_ASSERT_EQUAL_FATAL(mprotect(all, GUARD_BYTES, PROT_NONE), 0);
    unsigned char *stack = all + GUARD_BYTES;
    memset(stack, PATTERN, STACK_BYTES);
    (void)pthread_attr_init(&attributes);
    CU_ASSERT_EQUAL_FATAL(pthread_attr_setstack(&attributes, stack, STACK_BYTES), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, &attributes, run_job, j), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_join(thread, NULL), 0);
    size_t untouched = 0;
    while (untouched < STACK_BYTES && stack[untouched] == PATTERN) untouched++;
    (void)pthread_attr_destroy(&attributes);
    (void)munmap(all, STACK_BYTES + GUARD_BYTES);
    return STACK_BYTES - untouched;
}

/* ---- the calls ---- */

static void nothing(job *j) { j->status = STOWAGE_OK; }

static void open_model(job *j) { j->status = stw_open_model("tiny", &j->model, error); }

static void open_zoo(job *j) {
    stw_model_t *model = NULL;
    j->status = stw_open_model("DeepSeek-V3", &model, error);
    stw_free_model(model);
}

static void open_nothing(job *j) {
    stw_model_t *model = NULL;
    j->status =
        stw_open_model("there/is/none", &model, error) == STOWAGE_OK ? STOWAGE_BUG : STOWAGE_OK;
    stw_free_model(model);
}

static void list_published(job *j) {
    stw_model_t *model = NULL;
    stw_published_list_t *list = NULL;
    j->status = stw_open_model("DeepSeek-V3", &model, error);
    if (j->status == STOWAGE_OK) j->status = stw_list_published(model, &list, error);
    stw_free_published(list);
    stw_free_model(model);
}

/* ... with the settings given; the plan is freed. */
static void plan_with(job *j, const char *cluster, const char *const *settings, size_t n) {
    const stw_plan_options_t options = {
        .cluster = cluster, .settings = settings, .n_settings = n, .time_limit_s = 60};
    stw_plan_t *plan = NULL;
    j->status = stw_make_plan(j->model, &options, sizeof options, &plan, error);
    if (j->status == STOWAGE_NOTHING_FITS) j->status = STOWAGE_OK;
    stw_free_plan(plan);
}

static void plan_here(job *j) { plan_with(j, NULL, NULL, 0); }

#define ENGINE(name)                                                                               \
    static void plan_##name(job *j) {                                                              \
        static const char *const settings[] = {"engine=" #name};                                   \
        plan_with(j, "tiny.yaml", settings, 1);                                                    \
    }
ENGINE(fsdp2)
ENGINE(megatron)
ENGINE(deepspeed)

static void plan_roles(job *j) {
    static const char *const settings[] = {"engine=fsdp2", "roles.0.name=r",
                                           "roles.0.kind=rollout"};
    plan_with(j, "tiny.yaml", settings, 3);
}

/* Experts, latent attention, towers: the longest programs. They do not fit, and are walked. */
static void plan_large(job *j) {
    static const char *const names[] = {"Qwen3-30B-A3B", "DeepSeek-V3", "Qwen3.5-397B-A17B"};
    static const char *const engines[] = {"engine=stowage", "engine=fsdp2", "engine=megatron",
                                          "engine=deepspeed"};
    stw_model_t *tiny = j->model;
    for (int m = 0; m < 3; m++)
        for (int e = 0; e < 4; e++) {
            j->status = stw_open_model(names[m], &j->model, error);
            if (j->status != STOWAGE_OK) break;
            plan_with(j, "tiny.yaml", &engines[e], 1);
            stw_free_model(j->model);
        }
    j->model = tiny;
    j->status = STOWAGE_OK; /* some are refused: the depth is what counts */
}

static void make_plan(job *j) {
    j->plan = library_plan(j->model, "placement.moments=nvme");
    j->status = STOWAGE_OK;
}

static void write_plan(job *j) { j->status = stw_write_plan(j->plan, "stack.json", error); }

static void read_plan(job *j) { j->status = stw_read_plan("stack.json", &j->other, error); }

static void walk_plan(job *j) {
    stw_extent_t extent;
    stw_plan_info_t info;
    stw_op_t op;
    stw_peak_t peak;
    stw_get_plan_info(j->plan, &info, sizeof info);
    for (uint32_t i = 0; stw_get_op(j->plan, 0, i, &op, sizeof op); i++) {
    }
    for (uint32_t i = 0; stw_get_peak(j->plan, 0, i, &peak, sizeof peak); i++) {
    }
    (void)stw_find_extent(j->plan, 0, "exp_avg", 0, 0, &extent, sizeof extent);
    j->status = STOWAGE_OK;
}

static void execute_plan(job *j) {
    const stw_run_options_t run = library_run();
    j->status = stw_execute_plan(j->plan, &run, sizeof run, &j->result, error);
}

static void write_result(job *j) { j->status = stw_write_result(j->result, "run.json", error); }

static void open_session(job *j) {
    const stw_session_options_t options = library_session();
    j->status = stw_open_session(j->plan, &options, sizeof options, &j->session, error);
}

static void load(job *j) {
    j->status = stw_execute_movement(j->session, "load", 0, NULL, 0, error);
}

static void seed(job *j) { j->status = stw_seed_gradients(j->session, 1, error); }

static void step(job *j) {
    j->status = stw_execute_movement(j->session, "first_optimizer_step", 1, NULL, 0, error);
}

static void digest(job *j) {
    uint64_t sum = 0;
    j->status = stw_digest_state(j->session, "params", &sum, error);
}

static void adopt(job *j) { j->status = stw_adopt_params(j->session, error); }

/* An optimizer on the model's parameters, which are also their gradients. */
static void plan_bound(job *j) {
    static const char *const settings[] = {"precision.params=bf16", "precision.grads=bf16",
                                           "placement.params=gpu",  "placement.grads=gpu",
                                           "update.stream=0.5",     "prefetch.bucket=64 KiB"};
    const stw_plan_options_t options = {
        .cluster = "tiny.yaml", .settings = settings, .n_settings = 6, .time_limit_s = 60};
    j->status = stw_make_plan(j->model, &options, sizeof options, &j->bound_plan, error);
}

static void open_optimizer(job *j) {
    const stw_optimizer_options_t options = {.backend = "host"};
    stw_model_info_t info;
    stw_tensor_t tensor;
    stw_get_model_info(j->model, &info, sizeof info);
    j->tensors = calloc(info.tensors, sizeof *j->tensors);
    for (; stw_get_tensor(j->model, j->n, &tensor, sizeof tensor); j->n++)
        j->tensors[j->n] = (stw_bound_t){.name = tensor.name,
                                         .dtype = "BF16",
                                         .address = calloc(tensor.elements, 2),
                                         .elements = tensor.elements};
    j->status = stw_open_optimizer(j->bound_plan, j->tensors, j->n, &options, sizeof options,
                                   &j->optimizer, error);
}

static void begin_step(job *j) {
    const stw_step_options_t options = {
        .step = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .clip_norm = 1};
    const void **grads = calloc(j->n, sizeof *grads);
    uint64_t *counters = NULL;
    for (uint32_t i = 0; i < j->n; i++) grads[i] = j->tensors[i].address;
    j->status = stw_bind_gradients(j->optimizer, grads, j->n, error);
    free(grads);
    if (j->status == STOWAGE_OK)
        j->status = stw_begin_norm(j->optimizer, 1, NULL, &counters, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_begin_step(j->optimizer, &options, sizeof options, error);
}

static void finish_step(job *j) {
    stw_sample_t sample;
    float value;
    j->status = stw_wait_tensor(j->optimizer, STOWAGE_NONE, NULL, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_finish_step(j->optimizer, &sample, sizeof sample, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_read_state(j->optimizer, "exp_avg", 0, 0, 1, &value, error);
}

/* A tensor that goes from one rank to two, in rows and whole. */
static void plan_sync(job *j) {
    const stw_sync_tensor_t tensor = {
        .name = "w", .dtype = "BF16", .dims = 2, .shape = {4096, 1024}};
    const stw_sync_piece_t source = {
        .count = {4096, 1024, 1, 1}, .stride = {1024, 1}, .dtype = "F32"};
    const stw_sync_piece_t targets[2] = {
        {.count = {4096, 512, 1, 1}, .rank = 1, .stride = {512, 1}, .dtype = "BF16"},
        {.count = {4096, 1024, 1, 1},
         .memory = STOWAGE_NONE,
         .stride = {1024, 1},
         .dtype = "BF16"}};
    const stw_sync_options_t options = {.tensors = &tensor,
                                        .sources = &source,
                                        .targets = targets,
                                        .n_tensors = 1,
                                        .n_sources = 1,
                                        .n_targets = 2,
                                        .world = 2,
                                        .bucket_bytes = 1u << 20};
    j->status = stw_plan_sync(&options, sizeof options, &j->schedule, error);
}

static void open_sync(job *j) {
    static float values[4096 * 1024];
    const void *const sources[1] = {values};
    const stw_open_sync_t options = {.backend = "host", .sources = sources, .n_sources = 1};
    j->status = stw_open_sync(j->schedule, 0, &options, sizeof options, &j->sync, error);
}

static void pack_and_place(job *j) {
    static _Alignas(16) unsigned char buffers[2][1u << 20];
    stw_schedule_info_t info;
    const stw_sync_message_t *messages = NULL;
    const stw_sync_part_t *parts = NULL;
    uint32_t n = 0;
    uint64_t sum = 0;
    j->status = stw_get_schedule_info(j->schedule, 0, &info, sizeof info, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_get_sync_messages(j->schedule, 0, 0, &messages, &n, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_get_sync_parts(j->schedule, 0, 0, &parts, &n, error);
    if (j->status == STOWAGE_OK) j->status = stw_pack_round(j->sync, 0, buffers[0], NULL, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_place_round(j->sync, 0, NULL, buffers[1], NULL, error);
    if (j->status == STOWAGE_OK)
        j->status = stw_sum_bytes(j->sync, buffers[0], sizeof buffers[0], NULL, &sum, error);
}

static void free_all(job *j) {
    stw_free_sync(j->sync);
    stw_free_schedule(j->schedule);
    stw_free_optimizer(j->optimizer);
    for (uint32_t i = 0; i < j->n; i++) free(j->tensors[i].address);
    free(j->tensors);
    stw_free_plan(j->bound_plan);
    stw_free_session(j->session);
    stw_free_result(j->result);
    stw_free_plan(j->other);
    stw_free_plan(j->plan);
    stw_free_model(j->model);
    j->status = STOWAGE_OK;
}

#define CALL(fn)                                                                                   \
    { .name = #fn, .run = fn }

static void takes_little_stack(void) {
    static const job calls[] = {
        CALL(nothing),        CALL(open_model),     CALL(open_zoo),    CALL(open_nothing),
        CALL(list_published), CALL(plan_here),      CALL(plan_fsdp2),  CALL(plan_megatron),
        CALL(plan_deepspeed), CALL(plan_large),     CALL(plan_roles),  CALL(make_plan),
        CALL(write_plan),     CALL(read_plan),      CALL(walk_plan),   CALL(execute_plan),
        CALL(write_result),   CALL(open_session),   CALL(load),        CALL(seed),
        CALL(step),           CALL(digest),         CALL(adopt),       CALL(plan_bound),
        CALL(open_optimizer), CALL(begin_step),     CALL(finish_step), CALL(plan_sync),
        CALL(open_sync),      CALL(pack_and_place), CALL(free_all),
    };
    job state = {0};
    size_t least = 0;
    library_files();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        state.name = calls[i].name;
        state.run = calls[i].run;
        size_t bytes = used_by(&state);
        if (i == 0) least = bytes; /* of a thread that does nothing */
        bytes -= least;
        printf("\n    %-16s %7zu bytes", state.name, bytes);
        if (state.status != STOWAGE_OK) fprintf(stderr, " %s\n", stw_get_error_text(error));
        CU_ASSERT_EQUAL(state.status, STOWAGE_OK);
        CU_ASSERT(bytes <= PROMISED_BYTES || !MEASURES);
    }
    printf("\n");
}

STW_TEST_MAIN("library stack", {"takes little stack", takes_little_stack})
