/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces and meets against a table of single elements. */
#include <stdlib.h>
#include <string.h>

#include "plan/job/space.h"
#include "tests/unit/testing.h"

#define TENSORS 6u
#define NUMEL 40u
#define ALL (TENSORS * NUMEL)

static uint64_t state = 12345;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % n;
}

/* Random runs of the model; where[g] is the element's place in the space, -1: not in it. */
static void random_space(stw_pool *pool, stw_space *out, int *where) {
    *out = (stw_space){.pool = pool};
    for (uint32_t g = 0; g < ALL; g++) where[g] = -1;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t at = below(20); at < NUMEL;) {
            uint32_t n = 1 + below(15);
            if (n > NUMEL - at) n = NUMEL - at;
            for (uint32_t i = 0; i < n; i++) where[t * NUMEL + at + i] = (int)(out->n + i);
            if (stw_space_add(out, t, t * NUMEL, at, n, NULL) != STW_STATUS_OK) abort();
            at += n + below(12); /* 0: neighbouring segments */
        }
}

static stw_view random_view(const stw_space *space) {
    uint64_t first = below((uint32_t)space->n + 1);
    return (stw_view){space, first, below((uint32_t)(space->n - first) + 1)};
}

static bool inside(stw_view view, int element) {
    return element >= 0 && (uint64_t)element >= view.first &&
           (uint64_t)element < view.first + view.n;
}

/* The same elements in another order. */
static void spread(stw_space *space, int *where) {
    CHECK_OK(stw_space_spread(space, 1 + below(20), err));
    uint64_t n = 0;
    for (uint32_t g = 0; g < ALL; g++) where[g] = -1;
    for (uint32_t i = 0; i < space->n_segments; i++) {
        const stw_segment *s = &space->segments[i];
        CU_ASSERT_TRUE(s->first == n && s->global_first == s->tensor * NUMEL + s->tensor_first);
        for (uint64_t e = 0; e < s->n; e++) where[s->global_first + e] = (int)n++;
    }
    CU_ASSERT_EQUAL(space->n, n);
}

static void overlaps_are_those_of_a_table(void) {
    for (int round = 0; round < 4000; round++) {
        stw_pool *pool = stw_pool_new();
        stw_space a, b;
        int in_a[ALL], in_b[ALL], runs = 0, seen[ALL] = {0};
        random_space(pool, &a, in_a);
        random_space(pool, &b, in_b);
        if (round % 4 >= 2) spread(&a, in_a);
        if (round % 2 == 1) spread(&b, in_b);
        stw_view va = random_view(&a), vb = random_view(&b);
        stw_overlap o;
        uint64_t last = 0, n = 0, in_runs = 0;
        for (stw_meet meet = stw_meet_begin(va, vb); stw_meet_next(&meet, &o); n += o.n) {
            CU_ASSERT_TRUE(o.n > 0 && o.a_first >= last);
            last = o.a_first + o.n;
            CU_ASSERT_EQUAL(o.global_first, o.tensor * NUMEL + o.tensor_first);
            CU_ASSERT_EQUAL(a.segments[o.a_segment].tensor, o.tensor);
            for (uint64_t i = 0; i < o.n; i++) {
                uint64_t g = o.global_first + i;
                seen[g]++;
                CU_ASSERT_EQUAL(in_a[g], (int)(o.a_first + i));
                CU_ASSERT_EQUAL(in_b[g], (int)(o.b_first + i));
            }
        }
        for (uint32_t g = 0; g < ALL; g++)
            CU_ASSERT_EQUAL(seen[g], inside(va, in_a[g]) && inside(vb, in_b[g]) ? 1 : 0);
        CU_ASSERT_EQUAL(stw_meet_count(va, vb), n);
        for (stw_meet meet = stw_meet_begin(va, vb); stw_meet_next_run(&meet, &o); runs++) {
            in_runs += o.n;
            if (runs > (int)ALL) break;
        }
        CU_ASSERT_EQUAL(in_runs, n);
        stw_pool_free(pool);
    }
}

/* Any run of a spread space has about its share of any stretch of the model. */
static void spread_runs_are_even(void) {
    enum { N = 100000, STEP = 100, BLOCKS = 36 };
    stw_pool *pool = stw_pool_new();
    stw_space files = {.pool = pool}, s = {.pool = pool};
    CHECK_OK(stw_space_add(&files, 0, 0, 0, N, err));
    CHECK_OK(stw_space_add(&s, 0, 0, 0, N, err));
    CHECK_OK(stw_space_spread(&s, STEP, err));
    CU_ASSERT_EQUAL(s.n_segments, N / STEP);
    CHECK_FAILS(stw_space_add(&s, 1, N, 0, 1, err), STW_STATUS_BUG, "spread");
    for (uint64_t n = 1000; n <= N; n += 7000)
        for (uint64_t first = 0; first + n <= N; first += 900)
            for (uint64_t block = 0; block < BLOCKS; block++) {
                const stw_view run = {&s, first, n},
                               of = {&files, block * (N / BLOCKS), N / BLOCKS};
                double found = (double)stw_meet_count(of, run);
                CU_ASSERT_DOUBLE_EQUAL(found, (double)n / BLOCKS, 3 * STEP);
            }
    stw_pool_free(pool);
}

static void segments_come_in_order(void) {
    stw_pool *pool = stw_pool_new();
    stw_space s = {.pool = pool};
    CHECK_OK(stw_space_add(&s, 1, 100, 10, 5, err));
    CHECK_OK(stw_space_add(&s, 1, 100, 15, 0, err)); /* nothing */
    CU_ASSERT_EQUAL(s.n_segments, 1);
    CHECK_FAILS(stw_space_add(&s, 1, 100, 14, 1, err), STW_STATUS_BUG, "comes before element 114");
    CHECK_FAILS(stw_space_add(&s, 0, 0, 3, 1, err), STW_STATUS_BUG, "comes before");
    CHECK_OK(stw_space_add(&s, 1, 100, 15, 1, err));
    CU_ASSERT_EQUAL(s.n, 6);
    stw_pool_free(pool);
}

static void whole_runs_join_across_tensors(void) {
    stw_pool *pool = stw_pool_new();
    stw_space a = {.pool = pool}, b = {.pool = pool};
    for (uint32_t t = 0; t < 3; t++) {
        CHECK_OK(stw_space_add(&a, t, t * 10, 0, 10, err));
        CHECK_OK(stw_space_add(&b, t, t * 10, 0, t == 1 ? 9 : 10, err));
    }
    stw_overlap o;
    stw_meet meet = stw_meet_begin(stw_space_whole(&a), stw_space_whole(&b));
    CU_ASSERT_TRUE(stw_meet_next_run(&meet, &o));
    CU_ASSERT_EQUAL(o.n, 19);
    CU_ASSERT_TRUE(stw_meet_next_run(&meet, &o));
    CU_ASSERT_TRUE(o.a_first == 20 && o.b_first == 19 && o.n == 10);
    CU_ASSERT_FALSE(stw_meet_next_run(&meet, &o));
    stw_pool_free(pool);
}

STW_TEST_MAIN("plan space", {"overlaps are those of a table", overlaps_are_those_of_a_table},
              {"spread runs are even", spread_runs_are_even},
              {"segments come in order", segments_come_in_order},
              {"whole runs join across tensors", whole_runs_join_across_tensors})
