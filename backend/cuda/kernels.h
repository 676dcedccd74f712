/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the CUDA kernels: the element functions of backend/element.h and backend/norm.h over
 * arrays in GPU memory (or page-locked host memory, which the GPU reads and writes over PCIe). Each
 * queues its work on a stream and returns the launch's error, cudaErrorInvalidValue for types that
 * it does not know; nothing is allocated and nobody waits. Pointers need the alignment of their
 * type; 16 bytes on all operands is the fast path. The current device must be the stream's. n may
 * be 0. */
#ifndef STW_BACKEND_CUDA_KERNELS_H
#define STW_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "backend/element.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stored types that become fp32 or bf16. */
typedef enum stw_cuda_source {
    STW_CUDA_SOURCE_F64, /* rounds to the nearest float; the others are exact floats */
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

/** One bucket's operands by address. master, exp_avg and exp_avg_sq point at the bucket's first
 * element, and so do params and grads unless they are in spans: then they point at what the byte
 * offsets of stw_span count from. */
typedef struct stw_cuda_bucket {
    uint64_t first, n;     /* elements of the flat space */
    const stw_span *spans; /* GPU memory: the first that meets the bucket ... */
    uint32_t n_spans;      /* ... and how many do; together they cover it. 0: no table is looked at,
                            * which is faster, and nothing is in spans */
    uint32_t param_group;  /* of all elements if n_spans is 0 */
    bool params_in_spans, grads_in_spans;
    bool direct; /* an operand is page-locked host memory: a launch shaped for PCIe */
    void *params;
    const void *grads;
    float *master; /* NULL where the run has none */
    void *exp_avg, *exp_avg_sq;
} stw_cuda_bucket;

/** stw_adamw_element on a bucket, in place, with the rates of each span's group; results rounded to
 * the types of their components, params from the new master where there is one.
 * @param factor the clip factor, in memory that the GPU reads when the launch's turn has come; used
 *        with adamw->clip only, else it may be NULL */
cudaError_t stw_cuda_adamw(stw_cuda_launch launch, const stw_adamw *adamw, const float *factor,
                           const stw_element_types *types, const stw_cuda_bucket *bucket);

/** Add the squares of n gradients to bins in GPU memory: the same integer as the host's, though
 * split otherwise over low and high limbs (stw_norm_normalise makes them equal). */
cudaError_t stw_cuda_norm_add(stw_cuda_launch launch, stw_element type, const void *grads,
                              uint64_t n, stw_norm_bins *bins);
/** Gradients that lie apart. */
typedef struct stw_cuda_grads {
    const void *base;      /* what stw_span.grads counts from */
    const stw_span *spans; /* GPU memory; without gaps, from element 0 on */
    uint32_t n_spans;
    uint64_t n; /* elements of all spans */
} stw_cuda_grads;
/** The same for all of these by one kernel, however many and small they are. */
cudaError_t stw_cuda_norm_add_spans(stw_cuda_launch launch, stw_element type,
                                    const stw_cuda_grads *grads, stw_norm_bins *bins);
/** Settings of the norm's kernels for the current device: without them it is slower. */
cudaError_t stw_cuda_norm_prepare(void);
/** The sum of two sets of bins as STW_NORM_COUNTERS normalised counters; zeros unless `counts`.
 * @param gpu_bins in GPU memory; left as they are
 * @param host_bins in GPU or page-locked memory; NULL: none
 * @param counters in GPU memory; must not overlap the bins */
cudaError_t stw_cuda_norm_counters(stw_cuda_launch launch, const stw_norm_bins *gpu_bins,
                                   const stw_norm_bins *host_bins, int counts, uint64_t *counters);
/** stw_norm_value and stw_norm_clip_factor of counters (or of sums of them over ranks), the host's
 * bits. All pointers are GPU or page-locked memory. */
cudaError_t stw_cuda_norm_factor(stw_cuda_launch launch, const uint64_t *counters, double clip_norm,
                                 double *norm, float *factor);

#define STW_CUDA_FETCH_ALIGN 16

/** Does a step with this many GPUs on a node fetch the parameters of CPU buckets by a kernel?
 * Copies would queue behind those of streamed buckets. A single GPU is faster with copies
 * (bench/results/constants.md). */
static inline bool stw_cuda_fetches(uint32_t gpus) { return gpus > 1; }
/** Bytes from page-locked host memory that the GPU reaches to GPU memory, by few multiprocessors
 * and without a copy engine.
 * @param to and from aligned to STW_CUDA_FETCH_ALIGN */
cudaError_t stw_cuda_fetch(cudaStream_t stream, void *to, const void *from, uint64_t bytes);
/** to[i] = to_type(float(from[i])). */
cudaError_t stw_cuda_convert(stw_cuda_launch launch, stw_element to_type, void *to,
                             const void *from, stw_cuda_source source, uint64_t n);
/** Seeded gradients of global elements [element, element + n), rounded to the type. */
cudaError_t stw_cuda_seed_grads(stw_cuda_launch launch, stw_element type, void *to, uint64_t n,
                                uint64_t element, uint64_t seed, uint64_t step);
/** Add stw_digest_element of n values as stored, the first of which is global element `element`, to
 * *digest in GPU memory. */
cudaError_t stw_cuda_digest(stw_cuda_launch launch, stw_element type, const void *values,
                            uint64_t n, uint64_t element, uint64_t *digest);
/** Load every kernel's machine code now: done lazily it could wait for a running collective.
 * @param scratch 1 KiB of zeroed GPU memory, 16-byte aligned, which the launches leave as it is */
cudaError_t stw_cuda_kernels_load(stw_cuda_launch launch, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
