/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/norm.h"

#include <stdbool.h>

__extension__ typedef unsigned __int128 u128;

#define DIGIT_BITS 16
#define WORDS 12 /* 64-bit words: 35 x 16 bits below the last bin, 128 in it, rounded up */

/* All digits of the integer carried into 64-bit words, least significant first. */
static void to_words(const stw_norm_bins *bins, uint64_t words[WORDS]) {
    u128 carry = 0;
    for (unsigned i = 0; i < WORDS; i++) words[i] = 0;
    for (unsigned b = 0; b < STW_NORM_BINS + 8; b++) {
        u128 value = carry;
        if (b < STW_NORM_BINS) value += (u128)bins->low[b] + ((u128)bins->high[b] << 32);
        words[b / 4] |= (uint64_t)(value & 0xFFFFu) << (DIGIT_BITS * (b % 4));
        carry = value >> DIGIT_BITS;
    }
}

void stw_norm_normalise(stw_norm_bins *bins) {
    u128 carry = 0;
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        u128 value = carry + bins->low[b] + ((u128)bins->high[b] << 32);
        if (b + 1 < STW_NORM_BINS) {
            bins->low[b] = (uint64_t)(value & 0xFFFFu);
            bins->high[b] = 0;
        } else {
            bins->low[b] = (uint64_t)(value & 0xFFFFFFFFu);
            bins->high[b] = (uint64_t)(value >> 32);
        }
        carry = value >> DIGIT_BITS;
    }
}

void stw_norm_merge(stw_norm_bins *to, const stw_norm_bins *from) {
    stw_norm_bins carried = *from;
    stw_norm_normalise(&carried);
    stw_norm_normalise(to);
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        to->low[b] += carried.low[b];
        to->high[b] += carried.high[b];
    }
    to->not_finite += carried.not_finite;
    stw_norm_normalise(to);
}

void stw_norm_to_counters(const stw_norm_bins *bins, uint64_t *counters) {
    memcpy(counters, bins->low, sizeof bins->low);
    memcpy(counters + STW_NORM_BINS, bins->high, sizeof bins->high);
    counters[2 * STW_NORM_BINS] = bins->not_finite;
}

void stw_norm_from_counters(const uint64_t *counters, stw_norm_bins *bins) {
    memcpy(bins->low, counters, sizeof bins->low);
    memcpy(bins->high, counters + STW_NORM_BINS, sizeof bins->high);
    bins->not_finite = counters[2 * STW_NORM_BINS];
}

double stw_norm_sum(const stw_norm_bins *bins) {
    if (bins->not_finite != 0) return (double)INFINITY;
    uint64_t words[WORDS];
    to_words(bins, words);
    int top = WORDS - 1;
    while (top >= 0 && words[top] == 0) top--;
    if (top < 0) return 0.0;
    /* The 64 bits from the leading one, the last of them "sticky": set where anything below is.
     * A double keeps 53, so the one rounding that the conversion makes is of the exact value. */
    int zeros = __builtin_clzll(words[top]);
    uint64_t lead = words[top] << zeros;
    bool rest = false;
    if (top > 0) {
        if (zeros > 0) lead |= words[top - 1] >> (64 - zeros);
        rest = zeros > 0 ? (words[top - 1] << zeros) != 0 : words[top - 1] != 0;
    }
    for (int i = top - 2; i >= 0; i--) rest = rest || words[i] != 0;
    if (rest) lead |= 1u;
    return ldexp((double)lead, 64 * top - zeros + STW_NORM_UNIT_EXPONENT);
}

double stw_norm_value(const stw_norm_bins *bins) { return sqrt(stw_norm_sum(bins)); }

float stw_norm_clip_factor(double norm, double clip_norm) {
    double factor = clip_norm / (norm + 1e-6);
    return factor < 1.0 ? (float)factor : 1.0f;
}
