/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/reference.h"

#include <math.h>
#include <string.h>

/* ---- fp32, one rounding for each operation ---- */

static float add(float a, float b) { return (float)((double)a + (double)b); }
static float subtract(float a, float b) { return (float)((double)a - (double)b); }
static float multiply(float a, float b) { return (float)((double)a * (double)b); }
static float divide(float a, float b) { return (float)((double)a / (double)b); }
static float root(float a) { return (float)sqrt((double)a); }

/* a * b + c: the product is exact in double; where the sum is not, its last bit is made odd, on the
 * side of zero on which the exact sum lies, so that the rounding to fp32 sees that it was not. */
static float fused(float a, float b, float c) {
    const double product = (double)a * (double)b, addend = (double)c;
    const double sum = product + addend, rest = sum - product;
    const double error = (product - (sum - rest)) + (addend - rest); /* Knuth's two-sum */
    uint64_t bits;
    if (!isfinite(sum) || error == 0.0) return (float)sum;
    memcpy(&bits, &sum, sizeof bits);
    if ((bits & 1u) == 0) bits += (error > 0.0) == (sum > 0.0) ? 1u : UINT64_MAX;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

/* ---- AdamW ---- */

/* log2 of beta as a sum of two: its exponent, and the series of 2 atanh((x - 1) / (x + 1)) / ln 2
 * of its mantissa x between sqrt(1/2) and sqrt(2). */
static void log2_of(float beta, float *high, float *low) {
    static const float per_ln[2] = {0x1.715476p+0f, 0x1.4abc68p-26f}; /* 1 / ln 2 */
    static const float series[4] = {0x1.5865c8p-11f, 0x1.a5cfb6p-9f, 0x1.2776e6p-6f,
                                    0x1.ec709ep-4f};
    int exponent = 0;
    float x = frexpf(beta, &exponent);
    if (x < 0x1.6a09e6p-1f) {
        x *= 2.0f;
        exponent--;
    }
    const float over = subtract(x, 1.0f), inverse = divide(1.0f, add(x, 1.0f));
    const float u = multiply(2.0f * over, inverse), square = multiply(u, u);
    const float left = multiply(inverse, fused(-u, over, 2.0f * subtract(over, u))); /* of u */
    float tail = series[0];
    for (int i = 1; i < 4; i++) tail = fused(tail, square, series[i]);
    tail = multiply(tail, square);
    const float first = fused(u, per_ln[0], (float)exponent);
    float rest = fused(u, per_ln[0], subtract((float)exponent, first));
    rest = fused(left, per_ln[0], rest);
    rest = fused(u, per_ln[1], rest);
    rest = fused(multiply(tail, 3.0f), left, rest);
    rest = fused(tail, u, rest);
    *high = add(first, rest);
    *low = subtract(rest, subtract(*high, first));
}

/* 2^f for |f| <= 1/2. */
static float exp2_of(float f) {
    static const float terms[7] = {0x1.3f971cp-13f,
                                   0x1.5f0bdap-10f,
                                   0x1.3b30acp-7f,
                                   0x1.c6af76p-5f,
                                   0x1.ebfbd8p-3f,
                                   0x1.62e430p-1f,
                                   1.0f};
    float y = terms[0];
    for (int i = 1; i < 7; i++) y = fused(y, f, terms[i]);
    return y;
}

float stw_reference_power(float beta, uint64_t step) {
    float high, low;
    if (!(beta > 0.0f)) return 0.0f;
    log2_of(beta, &high, &low);
    const float n = (float)step, product = multiply(high, n);
    const float rest = fused(low, n, fused(high, n, -product));
    if (product < -152.0f) return 0.0f;
    const double whole = nearbyint((double)product);
    const float y = exp2_of(add(rest, subtract(product, (float)whole)));
    return (float)ldexp((double)y, (int)whole);
}

stw_reference_step stw_reference_begin(const stw_reference_settings *settings, uint64_t step,
                                       float factor) {
    const float lr = (float)settings->lr;
    stw_reference_step s = {.beta1 = (float)settings->beta1,
                            .beta2 = (float)settings->beta2,
                            .eps = (float)settings->eps,
                            .clip = settings->clip,
                            .factor = factor};
    s.decay = multiply(lr, (float)settings->weight_decay);
    s.step_size = divide(lr, subtract(1.0f, stw_reference_power(s.beta1, step)));
    s.spread = root(subtract(1.0f, stw_reference_power(s.beta2, step)));
    return s;
}

void stw_reference_adamw(const stw_reference_step *s, float grad, stw_reference_state *state) {
    const float g = s->clip ? multiply(grad, s->factor) : grad, square = multiply(g, g);
    const float decayed = fused(-s->decay, state->weight, state->weight);
    /* torch's lerp: beta m + (g - beta g) */
    state->exp_avg = fused(s->beta1, state->exp_avg, fused(-s->beta1, g, g));
    state->exp_avg_sq = fused(s->beta2, state->exp_avg_sq, fused(-s->beta2, square, square));
    const float below = add(divide(root(state->exp_avg_sq), s->spread), s->eps);
    state->weight = subtract(decayed, divide(multiply(s->step_size, state->exp_avg), below));
}

/* ---- types ---- */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t stw_reference_bf16(float value) {
    const uint32_t bits = bits_of(value), upper = bits >> 16, below = bits & 0xFFFFu;
    if (isnan(value)) return 0x7FC0u;
    const bool up = below > 0x8000u || (below == 0x8000u && (upper & 1u) != 0);
    return (uint16_t)(upper + up);
}

/* A float of few bits: sign, exponent with this bias, mantissa.
 * @param ieee the highest exponent is infinity and NaN; else NaN is all ones alone */
static float small_float(uint32_t bits, int exponent_bits, int mantissa_bits, bool ieee) {
    const int top = (1 << exponent_bits) - 1, bias = top >> 1;
    const int exponent = (int)(bits >> mantissa_bits) & top;
    const int mantissa = (int)bits & ((1 << mantissa_bits) - 1);
    const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1u) != 0;
    double value;
    if (exponent == top && ieee)
        value = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == top && mantissa == (1 << mantissa_bits) - 1)
        value = (double)NAN;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return (float)(negative ? -value : value);
}

float stw_reference_from_bf16(uint16_t bits) { return small_float(bits, 8, 7, true); }

float stw_reference_weight(const void *raw, stw_dtype dtype, uint64_t i) {
    const unsigned char *bytes = raw;
    uint16_t half;
    float single;
    double wide;
    switch (dtype) {
    case STW_DTYPE_F64:
        memcpy(&wide, bytes + 8 * i, sizeof wide);
        return (float)wide;
    case STW_DTYPE_F32:
        memcpy(&single, bytes + 4 * i, sizeof single);
        return single;
    case STW_DTYPE_F16:
    case STW_DTYPE_BF16:
        memcpy(&half, bytes + 2 * i, sizeof half);
        return dtype == STW_DTYPE_F16 ? small_float(half, 5, 10, true)
                                      : stw_reference_from_bf16(half);
    case STW_DTYPE_F8_E4M3:
        return small_float(bytes[i], 4, 3, false);
    default: /* F8_E5M2 */
        return small_float(bytes[i], 5, 2, true);
    }
}

/* ---- seeded values and digests ---- */

/* SplitMix64 (Steele, Lea and Flood, 2014): one step of the generator, and the way back. */
static uint64_t split(uint64_t x) {
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The inverse of odd m modulo 2^64: each of Newton's steps doubles the bits that are right. */
static uint64_t inverse_of(uint64_t m) {
    uint64_t inverse = m; /* 3 bits */
    for (int i = 0; i < 5; i++) inverse *= 2 - m * inverse;
    return inverse;
}

static uint64_t joined(uint64_t z) {
    z = z ^ z >> 31 ^ z >> 62;
    z *= inverse_of(0x94D049BB133111EBu);
    z = z ^ z >> 27 ^ z >> 54;
    z *= inverse_of(0xBF58476D1CE4E5B9u);
    z = z ^ z >> 30 ^ z >> 60;
    return z - 0x9E3779B97F4A7C15u;
}

/* +-(1 + fraction) * 2^exponent */
static float number(bool negative, double fraction, int exponent) {
    const double value = ldexp(1.0 + fraction, exponent);
    return (float)(negative ? -value : value);
}

/* 7 bits of mantissa, so that bf16 holds it too; 2^-7 or 2^-6. */
float stw_reference_seeded_weight(uint64_t seed, uint64_t element) {
    const uint64_t key = split(element ^ (uint64_t)0x77656967 << 32 ^ (uint64_t)0x68740000);
    const uint64_t h = split(seed ^ key);
    return number(h >> 63 != 0, ldexp((double)(h >> 32 & 0x7Fu), -7),
                  (h >> 62 & 1u) != 0 ? -6 : -7);
}

/* 23 bits of mantissa; the exponent is one of the 40 from -40 to -1. */
float stw_reference_seeded_grad(uint64_t seed, uint64_t step, uint64_t element) {
    const uint64_t key = split(element ^ step << 48 ^ (uint64_t)0x67726164 << 32);
    const uint64_t h = split(seed ^ key);
    const int exponent = (int)((h >> 32 & 0xFFFFu) * 40u / 65536u) - 40;
    return number(h >> 63 != 0, ldexp((double)(h & 0x7FFFFFu), -23), exponent);
}

uint64_t stw_reference_digest(uint64_t element, uint32_t bits) {
    return split(split(element) ^ bits);
}

uint64_t stw_reference_bits_of(uint64_t element, uint64_t digest) {
    return joined(digest) ^ split(element);
}
