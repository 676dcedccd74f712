/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: copies between tiers, NVMe's file and its commits, updates over spans, the norm
 * and its factor, what is refused, and that looking at values works in every tier and type. */
#define _GNU_SOURCE /* mincore */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/limits.h"
#include "backend/norm.h"
#include "backend/tiers.h"
#include "tests/unit/testing.h"

static const stw_backend *const host = &stw_backend_host;

static const stw_element_types all_f32 = {STW_ELEMENT_F32, STW_ELEMENT_F32, STW_ELEMENT_NONE,
                                          STW_ELEMENT_F32, STW_ELEMENT_F32};
static const stw_element_types with_master = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_F32,
                                              STW_ELEMENT_F32, STW_ELEMENT_BF16};

static const stw_nvme_shape nvme_shape = {.in_memory = true};

static stw_device_config config_of(uint64_t gpu, uint64_t host_bytes, uint64_t nvme) {
    stw_device_config c = {.arena_bytes = {gpu, host_bytes, nvme},
                           .capacity_bytes = {gpu, host_bytes, nvme},
                           .n_events = 4,
                           .n_spans = 8,
                           .types = all_f32,
                           .threads = 2,
                           .nvme_folder = ".",
                           .nvme_shape = &nvme_shape};
    return c;
}

static stw_device *device_of(uint64_t gpu, uint64_t host_bytes, uint64_t nvme) {
    stw_device_config c = config_of(gpu, host_bytes, nvme);
    stw_device *device = NULL;
    CHECK_OK(host->open(&c, &device, err));
    return device;
}

/* ---- memory that the caller owns ---- */

static void works_in_memory_of_the_caller(void) {
    enum { BYTES = 64 << 10, FLOATS = BYTES / 4 };
    unsigned char *gpu = NULL, *memory = aligned_alloc(4096, 2 * BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    gpu = memory + BYTES;
    memset(memory, 0x5A, 2 * BYTES);
    stw_device_config c = config_of(BYTES - 100, BYTES, BYTES);
    stw_device *d = NULL;
    uint64_t left = 0, right = 0;
    c.external[STW_TIER_GPU] = (stw_external_arena){gpu, BYTES};
    c.external[STW_TIER_HOST] = (stw_external_arena){memory, BYTES};
    CHECK_OK(host->open(&c, &d, err));
    CU_ASSERT_PTR_EQUAL(host->host_address(d, 16, 16), memory + 16);
    CU_ASSERT_PTR_EQUAL(host->device_address(d, 0, BYTES - 100), gpu);
    CU_ASSERT_PTR_NULL(host->device_address(d, 0, BYTES)); /* the arena's size, not the memory's */
    CU_ASSERT_EQUAL(memory[0], 0x5A);                      /* as it was */
    CU_ASSERT_EQUAL(gpu[BYTES - 101], 0x5A);
    CHECK_OK(host->seed_grads(d, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, FLOATS / 2), 0, 1, 1,
                              err));
    CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 0),
                        BYTES / 2, err));
    CHECK_OK(host->write(d, 0, 0, BYTES / 2, err));
    CHECK_OK(
        host->digest(d, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, FLOATS / 2), 0, &left, err));
    CHECK_OK(
        host->digest(d, stw_typed(STW_TIER_NVME, 0, STW_ELEMENT_F32, FLOATS / 2), 0, &right, err));
    CU_ASSERT_EQUAL(left, right);
    CU_ASSERT_EQUAL(memcmp(memory, gpu, BYTES / 2), 0);
    CHECK_OK(host->put(d, stw_at(STW_TIER_GPU, 3), "four", 4, err));
    CHECK_OK(host->put(d, stw_at(STW_TIER_HOST, 5), "four", 4, err));
    CU_ASSERT_EQUAL(memcmp(gpu + 3, "four", 4), 0);
    CU_ASSERT_EQUAL(memcmp(memory + 5, "four", 4), 0);
    CHECK_OK(host->zero(d, stw_at(STW_TIER_GPU, 0), BYTES - 100, err));
    host->close(d); /* the memory stays, with what lies beyond the arena untouched */
    CU_ASSERT_EQUAL(gpu[BYTES - 101], 0);
    CU_ASSERT_EQUAL(gpu[BYTES - 100], 0x5A);
    CU_ASSERT_EQUAL(memory[BYTES - 1], 0x5A);
    free(memory);
}

static void refuses_memory_of_the_caller(void) {
    enum { BYTES = 8192 };
    unsigned char *memory = aligned_alloc(4096, 2 * BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    const stw_device_config good = config_of(BYTES, BYTES, BYTES);
    stw_device_config c = good;
    stw_device *d = NULL;
    c.external[STW_TIER_HOST] = (stw_external_arena){memory, BYTES - 1};
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE,
                "found 8191 bytes of the caller's memory, expected 8192");
    c.external[STW_TIER_HOST] = (stw_external_arena){memory + 512, BYTES};
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE, "expected a multiple of 4096");
    c = good;
    c.external[STW_TIER_GPU] = (stw_external_arena){memory + 8, BYTES};
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE, "gpu");
    c = good;
    c.external[STW_TIER_NVME] = (stw_external_arena){memory, BYTES};
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE, "nvme");
    c = good;
    c.streams[STW_STREAM_H2D] = memory;
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE, "host backend has none");
    c = good;
    c.streams[STW_STREAM_DISK] = memory;
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_USAGE, "stream of the host");
    CU_ASSERT_PTR_NULL(d);
    free(memory);
}

static void bytes_travel_through_all_tiers(void) {
    enum { BYTES = 3 << 20, SMALL = 1000 };
    stw_device *d = device_of(BYTES, 2 * BYTES, BYTES);
    unsigned char *memory = host->host_address(d, 0, BYTES);
    unsigned char *back = host->host_address(d, BYTES, BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    for (int i = 0; i < BYTES; i++) memory[i] = (unsigned char)((unsigned)i * 37u >> 3);
    CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 0), BYTES,
                        err));
    CHECK_OK(host->copy(d, STW_STREAM_D2H, stw_at(STW_TIER_HOST, BYTES), stw_at(STW_TIER_GPU, 0),
                        BYTES, err));
    CU_ASSERT_EQUAL(memcmp(memory, back, BYTES), 0);
    CHECK_OK(host->zero(d, stw_at(STW_TIER_HOST, BYTES), BYTES, err));
    CU_ASSERT_EQUAL(back[0] | back[BYTES - 1], 0);
    CHECK_OK(host->write(d, 0, 0, BYTES, err)); /* aligned: direct where there is such */
    CHECK_OK(host->read(d, BYTES, 0, BYTES, err));
    CU_ASSERT_EQUAL(memcmp(memory, back, BYTES), 0);
    CHECK_OK(host->write(d, 512, 12, SMALL, err)); /* not aligned, over what was direct */
    CHECK_OK(host->read(d, BYTES + 4, 508, SMALL + 8, err));
    CU_ASSERT_EQUAL(memcmp(back + 4, memory + 508, 4), 0);
    CU_ASSERT_EQUAL(memcmp(back + 8, memory + 12, SMALL), 0);
    CU_ASSERT_EQUAL(memcmp(back + 8 + SMALL, memory + 512 + SMALL, 4), 0);
    CHECK_OK(
        host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 0), 0, err));
    host->close(d);
}

static void ranges_outside_are_refused(void) {
    stw_device *d = device_of(4096, 8192, 4096);
    CHECK_FAILS(
        host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 1), stw_at(STW_TIER_HOST, 0), 4096, err),
        STW_STATUS_BUG, "gpu");
    CHECK_FAILS(
        host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 8191), 2, err),
        STW_STATUS_BUG, "host");
    CHECK_FAILS(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, UINT64_MAX),
                           stw_at(STW_TIER_HOST, 0), 2, err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(
        host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_HOST, 0), stw_at(STW_TIER_HOST, 8), 16, err),
        STW_STATUS_BUG, "overlap");
    CHECK_FAILS(host->read(d, 0, 4000, 100, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->zero(d, stw_at(STW_TIER_NVME, 0), 4097, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->put(d, stw_at(STW_TIER_GPU, 4093), "four", 4, err), STW_STATUS_BUG, "gpu");
    CHECK_FAILS(host->put(d, stw_at(STW_TIER_NVME, 0), "four", 4, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->seed_grads(d, stw_typed(STW_TIER_GPU, 2, STW_ELEMENT_F32, 1), 0, 1, 1, err),
                STW_STATUS_BUG, "float");
    uint64_t digest = 0;
    CHECK_FAILS(host->digest(d, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, 1025), 0, &digest, err),
                STW_STATUS_BUG, "gpu");
    CHECK_FAILS(host->digest(d, stw_typed(STW_TIER_GPU, 1, STW_ELEMENT_BF16, 1), 0, &digest, err),
                STW_STATUS_BUG, "float");
    CHECK_FAILS(host->digest(d, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_NONE, 1), 0, &digest, err),
                STW_STATUS_BUG, "type");
    CHECK_OK(host->digest(d, stw_typed(STW_TIER_GPU, 2, STW_ELEMENT_BF16, 2047), 0, &digest, err));
    CHECK_FAILS(host->norm_add(d, STW_STREAM_CPU,
                               stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, UINT64_MAX / 2), err),
                STW_STATUS_BUG, "host");
    CHECK_FAILS(
        host->norm_add(d, STW_STREAM_CPU, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, 2049), err),
        STW_STATUS_BUG, "host");
    CHECK_FAILS(host->record(d, STW_STREAM_H2D, 4, err), STW_STATUS_BUG, "event");
    CHECK_OK(host->record(d, STW_STREAM_H2D, 3, err));
    CHECK_FAILS(host->convert(d, STW_STREAM_COMPUTE, stw_typed(STW_TIER_GPU, 0, STW_ELEMENT_F32, 1),
                              stw_at(STW_TIER_HOST, 0), STW_DTYPE_I32, err),
                STW_STATUS_NOT_BUILT_IN, "I32");
    CHECK_FAILS(host->convert(d, STW_STREAM_COMPUTE,
                              stw_typed(STW_TIER_GPU, 4, STW_ELEMENT_F32, 1024),
                              stw_at(STW_TIER_HOST, 0), STW_DTYPE_BF16, err),
                STW_STATUS_BUG, "gpu");
    CHECK_FAILS(host->convert(d, STW_STREAM_COMPUTE,
                              stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_BF16, 100),
                              stw_at(STW_TIER_HOST, 40), STW_DTYPE_F32, err),
                STW_STATUS_BUG, "overlap");
    CHECK_FAILS(host->convert(d, STW_STREAM_COMPUTE,
                              stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, 1),
                              stw_at(STW_TIER_NVME, 0), STW_DTYPE_F32, err),
                STW_STATUS_BUG, "nvme");
    CU_ASSERT_PTR_NULL(host->host_address(d, 8192, 1));
    CU_ASSERT_PTR_NULL(host->device_address(d, 0, 4097));
    CU_ASSERT_PTR_NOT_NULL(host->device_address(d, 0, 4096));
    host->close(d);
}

static void limits_are_refused(void) {
    stw_device *d = NULL;
    stw_device_config c = config_of(4096, 4096, 4096);
    c.capacity_bytes[STW_TIER_HOST] = 4095;
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_NO_RESOURCES, "host");
    c = config_of(4096, 4096, 4096);
    c.capacity_bytes[STW_TIER_GPU] = 0;
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_NO_RESOURCES, "gpu");
    c = config_of(0, 4096, 1ull << 55); /* no file system has that */
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_NO_RESOURCES, "");
    c = config_of(0, 1ull << 60, 0); /* nor any address space */
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_NO_RESOURCES, "");
    c = config_of(4096, 4096, 4096);
    c.nvme_folder = "no/such/folder";
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_IO, "no/such/folder");
    CU_ASSERT_PTR_NULL(d);
}

/* Values made and digested in a tier are those of the element functions. */
static void check_values(stw_element type) {
    enum { N = 3000001 }; /* more than one piece of the scratch */
    const uint64_t one = stw_element_bytes(type);
    stw_device_config c = config_of(N * 4, N * 4, N * 4);
    stw_device *d = NULL;
    c.types.grads = type;
    CHECK_OK(host->open(&c, &d, err));
    uint64_t expected = 0, first = 77;
    for (uint64_t i = 0; i < N; i++) {
        float value = stw_seeded_grad(3, 2, first + i);
        expected +=
            stw_digest_element(first + i, type == STW_ELEMENT_F32 ? stw_bits_from_float(value)
                                                                  : stw_bf16_from_float(value));
    }
    for (int t = 0; t < STW_N_TIERS; t++) {
        uint64_t digest = 5;
        CHECK_OK(host->seed_grads(d, stw_typed((stw_tier)t, 0, type, N), first, 3, 2, err));
        CHECK_OK(host->digest(d, stw_typed((stw_tier)t, 0, type, N), first, &digest, err));
        CU_ASSERT_EQUAL(digest, expected + 5);
        digest = 0;
        CHECK_OK(host->digest(d, stw_typed((stw_tier)t, 0, type, 1000), first, &digest, err));
        CHECK_OK(host->digest(d, stw_typed((stw_tier)t, 1000 * one, type, N - 1000), first + 1000,
                              &digest, err));
        CU_ASSERT_EQUAL(digest, expected);
        CHECK_OK(host->zero(d, stw_at((stw_tier)t, one), (N - 1) * one, err));
        digest = 0;
        CHECK_OK(host->digest(d, stw_typed((stw_tier)t, (N - 1) * one, type, 1), 9, &digest, err));
        CU_ASSERT_EQUAL(digest, stw_digest_element(9, 0));
        digest = 0; /* the first one is not zeroed */
        CHECK_OK(host->digest(d, stw_typed((stw_tier)t, 0, type, 1), 9, &digest, err));
        CU_ASSERT_NOT_EQUAL(digest, stw_digest_element(9, 0));
    }
    host->close(d);
}

static void values_in_every_tier(void) {
    check_values(STW_ELEMENT_F32);
    check_values(STW_ELEMENT_BF16);
}

/* bf16 weights to fp32 and to bf16, from host and "GPU" memory, into every tier. */
static void conversions_reach_every_tier(void) {
    enum { N = 2100001 }; /* more than one piece of the scratch */
    stw_device *d = device_of(N * 8, N * 8, N * 4);
    double *from = host->host_address(d, 0, N * 8);
    for (uint64_t i = 0; i < N; i++) from[i] = (double)stw_seeded_grad(1, 1, i) * 1.1;
    CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 0), N * 8,
                        err));
    for (int type = STW_ELEMENT_F32; type <= STW_ELEMENT_BF16; type++)
        for (int t = 0; t < STW_N_TIERS; t++) {
            stw_tier source = t == STW_TIER_HOST ? STW_TIER_GPU : STW_TIER_HOST;
            uint64_t expected = 0, digest = 0;
            for (uint64_t i = 0; i < N; i++) {
                float value = (float)from[i];
                expected +=
                    stw_digest_element(i, type == STW_ELEMENT_F32 ? stw_bits_from_float(value)
                                                                  : stw_bf16_from_float(value));
            }
            CHECK_OK(host->convert(d, STW_STREAM_COMPUTE,
                                   stw_typed((stw_tier)t, 0, (stw_element)type, N),
                                   stw_at(source, 0), STW_DTYPE_F64, err));
            CHECK_OK(
                host->digest(d, stw_typed((stw_tier)t, 0, (stw_element)type, N), 0, &digest, err));
            CU_ASSERT_EQUAL(digest, expected);
            /* From where it was not written to. */
            CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at((stw_tier)(1 - (int)source), 0),
                                stw_at(source, 0), N * 8, err));
        }
    host->close(d);
}

static uint64_t digest_of_nvme(stw_device *d, uint64_t n) {
    uint64_t digest = 0;
    CHECK_OK(host->digest(d, stw_typed(STW_TIER_NVME, 0, STW_ELEMENT_F32, n), 0, &digest, err));
    return digest;
}

/* Two copies: offsets reach one of them, and what was written is seen after the commit. */
static void commits_make_writes_count(void) {
    enum { N = 4096 };
    stw_device *d = NULL;
    stw_device_config c = config_of(0, N * 4, 2 * N * 4);
    c.nvme_copies = 2;
    CHECK_OK(host->open(&c, &d, err));
    uint64_t zeros = digest_of_nvme(d, N), seeded = 0;
    for (uint64_t i = 0; i < N; i++)
        seeded += stw_digest_element(i, stw_bits_from_float(stw_seeded_grad(3, 2, i)));
    CHECK_OK(host->seed_grads(d, stw_typed(STW_TIER_NVME, 0, STW_ELEMENT_F32, N), 0, 3, 2, err));
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), zeros);
    CHECK_OK(host->commit(d, 1, err));
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), seeded);
    CHECK_OK(host->zero(d, stw_at(STW_TIER_NVME, 0), N * 4, err));
    CHECK_OK(host->read(d, 0, 0, N * 4, err)); /* still the committed step */
    uint64_t digest = 0;
    CHECK_OK(host->digest(d, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, N), 0, &digest, err));
    CU_ASSERT_EQUAL(digest, seeded);
    CHECK_OK(host->commit(d, 2, err));
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), zeros);
    CHECK_OK(host->commit(d, 3, err)); /* nothing was written: not back to step 1 */
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), zeros);
    CHECK_FAILS(host->write(d, N * 4 - 4, 0, 8, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->zero(d, stw_at(STW_TIER_NVME, N * 4), 4, err), STW_STATUS_BUG, "nvme");
    host->close(d);
    /* One copy: written in place, a commit changes nothing; nor does it without NVMe. */
    d = device_of(0, N * 4, N * 4);
    CHECK_OK(host->seed_grads(d, stw_typed(STW_TIER_NVME, 0, STW_ELEMENT_F32, N), 0, 3, 2, err));
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), seeded);
    CHECK_OK(host->commit(d, 1, err));
    CU_ASSERT_EQUAL(digest_of_nvme(d, N), seeded);
    host->close(d);
    d = device_of(0, 4096, 0);
    CHECK_OK(host->commit(d, 1, err));
    host->close(d);
}

/* ---- updates ---- */

enum { UPDATED = 1000 }; /* elements; components lie every 8192 bytes */

/* Three spans: the middle one of another group, parameters and gradients of the last one first. */
static const stw_span three[] = {
    {50, 300, 2800, 2800, 0, 0}, {350, 100, 4400, 4400, 3, 0}, {450, 700, 0, 0, 1, 0}};

static uint64_t apart(const stw_span *spans, bool in_spans, bool is_grads, uint64_t element,
                      uint64_t first, uint64_t one) {
    if (!in_spans) return (element - first) * one;
    while (element >= spans->first + spans->n) spans++;
    return (is_grads ? spans->grads : spans->params) + (element - spans->first) * one;
}

enum { FIRST = 100, STRIDE = 8192 };

/* Update [FIRST, FIRST + UPDATED) of components that lie STRIDE bytes apart, element by element. */
static void expect_update(const stw_adamw *a, float factor, const stw_element_types *types,
                          bool in_spans, unsigned char *memory) {
    const stw_element type[5] = {types->params, types->grads, types->master, types->exp_avg,
                                 types->exp_avg_sq};
    const bool master = types->master != STW_ELEMENT_NONE;
    for (uint64_t e = FIRST; e < FIRST + UPDATED; e++) {
        float value[5] = {0.0f};
        unsigned char *at[5];
        uint16_t half = 0;
        for (int c = 0; c < 5; c++) {
            uint64_t one = stw_element_bytes(type[c]);
            at[c] = memory + c * STRIDE + apart(three, in_spans && c < 2, c == 1, e, FIRST, one);
            if (one == 4) memcpy(&value[c], at[c], 4);
            if (one == 2) memcpy(&half, at[c], 2);
            if (one == 2) value[c] = stw_float_from_bf16(half);
        }
        unsigned group = e < 350 ? 0 : e < 450 ? 3 : 1;
        stw_adamw_element(a, a->groups[group], factor, &value[master ? 2 : 0], value[1], &value[3],
                          &value[4]);
        if (master) value[0] = value[2];
        for (int c = 0; c < 5; c++) {
            half = stw_bf16_from_float(value[c]);
            if (type[c] == STW_ELEMENT_F32) memcpy(at[c], &value[c], 4);
            if (type[c] == STW_ELEMENT_BF16) memcpy(at[c], &half, 2);
        }
    }
}

/* A factor that clips: counters of one gradient of 3 give the norm 3. */
static float set_factor(stw_device *d) {
    uint64_t *counters = NULL, square = 0;
    double norm = 0.0;
    float factor = 0.0f;
    stw_norm_bins bins = {.not_finite = 0};
    unsigned bin = 0;
    CU_ASSERT_EQUAL(stw_norm_split(3.0f, &bin, &square), 1);
    bins.low[bin] = square & 0xFFFFFFFFu;
    bins.high[bin] = square >> 32;
    CHECK_OK(host->norm_counters(d, STW_STREAM_COMPUTE, false, &counters, err));
    stw_norm_to_counters(&bins, counters); /* as a sum over ranks would */
    CHECK_OK(host->norm_factor(d, STW_STREAM_COMPUTE, 0.75, err));
    host->norm_result(d, &norm, &factor);
    CU_ASSERT_EQUAL(norm, 3.0);
    CU_ASSERT_EQUAL(factor, (float)(0.75 / (3.0 + 1e-6)));
    return factor;
}

/* One bucket with seeded contents, updated on a stream with components in a tier (`mixed`: master
 * and moments in the host's), against the element function. */
static void check_update(const stw_element_types *types, stw_stream stream, stw_tier tier,
                         bool mixed, bool in_spans) {
    stw_device_config config = config_of(5 * STRIDE, 10 * STRIDE, 0);
    stw_device *d = NULL;
    config.types = *types;
    CHECK_OK(host->open(&config, &d, err));
    unsigned char *arena = host->host_address(d, 0, 5 * STRIDE);
    unsigned char *expected = host->host_address(d, 5 * STRIDE, 5 * STRIDE);
    for (uint64_t i = 0; i < 5 * STRIDE / 2; i++) { /* bf16 pairs are fp32 numbers, too */
        uint16_t bits = stw_bf16_from_float(fabsf(stw_seeded_grad(2, 1, i)));
        memcpy(arena + 2 * i, &bits, 2);
        memcpy(expected + 2 * i, &bits, 2);
    }
    CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0), stw_at(STW_TIER_HOST, 0),
                        5 * STRIDE, err));
    stw_adamw a = stw_adamw_make(0.1, 0.9, 0.99, 1e-8, 0.01, 4, 1);
    stw_adamw_set_group(&a, 3, 0.2, 0.0, 4);
    stw_adamw_set_group(&a, 1, 0.3, 0.5, 4);
    expect_update(&a, set_factor(d), types, in_spans, expected);
    stw_tier far_tier = mixed ? STW_TIER_HOST : tier;
    /* The offsets of spans count from the arena's base: gradients in spans lie STRIDE on. */
    stw_span spans[3];
    memcpy(spans, three, sizeof spans);
    for (int i = 0; i < 3; i++) spans[i].grads += STRIDE;
    CHECK_OK(host->set_spans(d, spans, 3, err));
    stw_bucket_operands o = {.first = FIRST,
                             .n = UPDATED,
                             .n_spans = 3,
                             .params = {tier, in_spans, 0},
                             .grads = {tier, in_spans, STRIDE},
                             .master = {far_tier, false, 2 * STRIDE},
                             .exp_avg = {far_tier, false, 3 * STRIDE},
                             .exp_avg_sq = {far_tier, false, 4 * STRIDE}};
    CHECK_OK(host->update(d, stream, &a, &o, err));
    if (tier == STW_TIER_GPU) /* what the GPU held is looked at in the host's arena */
        CHECK_OK(host->copy(d, STW_STREAM_D2H, stw_at(STW_TIER_HOST, 0), stw_at(STW_TIER_GPU, 0),
                            mixed ? 2 * STRIDE : 5 * STRIDE, err));
    CU_ASSERT_EQUAL(memcmp(arena, expected, 5 * STRIDE), 0);
    host->close(d);
}

static void updates_have_the_scalar_bits(void) {
    for (int in_spans = 0; in_spans < 2; in_spans++)
        for (int master = 0; master < 2; master++) {
            const stw_element_types *types = master ? &with_master : &all_f32;
            check_update(types, STW_STREAM_CPU, STW_TIER_HOST, false, in_spans);
            check_update(types, STW_STREAM_COMPUTE, STW_TIER_GPU, false, in_spans);
            check_update(types, STW_STREAM_COMPUTE, STW_TIER_GPU, true, in_spans);
            check_update(types, STW_STREAM_COMPUTE, STW_TIER_HOST, false, in_spans);
        }
}

static void wrong_updates_are_refused(void) {
    stw_device *d = device_of(4096, 65536, 4096);
    stw_adamw a = stw_adamw_make(0.1, 0.9, 0.99, 1e-8, 0.01, 4, 0);
    stw_operand at = {STW_TIER_HOST, false, 0};
    const stw_bucket_operands good = {100, 1000, 0, 3, {STW_TIER_HOST, true, 0}, at, at, at, at};
    stw_bucket_operands o = good;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "do not cover");
    CHECK_OK(host->set_spans(d, three, 3, err));
    o.exp_avg.offset = 16384; /* moments beside, or arrays would overlap */
    o.grads.offset = 8192;
    o.exp_avg_sq.offset = 32768;
    CHECK_OK(host->update(d, STW_STREAM_CPU, &a, &o, err));
    o.n = 1051;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "do not cover");
    o = good;
    o.first_span = 1;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "3 spans from 1");
    o.n_spans = 2;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "do not cover");
    o = good;
    o.params.tier = STW_TIER_GPU;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "cpu");
    /* 4400 + 100 x 4 bytes are more than the GPU's arena has. */
    CHECK_FAILS(host->update(d, STW_STREAM_COMPUTE, &a, &o, err), STW_STATUS_BUG, "gpu");
    o = good;
    o.exp_avg.tier = STW_TIER_NVME;
    CHECK_FAILS(host->update(d, STW_STREAM_COMPUTE, &a, &o, err), STW_STATUS_BUG, "nvme");
    o = good;
    o.exp_avg_sq.offset = 65536 - 3996;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "host");
    o.exp_avg_sq.offset = 2;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "float");
    stw_span far_away[3]; /* of the last span the bucket has 650 elements: 4 bytes too far */
    memcpy(far_away, three, sizeof far_away);
    far_away[2].grads = 65536 - 2596;
    o = good;
    o.grads = (stw_operand){STW_TIER_HOST, true, 0};
    o.exp_avg.offset = 16384;
    o.exp_avg_sq.offset = 32768;
    CHECK_OK(host->set_spans(d, far_away, 3, err));
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "host");
    far_away[2].grads -= 4;
    CHECK_OK(host->set_spans(d, far_away, 3, err));
    o.params = (stw_operand){STW_TIER_HOST, false, 8192};
    CHECK_OK(host->update(d, STW_STREAM_CPU, &a, &o, err));
    o = good;
    o.exp_avg.in_spans = true;
    CHECK_FAILS(host->update(d, STW_STREAM_CPU, &a, &o, err), STW_STATUS_BUG, "alone");
    host->close(d);
}

static void wrong_spans_are_refused(void) {
    stw_device *d = device_of(0, 4096, 0);
    stw_span spans[9];
    for (uint32_t i = 0; i < 9; i++) spans[i] = (stw_span){i * 10, 10, i * 40, i * 40, 0, 0};
    CHECK_FAILS(host->set_spans(d, spans, 9, err), STW_STATUS_BUG, "room for 8");
    CHECK_OK(host->set_spans(d, spans, 8, err));
    spans[3].group = STW_MAX_PARAM_GROUPS;
    CHECK_FAILS(host->set_spans(d, spans, 8, err), STW_STATUS_BUG, "span 3");
    spans[3].group = STW_MAX_PARAM_GROUPS - 1;
    spans[5].first++;
    CHECK_FAILS(host->set_spans(d, spans, 8, err), STW_STATUS_BUG, "span 5 begins at element 51");
    CHECK_OK(host->set_spans(d, spans, 5, err));
    spans[4].n = 0;
    CHECK_FAILS(host->set_spans(d, spans, 5, err), STW_STATUS_BUG, "span 4");
    CHECK_OK(host->set_spans(d, NULL, 0, err));
    host->close(d);
}

/* ---- the norm ---- */

static void check_norm(stw_element type) {
    stw_device *d = NULL;
    stw_device_config c = config_of(4096, 4096, 0);
    c.types.grads = type;
    CHECK_OK(host->open(&c, &d, err));
    const uint64_t one = stw_element_bytes(type);
    for (int t = 0; t < 2; t++) { /* 3 in one tier, 4 in the other: the norm is 5 */
        float value = t == 0 ? 3.0f : 4.0f;
        uint16_t half = stw_bf16_from_float(value);
        memcpy(host->host_address(d, one, one), type == STW_ELEMENT_F32 ? (void *)&value : &half,
               one);
        if (t == STW_TIER_GPU)
            CHECK_OK(host->copy(d, STW_STREAM_H2D, stw_at(STW_TIER_GPU, 0),
                                stw_at(STW_TIER_HOST, 0), 64, err));
        CHECK_OK(host->norm_add(d, t == STW_TIER_GPU ? STW_STREAM_COMPUTE : STW_STREAM_CPU,
                                stw_typed((stw_tier)t, one, type, 2), err));
    }
    uint64_t *counters = NULL, sum = 0;
    double norm = -1.0;
    float factor = -1.0f;
    CHECK_OK(host->norm_counters(d, STW_STREAM_COMPUTE, true, &counters, err));
    for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) sum += counters[i];
    CU_ASSERT_NOT_EQUAL(sum, 0);
    CHECK_OK(host->norm_factor(d, STW_STREAM_COMPUTE, 1.0, err));
    host->norm_result(d, &norm, &factor);
    CU_ASSERT_EQUAL(norm, 5.0);
    CU_ASSERT_EQUAL(factor, stw_norm_clip_factor(5.0, 1.0));
    /* A rank whose gradients count elsewhere. */
    CHECK_OK(host->norm_counters(d, STW_STREAM_COMPUTE, false, &counters, err));
    for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) CU_ASSERT_EQUAL(counters[i], 0);
    CHECK_OK(host->norm_factor(d, STW_STREAM_COMPUTE, 1.0, err));
    host->norm_result(d, &norm, &factor);
    CU_ASSERT_EQUAL(norm, 0.0);
    CU_ASSERT_EQUAL(factor, 1.0f);
    CHECK_OK(host->norm_reset(d, STW_STREAM_COMPUTE, err));
    CHECK_OK(host->norm_counters(d, STW_STREAM_COMPUTE, true, &counters, err));
    for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) CU_ASSERT_EQUAL(counters[i], 0);
    host->close(d);
}

static void norm_and_factor(void) {
    check_norm(STW_ELEMENT_F32);
    check_norm(STW_ELEMENT_BF16);
}

/* Threads by default, by number, and where ranks share the node: all start and work. */
static void ranks_share_the_cores(void) {
    for (uint32_t rank = 0; rank < 3; rank++)
        for (uint32_t threads = 0; threads < 4; threads += 3) {
            stw_device *d = NULL;
            stw_device_config c = config_of(4096, 4 << 20, 0);
            c.local_rank = rank;
            c.local_world = rank == 0 ? 0u : 4096u >> rank; /* alone, or more ranks than cores */
            c.threads = threads;
            CHECK_OK(host->open(&c, &d, err));
            uint64_t digest = 0;
            CHECK_OK(host->digest(d, stw_typed(STW_TIER_HOST, 0, STW_ELEMENT_F32, 1 << 20), 0,
                                  &digest, err));
            uint64_t expected = 0;
            for (uint64_t i = 0; i < 1 << 20; i++) expected += stw_digest_element(i, 0);
            CU_ASSERT_EQUAL(digest, expected);
            host->close(d);
        }
}

/* A device begins with its tiers, which know the threads. */
static uint32_t threads_of(uint32_t asked, uint32_t local_rank, uint32_t local_world,
                           uint32_t *kept) {
    stw_cpus before, after;
    stw_device *d = NULL;
    stw_device_config c = config_of(4096, 4096, 0);
    c.threads = asked;
    c.local_rank = local_rank;
    c.local_world = local_world;
    CHECK_OK(host->open(&c, &d, err));
    const uint32_t n = stw_threads_count(((const stw_tiers *)(const void *)d)->threads);
    stw_cpus_allowed(&before);
    host->enter(d, STW_STREAM_H2D); /* threads of other streams stay where they are */
    stw_cpus_allowed(&after);
    CU_ASSERT_EQUAL(after.n, before.n);
    host->enter(d, STW_STREAM_CPU);
    stw_cpus_allowed(&after);
    *kept = after.n;
    stw_cpus_keep(&before);
    host->close(d);
    return n;
}

static void ranks_have_their_part_of_the_cores(void) {
    const uint32_t cores = stw_threads_cores();
    uint32_t kept = 0;
    CU_ASSERT_EQUAL(threads_of(0, 0, 0, &kept), cores);
    CU_ASSERT_EQUAL(kept, 1);
    CU_ASSERT_EQUAL(threads_of(0, cores - 1, cores, &kept), 1); /* a core each */
    CU_ASSERT_EQUAL(kept, 1);
    CU_ASSERT_EQUAL(threads_of(0, 0, cores + 1, &kept), 1); /* too few cores: kept nowhere */
    CU_ASSERT_EQUAL(kept, cores);
    CU_ASSERT_EQUAL(threads_of(0, 1, 1, &kept), 1); /* no rank of this node */
    CU_ASSERT_EQUAL(kept, cores);
    CU_ASSERT_EQUAL(threads_of(cores, 0, 1, &kept), cores);
    CU_ASSERT_EQUAL(kept, 1);
    CU_ASSERT_EQUAL(threads_of(cores + 1, 0, 1, &kept), cores + 1); /* more threads than cores */
    CU_ASSERT_EQUAL(kept, cores);
}

/* Arenas of the device go with it; too much for the machine is refused before anything is taken. */
static void memory_is_given_back(void) {
    unsigned char page = 0;
    stw_limits limits;
    stw_device *d = NULL;
    for (int t = 0; t < 2; t++) {
        d = device_of(t == 0 ? 64 << 20 : 0, t == 1 ? 64 << 20 : 0, 0);
        unsigned char *memory =
            t == 0 ? host->device_address(d, 0, 64 << 20) : host->host_address(d, 0, 64 << 20);
        CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
        uint64_t absent = 0; /* it was touched when it was made */
        for (size_t at = 0; at < 64 << 20; at += 4096)
            absent += mincore(memory + at, 4096, &page) != 0 || (page & 1) == 0;
        CU_ASSERT_EQUAL(absent, 0);
        host->close(d);
        CU_ASSERT_TRUE(mincore(memory + (32 << 20), 4096, &page) == -1 && errno == ENOMEM);
    }
    CHECK_OK(stw_limits_read("", &limits, err));
    stw_device_config c = config_of(4096, 4096, 0);
    c.machine_host_bytes = 1ull << 55;
    if (limits.cgroup_bytes < 1ull << 54) {
        CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_NO_RESOURCES, "");
        c.machine_host_bytes = 8192;
        CHECK_OK(host->open(&c, &d, err));
        host->close(d);
    }
    c = config_of(1ull << 63, 1ull << 63, 0); /* a sum that is no number of bytes */
    CHECK_FAILS(host->open(&c, &d, err), STW_STATUS_BAD_INPUT, "");
    CU_ASSERT_PTR_NULL(d);
    host->close(NULL);
}

static bool is_open(const char *path) {
    char link[32], target[64];
    for (int file = 0; file < 256; file++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        const ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (strcmp(target, path) == 0) return true;
    }
    return false;
}

static void says_what_it_is(void) {
    const stw_backend *found = NULL;
    CHECK_OK(stw_backend_select("host", &found, err));
    CU_ASSERT_PTR_EQUAL(found, host);
    CHECK_OK(stw_backend_select("auto", &found, err));
    CU_ASSERT_PTR_NOT_NULL(found);
    CHECK_FAILS(stw_backend_select("tpu", &found, err), STW_STATUS_USAGE, "tpu");
    CU_ASSERT_TRUE(host->available(NULL, 0));
    stw_device *d = device_of(4096, 4096, 0);
    stw_device_info info;
    host->info(d, &info);
    CU_ASSERT_TRUE(strlen(info.name) > 0);
    CU_ASSERT_FALSE(is_open("/proc/cpuinfo")); /* stdio keeps a list: no leak checker sees it */
    CU_ASSERT_EQUAL(info.total, 0);
    CU_ASSERT_EQUAL(info.page_locked, 0);
    double norm = -1.0;
    float factor = 0.0f;
    host->norm_result(d, &norm, &factor); /* before there is a norm */
    CU_ASSERT_EQUAL(norm, 0.0);
    CU_ASSERT_EQUAL(factor, 1.0f);
    CHECK_OK(host->synchronize(d, err));
    CU_ASSERT_PTR_NULL(host->native_stream(d, STW_STREAM_H2D));
    CHECK_OK(host->wait(d, STW_STREAM_H2D, 3, err));
    CHECK_OK(host->wait_host(d, 3, err));
    CHECK_FAILS(host->wait(d, STW_STREAM_H2D, 4, err), STW_STATUS_BUG, "event 4 of 4");
    CHECK_FAILS(host->wait_host(d, 4, err), STW_STATUS_BUG, "event 4 of 4");
    host->close(d);
    char line[256] = "", why[20] = "x", name[91] = "CPU"; /* as the system calls it */
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %90[^\n]", name) == 1) break;
    if (file != NULL) fclose(file);
    CU_ASSERT_STRING_EQUAL(info.name, name);
    CU_ASSERT_TRUE(host->available(why, sizeof why));
    CU_ASSERT_STRING_EQUAL(why, "");
}

STW_TEST_MAIN("backend host", {"memory of the caller", works_in_memory_of_the_caller},
              {"memory of the caller that is refused", refuses_memory_of_the_caller},
              {"bytes travel through all tiers", bytes_travel_through_all_tiers},
              {"ranges outside are refused", ranges_outside_are_refused},
              {"limits are refused", limits_are_refused},
              {"values in every tier", values_in_every_tier},
              {"conversions reach every tier", conversions_reach_every_tier},
              {"commits make writes count", commits_make_writes_count},
              {"updates have the scalar bits", updates_have_the_scalar_bits},
              {"wrong updates are refused", wrong_updates_are_refused},
              {"wrong spans are refused", wrong_spans_are_refused},
              {"norm and factor", norm_and_factor},
              {"ranks share the cores", ranks_share_the_cores},
              {"ranks have their part of the cores", ranks_have_their_part_of_the_cores},
              {"memory is given back", memory_is_given_back}, {"says what it is", says_what_it_is})
