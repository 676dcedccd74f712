/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that issues steps of bound tensors: on a device that takes its time, calls return
 * before the work is done and waits are for the tensors asked for; on one that fails, the failure
 * is told by the next call. The device is the host's, in the clothes of a GPU's. */
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

static stw_status update(stw_device *d, stw_stream stream, const stw_adamw *adamw,
                         const stw_bucket_operands *bucket, stw_error *err) {
    const struct timespec pause = {0, 100000};
    while (atomic_load(&gate_is_shut)) (void)nanosleep(&pause, NULL);
    if (atomic_fetch_add(&n_updates, 1) + 1 == fails_at)
        return stw_fail_native(err, STW_STATUS_DEVICE, 700, "update", "the device is gone");
    return stw_backend_host.update(d, stream, adamw, bucket, err);
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
    *out = strcmp(name, "cuda") == 0 ? &device : &stw_backend_host;
    return STW_STATUS_OK;
}

static stw_plan *plan_of(const char *grads, uint32_t resident) {
    const char *const settings[] = {"precision.params=fp32",
                                    "precision.grads=fp32",
                                    "precision.master=none",
                                    "placement.params=gpu",
                                    grads,
                                    NULL};
    const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM};
    const uint32_t units[] = {resident, UINT32_MAX};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, resident > 0 ? 2 : 1, &places[resident > 0 ? 0 : 1],
                  &units[resident > 0 ? 0 : 1]);
    plan->decisions.prefetch.depth = 2;
    plan->decisions.prefetch.bucket_bytes = 64 << 10; /* more buckets than are issued ahead */
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

typedef struct owner {
    stw_plan *plan;
    uint32_t n;
    float **params;
    const void **grads;
    stw_bound *bound;
} owner;

static void open_owner(owner *o, const char *backend) {
    const stw_bound_options options = {.backend = backend};
    stw_bound_tensor tensors[64];
    o->plan = plan_of("placement.grads=gpu", 5);
    o->n = o->plan->job->model->n_tensors;
    CU_ASSERT_TRUE_FATAL(o->n <= 64);
    o->params = calloc(o->n, sizeof *o->params);
    o->grads = calloc(o->n, sizeof *o->grads);
    for (uint32_t t = 0; t < o->n; t++) {
        const stw_tensor *tensor = &o->plan->job->model->tensors[t];
        float *grads = calloc(tensor->numel, sizeof *grads);
        o->params[t] = calloc(tensor->numel, sizeof **o->params);
        for (uint64_t i = 0; i < tensor->numel; i++) {
            o->params[t][i] = stw_seeded_weight(t, i);
            grads[i] = stw_seeded_grad(t, 1, i);
        }
        o->grads[t] = grads;
        tensors[t] =
            (stw_bound_tensor){tensor->name, STW_DTYPE_F32, o->params[t], tensor->numel, t % 2};
    }
    atomic_store(&n_updates, 0);
    CHECK_OK(stw_bound_open(o->plan, tensors, o->n, &options, &o->bound, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(o->bound);
    CU_ASSERT_TRUE(o->bound->layout->n_buckets > 70);
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

static void waits_are_for_tensors(void) {
    owner here, there;
    open_owner(&here, "host");
    open_owner(&there, "cuda");
    CU_ASSERT_TRUE(there.bound->has_thread && !here.bound->has_thread);
    for (uint64_t step = 1; step <= STEPS; step++) {
        const stw_bound_step options = options_of(step);
        unsigned before = atomic_load(&n_updates);
        CHECK_OK(stw_bound_set_gradients(here.bound, here.grads, here.n, err));
        CHECK_OK(stw_bound_begin_step(here.bound, &options, err));
        CHECK_OK(stw_bound_set_gradients(there.bound, there.grads, there.n, err));
        atomic_store(&gate_is_shut, true);
        CHECK_OK(stw_bound_begin_step(there.bound, &options, err));
        CU_ASSERT_EQUAL(atomic_load(&n_updates), before);
        atomic_store(&gate_is_shut, false);
        for (uint32_t t = 0; t < there.n; t++) {
            const uint64_t n = there.plan->job->model->tensors[t].numel;
            CHECK_OK(stw_bound_wait(there.bound, t, NULL, err));
            CU_ASSERT_EQUAL(memcmp(there.params[t], here.params[t], n * sizeof(float)), 0);
        }
        CHECK_OK(stw_bound_wait(there.bound, UINT32_MAX, NULL, err));
        CU_ASSERT_EQUAL(atomic_load(&n_updates) - before, there.bound->layout->n_buckets);
        CHECK_FAILS(stw_bound_wait(there.bound, there.n, NULL, err), STW_STATUS_USAGE, "tensor");
    }
    CHECK_OK(stw_bound_finish(there.bound, NULL, err));
    close_owner(&there);
    close_owner(&here);
}

static void closing_ends_what_is_under_way(void) {
    owner o;
    const stw_bound_step options = options_of(1);
    open_owner(&o, "cuda");
    const unsigned n = o.bound->layout->n_buckets;
    CHECK_OK(stw_bound_set_gradients(o.bound, o.grads, o.n, err));
    atomic_store(&gate_is_shut, true);
    CHECK_OK(stw_bound_begin_step(o.bound, &options, err));
    atomic_store(&gate_is_shut, false);
    close_owner(&o);
    CU_ASSERT_EQUAL(atomic_load(&n_updates), n);
}

static void a_failure_is_told(void) {
    owner o;
    const stw_bound_range range = {.component = STW_COMPONENT_EXP_AVG, .n = 1};
    const stw_bound_step options = options_of(1);
    float value;
    for (int again = 0; again < 4; again++) {
        open_owner(&o, "cuda");
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

static void a_stream_of_another_device_is_told(void) {
    owner o;
    uint64_t *counters = NULL;
    open_owner(&o, "cuda");
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
    stw_plan *spread = plan_of("placement.grads=auto", 5);
    open_owner(&o, "host");
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
              {"closing ends what is under way", closing_ends_what_is_under_way},
              {"a failure is told", a_failure_is_told},
              {"a stream of another device is told", a_stream_of_another_device_is_told},
              {"first tensors are done first", first_tensors_are_done_first})
