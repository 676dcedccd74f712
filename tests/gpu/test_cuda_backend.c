/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend through its table: memory is what was asked for; steps over tensors that lie
 * apart have the host backend's bits for every combination of types; the link's seconds are sane
 * and leave no trace; ranges and limits are refused. Exit 77 without a GPU. */
#include "tests/gpu/scenario.h"

static void compare(const stw_element_types *types) {
    outcome gpu, host;
    memset(&gpu, 0, sizeof gpu);
    memset(&host, 1, sizeof host);
    CHECK_OK(run_scenario(cuda, types, 3, &gpu, err));
    CHECK_OK(run_scenario(&stw_backend_host, types, 3, &host, err));
    CU_ASSERT_EQUAL(gpu.params, host.params);
    CU_ASSERT_EQUAL(gpu.grads, host.grads);
    CU_ASSERT_EQUAL(gpu.master, host.master);
    CU_ASSERT_EQUAL(gpu.exp_avg, host.exp_avg);
    CU_ASSERT_EQUAL(gpu.exp_avg_sq, host.exp_avg_sq);
    CU_ASSERT_EQUAL(memcmp(&gpu.norm, &host.norm, sizeof gpu.norm), 0);
    CU_ASSERT_EQUAL(memcmp(&gpu.factor, &host.factor, sizeof gpu.factor), 0);
    CU_ASSERT_EQUAL(memcmp(gpu.counters, host.counters, sizeof gpu.counters), 0);
    CU_ASSERT_TRUE(gpu.factor > 0 && gpu.factor < 1); /* or clipping would be no test */
    CU_ASSERT_EQUAL(gpu.before_commit, host.before_commit);
    CU_ASSERT_EQUAL(gpu.after_commit, host.after_commit);
    CU_ASSERT_EQUAL(gpu.converted, host.converted);
    CU_ASSERT_NOT_EQUAL(gpu.before_commit, gpu.after_commit);
}

static void same_bits_as_host(void) {
    static const stw_element both[2] = {STW_ELEMENT_F32, STW_ELEMENT_BF16};
    static const stw_element weights[3][2] = {{STW_ELEMENT_F32, STW_ELEMENT_NONE},
                                              {STW_ELEMENT_BF16, STW_ELEMENT_NONE},
                                              {STW_ELEMENT_BF16, STW_ELEMENT_F32}};
    for (unsigned w = 0; w < 3; w++)
        for (unsigned i = 0; i < 8; i++) {
            const stw_element_types types = {weights[w][0], both[i & 1u], weights[w][1],
                                             both[i >> 1 & 1u], both[i >> 2]};
            unsigned failed = CU_get_number_of_failures();
            compare(&types);
            if (CU_get_number_of_failures() != failed)
                fprintf(stderr, "params %d, grads %d, master %d, moments %d %d\n",
                        (int)types.params, (int)types.grads, (int)types.master, (int)types.exp_avg,
                        (int)types.exp_avg_sq);
        }
}

static void memory_is_as_asked(void) {
    static const uint64_t sizes[] = {0, 3 * MIB + 512, 1024 * MIB, 3000 * MIB + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const stw_device_config config = {
            .arena_bytes = {[STW_TIER_GPU] = sizes[i], [STW_TIER_HOST] = 300 * MIB + 4},
            .capacity_bytes = {[STW_TIER_GPU] = sizes[i], [STW_TIER_HOST] = 301 * MIB},
            .n_events = 3000,
            .n_spans = 5000,
            .types = fp32_types,
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
        CU_ASSERT_TRUE(info.page_locked <= 301 * MIB);
        /* Work allocates nothing. */
        uint64_t sum = 0;
        CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, sizes[i] / 4), 0,
                              &sum, err));
        CHECK_OK(cuda->zero(device, stw_at(STW_TIER_GPU, 0), sizes[i], err));
        CHECK_OK(cuda->zero(device, stw_at(STW_TIER_HOST, 0), 300 * MIB, err));
        uint64_t before = info.used_now;
        cuda->info(device, &info);
        CU_ASSERT_EQUAL(info.used_now, before);
        cuda->close(device);
    }
}

/* More than one page-locked piece: copies and conversions across their borders. */
static void pieces_of_host_memory(void) {
    const uint64_t bytes = STW_CUDA_REGISTER_BYTES + 64 * MIB;
    const stw_device_config config = {
        .arena_bytes = {[STW_TIER_GPU] = 64 * MIB, [STW_TIER_HOST] = bytes},
        .capacity_bytes = {[STW_TIER_GPU] = 64 * MIB, [STW_TIER_HOST] = bytes},
        .types = fp32_types,
        .threads = 4};
    stw_device *device = NULL;
    const uint64_t at = STW_CUDA_REGISTER_BYTES - 8 * MIB - 4, n = 4 * MIB;
    uint64_t host = 0, gpu = 0, back = 0;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CHECK_OK(
        cuda->seed_grads(device, stw_typed(STW_TIER_HOST, at, STW_ELEMENT_F32, n), 77, 1, 1, err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_HOST, at, STW_ELEMENT_F32, n), 0, &host, err));
    CHECK_OK(cuda->copy(device, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 4), stw_at(STW_TIER_HOST, at),
                        n * 4, err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_GPU, 4, STW_ELEMENT_F32, n), 0, &gpu, err));
    CHECK_OK(cuda->zero(device, stw_at(STW_TIER_HOST, at), n * 4, err));
    CHECK_OK(cuda->convert(device, STW_STREAM_COMPUTE,
                           stw_typed(STW_TIER_HOST, at, STW_ELEMENT_F32, n / 2 + 3 * MIB / 2),
                           stw_at(STW_TIER_GPU, 4), STW_DTYPE_F32, err));
    CHECK_OK(cuda->synchronize(device, err));
    CHECK_OK(cuda->copy(device, STW_STREAM_D2H, stw_at(STW_TIER_HOST, at + 14 * MIB),
                        stw_at(STW_TIER_GPU, 4 + 14 * MIB), 2 * MIB, err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_HOST, at, STW_ELEMENT_F32, n), 0, &back, err));
    CU_ASSERT_EQUAL(host, gpu);
    CU_ASSERT_EQUAL(host, back);
    CU_ASSERT_NOT_EQUAL(host, 0);
    cuda->close(device);
}

/* ---- norms that follow each other without a wait ---- */

#define ROUNDS 8u

static stw_status queue_norms(stw_device *d, uint64_t (*seen)[STW_NORM_COUNTERS],
                              stw_norm_bins *expected, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    cudaStream_t stream = cuda->native_stream(d, STW_STREAM_COMPUTE);
    uint64_t *counters = NULL;
    const uint64_t big = (GPU_ARENA - GPU_G) / 4;
    const float *grads = cuda->host_address(d, HOST_G, 4 * 1000 * ROUNDS);
    if (grads == NULL) return stw_fail(err, STW_STATUS_BUG, "test", "no host address");
    for (uint32_t r = 0; r < ROUNDS; r++) {
        bool counts = r != 3;
        STW_TRY(cuda->norm_reset(d, STW_STREAM_COMPUTE, err));
        for (int i = 0; i < 20; i++) /* the GPU falls behind; zeros add nothing */
            STW_TRY(cuda->norm_add(d, STW_STREAM_COMPUTE,
                                   stw_typed(STW_TIER_GPU, GPU_G, STW_ELEMENT_F32, big), err));
        STW_TRY(cuda->norm_add(d, STW_STREAM_CPU,
                               stw_typed(STW_TIER_HOST, HOST_G, STW_ELEMENT_F32, 1000 * (r + 1)),
                               err));
        STW_TRY(cuda->norm_counters(d, STW_STREAM_COMPUTE, counts, &counters, err));
        STW_TRY(cuda->norm_factor(d, STW_STREAM_COMPUTE, 1.0, err));
        STW_CUDA_TRY(
            cudaMemcpyAsync(seen[r], counters, sizeof seen[r], cudaMemcpyDeviceToHost, stream),
            "reading counters");
        for (uint64_t i = 0; counts && i < 1000 * (r + 1); i++) {
            unsigned bin = 0;
            uint64_t value = 0;
            if (stw_norm_split(grads[i], &bin, &value) != 1) continue;
            expected[r].low[bin] += value & 0xFFFFFFFFu;
            expected[r].high[bin] += value >> 32;
        }
        stw_norm_normalise(&expected[r]);
    }
    STW_TRY(cuda->synchronize(d, err));
out:
    return status;
}

static void norms_do_not_overtake(void) {
    const stw_device_config config = configuration(&fp32_types);
    stw_device *device = NULL;
    uint64_t(*seen)[STW_NORM_COUNTERS] = NULL;
    stw_norm_bins *expected = calloc(ROUNDS, sizeof *expected);
    void *memory = NULL;
    double norm = 0;
    float factor = 0;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CU_ASSERT_PTR_NOT_NULL_FATAL(expected);
    CU_ASSERT_EQUAL_FATAL(cudaHostAlloc(&memory, ROUNDS * sizeof *seen, cudaHostAllocDefault),
                          cudaSuccess);
    seen = memory;
    memset(seen, 0xFF, ROUNDS * sizeof *seen);
    CHECK_OK(cuda->zero(device, stw_at(STW_TIER_GPU, 0), GPU_ARENA, err));
    CHECK_OK(cuda->seed_grads(
        device, stw_typed(STW_TIER_HOST, HOST_G, STW_ELEMENT_F32, 1000 * ROUNDS), 9, 7, 1, err));
    CHECK_OK(queue_norms(device, seen, expected, err));
    for (uint32_t r = 0; r < ROUNDS; r++) {
        uint64_t counters[STW_NORM_COUNTERS];
        stw_norm_to_counters(&expected[r], counters);
        CU_ASSERT_EQUAL(memcmp(counters, seen[r], sizeof counters), 0);
    }
    cuda->norm_result(device, &norm, &factor);
    CU_ASSERT_EQUAL(norm, stw_norm_value(&expected[ROUNDS - 1]));
    CU_ASSERT_EQUAL(factor, stw_norm_clip_factor(norm, 1.0));
    CU_ASSERT_TRUE(norm > 0);
    (void)cudaFreeHost(memory);
    cuda->close(device);
    free(expected);
}

/* ---- the link by itself ---- */

static void link_is_measured(void) {
    static const stw_link_shape shapes[] = {{MIB, 1, 0},     {4 * MIB, 2, 0}, {32 * MIB, 1, 0},
                                            {8 * MIB, 3, 0}, {MIB, 1, 8},     {4 * MIB, 1, 3}};
    const stw_device_config config = configuration(&fp32_types);
    stw_device *device = NULL;
    stw_device_info before, after;
    uint64_t host[2] = {0, 0}, gpu[2] = {0, 0};
    double seconds = -1;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CHECK_OK(cuda->seed_grads(device, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, HOST_ARENA / 4),
                              0, 1, 1, err));
    CHECK_OK(cuda->seed_grads(device, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, GPU_ARENA / 4), 0,
                              2, 1, err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, HOST_ARENA / 4), 0,
                          &host[0], err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, GPU_ARENA / 4), 0,
                          &gpu[0], err));
    cuda->info(device, &before);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const uint64_t bytes = 1024 * MIB + 12345; /* several times around both buffers */
        CHECK_OK(cuda->link_seconds(device, &shapes[i], bytes, &seconds, err));
        double bps = (double)bytes / seconds;
        printf("\n    %llu MiB on %u streams: %.1f GB/s each way",
               (unsigned long long)(shapes[i].bytes / MIB), shapes[i].streams, bps / 1e9);
        CU_ASSERT_TRUE(seconds > 0 && bps > 1e9 && bps < 1e12);
        cuda->info(device, &after);
        CU_ASSERT_TRUE(after.used_now <= before.used_now + 2 * MIB);
        CU_ASSERT_TRUE(before.used_now <= after.used_now + 2 * MIB);
        CU_ASSERT_EQUAL(after.page_locked, before.page_locked);
    }
    CHECK_OK(cuda->link_seconds(device, &shapes[0], 0, &seconds, err));
    CU_ASSERT_EQUAL(seconds, 0.0);
    const stw_link_shape none = {0, 1, 0}, still = {MIB, 0, 0}, crowd = {MIB, 1000, 0};
    const stw_link_shape round = {MIB, 1, 1000};
    CHECK_FAILS(cuda->link_seconds(device, &none, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_FAILS(cuda->link_seconds(device, &still, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_FAILS(cuda->link_seconds(device, &crowd, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_FAILS(cuda->link_seconds(device, &round, 1, &seconds, err), STW_STATUS_BUG, "ring");
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, HOST_ARENA / 4), 0,
                          &host[1], err));
    CHECK_OK(cuda->digest(device, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, GPU_ARENA / 4), 0,
                          &gpu[1], err));
    CU_ASSERT_EQUAL(host[0], host[1]); /* what came down changed no state */
    CU_ASSERT_EQUAL(gpu[0], gpu[1]);
    cuda->close(device);
}

/* ---- memory and streams that the caller owns ---- */

static bool page_locked(const void *at) {
    struct cudaPointerAttributes about;
    CU_ASSERT_EQUAL(cudaPointerGetAttributes(&about, at), cudaSuccess);
    return about.type == cudaMemoryTypeHost;
}

/* The scenario in the caller's memory and on its streams, with the host backend's digests. */
static void check_external(stw_device_config *config, unsigned char *memory, bool was_locked) {
    outcome mine, expected;
    stw_device *device = NULL;
    stw_device_info info;
    memset(&mine, 0, sizeof mine);
    memset(&expected, 1, sizeof expected);
    config->external[STW_TIER_HOST] = (stw_external_arena){memory, HOST_ARENA};
    CU_ASSERT_EQUAL(page_locked(memory), was_locked);
    CHECK_OK(cuda->open(config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CU_ASSERT_TRUE(page_locked(memory) && page_locked(memory + HOST_ARENA - 1));
    CU_ASSERT_PTR_EQUAL(cuda->host_address(device, 4, 4), memory + 4);
    CU_ASSERT_PTR_EQUAL(cuda->device_address(device, 4, 4),
                        (unsigned char *)config->external[STW_TIER_GPU].address + 4);
    CU_ASSERT_PTR_EQUAL(cuda->native_stream(device, STW_STREAM_COMPUTE),
                        config->streams[STW_STREAM_COMPUTE]);
    cuda->info(device, &info);
    CU_ASSERT_TRUE(info.used_now <= info.used_after_context + 2 * MIB); /* no arena of its own */
    CU_ASSERT_EQUAL(info.page_locked >= HOST_ARENA, !was_locked);
    CHECK_OK(scenario(cuda, device, &fp32_types, 2, &mine, err));
    cuda->close(device);
    CU_ASSERT_EQUAL(page_locked(memory), was_locked);
    CHECK_OK(run_scenario(&stw_backend_host, &fp32_types, 2, &expected, err));
    CU_ASSERT_EQUAL(mine.params, expected.params);
    CU_ASSERT_EQUAL(mine.exp_avg, expected.exp_avg);
    CU_ASSERT_EQUAL(mine.exp_avg_sq, expected.exp_avg_sq);
    CU_ASSERT_EQUAL(mine.converted, expected.converted);
    CU_ASSERT_EQUAL(cudaStreamSynchronize(config->streams[STW_STREAM_COMPUTE]), cudaSuccess);
    memory[HOST_ARENA - 1] = 1; /* still the caller's */
    CU_ASSERT_EQUAL(cudaMemset(config->external[STW_TIER_GPU].address, 0, GPU_ARENA), cudaSuccess);
}

static void works_for_a_caller(void) {
    stw_device_config config = configuration(&fp32_types);
    cudaStream_t compute = NULL;
    void *gpu = NULL, *other = NULL, *locked = NULL;
    void *plain = aligned_alloc(4096, HOST_ARENA + 4096);
    stw_device *device = NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(plain);
    CU_ASSERT_EQUAL_FATAL(cudaSetDevice(0), cudaSuccess);
    CU_ASSERT_EQUAL_FATAL(cudaMalloc(&gpu, GPU_ARENA), cudaSuccess);
    CU_ASSERT_EQUAL_FATAL(cudaHostAlloc(&locked, HOST_ARENA, cudaHostAllocDefault), cudaSuccess);
    CU_ASSERT_EQUAL_FATAL(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking), cudaSuccess);
    config.external[STW_TIER_GPU] = (stw_external_arena){gpu, GPU_ARENA};
    config.streams[STW_STREAM_COMPUTE] = compute;
    config.streams[STW_STREAM_D2H] = cudaStreamLegacy;
    config.gpu_is_given = true;
    config.gpu = 0;
    config.local_rank = 5; /* no matter */
    check_external(&config, plain, false);
    check_external(&config, locked, true);
    config.external[STW_TIER_GPU].address = plain;
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_USAGE, "expected device memory");
    config.external[STW_TIER_GPU] = (stw_external_arena){gpu, GPU_ARENA};
    CU_ASSERT_EQUAL_FATAL(cudaMalloc(&other, HOST_ARENA), cudaSuccess);
    config.external[STW_TIER_HOST] = (stw_external_arena){other, HOST_ARENA};
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_USAGE, "expected host memory");
    config.external[STW_TIER_HOST] = (stw_external_arena){plain, HOST_ARENA};
    CU_ASSERT_EQUAL(cudaHostRegister(plain, 4096, cudaHostRegisterDefault), cudaSuccess);
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_USAGE, "in part");
    CU_ASSERT_EQUAL(cudaHostUnregister(plain), cudaSuccess);
    config.gpu = 4711;
    CHECK_FAILS(cuda->open(&config, &device, err), STW_STATUS_NO_RESOURCES, "GPU 4711");
    CU_ASSERT_PTR_NULL(device);
    (void)cudaStreamDestroy(compute);
    (void)cudaFreeHost(locked);
    (void)cudaFree(gpu);
    (void)cudaFree(other);
    free(plain);
}

/* ---- refusals ---- */

static void refuses_ranges_and_limits(void) {
    stw_device_config config = configuration(&fp32_types);
    stw_device *device = NULL;
    uint64_t *counters = NULL;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    const stw_stream compute = STW_STREAM_COMPUTE;
    CHECK_FAILS(cuda->norm_add(device, compute,
                               stw_typed(STW_TIER_GPU, GPU_ARENA - 4, STW_ELEMENT_F32, 2), err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(
        cuda->norm_add(device, compute, stw_typed(STW_TIER_GPU, 2, STW_ELEMENT_F32, 1), err),
        STW_STATUS_BUG, "float");
    CHECK_FAILS(cuda->norm_add(device, compute,
                               stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, UINT64_MAX / 2), err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(
        cuda->norm_add(device, STW_STREAM_CPU, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, 1), err),
        STW_STATUS_BUG, "stream");
    CHECK_FAILS(cuda->norm_counters(device, STW_STREAM_CPU, true, &counters, err), STW_STATUS_BUG,
                "stream");
    CHECK_FAILS(cuda->norm_factor(device, STW_STREAM_DISK, 1.0, err), STW_STATUS_BUG, "stream");
    CHECK_FAILS(cuda->copy(device, STW_STREAM_H2D, stw_at(STW_TIER_GPU, GPU_ARENA),
                           stw_at(STW_TIER_HOST, 0), 1, err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->copy(device, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 4), stw_at(STW_TIER_GPU, 0),
                           8, err),
                STW_STATUS_BUG, "overlap");
    /* NVMe offsets reach one copy of two. */
    CHECK_FAILS(cuda->write(device, NVME_COPY - 4, 0, 8, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->read(device, 0, NVME_COPY, 1, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->convert(device, compute,
                              stw_typed(STW_TIER_NVME, NVME_COPY - 4, STW_ELEMENT_F32, 2),
                              stw_at(STW_TIER_GPU, 0), STW_DTYPE_F32, err),
                STW_STATUS_BUG, "outside");
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

static void refuses_spans(stw_device *device) {
    stw_span spans[N_SPANS + 1];
    memset(spans, 0, sizeof spans);
    make_spans(&fp32_types, spans);
    CHECK_FAILS(cuda->set_spans(device, spans, N_SPANS + 1, err), STW_STATUS_BUG, "room for");
    spans[2].first++;
    CHECK_FAILS(cuda->set_spans(device, spans, N_SPANS, err), STW_STATUS_BUG, "span 2");
    spans[2].first--;
    spans[3].group = STW_MAX_PARAM_GROUPS;
    CHECK_FAILS(cuda->set_spans(device, spans, N_SPANS, err), STW_STATUS_BUG, "span 3");
    spans[3].group = 0;
    spans[1].grads += 2; /* not that of a float */
    spans[0].grads = GPU_ARENA - 4;
    CHECK_OK(cuda->set_spans(device, spans, N_SPANS, err));
}

static void refuses_buckets(void) {
    const stw_device_config config = configuration(&fp32_types);
    const stw_adamw plain = adamw_of(1, 0), clipped = adamw_of(1, 1);
    const stw_stream compute = STW_STREAM_COMPUTE;
    const stw_bucket_operands good = operands_of(&fp32_types, FIRST_DIRECT);
    stw_bucket_operands bucket = good;
    stw_device *device = NULL;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CHECK_FAILS(cuda->update(device, compute, &plain, &good, err), STW_STATUS_BUG, "cover");
    refuses_spans(device);
    CHECK_OK(cuda->update(device, compute, &plain, &good, err)); /* no bad span meets it */
    CHECK_FAILS(cuda->update(device, compute, &clipped, &good, err), STW_STATUS_BUG, "norm_factor");
    CHECK_FAILS(cuda->update(device, STW_STREAM_DISK, &plain, &good, err), STW_STATUS_BUG,
                "stream");
    CHECK_FAILS(cuda->update(device, STW_STREAM_CPU, &plain, &good, err), STW_STATUS_BUG, "tier");
    bucket.n_spans--;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "cover");
    bucket = good;
    bucket.first_span++;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "cover");
    bucket = good;
    bucket.exp_avg.offset = HOST_ARENA - 4;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "outside");
    bucket = good;
    bucket.exp_avg_sq.offset += 2;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "float");
    bucket = good;
    bucket.exp_avg.tier = STW_TIER_NVME;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "tier");
    bucket = good;
    bucket.exp_avg.in_spans = true;
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "spans");
    bucket = operands_of(&fp32_types, 0); /* span 0's gradients leave the arena */
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "outside");
    CHECK_OK(cuda->synchronize(device, err));
    cuda->close(device);
}

int main(void) {
    static const stw_test tests[] = {
        {"memory is what was asked for", memory_is_as_asked},
        {"host memory of several pieces is one arena", pieces_of_host_memory},
        {"steps have the host backend's bits for all types", same_bits_as_host},
        {"norms that follow each other do not overtake", norms_do_not_overtake},
        {"the link is measured and nothing else touched", link_is_measured},
        {"memory and streams of the caller", works_for_a_caller},
        {"ranges and limits are refused", refuses_ranges_and_limits},
        {"buckets and spans are checked", refuses_buckets},
    };
    return run_tests_on_gpu("cuda backend", tests, sizeof tests / sizeof tests[0]);
}
