/* SPDX-License-Identifier: Apache-2.0 */
/* The vectorised, threaded loops against the scalar element functions: equal bits for every length,
 * alignment, instruction set and kind of value. */
#include <math.h>
#include <stdlib.h>

#include "backend/host/kernels.h"
#include "backend/host/loops.h"
#include "backend/norm.h"
#include "tests/unit/testing.h"

#define MOST 200003u
#define PAD 8u

/* Arrays by component in the order of stw_element_types; PAD elements more than asked for. */
typedef struct state {
    stw_element type[5];
    unsigned char *data[5]; /* params, grads, master, exp_avg, exp_avg_sq */
} state;
enum { P, G, W, M, V };

/* Values of every kind: ordinary, tiny, subnormal, zero of either sign, huge, infinite, NaN. */
static float any_value(uint64_t i, uint64_t salt) {
    uint64_t h = stw_mix64(i * 4 + salt);
    static const uint32_t special[] = {0x00000000u, 0x80000000u, 0x00000001u, 0x007FFFFFu,
                                       0x00800000u, 0x7F7FFFFFu, 0x7F800000u, 0xFF800000u,
                                       0x7FC00000u, 0x3F800000u};
    if (h % 16 == 0) return stw_float_from_bits(special[(h >> 8) % 10]);
    if (h % 16 == 1) return stw_float_from_bits((uint32_t)(h >> 32)); /* any bits at all */
    return stw_seeded_grad(salt, 1, i);
}

static float value_at(const void *data, stw_element type, uint64_t i) {
    return type == STW_ELEMENT_F32 ? ((const float *)data)[i]
                                   : stw_float_from_bf16(((const uint16_t *)data)[i]);
}

static void put_at(void *data, stw_element type, uint64_t i, float value) {
    if (type == STW_ELEMENT_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = stw_bf16_from_float(value);
}

static state new_state(const stw_element_types *t, uint64_t n, uint64_t salt) {
    state s = {{t->params, t->grads, t->master, t->exp_avg, t->exp_avg_sq}, {NULL}};
    for (int c = 0; c < 5; c++) {
        if (s.type[c] == STW_ELEMENT_NONE) continue;
        s.data[c] = aligned_alloc(64, ((n + PAD) * 4 + 63) / 64 * 64);
        for (uint64_t i = 0; i < n + PAD; i++) {
            float value = any_value(i, salt + (uint64_t)c);
            put_at(s.data[c], s.type[c], i, c == V ? fabsf(value) : value);
        }
    }
    return s;
}

static void free_state(state *s) {
    for (int c = 0; c < 5; c++) free(s->data[c]);
}

/* Equal bits, those of NaNs too: of each type there is one. */
static bool same(const state *a, const state *b, uint64_t n) {
    for (int c = 0; c < 5; c++) {
        if (a->type[c] == STW_ELEMENT_NONE) continue;
        for (uint64_t i = 0; i < n; i++) {
            float x = value_at(a->data[c], a->type[c], i), y = value_at(b->data[c], b->type[c], i);
            if (stw_bits_from_float(x) != stw_bits_from_float(y)) return false;
        }
    }
    return true;
}

/* The same update element by element: what every kernel is held to. */
static void scalar_adamw(const stw_adamw *a, stw_adamw_group group, float factor, const state *s,
                         uint64_t first, uint64_t n) {
    int weights = s->type[W] != STW_ELEMENT_NONE ? W : P;
    for (uint64_t i = first; i < first + n; i++) {
        float w = value_at(s->data[weights], s->type[weights], i);
        float m = value_at(s->data[M], s->type[M], i), v = value_at(s->data[V], s->type[V], i);
        stw_adamw_element(a, group, factor, &w, value_at(s->data[G], s->type[G], i), &m, &v);
        put_at(s->data[weights], s->type[weights], i, w);
        put_at(s->data[P], s->type[P], i, w);
        put_at(s->data[M], s->type[M], i, m);
        put_at(s->data[V], s->type[V], i, v);
    }
}

static void *at(const state *s, int c, uint64_t i) {
    return s->data[c] == NULL ? NULL : s->data[c] + i * stw_element_bytes(s->type[c]);
}

static stw_element_types combination(unsigned i) {
    stw_element_types t = {
        i & 1u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32, i & 2u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32,
        i & 4u ? STW_ELEMENT_F32 : STW_ELEMENT_NONE, i & 8u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32,
        i & 16u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32};
    return t;
}

static float clip_factor = 0.37f;

/* Components from element shift[c] on: each may be aligned differently. */
static bool loop_agrees(const stw_host_loops *loops, const stw_element_types *types, uint64_t n,
                        uint64_t shift, bool clip) {
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, clip);
    float factor = clip ? clip_factor : 99.0f; /* without clipping it must not matter */
    state x = new_state(types, n, 40), y = new_state(types, n, 40);
    scalar_adamw(&a, a.groups[2], factor, &x, shift, n);
    const stw_adamw_arrays arrays = {a,
                                     a.groups[2],
                                     factor,
                                     at(&y, P, shift),
                                     at(&y, G, shift),
                                     (float *)at(&y, W, shift),
                                     at(&y, M, shift),
                                     at(&y, V, shift),
                                     n};
    loops->adamw(&arrays, types);
    bool ok = same(&x, &y, n + PAD); /* what lies before and behind is untouched as well */
    free_state(&x);
    free_state(&y);
    return ok;
}

static void adamw_is_the_scalar_one(void) {
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++) {
        const stw_host_loops *loops = stw_host_loops_get(t);
        for (unsigned c = 0; c < 32; c++) {
            stw_element_types types = combination(c);
            for (uint64_t n = 0; n < 70; n++)
                CU_ASSERT_TRUE(loop_agrees(loops, &types, n, (n + c) % 4, n % 2 == 0));
            CU_ASSERT_TRUE(loop_agrees(loops, &types, 20011, c % 3, true));
            /* Large enough for stores past the caches. */
            CU_ASSERT_TRUE(loop_agrees(loops, &types, 65536 + 77, c % 5, c % 2 == 0));
        }
    }
}

/* The factors of a norm that is NaN and of an infinite one, among values that hold some themselves:
 * the same bits from every table. */
static void factors_that_are_not_numbers(void) {
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++)
        for (unsigned c = 0; c < 32; c++) {
            stw_element_types types = combination(c);
            for (int k = 0; k < 3; k++) {
                clip_factor = k == 0 ? (float)NAN : k == 1 ? -(float)NAN : 0.0f;
                CU_ASSERT_TRUE(loop_agrees(stw_host_loops_get(t), &types, 1003, c % 4, true));
            }
        }
    clip_factor = 0.37f;
    const stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 1);
    float w = 1, m = 2, v = 3;
    stw_adamw_element(&a, a.groups[0], (float)NAN, &w, 0.5f, &m, &v);
    CU_ASSERT_EQUAL(stw_bits_from_float(w), STW_NAN_BITS);
    CU_ASSERT_EQUAL(stw_bits_from_float(m), STW_NAN_BITS);
    CU_ASSERT_EQUAL(stw_bits_from_float(v), STW_NAN_BITS);
    w = 1, m = 2, v = 3;
    stw_adamw_element(&a, a.groups[0], 0.0f, &w, (float)INFINITY, &m, &v); /* inf * 0 */
    CU_ASSERT_EQUAL(stw_bits_from_float(w), STW_NAN_BITS);
    w = 1, m = 2, v = 3;
    stw_adamw_element(&a, a.groups[0], 0.0f, &w, 0.5f, &m, &v);
    CU_ASSERT_TRUE(isfinite(w) && isfinite(m) && isfinite(v));
}

/* Arrays that are never aligned together: the loop must choose stores one by one. */
static void mutual_alignment_does_not_matter(void) {
    enum { N = 65536 + 100 };
    const stw_element_types types = combination(4 + 2 + 1); /* bf16 with an fp32 master */
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 1);
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++) {
        state x = new_state(&types, N, 9), y = new_state(&types, N, 9);
        for (int c = 0; c < 5; c++) /* component c begins at element c */
            memmove(y.data[c] + (unsigned)c * stw_element_bytes(y.type[c]), y.data[c],
                    N * stw_element_bytes(y.type[c]));
        scalar_adamw(&a, a.groups[0], 0.5f, &x, 0, N);
        const stw_adamw_arrays arrays = {a,
                                         a.groups[0],
                                         0.5f,
                                         at(&y, P, P),
                                         at(&y, G, G),
                                         (float *)at(&y, W, W),
                                         at(&y, M, M),
                                         at(&y, V, V),
                                         N};
        stw_host_loops_get(t)->adamw(&arrays, &types);
        for (int c = 0; c < 5; c++)
            memmove(y.data[c], y.data[c] + (unsigned)c * stw_element_bytes(y.type[c]),
                    N * stw_element_bytes(y.type[c]));
        CU_ASSERT_TRUE(same(&x, &y, N));
        free_state(&x);
        free_state(&y);
    }
}

/* ---- buckets over spans ---- */

/* Spans of many lengths over MOST elements, their places in reverse order, groups in turn. */
static uint32_t make_spans(stw_span *spans, uint32_t room, const stw_element_types *types) {
    uint64_t first = 0;
    uint32_t n = 0;
    for (; first < MOST; n++) {
        uint64_t length = n + 1 == room ? MOST - first : stw_mix64(n) % (n % 3 == 0 ? 70 : 9000);
        length = length == 0 ? 1 : length > MOST - first ? MOST - first : length;
        uint64_t back = MOST - first - length;
        spans[n] = (stw_span){first,
                              length,
                              back * stw_element_bytes(types->params),
                              back * stw_element_bytes(types->grads),
                              n % STW_MAX_PARAM_GROUPS,
                              0};
        first += length;
    }
    return n;
}

static bool bucket_agrees(stw_threads *threads, const stw_element_types *types, bool in_spans,
                          uint64_t first, uint64_t n) {
    static stw_span spans[MOST];
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 1);
    for (uint32_t g = 1; g < STW_MAX_PARAM_GROUPS; g++)
        stw_adamw_set_group(&a, g, 1e-3 * g, 0.01 * g, 3);
    uint32_t n_spans = make_spans(spans, MOST, types), low = 0, high = n_spans;
    state x = new_state(types, MOST, 3), y = new_state(types, MOST, 3);
    for (uint32_t s = 0; s < n_spans; s++) {
        uint64_t end = spans[s].first + spans[s].n;
        if (end <= first) low = s + 1;
        if (spans[s].first >= first + n && high == n_spans) high = s;
        for (uint64_t e = spans[s].first; e < end; e++) {
            if (e < first || e >= first + n) continue;
            uint64_t apart = in_spans ? MOST - end + e - spans[s].first : e;
            state one = x; /* one element of each component, where it lies */
            for (int c = 0; c < 5; c++) one.data[c] = at(&x, c, c <= G ? apart : e);
            scalar_adamw(&a, a.groups[spans[s].group], 0.25f, &one, 0, 1);
        }
    }
    stw_host_bucket b = {.first = first,
                         .n = n,
                         .spans = spans + low,
                         .n_spans = high - low,
                         .params_in_spans = in_spans,
                         .grads_in_spans = in_spans,
                         .params = at(&y, P, in_spans ? 0 : first),
                         .grads = at(&y, G, in_spans ? 0 : first),
                         .master = (float *)at(&y, W, first),
                         .exp_avg = at(&y, M, first),
                         .exp_avg_sq = at(&y, V, first)};
    stw_host_adamw(threads, &a, 0.25f, types, &b);
    bool ok = same(&x, &y, MOST + PAD);
    free_state(&x);
    free_state(&y);
    return ok;
}

static void buckets_follow_their_spans(void) {
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(3, &threads, err));
    for (unsigned c = 0; c < 32; c += 7) {
        stw_element_types types = combination(c);
        for (int in_spans = 0; in_spans < 2; in_spans++) {
            CU_ASSERT_TRUE(bucket_agrees(threads, &types, in_spans, 0, MOST));
            CU_ASSERT_TRUE(bucket_agrees(threads, &types, in_spans, 12345, 100001));
            CU_ASSERT_TRUE(bucket_agrees(NULL, &types, in_spans, MOST - 3, 3));
            CU_ASSERT_TRUE(bucket_agrees(threads, &types, in_spans, 17, 0));
        }
    }
    stw_threads_free(threads);
}

static void a_bucket_without_spans_is_of_group_0(void) {
    const stw_element_types types = combination(0);
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, 0);
    stw_adamw_set_group(&a, 1, 1.0, 0.5, 3);
    state x = new_state(&types, MOST, 3), y = new_state(&types, MOST, 3);
    scalar_adamw(&a, a.groups[0], 1.0f, &x, 0, MOST);
    stw_host_bucket b = {.first = 1000,
                         .n = MOST,
                         .params = y.data[P],
                         .grads = y.data[G],
                         .exp_avg = y.data[M],
                         .exp_avg_sq = y.data[V]};
    stw_host_adamw(NULL, &a, 1.0f, &types, &b);
    CU_ASSERT_TRUE(same(&x, &y, MOST + PAD));
    a.groups[0] = a.groups[1];
    stw_host_adamw(NULL, &a, 1.0f, &types, &b);
    CU_ASSERT_FALSE(same(&x, &y, MOST));
    free_state(&x);
    free_state(&y);
}

/* One known step, worked out by hand: p = 1, g = 1, first step, lr = 0.5, no decay: m and v are
 * corrected back to 1, so p moves by lr. */
static void adamw_moves_by_the_learning_rate(void) {
    stw_adamw a = stw_adamw_make(0.5, 0.5, 0.75, 0.0, 0.0, 1, 0);
    float p = 1.0f, m = 0.0f, v = 0.0f;
    stw_adamw_element(&a, a.groups[0], 1.0f, &p, 1.0f, &m, &v);
    CU_ASSERT_EQUAL(m, 0.5f);
    CU_ASSERT_EQUAL(v, 0.25f);
    CU_ASSERT_EQUAL(p, 0.5f);
}

/* ---- the exact sum of squares: every table against the scalar split ---- */

static void squares_of(const void *values, stw_element type, uint64_t n, stw_norm_bins *bins) {
    memset(bins, 0, sizeof *bins);
    for (uint64_t i = 0; i < n; i++) {
        unsigned bin = 0;
        uint64_t value = 0;
        int kind = stw_norm_split(value_at(values, type, i), &bin, &value);
        if (kind == 1) {
            bins->low[bin] += value & 0xFFFFFFFFu;
            bins->high[bin] += value >> 32;
        }
        bins->not_finite += kind >= 2;
        bins->nans += kind == 3;
    }
    stw_norm_normalise(bins);
}

/* Magnitudes of `binades` powers of two up to `top`; 0: subnormal ones; < 0: anything. */
static float spread_value(uint64_t i, int top, int binades) {
    uint32_t bits = (uint32_t)stw_mix64(i);
    if (binades < 0) return any_value(i, 11);
    if (binades == 0) return stw_float_from_bits(bits & 0x807FFFFFu);
    if (stw_mix64(i + 1) % 50 == 0) return 0.0f;
    int exponent = top - (int)(stw_mix64(i + 2) % (unsigned)binades);
    if (exponent < 0) exponent = 0;
    return stw_float_from_bits((bits & 0x807FFFFFu) | (uint32_t)exponent << 23);
}

static bool sums_agree(unsigned table, stw_element type, uint64_t n, int top, int binades) {
    const stw_element_types types = {type, type, STW_ELEMENT_NONE, type, type};
    state s = new_state(&types, n, 5);
    for (uint64_t i = 0; i < n; i++) put_at(s.data[G], type, i, spread_value(i, top, binades));
    stw_norm_bins expected, bins = {.not_finite = 0};
    squares_of(s.data[G], type, n, &expected);
    if (table == 9) {
        stw_host_norm_add(NULL, s.data[G], type, n, &bins);
    } else {
        /* A total from the table's own bins, carried by hand. */
        stw_norm_wide wide = {.not_finite = 0};
        stw_host_loops_get(table)->norm_add(s.data[G], type, n, &wide);
        stw_i128 left = 0;
        for (unsigned b = 0; b < STW_NORM_BINS; b++) {
            left += wide.bin[b];
            bins.low[b] = (uint64_t)left & (b + 1 < STW_NORM_BINS ? 0xFFFFu : 0xFFFFFFFFu);
            left -= (stw_i128)bins.low[b];
            if (b + 1 == STW_NORM_BINS) bins.high[b] = (uint64_t)(left >> 32);
            left /= 65536;
        }
        bins.not_finite = wide.not_finite;
        bins.nans = wide.nans;
    }
    bool ok = memcmp(&bins, &expected, sizeof bins) == 0;
    free_state(&s);
    return ok;
}

static void squares_sum_exactly(void) {
    static const int tops[] = {1, 3, 30, 100, 127, 200, 254};
    static const int binades[] = {-1, 0, 1, 2, 10, 20, 21, 32, 42, 43, 64, 65, 90, 253};
    for (unsigned table = 0; table < 10; table++) {
        if (table < 9 && stw_host_loops_get(table) == NULL) continue;
        for (int type = STW_ELEMENT_F32; type <= STW_ELEMENT_BF16; type++)
            for (size_t t = 0; t < sizeof tops / sizeof tops[0]; t++)
                for (size_t b = 0; b < sizeof binades / sizeof binades[0]; b++)
                    CU_ASSERT_TRUE(sums_agree(table, (stw_element)type,
                                              b % 2 == 0 ? 4096 * 2 + 13 * b : 100 * b + t, tops[t],
                                              binades[b]));
    }
}

/* As large and as many as can be: every lane's sum reaches its bound. */
static void the_fullest_block(void) {
    enum { N = 8192 };
    float *g = malloc(N * sizeof *g);
    for (unsigned table = 0; stw_host_loops_get(table) != NULL; table++)
        for (uint32_t last = 0; last < 3; last++) {
            stw_norm_wide wide = {.not_finite = 0};
            stw_norm_bins expected;
            stw_i128 total = 0, sum = 0;
            for (uint32_t i = 0; i < N; i++) g[i] = stw_float_from_bits(0x01FFFFFFu - last * i);
            squares_of(g, STW_ELEMENT_F32, N, &expected);
            stw_host_loops_get(table)->norm_add(g, STW_ELEMENT_F32, N, &wide);
            for (int b = 5; b >= 0; b--) {
                sum = sum * 65536 + wide.bin[b];
                total = total * 65536 + (stw_i128)expected.low[b];
            }
            CU_ASSERT_TRUE(sum == total && sum > 0);
        }
    free(g);
}

/* ---- digests, seeded values, conversions ---- */

static void digests_add_up(void) {
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(2, &threads, err));
    for (int type = STW_ELEMENT_F32; type <= STW_ELEMENT_BF16; type++) {
        stw_element_types types = combination(type == STW_ELEMENT_BF16 ? 1 : 0);
        state s = new_state(&types, MOST, 7);
        uint64_t expected = 0, first = (1ull << 40) + 5;
        for (uint64_t i = 0; i < MOST; i++)
            expected += stw_digest_element(first + i, type == STW_ELEMENT_F32
                                                          ? ((uint32_t *)(void *)s.data[P])[i]
                                                          : ((uint16_t *)(void *)s.data[P])[i]);
        CU_ASSERT_EQUAL(stw_host_digest(threads, s.data[P], types.params, MOST, first), expected);
        CU_ASSERT_EQUAL(
            stw_host_digest(NULL, s.data[P], types.params, 1000, first) +
                stw_host_digest(NULL, at(&s, P, 1000), types.params, MOST - 1000, first + 1000),
            expected);
        for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++)
            CU_ASSERT_EQUAL(stw_host_loops_get(t)->digest(s.data[P], types.params, MOST, first),
                            expected);
        put_at(s.data[P], types.params, 17,
               value_at(s.data[P], types.params, 17) == 1.5f ? 2.5f : 1.5f);
        CU_ASSERT_NOT_EQUAL(stw_host_digest(threads, s.data[P], types.params, MOST, first),
                            expected);
        free_state(&s);
    }
    stw_threads_free(threads);
}

static void seeded_values_are_the_scalar_ones(void) {
    float *values = malloc(MOST * sizeof *values);
    uint16_t *halves = malloc(MOST * sizeof *halves);
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++) {
        const stw_host_loops *loops = stw_host_loops_get(t);
        uint64_t first = 123456789012ull, bad = 0;
        loops->seed_grads(values, STW_ELEMENT_F32, MOST, first, 42, 5);
        loops->seed_grads(halves, STW_ELEMENT_BF16, MOST, first, 42, 5);
        for (uint64_t i = 0; i < MOST; i++) {
            float expected = stw_seeded_grad(42, 5, first + i);
            bad += stw_bits_from_float(values[i]) != stw_bits_from_float(expected);
            bad += halves[i] != stw_bf16_from_float(expected);
            bad += !(fabsf(expected) < 1.0f) || !(fabsf(expected) > 0.0f);
        }
        loops->seed_weights(values, MOST, first, 42);
        for (uint64_t i = 0; i < MOST; i++) {
            float expected = stw_seeded_weight(42, first + i);
            bad += stw_bits_from_float(values[i]) != stw_bits_from_float(expected);
            bad += (stw_bits_from_float(expected) & 0xFFFFu) != 0; /* exact in bf16 */
        }
        CU_ASSERT_EQUAL(bad, 0);
    }
    stw_host_seed_grads(NULL, halves, STW_ELEMENT_BF16, MOST, 7, 1, 2);
    CU_ASSERT_EQUAL(halves[MOST - 1], stw_bf16_from_float(stw_seeded_grad(1, 2, 7 + MOST - 1)));
    free(values);
    free(halves);
}

/* Every 16-bit and 8-bit pattern against arithmetic on its fields. */
static double small_float(uint32_t bits, int exponent_bits, int mantissa_bits, bool finite_top) {
    int sign = (int)(bits >> (exponent_bits + mantissa_bits)) & 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = (int)bits & ((1 << mantissa_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    double value = exponent == 0
                       ? ldexp(mantissa, 1 - bias - mantissa_bits)
                       : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    if (finite_top && exponent == top && mantissa == (1 << mantissa_bits) - 1) value = (double)NAN;
    if (!finite_top && exponent == top) value = mantissa == 0 ? (double)INFINITY : (double)NAN;
    return sign ? -value : value;
}

static void check_small(stw_dtype dtype, int exponent_bits, int mantissa_bits, bool finite_top) {
    unsigned bits = 1u + (unsigned)exponent_bits + (unsigned)mantissa_bits;
    unsigned n = 1u << bits, bad = 0;
    unsigned char *from = malloc(2 * (size_t)n);
    float *to = malloc(n * sizeof *to);
    for (unsigned i = 0; i < n; i++) {
        uint16_t wide = (uint16_t)i;
        if (bits == 8)
            from[i] = (unsigned char)i;
        else
            memcpy(from + 2 * (size_t)i, &wide, 2);
    }
    stw_host_convert(NULL, to, STW_ELEMENT_F32, from, dtype, n);
    for (unsigned i = 0; i < n; i++) {
        double expected = small_float(i, exponent_bits, mantissa_bits, finite_top);
        bool ok = isnan(expected) ? isnan(to[i]) != 0
                                  : (double)to[i] == expected &&
                                        (signbit(to[i]) != 0) == (signbit(expected) != 0);
        bad += !ok;
    }
    CU_ASSERT_EQUAL(bad, 0);
    free(from);
    free(to);
}

static void conversions_are_exact(void) {
    check_small(STW_DTYPE_F16, 5, 10, false);
    check_small(STW_DTYPE_BF16, 8, 7, false);
    check_small(STW_DTYPE_F8_E5M2, 5, 2, false);
    check_small(STW_DTYPE_F8_E4M3, 4, 3, true);
    double wide[] = {1.0 / 3.0, -1e300, 1e-46, 0.1};
    float narrow[4], copy[4];
    stw_host_convert(NULL, narrow, STW_ELEMENT_F32, wide, STW_DTYPE_F64, 4);
    for (int i = 0; i < 4; i++) CU_ASSERT_EQUAL(narrow[i], (float)wide[i]);
    stw_host_convert(NULL, copy, STW_ELEMENT_F32, narrow, STW_DTYPE_F32, 4);
    CU_ASSERT_EQUAL(memcmp(copy, narrow, sizeof copy), 0);
    static const stw_dtype floats[] = {STW_DTYPE_F64,  STW_DTYPE_F32,     STW_DTYPE_F16,
                                       STW_DTYPE_BF16, STW_DTYPE_F8_E4M3, STW_DTYPE_F8_E5M2};
    unsigned can = 0;
    for (int dtype = 0; dtype < 64; dtype++) can += stw_host_can_convert((stw_dtype)dtype);
    CU_ASSERT_EQUAL(can, 6);
    for (int i = 0; i < 6; i++) CU_ASSERT_TRUE(stw_host_can_convert(floats[i]));
}

/* Rounding to bf16 in every table, from every kind of value; and through fp32 from others. */
static void bf16_is_rounded_to(void) {
    enum { N = 70003 };
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(2, &threads, err));
    float *from = malloc(N * sizeof *from);
    uint16_t *to = malloc(N * sizeof *to), *again = malloc(N * sizeof *again);
    double wide[] = {1.0 / 3.0, -1e300, 1.00390625, 1.01171875};
    uint64_t bad = 0;
    for (uint32_t i = 0; i < N; i++) /* ties, and everything near them */
        from[i] = i % 2 == 0 ? any_value(i, 8) : stw_float_from_bits(i << 15 | (i * 7u % 3u));
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++) {
        stw_host_loops_get(t)->to_bf16(to, from, N);
        for (uint64_t i = 0; i < N; i++) bad += to[i] != stw_bf16_from_float(from[i]);
    }
    stw_host_convert(threads, again, STW_ELEMENT_BF16, from, STW_DTYPE_F32, N);
    CU_ASSERT_EQUAL(memcmp(to, again, N * sizeof *to), 0);
    stw_host_convert(threads, again, STW_ELEMENT_BF16, to, STW_DTYPE_BF16, N);
    CU_ASSERT_EQUAL(memcmp(to, again, N * sizeof *to), 0);
    CU_ASSERT_EQUAL(bad, 0);
    stw_host_convert(NULL, to, STW_ELEMENT_BF16, wide, STW_DTYPE_F64, 4);
    CU_ASSERT_EQUAL(to[0], 0x3EAB);
    CU_ASSERT_EQUAL(to[1], 0xFF80); /* infinite in fp32 already */
    CU_ASSERT_EQUAL(to[2], 0x3F80); /* ties to even, down and up */
    CU_ASSERT_EQUAL(to[3], 0x3F82);
    free(from);
    free(to);
    free(again);
    stw_threads_free(threads);
}

/* The powers of bias corrections are those of a GPU's powf: so many of the first 20,000 differ from
 * the rounded double power, the first of them here (tests/gpu/test_cuda_kernels.c on an H200). */
static void powers_are_those_of_the_device(void) {
    static const struct {
        float base;
        unsigned differ, first;
    } seen[] = {{0.9f, 79, 57}, {0.95f, 121, 6}, {0.99f, 588, 22}, {0.999f, 1240, 102}};
    CU_ASSERT_EQUAL(stw_powf(0.0f, 3.0f), 0.0f);
    CU_ASSERT_EQUAL(stw_powf(0.5f, 30.0f), 0x1p-30f);
    CU_ASSERT_EQUAL(stw_powf(0.5f, 160.0f), 0.0f);
    for (size_t b = 0; b < sizeof seen / sizeof seen[0]; b++) {
        unsigned differ = 0, first = 0, far = 0;
        for (unsigned step = 1; step <= 20000; step++) {
            double exact = pow((double)seen[b].base, (double)step);
            float power = stw_powf(seen[b].base, (float)step);
            if (fabs((double)power - exact) > 1.2e-7 * exact + 1e-45) far++;
            if (power == (float)exact) continue;
            if (differ++ == 0) first = step;
        }
        CU_ASSERT_EQUAL(differ, seen[b].differ);
        CU_ASSERT_EQUAL(first, seen[b].first);
        CU_ASSERT_EQUAL(far, 0);
    }
}

STW_TEST_MAIN("backend kernels", {"powers are those of the device", powers_are_those_of_the_device},
              {"AdamW has the scalar bits", adamw_is_the_scalar_one},
              {"factors that are not numbers", factors_that_are_not_numbers},
              {"mutual alignment does not matter", mutual_alignment_does_not_matter},
              {"buckets follow their spans", buckets_follow_their_spans},
              {"no spans: group 0", a_bucket_without_spans_is_of_group_0},
              {"AdamW moves by the learning rate", adamw_moves_by_the_learning_rate},
              {"squares sum exactly", squares_sum_exactly},
              {"the fullest block", the_fullest_block}, {"digests add up", digests_add_up},
              {"seeded values have the scalar bits", seeded_values_are_the_scalar_ones},
              {"conversions are exact", conversions_are_exact},
              {"bf16 is rounded to", bf16_is_rounded_to}, )
