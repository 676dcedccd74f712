/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checked.h"

#include <inttypes.h>

stw_status stw_mul_u64(uint64_t a, uint64_t b, uint64_t *out, const char *what, stw_error *err) {
    if (__builtin_mul_overflow(a, b, out))
        return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                        "%" PRIu64 " times %" PRIu64 " does not fit in 64 bits", a, b);
    return STW_STATUS_OK;
}

stw_status stw_add_u64(uint64_t a, uint64_t b, uint64_t *out, const char *what, stw_error *err) {
    if (__builtin_add_overflow(a, b, out))
        return stw_fail(err, STW_STATUS_BAD_INPUT, what,
                        "%" PRIu64 " plus %" PRIu64 " does not fit in 64 bits", a, b);
    return STW_STATUS_OK;
}
