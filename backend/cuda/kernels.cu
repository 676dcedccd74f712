/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: one pass over memory each, 16 bytes per access where alignment allows, 64-bit indices.
 * Compiled with -fmad=false and without fast-math: the arithmetic is that of backend/element.h,
 * operation by operation. */
#include "backend/cuda/kernels.h"

namespace {

constexpr unsigned threads_per_block = 256;
constexpr uint64_t most_blocks = 1u << 30; /* beyond, threads take several turns */

unsigned blocks_for(uint64_t items, unsigned per_block, uint64_t most) {
    uint64_t blocks = (items + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

bool aligned(const void *a, unsigned bytes) { return ((uintptr_t)a & (bytes - 1)) == 0; }

__device__ uint64_t thread_index() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ uint64_t thread_count() { return (uint64_t)gridDim.x * blockDim.x; }

/* ---- AdamW ---- */

/* Every byte is touched once per step, hence the streaming hints: nothing is worth a place in L2.
 */
template <bool by_four>
__global__ void __launch_bounds__(threads_per_block)
    adamw_kernel(const stw_adamw a, float *params, const float *grads, float *exp_avg,
                 float *exp_avg_sq, uint64_t n) {
    uint64_t first = thread_index(), stride = thread_count();
    uint64_t done = 0;
    if (by_four) {
        for (uint64_t i = first; i < n / 4; i += stride) {
            float4 p = __ldcs((const float4 *)params + i);
            float4 g = __ldcs((const float4 *)grads + i);
            float4 m = __ldcs((const float4 *)exp_avg + i);
            float4 v = __ldcs((const float4 *)exp_avg_sq + i);
            stw_adamw_element(&a, &p.x, g.x, &m.x, &v.x);
            stw_adamw_element(&a, &p.y, g.y, &m.y, &v.y);
            stw_adamw_element(&a, &p.z, g.z, &m.z, &v.z);
            stw_adamw_element(&a, &p.w, g.w, &m.w, &v.w);
            __stcs((float4 *)params + i, p);
            __stcs((float4 *)exp_avg + i, m);
            __stcs((float4 *)exp_avg_sq + i, v);
        }
        done = n / 4 * 4;
    }
    for (uint64_t i = done + first; i < n; i += stride) {
        float p = __ldcs(params + i), m = __ldcs(exp_avg + i), v = __ldcs(exp_avg_sq + i);
        stw_adamw_element(&a, &p, __ldcs(grads + i), &m, &v);
        __stcs(params + i, p);
        __stcs(exp_avg + i, m);
        __stcs(exp_avg_sq + i, v);
    }
}

/* ---- the exact sum of squares ----
 * Each lane of a warp keeps its own cell per bin in shared memory, a column that no other lane
 * touches: no atomics, and no bank conflicts whichever bins the lanes hit, because a bin's cells
 * fill whole rows of banks. 16 KiB per warp. */

constexpr unsigned norm_warps = 3; /* 48 KiB per block, what is to be had without asking */
constexpr unsigned norm_threads = norm_warps * 32;
constexpr unsigned norm_blocks_per_sm = 4;
constexpr unsigned norm_vectors = 4; /* 16-byte loads in flight per thread */
constexpr unsigned norm_bins = 32;   /* that floats can hit: the last is (2 * 254 - 2) / 16 = 31 */
static_assert((2 * 254 - 2) / 16 == norm_bins - 1 && norm_bins <= STW_NORM_BINS, "bins of floats");

struct __align__(16) norm_cell {
    unsigned long long low, high; /* sums of the values' low and high 32 bits */
};

__device__ void norm_one(norm_cell *column, float g, unsigned *not_finite) {
    unsigned bin = 0;
    uint64_t value = 0;
    if (stw_norm_split(g, &bin, &value) == 2) (*not_finite)++;
    ulonglong2 *cell = (ulonglong2 *)(column + 32u * bin);
    ulonglong2 sum = *cell;
    sum.x += (uint32_t)value;
    sum.y += value >> 32;
    *cell = sum;
}

/* The warp's cells, summed over lanes, go to the bins: lane l adds up bin l, starting at its own
 * column so that lanes meet different banks. Carried first, so that a bin has room for 2^32 warps
 * however many values they saw. */
__device__ void norm_flush(const norm_cell *cells, unsigned lane, unsigned not_finite,
                           stw_norm_bins *bins) {
    unsigned long long low = 0, high = 0;
    for (unsigned i = 0; i < 32; i++) {
        ulonglong2 sum = *(const ulonglong2 *)(cells + 32u * lane + ((lane + i) & 31u));
        low += sum.x;
        high += sum.y;
    }
    high += low >> 32;
    low &= 0xFFFFFFFFull;
    if (low != 0) atomicAdd((unsigned long long *)&bins->low[lane], low);
    if (high != 0) atomicAdd((unsigned long long *)&bins->high[lane], high);
    if (not_finite != 0) atomicAdd((unsigned long long *)&bins->not_finite, not_finite);
}

template <bool by_four> __device__ float4 norm_load(const float *grads, uint64_t i, uint64_t n) {
    float4 x = make_float4(0, 0, 0, 0); /* zeros add nothing */
    if (by_four && 4 * i + 4 <= n) return __ldcs((const float4 *)grads + i);
    if (4 * i < n) x.x = __ldcs(grads + 4 * i);
    if (4 * i + 1 < n) x.y = __ldcs(grads + 4 * i + 1);
    if (4 * i + 2 < n) x.z = __ldcs(grads + 4 * i + 2);
    if (4 * i + 3 < n) x.w = __ldcs(grads + 4 * i + 3);
    return x;
}

template <bool by_four>
__global__ void __launch_bounds__(norm_threads, norm_blocks_per_sm)
    norm_kernel(const float *grads, uint64_t n, stw_norm_bins *bins) {
    __shared__ norm_cell cells[norm_warps][norm_bins][32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    norm_cell *column = &cells[warp][0][lane];
    for (unsigned b = 0; b < norm_bins; b++) column[32u * b] = norm_cell{0, 0};
    unsigned not_finite = 0;

    const uint64_t tile = (uint64_t)norm_threads * norm_vectors; /* in vectors */
    const uint64_t vectors = n / 4 + (n % 4 != 0);
    float4 next[norm_vectors];
    uint64_t at = blockIdx.x * tile + threadIdx.x;
    for (unsigned k = 0; k < norm_vectors; k++)
        next[k] = norm_load<by_four>(grads, at + k * norm_threads, n);
    for (uint64_t t = blockIdx.x * tile; t < vectors; t += gridDim.x * tile) {
        float4 x[norm_vectors];
        at += gridDim.x * tile;
#pragma unroll
        for (unsigned k = 0; k < norm_vectors; k++) {
            x[k] = next[k];
            next[k] = norm_load<by_four>(grads, at + k * norm_threads, n);
        }
#pragma unroll
        for (unsigned k = 0; k < norm_vectors; k++) {
            norm_one(column, x[k].x, &not_finite);
            norm_one(column, x[k].y, &not_finite);
            norm_one(column, x[k].z, &not_finite);
            norm_one(column, x[k].w, &not_finite);
        }
    }
    __syncwarp();
    norm_flush(&cells[warp][0][0], lane, not_finite, bins);
}

/* ---- conversion ---- */

__device__ float from_f16(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7FFFu;
    if (rest >= 0x7C00u) return stw_float_from_bits(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    /* Exponents differ by 112; the product is exact, for subnormals too. */
    float magnitude = stw_float_from_bits(rest << 13) * 5.192296858534828e33f; /* 2^112 */
    return stw_float_from_bits(sign | stw_bits_from_float(magnitude));
}

__device__ float from_e4m3(uint32_t x) {
    uint32_t sign = (x & 0x80u) << 24, rest = x & 0x7Fu;
    if (rest == 0x7Fu) return stw_float_from_bits(sign | 0x7FC00000u);
    float magnitude = stw_float_from_bits(rest << 20) * 1.329227995784916e36f; /* 2^120 */
    return stw_float_from_bits(sign | stw_bits_from_float(magnitude));
}

template <stw_cuda_source source> struct stored;
template <> struct stored<STW_CUDA_SOURCE_F64> {
    typedef double type;
    static __device__ float get(double x) { return __double2float_rn(x); }
};
template <> struct stored<STW_CUDA_SOURCE_F32> {
    typedef float type;
    static __device__ float get(float x) { return x; }
};
template <> struct stored<STW_CUDA_SOURCE_F16> {
    typedef uint16_t type;
    static __device__ float get(uint16_t x) { return from_f16(x); }
};
template <> struct stored<STW_CUDA_SOURCE_BF16> {
    typedef uint16_t type;
    static __device__ float get(uint16_t x) { return stw_float_from_bits((uint32_t)x << 16); }
};
template <> struct stored<STW_CUDA_SOURCE_F8_E4M3> {
    typedef uint8_t type;
    static __device__ float get(uint8_t x) { return from_e4m3(x); }
};
template <> struct stored<STW_CUDA_SOURCE_F8_E5M2> {
    typedef uint8_t type;
    static __device__ float get(uint8_t x) { return from_f16((uint32_t)x << 8); }
};

template <typename T> struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) four { T x[4]; };

template <stw_cuda_source source, bool by_four>
__global__ void __launch_bounds__(threads_per_block)
    convert_kernel(float *to, const void *from, uint64_t n) {
    typedef typename stored<source>::type type;
    uint64_t first = thread_index(), stride = thread_count();
    uint64_t done = 0;
    if (by_four) {
        for (uint64_t i = first; i < n / 4; i += stride) {
            four<type> x = ((const four<type> *)from)[i];
            ((float4 *)to)[i] =
                make_float4(stored<source>::get(x.x[0]), stored<source>::get(x.x[1]),
                            stored<source>::get(x.x[2]), stored<source>::get(x.x[3]));
        }
        done = n / 4 * 4;
    }
    for (uint64_t i = done + first; i < n; i += stride)
        to[i] = stored<source>::get(((const type *)from)[i]);
}

template <stw_cuda_source source>
cudaError_t convert(stw_cuda_launch launch, float *to, const void *from, uint64_t n) {
    unsigned from_align = (unsigned)alignof(four<typename stored<source>::type>);
    unsigned blocks = blocks_for(n / 4 + 4, threads_per_block, most_blocks);
    if (aligned(to, 16) && aligned(from, from_align))
        convert_kernel<source, true><<<blocks, threads_per_block, 0, launch.stream>>>(to, from, n);
    else
        convert_kernel<source, false><<<blocks, threads_per_block, 0, launch.stream>>>(to, from, n);
    return cudaGetLastError();
}

/* ---- seeded gradients and digests ---- */

__global__ void __launch_bounds__(threads_per_block)
    seed_grads_kernel(float *to, uint64_t n, uint64_t element, uint64_t seed, uint64_t step) {
    for (uint64_t i = thread_index(); i < n; i += thread_count())
        to[i] = stw_seeded_grad(seed, step, element + i);
}

__global__ void __launch_bounds__(threads_per_block)
    digest_kernel(const float *values, uint64_t n, uint64_t element, unsigned long long *digest) {
    unsigned long long sum = 0;
    for (uint64_t i = thread_index(); i < n; i += thread_count())
        sum += stw_digest_element(element + i, stw_bits_from_float(__ldcs(values + i)));
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, lanes);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(digest, sum);
}

} // namespace

cudaError_t stw_cuda_adamw(stw_cuda_launch launch, const stw_adamw *adamw, float *params,
                           const float *grads, float *exp_avg, float *exp_avg_sq, uint64_t n) {
    if (aligned(params, 16) && aligned(grads, 16) && aligned(exp_avg, 16) &&
        aligned(exp_avg_sq, 16))
        adamw_kernel<true>
            <<<blocks_for(n / 4 + 4, threads_per_block, most_blocks), threads_per_block, 0,
               launch.stream>>>(*adamw, params, grads, exp_avg, exp_avg_sq, n);
    else
        adamw_kernel<false><<<blocks_for(n, threads_per_block, most_blocks), threads_per_block, 0,
                              launch.stream>>>(*adamw, params, grads, exp_avg, exp_avg_sq, n);
    return cudaGetLastError();
}

cudaError_t stw_cuda_norm_add(stw_cuda_launch launch, const float *grads, uint64_t n,
                              stw_norm_bins *bins) {
    unsigned blocks = blocks_for(n / 4 + 1, norm_threads * norm_vectors,
                                 (uint64_t)launch.sms * norm_blocks_per_sm);
    if (aligned(grads, 16))
        norm_kernel<true><<<blocks, norm_threads, 0, launch.stream>>>(grads, n, bins);
    else
        norm_kernel<false><<<blocks, norm_threads, 0, launch.stream>>>(grads, n, bins);
    return cudaGetLastError();
}

cudaError_t stw_cuda_convert(stw_cuda_launch launch, float *to, const void *from,
                             stw_cuda_source source, uint64_t n) {
    switch (source) {
    case STW_CUDA_SOURCE_F64:
        return convert<STW_CUDA_SOURCE_F64>(launch, to, from, n);
    case STW_CUDA_SOURCE_F32:
        return convert<STW_CUDA_SOURCE_F32>(launch, to, from, n);
    case STW_CUDA_SOURCE_F16:
        return convert<STW_CUDA_SOURCE_F16>(launch, to, from, n);
    case STW_CUDA_SOURCE_BF16:
        return convert<STW_CUDA_SOURCE_BF16>(launch, to, from, n);
    case STW_CUDA_SOURCE_F8_E4M3:
        return convert<STW_CUDA_SOURCE_F8_E4M3>(launch, to, from, n);
    case STW_CUDA_SOURCE_F8_E5M2:
        return convert<STW_CUDA_SOURCE_F8_E5M2>(launch, to, from, n);
    case STW_CUDA_N_SOURCES:
        break;
    }
    return cudaErrorInvalidValue;
}

cudaError_t stw_cuda_seed_grads(stw_cuda_launch launch, float *to, uint64_t n, uint64_t element,
                                uint64_t seed, uint64_t step) {
    seed_grads_kernel<<<blocks_for(n, threads_per_block, (uint64_t)launch.sms * 64),
                        threads_per_block, 0, launch.stream>>>(to, n, element, seed, step);
    return cudaGetLastError();
}

cudaError_t stw_cuda_digest(stw_cuda_launch launch, const float *values, uint64_t n,
                            uint64_t element, uint64_t *digest) {
    digest_kernel<<<blocks_for(n, threads_per_block, (uint64_t)launch.sms * 32), threads_per_block,
                    0, launch.stream>>>(values, n, element, (unsigned long long *)digest);
    return cudaGetLastError();
}

/* Ask for as much of the L1 as shared memory as all blocks of a multiprocessor want. */
static cudaError_t prefer_shared(void (*kernel)(const float *, uint64_t, stw_norm_bins *)) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

cudaError_t stw_cuda_kernels_load(stw_cuda_launch launch, void *scratch) {
    const stw_adamw none = {};
    float *at[2] = {(float *)scratch, (float *)scratch + 1}; /* aligned, not aligned */
    stw_norm_bins *bins = (stw_norm_bins *)scratch;
    cudaError_t code = prefer_shared(norm_kernel<true>);
    if (code == cudaSuccess) code = prefer_shared(norm_kernel<false>);
    for (int i = 0; i < 2 && code == cudaSuccess; i++) {
        code = stw_cuda_adamw(launch, &none, at[i], at[i], at[i], at[i], 0);
        if (code == cudaSuccess) code = stw_cuda_norm_add(launch, at[i], 0, bins);
        for (int s = 0; s < STW_CUDA_N_SOURCES && code == cudaSuccess; s++)
            code = stw_cuda_convert(launch, at[i], scratch, (stw_cuda_source)s, 0);
    }
    if (code == cudaSuccess) code = stw_cuda_seed_grads(launch, at[0], 0, 0, 0, 0);
    if (code == cudaSuccess) code = stw_cuda_digest(launch, at[0], 0, 0, (uint64_t *)scratch);
    return code;
}
