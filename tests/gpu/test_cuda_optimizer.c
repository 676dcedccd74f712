/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer on GPU tensors of the test's: the bits of the host backend over many steps, with
 * gradients that arrive late and lie elsewhere in every step; calls return before the work is done,
 * a stream that waits for a tensor sees its new value, and no memory grows. Exit 77 without a GPU.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "backend/executor/bound.h"
#include "backend/norm.h"
#include "backend/process.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static void check_cuda(cudaError_t code, int line) {
    if (code != cudaSuccess) fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(code));
    CU_ASSERT_EQUAL(code, cudaSuccess);
}
#define CHECK_CUDA(call) check_cuda((call), __LINE__)
#define STEPS 20u
#define DELAY_BYTES                                                                                \
    (1ull << 30) /* what a stream sets again and again before it writes gradients                  \
                  */
#define DELAYS 10

static const fixture_size size = {3, 256, 512, 2000};

/* The tensors on one backend. */
typedef struct owner {
    bool gpu;
    uint32_t n;
    void **params, **grads[2];
    const void **shifted; /* addresses of a step's gradients */
    cudaStream_t writer, reader;
    void *delay;
} owner;

/* Everything in host memory, as it was after each step. */
typedef struct history {
    uint64_t *offsets; /* of tensors, in bytes; [n + 1] */
    unsigned char *params[STEPS + 1];
    unsigned char *staged; /* page-locked */
} history;

static uint64_t elements_of(const stw_plan *plan, uint32_t t) {
    return plan->job->model->tensors[t].numel;
}

static void *take(bool gpu, uint64_t bytes) {
    void *memory = NULL;
    if (gpu) CHECK_CUDA(cudaMalloc(&memory, bytes + 64));
    if (!gpu) memory = malloc(bytes + 64);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    return memory;
}

/* Page-locked: copies from it are queued. */
static unsigned char *staging(uint64_t bytes) {
    void *memory = NULL;
    CHECK_CUDA(cudaMallocHost(&memory, bytes));
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    return memory;
}

static void own(const stw_plan *plan, bool gpu, owner *o) {
    *o = (owner){.gpu = gpu, .n = plan->job->model->n_tensors};
    o->params = calloc(o->n, sizeof(void *));
    o->shifted = calloc(o->n, sizeof(void *));
    for (int k = 0; k < 2; k++) o->grads[k] = calloc(o->n, sizeof(void *));
    for (uint32_t t = 0; t < o->n; t++) {
        o->params[t] = take(gpu, elements_of(plan, t) * 4);
        for (int k = 0; k < 2; k++) o->grads[k][t] = take(gpu, elements_of(plan, t) * 4);
    }
    if (!gpu) return;
    CHECK_CUDA(cudaMalloc(&o->delay, DELAY_BYTES));
    CHECK_CUDA(cudaStreamCreateWithFlags(&o->writer, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&o->reader, cudaStreamNonBlocking));
}

static void disown(owner *o) {
    for (uint32_t t = 0; t < o->n; t++)
        for (int k = 0; k < 3; k++) {
            void *memory = k < 2 ? o->grads[k][t] : o->params[t];
            if (o->gpu) CHECK_CUDA(cudaFree(memory));
            if (!o->gpu) free(memory);
        }
    if (o->gpu) {
        CHECK_CUDA(cudaFree(o->delay));
        CHECK_CUDA(cudaStreamDestroy(o->writer));
        CHECK_CUDA(cudaStreamDestroy(o->reader));
    }
    free(o->params);
    free(o->grads[0]);
    free(o->grads[1]);
    free(o->shifted);
}

static void write_to(const owner *o, void *to, const void *from, uint64_t bytes) {
    if (!o->gpu) memcpy(to, from, bytes);
    if (o->gpu) CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, o->writer));
}

static void fill(void *values, stw_element type, uint64_t n, uint64_t seed, uint64_t step) {
    for (uint64_t e = 0; e < n; e++) {
        float x = step == 0 ? stw_seeded_weight(seed, e) : stw_seeded_grad(seed, step, e);
        if (type == STW_ELEMENT_F32)
            ((float *)values)[e] = x;
        else
            ((uint16_t *)values)[e] = stw_bf16_from_float(x);
    }
}

/* Quanta with resident state and with state on the host; the rest is streamed from the host, or
 * from NVMe. */
typedef struct share {
    uint32_t resident, host;
    bool nvme;
} share;

static stw_plan *plan_of(bool bf16, share of, const char *clip) {
    const char *const settings[] = {bf16 ? "precision.params=bf16" : "precision.params=fp32",
                                    bf16 ? "precision.grads=bf16" : "precision.grads=fp32",
                                    bf16 ? "precision.master=fp32" : "precision.master=none",
                                    "placement.params=gpu",
                                    "placement.grads=gpu",
                                    clip,
                                    NULL};
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_NVME};
    const uint32_t units[] = {of.resident, of.nvme ? of.host : UINT32_MAX, UINT32_MAX};
    stw_place taken[3];
    uint32_t of_taken[3], n = 0;
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    for (int i = 0; i < (of.nvme ? 3 : 2); i++) {
        taken[n] = places[i];
        of_taken[n] = units[i];
        n += units[i] > 0;
    }
    fixture_state(plan, n, taken, of_taken);
    plan->decisions.prefetch.depth = 3;
    plan->decisions.prefetch.bucket_bytes = 256 << 10;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_bound *open_on(const stw_plan *plan, owner *o, unsigned char *scratch) {
    stw_bound_tensor *tensors = calloc(o->n, sizeof *tensors);
    const stw_bound_options options = {.backend = o->gpu ? "cuda" : "host",
                                       .nvme_folder = getenv("STW_TEST_NVME"),
                                       .nvme_in_memory = true};
    const stw_dtype dtype = plan->run.precision.params;
    const stw_element type = dtype == STW_DTYPE_BF16 ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
    stw_bound *bound = NULL;
    for (uint32_t t = 0; t < o->n; t++) {
        const uint64_t n = elements_of(plan, t);
        fill(scratch, type, n, t + 1, 0);
        write_to(o, o->params[t], scratch, n * stw_element_bytes(type));
        if (o->gpu) CHECK_CUDA(cudaStreamSynchronize(o->writer));
        tensors[t] =
            (stw_bound_tensor){plan->job->model->tensors[t].name, dtype, o->params[t], n, t % 3};
    }
    CHECK_OK(stw_bound_open(plan, tensors, o->n, &options, &bound, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(bound);
    free(tensors);
    return bound;
}

/* Gradients of a step, late, elsewhere than before, at odd elements. */
static void bind(stw_bound *bound, const stw_plan *plan, owner *o, uint64_t step,
                 unsigned char *scratch) {
    const bool bf16 = plan->run.precision.grads == STW_DTYPE_BF16;
    const stw_element type = bf16 ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
    const uint64_t each = stw_element_bytes(type);
    for (uint64_t t = 0, done = 0; t < o->n; done += elements_of(plan, (uint32_t)t++) * 4)
        fill(scratch + done, type, elements_of(plan, (uint32_t)t), 7 * t, step);
    for (int k = 0; o->gpu && k < DELAYS; k++)
        CHECK_CUDA(cudaMemsetAsync(o->delay, k, DELAY_BYTES, o->writer));
    for (uint64_t t = 0, done = 0; t < o->n; t++) {
        const uint64_t n = elements_of(plan, (uint32_t)t);
        unsigned char *to = (unsigned char *)o->grads[step % 2][t] + (step + t) % 5 * each;
        write_to(o, to, scratch + done, n * each);
        o->shifted[t] = to;
        done += n * 4;
    }
    CHECK_OK(stw_bound_set_gradients(bound, o->shifted, o->n, err));
}

static void step_of(stw_bound *bound, const owner *o, double clip_norm, uint64_t step) {
    uint64_t *counters = NULL;
    for (uint32_t g = 0; g < 3; g++)
        CHECK_OK(stw_bound_set_group(bound, g, 1e-3 / (double)(step + g), 0.1 * g, err));
    if (clip_norm > 0) CHECK_OK(stw_bound_begin_norm(bound, true, o->writer, &counters, err));
    const stw_bound_step options = {step, 0.9, 0.999, 1e-8, clip_norm, o->writer};
    CHECK_OK(stw_bound_begin_step(bound, &options, err));
}

/* Every tensor as soon as it is done; every second step the last one first. */
static void read_params(stw_bound *bound, const stw_plan *plan, const owner *o, const history *h,
                        bool from_the_end, unsigned char *out) {
    const uint64_t each = stw_dtype_bits(plan->run.precision.params) / 8;
    for (uint32_t i = 0; i < o->n; i++) {
        const uint32_t t = from_the_end ? o->n - 1 - i : i;
        const uint64_t bytes = elements_of(plan, t) * each;
        CHECK_OK(stw_bound_wait(bound, t, o->reader, err));
        if (o->gpu) {
            CHECK_CUDA(cudaMemcpyAsync(h->staged + h->offsets[t], o->params[t], bytes,
                                       cudaMemcpyDeviceToHost, o->reader));
        } else {
            memcpy(out + h->offsets[t], o->params[t], bytes);
        }
    }
    if (!o->gpu) return;
    CHECK_CUDA(cudaStreamSynchronize(o->reader));
    memcpy(out, h->staged, h->offsets[o->n]);
}

static void make_history(const stw_plan *plan, history *h) {
    const uint64_t each = stw_dtype_bits(plan->run.precision.params) / 8;
    const uint32_t n = plan->job->model->n_tensors;
    h->offsets = calloc(n + 1, sizeof *h->offsets);
    for (uint32_t t = 0; t < n; t++)
        h->offsets[t + 1] = h->offsets[t] + elements_of(plan, t) * each;
    for (uint32_t s = 0; s <= STEPS; s++) h->params[s] = calloc(1, h->offsets[n]);
    CHECK_CUDA(cudaMallocHost((void **)&h->staged, h->offsets[n]));
}

static void free_history(history *h) {
    for (uint32_t s = 0; s <= STEPS; s++) free(h->params[s]);
    CHECK_CUDA(cudaFreeHost(h->staged));
    free(h->offsets);
}

static uint64_t used_gpu(void) {
    size_t unused = 0, total = 0;
    CHECK_CUDA(cudaMemGetInfo(&unused, &total));
    return total - unused;
}

static void compare_state(stw_bound *a, stw_bound *b, const stw_plan *plan) {
    static const stw_component components[] = {STW_COMPONENT_MASTER, STW_COMPONENT_EXP_AVG,
                                               STW_COMPONENT_EXP_AVG_SQ};
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++)
        for (int c = plan->run.precision.has_master ? 0 : 1; c < 3; c++) {
            const uint64_t n = elements_of(plan, t);
            const stw_bound_range range = {components[c], t, 0, n};
            float *x = calloc(n + 1, sizeof *x), *y = calloc(n + 1, sizeof *y);
            CHECK_OK(stw_bound_copy_state(a, &range, false, x, err));
            CHECK_OK(stw_bound_copy_state(b, &range, false, y, err));
            CU_ASSERT_EQUAL(memcmp(x, y, n * sizeof *x), 0);
            /* and back to where it came from */
            CHECK_OK(stw_bound_copy_state(b, &range, true, y, err));
            free(x);
            free(y);
        }
}

static void has_the_bits_of_the_host(bool bf16, share of, double clip_norm) {
    stw_plan *plan = plan_of(bf16, of, "optimizer.clip_norm=1");
    stw_bound *bounds[2] = {NULL, NULL};
    owner owners[2];
    history h = {NULL};
    uint64_t all = 0, before = 0;
    int not_ready = 0;
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++) all += elements_of(plan, t);
    unsigned char *scratch = staging(all * 4), *found = malloc(all * 4);
    make_history(plan, &h);
    for (int gpu = 0; gpu < 2; gpu++) {
        own(plan, gpu == 1, &owners[gpu]);
        bounds[gpu] = open_on(plan, &owners[gpu], scratch);
        for (uint64_t step = 1; step <= STEPS; step++) {
            double start = stw_process_now_s();
            bind(bounds[gpu], plan, &owners[gpu], step, scratch);
            step_of(bounds[gpu], &owners[gpu], clip_norm, step);
            if (gpu == 1 && cudaStreamQuery(owners[1].writer) == cudaErrorNotReady) not_ready++;
            double begun = stw_process_now_s();
            read_params(bounds[gpu], plan, &owners[gpu], &h, step % 2 == 1,
                        gpu ? found : h.params[step]);
            if (gpu == 1 && step == 2)
                printf("\n  begun in %.3f ms, read in %.3f ms\n", 1e3 * (begun - start),
                       1e3 * (stw_process_now_s() - begun));
            if (gpu == 1) CU_ASSERT_EQUAL(memcmp(found, h.params[step], h.offsets[owners[1].n]), 0);
            if (gpu == 1 && step == 2) before = used_gpu();
        }
    }
    CU_ASSERT_EQUAL(used_gpu(), before);
    CU_ASSERT_EQUAL(not_ready, (int)STEPS); /* nobody waited for the gradients */
    stw_bound_sample samples[2];
    for (int k = 0; k < 2; k++) CHECK_OK(stw_bound_finish(bounds[k], &samples[k], err));
    CU_ASSERT_EQUAL(isnan(samples[1].norm) != 0, clip_norm == 0);
    CU_ASSERT_TRUE(clip_norm == 0 || samples[0].norm == samples[1].norm);
    CU_ASSERT_TRUE(samples[0].clip_factor == samples[1].clip_factor);
    CU_ASSERT_TRUE(samples[1].seconds > 0 && samples[1].seconds < 10);
    compare_state(bounds[0], bounds[1], plan);
    for (int k = 0; k < 2; k++) {
        stw_bound_close(bounds[k]);
        disown(&owners[k]);
    }
    free_history(&h);
    CHECK_CUDA(cudaFreeHost(scratch));
    free(found);
    stw_plan_free(plan);
}

static const share all_resident = {UINT32_MAX, 0, false}, all_streamed = {0, 0, false};
static void resident(void) {
    has_the_bits_of_the_host(false, all_resident, 0.5);
    has_the_bits_of_the_host(true, all_resident, 0);
}
static void streamed(void) {
    has_the_bits_of_the_host(false, all_streamed, 0.5);
    has_the_bits_of_the_host(true, all_streamed, 0.5);
    has_the_bits_of_the_host(true, all_streamed, 0);
}
static void mixed(void) {
    has_the_bits_of_the_host(false, (share){100, 0, false}, 0);
    has_the_bits_of_the_host(true, (share){100, 0, false}, 0.5);
}
/* In a file of $STW_TEST_NVME, else of /tmp. */
static void on_nvme(void) {
    has_the_bits_of_the_host(false, (share){0, 0, true}, 0.5);
    has_the_bits_of_the_host(true, (share){0, 0, true}, 0);
    has_the_bits_of_the_host(true, (share){100, 200, true}, 0.5);
}

/* Counters of gradients of every magnitude, with a few that are not finite. */
static void norms(void) {
    for (int way = 0; way < 6; way++) {
        const bool bf16 = way % 2 == 1;
        stw_plan *plan = plan_of(bf16, all_resident, "optimizer.clip_norm=1");
        const uint64_t each = bf16 ? 2 : 4;
        uint64_t counters[2][STW_NORM_COUNTERS], *at = NULL, longest = 0;
        for (uint32_t t = 0; t < plan->job->model->n_tensors; t++)
            if (elements_of(plan, t) > longest) longest = elements_of(plan, t);
        unsigned char *scratch = staging(longest * 4);
        for (int gpu = 0; gpu < 2; gpu++) {
            owner o;
            own(plan, gpu == 1, &o);
            stw_bound *bound = open_on(plan, &o, scratch);
            for (uint32_t t = 0; t < o.n; t++) {
                const uint64_t n = elements_of(plan, t);
                for (uint64_t e = 0; e < n; e++) {
                    uint32_t bits = (uint32_t)stw_mix64(1000003 * (uint64_t)t + e + (uint64_t)way);
                    if (way < 4 && (bits >> 23 & 255) == 255) bits ^= 1u << 30;
                    if (bf16)
                        ((uint16_t *)scratch)[e] = (uint16_t)(bits >> 16);
                    else
                        ((uint32_t *)scratch)[e] = bits;
                }
                o.shifted[t] = (unsigned char *)o.grads[0][t] + (t + (uint64_t)way) % 7 * each;
                write_to(&o, (void *)(uintptr_t)o.shifted[t], scratch, n * each);
                if (gpu == 1) CHECK_CUDA(cudaStreamSynchronize(o.writer));
            }
            CHECK_OK(stw_bound_set_gradients(bound, o.shifted, o.n, err));
            CHECK_OK(stw_bound_begin_norm(bound, true, o.writer, &at, err));
            if (gpu == 1) {
                CHECK_CUDA(cudaMemcpyAsync(counters[1], at, sizeof counters[1],
                                           cudaMemcpyDeviceToHost, o.writer));
                CHECK_CUDA(cudaStreamSynchronize(o.writer));
            } else {
                memcpy(counters[0], at, sizeof counters[0]);
            }
            stw_bound_close(bound);
            disown(&o);
        }
        CU_ASSERT_EQUAL(memcmp(counters[0], counters[1], sizeof counters[0]), 0);
        CU_ASSERT_EQUAL(counters[0][2 * STW_NORM_BINS] > 0, way >= 4);
        CHECK_CUDA(cudaFreeHost(scratch));
        stw_plan_free(plan);
    }
}

/* Two optimizers, and one that is closed with work under way. */
static void closes_with(share of) {
    stw_plan *plan = plan_of(true, of, "optimizer.clip_norm=1");
    uint64_t all = 0;
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++) all += elements_of(plan, t);
    unsigned char *scratch = staging(all * 4);
    owner owners[2];
    stw_bound *bounds[2];
    for (int k = 0; k < 2; k++) {
        own(plan, true, &owners[k]);
        bounds[k] = open_on(plan, &owners[k], scratch);
    }
    for (uint64_t step = 1; step <= 3; step++)
        for (int k = 0; k < 2; k++) {
            bind(bounds[k], plan, &owners[k], step, scratch);
            step_of(bounds[k], &owners[k], 1, step);
            CHECK_CUDA(cudaStreamSynchronize(owners[k].writer)); /* of `scratch` */
        }
    for (int k = 0; k < 2; k++) {
        stw_bound_close(bounds[k]);
        CHECK_CUDA(cudaDeviceSynchronize());
        disown(&owners[k]);
    }
    CHECK_CUDA(cudaFreeHost(scratch));
    stw_plan_free(plan);
}

static void closes_under_way(void) {
    closes_with((share){50, 0, false});
    closes_with((share){50, 50, true});
}

int main(void) {
    static const stw_test tests[] = {
        {"norms", norms}, {"resident", resident}, {"streamed", streamed},
        {"mixed", mixed}, {"on NVMe", on_nvme},   {"closes under way", closes_under_way}};
    const stw_backend *cuda = stw_backend_cuda_find();
    char why[200] = "";
    if (cuda == NULL || !cuda->available(why, sizeof why)) {
        printf("no GPU: %s\n", why);
        return 77;
    }
    return stw_test_run_all("cuda optimizer", tests, sizeof tests / sizeof tests[0]);
}
