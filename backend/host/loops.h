/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost loops of the host kernels as a table, one per instruction set. The same C source
 * (loops_body.h) is compiled once for each; all compute the same IEEE operations per element, so
 * the choice shows in time only. One thread per call; arrays of a call do not overlap. */
#ifndef STW_BACKEND_HOST_LOOPS_H
#define STW_BACKEND_HOST_LOOPS_H

#include "backend/element.h"

typedef struct stw_host_loops {
    const char *name; /* "base", "avx2", "avx512" */
    void (*adamw)(const stw_adamw *adamw, float *params, const float *grads, float *exp_avg,
                  float *exp_avg_sq, uint64_t n);
    uint64_t (*digest)(const float *values, uint64_t n, uint64_t element);
    void (*seed_grads)(float *to, uint64_t n, uint64_t element, uint64_t seed, uint64_t step);
    void (*seed_weights)(float *to, uint64_t n, uint64_t element, uint64_t seed);
    void (*bf16)(float *to, const unsigned char *from, uint64_t n);
} stw_host_loops;

/** Tables that this processor can run, best first: 0 is the one that kernels use. NULL past the
 * last. */
const stw_host_loops *stw_host_loops_get(unsigned i);

#endif
