/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that issue steps of bound tensors: on a device that takes its time, calls return
 * before the work is done and waits are for the tensors asked for; on one that fails, the failure
 * is told by the next call. The device is the host's, in the clothes of a GPU's; state lies in all
 * three tiers. */
#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "backend/executor/bound_parts.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {3, 64, 128, 9000};
#define STEPS 3u

static stw_backend device; /* the host backend but for what follows */
static atomic_uint n_updates, n_polls;
static unsigned fails_at; /* an update; 0: none */
static bool joins_fail;
static atomic_bool gate_is_shut; /* updates wait before it */
static atomic_uint n_reads, n_writes;
static unsigned read_fails_at, write_fails_at; /* 0: none */
static atomic_bool disk_is_full;               /* writes wait, from this one on */
static atomic_uint full_at;

static stw_status update(stw_device *d, stw_stream stream, const stw_adamw *adamw,
                         const stw_bucket_operands *bucket, stw_error *err) {
    const struct timespec pause = {0, 100000};
    while (atomic_load(&gate_is_shut)) (void)nanosleep(&pause, NULL);
    if (atomic_fetch_add(&n_updates, 1) + 1 == fails_at)
        return stw_fail_native(err, STW_STATUS_DEVICE, 700, "update", "the device is gone");
    return stw_backend_host.update(d, stream, adamw, bucket, err);
}

static stw_status read_disk(stw_device *d, uint64_t host, uint64_t nvme, uint64_t bytes,
                            stw_error *err) {
    if (atomic_fetch_add(&n_reads, 1) + 1 == read_fails_at)
        return stw_fail(err, STW_STATUS_IO, "/disk", "reading: Input/output error");
    return stw_backend_host.read(d, host, nvme, bytes, err);
}

static stw_status write_disk(stw_device *d, uint64_t nvme, uint64_t host, uint64_t bytes,
                             stw_error *err) {
    const struct timespec pause = {0, 100000};
    const unsigned number = atomic_fetch_add(&n_writes, 1) + 1;
    while (atomic_load(&disk_is_full) && number >= atomic_load(&full_at))
        (void)nanosleep(&pause, NULL);
    if (number == write_fails_at)
        return stw_fail(err, STW_STATUS_IO, "/disk", "writing: Input/output error");
    return stw_backend_host.write(d, nvme, host, bytes, err);
}

/* Every other look is too early. */
static stw_status reached(stw_device *d, uint32_t event, bool *out, stw_error *err) {
    stw_status status = stw_backend_host.reached(d, event, out, err);
    *out = atomic_fetch_add(&n_polls, 1) % 2 == 1;
    return status;
}

static stw_status follow_native(stw_device *d, stw_stream stream, void *native, stw_error *err) {
    if (joins_fail) return stw_fail(err, STW_STATUS_DEVICE, "stream", "a stream of another GPU");
    return stw_backend_host.follow_native(d, stream, native, err);
}

stw_status __wrap_stw_backend_select(const char *name, const stw_backend **out, stw_error *err);
stw_status __wrap_stw_backend_select(const char *name, const stw_backend **out, stw_error *err) {
    (void)err;
    device = stw_backend_host;
    device.gpu = true;
    device.update = update;
    device.reached = reached;
    device.follow_native = follow_native;
    device.read = read_disk;
    device.write = write_disk;
    *out = strcmp(name, "cuda") == 0 ? &device : &stw_backend_host;
    return STW_STATUS_OK;
}

/* Quanta of each place; the last one that is not 0 takes what is left. */
typedef struct share {
    uint32_t resident, stream, nvme;
    bool bf16;
} share;
static const share in_memory = {5, UINT32_MAX, 0, false};

static stw_plan *plan_of(const char *grads, const share *s) {
    const char *const settings[] = {s->bf16 ? "precision.params=bf16" : "precision.params=fp32",
                                    "precision.grads=fp32",
                                    s->bf16 ? "precision.master=fp32" : "precision.master=none",
                                    "placement.params=gpu",
                                    grads,
                                    NULL};
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_NVME};
    const uint32_t units[] = {s->resident, s->stream, s->nvme};
    stw_place taken[3];
    uint32_t of_taken[3], n = 0;
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    for (int i = 0; i < 3; i++) {
        taken[n] = places[i];
        of_taken[n] = units[i];
        n += units[i] > 0;
    }
    fixture_state(plan, n, taken, of_taken);
    plan->decisions.prefetch.depth = 2;
    plan->decisions.prefetch.bucket_bytes = 64 << 10; /* many */
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

typedef struct owner {
    stw_plan *plan;
    uint32_t n;
    uint64_t each; /* bytes of a parameter */
    unsigned char **params;
    const void **grads;
    stw_bound *bound;
} owner;

static void open_owner(owner *o, const char *backend, const share *s) {
    const stw_bound_options options = {.backend = backend, .nvme_folder = "."};
    const stw_dtype dtype = s->bf16 ? STW_DTYPE_BF16 : STW_DTYPE_F32;
    stw_bound_tensor tensors[64];
    o->plan = plan_of("placement.grads=gpu", s);
    o->n = o->plan->job->model->n_tensors;
    o->each = s->bf16 ? 2 : 4;
    CU_ASSERT_TRUE_FATAL(o->n <= 64);
    o->params = calloc(o->n, sizeof *o->params);
    o->grads = calloc(o->n, sizeof *o->grads);
    for (uint32_t t = 0; t < o->n; t++) {
        const stw_tensor *tensor = &o->plan->job->model->tensors[t];
        float *grads = calloc(tensor->numel, sizeof *grads);
        o->params[t] = calloc(tensor->numel, o->each);
        for (uint64_t i = 0; i < tensor->numel; i++) {
            const float weight = stw_seeded_weight(t, i);
            if (s->bf16)
                ((uint16_t *)(void *)o->params[t])[i] = stw_bf16_from_float(weight);
            else
                ((float *)(void *)o->params[t])[i] = weight;
            grads[i] = stw_seeded_grad(t, 1, i);
        }
        o->grads[t] = grads;
        tensors[t] = (stw_bound_tensor){tensor->name, dtype, o->params[t], tensor->numel, t % 2};
    }
    atomic_store(&n_updates, 0);
    atomic_store(&n_reads, 0);
    atomic_store(&n_writes, 0);
    CHECK_OK(stw_bound_open(o->plan, tensors, o->n, &options, &o->bound, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(o->bound);
    CU_ASSERT_TRUE(o->bound->layout->n_buckets > 70 || s->resident == UINT32_MAX);
    CU_ASSERT_EQUAL(o->bound->sizes.nvme_bytes > 0, s->nvme > 0);
}

static void close_owner(owner *o) {
    stw_bound_close(o->bound);
    for (uint32_t t = 0; t < o->n; t++) {
        free(o->params[t]);
        free((void *)(uintptr_t)o->grads[t]);
    }
    free(o->params);
    free(o->grads);
    stw_plan_free(o->plan);
}

static stw_bound_step options_of(uint64_t step) {
    return (stw_bound_step){.step = step, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
}

static void same_state(owner *a, owner *b) {
    const stw_component components[] = {STW_COMPONENT_EXP_AVG, STW_COMPONENT_EXP_AVG_SQ,
                                        STW_COMPONENT_MASTER};
    for (uint32_t t = 0; t < a->n; t++) {
        const uint64_t n = a->plan->job->model->tensors[t].numel;
        float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
        for (int c = 0; c < (a->each == 2 ? 3 : 2); c++) {
            const stw_bound_range range = {components[c], t, 0, n};
            CHECK_OK(stw_bound_copy_state(a->bound, &range, false, x, err));
            CHECK_OK(stw_bound_copy_state(b->bound, &range, false, y, err));
            CU_ASSERT_EQUAL(memcmp(x, y, n * sizeof *x), 0);
            CHECK_OK(stw_bound_copy_state(b->bound, &range, true, x, err));
        }
        free(x);
        free(y);
    }
}

static void steps_of(owner *here, owner *there) {
    for (uint64_t step = 1; step <= STEPS; step++) {
        const stw_bound_step options = options_of(step);
        CHECK_OK(stw_bound_set_gradients(here->bound, here->grads, here->n, err));
        CHECK_OK(stw_bound_begin_step(here->bound, &options, err));
        unsigned before = atomic_load(&n_updates);
        atomic_store(&gate_is_shut, true);
        CHECK_OK(stw_bound_set_gradients(there->bound, there->grads, there->n, err));
        CHECK_OK(stw_bound_begin_step(there->bound, &options, err));
        CU_ASSERT_EQUAL(atomic_load(&n_updates), before);
        atomic_store(&gate_is_shut, false);
        for (uint32_t t = 0; t < there->n; t++) {
            const uint64_t n = there->plan->job->model->tensors[t].numel;
            CHECK_OK(stw_bound_wait(there->bound, t, NULL, err));
            CU_ASSERT_EQUAL(memcmp(there->params[t], here->params[t], n * here->each), 0);
        }
        CHECK_OK(stw_bound_wait(there->bound, UINT32_MAX, NULL, err));
        CU_ASSERT_EQUAL(atomic_load(&n_updates) - before, there->bound->layout->n_buckets);
        CHECK_FAILS(stw_bound_wait(there->bound, there->n, NULL, err), STW_STATUS_USAGE, "tensor");
    }
}

static void waits_are_for_tensors(void) {
    static const share shares[] = {
        {5, UINT32_MAX, 0, false},  {UINT32_MAX, 0, 0, true}, {0, 0, UINT32_MAX, false},
        {0, 0, UINT32_MAX, true},   {5, 6, UINT32_MAX, true}, {0, 3, UINT32_MAX, false},
        {20, 0, UINT32_MAX, false},
    };
    for (size_t k = 0; k < sizeof shares / sizeof shares[0]; k++) {
        owner here, there, memory;
        stw_bound_sample sample;
        const share of_memory = {5, UINT32_MAX, 0, shares[k].bf16};
        open_owner(&memory, "host", &of_memory);
        open_owner(&here, "host", &shares[k]);
        open_owner(&there, "cuda", &shares[k]);
        CU_ASSERT_TRUE(there.bound->has_threads && !here.bound->has_threads);
        steps_of(&memory, &there);
        for (uint64_t step = 1; step <= STEPS; step++) {
            const stw_bound_step options = options_of(step);
            CHECK_OK(stw_bound_set_gradients(here.bound, here.grads, here.n, err));
            CHECK_OK(stw_bound_begin_step(here.bound, &options, err));
        }
        CHECK_OK(stw_bound_finish(there.bound, &sample, err));
        same_state(&memory, &here);
        same_state(&memory, &there);
        steps_of(&here, &there); /* with state that was written from outside */
        same_state(&here, &there);
        close_owner(&there);
        close_owner(&here);
        close_owner(&memory);
    }
}

/* Writes that take long hold up neither calls nor the tensors whose state was read; the next step
 * reads nothing before they are done. */
static void writes_go_on_behind(void) {
    const share all = {0, 0, UINT32_MAX, false};
    const struct timespec pause = {0, 5000000};
    owner here, there;
    open_owner(&here, "host", &all);
    open_owner(&there, "cuda", &all);
    const unsigned of_step = 2 * there.bound->layout->n_buckets; /* two moments */
    atomic_store(&full_at, of_step);
    atomic_store(&disk_is_full, true);
    for (unsigned step = 1; step <= STEPS; step++) {
        const stw_bound_step options = options_of(step);
        CHECK_OK(stw_bound_set_gradients(here.bound, here.grads, here.n, err));
        CHECK_OK(stw_bound_begin_step(here.bound, &options, err));
        CHECK_OK(stw_bound_set_gradients(there.bound, there.grads, there.n, err));
        CHECK_OK(stw_bound_begin_step(there.bound, &options, err));
        (void)nanosleep(&pause, NULL);
        CU_ASSERT_TRUE(step == 1 || atomic_load(&n_reads) == (step - 1) * of_step);
        atomic_store(&full_at, step * of_step); /* the last write of this step, not of the last */
        CHECK_OK(stw_bound_wait(there.bound, UINT32_MAX, NULL, err));
        CU_ASSERT_EQUAL(atomic_load(&n_reads), step * of_step);
    }
    atomic_store(&disk_is_full, false);
    CHECK_OK(stw_bound_finish(there.bound, NULL, err));
    CU_ASSERT_EQUAL(atomic_load(&n_writes), STEPS * of_step);
    same_state(&here, &there);
    close_owner(&there);
    close_owner(&here);
}

static void closing_ends_what_is_under_way(void) {
    static const share shares[] = {{5, UINT32_MAX, 0, false}, {5, 5, UINT32_MAX, false}};
    for (int k = 0; k < 2; k++) {
        owner o;
        const stw_bound_step options = options_of(1);
        open_owner(&o, "cuda", &shares[k]);
        const unsigned n = o.bound->layout->n_buckets;
        CHECK_OK(stw_bound_set_gradients(o.bound, o.grads, o.n, err));
        atomic_store(&gate_is_shut, true);
        CHECK_OK(stw_bound_begin_step(o.bound, &options, err));
        atomic_store(&gate_is_shut, false);
        close_owner(&o);
        CU_ASSERT_EQUAL(atomic_load(&n_updates), n);
        CU_ASSERT_EQUAL(atomic_load(&n_writes), atomic_load(&n_reads));
        CU_ASSERT_EQUAL(atomic_load(&n_reads) > 0, k == 1);
    }
}

static void a_failure_is_told(void) {
    owner o;
    const stw_bound_range range = {.component = STW_COMPONENT_EXP_AVG, .n = 1};
    const stw_bound_step options = options_of(1);
    float value;
    for (int again = 0; again < 4; again++) {
        open_owner(&o, "cuda", &in_memory);
        fails_at = 12;
        CHECK_OK(stw_bound_set_gradients(o.bound, o.grads, o.n, err));
        CHECK_OK(stw_bound_begin_step(o.bound, &options, err));
        if (again == 0)
            CHECK_FAILS(stw_bound_wait(o.bound, UINT32_MAX, NULL, err), STW_STATUS_DEVICE,
                        "the device is gone [update of bucket");
        if (again == 1)
            CHECK_FAILS(stw_bound_wait(o.bound, o.n - 1, NULL, err), STW_STATUS_DEVICE, "gone");
        if (again == 2)
            CHECK_FAILS(stw_bound_set_gradients(o.bound, o.grads, o.n, err), STW_STATUS_DEVICE,
                        "gone");
        CHECK_FAILS(stw_bound_finish(o.bound, NULL, err), STW_STATUS_DEVICE, "gone");
        CHECK_FAILS(stw_bound_begin_step(o.bound, &options, err), STW_STATUS_DEVICE, "gone");
        CHECK_FAILS(stw_bound_copy_state(o.bound, &range, false, &value, err), STW_STATUS_DEVICE,
                    "gone");
        close_owner(&o);
    }
    fails_at = 0;
}

/* Whoever fails, all end; the error names file, reason and bucket, and is told from then on. */
static void a_failure_of_the_disk_is_told(void) {
    const share all = {3, 3, UINT32_MAX, true};
    const stw_bound_range range = {.component = STW_COMPONENT_EXP_AVG, .n = 1};
    float value;
    for (int way = 0; way < 8; way++) {
        owner o;
        const unsigned at = way < 4 ? 1 : 40;
        read_fails_at = write_fails_at = 0;
        open_owner(&o, "cuda", &all);
        atomic_store(&n_writes, 0); /* those of the first masters are done */
        read_fails_at = way % 2 == 0 ? at : 0;
        write_fails_at = way % 2 == 1 ? at : 0;
        stw_status status = STW_STATUS_OK;
        stw_error error = STW_ERROR_INIT;
        char text[1200];
        for (uint64_t step = 1; step <= STEPS && status == STW_STATUS_OK; step++) {
            const stw_bound_step options = options_of(step);
            status = stw_bound_set_gradients(o.bound, o.grads, o.n, &error);
            if (status == STW_STATUS_OK) status = stw_bound_begin_step(o.bound, &options, &error);
            if (status == STW_STATUS_OK && way % 4 < 2)
                status = stw_bound_wait(o.bound, UINT32_MAX, NULL, &error);
        }
        stw_error_format(&error, text, sizeof text);
        CU_ASSERT_EQUAL(status, STW_STATUS_IO);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "/disk"));
        CU_ASSERT_PTR_NOT_NULL(
            strstr(text, way % 2 == 0 ? "reading: Input/output error [nvme_read of bucket"
                                      : "writing: Input/output error [nvme_write of bucket"));
        CHECK_FAILS(stw_bound_finish(o.bound, NULL, err), STW_STATUS_IO, "Input/output error");
        CHECK_FAILS(stw_bound_copy_state(o.bound, &range, false, &value, err), STW_STATUS_IO,
                    "Input/output error");
        close_owner(&o);
    }
    read_fails_at = write_fails_at = 0;
}

static void a_stream_of_another_device_is_told(void) {
    owner o;
    uint64_t *counters = NULL;
    open_owner(&o, "cuda", &in_memory);
    CHECK_OK(stw_bound_set_gradients(o.bound, o.grads, o.n, err));
    joins_fail = true;
    CHECK_FAILS(stw_bound_begin_norm(o.bound, true, NULL, &counters, err), STW_STATUS_DEVICE,
                "another GPU");
    joins_fail = false;
    CHECK_FAILS(stw_bound_finish(o.bound, NULL, err), STW_STATUS_DEVICE, "another GPU");
    close_owner(&o);
}

/* State in the model's order, updated in it. */
static void first_tensors_are_done_first(void) {
    owner o;
    stw_plan *spread = plan_of("placement.grads=auto", &in_memory);
    open_owner(&o, "host", &in_memory);
    CU_ASSERT_EQUAL(o.plan->job->spread_params, 0);
    CU_ASSERT_TRUE(spread->job->spread_params > 0);
    CU_ASSERT_STRING_NOT_EQUAL(spread->layouts[0]->hash, o.plan->layouts[0]->hash);
    for (uint32_t t = 1; t < o.n; t++)
        CU_ASSERT_TRUE(o.bound->places[t].turn >= o.bound->places[t - 1].turn);
    CU_ASSERT_TRUE(o.bound->places[0].turn < o.bound->places[o.n - 1].turn);
    stw_plan_free(spread);
    close_owner(&o);
}

STW_TEST_MAIN("backend bound", {"waits are for tensors", waits_are_for_tensors},
              {"writes go on behind", writes_go_on_behind},
              {"closing ends what is under way", closing_ends_what_is_under_way},
              {"a failure is told", a_failure_is_told},
              {"a failure of the disk is told", a_failure_of_the_disk_is_told},
              {"a stream of another device is told", a_stream_of_another_device_is_told},
              {"first tensors are done first", first_tensors_are_done_first})
