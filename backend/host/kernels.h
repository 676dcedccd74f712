/* SPDX-License-Identifier: Apache-2.0 */
/* The element functions of backend/element.h over arrays in host memory, vectorised and spread over
 * a pool of threads. Results are bit-identical to the scalar functions for every length, alignment,
 * instruction set and number of threads. Arrays of one call must not overlap; the alignment of
 * their type suffices. `threads` may be NULL. Any thread may call. A stw_element is F32 or BF16. */
#ifndef STW_BACKEND_HOST_KERNELS_H
#define STW_BACKEND_HOST_KERNELS_H

#include <stdbool.h>

#include "backend/element.h"
#include "backend/host/pool.h"
#include "models/model.h"

/** stw_bucket_operands with addresses. Params and grads are either contiguous, and their address is
 * that of the bucket's first element; or in spans, and their address is the base of the spans'
 * offsets. */
typedef struct stw_host_bucket {
    uint64_t first, n;     /* elements of the flat space */
    const stw_span *spans; /* ascending, without gaps, together they cover the bucket */
    uint32_t n_spans;      /* 0: no table; all elements have group 0 and nothing is in spans */
    bool params_in_spans, grads_in_spans;
    void *params;
    const void *grads;
    float *master; /* if the types have one, else NULL */
    void *exp_avg, *exp_avg_sq;
} stw_host_bucket;

/** Apply stw_adamw_element to every element of a bucket, with the rates of its span's group.
 * @param factor the clip factor; used with adamw->clip only
 * @param types how the components are stored */
void stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float factor,
                    const stw_element_types *types, const stw_host_bucket *bucket);
/** Add the squares of n gradients to bins, which are carry-normalised before and after (all zero
 * is). Fewer than 2^40 gradients. */
void stw_host_norm_add(stw_threads *threads, const void *grads, stw_element type, uint64_t n,
                       stw_norm_bins *bins);
/** Returns the sum of stw_digest_element over n values.
 * @param element global number of the first value */
uint64_t stw_host_digest(stw_threads *threads, const void *values, stw_element type, uint64_t n,
                         uint64_t element);
/** True if values of this dtype can be converted to fp32. (F64, F32, F16, BF16, F8_E4M3,
 * F8_E5M2) */
bool stw_host_can_convert(stw_dtype from_dtype);
/** to[i] = to_type((float)from[i]): F64 rounds to the nearest fp32, all others are exact in fp32;
 * stw_bf16_from_float makes bf16 of that. The dtype must be convertible (stw_host_can_convert). */
void stw_host_convert(stw_threads *threads, void *to, stw_element to_type, const void *from,
                      stw_dtype from_dtype, uint64_t n);
/** Write the seeded gradients of global elements [element, element + n), rounded to `type`. */
void stw_host_seed_grads(stw_threads *threads, void *to, stw_element type, uint64_t n,
                         uint64_t element, uint64_t seed, uint64_t step);
/** memcpy and memset 0, spread over the threads. */
void stw_host_copy(stw_threads *threads, void *to, const void *from, uint64_t bytes);
void stw_host_zero(stw_threads *threads, void *to, uint64_t bytes);

#endif
