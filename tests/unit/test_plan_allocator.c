/* SPDX-License-Identifier: Apache-2.0 */
/* Small traces whose outcome follows from the rules of c10/cuda/CUDACachingAllocator.cpp; every
 * case names the function whose rule it proves. */
#include <stdlib.h>

#include "plan/program/allocator.h"
#include "tests/unit/testing.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)

static const stw_allocator_settings plain = {0};

static stw_allocator *begin(const stw_allocator_settings *settings) {
    stw_allocator *a = NULL;
    CHECK_OK(stw_allocator_new(settings, &a, err));
    return a;
}

static uint32_t take(stw_allocator *a, uint32_t stream, uint64_t bytes) {
    uint32_t block = STW_NO_BLOCK;
    CHECK_OK(stw_allocator_take(a, stream, bytes, &block, NULL, err));
    CU_ASSERT_NOT_EQUAL(block, STW_NO_BLOCK);
    return block;
}

static void drop(stw_allocator *a, uint32_t block) { CHECK_OK(stw_allocator_drop(a, block, err)); }

static bool is_full(stw_allocator *a, uint64_t bytes) {
    uint32_t block;
    bool full = false;
    CHECK_OK(stw_allocator_take(a, 0, bytes, &block, &full, err));
    CU_ASSERT_EQUAL(block == STW_NO_BLOCK, full);
    return full;
}

static void check(const stw_allocator *a, uint64_t allocated, uint64_t reserved) {
    const stw_allocator_stats *stats = stw_allocator_stats_of(a);
    CU_ASSERT_EQUAL(stats->allocated_bytes, allocated);
    CU_ASSERT_EQUAL(stats->reserved_bytes, reserved);
    if (stats->allocated_bytes != allocated || stats->reserved_bytes != reserved)
        fprintf(stderr, "allocated %llu, reserved %llu; expected %llu, %llu\n",
                (unsigned long long)stats->allocated_bytes,
                (unsigned long long)stats->reserved_bytes, (unsigned long long)allocated,
                (unsigned long long)reserved);
}

/* round_size: multiples of 512 B. */
static void sizes_are_rounded(void) {
    stw_allocator *a = begin(&plain);
    take(a, 0, 1);
    check(a, 512, 2 * MIB);
    take(a, 0, 513);
    check(a, 512 + 1024, 2 * MIB);
    take(a, 0, 512);
    check(a, 512 + 1024 + 512, 2 * MIB);
    stw_allocator_free(a);
}

/* get_allocation_size: up to 1 MiB from segments of 2 MiB. */
static void small_pool(void) {
    stw_allocator *a = begin(&plain);
    take(a, 0, MIB);
    check(a, MIB, 2 * MIB);
    take(a, 0, MIB - 511);
    check(a, 2 * MIB, 2 * MIB);
    take(a, 0, 1);
    check(a, 2 * MIB + 512, 4 * MIB);
    stw_allocator_free(a);
}

/* get_allocation_size: below 10 MiB from segments of 20 MiB. should_split: a rest of at most 1 MiB
 * stays with the block, and counts as allocated. */
static void segments_of_20_mib(void) {
    stw_allocator *a = begin(&plain);
    take(a, 0, 9 * MIB);
    take(a, 0, 9 * MIB);
    check(a, 18 * MIB, 20 * MIB);
    take(a, 0, MIB + 512 * KIB);
    check(a, 20 * MIB, 20 * MIB);
    take(a, 0, MIB + 1);
    check(a, 20 * MIB + MIB + 512, 40 * MIB);
    stw_allocator_free(a);
}

/* get_allocation_size: from 10 MiB on segments of the request, in steps of 2 MiB. */
static void large_segments(void) {
    stw_allocator *a = begin(&plain);
    take(a, 0, 10 * MIB);
    check(a, 10 * MIB, 10 * MIB);
    take(a, 0, 10 * MIB + 1); /* 12 MiB; the rest is above 1 MiB */
    check(a, 20 * MIB + 512, 22 * MIB);
    take(a, 0, 11 * MIB + 1); /* 12 MiB; the rest is below 1 MiB and stays with the block */
    check(a, 32 * MIB + 512, 34 * MIB);
    stw_allocator_free(a);
}

/* get_free_block: the smallest block that is large enough. */
static void best_fit(void) {
    stw_allocator *a = begin(&plain);
    uint32_t blocks[] = {take(a, 0, 30 * MIB), take(a, 0, 20 * MIB), take(a, 0, 26 * MIB)};
    for (int i = 0; i < 3; i++) drop(a, blocks[i]);
    check(a, 0, 76 * MIB);
    take(a, 0, 22 * MIB); /* of 26 */
    take(a, 0, 30 * MIB);
    take(a, 0, 20 * MIB);
    take(a, 0, 4 * MIB); /* what 22 left of 26 */
    check(a, 76 * MIB, 76 * MIB);
    stw_allocator_free(a);
}

/* BlockComparatorSize orders by stream first; get_pool keeps small requests apart. */
static void pools_are_apart(void) {
    stw_allocator *a = begin(&plain);
    drop(a, take(a, 1, 30 * MIB));
    take(a, 0, 30 * MIB);
    check(a, 30 * MIB, 60 * MIB);
    take(a, 0, 512);
    check(a, 30 * MIB + 512, 62 * MIB);
    take(a, 1, 12 * MIB);
    check(a, 42 * MIB + 512, 62 * MIB);
    stw_allocator_free(a);
}

/* try_merge_blocks: free neighbours of a segment become one block again. */
static void neighbours_merge(void) {
    stw_allocator *a = begin(&plain);
    uint32_t whole = take(a, 0, 40 * MIB);
    drop(a, whole);
    uint32_t parts[] = {take(a, 0, 10 * MIB), take(a, 0, 10 * MIB), take(a, 0, 20 * MIB)};
    check(a, 40 * MIB, 40 * MIB);
    drop(a, parts[0]);
    drop(a, parts[2]);
    uint32_t other = take(a, 0, 30 * MIB); /* 10 and 20 are not neighbours */
    check(a, 40 * MIB, 70 * MIB);
    drop(a, parts[1]);
    drop(a, other);
    CU_ASSERT_EQUAL(stw_allocator_free_bytes(a), 70 * MIB);
    take(a, 0, 40 * MIB);
    check(a, 40 * MIB, 70 * MIB);
    stw_allocator_free(a);
}

/* free, insert_events, process_events: a recorded stream holds the block until it has caught up. */
static void recorded_streams(void) {
    stw_allocator *a = begin(&plain);
    uint32_t block = take(a, 0, 20 * MIB);
    stw_allocator_record_stream(a, block, 2);
    stw_allocator_record_stream(a, block, 3);
    stw_allocator_record_stream(a, block, 0); /* its own: nothing to wait for */
    drop(a, block);
    block = take(a, 0, 20 * MIB);
    check(a, 20 * MIB, 40 * MIB);
    stw_allocator_caught_up(a, 2);
    take(a, 0, 20 * MIB);
    check(a, 40 * MIB, 60 * MIB);
    stw_allocator_caught_up(a, 3);
    take(a, 0, 20 * MIB);
    check(a, 60 * MIB, 60 * MIB);
    stw_allocator_free(a);
}

/* malloc: where the device is full, release_cached_blocks gives back unsplit segments, then the
 * request is tried again. A segment of which a part is in use stays. */
static void retry_when_full(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.device_bytes = 60 * MIB});
    drop(a, take(a, 0, 30 * MIB));
    uint32_t used = take(a, 1, 9 * MIB); /* of a segment of 20 */
    check(a, 9 * MIB, 50 * MIB);
    take(a, 0, 34 * MIB);
    check(a, 43 * MIB, 54 * MIB);
    CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->retries, 1);
    CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->peak_reserved_bytes, 54 * MIB);
    CU_ASSERT_TRUE(is_full(a, 10 * MIB));
    drop(a, used);
    CU_ASSERT_FALSE(is_full(a, 10 * MIB));
    check(a, 44 * MIB, 44 * MIB);
    stw_allocator_free(a);
}

/* synchronize_and_free_events: a retry waits for recorded streams. */
static void retry_waits_for_streams(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.device_bytes = 40 * MIB});
    uint32_t block = take(a, 0, 20 * MIB);
    stw_allocator_record_stream(a, block, 1);
    drop(a, block);
    take(a, 0, 30 * MIB);
    check(a, 30 * MIB, 30 * MIB);
    stw_allocator_free(a);
}

/* emptyCache, release_blocks. */
static void empty_cache(void) {
    stw_allocator *a = begin(&plain);
    uint32_t kept = take(a, 0, MIB / 2);
    drop(a, take(a, 0, 100 * MIB));
    drop(a, take(a, 1, 50 * MIB));
    drop(a, take(a, 1, 100));
    check(a, MIB / 2, 154 * MIB);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, MIB / 2, 2 * MIB);
    drop(a, kept);
    stw_allocator_reset_peaks(a);
    CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->peak_reserved_bytes, 2 * MIB);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 0, 0);
    stw_allocator_free(a);
}

/* max_split_size_mb: larger blocks are never split, smaller requests leave them alone, and a larger
 * request takes one that exceeds it by less than 20 MiB, whole. */
static void max_split_size(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.max_split_bytes = 64 * MIB});
    drop(a, take(a, 0, 90 * MIB));
    take(a, 0, 30 * MIB);
    check(a, 30 * MIB, 120 * MIB);
    uint32_t whole = take(a, 0, 80 * MIB);
    check(a, 120 * MIB, 120 * MIB);
    drop(a, whole);
    take(a, 0, 70 * MIB); /* 90 is 20 more */
    check(a, 100 * MIB, 190 * MIB);
    stw_allocator_free(a);
}

/* release_available_cached_blocks: oversized blocks go first, and only as many as needed. */
static void oversized_blocks_go_first(void) {
    stw_allocator *a =
        begin(&(stw_allocator_settings){.max_split_bytes = 64 * MIB, .device_bytes = 300 * MIB});
    drop(a, take(a, 0, 40 * MIB));
    uint32_t first = take(a, 0, 100 * MIB), second = take(a, 0, 130 * MIB);
    drop(a, first);
    drop(a, second);
    check(a, 0, 270 * MIB);
    take(a, 0, 160 * MIB); /* 130 is too small: 130 and 100 go, 40 stays */
    check(a, 160 * MIB, 200 * MIB);
    CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->retries, 0);
    stw_allocator_free(a);
}

/* garbage_collect_cached_blocks: above the threshold, blocks that are at least as old as the mean.
 */
static void garbage_collection(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.garbage_collection_threshold = 0.6,
                                                       .fraction_bytes = 200 * MIB});
    uint32_t old = take(a, 0, 60 * MIB), young = take(a, 0, 50 * MIB);
    drop(a, old);
    for (int i = 0; i < 4; i++) drop(a, take(a, 0, 512));
    drop(a, take(a, 1, 12 * MIB));
    drop(a, young);
    check(a, 0, 124 * MIB);
    take(a, 0, 70 * MIB); /* 4 MiB above 120: the old block goes, the young one stays */
    check(a, 70 * MIB, 134 * MIB);
    stw_allocator_free(a);
    /* Without a fraction of the device there is no threshold. */
    a = begin(&(stw_allocator_settings){.garbage_collection_threshold = 0.5});
    drop(a, take(a, 0, 60 * MIB));
    take(a, 0, 70 * MIB);
    check(a, 70 * MIB, 130 * MIB);
    stw_allocator_free(a);
}

/* alloc_block: a fraction of the device is a limit like the device. */
static void fraction(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.fraction_bytes = 50 * MIB});
    drop(a, take(a, 0, 30 * MIB));
    take(a, 0, 40 * MIB);
    check(a, 40 * MIB, 40 * MIB);
    CU_ASSERT_TRUE(is_full(a, 12 * MIB));
    stw_allocator_free(a);
}

/* roundup_power2_next_division: 1200 lies between 1024 and 2048; with 4 divisions it becomes 1280.
 */
static void power2_divisions(void) {
    const stw_allocator_settings four = {.roundup_power2_divisions = 4};
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 1200 * KIB), 1280 * KIB);
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 1280 * KIB), 1280 * KIB);
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 1281 * KIB), 1536 * KIB);
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 1024 * KIB), 1024 * KIB);
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 2047 * KIB), 2048 * KIB);
    CU_ASSERT_EQUAL(stw_allocator_rounded(&four, 1200), 1536); /* at most 512 B x divisions */
    stw_allocator *a = begin(&four);
    take(a, 0, 1200 * MIB);
    check(a, 1280 * MIB, 1280 * MIB);
    stw_allocator_free(a);
}

/* map_block, try_allocate_expandable_block: one range per stream and pool grows by pages of 20 MiB
 * (small: 2 MiB), and any rest is split off. */
static void expandable_segments(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.expandable_segments = true});
    uint32_t first = take(a, 0, 19 * MIB + 512 * KIB), second = take(a, 0, 30 * MIB);
    check(a, 49 * MIB + 512 * KIB, 60 * MIB); /* 0.5 MiB of the first page is used by the second */
    take(a, 1, 1);
    check(a, 49 * MIB + 512 * KIB + 512, 62 * MIB);
    drop(a, first);
    drop(a, second);
    uint32_t all = take(a, 0, 70 * MIB); /* 60 MiB are there, 20 are added */
    check(a, 70 * MIB + 512, 82 * MIB);
    drop(a, all);
    stw_allocator_free(a);
}

/* release_blocks, unmap_block: whole pages inside a free block go, though its neighbours are used.
 */
static void expandable_pages_are_given_back(void) {
    stw_allocator *a =
        begin(&(stw_allocator_settings){.expandable_segments = true, .device_bytes = 120 * MIB});
    uint32_t first = take(a, 0, 30 * MIB), second = take(a, 0, 50 * MIB);
    uint32_t third = take(a, 0, 15 * MIB);
    check(a, 95 * MIB, 100 * MIB);
    drop(a, second); /* bytes 30 to 80: pages from 40 to 80 */
    take(a, 1, 60 * MIB);
    check(a, 105 * MIB, 120 * MIB);
    CU_ASSERT_EQUAL(stw_allocator_stats_of(a)->retries, 1);
    drop(a, first);
    drop(a, third);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 60 * MIB, 60 * MIB);
    stw_allocator_free(a);
}

/* unmap_block: what is left before and behind the pages stays in the list of its segment, so that
 * it merges with its neighbours and goes with them. */
static void rests_beside_pages_merge(void) {
    stw_allocator *a =
        begin(&(stw_allocator_settings){.expandable_segments = true, .device_bytes = 120 * MIB});
    uint32_t first = take(a, 0, 30 * MIB), second = take(a, 0, 55 * MIB);
    uint32_t third = take(a, 0, 15 * MIB);
    drop(a, second); /* bytes 30 to 85: pages from 40 to 80 */
    take(a, 1, 60 * MIB);
    check(a, 105 * MIB, 120 * MIB);
    uint32_t rest = take(a, 0, 5 * MIB); /* behind the pages */
    check(a, 110 * MIB, 120 * MIB);
    drop(a, rest);
    drop(a, third);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 90 * MIB, 100 * MIB);
    drop(a, first);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 60 * MIB, 60 * MIB);
    stw_allocator_free(a);
}

/* unmap_block: pages that come back begin where they did, behind what is left before them. */
static void pages_keep_their_addresses(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.expandable_segments = true});
    take(a, 0, 30 * MIB);
    uint32_t second = take(a, 0, 50 * MIB);
    take(a, 0, 15 * MIB);
    drop(a, second); /* bytes 30 to 80: pages from 40 to 80 */
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 45 * MIB, 60 * MIB);
    take(a, 0, 10 * MIB); /* before the pages */
    check(a, 55 * MIB, 60 * MIB);
    uint32_t pages = take(a, 0, 40 * MIB);
    check(a, 95 * MIB, 100 * MIB);
    drop(a, pages);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 55 * MIB, 60 * MIB);
    stw_allocator_free(a);
}

/* get_free_block: a block grows into unmapped pages, and not into a neighbour that is used. */
static void used_neighbours_do_not_count(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.expandable_segments = true});
    uint32_t small = take(a, 0, 30 * MIB);
    take(a, 0, 50 * MIB);
    uint32_t large = take(a, 0, 34 * MIB);
    take(a, 0, 6 * MIB);
    drop(a, small);
    drop(a, large);
    check(a, 56 * MIB, 120 * MIB);
    take(a, 0, 22 * MIB); /* from the hole of 30 */
    take(a, 0, 34 * MIB);
    check(a, 112 * MIB, 120 * MIB);
    stw_allocator_free(a);
}

/* get_free_block: of an expandable segment's blocks the one that can grow least. */
static void expandable_best_fit(void) {
    stw_allocator *a = begin(&(stw_allocator_settings){.expandable_segments = true});
    uint32_t hole = take(a, 0, 30 * MIB), used = take(a, 0, 5 * MIB);
    take(a, 0, 0 + 2 * MIB);
    drop(a, take(a, 0, 20 * MIB)); /* the end: 23 MiB that can grow */
    drop(a, hole);
    check(a, 7 * MIB, 60 * MIB);
    take(a, 0, 22 * MIB); /* from the hole of 30, although 23 is nearer */
    drop(a, used);
    take(a, 0, 23 * MIB);
    check(a, 47 * MIB, 60 * MIB);
    stw_allocator_free(a);
}

static void wrong_use(void) {
    stw_allocator *a = begin(&plain);
    uint32_t block = take(a, 0, 100);
    drop(a, block);
    CHECK_FAILS(stw_allocator_drop(a, block, err), STW_STATUS_BUG, "not there");
    CHECK_FAILS(stw_allocator_take(a, STW_ALLOCATOR_STREAMS, 1, &block, NULL, err), STW_STATUS_BUG,
                "stream");
    CHECK_OK(stw_allocator_take(a, 0, 0, &block, NULL, err));
    CU_ASSERT_EQUAL(block, STW_NO_BLOCK);
    CHECK_OK(stw_allocator_drop(a, STW_NO_BLOCK, err));
    stw_allocator_free(a);
}

/* Whatever the order: nothing is handed out that is not reserved, and all of it comes back. */
static void any_order(const stw_allocator_settings *settings, uint32_t seed) {
    enum { N = 200 };
    uint32_t blocks[N];
    stw_allocator *a = begin(settings);
    for (int i = 0; i < N; i++) blocks[i] = STW_NO_BLOCK;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t *slot = &blocks[(seed >> 8) % N], stream = (seed >> 16) % 3;
        if (*slot != STW_NO_BLOCK) {
            if (seed & 64) stw_allocator_record_stream(a, *slot, stream);
            drop(a, *slot);
            *slot = STW_NO_BLOCK;
        } else {
            *slot = take(a, stream, 1 + ((uint64_t)seed << ((seed >> 5) % 4)) % (60 * MIB));
        }
        if (step % 50 == 0) stw_allocator_caught_up(a, (uint32_t)step / 50 % 3);
        const stw_allocator_stats *s = stw_allocator_stats_of(a);
        CU_ASSERT_TRUE_FATAL(s->allocated_bytes <= s->reserved_bytes);
    }
    for (int i = 0; i < N; i++) drop(a, blocks[i]);
    CHECK_OK(stw_allocator_empty_cache(a, err));
    check(a, 0, 0);
    stw_allocator_free(a);
}

static void any_orders(void) {
    any_order(&plain, 1);
    any_order(&(stw_allocator_settings){.max_split_bytes = 20 * MIB}, 2);
    any_order(&(stw_allocator_settings){.expandable_segments = true}, 3);
    any_order(&(stw_allocator_settings){.roundup_power2_divisions = 8}, 4);
}

int main(void) {
    static const stw_test tests[] = {
        {"sizes are rounded to 512 B", sizes_are_rounded},
        {"small requests share segments of 2 MiB", small_pool},
        {"requests below 10 MiB share segments of 20 MiB", segments_of_20_mib},
        {"larger ones have segments in steps of 2 MiB", large_segments},
        {"the smallest block that is large enough", best_fit},
        {"streams and sizes have pools of their own", pools_are_apart},
        {"free neighbours merge", neighbours_merge},
        {"recorded streams hold a block", recorded_streams},
        {"a full device gives back cached segments", retry_when_full},
        {"a retry waits for recorded streams", retry_waits_for_streams},
        {"empty_cache", empty_cache},
        {"max_split_size_mb", max_split_size},
        {"oversized blocks are given back first", oversized_blocks_go_first},
        {"garbage_collection_threshold", garbage_collection},
        {"a fraction of the device", fraction},
        {"roundup_power2_divisions", power2_divisions},
        {"expandable segments grow by pages", expandable_segments},
        {"expandable segments give back pages", expandable_pages_are_given_back},
        {"expandable segments: rests beside pages merge", rests_beside_pages_merge},
        {"expandable segments: pages keep their addresses", pages_keep_their_addresses},
        {"expandable segments: used neighbours do not count", used_neighbours_do_not_count},
        {"expandable segments: best fit", expandable_best_fit},
        {"wrong use", wrong_use},
        {"any order of allocations and frees", any_orders},
    };
    return stw_test_run_all("allocator", tests, sizeof tests / sizeof tests[0]);
}
