/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend through its table: memory is what was asked for, a streamed step with events has
 * the host backend's bits, ranges and limits are refused, and whichever CUDA call fails, it ends in
 * an error. Exit 77 without a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.h"
#include "backend/norm.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)
#define PARAMS (5 * MIB / 4 + 12) /* elements; not a whole number of buckets */
#define BUCKET (MIB / 4)
#define SLOTS 3
#define N_BUCKETS ((PARAMS + BUCKET - 1) / BUCKET)
#define PAD(bytes) (((bytes) + 511) / 512 * 512)
#define ARRAY PAD(PARAMS * 4)
#define SLOT PAD(BUCKET * 4) /* one component of a bucket */

/* GPU: params, grads, then the ring; host: exp_avg, exp_avg_sq, then room. */
enum { P = 0, G = 1 };
#define GPU_ARENA (2 * ARRAY + SLOTS * 2 * SLOT)
#define HOST_ARENA (4 * ARRAY)
#define NVME_ARENA (2 * ARRAY)

static const stw_backend *cuda;

static stw_device_config configuration(void) {
    stw_device_config config = {.arena_bytes = {GPU_ARENA, HOST_ARENA, NVME_ARENA},
                                .capacity_bytes = {GPU_ARENA, HOST_ARENA, NVME_ARENA},
                                .machine_host_bytes = HOST_ARENA,
                                .n_events = 3 * N_BUCKETS,
                                .threads = 2};
    return config;
}

/* What happens to the state: gradients, norm, then a step over buckets; the same for every backend.
 * All on the calling thread, with the events that a ring needs. */
static stw_status streamed_step(const stw_backend *b, stw_device *d, uint64_t step,
                                stw_norm_bins *bins, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, step, 1, 0.75f);
    STW_TRY(b->seed_grads(d, STW_TIER_GPU, ARRAY, PARAMS, 1000, 7, step, err));
    STW_TRY(b->norm_reset(d, STW_STREAM_COMPUTE, err));
    const stw_operands all = {.tier = STW_TIER_GPU, .grads = ARRAY, .n = PARAMS};
    STW_TRY(b->norm_add(d, STW_STREAM_COMPUTE, &all, err));
    STW_TRY(b->norm_read(d, bins, err));
    for (uint32_t i = 0; i < N_BUCKETS; i++) {
        uint64_t first = (uint64_t)i * BUCKET;
        uint64_t n = PARAMS - first < BUCKET ? PARAMS - first : BUCKET;
        uint64_t slot = 2 * ARRAY + i % SLOTS * 2 * SLOT;
        if (i >= SLOTS) STW_TRY(b->wait(d, STW_STREAM_H2D, 3 * (i - SLOTS) + 2, err));
        STW_TRY(
            b->copy(d, STW_STREAM_H2D, STW_TIER_GPU, slot, STW_TIER_HOST, first * 4, n * 4, err));
        STW_TRY(b->copy(d, STW_STREAM_H2D, STW_TIER_GPU, slot + SLOT, STW_TIER_HOST,
                        ARRAY + first * 4, n * 4, err));
        STW_TRY(b->record(d, STW_STREAM_H2D, 3 * i, err));
        STW_TRY(b->wait(d, STW_STREAM_COMPUTE, 3 * i, err));
        const stw_operands bucket = {.tier = STW_TIER_GPU,
                                     .params = first * 4,
                                     .grads = ARRAY + first * 4,
                                     .exp_avg = slot,
                                     .exp_avg_sq = slot + SLOT,
                                     .n = n};
        STW_TRY(b->update(d, STW_STREAM_COMPUTE, &adamw, &bucket, err));
        STW_TRY(b->record(d, STW_STREAM_COMPUTE, 3 * i + 1, err));
        STW_TRY(b->wait(d, STW_STREAM_D2H, 3 * i + 1, err));
        STW_TRY(
            b->copy(d, STW_STREAM_D2H, STW_TIER_HOST, first * 4, STW_TIER_GPU, slot, n * 4, err));
        STW_TRY(b->copy(d, STW_STREAM_D2H, STW_TIER_HOST, ARRAY + first * 4, STW_TIER_GPU,
                        slot + SLOT, n * 4, err));
        STW_TRY(b->record(d, STW_STREAM_D2H, 3 * i + 2, err));
    }
    STW_TRY(b->wait_host(d, 3 * (N_BUCKETS - 1) + 2, err));
    STW_TRY(b->synchronize(d, err));
out:
    return status;
}

typedef struct outcome {
    uint64_t params, exp_avg, exp_avg_sq, on_nvme;
    stw_norm_bins bins;
} outcome;

/* Load (bf16 on the host into fp32 on the GPU and, kernel to host, into exp_avg's tier), steps, a
 * CPU update beside, NVMe there and back, digests. */
static stw_status scenario(const stw_backend *b, stw_device *d, uint32_t steps, outcome *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(out, 0, sizeof *out);
    uint16_t *stored = b->host_address(d, 2 * ARRAY, PARAMS * 2);
    if (stored == NULL) return stw_fail(err, STW_STATUS_BUG, "test", "no host address");
    for (uint64_t i = 0; i < PARAMS; i++)
        stored[i] = (uint16_t)(stw_bits_from_float(stw_seeded_weight(3, i)) >> 16);
    STW_TRY(b->zero(d, STW_TIER_HOST, 0, 2 * ARRAY, err));
    STW_TRY(b->zero(d, STW_TIER_GPU, 0, GPU_ARENA, err));
    STW_TRY(
        b->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 2 * ARRAY, STW_TIER_HOST, 2 * ARRAY, SLOT, err));
    STW_TRY(b->record(d, STW_STREAM_H2D, 0, err));
    STW_TRY(b->wait(d, STW_STREAM_COMPUTE, 0, err));
    STW_TRY(b->convert(d, STW_STREAM_COMPUTE, STW_TIER_GPU, 0, STW_TIER_GPU, 2 * ARRAY,
                       STW_DTYPE_BF16, SLOT / 2, err)); /* staged */
    STW_TRY(b->convert(d, STW_STREAM_CPU, STW_TIER_GPU, SLOT * 2, STW_TIER_HOST, 2 * ARRAY + SLOT,
                       STW_DTYPE_BF16, PARAMS - SLOT / 2, err)); /* straight */
    STW_TRY(b->convert(d, STW_STREAM_COMPUTE, STW_TIER_HOST, 3 * ARRAY, STW_TIER_GPU, 2 * ARRAY,
                       STW_DTYPE_BF16, 1001, err)); /* out of the GPU */
    STW_TRY(b->synchronize(d, err));
    for (uint32_t s = 1; s <= steps; s++) STW_TRY(streamed_step(b, d, s, &out->bins, err));
    /* A bucket whose operands all lie on the host, and squares there. */
    const stw_adamw adamw = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0, 1.0f);
    STW_TRY(b->seed_grads(d, STW_TIER_HOST, 2 * ARRAY, 5001, 77, 7, 1, err));
    const stw_operands host = {.tier = STW_TIER_HOST,
                               .params = 3 * ARRAY,
                               .grads = 2 * ARRAY,
                               .exp_avg = 40,
                               .exp_avg_sq = ARRAY + 80,
                               .n = 1001};
    STW_TRY(b->update(d, STW_STREAM_CPU, &adamw, &host, err));
    STW_TRY(b->norm_add(d, STW_STREAM_CPU, &host, err));
    STW_TRY(b->record(d, STW_STREAM_CPU, 1, err));
    STW_TRY(b->wait(d, STW_STREAM_H2D, 1, err));
    STW_TRY(b->norm_read(d, &out->bins, err));
    STW_TRY(b->write(d, 12, 0, ARRAY, err)); /* off the blocks' boundaries, too */
    STW_TRY(b->read(d, 2 * ARRAY, 12, ARRAY, err));
    STW_TRY(b->digest(d, STW_TIER_NVME, 12, PARAMS, 5, &out->on_nvme, err));
    STW_TRY(b->digest(d, STW_TIER_GPU, 0, PARAMS, 5, &out->params, err));
    STW_TRY(b->digest(d, STW_TIER_HOST, 2 * ARRAY, PARAMS, 5, &out->exp_avg, err));
    STW_TRY(b->digest(d, STW_TIER_HOST, ARRAY, PARAMS, 5, &out->exp_avg_sq, err));
out:
    return status;
}

static stw_status run_scenario(const stw_backend *b, uint32_t steps, outcome *out, stw_error *err) {
    const stw_device_config config = configuration();
    stw_device *device = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(b->open(&config, &device, err));
    STW_TRY(scenario(b, device, steps, out, err));
out:
    if (device != NULL) b->close(device);
    return status;
}

static void same_bits_as_host(void) {
    outcome gpu, host;
    CHECK_OK(run_scenario(cuda, 4, &gpu, err));
    CHECK_OK(run_scenario(&stw_backend_host, 4, &host, err));
    CU_ASSERT_EQUAL(gpu.params, host.params);
    CU_ASSERT_EQUAL(gpu.exp_avg, host.exp_avg);
    CU_ASSERT_EQUAL(gpu.exp_avg_sq, host.exp_avg_sq);
    CU_ASSERT_EQUAL(gpu.on_nvme, gpu.exp_avg);
    stw_norm_normalise(&gpu.bins);
    stw_norm_normalise(&host.bins);
    CU_ASSERT_EQUAL(memcmp(&gpu.bins, &host.bins, sizeof gpu.bins), 0);
    CU_ASSERT_TRUE(stw_norm_value(&gpu.bins) > 0);
}

static void memory_is_as_asked(void) {
    static const uint64_t sizes[] = {0, 3 * MIB + 512, 1024 * MIB, 3000 * MIB + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const stw_device_config config = {
            .arena_bytes = {[STW_TIER_GPU] = sizes[i], [STW_TIER_HOST] = 300 * MIB + 4},
            .capacity_bytes = {[STW_TIER_GPU] = sizes[i], [STW_TIER_HOST] = 301 * MIB},
            .n_events = 3000,
            .threads = 4};
        stw_device *device = NULL;
        stw_device_info info;
        CHECK_OK(cuda->open(&config, &device, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(device);
        cuda->info(device, &info);
        uint64_t growth = info.used_now - info.used_after_context;
        printf("\n    %s: before %llu, context %llu MiB, arena %llu, growth %llu (%+lld)",
               info.name, (unsigned long long)info.used_before,
               (unsigned long long)((info.used_after_context - info.used_before) / MIB),
               (unsigned long long)sizes[i], (unsigned long long)growth,
               (long long)(growth - sizes[i]));
        CU_ASSERT_TRUE(growth >= sizes[i] || sizes[i] < 4 * MIB);
        CU_ASSERT_TRUE(growth <= sizes[i] + 2 * MIB);
        CU_ASSERT_TRUE(info.page_locked >= 300 * MIB + 4);
        /* Work allocates nothing. */
        uint64_t sum = 0;
        CHECK_OK(cuda->digest(device, STW_TIER_GPU, 0, sizes[i] / 4, 0, &sum, err));
        CHECK_OK(cuda->zero(device, STW_TIER_GPU, 0, sizes[i], err));
        CHECK_OK(cuda->zero(device, STW_TIER_HOST, 0, 300 * MIB, err));
        uint64_t before = info.used_now;
        cuda->info(device, &info);
        CU_ASSERT_EQUAL(info.used_now, before);
        cuda->close(device);
    }
}

static void refuses_ranges_and_limits(void) {
    stw_device_config config = configuration();
    stw_device *device = NULL;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    const stw_operands beyond = {.tier = STW_TIER_GPU, .grads = GPU_ARENA - 4, .n = 2};
    const stw_operands odd = {.tier = STW_TIER_GPU, .grads = 2, .n = 1};
    const stw_operands huge = {.tier = STW_TIER_GPU, .grads = 0, .n = UINT64_MAX / 2};
    CHECK_FAILS(cuda->norm_add(device, STW_STREAM_COMPUTE, &beyond, err), STW_STATUS_BUG,
                "outside");
    CHECK_FAILS(cuda->norm_add(device, STW_STREAM_COMPUTE, &odd, err), STW_STATUS_BUG, "float");
    CHECK_FAILS(cuda->norm_add(device, STW_STREAM_COMPUTE, &huge, err), STW_STATUS_BAD_INPUT, "");
    CHECK_FAILS(cuda->norm_add(device, STW_STREAM_CPU, &odd, err), STW_STATUS_BUG, "stream");
    CHECK_FAILS(
        cuda->copy(device, STW_STREAM_H2D, STW_TIER_GPU, GPU_ARENA, STW_TIER_HOST, 0, 1, err),
        STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->copy(device, STW_STREAM_H2D, STW_TIER_GPU, 4, STW_TIER_GPU, 0, 8, err),
                STW_STATUS_BUG, "overlap");
    CHECK_FAILS(cuda->wait(device, STW_STREAM_H2D, 2, err), STW_STATUS_BUG, "before it was");
    CHECK_FAILS(cuda->wait(device, STW_STREAM_H2D, 100000, err), STW_STATUS_BUG, "event");
    CU_ASSERT_PTR_NULL(cuda->device_address(device, GPU_ARENA, 1));
    CU_ASSERT_PTR_NULL(cuda->host_address(device, HOST_ARENA - 3, 4));
    cuda->close(device);
    device = NULL;
    config.capacity_bytes[STW_TIER_GPU] = GPU_ARENA - 1;
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_NO_RESOURCES, "capacity");
    config.capacity_bytes[STW_TIER_GPU] = config.arena_bytes[STW_TIER_GPU] = 1ull << 46;
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_NO_RESOURCES, "free GPU memory");
    CU_ASSERT_PTR_NULL(device);
}

/* The k-th call fails, for all k of opening and every seventh after it; then it works again. */
static void every_call_may_fail(void) {
    outcome out;
    stw_cuda_fail_call(0);
    CHECK_OK(run_scenario(cuda, 1, &out, err));
    uint64_t calls = stw_cuda_calls();
    CU_ASSERT_TRUE(calls > 50);
    printf("\n    %llu calls", (unsigned long long)calls);
    uint64_t silent = 0;
    for (uint64_t k = 1; k <= calls; k += k < 70 ? 1 : 7) {
        stw_error error = STW_ERROR_INIT;
        stw_cuda_fail_call(k);
        stw_status status = run_scenario(cuda, 1, &out, &error);
        bool told =
            status == STW_STATUS_DEVICE && error.native == (long)cudaErrorUnknown &&
            (strncmp(error.where, "cuda", 4) == 0 || strncmp(error.where, "stw_cuda", 8) == 0) &&
            strstr(error.text, "cudaErrorUnknown") != NULL;
        if (!told && silent++ < 5)
            fprintf(stderr, "call %llu: status %d, %s: %s\n", (unsigned long long)k, (int)status,
                    error.where, error.text);
    }
    CU_ASSERT_EQUAL(silent, 0);
    stw_cuda_fail_call(0);
    CHECK_OK(run_scenario(cuda, 1, &out, err));
}

int main(void) {
    static const stw_test tests[] = {
        {"memory is what was asked for", memory_is_as_asked},
        {"a streamed step has the host backend's bits", same_bits_as_host},
        {"ranges and limits are refused", refuses_ranges_and_limits},
        {"every failing CUDA call ends in an error", every_call_may_fail},
    };
    char why[200];
    cuda = stw_backend_cuda_find();
    if (!cuda->available(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    return stw_test_run_all("cuda backend", tests, sizeof tests / sizeof tests[0]);
}
