/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of one element, written once for C and CUDA so that CPU and GPU give the same
 * bits: AdamW, the exact sum of squares, seeded values, digests. Every multiply-add that must be
 * fused is spelled fmaf and every file that includes this is compiled with contraction off
 * (-ffp-contract=off, nvcc -fmad=false) and without fast-math; division and sqrt are IEEE.
 *
 * AdamW: operation order of torch 2.11's fused CUDA kernel
 * (aten/src/ATen/native/cuda/fused_adam_utils.cuh; all arithmetic in float, compiler contraction of
 * the decay line written out). The bias corrections are computed once per step on the host, in the
 * bits that the device's powf has. torch's fused kernel for CPU tensors
 * (aten/src/ATen/native/cpu/FusedAdamKernel.cpp) computes in another order and has other bits. */
#ifndef STW_BACKEND_ELEMENT_H
#define STW_BACKEND_ELEMENT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define STW_HD __host__ __device__ static inline
#else
#define STW_HD static inline
#endif

/* ---- element types ---- */

/** How the elements of one component are stored; all arithmetic is in fp32. */
typedef enum stw_element {
    STW_ELEMENT_NONE, /* the run has no such component (no master) */
    STW_ELEMENT_F32,
    STW_ELEMENT_BF16,
    STW_N_ELEMENTS
} stw_element;

/** Types of the state of one run. With a master the update reads and writes that, and params get
 * its rounding; without one it reads and writes params. */
typedef struct stw_element_types {
    stw_element params, grads, master /* NONE or F32 */, exp_avg, exp_avg_sq;
} stw_element_types;

STW_HD uint64_t stw_element_bytes(stw_element type) {
    return type == STW_ELEMENT_F32 ? 4u : type == STW_ELEMENT_BF16 ? 2u : 0u;
}
STW_HD float stw_float_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
STW_HD uint32_t stw_bits_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
STW_HD float stw_float_from_bf16(uint16_t bits) {
    return stw_float_from_bits((uint32_t)bits << 16);
}
/** Nearest, ties to even; every NaN becomes 0x7FC0 (as c10::BFloat16 does, torch 2.11). */
STW_HD uint16_t stw_bf16_from_float(float f) {
    uint32_t bits = stw_bits_from_float(f);
    uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)0x7FC0u : (uint16_t)(rounded >> 16);
}

/* Arithmetic on a GPU gives every NaN these bits (CUDA C++ Programming Guide, floating-point
 * standard); a CPU hands on those of an operand, which one is up to the compiler. */
#define STW_NAN_BITS 0x7FFFFFFFu

/** The result of arithmetic with the bits that it has on a GPU: NaNs have one pattern. */
STW_HD float stw_one_nan(float x) {
#ifdef __CUDA_ARCH__
    return x;
#else
    return x != x ? stw_float_from_bits(STW_NAN_BITS) : x;
#endif
}

/* ---- AdamW ---- */

#define STW_MAX_PARAM_GROUPS 8

/** What differs between parameter groups. */
typedef struct stw_adamw_group {
    float lr_wd;     /* lr * weight_decay, product in float */
    float step_size; /* lr / bias_correction1, in float */
} stw_adamw_group;

/** Scalars of one step. The clip factor is not among them: it may be known on the device alone. */
typedef struct stw_adamw {
    float beta1, beta2, eps;
    float bc2_sqrt; /* sqrtf(1 - beta2^step) */
    int clip;       /* multiply gradients by the clip factor; else they are used as they are */
    stw_adamw_group groups[STW_MAX_PARAM_GROUPS];
} stw_adamw;

/** base^exponent in the bits of CUDA 13's powf in device code, which torch's fused kernel calls for
 * its bias corrections: a correctly rounded power differs from it by one unit in the last place now
 * and then (0.999^102, 0.95^6). For 0 <= base < 1, normal, and exponents from 1 to 2^24: log2 of
 * the base and the product in two floats, then a polynomial of 2^x. The device's approximate
 * reciprocal is a correctly rounded one here; both give the same powers for all usual betas, but
 * not for every base (bench/results/constants.md). Host code only. */
static inline float stw_powf(float base, float exponent) {
    if (!(base > 0.0f)) return 0.0f; /* a beta of 0 */
    uint32_t bits = stw_bits_from_float(base);
    uint32_t scale = (bits - 0x3F3504F3u) & 0xFF800000u; /* mantissa into sqrt(1/2) .. sqrt(2) */
    float x = stw_float_from_bits(bits - scale);
    float e = -(float)(0u - scale) * 0x1p-23f; /* base < 1: scale is negative, or 0 */
    float below = x - 1.0f, reciprocal = 1.0f / (x + 1.0f);
    float u = (below + below) * reciprocal, u2 = u * u;
    float u_rest = below - u;
    u_rest = reciprocal * fmaf(-u, below, u_rest + u_rest);
    float q = fmaf(stw_float_from_bits(0x3A2C32E4u), u2, stw_float_from_bits(0x3B52E7DBu));
    q = fmaf(q, u2, stw_float_from_bits(0x3C93BB73u));
    q = fmaf(q, u2, stw_float_from_bits(0x3DF6384Fu)) * u2;
    float log2e = stw_float_from_bits(0x3FB8AA3Bu);
    float high = fmaf(u, log2e, e);
    float low = fmaf(u, log2e, e - high);
    low = fmaf(u_rest, log2e, low);
    low = fmaf(u, stw_float_from_bits(0x32A55E34u), low);
    low = fmaf(q * 3.0f, u_rest, low);
    low = fmaf(q, u, low);
    float log_high = high + low;
    float log_low = low - (log_high - high);
    float product = log_high * exponent;
    float rest = fmaf(log_low, exponent, fmaf(log_high, exponent, -product));
    float whole = rintf(product);
    float f = rest + (product - whole);
    float y = fmaf(stw_float_from_bits(0x391FCB8Eu), f, stw_float_from_bits(0x3AAF85EDu));
    y = fmaf(y, f, stw_float_from_bits(0x3C1D9856u));
    y = fmaf(y, f, stw_float_from_bits(0x3D6357BBu));
    y = fmaf(y, f, stw_float_from_bits(0x3E75FDECu));
    y = fmaf(y, f, stw_float_from_bits(0x3F317218u));
    y = fmaf(y, f, 1.0f);
    if (product < -152.0f) return 0.0f;
    /* 2^whole in two factors, so that it may pass below the normal numbers */
    y *= 0x1p-123f; /* as the bits of 0x02000000 */
    return y * stw_float_from_bits(((uint32_t)(int32_t)whole << 23) - 0x83000000u);
}

/** Scalars of a step with every group at the same learning rate and weight decay.
 * @param step 1 for the first step */
static inline stw_adamw stw_adamw_make(double lr, double beta1, double beta2, double eps,
                                       double weight_decay, uint64_t step, int clip) {
    stw_adamw a;
    float lr_f = (float)lr, wd_f = (float)weight_decay;
    a.beta1 = (float)beta1;
    a.beta2 = (float)beta2;
    a.eps = (float)eps;
    float bc1 = 1.0f - stw_powf(a.beta1, (float)step);
    float bc2 = 1.0f - stw_powf(a.beta2, (float)step);
    a.bc2_sqrt = sqrtf(bc2);
    a.clip = clip;
    for (int i = 0; i < STW_MAX_PARAM_GROUPS; i++) {
        a.groups[i].lr_wd = lr_f * wd_f;
        a.groups[i].step_size = lr_f / bc1;
    }
    return a;
}
/** Give one group rates of its own. @param step as for stw_adamw_make */
static inline void stw_adamw_set_group(stw_adamw *a, uint32_t group, double lr, double weight_decay,
                                       uint64_t step) {
    float lr_f = (float)lr, wd_f = (float)weight_decay;
    float bc1 = 1.0f - stw_powf(a->beta1, (float)step);
    a->groups[group].lr_wd = lr_f * wd_f;
    a->groups[group].step_size = lr_f / bc1;
}

/** One element: w is the master where there is one, else the parameter, widened to fp32 like the
 * others; who calls rounds the results to the types of their components. A NaN in g or factor
 * reaches all three results, one in m or v that one and w; its bits are STW_NAN_BITS.
 * @param factor the clip factor; used with a->clip only */
STW_HD void stw_adamw_element(const stw_adamw *a, stw_adamw_group group, float factor, float *w,
                              float g, float *m, float *v) {
    if (a->clip) g = g * factor;
    float param = fmaf(-group.lr_wd, *w, *w);
    float exp_avg = fmaf(a->beta1, *m, fmaf(-a->beta1, g, g));
    float g2 = g * g;
    float exp_avg_sq = fmaf(a->beta2, *v, fmaf(-a->beta2, g2, g2));
    float denom = sqrtf(exp_avg_sq) / a->bc2_sqrt + a->eps;
    *w = stw_one_nan(param - (group.step_size * exp_avg) / denom);
    *m = stw_one_nan(exp_avg);
    *v = stw_one_nan(exp_avg_sq);
}

/** A run of elements that share tensor and parameter group, with the places of its parameters and
 * gradients: the table by which one update walks over tensors that lie apart. Ascending in `first`,
 * without gaps over the rank's flat space. */
typedef struct stw_span {
    uint64_t first, n;      /* elements of the flat space */
    uint64_t params, grads; /* bytes from the base of their tier's arena (modulo 2^64: anywhere) */
    uint32_t group;         /* < STW_MAX_PARAM_GROUPS */
    uint32_t reserved;
} stw_span;

/* ---- seeded values: any rank can make any element ---- */

/** A 64-bit mix (the finaliser of SplitMix64, Steele et al. 2014). */
STW_HD uint64_t stw_mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
/** A weight: uniform in +-[2^-7, 2^-5), built from bits, exactly representable in bf16 (low 16 bits
 * zero), so that stored and seeded weights of any dtype agree. */
STW_HD float stw_seeded_weight(uint64_t seed, uint64_t element) {
    uint64_t h = stw_mix64(seed ^ stw_mix64(element ^ 0x7765696768740000ull));
    uint32_t sign = (uint32_t)(h >> 63) << 31;
    uint32_t exponent = 120u + (uint32_t)((h >> 62) & 1u); /* 2^-7 or 2^-6 */
    uint32_t mantissa = ((uint32_t)(h >> 32) & 0x7Fu) << 16;
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}
/** A gradient: sign and mantissa random, exponent uniform over 2^-40 .. 2^-1, which is twelve
 * orders of magnitude. */
STW_HD float stw_seeded_grad(uint64_t seed, uint64_t step, uint64_t element) {
    uint64_t h = stw_mix64(seed ^ stw_mix64(element ^ (step << 48) ^ 0x6772616400000000ull));
    uint32_t sign = (uint32_t)(h >> 63) << 31;
    uint32_t exponent = 87u + (uint32_t)(((h >> 32) & 0xFFFFu) * 40u >> 16);
    uint32_t mantissa = (uint32_t)h & 0x7FFFFFu;
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}
/** One element's share of a digest: digests are sums modulo 2^64, hence independent of order, of
 * placement and of the number of ranks. @param bits as stored, 32 of fp32 or 16 of bf16 */
STW_HD uint64_t stw_digest_element(uint64_t element, uint32_t bits) {
    return stw_mix64(stw_mix64(element) ^ bits);
}

/* ---- exact sum of squares ----
 * The square of a float with 24-bit mantissa m and exponent e is m^2 * 2^(2e), m^2 < 2^48. Bin b
 * holds the sum of the squares whose scaled exponent 2e + 298 lies in [16 b, 16 b + 16), as m^2 <<
 * ((2e + 298) mod 16), below 2^63, in 128 bits (two limbs). Sums of integers do not depend on
 * order, so the norm is the same for every placement and world size. */
#define STW_NORM_BINS 36 /* (2 * 127 - 2 * 23 + 298 + 16) / 16, rounded up */

typedef struct stw_norm_bins {
    uint64_t low[STW_NORM_BINS]; /* 32-bit limbs in 64-bit counters: room for 2^32 additions */
    uint64_t high[STW_NORM_BINS];
    uint64_t not_finite; /* how many infinities and NaNs, */
    uint64_t nans;       /* how many of them NaNs */
} stw_norm_bins;

/** Scaled square of g: *bin and *value; returns 0 for zero, 1 for a number, 2 for an infinity, 3
 * for a NaN. */
STW_HD int stw_norm_split(float g, unsigned *bin, uint64_t *value) {
    uint32_t bits = stw_bits_from_float(g) & 0x7FFFFFFFu;
    if (bits == 0) return 0;
    uint32_t exponent = bits >> 23;
    if (exponent == 255u) return bits > 0x7F800000u ? 3 : 2;
    uint64_t mantissa = bits & 0x7FFFFFu;
    if (exponent != 0)
        mantissa |= 0x800000u;
    else
        exponent = 1;
    /* value = mantissa * 2^(exponent - 150); scaled exponent 2 * (exponent - 150) + 298 */
    uint32_t scaled = 2u * exponent - 2u;
    *bin = scaled >> 4;
    *value = (mantissa * mantissa) << (scaled & 15u);
    return 1;
}

#endif
