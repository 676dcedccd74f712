/* SPDX-License-Identifier: Apache-2.0 */
/* The exact sum of squares: against a big integer made digit by digit here, against long double
 * where that is exact, and independent of order, cut and number of ranks. */
#include <math.h>
#include <stdlib.h>

#include "backend/host/kernels.h"
#include "backend/norm.h"
#include "tests/unit/testing.h"

static stw_norm_bins bins_of(const float *values, uint64_t n, stw_threads *threads) {
    stw_norm_bins bins;
    memset(&bins, 0, sizeof bins);
    stw_host_norm_add(threads, values, STW_ELEMENT_F32, n, &bins);
    return bins;
}

static bool same_bins(const stw_norm_bins *a, const stw_norm_bins *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- another way to the same integer: 640 bits, one bit string, schoolbook addition ---- */

typedef struct big {
    uint32_t digit[20]; /* 32 bits each, least first; unit 2^-298 */
} big;

static void big_add_square(big *sum, float g) {
    int exponent = 0;
    double mantissa = frexp(fabs((double)g), &exponent); /* in [0.5, 1) */
    uint64_t whole = (uint64_t)ldexp(mantissa, 24);      /* 24 bits: exact */
    if (whole == 0) return;
    int shift = 2 * (exponent - 24) + 298;
    uint64_t square = whole * whole;
    while (shift < 0) { /* subnormals: the low bits are zeros */
        square >>= 1;
        shift++;
    }
    for (int bit = 0; bit < 48; bit++) {
        if ((square >> bit & 1u) == 0) continue;
        int at = shift + bit;
        uint64_t carry = 1ull << (at % 32);
        for (int d = at / 32; carry != 0; d++) {
            carry += sum->digit[d];
            sum->digit[d] = (uint32_t)carry;
            carry >>= 32;
        }
    }
}

static int big_bit(const big *b, int bit) {
    return bit < 0 ? 0 : (int)(b->digit[bit / 32] >> (bit % 32) & 1u);
}

/* Nearest double, ties to even, by hand. */
static double big_round(const big *b) {
    int top = 639;
    while (top >= 0 && !big_bit(b, top)) top--;
    if (top < 0) return 0.0;
    uint64_t mantissa = 0;
    for (int i = 0; i < 53; i++) mantissa = mantissa << 1 | (uint64_t)big_bit(b, top - i);
    bool half = big_bit(b, top - 53), rest = false;
    for (int i = 0; i < top - 53; i++) rest = rest || big_bit(b, i);
    if (half && (rest || (mantissa & 1u) != 0)) mantissa++;
    return ldexp((double)mantissa, top - 52 - 298);
}

static void fill(float *values, uint64_t n, uint64_t salt, int kind) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)stw_mix64(i + salt);
        if (kind == 0) values[i] = stw_seeded_grad(salt, 1, i);
        if (kind == 1) /* any finite bits: 2^-149 .. 2^127 */
            values[i] = stw_float_from_bits((bits & 0x7F800000u) == 0x7F800000u ? bits & 0xFF7FFFFFu
                                                                                : bits);
        if (kind == 2) values[i] = stw_float_from_bits(bits & 0x807FFFFFu); /* subnormal */
        if (kind == 3) values[i] = 3.0e38f;
    }
}

static void sums_are_exact(void) {
    enum { N = 3001 };
    static float values[N];
    for (int kind = 0; kind < 4; kind++) {
        for (uint64_t salt = 1; salt < 30; salt++) {
            uint64_t n = salt * 104 % N;
            big sum;
            memset(&sum, 0, sizeof sum);
            fill(values, n, salt, kind);
            for (uint64_t i = 0; i < n; i++) big_add_square(&sum, values[i]);
            stw_norm_bins bins = bins_of(values, n, NULL);
            CU_ASSERT_EQUAL(stw_norm_sum(&bins), big_round(&sum));
            CU_ASSERT_EQUAL(stw_norm_value(&bins), sqrt(big_round(&sum)));
        }
    }
}

/* bf16 gradients count as the floats that they are. */
static void narrow_gradients_are_widened(void) {
    enum { N = 2999 };
    static float values[N];
    static uint16_t stored[N];
    for (int kind = 0; kind < 3; kind++) {
        fill(values, N, 7, kind);
        big sum;
        memset(&sum, 0, sizeof sum);
        for (uint64_t i = 0; i < N; i++) {
            stored[i] = (uint16_t)(stw_bits_from_float(values[i]) >> 16);
            values[i] = stw_float_from_bf16(stored[i]);
            big_add_square(&sum, values[i]);
        }
        stw_norm_bins bins, wide = bins_of(values, N, NULL);
        memset(&bins, 0, sizeof bins);
        stw_host_norm_add(NULL, stored, STW_ELEMENT_BF16, N, &bins);
        CU_ASSERT_TRUE(same_bins(&bins, &wide));
        CU_ASSERT_EQUAL(stw_norm_sum(&bins), big_round(&sum));
    }
    uint16_t bad[] = {0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x8000};
    stw_norm_bins bins;
    memset(&bins, 0, sizeof bins);
    stw_host_norm_add(NULL, bad, STW_ELEMENT_BF16, 5, &bins);
    CU_ASSERT_EQUAL(bins.not_finite, 3);
}

/* A single bit in every place that a counter has, in every bin. */
static void powers_of_two_are_exact(void) {
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        for (int bit = 0; bit < 64; bit++) {
            stw_norm_bins low, high;
            memset(&low, 0, sizeof low);
            memset(&high, 0, sizeof high);
            low.low[b] = high.high[b] = 1ull << bit;
            CU_ASSERT_EQUAL(stw_norm_sum(&low), ldexp(1.0, 16 * (int)b + bit - 298));
            CU_ASSERT_EQUAL(stw_norm_sum(&high), ldexp(1.0, 16 * (int)b + bit + 32 - 298));
            CU_ASSERT_EQUAL(stw_norm_value(&low), sqrt(ldexp(1.0, 16 * (int)b + bit - 298)));
        }
    }
}

/* 2^53 + 1 in units, then more: ties and what breaks them. */
static void rounding_is_to_nearest_even(void) {
    float big_one = ldexpf(1.0f, 20), small = ldexpf(1.0f, -6), smaller = ldexpf(1.0f, -40);
    /* 2^40 + 2^-12: a 53-bit mantissa ends at 2^-12. 2^-13 more is half a unit. */
    float tie[] = {big_one, ldexpf(1.0f, -7), ldexpf(1.0f, -7)}; /* 2 x 2^-14 = 2^-13 */
    stw_norm_bins bins = bins_of(tie, 3, NULL);
    CU_ASSERT_EQUAL(stw_norm_sum(&bins), ldexp(1.0, 40)); /* to even: down */
    float above[] = {big_one, ldexpf(1.0f, -7), ldexpf(1.0f, -7), smaller};
    bins = bins_of(above, 4, NULL);
    CU_ASSERT_EQUAL(stw_norm_sum(&bins), ldexp(1.0, 40) + ldexp(1.0, -12));
    float odd[] = {big_one, small, ldexpf(1.0f, -7), ldexpf(1.0f, -7)};
    bins = bins_of(odd, 4, NULL); /* 2^40 + 2^-12 + 2^-13: to even is up */
    CU_ASSERT_EQUAL(stw_norm_sum(&bins), ldexp(1.0, 40) + ldexp(1.0, -11));
}

static void order_and_cut_do_not_matter(void) {
    enum { N = 300000 };
    float *values = malloc(N * sizeof *values), *shuffled = malloc(N * sizeof *shuffled);
    stw_threads *threads = NULL;
    CHECK_OK(stw_threads_new(3, &threads, err));
    fill(values, N, 99, 1);
    /* 7 and N have no common factor: a permutation. */
    for (uint64_t i = 0; i < N; i++) shuffled[i * 7 % N] = values[i];
    stw_norm_bins one = bins_of(values, N, NULL), many = bins_of(values, N, threads);
    stw_norm_bins other = bins_of(shuffled, N, threads);
    CU_ASSERT_TRUE(same_bins(&one, &many));
    CU_ASSERT_TRUE(same_bins(&one, &other));
    stw_norm_bins parts;
    memset(&parts, 0, sizeof parts);
    for (uint64_t first = 0; first < N; first += 12345)
        stw_host_norm_add(threads, values + first, STW_ELEMENT_F32,
                          N - first < 12345 ? N - first : 12345, &parts);
    CU_ASSERT_TRUE(same_bins(&one, &parts));
    stw_threads_free(threads);
    free(values);
    free(shuffled);
}

/* Counters of many ranks, added as plain 64-bit numbers, mean the sum of their integers. */
static void ranks_add_up(void) {
    enum { RANKS = 64, N = 1000 };
    static float values[RANKS * N];
    fill(values, RANKS * N, 5, 1);
    stw_norm_bins whole = bins_of(values, RANKS * N, NULL);
    uint64_t sum[STW_NORM_COUNTERS] = {0};
    for (int r = 0; r < RANKS; r++) {
        uint64_t mine[STW_NORM_COUNTERS];
        stw_norm_bins bins = bins_of(values + r * N, N, NULL);
        stw_norm_normalise(&bins);
        stw_norm_to_counters(&bins, mine);
        for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) sum[i] += mine[i];
    }
    stw_norm_bins total;
    stw_norm_from_counters(sum, &total);
    CU_ASSERT_EQUAL(stw_norm_sum(&total), stw_norm_sum(&whole));
    stw_norm_normalise(&total);
    CU_ASSERT_TRUE(same_bins(&total, &whole));
}

/* Bins as full as they can be: limbs of 2^64 - 1 everywhere carry into the right value. */
static void full_bins_carry(void) {
    stw_norm_bins bins;
    memset(&bins, 0, sizeof bins);
    long double expected = 0.0L;
    for (int b = 0; b < 3; b++) {
        bins.low[b] = bins.high[b] = UINT64_MAX;
        expected += ldexpl((long double)UINT64_MAX, 16 * b);
        expected += ldexpl((long double)UINT64_MAX, 16 * b + 32);
    }
    double before = stw_norm_sum(&bins);
    CU_ASSERT_DOUBLE_EQUAL(before / (double)ldexpl(expected, -298), 1.0, 1e-15);
    stw_norm_bins carried = bins;
    stw_norm_normalise(&carried);
    CU_ASSERT_EQUAL(stw_norm_sum(&carried), before);
    for (int b = 0; b + 1 < STW_NORM_BINS; b++) CU_ASSERT_TRUE(carried.low[b] < 65536);
    stw_norm_merge(&carried, &bins);
    CU_ASSERT_EQUAL(stw_norm_sum(&carried), 2.0 * before);
    /* Every counter but the last bin's high one, which takes what is carried out of the others.
     * A full bin is 2^96 + 2^64 - 2^32 - 1 of its units. */
    memset(&bins, 0xFF, sizeof bins);
    bins.high[STW_NORM_BINS - 1] = 0;
    bins.not_finite = bins.nans = 0;
    expected = ldexpl(1.0L, 16 * (STW_NORM_BINS - 1) + 64 - 298);
    for (int b = STW_NORM_BINS - 2; b >= 0; b--)
        expected += ldexpl(1.0L, 16 * b + 96 - 298) + ldexpl(1.0L, 16 * b + 64 - 298);
    CU_ASSERT_DOUBLE_EQUAL(stw_norm_sum(&bins) / (double)expected, 1.0, 1e-9);
    carried = bins;
    stw_norm_normalise(&carried);
    CU_ASSERT_EQUAL(stw_norm_sum(&carried), stw_norm_sum(&bins));
}

/* There and back; the order of the counters is that of the struct. */
static void counters_are_the_bins(void) {
    stw_norm_bins bins, back;
    uint64_t counters[STW_NORM_COUNTERS];
    CU_ASSERT_EQUAL_FATAL(sizeof counters, sizeof bins);
    for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) counters[i] = stw_mix64(i);
    stw_norm_from_counters(counters, &bins);
    CU_ASSERT_EQUAL(memcmp(&bins, counters, sizeof bins), 0);
    CU_ASSERT_EQUAL(bins.not_finite, stw_mix64(STW_NORM_COUNTERS - 2));
    CU_ASSERT_EQUAL(bins.nans, stw_mix64(STW_NORM_COUNTERS - 1));
    memset(counters, 0, sizeof counters);
    stw_norm_to_counters(&bins, counters);
    stw_norm_from_counters(counters, &back);
    CU_ASSERT_TRUE(same_bins(&bins, &back));
    CU_ASSERT_EQUAL(counters[STW_NORM_BINS], bins.high[0]);
}

static void special_values(void) {
    stw_norm_bins bins = bins_of(NULL, 0, NULL);
    CU_ASSERT_EQUAL(stw_norm_sum(&bins), 0.0);
    float zeros[] = {0.0f, -0.0f};
    bins = bins_of(zeros, 2, NULL);
    CU_ASSERT_EQUAL(stw_norm_value(&bins), 0.0);
    float least[] = {ldexpf(1.0f, -149)};
    bins = bins_of(least, 1, NULL);
    CU_ASSERT_EQUAL(stw_norm_value(&bins), ldexp(1.0, -149));
    float three_four[] = {3.0f, -4.0f};
    bins = bins_of(three_four, 2, NULL);
    CU_ASSERT_EQUAL(stw_norm_value(&bins), 5.0);
}

/* As torch's: one NaN makes the norm NaN, infinities alone make it infinite. */
static void what_is_not_finite(void) {
    float bad[] = {1.0f, INFINITY, -INFINITY, NAN, -NAN};
    stw_norm_bins bins = bins_of(bad, 3, NULL);
    CU_ASSERT_EQUAL(bins.not_finite, 2);
    CU_ASSERT_EQUAL(bins.nans, 0);
    CU_ASSERT_TRUE(isinf(stw_norm_value(&bins)));
    bins = bins_of(bad, 5, NULL);
    CU_ASSERT_EQUAL(bins.not_finite, 4);
    CU_ASSERT_EQUAL(bins.nans, 2);
    CU_ASSERT_TRUE(isnan(stw_norm_value(&bins)));
    /* on any of three ranks, and whatever the others have */
    for (unsigned at = 0; at < 3; at++) {
        uint64_t sum[STW_NORM_COUNTERS] = {0};
        for (unsigned r = 0; r < 3; r++) {
            uint64_t mine[STW_NORM_COUNTERS];
            bins = bins_of(r == at ? bad + 3 : bad, 2, NULL);
            stw_norm_to_counters(&bins, mine);
            for (unsigned i = 0; i < STW_NORM_COUNTERS; i++) sum[i] += mine[i];
        }
        stw_norm_from_counters(sum, &bins);
        CU_ASSERT_EQUAL(bins.not_finite, 4);
        CU_ASSERT_TRUE(isnan(stw_norm_value(&bins)));
    }
}

static void clipping(void) {
    CU_ASSERT_EQUAL(stw_norm_clip_factor(0.5, 1.0), 1.0f);
    CU_ASSERT_EQUAL(stw_norm_clip_factor(0.0, 1.0), 1.0f);
    CU_ASSERT_EQUAL(stw_norm_clip_factor(4.0, 1.0), (float)(1.0 / (4.0 + 1e-6)));
    CU_ASSERT_EQUAL(stw_norm_clip_factor(1.0, 1.0), (float)(1.0 / (1.0 + 1e-6)));
    CU_ASSERT_EQUAL(stw_norm_clip_factor((double)INFINITY, 1.0), 0.0f);
    CU_ASSERT_EQUAL(stw_bits_from_float(stw_norm_clip_factor((double)NAN, 1.0)), STW_NAN_BITS);
    CU_ASSERT_EQUAL(stw_bits_from_float(stw_norm_clip_factor(-(double)NAN, 1.0)), STW_NAN_BITS);
    CU_ASSERT_EQUAL(stw_norm_clip_factor(1e300, 1e255), (float)(1e255 / 1e300)); /* subnormal */
    CU_ASSERT_EQUAL(stw_norm_clip_factor(0.0, 0.0), 0.0f);
}

STW_TEST_MAIN("backend norm", {"sums are exact", sums_are_exact},
              {"narrow gradients are widened", narrow_gradients_are_widened},
              {"powers of two are exact", powers_of_two_are_exact},
              {"rounds to nearest even", rounding_is_to_nearest_even},
              {"order and cut do not matter", order_and_cut_do_not_matter},
              {"ranks add up", ranks_add_up}, {"full bins carry", full_bins_carry},
              {"counters are the bins", counters_are_the_bins}, {"special values", special_values},
              {"what is not finite", what_is_not_finite}, {"clip factor", clipping})
