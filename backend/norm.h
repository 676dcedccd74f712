/* SPDX-License-Identifier: Apache-2.0 */
/* From the bins of squared gradients (element.h) to the global norm and the clip factor. The bins
 * are one exact integer in units of 2^-298 written with too many digits: bin b counts 2^(16 b).
 * Sums of them are exact, so the norm is the same bits whatever the order, the placement and the
 * number of ranks. Pure functions, any thread; C and CUDA compile this one source, in integers up
 * to the last rounding, so that both find the same bits. */
#ifndef STW_BACKEND_NORM_H
#define STW_BACKEND_NORM_H

#include "backend/element.h"

#define STW_NORM_UNIT_EXPONENT (-298)
/** 64-bit counters in an stw_norm_bins, as stw_comm_sum_u64 sums them. */
#define STW_NORM_COUNTERS (2u * STW_NORM_BINS + 2u)

#define STW_NORM_DIGIT_BITS 16
/* Words of 64 bits: 35 x 16 bits below the last bin and 128 in it, rounded up. */
#define STW_NORM_WORDS 12

__extension__ typedef unsigned __int128 stw_norm_u128;

/** What bin b holds. */
STW_HD stw_norm_u128 stw_norm_bin(const stw_norm_bins *bins, unsigned b) {
    return (stw_norm_u128)bins->low[b] + ((stw_norm_u128)bins->high[b] << 32);
}

/** Carry: the same integer with 16 bits per bin (the last bin keeps the rest) and empty high
 * limbs, so that 2^24 of them can be added counter by counter. */
STW_HD void stw_norm_normalise(stw_norm_bins *bins) {
    stw_norm_u128 carry = 0;
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        stw_norm_u128 value = carry + stw_norm_bin(bins, b);
        if (b + 1 < STW_NORM_BINS) {
            bins->low[b] = (uint64_t)(value & 0xFFFFu);
            bins->high[b] = 0;
        } else {
            bins->low[b] = (uint64_t)(value & 0xFFFFFFFFu);
            bins->high[b] = (uint64_t)(value >> 32);
        }
        carry = value >> STW_NORM_DIGIT_BITS;
    }
}

/** to += from, then carried; neither needs to be normalised. */
STW_HD void stw_norm_merge(stw_norm_bins *to, const stw_norm_bins *from) {
    stw_norm_bins carried = *from;
    stw_norm_normalise(&carried);
    stw_norm_normalise(to);
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        to->low[b] += carried.low[b];
        to->high[b] += carried.high[b];
    }
    to->not_finite += carried.not_finite;
    to->nans += carried.nans;
    stw_norm_normalise(to);
}

/** The bins as an array of counters, for a sum over ranks, and back. */
STW_HD void stw_norm_to_counters(const stw_norm_bins *bins, uint64_t *counters) {
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        counters[b] = bins->low[b];
        counters[STW_NORM_BINS + b] = bins->high[b];
    }
    counters[2 * STW_NORM_BINS] = bins->not_finite;
    counters[2 * STW_NORM_BINS + 1] = bins->nans;
}
STW_HD void stw_norm_from_counters(const uint64_t *counters, stw_norm_bins *bins) {
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        bins->low[b] = counters[b];
        bins->high[b] = counters[STW_NORM_BINS + b];
    }
    bins->not_finite = counters[2 * STW_NORM_BINS];
    bins->nans = counters[2 * STW_NORM_BINS + 1];
}

/** All digits carried into 64-bit words, least significant first. */
STW_HD void stw_norm_to_words(const stw_norm_bins *bins, uint64_t words[STW_NORM_WORDS]) {
    stw_norm_u128 carry = 0;
    for (unsigned i = 0; i < STW_NORM_WORDS; i++) words[i] = 0;
    for (unsigned b = 0; b < STW_NORM_BINS + 8; b++) {
        stw_norm_u128 value = carry;
        if (b < STW_NORM_BINS) value += stw_norm_bin(bins, b);
        words[b / 4] |= (uint64_t)(value & 0xFFFFu) << (STW_NORM_DIGIT_BITS * (b % 4));
        carry = value >> STW_NORM_DIGIT_BITS;
    }
}

STW_HD double stw_norm_double_from_bits(uint64_t bits) {
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/** The sum of squares, rounded once to the nearest double; NaN where a gradient was NaN, else
 * infinity where one was infinite. */
STW_HD double stw_norm_sum(const stw_norm_bins *bins) {
    if (bins->nans != 0) return stw_norm_double_from_bits(0x7FF8000000000000ull);
    if (bins->not_finite != 0) return stw_norm_double_from_bits(0x7FF0000000000000ull);
    uint64_t words[STW_NORM_WORDS];
    stw_norm_to_words(bins, words);
    int top = STW_NORM_WORDS - 1;
    while (top >= 0 && words[top] == 0) top--;
    if (top < 0) return 0.0;
    /* The 64 bits from the leading one, the last of them "sticky": set where anything below is.
     * A double keeps 53, so the one rounding that the conversion makes is of the exact value. */
    int zeros = 0;
    while ((words[top] << zeros) >> 63 == 0) zeros++;
    uint64_t lead = words[top] << zeros, rest = 0;
    if (top > 0) {
        if (zeros > 0) lead |= words[top - 1] >> (64 - zeros);
        rest = words[top - 1] << zeros;
    }
    for (int i = top - 2; i >= 0; i--) rest |= words[i];
    if (rest != 0) lead |= 1u;
    /* Times a power of two between 2^-361 and 2^406: exact, and far from a double's limits. */
    int exponent = 64 * top - zeros + STW_NORM_UNIT_EXPONENT;
    return (double)lead * stw_norm_double_from_bits((uint64_t)(exponent + 1023) << 52);
}

/** sqrt of it: the global 2-norm. */
STW_HD double stw_norm_value(const stw_norm_bins *bins) {
    double sum = stw_norm_sum(bins);
    return bins->nans != 0 ? sum : sqrt(sum); /* the bits of a NaN stay */
}

/** What gradients are multiplied with: min(1, clip_norm / (norm + 1e-6)) in double, rounded to
 * float. As torch.nn.utils.clip_grad_norm_ with error_if_nonfinite=False (torch 2.11,
 * torch/nn/utils/clip_grad.py: torch.clamp(..., max=1.0)): NaN for a norm that is NaN, so that all
 * that is updated becomes NaN; 0 for an infinite one, which makes 0 of finite gradients and NaN of
 * infinite ones. */
STW_HD float stw_norm_clip_factor(double norm, double clip_norm) {
    if (norm != norm) return stw_float_from_bits(STW_NAN_BITS);
    double factor = clip_norm / (norm + 1e-6);
    return factor < 1.0 ? (float)factor : 1.0f;
}

#endif
