/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on bytes and counts with overflow checks. Pure functions; any thread may call. */
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

/** ceil(a / b); b > 0. */
static inline uint64_t stw_div_up_u64(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
/** a rounded up to a multiple of `align` (> 0). The caller ensures that it does not overflow. */
static inline uint64_t stw_round_up_u64(uint64_t a, uint64_t align) {
    return stw_div_up_u64(a, align) * align;
}
static inline uint64_t stw_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t stw_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif
