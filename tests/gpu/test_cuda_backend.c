/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend through its table: memory is what was asked for; steps over tensors that lie
 * apart, resident, direct and on the CPU, have the host backend's bits for every combination of
 * types; the link's seconds are sane and leave no trace; ranges and limits are refused; whichever
 * CUDA call fails, it ends in an error. Exit 77 without a GPU. */
#define _DEFAULT_SOURCE /* mkdtemp, alarm */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/device.h"
#include "backend/executor/run.h"
#include "backend/norm.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)
#define PARAMS (5 * MIB / 4 + 12) /* elements; not a whole number of buckets */
#define BUCKET (MIB / 4)
#define SLOTS 3
#define N_BUCKETS ((PARAMS + BUCKET - 1) / BUCKET)
#define FIRST_DIRECT 2u /* buckets before are streamed, these read host memory by themselves */
#define FIRST_CPU 4u    /* these lie on the host altogether */
#define PAD(bytes) (((bytes) + 511) / 512 * 512)
#define ARRAY PAD((PARAMS + 256) * 4) /* with room between tensors */
#define SLOT PAD(BUCKET * 4)          /* one component of a bucket */

/* GPU: params, grads, the ring. Host: moments, master, params and grads of the CPU's buckets, room.
 */
#define GPU_P 0
#define GPU_G ARRAY
#define GPU_RING (2 * ARRAY)
#define GPU_ARENA (GPU_RING + SLOTS * 3 * SLOT)
#define HOST_M 0
#define HOST_V ARRAY
#define HOST_W (2 * ARRAY)
#define HOST_P (3 * ARRAY)
#define HOST_G (4 * ARRAY)
#define HOST_ROOM (5 * ARRAY)
#define HOST_ARENA (6 * ARRAY)
#define NVME_COPY (2 * ARRAY)

/* Events besides the ring's three per bucket. */
#define EVENT_NORM (3 * N_BUCKETS)
#define EVENT_FACTOR (EVENT_NORM + 1)
#define EVENT_LOAD (EVENT_NORM + 2)

/* Where tensors begin; decisions change at the first direct and the first CPU bucket. */
static const uint64_t cuts[] = {0,
                                100003,
                                262221,
                                FIRST_DIRECT *BUCKET,
                                FIRST_DIRECT *BUCKET + 9,
                                786433,
                                FIRST_CPU *BUCKET,
                                FIRST_CPU *BUCKET + 5001,
                                PARAMS};
#define N_SPANS (sizeof cuts / sizeof cuts[0] - 1)
#define FIRST_HOST_SPAN 6u

static const stw_element_types fp32_types = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                             STW_ELEMENT_F32, STW_ELEMENT_F32};

static const stw_backend *cuda;
static char folder[64]; /* of NVMe files: those of failed runs may stay */

static void empty_folder(void) {
    DIR *files = opendir(folder);
    char path[400];
    for (struct dirent *f; files != NULL && (f = readdir(files)) != NULL;) {
        snprintf(path, sizeof path, "%s/%.255s", folder, f->d_name);
        if (f->d_name[0] != '.') (void)unlink(path);
    }
    if (files != NULL) (void)closedir(files);
}

static stw_device_config configuration(const stw_element_types *types) {
    stw_device_config config = {.arena_bytes = {GPU_ARENA, HOST_ARENA, 2 * NVME_COPY},
                                .capacity_bytes = {GPU_ARENA, HOST_ARENA, 2 * NVME_COPY},
                                .machine_host_bytes = HOST_ARENA,
                                .n_events = 3 * N_BUCKETS + 3,
                                .n_spans = N_SPANS,
                                .types = *types,
                                .threads = 2,
                                .nvme_folder = folder,
                                .nvme_copies = 2};
    return config;
}

/* Tensors with odd gaps between them, of three groups. */
static void make_spans(const stw_element_types *types, stw_span spans[N_SPANS]) {
    for (uint32_t i = 0; i < N_SPANS; i++) {
        bool host = i >= FIRST_HOST_SPAN;
        uint64_t p = stw_element_bytes(types->params), g = stw_element_bytes(types->grads);
        spans[i] = (stw_span){.first = cuts[i],
                              .n = cuts[i + 1] - cuts[i],
                              .params = (host ? HOST_P : GPU_P) + (cuts[i] + 3 * i + i % 2) * p,
                              .grads = (host ? HOST_G : GPU_G) + (cuts[i] + 5 * i) * g,
                              .group = i % 3};
    }
}

static stw_tier span_tier(uint32_t i) {
    return i >= FIRST_HOST_SPAN ? STW_TIER_HOST : STW_TIER_GPU;
}

static stw_adamw adamw_of(uint64_t step, int clip) {
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, step, clip);
    stw_adamw_set_group(&a, 1, 2e-3, 0.0, step);
    stw_adamw_set_group(&a, 2, 5e-4, 0.3, step);
    return a;
}

/* ---- the same run for every backend ---- */

typedef struct outcome {
    uint64_t params, grads, master, exp_avg, exp_avg_sq; /* digests */
    uint64_t before_commit, after_commit, converted;     /* of NVMe ranges */
    uint64_t counters[STW_NORM_COUNTERS];
    double norm;
    float factor;
} outcome;

/* Weights, stored as bf16 on the host: one tensor through a staging slot, others straight. */
static stw_status load(const stw_backend *b, stw_device *d, const stw_element_types *types,
                       const stw_span *spans, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint16_t *stored = b->host_address(d, HOST_ROOM, PARAMS * 2);
    if (stored == NULL) return stw_fail(err, STW_STATUS_BUG, "test", "no host address");
    for (uint64_t i = 0; i < PARAMS; i++)
        stored[i] = (uint16_t)(stw_bits_from_float(stw_seeded_weight(3, i)) >> 16);
    const stw_dtype dtype = types->params == STW_ELEMENT_F32 ? STW_DTYPE_F32 : STW_DTYPE_BF16;
    for (uint32_t i = 0; i < N_SPANS; i++) {
        const stw_span *s = &spans[i];
        uint64_t from = HOST_ROOM + s->first * 2;
        if (i == 0) {
            STW_TRY(b->copy(d, STW_STREAM_H2D, STW_TIER_GPU, GPU_RING, STW_TIER_HOST, from,
                            s->n * 2, err));
            STW_TRY(b->record(d, STW_STREAM_H2D, EVENT_LOAD, err));
            STW_TRY(b->wait(d, STW_STREAM_COMPUTE, EVENT_LOAD, err));
            STW_TRY(b->convert(d, STW_STREAM_COMPUTE, STW_TIER_GPU, s->params, types->params,
                               STW_TIER_GPU, GPU_RING, STW_DTYPE_BF16, s->n, err));
        } else {
            STW_TRY(b->convert(d, STW_STREAM_CPU, span_tier(i), s->params, types->params,
                               STW_TIER_HOST, from, STW_DTYPE_BF16, s->n, err));
        }
        if (types->master == STW_ELEMENT_NONE) continue;
        bool on_gpu = span_tier(i) == STW_TIER_GPU;
        STW_TRY(b->convert(d, on_gpu ? STW_STREAM_COMPUTE : STW_STREAM_CPU, STW_TIER_HOST,
                           HOST_W + s->first * 4, STW_ELEMENT_F32, span_tier(i), s->params, dtype,
                           s->n, err));
    }
    STW_TRY(b->synchronize(d, err));
out:
    return status;
}

/* Gradients and their norm, down to the factor; on the comm stream as with several ranks. */
static stw_status norm_of_step(const stw_backend *b, stw_device *d, const stw_span *spans,
                               uint64_t step, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t *counters = NULL;
    for (uint32_t i = 0; i < N_SPANS; i++)
        STW_TRY(b->seed_grads(d, span_tier(i), spans[i].grads, spans[i].n, spans[i].first, 7, step,
                              err));
    STW_TRY(b->norm_reset(d, STW_STREAM_COMPUTE, err));
    for (uint32_t i = 0; i < N_SPANS; i++)
        STW_TRY(b->norm_add(d, span_tier(i) == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU,
                            span_tier(i), spans[i].grads, spans[i].n, err));
    STW_TRY(b->record(d, STW_STREAM_COMPUTE, EVENT_NORM, err));
    STW_TRY(b->wait(d, STW_STREAM_COMM, EVENT_NORM, err));
    STW_TRY(b->norm_counters(d, STW_STREAM_COMM, true, &counters, err));
    STW_TRY(b->norm_factor(d, STW_STREAM_COMM, 0.25, err));
    STW_TRY(b->record(d, STW_STREAM_COMM, EVENT_FACTOR, err));
    STW_TRY(b->wait(d, STW_STREAM_COMPUTE, EVENT_FACTOR, err));
    STW_TRY(b->wait_host(d, EVENT_FACTOR, err)); /* for the CPU's buckets */
    b->norm_result(d, &out->norm, &out->factor);
    if (!b->gpu)
        memcpy(out->counters, counters, sizeof out->counters);
    else if (cudaMemcpy(out->counters, counters, sizeof out->counters, cudaMemcpyDefault) !=
             cudaSuccess)
        status = stw_fail(err, STW_STATUS_DEVICE, "test", "counters cannot be read");
out:
    return status;
}

/* A bucket's operands at home; the spans that meet it are searched for. */
static stw_bucket_operands operands_of(const stw_element_types *types, uint32_t bucket) {
    uint64_t first = bucket * BUCKET, n = PARAMS - first < BUCKET ? PARAMS - first : BUCKET;
    stw_tier tier = bucket < FIRST_CPU ? STW_TIER_GPU : STW_TIER_HOST;
    uint32_t head = 0, tail = 0;
    while (cuts[head + 1] <= first) head++;
    for (tail = head; cuts[tail + 1] < first + n;) tail++;
    stw_bucket_operands o = {
        .first = first,
        .n = n,
        .first_span = head,
        .n_spans = tail - head + 1,
        .params = {tier, true, 0},
        .grads = {tier, true, 0},
        .master = {STW_TIER_HOST, false, HOST_W + first * 4},
        .exp_avg = {STW_TIER_HOST, false, HOST_M + first * stw_element_bytes(types->exp_avg)},
        .exp_avg_sq = {STW_TIER_HOST, false,
                       HOST_V + first * stw_element_bytes(types->exp_avg_sq)}};
    return o;
}

/* A bucket through the ring: master and moments up, update, down. */
static stw_status stream_bucket(const stw_backend *b, stw_device *d, const stw_element_types *types,
                                uint32_t i, const stw_adamw *adamw, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_bucket_operands bucket = operands_of(types, i);
    stw_operand *moved[3] = {&bucket.master, &bucket.exp_avg, &bucket.exp_avg_sq};
    const stw_element type[3] = {types->master, types->exp_avg, types->exp_avg_sq};
    uint64_t home[3];
    for (int c = 0; c < 3; c++) {
        uint64_t slot = GPU_RING + (i % SLOTS * 3 + (uint64_t)c) * SLOT;
        home[c] = moved[c]->offset;
        *moved[c] = (stw_operand){STW_TIER_GPU, false, slot};
        if (type[c] != STW_ELEMENT_NONE)
            STW_TRY(b->copy(d, STW_STREAM_H2D, STW_TIER_GPU, slot, STW_TIER_HOST, home[c],
                            bucket.n * stw_element_bytes(type[c]), err));
    }
    STW_TRY(b->record(d, STW_STREAM_H2D, 3 * i, err));
    STW_TRY(b->wait(d, STW_STREAM_COMPUTE, 3 * i, err));
    STW_TRY(b->update(d, STW_STREAM_COMPUTE, adamw, &bucket, err));
    STW_TRY(b->record(d, STW_STREAM_COMPUTE, 3 * i + 1, err));
    STW_TRY(b->wait(d, STW_STREAM_D2H, 3 * i + 1, err));
    for (int c = 0; c < 3; c++)
        if (type[c] != STW_ELEMENT_NONE)
            STW_TRY(b->copy(d, STW_STREAM_D2H, STW_TIER_HOST, home[c], STW_TIER_GPU,
                            moved[c]->offset, bucket.n * stw_element_bytes(type[c]), err));
    STW_TRY(b->record(d, STW_STREAM_D2H, 3 * i + 2, err));
out:
    return status;
}

static stw_status one_step(const stw_backend *b, stw_device *d, const stw_element_types *types,
                           const stw_span *spans, uint64_t step, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_adamw adamw = adamw_of(step, step % 2 == 1); /* with and without clipping */
    STW_TRY(norm_of_step(b, d, spans, step, out, err));
    for (uint32_t i = 0; i < N_BUCKETS; i++) {
        const stw_bucket_operands bucket = operands_of(types, i);
        if (i < FIRST_DIRECT)
            STW_TRY(stream_bucket(b, d, types, i, &adamw, err));
        else
            STW_TRY(b->update(d, i < FIRST_CPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU, &adamw,
                              &bucket, err));
    }
    STW_TRY(b->wait_host(d, 3 * (FIRST_DIRECT - 1) + 2, err));
    STW_TRY(b->synchronize(d, err));
out:
    return status;
}

/* Two copies on NVMe: what was not committed is not read; conversion from GPU and host. */
static stw_status on_nvme(const stw_backend *b, stw_device *d, const stw_element_types *types,
                          const stw_span *spans, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_dtype dtype = types->params == STW_ELEMENT_F32 ? STW_DTYPE_F32 : STW_DTYPE_BF16;
    const uint64_t n = spans[0].n, host_n = spans[FIRST_HOST_SPAN].n;
    STW_TRY(b->zero(d, STW_TIER_NVME, 0, NVME_COPY, err));
    STW_TRY(b->commit(d, 1, err));
    STW_TRY(b->zero(d, STW_TIER_NVME, 0, NVME_COPY, err));
    STW_TRY(b->write(d, 12, HOST_V, ARRAY / 2, err)); /* off the blocks' boundaries, too */
    STW_TRY(b->convert(d, STW_STREAM_COMPUTE, STW_TIER_NVME, ARRAY + 4, STW_ELEMENT_F32,
                       STW_TIER_GPU, spans[0].params, dtype, n, err));
    STW_TRY(b->convert(d, STW_STREAM_DISK_OUT, STW_TIER_NVME, ARRAY + 4 + n * 4, STW_ELEMENT_BF16,
                       STW_TIER_HOST, spans[FIRST_HOST_SPAN].params, dtype, host_n, err));
    STW_TRY(b->digest(d, STW_TIER_NVME, 12, types->exp_avg_sq, PARAMS / 2, 5, &out->before_commit,
                      err));
    STW_TRY(b->commit(d, 2, err));
    STW_TRY(
        b->digest(d, STW_TIER_NVME, 12, types->exp_avg_sq, PARAMS / 2, 5, &out->after_commit, err));
    STW_TRY(b->digest(d, STW_TIER_NVME, ARRAY + 4, STW_ELEMENT_F32, n, 5, &out->converted, err));
    STW_TRY(b->digest(d, STW_TIER_NVME, ARRAY + 4 + n * 4, STW_ELEMENT_BF16, host_n, 5 + n,
                      &out->converted, err));
    STW_TRY(b->read(d, HOST_ROOM, 12, ARRAY / 2, err));
    uint64_t again = 0;
    STW_TRY(b->digest(d, STW_TIER_HOST, HOST_ROOM, types->exp_avg_sq, PARAMS / 2, 5, &again, err));
    if (again != out->after_commit)
        status = stw_fail(err, STW_STATUS_DISAGREE, "nvme", "read and digest differ");
out:
    return status;
}

static stw_status scenario(const stw_backend *b, stw_device *d, const stw_element_types *types,
                           uint32_t steps, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_span spans[N_SPANS];
    memset(out, 0, sizeof *out);
    make_spans(types, spans);
    STW_TRY(b->zero(d, STW_TIER_HOST, 0, HOST_ARENA, err));
    STW_TRY(b->zero(d, STW_TIER_GPU, 0, GPU_ARENA, err));
    STW_TRY(b->set_spans(d, spans, N_SPANS, err));
    STW_TRY(load(b, d, types, spans, err));
    for (uint32_t s = 1; s <= steps; s++) STW_TRY(one_step(b, d, types, spans, s, out, err));
    for (uint32_t i = 0; i < N_SPANS; i++) {
        const stw_span *s = &spans[i];
        STW_TRY(b->digest(d, span_tier(i), s->params, types->params, s->n, s->first, &out->params,
                          err));
        STW_TRY(
            b->digest(d, span_tier(i), s->grads, types->grads, s->n, s->first, &out->grads, err));
    }
    STW_TRY(b->digest(d, STW_TIER_HOST, HOST_M, types->exp_avg, PARAMS, 0, &out->exp_avg, err));
    STW_TRY(
        b->digest(d, STW_TIER_HOST, HOST_V, types->exp_avg_sq, PARAMS, 0, &out->exp_avg_sq, err));
    if (types->master != STW_ELEMENT_NONE)
        STW_TRY(b->digest(d, STW_TIER_HOST, HOST_W, types->master, PARAMS, 0, &out->master, err));
    STW_TRY(on_nvme(b, d, types, spans, out, err));
out:
    return status;
}

static stw_status run_scenario(const stw_backend *b, const stw_element_types *types, uint32_t steps,
                               outcome *out, stw_error *err) {
    const stw_device_config config = configuration(types);
    stw_device *device = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(b->open(&config, &device, err));
    STW_TRY(scenario(b, device, types, steps, out, err));
out:
    if (device != NULL) b->close(device);
    return status;
}

/* ---- tests ---- */

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
        CHECK_OK(
            cuda->digest(device, STW_TIER_GPU, 0, STW_ELEMENT_F32, sizes[i] / 4, 0, &sum, err));
        CHECK_OK(cuda->zero(device, STW_TIER_GPU, 0, sizes[i], err));
        CHECK_OK(cuda->zero(device, STW_TIER_HOST, 0, 300 * MIB, err));
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
    CHECK_OK(cuda->seed_grads(device, STW_TIER_HOST, at, n, 77, 1, 1, err));
    CHECK_OK(cuda->digest(device, STW_TIER_HOST, at, STW_ELEMENT_F32, n, 0, &host, err));
    CHECK_OK(cuda->copy(device, STW_STREAM_H2D, STW_TIER_GPU, 4, STW_TIER_HOST, at, n * 4, err));
    CHECK_OK(cuda->digest(device, STW_TIER_GPU, 4, STW_ELEMENT_F32, n, 0, &gpu, err));
    CHECK_OK(cuda->zero(device, STW_TIER_HOST, at, n * 4, err));
    CHECK_OK(cuda->convert(device, STW_STREAM_COMPUTE, STW_TIER_HOST, at, STW_ELEMENT_F32,
                           STW_TIER_GPU, 4, STW_DTYPE_F32, n / 2 + 3 * MIB / 2, err));
    CHECK_OK(cuda->synchronize(device, err));
    CHECK_OK(cuda->copy(device, STW_STREAM_D2H, STW_TIER_HOST, at + 14 * MIB, STW_TIER_GPU,
                        4 + 14 * MIB, 2 * MIB, err));
    CHECK_OK(cuda->digest(device, STW_TIER_HOST, at, STW_ELEMENT_F32, n, 0, &back, err));
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
            STW_TRY(cuda->norm_add(d, STW_STREAM_COMPUTE, STW_TIER_GPU, GPU_G, big, err));
        STW_TRY(cuda->norm_add(d, STW_STREAM_CPU, STW_TIER_HOST, HOST_G, 1000 * (r + 1), err));
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
    CHECK_OK(cuda->zero(device, STW_TIER_GPU, 0, GPU_ARENA, err));
    CHECK_OK(cuda->seed_grads(device, STW_TIER_HOST, HOST_G, 1000 * ROUNDS, 9, 7, 1, err));
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
    static const stw_link_shape shapes[] = {{MIB, 1}, {4 * MIB, 2}, {32 * MIB, 1}, {8 * MIB, 3}};
    const stw_device_config config = configuration(&fp32_types);
    stw_device *device = NULL;
    stw_device_info before, after;
    uint64_t host[2] = {0, 0}, gpu[2] = {0, 0};
    double seconds = -1;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    CHECK_OK(cuda->seed_grads(device, STW_TIER_HOST, 0, HOST_ARENA / 4, 0, 1, 1, err));
    CHECK_OK(cuda->seed_grads(device, STW_TIER_GPU, 0, GPU_ARENA / 4, 0, 2, 1, err));
    CHECK_OK(
        cuda->digest(device, STW_TIER_HOST, 0, STW_ELEMENT_F32, HOST_ARENA / 4, 0, &host[0], err));
    CHECK_OK(
        cuda->digest(device, STW_TIER_GPU, 0, STW_ELEMENT_F32, GPU_ARENA / 4, 0, &gpu[0], err));
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
    const stw_link_shape none = {0, 1}, still = {MIB, 0}, crowd = {MIB, 1000};
    CHECK_FAILS(cuda->link_seconds(device, &none, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_FAILS(cuda->link_seconds(device, &still, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_FAILS(cuda->link_seconds(device, &crowd, 1, &seconds, err), STW_STATUS_BUG, "streams");
    CHECK_OK(
        cuda->digest(device, STW_TIER_HOST, 0, STW_ELEMENT_F32, HOST_ARENA / 4, 0, &host[1], err));
    CHECK_OK(
        cuda->digest(device, STW_TIER_GPU, 0, STW_ELEMENT_F32, GPU_ARENA / 4, 0, &gpu[1], err));
    CU_ASSERT_EQUAL(host[0], host[1]); /* nothing came down into the state */
    CU_ASSERT_EQUAL(gpu[0], gpu[1]);
    cuda->close(device);
}

/* ---- refusals ---- */

static void refuses_ranges_and_limits(void) {
    stw_device_config config = configuration(&fp32_types);
    stw_device *device = NULL;
    uint64_t *counters = NULL;
    CHECK_OK(cuda->open(&config, &device, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(device);
    const stw_stream compute = STW_STREAM_COMPUTE;
    CHECK_FAILS(cuda->norm_add(device, compute, STW_TIER_GPU, GPU_ARENA - 4, 2, err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->norm_add(device, compute, STW_TIER_GPU, 2, 1, err), STW_STATUS_BUG,
                "element");
    CHECK_FAILS(cuda->norm_add(device, compute, STW_TIER_GPU, 0, UINT64_MAX / 2, err),
                STW_STATUS_BAD_INPUT, "");
    CHECK_FAILS(cuda->norm_add(device, STW_STREAM_CPU, STW_TIER_GPU, 0, 1, err), STW_STATUS_BUG,
                "stream");
    CHECK_FAILS(cuda->norm_counters(device, STW_STREAM_CPU, true, &counters, err), STW_STATUS_BUG,
                "stream");
    CHECK_FAILS(cuda->norm_factor(device, STW_STREAM_DISK, 1.0, err), STW_STATUS_BUG, "stream");
    CHECK_FAILS(
        cuda->copy(device, STW_STREAM_H2D, STW_TIER_GPU, GPU_ARENA, STW_TIER_HOST, 0, 1, err),
        STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->copy(device, STW_STREAM_H2D, STW_TIER_GPU, 4, STW_TIER_GPU, 0, 8, err),
                STW_STATUS_BUG, "overlap");
    /* NVMe offsets reach one copy of two. */
    CHECK_FAILS(cuda->write(device, NVME_COPY - 4, 0, 8, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->read(device, 0, NVME_COPY, 1, err), STW_STATUS_BUG, "outside");
    CHECK_FAILS(cuda->convert(device, compute, STW_TIER_NVME, NVME_COPY - 4, STW_ELEMENT_F32,
                              STW_TIER_GPU, 0, STW_DTYPE_F32, 2, err),
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
    spans[1].params += 2; /* not that of a float */
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
    CHECK_FAILS(cuda->update(device, compute, &plain, &bucket, err), STW_STATUS_BUG, "element");
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

/* ---- the k-th CUDA call fails ---- */

/* Is this the error of the call that was made to fail, and does it name the call? */
static bool told(stw_status status, const stw_error *error) {
    return status == STW_STATUS_DEVICE && error->native == (long)cudaErrorUnknown &&
           (strncmp(error->where, "cuda", 4) == 0 || strncmp(error->where, "stw_cuda", 8) == 0) &&
           strstr(error->text, "cudaErrorUnknown") != NULL;
}

static void every_call_may_fail(void) {
    static const stw_element_types types = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_F32,
                                            STW_ELEMENT_F32, STW_ELEMENT_F32};
    outcome out;
    stw_cuda_fail_call(0);
    CHECK_OK(run_scenario(cuda, &types, 1, &out, err));
    uint64_t calls = stw_cuda_calls(), silent = 0;
    CU_ASSERT_TRUE(calls > 100);
    for (uint64_t k = 1; k <= calls; k += k < 150 ? 1 : 5) {
        stw_error error = STW_ERROR_INIT;
        stw_cuda_fail_call(k);
        stw_status status = run_scenario(cuda, &types, 1, &out, &error);
        if (!told(status, &error) && silent++ < 5)
            fprintf(stderr, "call %llu: status %d, %s: %s\n", (unsigned long long)k, (int)status,
                    error.where, error.text);
        empty_folder();
    }
    CU_ASSERT_EQUAL(silent, 0);
    stw_cuda_fail_call(0);
    CHECK_OK(run_scenario(cuda, &types, 1, &out, err));
}

static stw_plan *small_plan(void) {
    static const char *const settings[] = {"optimizer.clip_norm=0.5", NULL};
    static const fixture_size size = {2, 64, 128, 512};
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
    static const uint32_t units[] = {10, 12, 12, 0};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 4, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static uint64_t used_bytes(void) {
    size_t unused = 0, total = 0;
    CU_ASSERT_EQUAL(cudaMemGetInfo(&unused, &total), cudaSuccess);
    return total - unused;
}

/* Every `stride`-th call from the first on; how many there were in a good run. */
static uint64_t fail_calls_of_a_run(const stw_plan *plan, const stw_executor_options *options,
                                    uint64_t first, uint64_t stride) {
    stw_run_result *result = NULL;
    stw_cuda_fail_call(0);
    CHECK_OK(stw_execute_with(plan, options, cuda, &result, err));
    uint64_t calls = stw_cuda_calls(), wrong = 0;
    if (result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    uint64_t used = used_bytes();
    CU_ASSERT_TRUE(calls > 200);
    for (uint64_t k = first; k <= calls; k += stride) {
        stw_error error = STW_ERROR_INIT;
        stw_cuda_fail_call(k);
        stw_status status = stw_execute_with(plan, options, cuda, &result, &error);
        /* Threads may need a call less than before; then none was made to fail. */
        bool reached = stw_cuda_calls() >= k;
        bool right = reached ? told(status, &error) && result == NULL : status == STW_STATUS_OK;
        if (!right && wrong++ < 5)
            fprintf(stderr, "call %llu of %llu: status %d, %s: %s\n", (unsigned long long)k,
                    (unsigned long long)stw_cuda_calls(), (int)status, error.where, error.text);
        stw_run_result_free(result);
        empty_folder();
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(used_bytes() <= used + 2 * MIB); /* failed runs give everything back */
    stw_cuda_fail_call(0);
    CHECK_OK(stw_execute_with(plan, options, cuda, &result, err));
    if (result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    return calls;
}

/* What the GPU says of when it worked: in the order of streams and of what waits for what. */
static void check_times(const stw_program *program, const stw_timeline *t) {
    unsigned wrong = 0, timed = 0;
    double free_from_s[STW_N_STREAMS] = {0};
    CU_ASSERT_EQUAL_FATAL(t->n_ops, program->n_ops);
    for (uint32_t i = 0; i < t->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind == STW_OP_ALLOC || op->kind == STW_OP_FREE || isnan(t->start_s[i])) continue;
        timed++;
        wrong += t->end_s[i] < t->start_s[i] || t->start_s[i] < free_from_s[op->stream] - 5e-5;
        free_from_s[op->stream] = t->end_s[i];
    }
    CU_ASSERT_TRUE(timed > 50);
    CU_ASSERT_EQUAL(wrong, 0);
}

/* The whole executor: loads and a step with all engines, every single call; then what comes on top,
 * which is much of the same: digests and a replay of single elements, and the link beside. */
static void every_call_of_a_run_may_fail(void) {
    stw_plan *plan = small_plan();
    stw_executor_options options = {
        .backend = "cuda", .steps = 1, .seed = 11, .nvme_folder = folder, .no_digest = true};
    alarm(450); /* a hang must not look like patience */
    uint64_t calls = fail_calls_of_a_run(plan, &options, 1, 1);
    options.no_digest = false;
    (void)fail_calls_of_a_run(plan, &options, calls - 20, 61);
    options.no_digest = options.ceiling = true;
    (void)fail_calls_of_a_run(plan, &options, calls / 2, 7);
    stw_timeline timeline = {0};
    options.ceiling = false;
    options.timeline = &timeline;
    (void)fail_calls_of_a_run(plan, &options, calls / 2, 31);
    check_times(plan->programs[0], &timeline);
    stw_timeline_free(&timeline);
    alarm(0);
    stw_plan_free(plan);
}

int main(void) {
    static const stw_test tests[] = {
        {"memory is what was asked for", memory_is_as_asked},
        {"host memory of several pieces is one arena", pieces_of_host_memory},
        {"steps have the host backend's bits for all types", same_bits_as_host},
        {"norms that follow each other do not overtake", norms_do_not_overtake},
        {"the link is measured and nothing else touched", link_is_measured},
        {"ranges and limits are refused", refuses_ranges_and_limits},
        {"buckets and spans are checked", refuses_buckets},
        {"every failing CUDA call ends in an error", every_call_may_fail},
        {"every failing CUDA call of a run ends it", every_call_of_a_run_may_fail},
    };
    char why[200];
    cuda = stw_backend_cuda_find();
    if (!cuda->available(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/stw-cuda-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 2;
    }
    int result = stw_test_run_all("cuda backend", tests, sizeof tests / sizeof tests[0]);
    empty_folder();
    (void)rmdir(folder);
    return result;
}
