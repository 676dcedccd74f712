/* SPDX-License-Identifier: Apache-2.0 */
/* The main job through the installed library alone: open a model, plan it, walk the plan, execute
 * it on the host, read the plan back. The same file is compiled as C and as C++.
 * Usage: main_job MODEL CLUSTER H200, in a folder of the test's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stowage.h>

#define STEPS 2
#define SEED 7
#define LEARNING_RATE 0.25 /* not the default */

static stw_error_t *error;

static void fail(const char *what) {
    fprintf(stderr, "main_job: %s: %s\n", what, stw_get_error_text(error));
    exit(stw_get_exit_code(stw_get_error_status(error)) + 100);
}
static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "main_job: expected %s\n", what);
    exit(1);
}
static void check(stw_status_t status, const char *what) {
    if (status != STOWAGE_OK) fail(what);
}
static int same(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* ---- models ---- */

static void look_at_model(const stw_model_t *model, uint64_t params) {
    stw_model_info_t info;
    stw_tensor_t tensor;
    uint64_t elements = 0;
    uint32_t i;
    stw_get_model_info(model, &info, sizeof info);
    for (i = 0; stw_get_tensor(model, i, &tensor, sizeof tensor); i++) elements += tensor.elements;
    printf("%s: %u tensors, %llu parameters\n", info.name, (unsigned)info.tensors,
           (unsigned long long)info.params);
    expect(i == info.tensors, "as many tensors as the model has");
    expect(elements == info.params, "the tensors' elements to be the parameters");
    expect(params == 0 || info.params == params, "the published number of parameters");
}

/* ---- plans ---- */

static stw_plan_t *make_plan(const stw_model_t *model, const char *cluster, const char *placement) {
    stw_plan_options_t options;
    stw_plan_t *plan = NULL;
    const char *settings[5];
    memset(&options, 0, sizeof options);
    settings[0] = "optimizer.clip_norm=1";
    settings[1] = "precision.params=bf16";
    settings[2] = "precision.master=fp32";
    settings[3] = "optimizer.lr=0.25";
    settings[4] = placement;
    options.cluster = cluster;
    options.settings = settings;
    options.n_settings = 5;
    check(stw_make_plan(model, &options, sizeof options, &plan, error), "make a plan");
    return plan;
}

/* Regions of a tier lie in its arena; those of the parameters are all that the kind holds. */
static void walk_regions(const stw_plan_t *plan, uint32_t kind) {
    stw_rank_kind_t info;
    stw_region_t region;
    stw_bucket_t bucket;
    uint64_t params = 0, updated = 0;
    uint32_t i;
    expect(stw_get_rank_kind(plan, kind, &info, sizeof info), "the kind of rank");
    for (i = 0; stw_get_region(plan, kind, i, &region, sizeof region); i++) {
        uint64_t arena = same(region.tier, "gpu")    ? info.gpu_persistent_bytes
                         : same(region.tier, "host") ? info.host_persistent_bytes
                                                     : info.nvme_arena_bytes;
        expect(region.offset_bytes + region.bytes <= arena, "regions inside the arena");
        if (same(region.component, "params")) params += region.params;
    }
    for (i = 0; stw_get_bucket(plan, kind, i, &bucket, sizeof bucket); i++)
        updated += bucket.params;
    expect(params == info.params, "regions for all parameters");
    expect(updated == info.params, "updates of all parameters");
}

static void walk_program(const stw_plan_t *plan, uint32_t kind) {
    stw_movement_t movement;
    stw_peak_t peak;
    stw_op_t op;
    uint64_t total = 0, sum = 0;
    uint32_t i, k, updates = 0;
    for (i = 0; stw_get_movement(plan, kind, i, &movement, sizeof movement); i++) {
        printf("%-22s %5u operations, %s, %.3g s\n", movement.phase, (unsigned)movement.ops,
               movement.by_stowage ? "by stowage" : "by the framework", movement.seconds);
        for (k = movement.first_op; k < movement.first_op + movement.ops; k++) {
            expect(stw_get_op(plan, kind, k, &op, sizeof op), "an operation of the movement");
            if (same(op.name, "update")) updates++;
        }
    }
    expect(i > 0 && updates > 0, "movements with updates");
    for (i = 0; stw_get_peak(plan, kind, i, &peak, sizeof peak); i++) {
        if (same(peak.component, "total")) {
            expect(sum == total, "components that sum to the peak");
            total = peak.bytes;
            sum = 0;
            if (total > 0)
                printf("%-22s %-5s %12llu bytes\n", peak.phase, peak.tier,
                       (unsigned long long)total);
        } else {
            sum += peak.bytes;
        }
    }
    expect(sum == total && i > 0, "components that sum to the last peak");
}

/* Every tensor lies somewhere as a whole: this plan is for one rank. */
static void find_tensors(const stw_plan_t *plan) {
    const stw_model_t *model = stw_get_plan_model(plan);
    stw_tensor_t tensor;
    stw_extent_t extent;
    uint32_t i;
    for (i = 0; stw_get_tensor(model, i, &tensor, sizeof tensor); i++) {
        uint64_t at = 0;
        while (stw_find_extent(plan, 0, "exp_avg", i, at, &extent, sizeof extent)) {
            expect(extent.element == at && extent.elements > 0, "extents without gaps");
            at += extent.elements;
        }
        expect(at == tensor.elements, "extents for the whole tensor");
    }
    expect(!stw_find_extent(plan, 1, "params", 0, 0, &extent, sizeof extent), "one rank alone");
}

static void walk_plan(const stw_plan_t *plan) {
    stw_plan_info_t info;
    stw_rank_kind_t kind;
    uint32_t k;
    stw_get_plan_info(plan, &info, sizeof info);
    printf("%s (%s, %s), %.3g s per iteration, GPU %llu of %llu bytes\n", info.verdict,
           info.outcome, info.solver, info.iteration_s, (unsigned long long)info.gpu_peak_bytes,
           (unsigned long long)info.gpu_capacity_bytes);
    expect(same(info.verdict, "fits"), "a plan that fits");
    expect(info.world == 1, "one rank");
    for (k = 0; stw_get_rank_kind(plan, k, &kind, sizeof kind); k++) {
        walk_regions(plan, k);
        walk_program(plan, k);
    }
    expect(k == info.rank_kinds && stw_find_rank_kind(plan, 0) < k, "the kinds that it states");
    find_tensors(plan);
}

/* ---- execution ---- */

static const char *const components[] = {"params", "exp_avg", "exp_avg_sq", "master"};
#define N_COMPONENTS 4

static void execute(const stw_plan_t *plan, const char *file, uint64_t digests[N_COMPONENTS]) {
    stw_run_options_t options;
    stw_result_t *result = NULL;
    stw_result_info_t info;
    stw_measured_t measured;
    uint32_t i, k, executed = 0;
    double seconds;
    memset(&options, 0, sizeof options);
    options.backend = "host";
    options.steps = STEPS;
    options.seed = SEED;
    options.nvme_folder = ".";
    options.nvme_in_memory = 1; /* the build tree may be */
    check(stw_execute_plan(plan, &options, sizeof options, &result, error), "execute the plan");
    stw_get_result_info(result, &info, sizeof info);
    expect(info.steps == STEPS && info.verified > 0 && info.differing == 0, "a verified state");
    for (i = 0; stw_get_measured(result, i, &measured, sizeof measured); i++) {
        printf("%-22s %u times, %.3g s, %llu bytes of host memory\n", measured.phase,
               (unsigned)measured.samples, measured.seconds,
               (unsigned long long)measured.host_bytes);
        for (k = 0; stw_get_measured_seconds(result, i, k, &seconds); k++)
            expect(seconds > 0, "seconds of every sample");
        expect(k == measured.samples, "as many samples as it says");
        executed += k;
    }
    expect(executed == 1 + STEPS, "a load and the steps");
    for (i = 0; i < N_COMPONENTS; i++) {
        digests[i] = 0;
        expect(stw_get_digest(result, components[i], &digests[i]), "a digest");
        printf("%-10s %016llx\n", components[i], (unsigned long long)digests[i]);
    }
    check(stw_write_result(result, file, error), "write the result");
    stw_free_result(result);
}

/* ---- memory of this program's own ---- */

typedef struct arenas {
    void *gpu, *host;         /* aligned */
    char *gpu_all, *host_all; /* as malloc gave them */
} arenas;

static void *align(char *memory) {
    uintptr_t address = (uintptr_t)memory;
    return memory + (STOWAGE_ALIGNMENT - address % STOWAGE_ALIGNMENT) % STOWAGE_ALIGNMENT;
}

static void make_arenas(const stw_rank_kind_t *kind, arenas *out) {
    out->gpu_all = (char *)malloc((size_t)kind->gpu_arena_bytes + STOWAGE_ALIGNMENT);
    out->host_all = (char *)malloc((size_t)kind->host_arena_bytes + STOWAGE_ALIGNMENT);
    expect(out->gpu_all != NULL && out->host_all != NULL, "memory for the arenas");
    out->gpu = align(out->gpu_all);
    out->host = align(out->host_all);
    memset(out->gpu, 0xff, (size_t)kind->gpu_arena_bytes); /* nobody promised zeroes */
    memset(out->host, 0xff, (size_t)kind->host_arena_bytes);
}

static void free_arenas(arenas *memory) {
    free(memory->gpu_all);
    free(memory->host_all);
}

static stw_session_t *attach(const stw_plan_t *plan, const stw_rank_kind_t *kind,
                             const arenas *memory) {
    stw_session_options_t options;
    stw_session_info_t info;
    stw_session_t *session = NULL;
    memset(&options, 0, sizeof options);
    options.backend = "host";
    options.seed = SEED;
    options.error_if_nonfinite = 1;
    if (memory != NULL) {
        options.gpu_address = memory->gpu;
        options.gpu_bytes = kind->gpu_arena_bytes;
        options.host_address = memory->host;
        options.host_bytes = kind->host_arena_bytes;
    }
    check(stw_open_session(plan, &options, sizeof options, &session, error), "attach");
    stw_get_session_info(session, &info, sizeof info);
    expect(same(info.backend, "host") && info.rank == 0 && info.world == 1, "rank 0 of 1");
    if (memory != NULL)
        expect((info.gpu_address == memory->gpu || kind->gpu_arena_bytes == 0) &&
                   (info.host_address == memory->host || kind->host_arena_bytes == 0),
               "the arenas of the caller");
    return session;
}

/* Address of the gradients of a tensor from an element on, and how many lie there together. */
static char *gradients(const stw_plan_t *plan, const arenas *memory, uint32_t tensor,
                       uint64_t element, uint64_t *elements, size_t *element_bytes) {
    stw_extent_t extent;
    expect(stw_find_extent(plan, 0, "grads", tensor, element, &extent, sizeof extent) &&
               extent.element == element,
           "a place for the gradients");
    *elements = extent.elements;
    *element_bytes = (size_t)(extent.bytes / extent.elements);
    return (char *)(same(extent.tier, "gpu") ? memory->gpu : memory->host) + extent.offset_bytes;
}

/* A backward pass would write here: gradients of one plan's memory into another's. */
static void write_gradients(const stw_plan_t *from_plan, const arenas *from,
                            const stw_plan_t *to_plan, const arenas *to) {
    stw_tensor_t tensor;
    uint32_t i;
    for (i = 0; stw_get_tensor(stw_get_plan_model(to_plan), i, &tensor, sizeof tensor); i++) {
        uint64_t at = 0;
        while (at < tensor.elements) {
            uint64_t n, m;
            size_t bytes, same_bytes;
            const char *source = gradients(from_plan, from, i, at, &n, &bytes);
            char *target = gradients(to_plan, to, i, at, &m, &same_bytes);
            expect(bytes == same_bytes, "gradients of one type");
            if (m < n) n = m;
            memcpy(target, source, (size_t)n * bytes);
            at += n;
        }
    }
}

/* A step with a gradient that is infinite is refused, and nothing is done. */
static void refuse_infinite(stw_session_t *session, const stw_plan_t *plan, const arenas *memory,
                            const char *phase, uint64_t step) {
    static const unsigned char infinity[4] = {0, 0, 0x80, 0x7f}; /* fp32, and the end of it bf16 */
    uint64_t n, before = 0, after = 1;
    size_t bytes;
    char *at = gradients(plan, memory, 1, 0, &n, &bytes);
    check(stw_digest_state(session, "params", &before, error), "digest");
    memcpy(at, infinity + 4 - bytes, bytes);
    if (stw_execute_movement(session, phase, step, NULL, 0, error) != STOWAGE_BAD_INPUT)
        fail("a refused step");
    expect(strstr(stw_get_error_text(error), "is infinite") != NULL, "what was refused");
    check(stw_digest_state(session, "params", &after, error), "digest");
    expect(before == after, "the parameters as they were");
}

/* The steps of `execute`, with the gradients of another plan: the same bits. */
static void step_in_own_memory(const stw_plan_t *plan, const stw_plan_t *other,
                               const uint64_t digests[N_COMPONENTS]) {
    stw_rank_kind_t kind, other_kind;
    stw_session_t *session, *source;
    stw_sample_t sample;
    arenas mine, theirs;
    uint64_t step, digest = 0;
    int i, adopts;
    expect(stw_get_rank_kind(plan, stw_find_rank_kind(plan, 0), &kind, sizeof kind), "rank 0");
    expect(stw_get_rank_kind(other, stw_find_rank_kind(other, 0), &other_kind, sizeof kind),
           "rank 0 of the other plan");
    make_arenas(&kind, &mine);
    make_arenas(&other_kind, &theirs);
    source = attach(other, &other_kind, &theirs);
    for (adopts = 0; adopts < 2; adopts++) {
        session = attach(plan, &kind, &mine);
        check(stw_execute_movement(session, "load", 0, NULL, 0, error), "load");
        if (adopts) { /* what was loaded stays where it is, and is taken over */
            stw_free_session(session);
            session = attach(plan, &kind, &mine);
            check(stw_adopt_params(session, error), "adopt the parameters");
        }
        for (step = 1; step <= STEPS; step++) {
            const char *phase = step == 1 ? "first_optimizer_step" : "optimizer_step";
            check(stw_seed_gradients(source, step, error), "seed gradients");
            write_gradients(other, &theirs, plan, &mine);
            refuse_infinite(session, plan, &mine, phase, step);
            write_gradients(other, &theirs, plan, &mine);
            check(stw_set_learning_rate(session, 0, LEARNING_RATE, error), "set the rate");
            check(stw_execute_movement(session, phase, step, &sample, sizeof sample, error),
                  "step");
            expect(sample.grad_norm > 0 && sample.clip_factor < 1, "clipped gradients");
        }
        for (i = 0; i < N_COMPONENTS; i++) {
            check(stw_digest_state(session, components[i], &digest, error), "digest");
            expect(digest == digests[i], "the bits of the execution in own memory");
        }
        stw_free_session(session);
    }
    stw_free_session(source);
    free_arenas(&mine);
    free_arenas(&theirs);
}

static void compare_with_file(const stw_plan_t *plan) {
    stw_plan_info_t mine, theirs;
    stw_plan_t *read = NULL;
    check(stw_write_plan(plan, "plan.json", error), "write the plan");
    check(stw_read_plan("plan.json", &read, error), "read the plan");
    stw_get_plan_info(plan, &mine, sizeof mine);
    stw_get_plan_info(read, &theirs, sizeof theirs);
    expect(same(mine.hash, theirs.hash) && same(mine.verdict, theirs.verdict), "the same plan");
    expect(mine.gpu_peak_bytes == theirs.gpu_peak_bytes, "the same peak");
    walk_plan(read);
    stw_free_plan(read);
}

/* ---- errors ---- */

/* A call that is refused, with a word in its error. */
static void refused(stw_status_t status, const char *word) {
    if (status == STOWAGE_USAGE && stw_get_error_status(error) == STOWAGE_USAGE &&
        strstr(stw_get_error_text(error), word) != NULL)
        return;
    fprintf(stderr, "main_job: found status %d, \"%s\", expected USAGE that names %s\n",
            (int)status, stw_get_error_text(error), word);
    exit(1);
}

static stw_status_t move(stw_session_t *session, const char *phase, uint64_t step) {
    return stw_execute_movement(session, phase, step, NULL, 0, error);
}

/* Leaves the session with a step taken. */
static void refuse_order(stw_session_t *session) {
    refused(move(session, "first_optimizer_step", 1), "\"load\"");
    refused(move(session, "optimizer_step", 1), "\"load\"");
    check(move(session, "load", 0), "load");
    refused(move(session, "optimizer_step", 1), "\"first_optimizer_step\"");
    refused(move(session, "first_optimizer_step", 0), "step");
    check(stw_seed_gradients(session, 1, error), "seed gradients");
    check(move(session, "first_optimizer_step", 1), "the first step");
    refused(move(session, "first_optimizer_step", 2), "\"optimizer_step\"");
    check(move(session, "optimizer_step", 2), "the second step");
}

static void refuse_null_session(stw_session_t *session) {
    stw_session_info_t info;
    uint64_t digest = 0;
    refused(move(NULL, "load", 0), "session");
    refused(move(session, NULL, 0), "phase");
    refused(stw_set_learning_rate(NULL, 0, 1, error), "session");
    refused(stw_adopt_params(NULL, error), "session");
    refused(stw_seed_gradients(NULL, 1, error), "session");
    refused(stw_digest_state(NULL, "params", &digest, error), "session");
    refused(stw_digest_state(session, NULL, &digest, error), "component");
    refused(stw_digest_state(session, "params", NULL, error), "out");
    memset(&info, 0xff, sizeof info);
    stw_get_session_info(NULL, &info, sizeof info);
    expect(info.backend == NULL && info.world == 0, "no facts of no session");
    stw_get_session_info(session, NULL, sizeof info);
}

static void refuse_null_plan(const stw_plan_t *plan) {
    stw_run_options_t run;
    stw_session_options_t options;
    stw_session_t *session = NULL;
    stw_result_t *result = NULL;
    stw_plan_t *read = NULL;
    memset(&run, 0, sizeof run);
    memset(&options, 0, sizeof options);
    run.timeout_s = options.timeout_s = -1;
    refused(stw_read_plan(NULL, &read, error), "path");
    refused(stw_read_plan("plan.json", NULL, error), "out");
    refused(stw_write_plan(NULL, "none.json", error), "plan");
    refused(stw_write_plan(plan, NULL, error), "path");
    refused(stw_write_result(NULL, "none.json", error), "result");
    refused(stw_execute_plan(NULL, NULL, 0, &result, error), "plan");
    refused(stw_execute_plan(plan, NULL, 0, NULL, error), "out");
    refused(stw_execute_plan(plan, &run, sizeof run, &result, error), "timeout_s");
    refused(stw_open_session(NULL, NULL, 0, &session, error), "plan");
    refused(stw_open_session(plan, NULL, 0, NULL, error), "out");
    refused(stw_open_session(plan, &options, sizeof options, &session, error), "timeout_s");
    expect(session == NULL && result == NULL && read == NULL, "nothing made");
    expect(stw_write_plan(NULL, NULL, NULL) == STOWAGE_USAGE, "a status without an error");
}

/* Functions that take no error. */
static void get_from_null(const stw_plan_t *plan) {
    union {
        stw_rank_kind_t kind;
        stw_movement_t movement;
        stw_peak_t peak;
        stw_op_t op;
        stw_region_t region;
        stw_bucket_t bucket;
        stw_extent_t extent;
        stw_measured_t measured;
        stw_tensor_t tensor;
    } row;
    stw_plan_info_t info;
    stw_result_info_t result;
    stw_model_info_t model;
    uint64_t digest;
    double seconds;
    int i;
    stw_get_plan_info(NULL, &info, sizeof info);
    stw_get_result_info(NULL, &result, sizeof result);
    stw_get_model_info(NULL, &model, sizeof model);
    expect(info.verdict == NULL && result.backend == NULL && model.name == NULL, "no facts");
    stw_get_plan_info(plan, NULL, sizeof info);
    for (i = 0; i < 2; i++) { /* without a plan, then without a struct */
        const stw_plan_t *p = i == 0 ? NULL : plan;
        size_t n = sizeof row;
        expect(!stw_get_rank_kind(p, 0, i == 0 ? &row.kind : NULL, n), "no kind");
        expect(!stw_get_movement(p, 0, 0, i == 0 ? &row.movement : NULL, n), "no movement");
        expect(!stw_get_peak(p, 0, 0, i == 0 ? &row.peak : NULL, n), "no peak");
        expect(!stw_get_op(p, 0, 0, i == 0 ? &row.op : NULL, n), "no operation");
        expect(!stw_get_region(p, 0, 0, i == 0 ? &row.region : NULL, n), "no region");
        expect(!stw_get_bucket(p, 0, 0, i == 0 ? &row.bucket : NULL, n), "no bucket");
        expect(!stw_find_extent(p, 0, "params", 0, 0, i == 0 ? &row.extent : NULL, n), "no extent");
    }
    expect(!stw_find_extent(plan, 0, NULL, 0, 0, &row.extent, sizeof row), "no component");
    expect(!stw_get_tensor(NULL, 0, &row.tensor, sizeof row), "no tensor");
    expect(!stw_get_tensor(stw_get_plan_model(plan), 0, NULL, 0), "no struct for a tensor");
    expect(!stw_get_measured(NULL, 0, &row.measured, sizeof row), "nothing measured");
    expect(!stw_get_measured_seconds(NULL, 0, 0, &seconds), "no seconds");
    expect(!stw_get_digest(NULL, "params", &digest), "no digest of no result");
    expect(stw_get_plan_model(NULL) == NULL, "no model");
    expect(stw_find_rank_kind(NULL, 0) == STOWAGE_NONE, "no kind of a rank");
    expect(same(stw_get_error_text(NULL), "") && stw_get_error_status(NULL) == STOWAGE_OK &&
               stw_get_error_native(NULL) == 0,
           "no error");
    expect(!stw_has_feature(NULL), "no feature");
}

/* A caller whose header is older or newer: bytes behind either struct stay as they are. */
static void try_sizes(const stw_plan_t *plan) {
    struct {
        stw_rank_kind_t kind;
        unsigned char behind[64];
    } row;
    size_t i, k;
    const size_t sizes[] = {sizeof row, SIZE_MAX};
    for (k = 0; k < 2; k++) {
        memset(&row, 0xa5, sizeof row);
        expect(stw_get_rank_kind(plan, 0, &row.kind, sizes[k]), "a kind");
        expect(row.kind.ranks == 1, "its ranks");
        for (i = 0; i < sizeof row.behind; i++) expect(row.behind[i] == 0xa5, "bytes left alone");
    }
    memset(&row, 0xa5, sizeof row);
    expect(stw_get_rank_kind(plan, 0, &row.kind, 0), "a kind without a size");
    for (i = 0; i < sizeof row; i++)
        expect(((unsigned char *)&row)[i] == 0xa5, "a struct left alone");
}

static void refuse_null_model(const stw_model_t *model, const char *cluster) {
    const char *settings[2] = {"placement.moments=gpu", NULL};
    stw_plan_options_t options;
    stw_model_t *none = NULL;
    stw_plan_t *plan = NULL;
    refused(stw_open_model(NULL, &none, error), "what");
    refused(stw_open_model("Qwen3-0.6B", NULL, error), "out");
    refused(stw_make_plan(NULL, NULL, 0, &plan, error), "model");
    refused(stw_make_plan(model, NULL, 0, NULL, error), "out");
    memset(&options, 0, sizeof options);
    options.cluster = cluster;
    options.n_settings = 2;
    refused(stw_make_plan(model, &options, sizeof options, &plan, error), "settings");
    options.settings = settings;
    refused(stw_make_plan(model, &options, sizeof options, &plan, error), "settings");
    options.n_settings = 1;
    options.time_limit_s = -1;
    refused(stw_make_plan(model, &options, sizeof options, &plan, error), "time_limit_s");
    expect(none == NULL && plan == NULL, "nothing made");
    refused(stw_make_plan(model, &options, 0, &plan, error), "size");
    options.time_limit_s = 1;
    check(stw_make_plan(model, &options, SIZE_MAX, &plan, error), "options of a newer header");
    stw_free_plan(plan);
}

static void refuse_misuse(const stw_plan_t *plan) {
    stw_session_options_t options;
    stw_session_t *session = NULL;
    stw_rank_kind_t kind;
    arenas memory;
    uint64_t digest;
    expect(stw_get_rank_kind(plan, 0, &kind, sizeof kind), "the first kind");
    make_arenas(&kind, &memory);
    memset(&options, 0, sizeof options);
    options.backend = "host";
    options.gpu_address = memory.gpu;
    options.gpu_bytes = kind.gpu_arena_bytes - 1;
    expect(stw_open_session(plan, &options, sizeof options, &session, error) == STOWAGE_USAGE,
           "an error for memory that is too small");
    options.gpu_address = (char *)memory.gpu + 1;
    options.gpu_bytes = kind.gpu_arena_bytes;
    expect(stw_open_session(plan, &options, sizeof options, &session, error) == STOWAGE_USAGE &&
               session == NULL,
           "an error for memory that is not aligned");
    session = attach(plan, &kind, &memory);
    expect(stw_execute_movement(session, "rollout", 1, NULL, 0, error) == STOWAGE_USAGE,
           "an error for a movement that the plan does not have");
    expect(stw_execute_movement(session, "walk", 1, NULL, 0, error) == STOWAGE_USAGE,
           "an error for no phase at all");
    expect(stw_execute_movement(session, "optimizer_step", 0, NULL, 0, error) == STOWAGE_USAGE,
           "an error for step 0");
    refuse_order(session);
    refuse_null_session(session);
    stw_free_session(session);
    session = attach(plan, &kind, &memory);
    expect(stw_set_learning_rate(session, 1, 0.1, error) == STOWAGE_USAGE, "one group alone");
    expect(stw_digest_state(session, "grads", &digest, error) == STOWAGE_USAGE, "no digest");
    check(stw_execute_movement(session, "load", 0, NULL, 0, error), "load after misuse");
    stw_free_session(session);
    free_arenas(&memory);
}

static int messages;
static void count(stw_log_level_t level, const char *text, void *user) {
    (void)level;
    (void)text;
    ++*(int *)user;
}

static void refuse_nonsense(const stw_model_t *model) {
    const char *settings[1];
    stw_plan_options_t options;
    stw_model_t *none = NULL;
    stw_plan_t *plan = NULL;
    expect(stw_open_model("no-such-model", &none, error) != STOWAGE_OK && none == NULL,
           "an error for a model that does not exist");
    expect(strstr(stw_get_error_text(error), "no-such-model") != NULL, "its name in the error");
    memset(&options, 0, sizeof options);
    settings[0] = "node.gpus=many";
    options.settings = settings;
    options.n_settings = 1;
    expect(stw_make_plan(model, &options, sizeof options, &plan, error) == STOWAGE_BAD_INPUT,
           "an error for a value");
    expect(stw_read_plan("no-such-plan.json", &plan, NULL) == STOWAGE_IO, "a status without text");
    expect(stw_get_exit_code(STOWAGE_NOTHING_FITS) == 4, "the exit codes of the programs");
}

int main(int argc, char **argv) {
    uint64_t resident[N_COMPONENTS], streamed[N_COMPONENTS];
    stw_model_t *model = NULL;
    stw_plan_t *plan = NULL, *other = NULL;
    expect(argc == 4, "MODEL CLUSTER H200");
    expect(stw_get_version() == STOWAGE_VERSION, "the library of this header");
    error = stw_new_error();
    expect(error != NULL, "memory");
    stw_set_log(count, &messages, STOWAGE_LOG_DEBUG);
    printf("stowage %s\n", stw_get_version_text());

    check(stw_open_model("Qwen3-0.6B", &model, error), "open a model of the zoo");
    look_at_model(model, 596049920);
    plan = make_plan(model, argv[3], "placement.moments=host");
    walk_plan(plan);
    stw_free_plan(plan);
    stw_free_model(model);

    check(stw_open_model(argv[1], &model, error), "open the model");
    look_at_model(model, 0);
    stw_free_plan(make_plan(model, NULL, "batch.seq_len=128")); /* for this machine */
    plan = make_plan(model, argv[2], "placement.moments=gpu");
    walk_plan(plan);
    compare_with_file(plan);
    execute(plan, "run.json", resident);
    stw_free_plan(plan);
    plan = make_plan(model, argv[2], "placement.moments=host");
    walk_plan(plan);
    execute(plan, "streamed.json", streamed);
    expect(memcmp(resident, streamed, sizeof resident) == 0, "the same bits in every placement");
    other = make_plan(model, argv[2], "placement.moments=gpu");
    step_in_own_memory(plan, other, streamed);
    step_in_own_memory(other, plan, resident);
    refuse_misuse(plan);
    refuse_null_plan(plan);
    get_from_null(plan);
    try_sizes(plan);
    refuse_null_model(model, argv[2]);
    stw_free_plan(other);
    stw_free_plan(plan);
    refuse_nonsense(model);
    stw_free_model(model);
    stw_free_error(error);
    printf("main job: ok\n");
    return 0;
}
