/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on bytes and counts with overflow checks. Two kinds: calls that fail and name both
 * factors, for what files say; and sums and products that saturate, for formulas. A size that does
 * not fit in 64 bits is STW_TOO_LARGE there, and so is every sum and product with it (but 0 times
 * it is 0); a job whose sizes come near it is refused before it is planned (plan/job/sizes.h).
 * Pure functions; any thread may call. */
#ifndef STW_CORE_CHECKED_H
#define STW_CORE_CHECKED_H

#include <stdint.h>

#include "core/status.h"

/** *out = a * b. BAD_INPUT with both factors and `what` if the product exceeds 64 bits. */
STW_MUST_USE stw_status stw_mul_u64(uint64_t a, uint64_t b, uint64_t *out, const char *what,
                                    stw_error *err);
/** *out = a + b. BAD_INPUT with both terms and `what` if the sum exceeds 64 bits. */
STW_MUST_USE stw_status stw_add_u64(uint64_t a, uint64_t b, uint64_t *out, const char *what,
                                    stw_error *err);

#define STW_TOO_LARGE UINT64_MAX

/** a * b, or STW_TOO_LARGE. */
static inline uint64_t stw_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? STW_TOO_LARGE : product;
}
/** a + b, or STW_TOO_LARGE. */
static inline uint64_t stw_plus(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? STW_TOO_LARGE : sum;
}
/** The sum of `n` terms, or STW_TOO_LARGE. */
static inline uint64_t stw_sum(const uint64_t *terms, uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) sum = stw_plus(sum, terms[i]);
    return sum;
}
/** stw_sum of the arguments. */
#define STW_SUM(...)                                                                               \
    stw_sum((const uint64_t[]){__VA_ARGS__},                                                       \
            sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
/** floor(a * factor), or STW_TOO_LARGE; 0 for a factor that is negative or no number. */
static inline uint64_t stw_scaled(uint64_t a, double factor) {
    double product = (double)a * factor;
    if (!(product > 0)) return 0;
    return product < 18446744073709551616.0 ? (uint64_t)product : STW_TOO_LARGE;
}

/** ceil(a * b / c) of the exact product, or STW_TOO_LARGE; c > 0. */
static inline uint64_t stw_ratio_up(uint64_t a, uint64_t b, uint64_t c) {
    __extension__ typedef unsigned __int128 wide;
    wide ratio = ((wide)a * b + c - 1) / c; /* below 2^128: (2^64 - 1)^2 + 2^64 - 2 */
    return ratio < STW_TOO_LARGE ? (uint64_t)ratio : STW_TOO_LARGE;
}

/** ceil(a / b); b > 0. */
static inline uint64_t stw_div_up_u64(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
/** a rounded up to a multiple of `align` (> 0), or STW_TOO_LARGE. */
static inline uint64_t stw_round_up_u64(uint64_t a, uint64_t align) {
    return stw_times(stw_div_up_u64(a, align), align);
}
static inline uint64_t stw_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t stw_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif
