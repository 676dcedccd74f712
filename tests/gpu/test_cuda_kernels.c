/* SPDX-License-Identifier: Apache-2.0 */
/* Every CUDA kernel against the host's, bit for bit, over sizes and alignments; then a table of
 * their rates. Exit 77 without a GPU. Needs no file and no other program at run time. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels.h"
#include "backend/host/kernels.h"
#include "backend/norm.h"

static unsigned failures;
static stw_cuda_launch launch;
static stw_threads *threads;

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* What failed is printed once per line of this file, then counted. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            if (failures++ < 20) {                                                                 \
                fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                    \
                fprintf(stderr, __VA_ARGS__);                                                      \
                fprintf(stderr, "\n");                                                             \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static const uint64_t sizes[] = {0,    1,    2,    3,     4,      5,       7,      8,    31,
                                 32,   33,   127,  255,   256,    257,     1023,   1025, 1535,
                                 1536, 1537, 4099, 65537, 202753, 1000003, 4194307};
#define N_SIZES (sizeof sizes / sizeof sizes[0])
#define MOST 4194307u
#define GUARD 16u /* elements before and after, which nobody may touch */

/* Offsets of the four arrays, in elements: the fast path, and ways off it. */
static const unsigned alignments[][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {0, 1, 2, 3}, {0, 0, 2, 0}};
#define N_ALIGNMENTS (sizeof alignments / sizeof alignments[0])

static uint64_t random_state = 0x243F6A8885A308D3ull;
static uint64_t random64(void) { return stw_mix64(random_state++); }

/* Signed, with exponents from `low` to `high`, and some zeros and subnormals. */
static float random_float(int low, int high, int positive) {
    uint64_t r = random64();
    uint32_t sign = positive ? 0 : (uint32_t)(r >> 63) << 31;
    uint32_t kind = (uint32_t)(r >> 32) & 63u;
    uint32_t mantissa = (uint32_t)r & 0x7FFFFFu;
    if (kind == 0) return stw_float_from_bits(sign);
    if (kind == 1) return stw_float_from_bits(sign | mantissa);
    uint32_t exponent = (uint32_t)(low + (int)((r >> 40) % (uint64_t)(high - low + 1)) + 127);
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}

/* A host array and its copy on the GPU, GUARD elements around n at an offset. */
typedef struct array {
    float *host, *seen; /* what the host computes; what came back */
    float *device;
} array;

static const size_t room = (size_t)(MOST + 2 * GUARD + 4) * sizeof(float);

static array array_new(void) {
    array a = {malloc(room), malloc(room), NULL};
    void *memory = NULL;
    if (a.host == NULL || a.seen == NULL) exit(1);
    CUDA(cudaMalloc(&memory, room));
    a.device = memory;
    return a;
}

static void array_free(array *a) {
    free(a->host);
    free(a->seen);
    CUDA(cudaFree(a->device));
}

static void fill(array *a, int low, int high, int positive) {
    for (size_t i = 0; i < room / sizeof(float); i++)
        a->host[i] = random_float(low, high, positive);
}
static void put(const array *a, uint64_t n) {
    size_t bytes = (size_t)(n + 2 * GUARD + 4) * sizeof(float);
    CUDA(cudaMemcpyAsync(a->device, a->host, bytes, cudaMemcpyHostToDevice, launch.stream));
}
static void same(const array *a, uint64_t n, const char *what, unsigned alignment) {
    size_t bytes = (size_t)(n + 2 * GUARD + 4) * sizeof(float);
    CUDA(cudaMemcpyAsync(a->seen, a->device, bytes, cudaMemcpyDeviceToHost, launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
    if (memcmp(a->seen, a->host, bytes) == 0) return;
    for (uint64_t i = 0; i < n + 2 * GUARD + 4; i++) {
        uint32_t gpu = stw_bits_from_float(a->seen[i]), cpu = stw_bits_from_float(a->host[i]);
        if (gpu == cpu) continue;
        CHECK(0, "%s, n %llu, alignment %u: element %lld is %08x on the GPU, %08x on the host",
              what, (unsigned long long)n, alignment, (long long)i - GUARD, gpu, cpu);
        return;
    }
}

/* ---- kernels ---- */

static void test_adamw(void) {
    array p = array_new(), g = array_new(), m = array_new(), v = array_new();
    const stw_adamw cases[] = {
        stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.01, 1, 0, 1.0f),
        stw_adamw_make(3e-4, 0.9, 0.95, 1e-8, 0.1, 7, 1, 0.37f),
        stw_adamw_make(1e-5, 0.8, 0.99, 1e-6, 0.0, 100000, 1, 1.0f),
    };
    fill(&p, -20, 4, 0);
    fill(&g, -60, 10, 0);
    fill(&m, -60, 10, 0);
    fill(&v, -120, 20, 1);
    for (size_t s = 0; s < N_SIZES; s++) {
        for (unsigned a = 0; a < N_ALIGNMENTS; a++) {
            const unsigned *at = alignments[a];
            const stw_adamw *adamw = &cases[(s + a) % 3];
            uint64_t n = sizes[s];
            put(&p, n), put(&g, n), put(&m, n), put(&v, n);
            CUDA(stw_cuda_adamw(launch, adamw, p.device + GUARD + at[0], g.device + GUARD + at[1],
                                m.device + GUARD + at[2], v.device + GUARD + at[3], n));
            stw_host_adamw(threads, adamw, p.host + GUARD + at[0], g.host + GUARD + at[1],
                           m.host + GUARD + at[2], v.host + GUARD + at[3], n);
            same(&p, n, "adamw params", a);
            same(&g, n, "adamw grads", a);
            same(&m, n, "adamw exp_avg", a);
            same(&v, n, "adamw exp_avg_sq", a);
        }
    }
    array_free(&p), array_free(&g), array_free(&m), array_free(&v);
}

static stw_norm_bins *device_bins;

static void norm_case(array *g, uint64_t n, unsigned offset, unsigned turns, const char *what) {
    stw_norm_bins gpu, host = {.not_finite = 0};
    CUDA(cudaMemsetAsync(device_bins, 0, sizeof *device_bins, launch.stream));
    put(g, n);
    for (unsigned t = 0; t < turns; t++) {
        CUDA(stw_cuda_norm_add(launch, g->device + GUARD + offset, n, device_bins));
        stw_host_norm_add(threads, g->host + GUARD + offset, n, &host);
    }
    CUDA(cudaMemcpyAsync(&gpu, device_bins, sizeof gpu, cudaMemcpyDeviceToHost, launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
    stw_norm_normalise(&gpu);
    stw_norm_normalise(&host);
    CHECK(memcmp(&gpu, &host, sizeof gpu) == 0, "norm of %s, n %llu, offset %u: %.17g, not %.17g",
          what, (unsigned long long)n, offset, stw_norm_value(&gpu), stw_norm_value(&host));
}

static void set_all(array *a, uint32_t bits) {
    for (size_t i = 0; i < room / sizeof(float); i++) a->host[i] = stw_float_from_bits(bits);
}

static void test_norm(void) {
    array g = array_new();
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, sizeof *device_bins));
    device_bins = memory;
    fill(&g, -126, 127, 0);
    for (size_t s = 0; s < N_SIZES; s++)
        for (unsigned offset = 0; offset < 4; offset++)
            norm_case(&g, sizes[s], offset, 1u + (unsigned)(s + offset) % 3u, "all exponents");
    set_all(&g, 0x7F7FFFFFu);
    norm_case(&g, MOST, 0, 3, "the largest float");
    set_all(&g, 0x807FFFFFu);
    norm_case(&g, MOST, 1, 3, "the largest subnormal");
    set_all(&g, 0x00000001u);
    norm_case(&g, MOST, 0, 3, "the smallest subnormal");
    set_all(&g, 0x80000000u);
    norm_case(&g, MOST, 2, 1, "minus zero");
    fill(&g, -10, 10, 0);
    for (size_t i = 0; i < MOST; i += 1001) g.host[i] = i % 2 == 0 ? (float)INFINITY : (float)NAN;
    norm_case(&g, MOST, 0, 1, "infinities and NaNs");
    norm_case(&g, 1000003, 3, 2, "infinities and NaNs");
    CUDA(cudaFree(memory));
    array_free(&g);
}

static void test_convert(void) {
    static const struct {
        stw_dtype dtype;
        stw_cuda_source source;
        unsigned bytes;
    } kinds[] = {{STW_DTYPE_F64, STW_CUDA_SOURCE_F64, 8},
                 {STW_DTYPE_F32, STW_CUDA_SOURCE_F32, 4},
                 {STW_DTYPE_F16, STW_CUDA_SOURCE_F16, 2},
                 {STW_DTYPE_BF16, STW_CUDA_SOURCE_BF16, 2},
                 {STW_DTYPE_F8_E4M3, STW_CUDA_SOURCE_F8_E4M3, 1},
                 {STW_DTYPE_F8_E5M2, STW_CUDA_SOURCE_F8_E5M2, 1}};
    array to = array_new();
    const size_t bytes = (MOST + 8u) * 8u;
    unsigned char *from = malloc(bytes);
    void *device_from = NULL;
    if (from == NULL) exit(1);
    CUDA(cudaMalloc(&device_from, bytes));
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        /* All patterns of the small types, in order; random bits, without NaNs, of the large. */
        for (uint64_t i = 0; i < MOST + 8u; i++) {
            uint16_t half = (uint16_t)i;
            float single = random_float(-126, 127, 0);
            double wide = (double)single * (1.0 + 0x1p-24 + (double)(random64() >> 12) * 0x1p-60);
            if (kinds[k].bytes == 8) memcpy(from + 8 * i, &wide, 8);
            if (kinds[k].bytes == 4) memcpy(from + 4 * i, &single, 4);
            if (kinds[k].bytes == 2) memcpy(from + 2 * i, &half, 2);
            if (kinds[k].bytes == 1) from[i] = (unsigned char)i;
        }
        CUDA(cudaMemcpyAsync(device_from, from, bytes, cudaMemcpyHostToDevice, launch.stream));
        for (size_t s = 0; s < N_SIZES; s++) {
            for (unsigned a = 0; a < 4; a++) {
                uint64_t n = sizes[s];
                size_t skip = (size_t)a * kinds[k].bytes;
                unsigned at = a == 3 ? 0 : a;
                fill(&to, -3, 3, 0);
                put(&to, n);
                CUDA(stw_cuda_convert(launch, to.device + GUARD + at,
                                      (unsigned char *)device_from + skip, kinds[k].source, n));
                stw_host_convert(threads, to.host + GUARD + at, from + skip, kinds[k].dtype, n);
                same(&to, n, stw_dtype_name(kinds[k].dtype), a);
            }
        }
    }
    CUDA(cudaFree(device_from));
    free(from);
    array_free(&to);
}

static void test_values(void) {
    array a = array_new();
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, sizeof(uint64_t)));
    uint64_t *device_sum = memory;
    for (size_t s = 0; s < N_SIZES; s++) {
        for (unsigned offset = 0; offset < 4; offset++) {
            uint64_t n = sizes[s], element = offset * 0x123456789ull, seen = 0;
            fill(&a, -100, 100, 0);
            put(&a, n);
            CUDA(stw_cuda_seed_grads(launch, a.device + GUARD + offset, n, element, 42, s + 1));
            stw_host_seed_grads(threads, a.host + GUARD + offset, n, element, 42, s + 1);
            same(&a, n, "seeded gradients", offset);
            uint64_t start = random64();
            CUDA(cudaMemcpyAsync(device_sum, &start, sizeof start, cudaMemcpyHostToDevice,
                                 launch.stream));
            CUDA(stw_cuda_digest(launch, a.device + GUARD + offset, n, element, device_sum));
            CUDA(cudaMemcpyAsync(&seen, device_sum, sizeof seen, cudaMemcpyDeviceToHost,
                                 launch.stream));
            CUDA(cudaStreamSynchronize(launch.stream));
            uint64_t wanted = start + stw_host_digest(threads, a.host + GUARD + offset, n, element);
            CHECK(seen == wanted, "digest, n %llu: %016llx, not %016llx", (unsigned long long)n,
                  (unsigned long long)seen, (unsigned long long)wanted);
        }
    }
    CUDA(cudaFree(memory));
    array_free(&a);
}

/* ---- rates ---- */

#define BIG (256ull << 20) /* elements of each of four arrays */

typedef struct big {
    float *array[4];
    void *small;
} big;

static void run_adamw(const big *b, uint64_t offset) {
    static const stw_adamw none = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .bc2_sqrt = 1.0f};
    CUDA(stw_cuda_adamw(launch, &none, b->array[0] + offset, b->array[1] + offset,
                        b->array[2] + offset, b->array[3] + offset, BIG - 4));
}
static void run_adamw_off(const big *b, uint64_t offset) { run_adamw(b, offset + 1); }
static void run_norm(const big *b, uint64_t offset) {
    CUDA(stw_cuda_norm_add(launch, b->array[0] + offset, BIG - 4, b->small));
}
static void run_norm_off(const big *b, uint64_t offset) { run_norm(b, offset + 1); }
static void run_bf16(const big *b, uint64_t offset) {
    CUDA(stw_cuda_convert(launch, b->array[1], (uint16_t *)(void *)b->array[2] + offset,
                          STW_CUDA_SOURCE_BF16, BIG));
}
static void run_bf16_off(const big *b, uint64_t offset) { run_bf16(b, offset + 1); }
static void run_seed(const big *b, uint64_t offset) {
    CUDA(stw_cuda_seed_grads(launch, b->array[0], BIG, offset, 1, 1));
}
static void run_digest(const big *b, uint64_t offset) {
    CUDA(stw_cuda_digest(launch, b->array[0], BIG, offset, b->small));
}
static void run_copy(const big *b, uint64_t offset) {
    (void)offset;
    CUDA(cudaMemcpyAsync(b->array[2], b->array[3], BIG * 4, cudaMemcpyDeviceToDevice,
                         launch.stream));
}

static void print_rates(void) {
    static const struct {
        const char *name;
        unsigned bytes; /* read and written per element */
        void (*run)(const big *b, uint64_t offset);
    } rows[] = {{"device copy (ceiling)", 8, run_copy},
                {"adamw", 28, run_adamw},
                {"adamw, 4-byte aligned", 28, run_adamw_off},
                {"seed_grads", 4, run_seed},
                {"norm, seeded grads", 4, run_norm},
                {"norm, 4-byte aligned", 4, run_norm_off},
                {"convert bf16", 6, run_bf16},
                {"convert bf16, 2-byte aligned", 6, run_bf16_off},
                {"digest", 4, run_digest}};
    big b;
    cudaEvent_t start, stop;
    size_t unused = 0, total = 0;
    CUDA(cudaMemGetInfo(&unused, &total));
    if (unused < 5 * BIG * sizeof(float)) {
        printf("rates: skipped, less than 5 GiB of GPU memory are free\n");
        return;
    }
    for (int i = 0; i < 4; i++) {
        void *memory = NULL;
        CUDA(cudaMalloc(&memory, BIG * sizeof(float)));
        b.array[i] = memory;
        CUDA(stw_cuda_seed_grads(launch, memory, BIG, 0, (uint64_t)i, 1));
    }
    CUDA(cudaMalloc(&b.small, 4096));
    CUDA(cudaMemset(b.small, 0, 4096));
    CUDA(cudaMemset(b.array[3], 0x3A, BIG * sizeof(float))); /* exp_avg_sq: not negative */
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    printf("%-30s %10s %10s %14s\n", "kernel", "GB/s", "Gelem/s", "ms per 2^32");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        float best = 0;
        for (int run = 0; run < 6; run++) {
            float ms = 0;
            CUDA(cudaEventRecord(start, launch.stream));
            rows[r].run(&b, 0);
            CUDA(cudaEventRecord(stop, launch.stream));
            CUDA(cudaEventSynchronize(stop));
            CUDA(cudaEventElapsedTime(&ms, start, stop));
            if (run > 0 && (best <= 0 || ms < best)) best = ms;
        }
        double s = 1e-3 * (double)best;
        printf("%-30s %10.0f %10.1f %14.2f\n", rows[r].name, rows[r].bytes * (double)BIG / s / 1e9,
               (double)BIG / s / 1e9, s * 1e3 * 4294967296.0 / (double)BIG);
    }
    for (int i = 0; i < 4; i++) CUDA(cudaFree(b.array[i]));
    CUDA(cudaFree(b.small));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
}

int main(void) {
    int count = 0, sms = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) {
        printf("skipped: no GPU\n");
        return 77;
    }
    struct cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    launch.sms = (uint32_t)sms;
    void *scratch = NULL;
    CUDA(cudaMalloc(&scratch, 1024));
    CUDA(cudaMemset(scratch, 0, 1024));
    CUDA(stw_cuda_kernels_load(launch, scratch));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(scratch));
    stw_error err = STW_ERROR_INIT;
    if (stw_threads_new(0, &threads, &err) != STW_STATUS_OK) return 1;
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"adamw", test_adamw},
                 {"norm", test_norm},
                 {"convert", test_convert},
                 {"seeded gradients and digests", test_values}};
    printf("%s, %d multiprocessors\n", properties.name, sms);
    for (size_t t = 0; t < sizeof tests / sizeof tests[0]; t++) {
        unsigned before = failures;
        tests[t].run();
        printf("%s: %s\n", tests[t].name, failures == before ? "same bits" : "FAILED");
        fflush(stdout);
    }
    print_rates();
    CUDA(cudaStreamDestroy(launch.stream));
    stw_threads_free(threads);
    printf("%u failures\n", failures);
    return failures == 0 ? 0 : 1;
}
