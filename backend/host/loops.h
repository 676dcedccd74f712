/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost loops of the host kernels as a table, one per instruction set. The same C source
 * (loops_body.h, loops_adamw_body.h, loops_norm_body.h) is compiled once for each. All compute the
 * same IEEE operations per element, so that the choice affects only time. One thread per call;
 * arrays of a call do not overlap. A stw_element is F32 or BF16. */
#ifndef STW_BACKEND_HOST_LOOPS_H
#define STW_BACKEND_HOST_LOOPS_H

#include "backend/element.h"

__extension__ typedef __int128 stw_i128;

/** A sum of squares in units of 2^-298: bin b counts 2^(16 b). Bins may be negative, their sum is
 * not. It has room for 2^40 gradients. */
typedef struct stw_norm_wide {
    stw_i128 bin[STW_NORM_BINS];
    uint64_t not_finite, nans; /* as in stw_norm_bins */
} stw_norm_wide;

/** n elements of one parameter group in an update. */
typedef struct stw_adamw_arrays {
    stw_adamw adamw;
    stw_adamw_group group;
    float factor; /* factor of the gradients, if adamw.clip */
    void *params;
    const void *grads;
    float *master; /* used if the types have one */
    void *exp_avg, *exp_avg_sq;
    uint64_t n;
} stw_adamw_arrays;

typedef struct stw_host_loops {
    const char *name; /* "base", "avx2", "avx512" */
    /** stw_adamw_element on all elements. */
    void (*adamw)(const stw_adamw_arrays *arrays, const stw_element_types *types);
    /** sum += squares of n gradients, exactly. */
    void (*norm_add)(const void *grads, stw_element type, uint64_t n, stw_norm_wide *sum);
    uint64_t (*digest)(const void *values, stw_element type, uint64_t n, uint64_t element);
    void (*seed_grads)(void *to, stw_element type, uint64_t n, uint64_t element, uint64_t seed,
                       uint64_t step);
    void (*seed_weights)(float *to, uint64_t n, uint64_t element, uint64_t seed);
    /* bf16 at any address, widened; fp32 rounded by stw_bf16_from_float */
    void (*from_bf16)(float *to, const unsigned char *from, uint64_t n);
    void (*to_bf16)(uint16_t *to, const float *from, uint64_t n);
} stw_host_loops;

/** Returns the i-th table that this processor can run, the best first: kernels use table 0. NULL
 * past the last. */
const stw_host_loops *stw_host_loops_get(unsigned i);

#endif
