/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks on the host backend, forked (forked.h): whole runs give the bits of one rank and a
 * result in which every figure is the expected one; ranks that read other bytes are named; where a
 * call of one rank fails, every rank ends, and says why. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "backend/executor/session.h"
#include "backend/readers.h"
#include "core/checked.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/forked.h"
#include "tests/unit/lent.h"
#include "tests/unit/weights_file.h"

#define STEPS 3
#define SEED 5

static const stw_place resident[] = {FIXTURE_RESIDENT};
static const stw_place stream[] = {FIXTURE_STREAM};
static const stw_place direct[] = {FIXTURE_DIRECT};
static const stw_place cpu[] = {FIXTURE_CPU};
static const stw_place mixed[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};

typedef struct job {
    uint32_t world, on_node;
    stw_load load;
    const char *weights; /* NULL: seeded */
    const stw_place *places;
    uint32_t n_places;
    const char *settings[4];
    fixture_size size; /* zeroes: `usual` */
} job;

static const fixture_size usual = {2, 64, 136, 515}; /* rows that four ranks share unevenly */
static const uint32_t quanta[] = {4, 4, 3, 0};

static stw_plan *plan_of(const job *j) {
    stw_cluster cluster = fixture_cluster(j->on_node);
    cluster.nodes = j->world / j->on_node;
    cluster.nic_bps = 25e9;
    stw_plan *plan = fixture_plan(j->size.layers > 0 ? j->size : usual, &cluster, j->settings);
    fixture_state(plan, j->n_places, j->places, quanta);
    plan->decisions.load = j->load;
    plan->decisions.prefetch.bucket_bytes = 1 << 16;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_executor_options options_of(const job *j) {
    return (stw_executor_options){.backend = "host",
                                  .steps = STEPS,
                                  .seed = SEED,
                                  .timeout_s = 15,
                                  .weights = j->weights,
                                  .nvme_in_memory = true,
                                  .nvme_folder = ".",
                                  .caller = lent_memory()};
}

/* ---- weights: two files and an index, in four dtypes ---- */

static const stw_dtype dtypes[] = {STW_DTYPE_F64, STW_DTYPE_BF16, STW_DTYPE_F32, STW_DTYPE_F16,
                                   STW_DTYPE_BF16};
#define N_DTYPES 5
#define SPLIT 3 /* the first tensor of the second file */

static void write_folder(const stw_model *model, const char *folder) {
    char path[300];
    (void)mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    weights_write_part(model, SEED, path, 0, SPLIT, dtypes, N_DTYPES, UINT32_MAX);
    snprintf(path, sizeof path, "%s/b.safetensors", folder);
    weights_write_part(model, SEED, path, SPLIT, model->n_tensors, dtypes, N_DTYPES, UINT32_MAX);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"weight_map\": {");
    for (uint32_t t = 0; t < model->n_tensors; t++)
        fprintf(file, "%s\"%s\": \"%s.safetensors\"", t > 0 ? ", " : "", model->tensors[t].name,
                t < SPLIT ? "a" : "b");
    fprintf(file, "}}\n");
    fclose(file);
}

static uint64_t file_bytes_of(const stw_model *model) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        bytes += model->tensors[t].numel * stw_dtype_bits(dtypes[t % N_DTYPES]) / 8;
    return bytes;
}

/* One byte of a tensor's element becomes another one. */
static void flip(const stw_model *model, const char *folder, uint32_t tensor, uint64_t element) {
    char path[300];
    uint64_t header = 0, at = 8;
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, tensor < SPLIT ? "a" : "b");
    FILE *file = fopen(path, "r+b");
    CU_ASSERT_EQUAL(fread(&header, 8, 1, file), 1);
    at += header + element * stw_dtype_bits(dtypes[tensor % N_DTYPES]) / 8;
    for (uint32_t t = tensor < SPLIT ? 0 : SPLIT; t < tensor; t++)
        at += model->tensors[t].numel * stw_dtype_bits(dtypes[t % N_DTYPES]) / 8;
    CU_ASSERT_EQUAL(fseek(file, (long)at, SEEK_SET), 0);
    const int old = fgetc(file);
    CU_ASSERT_EQUAL(fseek(file, (long)at, SEEK_SET), 0);
    fputc(old ^ 1, file);
    fclose(file);
}

/* ---- whole runs ---- */

#define GIB (1ull << 30)

static void info(stw_device *device, stw_device_info *out) {
    stw_backend_host.info(device, out);
    out->page_locked = (1 + forked_rank) * GIB;
}

/* Bytes of one direction of a step: what the places of a plan with one place say. */
static void check_link(const job *j, const stw_plan *plan, const stw_run_result *result) {
    const uint64_t n = stw_job_placed_params(plan->job, 0);
    const double step_s = result->time_s[STW_PHASE_OPTIMIZER_STEP];
    uint64_t up = 0, down = 0;
    if (j->n_places > 1) return;
    if (j->places == stream || j->places == direct) up = down = 8 * n;
    if (j->places == cpu) up = 4 * n, down = 8 * n; /* params; grads and params */
    CU_ASSERT_DOUBLE_EQUAL(result->up_bps * step_s, (double)up, 1e-3 + 1e-9 * (double)up);
    CU_ASSERT_DOUBLE_EQUAL(result->down_bps * step_s, (double)down, 1e-3 + 1e-9 * (double)down);
    CU_ASSERT_DOUBLE_EQUAL(result->params_per_s * step_s, (double)n, 1e-9 * (double)n);
}

static void check_ranks(const job *j, const stw_plan *plan, const stw_run_result *result) {
    const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FIRST_OPTIMIZER_STEP,
                                STW_PHASE_OPTIMIZER_STEP};
    CU_ASSERT_EQUAL_FATAL(result->n_ranks, j->world);
    CU_ASSERT_EQUAL_FATAL(result->n_nodes, j->world / j->on_node);
    for (int p = 0; p < 3; p++) {
        uint64_t host[FORKED_RANKS] = {0}, locked[FORKED_RANKS] = {0};
        for (uint32_t r = 0; r < j->world; r++) {
            const stw_run_rank *rank = &result->ranks[r];
            const stw_measured *m = &rank->phases[phases[p]];
            const uint32_t kind = stw_job_kind_of(plan->job, r);
            stw_peaks walk;
            stw_program_walk(plan->programs[kind], &walk);
            CU_ASSERT_TRUE(rank->rank == r && rank->node == r / j->on_node && m->known);
            CU_ASSERT_STRING_EQUAL(rank->kind, plan->job->kinds[kind].name);
            CU_ASSERT_EQUAL(m->allocated, stw_peak_allocated(&walk.phase[phases[p]][STW_TIER_GPU]));
            CU_ASSERT_EQUAL(m->reserved, plan->layouts[kind]->arena_bytes[STW_TIER_GPU]);
            CU_ASSERT_EQUAL(m->page_locked, (1 + r) * GIB);
            CU_ASSERT_EQUAL(m->device, 0);
            const uint64_t process = m->host_components[STW_COMPONENT_PROCESS];
            const stw_peak *peak = &walk.phase[phases[p]][STW_TIER_HOST];
            CU_ASSERT_EQUAL(m->host - process,
                            peak->total - peak->components[STW_COMPONENT_PROCESS]);
            host[rank->node] += m->host;
            locked[rank->node] += (1 + r) * GIB;
        }
        for (uint32_t n = 0; n < result->n_nodes; n++) {
            CU_ASSERT_EQUAL(result->nodes[n].node, n);
            CU_ASSERT_EQUAL(result->nodes[n].host[phases[p]], host[n]);
            CU_ASSERT_EQUAL(result->nodes[n].page_locked[phases[p]], locked[n]);
        }
        CU_ASSERT_FALSE(result->not_run[phases[p]]);
        CU_ASSERT_TRUE(result->time_s[phases[p]] > 0);
    }
}

static void check_times(const stw_run_result *result) {
    double steps[STEPS] = {0};
    uint32_t n = 0;
    CU_ASSERT_EQUAL_FATAL(result->n_step_all, STEPS);
    for (uint32_t m = 0; m < result->n_movements; m++) {
        const stw_run_movement *movement = &result->movements[m];
        const bool later = movement->phase == STW_PHASE_OPTIMIZER_STEP;
        CU_ASSERT_EQUAL_FATAL(movement->n_samples, later ? STEPS - 1 : 1);
        CU_ASSERT_STRING_EQUAL(movement->role, "trainer");
        if (movement->phase == STW_PHASE_LOAD) continue;
        for (uint32_t i = 0; i < movement->n_samples; i++) steps[n++] = movement->samples_s[i];
    }
    CU_ASSERT_EQUAL(n, STEPS);
    CU_ASSERT_EQUAL(memcmp(steps, result->step_all_s, sizeof steps), 0);
    CU_ASSERT_EQUAL(result->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP], steps[0]);
    CU_ASSERT_DOUBLE_EQUAL(result->time_s[STW_PHASE_OPTIMIZER_STEP], (steps[1] + steps[2]) / 2,
                           1e-12);
    CU_ASSERT_TRUE(result->gpu_growth_bytes >= 0 && result->host_growth_bytes >= 0);
}

/* Bytes that all ranks read, and those of them that another one reads too. */
static void check_read(const job *j, const stw_plan *plan, const stw_run_result *result) {
    const uint64_t all = file_bytes_of(plan->model);
    const uint64_t times = j->weights == NULL                ? 0
                           : j->load == STW_LOAD_ALL_RANKS   ? j->world
                           : j->load == STW_LOAD_NODE_LEADER ? j->world / j->on_node
                                                             : 1;
    CU_ASSERT_EQUAL(result->weights_read_bytes, times * all);
    CU_ASSERT_EQUAL(result->weights_compared_bytes, times > 1 ? times * all : 0);
}

typedef struct expected {
    uint64_t digest[STW_N_DIGESTS];
    char digest_of[17];
    double norm, factor;
} expected;
static expected wanted;

static void be_rank(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    stw_executor_options options = options_of(j);
    stw_backend backend = stw_backend_host;
    stw_run_result *result = NULL;
    backend.info = info;
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    CU_ASSERT_EQUAL((result != NULL), (forked_rank == 0));
    CU_ASSERT_EQUAL(forked_shared->left[forked_rank], 1);
    CU_ASSERT_EQUAL(forked_shared->interrupted[forked_rank], 0);
    if (result != NULL) {
        CU_ASSERT_EQUAL(memcmp(result->digest, wanted.digest, sizeof wanted.digest), 0);
        CU_ASSERT_STRING_EQUAL(result->digest_of, wanted.digest_of);
        CU_ASSERT_EQUAL(result->grad_norm, wanted.norm);
        CU_ASSERT_EQUAL(result->clip_factor, wanted.factor);
        CU_ASSERT_TRUE(result->world == j->world && result->steps == STEPS);
        CU_ASSERT_TRUE(result->seed == SEED && result->clips && result->nonfinite_steps == 0);
        CU_ASSERT_EQUAL(result->elements, stw_plan_state_elements(plan));
        CU_ASSERT_EQUAL(result->mismatched, 0);
        CU_ASSERT_TRUE(result->checked >= 1000ull * j->world);
        check_ranks(j, plan, result);
        check_times(result);
        check_link(j, plan, result);
        check_read(j, plan, result);
    }
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* What one rank alone finds. */
static void run_alone(const job *like) {
    job j = *like;
    stw_run_result *result = NULL;
    j.world = j.on_node = 1;
    j.load = STW_LOAD_RANK0_BROADCAST;
    for (int i = 0; i < 3; i++)
        if (j.settings[i] != NULL && strncmp(j.settings[i], "parallel.", 9) == 0)
            j.settings[i] = "optimizer.lr=0.001";
    stw_plan *plan = plan_of(&j);
    stw_executor_options options = options_of(&j);
    CHECK_OK(stw_execute(plan, &options, &result, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    memcpy(wanted.digest, result->digest, sizeof wanted.digest);
    snprintf(wanted.digest_of, sizeof wanted.digest_of, "%s", result->digest_of);
    wanted.norm = result->grad_norm;
    wanted.factor = result->clip_factor;
    CU_ASSERT_TRUE(wanted.norm > 0.5 && wanted.factor < 1);
    CU_ASSERT_EQUAL(result->n_nodes, 1);
    CU_ASSERT_EQUAL(result->weights_read_bytes, 0);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

#define CLIP "optimizer.clip_norm=0.5", "optimizer.lr=0.001"

static void many_ranks_give_the_result_of_one(void) {
    static const job jobs[] = {
        {4, 2, STW_LOAD_RANK0_BROADCAST, NULL, mixed, 4, {CLIP}, {0}},
        {4, 2, STW_LOAD_ALL_RANKS, NULL, stream, 1, {CLIP}, {0}},
        {3, 3, STW_LOAD_SHARDED_READ, NULL, cpu, 1, {CLIP}, {0}},
        {4, 4, STW_LOAD_NODE_LEADER, NULL, direct, 1, {CLIP, "parallel.dp_replicate=2"}, {0}},
        {4, 2, STW_LOAD_RANK0_BROADCAST, "files", mixed, 4, {CLIP}, {0}},
        {3, 3, STW_LOAD_ALL_RANKS, "files", resident, 1, {CLIP}, {0}},
        {2, 2, STW_LOAD_NODE_LEADER, "files", stream, 1, {CLIP}, {0}},
        {4, 2, STW_LOAD_NODE_LEADER, "files", mixed, 4, {CLIP}, {0}},
        {4, 2, STW_LOAD_NODE_LEADER, NULL, stream, 1, {CLIP}, {0}},
        {4, 4, STW_LOAD_SHARDED_READ, "files", cpu, 1, {CLIP}, {0}},
    };
    bool written = false;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        job j = jobs[i];
        stw_plan *plan = plan_of(&j);
        if (!written) write_folder(plan->model, "files");
        written = true;
        stw_plan_free(plan);
        run_alone(&j);
        forked_run(j.world, j.on_node, be_rank, &j);
    }
}

/* ---- ranks that read other bytes ---- */

static const fixture_size large = {2, 64, 1100, 4096}; /* the sample has gaps in both files */
#define FIRST_LARGE 0u /* a tensor of the first file, and one of the second; fp64 */
#define SECOND_LARGE 5u

/* An element of a large tensor that the sample does not see, in part `k` of 16. */
static uint64_t unseen(const stw_model *model, uint32_t tensor, uint64_t k) {
    uint64_t data = 0, first = 0;
    for (uint32_t t = tensor < SPLIT ? 0 : SPLIT; t < (tensor < SPLIT ? SPLIT : model->n_tensors);
         t++) {
        if (t == tensor) first = data;
        data += model->tensors[t].numel * stw_dtype_bits(dtypes[t % N_DTYPES]) / 8;
    }
    const uint64_t last = data - 65536;
    const uint64_t gap = last / 16 * k + last % 16 * k / 16 + 65536 + 200;
    CU_ASSERT_TRUE_FATAL(gap + 8 < last / 16 * (k + 1) && gap > first + 8);
    return (gap - first + 7) / 8;
}

typedef struct odd {
    job job;
    uint32_t rank;                                   /* it has the folder "odd" */
    bool compare;                                    /* --compare-weights */
    const char *other, *base, *tensor, *file, *more; /* expected; other "": no difference */
} odd;

static void be_odd(void *arg) {
    const odd *o = arg;
    stw_plan *plan = plan_of(&o->job);
    stw_executor_options options = options_of(&o->job);
    stw_run_result *result = NULL;
    stw_error error = STW_ERROR_INIT;
    char expected_text[500], file[64] = "";
    options.steps = 1;
    options.weights = forked_rank == o->rank ? "odd" : "large";
    options.compare_weights = o->compare;
    snprintf(file, sizeof file, " from %s", o->file);
    snprintf(expected_text, sizeof expected_text,
             "%s: the bytes that rank %s reads%s are not those that rank %s reads of the same "
             "elements; give all ranks the same weights files%s",
             o->tensor, o->other, file, o->base, o->more);
    const stw_status status = stw_execute(plan, &options, &result, &error);
    if (o->other[0] == '\0') {
        CU_ASSERT_EQUAL(status, STW_STATUS_OK);
        if (forked_rank == 0) {
            CU_ASSERT_EQUAL(result->weights_read_bytes, file_bytes_of(plan->model));
            CU_ASSERT_EQUAL(result->weights_compared_bytes, result->weights_read_bytes);
            CU_ASSERT_EQUAL(result->mismatched, 0);
        }
    } else {
        CU_ASSERT_EQUAL(status, STW_STATUS_DEVICE);
        CU_ASSERT_STRING_EQUAL(error.where, "weights");
        CU_ASSERT_STRING_EQUAL(error.text, expected_text);
        if (strcmp(error.text, expected_text) != 0) fprintf(stderr, "%s\n", error.text);
        CU_ASSERT_PTR_NULL(result);
        CU_ASSERT_EQUAL(forked_shared->interrupted[forked_rank], 0); /* all know it */
    }
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* The rank of a plan with sharded reads that reads an element. */
static uint32_t reader_of(const stw_plan *plan, uint64_t element) {
    for (uint32_t r = 0; r < plan->job->world; r++) {
        stw_space space;
        stw_overlap part;
        CHECK_OK(stw_job_space(plan->job, STW_SPACE_PARAMS, r, plan->pool, &space, err));
        stw_meet meet =
            stw_meet_begin((stw_view){&plan->job->files, element, 1}, stw_space_whole(&space));
        if (stw_meet_next(&meet, &part)) return r;
    }
    CU_FAIL("nobody reads it");
    return 0;
}

static void other_bytes_are_named(void) {
    static const char *const first = "0.embed.weight", *const second = "1.gate_up.weight";
    odd o = {.job = {3, 3, STW_LOAD_ALL_RANKS, NULL, resident, 1, {CLIP}, large},
             .tensor = first,
             .file = "a.safetensors",
             .more = ""};
    stw_plan *plan = plan_of(&o.job);
    const stw_model *model = plan->model;
    write_folder(model, "large");
    write_folder(model, "odd");
    flip(model, "odd", SECOND_LARGE, unseen(model, SECOND_LARGE, 2));
    o.tensor = second;
    o.file = "b.safetensors";
    o.rank = 1, o.other = "1", o.base = "0";
    forked_run(3, 3, be_odd, &o);
    flip(model, "odd", FIRST_LARGE, unseen(model, FIRST_LARGE, 9));
    o.tensor = first;
    o.file = "a.safetensors";
    o.more = " (tensors that differ: 2)";
    o.rank = 0, o.other = "0", o.base = "1"; /* most ranks are right */
    forked_run(3, 3, be_odd, &o);
    stw_plan_free(plan);
}

/* Rank r also reads what rank r + 1 reads, or its node's rank of the next node. */
static void each_reads_once_more_what_another_reads(void) {
    static const uint32_t nodes[][2] = {{3, 3}, {4, 2}};
    static const char *const names[] = {"0", "1", "2", "3"};
    unsigned kinds = 0;
    for (int n = 0; n < 2; n++)
        for (uint64_t k = 1; k < 15; k += 4) {
            const uint32_t world = nodes[n][0], on_node = nodes[n][1], step = n == 0 ? 1 : 2;
            odd o = {
                .job = {world, on_node, STW_LOAD_SHARDED_READ, NULL, resident, 1, {CLIP}, large},
                .rank = 1,
                .compare = true,
                .tensor = "0.embed.weight",
                .file = "a.safetensors",
                .more = ""};
            stw_plan *plan = plan_of(&o.job);
            write_folder(plan->model, "odd");
            const uint64_t element = unseen(plan->model, FIRST_LARGE, k);
            const uint32_t reader = reader_of(plan, element);
            flip(plan->model, "odd", FIRST_LARGE, element);
            o.other = "";
            o.base = "";
            if (reader == 1) o.other = names[1], o.base = names[(1 + world - step) % world];
            if (reader == (1 + step) % world) o.other = names[reader], o.base = names[1];
            kinds |= reader == 1 ? 1u : reader == (1 + step) % world ? 2u : 4u;
            forked_run(world, on_node, be_odd, &o);
            stw_plan_free(plan);
        }
    CU_ASSERT_EQUAL(kinds, 7);
}

/* ---- how much one call reads ---- */

/* Elements of the longest call, and calls that read more than their share or across its bounds. */
static _Atomic(uint64_t) longest, too_long;
stw_status __real_stw_weights_read(stw_weights *weights, uint32_t tensor, uint64_t first,
                                   uint64_t count, void *out, stw_error *err);
stw_status __wrap_stw_weights_read(stw_weights *weights, uint32_t tensor, uint64_t first,
                                   uint64_t count, void *out, stw_error *err);
stw_status __wrap_stw_weights_read(stw_weights *weights, uint32_t tensor, uint64_t first,
                                   uint64_t count, void *out, stw_error *err) {
    /* of fp64 the bytes that it is rounded to */
    const uint64_t size = stw_min_u64(stw_dtype_bits(dtypes[tensor % N_DTYPES]) / 8, 4);
    const uint64_t most = STW_READ_BYTES / size;
    uint64_t seen = longest;
    while (seen < count && !atomic_compare_exchange_weak(&longest, &seen, count)) continue;
    if (first % most + count > most) too_long++;
    return __real_stw_weights_read(weights, tensor, first, count, out, err);
}

static void be_reader(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    stw_executor_options options = options_of(j);
    stw_run_result *result = NULL;
    options.steps = 1;
    options.compare_weights = j->load == STW_LOAD_SHARDED_READ;
    CHECK_OK(stw_execute(plan, &options, &result, err));
    CU_ASSERT_TRUE(longest >= STW_READ_BYTES / 4); /* a whole one of a longer tensor */
    CU_ASSERT_EQUAL(too_long, 0);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

/* Also of what another rank has read: all ranks cut a tensor at the same places. */
static void calls_read_up_to_the_same_bounds(void) {
    static const stw_load methods[] = {STW_LOAD_ALL_RANKS, STW_LOAD_SHARDED_READ};
    job j = {2, 2, STW_LOAD_ALL_RANKS, "large", resident, 1, {CLIP}, large};
    stw_plan *plan = plan_of(&j);
    write_folder(plan->model, "large");
    stw_plan_free(plan);
    for (int i = 0; i < 2; i++) {
        j.load = methods[i];
        forked_run(2, 2, be_reader, &j);
    }
}

/* A step that moves parameters, but from no files: what was read is not compared once more. */
static void be_moving(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    stw_executor_options options = options_of(j);
    stw_run_result *result = NULL;
    unsigned steps = 0;
    options.compare_weights = true;
    for (uint32_t k = 0; k < plan->job->n_kinds; k++)
        for (uint32_t m = 0; m < plan->programs[k]->n_movements; m++) {
            stw_movement *movement = &plan->programs[k]->movements[m];
            if (movement->phase == STW_PHASE_LOAD) continue;
            CU_ASSERT_FALSE(movement->transfer.used);
            movement->transfer.used = true;
            steps++;
        }
    CU_ASSERT_TRUE(steps > 0);
    CHECK_OK(stw_execute(plan, &options, &result, err));
    if (forked_rank == 0 && result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

static void loads_alone_are_compared(void) {
    job j = {2, 2, STW_LOAD_SHARDED_READ, "files", resident, 1, {CLIP}, {0}};
    forked_run(2, 2, be_moving, &j);
}

/* ---- gradients and factors ---- */

typedef struct bad {
    job job;
    uint64_t element, in;
    uint32_t tensor, rank; /* the first that has it */
    const char *more;
} bad;

static void be_bad(void *arg) {
    const bad *b = arg;
    stw_plan *plan = plan_of(&b->job);
    stw_executor_options options = options_of(&b->job);
    stw_run_result *result = NULL;
    stw_error error = STW_ERROR_INIT;
    char expected_text[400];
    options.error_if_nonfinite = true;
    options.other_grad = (stw_other_grad){2, b->element, (float)NAN};
    CU_ASSERT_EQUAL(stw_execute(plan, &options, &result, &error), STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NULL(result);
    snprintf(expected_text, sizeof expected_text,
             "step 2: the gradient of element %llu of %s is NaN (parameter group 0, bucket ",
             (unsigned long long)b->in, plan->model->tensors[b->tensor].name);
    CU_ASSERT_EQUAL(strncmp(error.text, expected_text, strlen(expected_text)), 0);
    const char *end = strstr(error.text, "). The step was not begun: the state is that of step 1");
    CU_ASSERT_PTR_NOT_NULL_FATAL(end);
    CU_ASSERT_STRING_EQUAL(end + 54, b->more);
    CU_ASSERT_EQUAL(error.rank, (int)b->rank);
    CU_ASSERT_EQUAL(forked_shared->interrupted[forked_rank], 0);
    stw_plan_free(plan);
}

static void a_gradient_that_is_none_is_named_by_all(void) {
    static const bad cases[] = {
        {{3, 3, STW_LOAD_RANK0_BROADCAST, NULL, stream, 1, {CLIP}, {0}}, 0, 0, 0, 0, ""},
        {{3, 3, STW_LOAD_RANK0_BROADCAST, NULL, cpu, 1, {"optimizer.clip_norm=0"}, {0}},
         0,
         700,
         2,
         0,
         ""},
        {{4, 4, STW_LOAD_RANK0_BROADCAST, NULL, mixed, 4, {CLIP, "parallel.dp_replicate=2"}, {0}},
         0,
         64 * 515 - 1,
         0,
         0,
         "; 2 ranks refuse for the same reason"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bad b = cases[i];
        stw_plan *plan = plan_of(&b.job);
        b.element = stw_job_tensor_first(plan->job, b.tensor) + b.in;
        b.rank = reader_of(plan, b.element);
        stw_plan_free(plan);
        forked_run(b.job.world, b.job.on_node, be_bad, &b);
    }
}

static char complaint[300];
static void keep_complaint(stw_log_level level, const char *text, void *state) {
    (void)state;
    if (level == STW_LOG_ERROR) snprintf(complaint, sizeof complaint, "%s", text);
}

static unsigned results;
static void other_factor(stw_device *device, double *norm, float *factor) {
    stw_backend_host.norm_result(device, norm, factor);
    if (forked_rank == 2 && ++results == 2) *factor *= 0.5f;
}

/* A rank that was told another factor than it used. */
static void be_told(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    const stw_executor_options options = options_of(j);
    stw_backend backend = stw_backend_host;
    stw_run_result *result = NULL;
    backend.norm_result = other_factor;
    stw_log_set(keep_complaint, NULL);
    CHECK_OK(stw_execute_with(plan, &options, &backend, &result, err));
    if (forked_rank == 0) CU_ASSERT_TRUE(result != NULL && result->mismatched > 1);
    if (forked_rank == 0)
        CU_ASSERT_STRING_EQUAL(complaint,
                               "the clip factors of the steps on rank 2 are not those on rank 0");
    if (forked_rank == 1) CU_ASSERT_STRING_EQUAL(complaint, "");
    stw_run_result_free(result);
    stw_plan_free(plan);
}

static void clip_factors_are_compared(void) {
    job j = {3, 3, STW_LOAD_RANK0_BROADCAST, NULL, stream, 1, {CLIP}, {0}};
    forked_run(3, 3, be_told, &j);
}

/* ---- a session that fails ---- */

static bool is_broken;
static stw_status norm_reset(stw_device *device, stw_stream of, stw_error *err) {
    if (is_broken) return stw_fail(err, STW_STATUS_DEVICE, "device", "has fallen off the bus");
    return stw_backend_host.norm_reset(device, of, err);
}

static stw_backend own_backend;
static bool has_own_backend;
stw_status __real_stw_backend_select(const char *name, const stw_backend **out, stw_error *err);
stw_status __wrap_stw_backend_select(const char *name, const stw_backend **out, stw_error *err);
stw_status __wrap_stw_backend_select(const char *name, const stw_backend **out, stw_error *err) {
    const stw_status status = __real_stw_backend_select(name, out, err);
    if (has_own_backend) *out = &own_backend;
    return status;
}

/* Rank 1 fails before any operation of a step. It tells the others at once, not when it closes. */
static void be_session(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    const stw_executor_options options = options_of(j);
    stw_session *session = NULL;
    stw_session_sample sample;
    stw_error error = STW_ERROR_INIT;
    own_backend = stw_backend_host;
    own_backend.norm_reset = norm_reset;
    has_own_backend = true;
    CHECK_OK(stw_session_open(plan, &options, &session, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(session);
    CHECK_OK(stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, err));
    CHECK_OK(stw_session_seed_grads(session, 1, err));
    CU_ASSERT_EQUAL(forked_shared->interrupted[forked_rank], 0);
    is_broken = forked_rank == 1;
    CU_ASSERT_EQUAL(stw_session_issue(session, STW_PHASE_FIRST_OPTIMIZER_STEP, 1, &sample, &error),
                    STW_STATUS_DEVICE);
    const char *says = is_broken ? "has fallen off the bus" : "another rank has given up (MPI): ";
    CU_ASSERT_PTR_NOT_NULL(strstr(error.text, says));
    if (strstr(error.text, says) == NULL) fprintf(stderr, "%s\n", error.text);
    CU_ASSERT_TRUE(forked_shared->interrupted[forked_rank] > 0);
    stw_session_close(session);
    stw_plan_free(plan);
}

static void a_session_that_fails_ends_all_ranks(void) {
    job j = {3, 3, STW_LOAD_RANK0_BROADCAST, NULL, stream, 1, {CLIP}, {0}};
    forked_run(3, 3, be_session, &j);
}

/* ---- a call that fails ---- */

static unsigned fail_at;
static stw_mpi_result fail_one(forked_call call, unsigned n) {
    (void)call;
    return forked_rank == 1 && n == fail_at ? STW_MPI_FAILED : STW_MPI_OK;
}

static struct {
    unsigned n;
    bool broken;
    stw_error error;
} told;
static void note_failure(void *state, stw_error *err, bool broken) {
    CU_ASSERT_PTR_EQUAL(state, &told);
    told.n++;
    told.broken = broken;
    told.error = *err;
}

static void be_failing(void *arg) {
    const job *j = arg;
    stw_plan *plan = plan_of(j);
    stw_executor_options options = options_of(j);
    stw_run_result *result = NULL;
    stw_error error = STW_ERROR_INIT;
    char cut[100];
    options.steps = 2;
    options.error_if_nonfinite = true;
    options.compare_weights = true;
    options.failed = note_failure;
    options.failed_state = &told;
    snprintf(cut, sizeof cut, "MPI says: the cable of call %u is cut", fail_at);
    const stw_status status = stw_execute(plan, &options, &result, &error);
    if (forked_shared->calls[1] < fail_at) {
        CU_ASSERT_EQUAL(status, STW_STATUS_OK);
        CU_ASSERT_EQUAL(told.n, 0);
    } else {
        const char *says = forked_rank == 1 ? cut : "another rank has given up (MPI): ";
        CU_ASSERT_EQUAL(status, STW_STATUS_DEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(error.text, says));
        if (strstr(error.text, says) == NULL) fprintf(stderr, "%u: %s\n", fail_at, error.text);
        CU_ASSERT_EQUAL(error.rank, (int)forked_rank);
        CU_ASSERT_PTR_NULL(result);
        CU_ASSERT_EQUAL(forked_shared->left[forked_rank], 2);
        CU_ASSERT_TRUE(told.n == 1 && told.broken);
        CU_ASSERT_STRING_EQUAL(told.error.text, error.text);
    }
    stw_run_result_free(result);
    stw_plan_free(plan);
}

static void every_failing_collective_ends_all_ranks(void) {
    job j = {2, 2, STW_LOAD_SHARDED_READ, "files", mixed, 4, {CLIP}, {0}};
    forked_result = fail_one;
    for (fail_at = 1; fail_at == 1 || forked_shared->calls[1] >= fail_at - 1; fail_at++)
        forked_run(2, 2, be_failing, &j);
    printf("%u collectives ", fail_at - 2);
    CU_ASSERT_TRUE(fail_at > 20);
    forked_result = NULL;
}

static void quiet(stw_log_level level, const char *text, void *state) {
    (void)state;
    if (level == STW_LOG_ERROR) fprintf(stderr, "%s\n", text);
}

int main(void) {
    static const stw_test tests[] = {
        {"many ranks give the result of one", many_ranks_give_the_result_of_one},
        {"other bytes are named", other_bytes_are_named},
        {"each reads once more what another reads", each_reads_once_more_what_another_reads},
        {"calls read up to the same bounds", calls_read_up_to_the_same_bounds},
        {"loads alone are compared", loads_alone_are_compared},
        {"a gradient that is none is named by all", a_gradient_that_is_none_is_named_by_all},
        {"clip factors are compared", clip_factors_are_compared},
        {"a session that fails ends all ranks", a_session_that_fails_ends_all_ranks},
        {"every failing collective ends all ranks", every_failing_collective_ends_all_ranks}};
    stw_log_set(quiet, NULL);
    if (system("rm -f stowage-nvme-*") != 0) return 2; /* state of runs that failed */
    return stw_test_run_all("backend together", tests, sizeof tests / sizeof tests[0]);
}
