/* SPDX-License-Identifier: Apache-2.0 */
/* A table of the kernels' rates beside that of a copy in GPU memory. */
#ifndef STW_TESTS_GPU_KERNEL_RATES_H
#define STW_TESTS_GPU_KERNEL_RATES_H

#include "tests/gpu/typed_arrays.h"

#define BIG (256ull << 20) /* elements of each of five arrays */
#define BIG_SPANS 4096u

static struct {
    char *array[5];
    char *pinned[2]; /* BIG / 4 floats; NULL where there is no room */
    void *small;
    stw_span *spans;
} big;

static const stw_element_types all_f32 = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                          STW_ELEMENT_F32, STW_ELEMENT_F32};
static const stw_element_types mixed = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_F32,
                                        STW_ELEMENT_F32, STW_ELEMENT_F32};
static const stw_element_types bf16_f32 = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_NONE,
                                           STW_ELEMENT_F32, STW_ELEMENT_F32};
static const stw_element_types all_bf16 = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_NONE,
                                           STW_ELEMENT_BF16, STW_ELEMENT_BF16};

/* big.spans: one for all, then BIG_SPANS equal ones. */
static stw_cuda_bucket big_bucket(unsigned bytes_off) {
    stw_cuda_bucket b = {.n = BIG - 8};
    b.params = big.array[0] + bytes_off;
    b.grads = big.array[1] + bytes_off;
    b.exp_avg = big.array[2] + bytes_off;
    b.exp_avg_sq = big.array[3] + bytes_off;
    b.master = (float *)(void *)(big.array[4] + bytes_off);
    return b;
}
static void big_adamw(const stw_element_types *types, const stw_cuda_bucket *bucket) {
    static const stw_adamw none = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .bc2_sqrt = 1.0f};
    CUDA(stw_cuda_adamw(launch, &none, NULL, types, bucket));
}
static void run_adamw(void) {
    stw_cuda_bucket b = big_bucket(0);
    big_adamw(&all_f32, &b);
}
static void run_adamw_spans(void) {
    stw_cuda_bucket b = big_bucket(0);
    b.spans = big.spans + 1, b.n_spans = BIG_SPANS;
    b.params_in_spans = b.grads_in_spans = true;
    big_adamw(&all_f32, &b);
}
static void run_adamw_off(void) {
    stw_cuda_bucket b = big_bucket(4);
    b.exp_avg = big.array[2];
    big_adamw(&all_f32, &b);
}
static void run_adamw_mixed(void) {
    stw_cuda_bucket b = big_bucket(0);
    big_adamw(&mixed, &b);
}
static void run_adamw_bf16_f32(void) {
    stw_cuda_bucket b = big_bucket(0);
    big_adamw(&bf16_f32, &b);
}
static void run_adamw_bf16(void) {
    stw_cuda_bucket b = big_bucket(0);
    big_adamw(&all_bf16, &b);
}
static void run_adamw_direct(void) {
    stw_cuda_bucket b = big_bucket(0);
    b.n = BIG / 4;
    b.direct = true;
    b.exp_avg = big.pinned[0];
    b.exp_avg_sq = big.pinned[1];
    big_adamw(&all_f32, &b);
}
static void run_norm(void) {
    CUDA(stw_cuda_norm_add(launch, STW_ELEMENT_F32, big.array[0], BIG, big.small));
}
static void run_norm_off(void) {
    CUDA(stw_cuda_norm_add(launch, STW_ELEMENT_F32, big.array[0] + 4, BIG - 4, big.small));
}
static void run_norm_bf16(void) { /* of seeded gradients: print_rates */
    CUDA(stw_cuda_norm_add(launch, STW_ELEMENT_BF16, big.array[0], BIG, big.small));
}
static void run_norm_any(void) { /* fp32 as bf16: an eighth is huge, some are not finite */
    CUDA(stw_cuda_norm_add(launch, STW_ELEMENT_BF16, big.array[4], BIG, big.small));
}
static void run_bf16_to_f32(void) {
    CUDA(stw_cuda_convert(launch, STW_ELEMENT_F32, big.array[1], big.array[2], STW_CUDA_SOURCE_BF16,
                          BIG));
}
static void run_f32_to_bf16(void) {
    CUDA(stw_cuda_convert(launch, STW_ELEMENT_BF16, big.array[1], big.array[2], STW_CUDA_SOURCE_F32,
                          BIG));
}
static void run_seed(void) {
    CUDA(stw_cuda_seed_grads(launch, STW_ELEMENT_F32, big.array[0], BIG, 0, 1, 1));
}
static void run_digest(void) {
    CUDA(stw_cuda_digest(launch, STW_ELEMENT_F32, big.array[0], BIG, 0, big.small));
}
static void run_copy(void) {
    CUDA(cudaMemcpyAsync(big.array[2], big.array[3], BIG * 4, cudaMemcpyDeviceToDevice,
                         launch.stream));
}

static const struct {
    const char *name;
    uint64_t n;
    unsigned bytes; /* read and written per element; over PCIe alone for the direct engine */
    void (*run)(void);
} rates[] = {{"device copy (ceiling)", BIG, 8, run_copy},
             {"adamw f32", BIG, 28, run_adamw},
             {"adamw f32, 4096 spans", BIG, 28, run_adamw_spans},
             {"adamw f32, apart in alignment", BIG, 28, run_adamw_off},
             {"adamw bf16, f32 master, moments", BIG, 28, run_adamw_mixed},
             {"adamw bf16, f32 moments", BIG, 22, run_adamw_bf16_f32},
             {"adamw bf16", BIG, 14, run_adamw_bf16},
             {"adamw f32, moments over PCIe", BIG / 4, 16, run_adamw_direct},
             {"seed_grads f32", BIG, 4, run_seed},
             {"norm f32, seeded grads", BIG, 4, run_norm},
             {"norm f32, 4-byte aligned", BIG, 4, run_norm_off},
             {"norm bf16, seeded grads", BIG, 2, run_norm_bf16},
             {"norm bf16, any bits", BIG, 2, run_norm_any},
             {"convert bf16 to f32", BIG, 6, run_bf16_to_f32},
             {"convert f32 to bf16", BIG, 6, run_f32_to_bf16},
             {"digest f32", BIG, 4, run_digest}};

static void big_new(void) {
    static stw_span spans[BIG_SPANS + 1];
    void *memory = NULL;
    memset(&big, 0, sizeof big);
    for (int i = 0; i < 5; i++) {
        CUDA(cudaMalloc(&memory, BIG * sizeof(float)));
        big.array[i] = memory;
        CUDA(stw_cuda_seed_grads(launch, STW_ELEMENT_F32, memory, BIG, 0, (uint64_t)i, 1));
    }
    CUDA(cudaMemset(big.array[3], 0x3A, BIG * sizeof(float))); /* exp_avg_sq: not negative */
    CUDA(cudaMalloc(&big.small, 4096));
    CUDA(cudaMemset(big.small, 0, 4096));
    for (int i = 0; i < 2; i++) {
        if (cudaHostAlloc(&memory, BIG / 4 * sizeof(float), cudaHostAllocDefault) != cudaSuccess) {
            (void)cudaGetLastError(); /* no room: that row is left out */
            break;
        }
        memset(memory, 0x3A, BIG / 4 * sizeof(float));
        big.pinned[i] = memory;
    }
    const uint64_t part = BIG / BIG_SPANS;
    spans[0].n = BIG;
    for (uint64_t i = 0; i < BIG_SPANS; i++) {
        stw_span *span = &spans[i + 1];
        span->first = i * part, span->n = part;
        span->params = span->grads = i * part * sizeof(float);
        span->group = (uint32_t)(i % STW_MAX_PARAM_GROUPS);
    }
    CUDA(cudaMalloc(&memory, sizeof spans));
    CUDA(cudaMemcpy(memory, spans, sizeof spans, cudaMemcpyHostToDevice));
    big.spans = memory;
}
static void big_free(void) {
    for (int i = 0; i < 5; i++) CUDA(cudaFree(big.array[i]));
    for (int i = 0; i < 2; i++) CUDA(cudaFreeHost(big.pinned[i]));
    CUDA(cudaFree(big.small));
    CUDA(cudaFree(big.spans));
}

static void print_rates(void) {
    cudaEvent_t start, stop;
    size_t unused = 0, total = 0;
    CUDA(cudaMemGetInfo(&unused, &total));
    if (unused < 6 * BIG * sizeof(float)) {
        printf("rates: skipped, less than 6 GiB of GPU memory are free\n");
        return;
    }
    big_new();
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    printf("%-34s %10s %10s %14s\n", "kernel", "GB/s", "Gelem/s", "ms per 2^32");
    for (size_t r = 0; r < COUNT(rates); r++) {
        float best = 0;
        if (rates[r].run == run_adamw_direct && big.pinned[1] == NULL) continue;
        if (rates[r].run == run_norm || rates[r].run == run_norm_bf16)
            CUDA(stw_cuda_seed_grads(launch,
                                     rates[r].run == run_norm ? STW_ELEMENT_F32 : STW_ELEMENT_BF16,
                                     big.array[0], BIG, 0, 1, 1));
        for (int run = 0; run < 6; run++) {
            float ms = 0;
            CUDA(cudaEventRecord(start, launch.stream));
            rates[r].run();
            CUDA(cudaEventRecord(stop, launch.stream));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&ms, start, stop));
            if (run > 0 && (best <= 0 || ms < best)) best = ms;
        }
        double s = 1e-3 * (double)best, n = (double)rates[r].n;
        printf("%-34s %10.0f %10.1f %14.2f\n", rates[r].name, rates[r].bytes * n / s / 1e9,
               n / s / 1e9, s * 1e3 * 4294967296.0 / n);
    }
    big_free();
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
}

#endif
