/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: copies between tiers, NVMe's file, what is refused, and that looking at values
 * works in every tier. */
#include <math.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "tests/unit/testing.h"

static const stw_backend *const host = &stw_backend_host;

static stw_device_config config_of(uint64_t gpu, uint64_t host_bytes, uint64_t nvme) {
    stw_device_config c = {.arena_bytes = {gpu, host_bytes, nvme},
                           .capacity_bytes = {gpu, host_bytes, nvme},
                           .n_events = 4,
                           .threads = 2,
                           .nvme_folder = "."};
    return c;
}

static stw_device *device_of(uint64_t gpu, uint64_t host_bytes, uint64_t nvme) {
    stw_device_config c = config_of(gpu, host_bytes, nvme);
    stw_device *device = NULL;
    CHECK_OK(host->open(&c, &device, err));
    return device;
}

static void bytes_travel_through_all_tiers(void) {
    enum { BYTES = 3 << 20, SMALL = 1000 };
    stw_device *d = device_of(BYTES, 2 * BYTES, BYTES);
    unsigned char *memory = host->host_address(d, 0, BYTES);
    unsigned char *back = host->host_address(d, BYTES, BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    for (int i = 0; i < BYTES; i++) memory[i] = (unsigned char)((unsigned)i * 37u >> 3);
    CHECK_OK(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 0, STW_TIER_HOST, 0, BYTES, err));
    CHECK_OK(host->copy(d, STW_STREAM_D2H, STW_TIER_HOST, BYTES, STW_TIER_GPU, 0, BYTES, err));
    CU_ASSERT_EQUAL(memcmp(memory, back, BYTES), 0);
    CHECK_OK(host->zero(d, STW_TIER_HOST, BYTES, BYTES, err));
    CU_ASSERT_EQUAL(back[0] | back[BYTES - 1], 0);
    CHECK_OK(host->write(d, 0, 0, BYTES, err)); /* aligned: direct where there is such */
    CHECK_OK(host->read(d, BYTES, 0, BYTES, err));
    CU_ASSERT_EQUAL(memcmp(memory, back, BYTES), 0);
    CHECK_OK(host->write(d, 512, 12, SMALL, err)); /* not aligned, over what was direct */
    CHECK_OK(host->read(d, BYTES + 4, 508, SMALL + 8, err));
    CU_ASSERT_EQUAL(memcmp(back + 4, memory + 508, 4), 0);
    CU_ASSERT_EQUAL(memcmp(back + 8, memory + 12, SMALL), 0);
    CU_ASSERT_EQUAL(memcmp(back + 8 + SMALL, memory + 512 + SMALL, 4), 0);
    CHECK_OK(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 0, STW_TIER_HOST, 0, 0, err));
    host->close(d);
}

static void ranges_outside_are_refused(void) {
    stw_device *d = device_of(4096, 8192, 4096);
    CHECK_FAILS(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 1, STW_TIER_HOST, 0, 4096, err),
                STW_STATUS_BUG, "gpu");
    CHECK_FAILS(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 0, STW_TIER_HOST, 8191, 2, err),
                STW_STATUS_BUG, "host");
    CHECK_FAILS(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, UINT64_MAX, STW_TIER_HOST, 0, 2, err),
                STW_STATUS_BUG, "outside");
    CHECK_FAILS(host->copy(d, STW_STREAM_H2D, STW_TIER_HOST, 0, STW_TIER_HOST, 8, 16, err),
                STW_STATUS_BUG, "overlap");
    CHECK_FAILS(host->read(d, 0, 4000, 100, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->zero(d, STW_TIER_NVME, 0, 4097, err), STW_STATUS_BUG, "nvme");
    CHECK_FAILS(host->seed_grads(d, STW_TIER_GPU, 2, 1, 0, 1, 1, err), STW_STATUS_BUG, "float");
    uint64_t digest = 0;
    CHECK_FAILS(host->digest(d, STW_TIER_GPU, 0, 1025, 0, &digest, err), STW_STATUS_BUG, "gpu");
    stw_operands o = {.tier = STW_TIER_HOST, .grads = 0, .n = UINT64_MAX / 2};
    CHECK_FAILS(host->norm_add(d, STW_STREAM_CPU, &o, err), STW_STATUS_BUG, "host");
    CHECK_FAILS(host->record(d, STW_STREAM_H2D, 4, err), STW_STATUS_BUG, "event");
    CHECK_OK(host->record(d, STW_STREAM_H2D, 3, err));
    CHECK_FAILS(host->convert(d, STW_STREAM_COMPUTE, STW_TIER_GPU, 0, STW_TIER_HOST, 0,
                              STW_DTYPE_I32, 1, err),
                STW_STATUS_NOT_BUILT_IN, "I32");
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
static void values_in_every_tier(void) {
    enum { N = 3000001 }; /* more than one piece of the scratch */
    stw_device *d = device_of(N * 4, N * 4, N * 4);
    uint64_t expected = 0, first = 77;
    for (uint64_t i = 0; i < N; i++)
        expected +=
            stw_digest_element(first + i, stw_bits_from_float(stw_seeded_grad(3, 2, first + i)));
    for (int t = 0; t < STW_N_TIERS; t++) {
        uint64_t digest = 5;
        CHECK_OK(host->seed_grads(d, (stw_tier)t, 0, N, first, 3, 2, err));
        CHECK_OK(host->digest(d, (stw_tier)t, 0, N, first, &digest, err));
        CU_ASSERT_EQUAL(digest, expected + 5);
        digest = 0;
        CHECK_OK(host->digest(d, (stw_tier)t, 0, 1000, first, &digest, err));
        CHECK_OK(host->digest(d, (stw_tier)t, 4000, N - 1000, first + 1000, &digest, err));
        CU_ASSERT_EQUAL(digest, expected);
        CHECK_OK(host->zero(d, (stw_tier)t, 4, (N - 1) * 4, err));
        digest = 0;
        CHECK_OK(host->digest(d, (stw_tier)t, 4, 1, 9, &digest, err));
        CU_ASSERT_EQUAL(digest, stw_digest_element(9, 0));
    }
    host->close(d);
}

static void update_and_norm(void) {
    stw_device *d = device_of(64, 64, 0);
    float *h = host->host_address(d, 0, 64);
    const float values[] = {1.0f, 3.0f, 0.25f, 0.5f};
    stw_adamw a = stw_adamw_make(0.1, 0.9, 0.99, 1e-8, 0.01, 4, 0, 1.0f);
    float p = values[0], m = values[2], v = values[3];
    stw_adamw_element(&a, &p, values[1], &m, &v);
    for (int t = 0; t < 2; t++) {
        memcpy(h, values, sizeof values);
        if (t == STW_TIER_GPU)
            CHECK_OK(host->copy(d, STW_STREAM_H2D, STW_TIER_GPU, 0, STW_TIER_HOST, 0, 16, err));
        stw_operands o = {(stw_tier)t, 0, 4, 8, 12, 1};
        CHECK_OK(host->norm_add(d, STW_STREAM_CPU, &o, err));
        CHECK_OK(host->update(d, STW_STREAM_CPU, &a, &o, err));
        if (t == STW_TIER_GPU)
            CHECK_OK(host->copy(d, STW_STREAM_D2H, STW_TIER_HOST, 0, STW_TIER_GPU, 0, 16, err));
        CU_ASSERT_EQUAL(h[0], p);
        CU_ASSERT_EQUAL(h[1], values[1]);
        CU_ASSERT_EQUAL(h[2], m);
        CU_ASSERT_EQUAL(h[3], v);
    }
    stw_norm_bins bins;
    CHECK_OK(host->norm_read(d, &bins, err));
    uint64_t any = 0;
    for (int b = 0; b < STW_NORM_BINS; b++) any |= bins.low[b] | bins.high[b];
    CU_ASSERT_NOT_EQUAL(any, 0);
    CHECK_OK(host->norm_reset(d, STW_STREAM_COMPUTE, err));
    CHECK_OK(host->norm_read(d, &bins, err));
    for (int b = 0; b < STW_NORM_BINS; b++) CU_ASSERT_EQUAL(bins.low[b] | bins.high[b], 0);
    host->close(d);
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
    CU_ASSERT_EQUAL(info.total, 0);
    CU_ASSERT_EQUAL(info.page_locked, 0);
    CHECK_OK(host->synchronize(d, err));
    host->close(d);
}

STW_TEST_MAIN("backend host", {"bytes travel through all tiers", bytes_travel_through_all_tiers},
              {"ranges outside are refused", ranges_outside_are_refused},
              {"limits are refused", limits_are_refused},
              {"values in every tier", values_in_every_tier}, {"update and norm", update_and_norm},
              {"says what it is", says_what_it_is})
