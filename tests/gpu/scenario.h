/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA backend share: a few steps over tensors that lie apart, resident,
 * direct and on the CPU, that run on any backend, and a main that needs a GPU. */
#ifndef STW_TESTS_GPU_SCENARIO_H
#define STW_TESTS_GPU_SCENARIO_H

#define _DEFAULT_SOURCE /* mkdtemp, alarm */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/device.h"
#include "backend/norm.h"
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

static const stw_nvme_shape nvme_shape = {.in_memory = true};

static stw_device_config configuration(const stw_element_types *types) {
    stw_device_config config = {.arena_bytes = {GPU_ARENA, HOST_ARENA, 2 * NVME_COPY},
                                .capacity_bytes = {GPU_ARENA, HOST_ARENA, 2 * NVME_COPY},
                                .machine_host_bytes = HOST_ARENA,
                                .n_events = 3 * N_BUCKETS + 3,
                                .n_spans = N_SPANS,
                                .types = *types,
                                .threads = 2,
                                .nvme_folder = folder,
                                .nvme_copies = 2,
                                .nvme_shape = &nvme_shape};
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
            STW_TRY(b->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, GPU_RING),
                            stw_at(STW_TIER_HOST, from), s->n * 2, err));
            STW_TRY(b->record(d, STW_STREAM_H2D, EVENT_LOAD, err));
            STW_TRY(b->wait(d, STW_STREAM_COMPUTE, EVENT_LOAD, err));
            STW_TRY(b->convert(d, STW_STREAM_COMPUTE,
                               stw_typed(STW_TIER_GPU, s->params, types->params, s->n),
                               stw_at(STW_TIER_GPU, GPU_RING), STW_DTYPE_BF16, err));
        } else {
            STW_TRY(b->convert(d, STW_STREAM_CPU,
                               stw_typed(span_tier(i), s->params, types->params, s->n),
                               stw_at(STW_TIER_HOST, from), STW_DTYPE_BF16, err));
        }
        if (types->master == STW_ELEMENT_NONE) continue;
        bool on_gpu = span_tier(i) == STW_TIER_GPU;
        STW_TRY(b->convert(d, on_gpu ? STW_STREAM_COMPUTE : STW_STREAM_CPU,
                           stw_typed(STW_TIER_HOST, HOST_W + s->first * 4, STW_ELEMENT_F32, s->n),
                           stw_at(span_tier(i), s->params), dtype, err));
    }
    STW_TRY(b->synchronize(d, err));
out:
    return status;
}

/* Gradients and their norm, down to the factor; on the comm stream as with several ranks. */
static stw_status norm_of_step(const stw_backend *b, stw_device *d, stw_element grads,
                               const stw_span *spans, uint64_t step, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t *counters = NULL;
    STW_TRY(b->norm_reset(d, STW_STREAM_COMPUTE, err));
    for (uint32_t i = 0; i < N_SPANS; i++) {
        const stw_stream stream =
            span_tier(i) == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU;
        stw_typed_range values = {span_tier(i), spans[i].grads, grads, spans[i].n};
        STW_TRY(b->seed_grads(d, values, spans[i].first, 7, step, err));
        STW_TRY(b->norm_add(d, stream, values, err));
    }
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
            STW_TRY(b->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, slot),
                            stw_at(STW_TIER_HOST, home[c]), bucket.n * stw_element_bytes(type[c]),
                            err));
    }
    STW_TRY(b->record(d, STW_STREAM_H2D, 3 * i, err));
    STW_TRY(b->wait(d, STW_STREAM_COMPUTE, 3 * i, err));
    STW_TRY(b->update(d, STW_STREAM_COMPUTE, adamw, &bucket, err));
    STW_TRY(b->record(d, STW_STREAM_COMPUTE, 3 * i + 1, err));
    STW_TRY(b->wait(d, STW_STREAM_D2H, 3 * i + 1, err));
    for (int c = 0; c < 3; c++)
        if (type[c] != STW_ELEMENT_NONE)
            STW_TRY(b->copy(d, STW_STREAM_D2H, stw_at(STW_TIER_HOST, home[c]),
                            stw_at(STW_TIER_GPU, moved[c]->offset),
                            bucket.n * stw_element_bytes(type[c]), err));
    STW_TRY(b->record(d, STW_STREAM_D2H, 3 * i + 2, err));
out:
    return status;
}

static stw_status one_step(const stw_backend *b, stw_device *d, const stw_element_types *types,
                           const stw_span *spans, uint64_t step, outcome *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_adamw adamw = adamw_of(step, step % 2 == 1); /* with and without clipping */
    STW_TRY(norm_of_step(b, d, types->grads, spans, step, out, err));
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
    STW_TRY(b->zero(d, stw_at(STW_TIER_NVME, 0), NVME_COPY, err));
    STW_TRY(b->commit(d, 1, err));
    STW_TRY(b->zero(d, stw_at(STW_TIER_NVME, 0), NVME_COPY, err));
    STW_TRY(b->write(d, 12, HOST_V, ARRAY / 2, err)); /* off the blocks' boundaries, too */
    STW_TRY(b->convert(d, STW_STREAM_COMPUTE,
                       stw_typed(STW_TIER_NVME, ARRAY + 4, STW_ELEMENT_F32, n),
                       stw_at(STW_TIER_GPU, spans[0].params), dtype, err));
    STW_TRY(b->convert(d, STW_STREAM_DISK_OUT,
                       stw_typed(STW_TIER_NVME, ARRAY + 4 + n * 4, STW_ELEMENT_BF16, host_n),
                       stw_at(STW_TIER_HOST, spans[FIRST_HOST_SPAN].params), dtype, err));
    STW_TRY(b->digest(d, stw_typed(STW_TIER_NVME, 12, types->exp_avg_sq, PARAMS / 2), 5,
                      &out->before_commit, err));
    STW_TRY(b->commit(d, 2, err));
    STW_TRY(b->digest(d, stw_typed(STW_TIER_NVME, 12, types->exp_avg_sq, PARAMS / 2), 5,
                      &out->after_commit, err));
    STW_TRY(b->digest(d, stw_typed(STW_TIER_NVME, ARRAY + 4, STW_ELEMENT_F32, n), 5,
                      &out->converted, err));
    STW_TRY(b->digest(d, stw_typed(STW_TIER_NVME, ARRAY + 4 + n * 4, STW_ELEMENT_BF16, host_n),
                      5 + n, &out->converted, err));
    STW_TRY(b->read(d, HOST_ROOM, 12, ARRAY / 2, err));
    uint64_t again = 0;
    STW_TRY(b->digest(d, stw_typed(STW_TIER_HOST, HOST_ROOM, types->exp_avg_sq, PARAMS / 2), 5,
                      &again, err));
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
    STW_TRY(b->zero(d, stw_at(STW_TIER_HOST, 0), HOST_ARENA, err));
    STW_TRY(b->zero(d, stw_at(STW_TIER_GPU, 0), GPU_ARENA, err));
    STW_TRY(b->set_spans(d, spans, N_SPANS, err));
    STW_TRY(load(b, d, types, spans, err));
    for (uint32_t s = 1; s <= steps; s++) STW_TRY(one_step(b, d, types, spans, s, out, err));
    for (uint32_t i = 0; i < N_SPANS; i++) {
        const stw_span *s = &spans[i];
        STW_TRY(b->digest(d, stw_typed(span_tier(i), s->params, types->params, s->n), s->first,
                          &out->params, err));
        STW_TRY(b->digest(d, stw_typed(span_tier(i), s->grads, types->grads, s->n), s->first,
                          &out->grads, err));
    }
    STW_TRY(b->digest(d, stw_typed(STW_TIER_HOST, HOST_M, types->exp_avg, PARAMS), 0, &out->exp_avg,
                      err));
    STW_TRY(b->digest(d, stw_typed(STW_TIER_HOST, HOST_V, types->exp_avg_sq, PARAMS), 0,
                      &out->exp_avg_sq, err));
    if (types->master != STW_ELEMENT_NONE)
        STW_TRY(b->digest(d, stw_typed(STW_TIER_HOST, HOST_W, types->master, PARAMS), 0,
                          &out->master, err));
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

/* Run tests in an empty folder; 77 without a GPU. */
static int run_tests_on_gpu(const char *suite, const stw_test *tests, size_t n_tests) {
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
    int result = stw_test_run_all(suite, tests, n_tests);
    empty_folder();
    (void)rmdir(folder);
    return result;
}

#endif
