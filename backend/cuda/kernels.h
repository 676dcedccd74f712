/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the CUDA kernels: the element functions of backend/element.h over arrays in GPU
 * memory (or page-locked host memory, which the GPU reads and writes over PCIe). Each queues its
 * work on a stream and returns the launch's error; nothing is allocated. Pointers need the
 * alignment of their type; 16 bytes on all operands is the fast path. The current device must be
 * the stream's. n may be 0. */
#ifndef STW_BACKEND_CUDA_KERNELS_H
#define STW_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "backend/element.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stored types that become fp32. */
typedef enum stw_cuda_source {
    STW_CUDA_SOURCE_F64, /* rounds to nearest; the others are exact */
    STW_CUDA_SOURCE_F32,
    STW_CUDA_SOURCE_F16,
    STW_CUDA_SOURCE_BF16,
    STW_CUDA_SOURCE_F8_E4M3,
    STW_CUDA_SOURCE_F8_E5M2,
    STW_CUDA_N_SOURCES
} stw_cuda_source;

/** Where a launch goes: the stream, and how many multiprocessors its device has. */
typedef struct stw_cuda_launch {
    cudaStream_t stream;
    uint32_t sms;
} stw_cuda_launch;

/** stw_adamw_element on n elements, in place. */
cudaError_t stw_cuda_adamw(stw_cuda_launch launch, const stw_adamw *adamw, float *params,
                           const float *grads, float *exp_avg, float *exp_avg_sq, uint64_t n);
/** Add the squares of n gradients to bins in GPU memory: the same integer as the host's, though
 * split otherwise over low and high limbs (stw_norm_normalise makes them equal). */
cudaError_t stw_cuda_norm_add(stw_cuda_launch launch, const float *grads, uint64_t n,
                              stw_norm_bins *bins);
/** to[i] = (float)from[i]. */
cudaError_t stw_cuda_convert(stw_cuda_launch launch, float *to, const void *from,
                             stw_cuda_source source, uint64_t n);
/** Seeded gradients of global elements [element, element + n). */
cudaError_t stw_cuda_seed_grads(stw_cuda_launch launch, float *to, uint64_t n, uint64_t element,
                                uint64_t seed, uint64_t step);
/** Add stw_digest_element of n values, the first of which is global element `element`, to
 * *digest in GPU memory. */
cudaError_t stw_cuda_digest(stw_cuda_launch launch, const float *values, uint64_t n,
                            uint64_t element, uint64_t *digest);
/** Load every kernel's machine code now: done lazily it could wait for a running collective.
 * @param scratch 1 KiB of zeroed GPU memory, which the launches leave as it is */
cudaError_t stw_cuda_kernels_load(stw_cuda_launch launch, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
