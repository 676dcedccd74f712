/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of one element, written once for C and CUDA so that CPU and GPU give the same
 * bits: AdamW, the exact sum of squares, seeded values, digests. Every multiply-add that must be
 * fused is spelled fmaf and every file that includes this is compiled with contraction off
 * (-ffp-contract=off, nvcc -fmad=false) and without fast-math; division and sqrt are IEEE.
 *
 * AdamW: operation order of torch 2.11's fused CUDA kernel
 * (aten/src/ATen/native/cuda/fused_adam_utils.cuh; all arithmetic in float, compiler contraction of
 * the decay line written out). The bias corrections are computed once per step on the host, in
 * double, rounded to float. */
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

/** Scalars of one step; all elements of a step see the same. */
typedef struct stw_adamw {
    float beta1, beta2, eps;
    float lr_wd;      /* lr * weight_decay, product in float */
    float step_size;  /* lr / bias_correction1, in float */
    float bc2_sqrt;   /* sqrtf(1 - beta2^step) */
    float grad_scale; /* clip factor; 1 without clipping (then not applied) */
    int clip;         /* multiply gradients by grad_scale */
} stw_adamw;

/** @param step 1 for the first step */
static inline stw_adamw stw_adamw_make(double lr, double beta1, double beta2, double eps,
                                       double weight_decay, uint64_t step, int clip,
                                       float grad_scale) {
    stw_adamw a;
    float lr_f = (float)lr, wd_f = (float)weight_decay;
    a.beta1 = (float)beta1;
    a.beta2 = (float)beta2;
    a.eps = (float)eps;
    a.lr_wd = lr_f * wd_f;
    float bc1 = 1.0f - (float)pow((double)a.beta1, (double)step);
    float bc2 = 1.0f - (float)pow((double)a.beta2, (double)step);
    a.step_size = lr_f / bc1;
    a.bc2_sqrt = sqrtf(bc2);
    a.clip = clip;
    a.grad_scale = grad_scale;
    return a;
}

STW_HD void stw_adamw_element(const stw_adamw *a, float *p, float g, float *m, float *v) {
    if (a->clip) g = g * a->grad_scale;
    float param = fmaf(-a->lr_wd, *p, *p);
    float exp_avg = fmaf(a->beta1, *m, fmaf(-a->beta1, g, g));
    float g2 = g * g;
    float exp_avg_sq = fmaf(a->beta2, *v, fmaf(-a->beta2, g2, g2));
    float denom = sqrtf(exp_avg_sq) / a->bc2_sqrt + a->eps;
    *p = param - (a->step_size * exp_avg) / denom;
    *m = exp_avg;
    *v = exp_avg_sq;
}

/* ---- seeded values: any rank can make any element ---- */

/** A 64-bit mix (the finaliser of SplitMix64, Steele et al. 2014). */
STW_HD uint64_t stw_mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
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
/** A weight: uniform in +-[2^-7, 2^-5), built from bits, exactly representable in bf16 (low 16 bits
 * zero), so that stored and seeded weights of any dtype agree. */
STW_HD float stw_seeded_weight(uint64_t seed, uint64_t element) {
    uint64_t h = stw_mix64(seed ^ stw_mix64(element ^ 0x7765696768740000ull));
    uint32_t sign = (uint32_t)(h >> 63) << 31;
    uint32_t exponent = 120u + (uint32_t)((h >> 62) & 1u); /* 2^-7 or 2^-6 */
    uint32_t mantissa = ((uint32_t)(h >> 32) & 0x7Fu) << 16;
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}
/** A gradient: sign and mantissa random, exponent uniform over 2^-30 .. 2^-1. */
STW_HD float stw_seeded_grad(uint64_t seed, uint64_t step, uint64_t element) {
    uint64_t h = stw_mix64(seed ^ stw_mix64(element ^ (step << 48) ^ 0x6772616400000000ull));
    uint32_t sign = (uint32_t)(h >> 63) << 31;
    uint32_t exponent = 97u + (uint32_t)(((h >> 32) & 0xFFFFu) * 30u >> 16);
    uint32_t mantissa = (uint32_t)h & 0x7FFFFFu;
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}
/** One element's share of a digest: digests are sums modulo 2^64, hence independent of order, of
 * placement and of the number of ranks. */
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
    uint64_t not_finite; /* how many infinities and NaNs */
} stw_norm_bins;

/** Scaled square of g: *bin and *value; returns 0 for zero, 1 for a number, 2 where not finite. */
STW_HD int stw_norm_split(float g, unsigned *bin, uint64_t *value) {
    uint32_t bits = stw_bits_from_float(g) & 0x7FFFFFFFu;
    if (bits == 0) return 0;
    uint32_t exponent = bits >> 23;
    if (exponent == 255u) return 2;
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
