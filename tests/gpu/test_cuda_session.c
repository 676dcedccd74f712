/* SPDX-License-Identifier: Apache-2.0 */
/* A session in GPU and host memory and on streams that the test owns: the bits of an execution, for
 * gradients that are still on their way when the step is asked for. Exit 77 without a GPU. */
#define _DEFAULT_SOURCE /* posix_memalign */
#include <cuda_runtime_api.h>
#include <math.h>

#include "backend/executor/session.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#define CHECK_CUDA(call) CU_ASSERT_EQUAL((call), cudaSuccess)
#define STEPS 3u
/* What a stream sets again and again before it writes gradients. */
#define DELAY_BYTES (1ull << 30)

static const fixture_size size = {3, 256, 512, 2000};

/* What a training program has. */
typedef struct owner {
    stw_device_config config; /* external memory and streams */
    cudaStream_t compute, back;
    void *gpu, *host, *grads, *delay;
} owner;

static void own(const stw_layout *layout, owner *o) {
    uint64_t gpu = layout->arena_bytes[STW_TIER_GPU], host = layout->arena_bytes[STW_TIER_HOST];
    memset(o, 0, sizeof *o);
    CHECK_CUDA(cudaMalloc(&o->gpu, gpu));
    CHECK_CUDA(cudaMalloc(&o->grads, gpu));
    CHECK_CUDA(cudaMalloc(&o->delay, DELAY_BYTES));
    CU_ASSERT_EQUAL(posix_memalign(&o->host, 4096, host), 0);
    CHECK_CUDA(cudaStreamCreateWithFlags(&o->compute, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&o->back, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMemset(o->gpu, 0xff, gpu));
    memset(o->host, 0xff, host);
    o->config.external[STW_TIER_GPU] = (stw_external_arena){o->gpu, gpu};
    o->config.external[STW_TIER_HOST] = (stw_external_arena){o->host, host};
    o->config.streams[STW_STREAM_COMPUTE] = o->compute;
    o->config.streams[STW_STREAM_D2H] = o->back;
}

static void disown(owner *o) {
    CHECK_CUDA(cudaStreamDestroy(o->compute)); /* still the test's */
    CHECK_CUDA(cudaStreamDestroy(o->back));
    CHECK_CUDA(cudaFree(o->gpu));
    CHECK_CUDA(cudaFree(o->grads));
    CHECK_CUDA(cudaFree(o->delay));
    free(o->host);
}

/* Gradients arrive late on the owner's stream, as from a backward pass. */
static void write_gradients(const stw_layout *layout, const owner *o) {
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component != STW_COMPONENT_GRADS || r->tier != STW_TIER_GPU) continue;
        unsigned char *at = (unsigned char *)o->gpu + r->offset_bytes;
        unsigned char *kept = (unsigned char *)o->grads + r->offset_bytes;
        CHECK_CUDA(cudaMemcpy(kept, at, r->bytes, cudaMemcpyDeviceToDevice));
        CHECK_CUDA(cudaMemset(at, 0xff, r->bytes));
        CHECK_CUDA(cudaDeviceSynchronize());
        for (int k = 0; k < 20; k++)
            CHECK_CUDA(cudaMemsetAsync(o->delay, k, DELAY_BYTES, o->compute));
        CHECK_CUDA(cudaMemcpyAsync(at, kept, r->bytes, cudaMemcpyDeviceToDevice, o->compute));
        CU_ASSERT_EQUAL(cudaStreamQuery(o->compute), cudaErrorNotReady);
    }
}

static void take_steps(stw_session *session, const stw_layout *layout, const owner *o) {
    for (uint64_t step = 1; step <= STEPS; step++) {
        stw_session_sample sample;
        stw_phase phase = step == 1 ? STW_PHASE_FIRST_OPTIMIZER_STEP : STW_PHASE_OPTIMIZER_STEP;
        CHECK_OK(stw_session_seed_grads(session, step, err));
        write_gradients(layout, o);
        CHECK_OK(stw_session_issue(session, phase, step, &sample, err));
        CU_ASSERT_TRUE(sample.grad_norm > 0);
    }
}

static stw_plan *plan_of(stw_place place) {
    static const char *const settings[] = {"precision.params=bf16", "precision.master=fp32",
                                           "optimizer.clip_norm=1", NULL};
    const uint32_t all = UINT32_MAX;
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 1, &place, &all);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static void has_the_bits_of(stw_place place) {
    stw_plan *plan = plan_of(place);
    const stw_layout *layout = plan->layouts[0];
    stw_executor_options options = {.backend = "cuda", .steps = STEPS, .seed = 3};
    stw_run_result *result = NULL;
    stw_session *session = NULL;
    stw_session_sample sample;
    uint64_t digest[STW_N_DIGESTS];
    owner o;
    CHECK_OK(stw_execute(plan, &options, &result, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(result);
    own(layout, &o);
    options.caller = &o.config;
    for (int adopts = 0; adopts < 2; adopts++) {
        CHECK_OK(stw_session_open(plan, &options, &session, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(session);
        CHECK_OK(stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, err));
        if (adopts) { /* the parameters stay in the owner's memory */
            stw_session_close(session);
            CHECK_OK(stw_session_open(plan, &options, &session, err));
            CU_ASSERT_PTR_NOT_NULL_FATAL(session);
            CHECK_OK(stw_session_adopt(session, err));
        }
        take_steps(session, layout, &o);
        CHECK_OK(stw_session_digest(session, digest, err));
        CU_ASSERT_EQUAL(memcmp(digest, result->digest, sizeof digest), 0);
        stw_session_close(session);
        CHECK_CUDA(cudaStreamSynchronize(o.compute));
    }
    disown(&o);
    stw_run_result_free(result);
    stw_plan_free(plan);
}

static void resident(void) { has_the_bits_of((stw_place)FIXTURE_RESIDENT); }
static void streamed(void) { has_the_bits_of((stw_place)FIXTURE_STREAM); }
static void direct(void) { has_the_bits_of((stw_place)FIXTURE_DIRECT); }
static void on_the_cpu(void) { has_the_bits_of((stw_place)FIXTURE_CPU); }

/* ---- gradients that are not finite ---- */

static void be_quiet(stw_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

/* The bits, norm and factor that the host backend gives them; a step that is refused. */
static void not_finite_in(stw_place place) {
    static const float values[] = {(float)NAN, (float)INFINITY, -(float)INFINITY};
    stw_plan *plan = plan_of(place);
    stw_log_set(be_quiet, NULL);
    for (uint64_t i = 0; i < 3; i++) {
        stw_executor_options options = {.steps = STEPS,
                                        .seed = 3,
                                        .nvme_in_memory = true,
                                        .other_grad = {STEPS, 1000003 - 500 * i, values[i]}};
        stw_run_result *results[2] = {NULL, NULL};
        for (int b = 0; b < 2; b++) {
            options.backend = b == 0 ? "host" : "cuda";
            CHECK_OK(stw_execute(plan, &options, &results[b], err));
        }
        CU_ASSERT_TRUE_FATAL(results[0] != NULL && results[1] != NULL);
        for (int d = 0; d < STW_N_DIGESTS; d++)
            CU_ASSERT_EQUAL(results[0]->digest[d], results[1]->digest[d]);
        CU_ASSERT_EQUAL(isnan(results[1]->grad_norm) != 0, i == 0);
        CU_ASSERT_EQUAL(isinf(results[1]->grad_norm) != 0, i > 0);
        CU_ASSERT_EQUAL(isnan(results[1]->clip_factor) != 0, i == 0);
        CU_ASSERT_EQUAL(results[1]->first_nonfinite_step, STEPS);
        CU_ASSERT_EQUAL(results[1]->mismatched, 0);
        for (int b = 0; b < 2; b++) stw_run_result_free(results[b]);
        stw_run_result *none = NULL;
        options.error_if_nonfinite = true;
        CHECK_FAILS(stw_execute(plan, &options, &none, err), STW_STATUS_BAD_INPUT,
                    i == 0 ? "is NaN (parameter group 0, bucket"
                           : "is infinite (parameter group 0");
    }
    stw_log_set(NULL, NULL);
    stw_plan_free(plan);
}

static void not_finite(void) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM,  FIXTURE_DIRECT,
                                       FIXTURE_CPU,      FIXTURE_CPU_ALL, FIXTURE_NVME};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) not_finite_in(places[i]);
}

int main(void) {
    static const stw_test tests[] = {{"not finite", not_finite},
                                     {"resident", resident},
                                     {"streamed", streamed},
                                     {"direct", direct},
                                     {"on the CPU", on_the_cpu}};
    const stw_backend *cuda = stw_backend_cuda_find();
    char why[200] = "";
    if (cuda == NULL || !cuda->available(why, sizeof why)) {
        printf("no GPU: %s\n", why);
        return 77;
    }
    return stw_test_run_all("cuda session", tests, sizeof tests / sizeof tests[0]);
}
