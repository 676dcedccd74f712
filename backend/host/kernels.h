/* SPDX-License-Identifier: Apache-2.0 */
/* The element functions of backend/element.h over arrays in host memory, vectorised by the
 * compiler and spread over a pool of threads. The bits are those of the scalar functions whatever
 * the length, alignment, instruction set or number of threads. Arrays of one call must not
 * overlap; alignment of their type suffices. `threads` may be NULL. Any thread may call. */
#ifndef STW_BACKEND_HOST_KERNELS_H
#define STW_BACKEND_HOST_KERNELS_H

#include <stdbool.h>

#include "backend/element.h"
#include "backend/host/pool.h"
#include "models/model.h"

/** stw_adamw_element on n elements. */
void stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float *params, const float *grads,
                    float *exp_avg, float *exp_avg_sq, uint64_t n);
/** Add the squares of n gradients to bins, which are carry-normalised before and after (all zero
 * is). */
void stw_host_norm_add(stw_threads *threads, const float *grads, uint64_t n, stw_norm_bins *bins);
/** Sum of stw_digest_element over n values, the first of which is global element `element`. */
uint64_t stw_host_digest(stw_threads *threads, const float *values, uint64_t n, uint64_t element);
/** Can values of this dtype be made fp32? (F64, F32, F16, BF16, F8_E4M3, F8_E5M2) */
bool stw_host_can_convert(stw_dtype from_dtype);
/** to[i] = (float)from[i]; F64 rounds to nearest, all others are exact. The dtype must be one that
 * can be converted. */
void stw_host_convert(stw_threads *threads, float *to, const void *from, stw_dtype from_dtype,
                      uint64_t n);
/** Seeded gradients of global elements [element, element + n). */
void stw_host_seed_grads(stw_threads *threads, float *to, uint64_t n, uint64_t element,
                         uint64_t seed, uint64_t step);
/** memcpy and memset 0, spread over the threads. */
void stw_host_copy(stw_threads *threads, void *to, const void *from, uint64_t bytes);
void stw_host_zero(stw_threads *threads, void *to, uint64_t bytes);

#endif
