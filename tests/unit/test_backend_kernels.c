/* SPDX-License-Identifier: Apache-2.0 */
/* The vectorised, threaded loops against the scalar element functions: equal bits for every length,
 * alignment, instruction set and kind of value. */
#include <math.h>
#include <stdlib.h>

#include "backend/host/kernels.h"
#include "backend/host/loops.h"
#include "tests/unit/testing.h"

#define MOST 200003u

typedef struct state {
    float *p, *g, *m, *v;
} state;

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

static state new_state(uint64_t n, uint64_t salt) {
    state s = {malloc((n + 8) * 4), malloc((n + 8) * 4), malloc((n + 8) * 4), malloc((n + 8) * 4)};
    for (uint64_t i = 0; i < n + 8; i++) {
        s.p[i] = any_value(i, salt);
        s.g[i] = any_value(i, salt + 1);
        s.m[i] = any_value(i, salt + 2);
        s.v[i] = fabsf(any_value(i, salt + 3));
    }
    return s;
}

static void free_state(state *s) {
    free(s->p);
    free(s->g);
    free(s->m);
    free(s->v);
}

/* Equal bits, but NaNs of any payload are alike: IEEE does not say which operand's survives. */
static bool same(const float *a, const float *b, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (stw_bits_from_float(a[i]) != stw_bits_from_float(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

typedef void (*adamw_fn)(const stw_adamw *, float *, const float *, float *, float *, uint64_t);
static stw_threads *shared_threads;

static void threaded_adamw(const stw_adamw *a, float *p, const float *g, float *m, float *v,
                           uint64_t n) {
    stw_host_adamw(shared_threads, a, p, g, m, v, n);
}

static bool adamw_agrees(adamw_fn fn, uint64_t n, uint64_t shift, bool clip) {
    stw_adamw a = stw_adamw_make(1e-3, 0.9, 0.999, 1e-8, 0.1, 3, clip, clip ? 0.37f : 1.0f);
    state x = new_state(n, 40), y = new_state(n, 40);
    for (uint64_t i = 0; i < n; i++)
        stw_adamw_element(&a, &x.p[shift + i], x.g[shift + i], &x.m[shift + i], &x.v[shift + i]);
    fn(&a, y.p + shift, y.g + shift, y.m + shift, y.v + shift, n);
    /* What lies before and behind must be untouched as well. */
    bool ok = same(x.p, y.p, n + 8) && same(x.m, y.m, n + 8) && same(x.v, y.v, n + 8) &&
              same(x.g, y.g, n + 8);
    free_state(&x);
    free_state(&y);
    return ok;
}

static void adamw_is_the_scalar_one(void) {
    CHECK_OK(stw_threads_new(3, &shared_threads, err));
    for (unsigned t = 0; t < 8; t++) {
        const stw_host_loops *loops = stw_host_loops_get(t);
        if (loops == NULL) break;
        for (uint64_t n = 0; n < 70; n++)
            for (uint64_t shift = 0; shift < 4; shift++) {
                CU_ASSERT_TRUE(adamw_agrees(loops->adamw, n, shift, n % 2 == 0));
                CU_ASSERT_TRUE(adamw_agrees(threaded_adamw, n, shift, n % 2 == 1));
            }
        CU_ASSERT_TRUE(adamw_agrees(loops->adamw, 20011, 1, true));
    }
    CU_ASSERT_TRUE(adamw_agrees(threaded_adamw, MOST, 3, true));
    CU_ASSERT_TRUE(adamw_agrees(threaded_adamw, MOST, 0, false));
    stw_threads_free(shared_threads);
    shared_threads = NULL;
}

/* One known step, worked out by hand: p = 1, g = 1, first step, lr = 0.5, no decay: m and v are
 * corrected back to 1, so p moves by lr. */
static void adamw_moves_by_the_learning_rate(void) {
    stw_adamw a = stw_adamw_make(0.5, 0.5, 0.75, 0.0, 0.0, 1, 0, 1.0f);
    float p = 1.0f, m = 0.0f, v = 0.0f;
    stw_adamw_element(&a, &p, 1.0f, &m, &v);
    CU_ASSERT_EQUAL(m, 0.5f);
    CU_ASSERT_EQUAL(v, 0.25f);
    CU_ASSERT_EQUAL(p, 0.5f);
}

static void digests_add_up(void) {
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(2, &threads, err));
    state s = new_state(MOST, 7);
    uint64_t expected = 0, first = (1ull << 40) + 5;
    for (uint64_t i = 0; i < MOST; i++)
        expected += stw_digest_element(first + i, stw_bits_from_float(s.p[i]));
    CU_ASSERT_EQUAL(stw_host_digest(threads, s.p, MOST, first), expected);
    CU_ASSERT_EQUAL(stw_host_digest(NULL, s.p, 1000, first) +
                        stw_host_digest(NULL, s.p + 1000, MOST - 1000, first + 1000),
                    expected);
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++)
        CU_ASSERT_EQUAL(stw_host_loops_get(t)->digest(s.p, MOST, first), expected);
    float kept = s.p[17];
    s.p[17] = kept == 1.5f ? 2.5f : 1.5f;
    CU_ASSERT_NOT_EQUAL(stw_host_digest(threads, s.p, MOST, first), expected);
    free_state(&s);
    stw_threads_free(threads);
}

static void seeded_values_are_the_scalar_ones(void) {
    float *values = malloc(MOST * sizeof *values);
    for (unsigned t = 0; stw_host_loops_get(t) != NULL; t++) {
        const stw_host_loops *loops = stw_host_loops_get(t);
        uint64_t first = 123456789012ull, bad = 0;
        loops->seed_grads(values, MOST, first, 42, 5);
        for (uint64_t i = 0; i < MOST; i++) {
            float expected = stw_seeded_grad(42, 5, first + i);
            bad += stw_bits_from_float(values[i]) != stw_bits_from_float(expected);
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
    free(values);
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
    stw_host_convert(NULL, to, from, dtype, n);
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
    stw_host_convert(NULL, narrow, wide, STW_DTYPE_F64, 4);
    for (int i = 0; i < 4; i++) CU_ASSERT_EQUAL(narrow[i], (float)wide[i]);
    stw_host_convert(NULL, copy, narrow, STW_DTYPE_F32, 4);
    CU_ASSERT_EQUAL(memcmp(copy, narrow, sizeof copy), 0);
    CU_ASSERT_FALSE(stw_host_can_convert(STW_DTYPE_I32));
    CU_ASSERT_FALSE(stw_host_can_convert(STW_DTYPE_F4));
    CU_ASSERT_TRUE(stw_host_can_convert(STW_DTYPE_BF16));
}

/* ---- the pool of threads ---- */

typedef struct cover {
    unsigned char seen[5000];
} cover;

static void note(void *arg, uint64_t first, uint64_t count) {
    cover *c = arg;
    for (uint64_t i = first; i < first + count; i++) c->seen[i]++;
}

static void threads_cover_everything_once(void) {
    static cover c;
    for (uint32_t n_threads = 0; n_threads < 5; n_threads++) {
        stw_threads *threads = NULL;
        if (n_threads > 0) CHECK_OK(stw_threads_new(n_threads, &threads, err));
        CU_ASSERT_EQUAL(stw_threads_count(threads), n_threads == 0 ? 1 : n_threads);
        for (uint64_t n = 0; n <= 5000; n += 613)
            for (uint64_t grain = 0; grain < 900; grain += 299) {
                unsigned bad = 0;
                memset(&c, 0, sizeof c);
                stw_threads_for(threads, n, grain, note, &c);
                for (uint64_t i = 0; i < 5000; i++) bad += c.seen[i] != (i < n ? 1 : 0);
                CU_ASSERT_EQUAL(bad, 0);
            }
        stw_threads_free(threads);
    }
}

STW_TEST_MAIN("backend kernels", {"AdamW has the scalar bits", adamw_is_the_scalar_one},
              {"AdamW moves by the learning rate", adamw_moves_by_the_learning_rate},
              {"digests add up", digests_add_up},
              {"seeded values have the scalar bits", seeded_values_are_the_scalar_ones},
              {"conversions are exact", conversions_are_exact},
              {"threads cover everything once", threads_cover_everything_once})
