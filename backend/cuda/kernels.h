/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the CUDA kernels: the element functions of backend/element.h and backend/norm.h over
 * arrays in GPU memory (or page-locked host memory, which the GPU reads and writes over PCIe). Each
 * queues its work on a stream and returns the launch's error, or cudaErrorInvalidValue for
 * unsupported types. It neither allocates nor waits. Pointers need the alignment of their type; 16
 * bytes for all operands is the fast path. The current device must be the stream's. n may be 0. */
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

/** The target of a launch: the stream, and the number of multiprocessors of its device. */
typedef struct stw_cuda_launch {
    cudaStream_t stream;
    uint32_t sms;
} stw_cuda_launch;

/** The addresses of one bucket's operands. master, exp_avg and exp_avg_sq point at the bucket's
 * first element. So do params and grads, unless they are in spans; then they are the base of
 * stw_span's byte offsets. */
typedef struct stw_cuda_bucket {
    uint64_t first, n;     /* elements of the flat space */
    const stw_span *spans; /* GPU memory: the first span of the bucket */
    uint32_t n_spans;      /* number of its spans, which cover it; 0: no table, which is faster, and
                              nothing is in spans */
    uint32_t param_group;  /* group of all elements if n_spans is 0 */
    bool params_in_spans, grads_in_spans;
    bool direct; /* an operand is page-locked host memory: the launch is shaped for PCIe */
    void *params;
    const void *grads;
    float *master; /* NULL if the run has none */
    void *exp_avg, *exp_avg_sq;
} stw_cuda_bucket;

/** Apply stw_adamw_element to a bucket, in place, with the rates of each span's group. Results are
 * rounded to the types of their components; params come from the new master if there is one.
 * @param factor the clip factor, in memory that the GPU reads when the kernel runs; used only with
 * adamw->clip, else it may be NULL */
cudaError_t stw_cuda_adamw(stw_cuda_launch launch, const stw_adamw *adamw, const float *factor,
                           const stw_element_types *types, const stw_cuda_bucket *bucket);

/** Add the squares of n gradients to bins in GPU memory. The sum is the same integer as the host's,
 * with another split into low and high limbs (stw_norm_normalise makes them equal). */
cudaError_t stw_cuda_norm_add(stw_cuda_launch launch, stw_element type, const void *grads,
                              uint64_t n, stw_norm_bins *bins);
/** Gradients that are not contiguous. */
typedef struct stw_cuda_grads {
    const void *base;      /* base of stw_span.grads */
    const stw_span *spans; /* GPU memory; without gaps, from element 0 on */
    uint32_t n_spans;
    uint64_t n; /* elements of all spans */
} stw_cuda_grads;
/** The same for all of these gradients with one kernel, for any number and size of spans. */
cudaError_t stw_cuda_norm_add_spans(stw_cuda_launch launch, stw_element type,
                                    const stw_cuda_grads *grads, stw_norm_bins *bins);
/** Set up the norm's kernels for the current device; without it they are slower. */
cudaError_t stw_cuda_norm_prepare(void);
/** Write the sum of two sets of bins as STW_NORM_COUNTERS normalised counters; zeros unless
 * `counts`.
 * @param gpu_bins in GPU memory; unchanged
 * @param host_bins in GPU or page-locked memory; NULL: none
 * @param counters in GPU memory; must not overlap the bins */
cudaError_t stw_cuda_norm_counters(stw_cuda_launch launch, const stw_norm_bins *gpu_bins,
                                   const stw_norm_bins *host_bins, int counts, uint64_t *counters);
/** Compute stw_norm_value and stw_norm_clip_factor of counters (or of their sums over ranks),
 * bit-identical to the host. All pointers are GPU or page-locked memory. */
cudaError_t stw_cuda_norm_factor(stw_cuda_launch launch, const uint64_t *counters, double clip_norm,
                                 double *norm, float *factor);

#define STW_CUDA_FETCH_ALIGN 16

/** True if a step with this many GPUs on a node fetches the parameters of CPU buckets by a kernel,
 * because copies would queue behind those of streamed buckets. A single GPU is faster with copies
 * (bench/results/constants.md). */
static inline bool stw_cuda_fetches(uint32_t gpus) { return gpus > 1; }
/** Copy bytes from page-locked host memory to GPU memory with a few multiprocessors and without a
 * copy engine.
 * @param to and from aligned to STW_CUDA_FETCH_ALIGN */
cudaError_t stw_cuda_fetch(cudaStream_t stream, void *to, const void *from, uint64_t bytes);
/** to[i] = to_type(float(from[i])). */
cudaError_t stw_cuda_convert(stw_cuda_launch launch, stw_element to_type, void *to,
                             const void *from, stw_cuda_source source, uint64_t n);
/** Write the seeded gradients of global elements [element, element + n), rounded to the type. */
cudaError_t stw_cuda_seed_grads(stw_cuda_launch launch, stw_element type, void *to, uint64_t n,
                                uint64_t element, uint64_t seed, uint64_t step);
/** Add stw_digest_element of n stored values to *digest in GPU memory.
 * @param element global number of the first value */
cudaError_t stw_cuda_digest(stw_cuda_launch launch, stw_element type, const void *values,
                            uint64_t n, uint64_t element, uint64_t *digest);
/** Load every kernel's machine code now; lazy loading could wait for a running collective.
 * @param scratch 1 KiB of zeroed GPU memory, 16-byte aligned; unchanged by the launches */
cudaError_t stw_cuda_kernels_load(stw_cuda_launch launch, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
