/* SPDX-License-Identifier: Apache-2.0 */
/* Elements in GPU memory, only for the .cu files. */
#ifndef STW_BACKEND_CUDA_ELEMENTS_H
#define STW_BACKEND_CUDA_ELEMENTS_H

#include "backend/cuda/kernels.h"

namespace {

/* Returns the blocks of a launch, at most `most`; with more items, threads loop. */
inline unsigned blocks_for(uint64_t items, unsigned per_block, uint64_t most) {
    uint64_t blocks = (items + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

inline bool aligned(const void *a, unsigned bytes) { return ((uintptr_t)a & (bytes - 1)) == 0; }

/* Returns the span of an element: the last one that does not begin after it. */
__device__ uint32_t find_span(const stw_span *spans, uint32_t n_spans, uint64_t at) {
    uint32_t low = 0, high = n_spans;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (spans[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Every byte is used once per step, so the streaming hints keep it out of L2. A thread handles four
 * neighbours: 16 bytes of fp32 or 8 of bf16. One instruction of a warp then covers 512 or 256
 * contiguous bytes with any types. */

template <stw_element type> struct element;
template <> struct element<STW_ELEMENT_F32> {
    typedef float type;
    typedef float4 four;
    static __device__ float widen(float x) { return x; }
    static __device__ float narrow(float x) { return x; }
    static __device__ uint32_t bits(float x) { return stw_bits_from_float(x); }
    static __device__ void unpack(float *x, float4 v) {
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
    static __device__ float4 pack(const float *x) { return make_float4(x[0], x[1], x[2], x[3]); }
};
template <> struct element<STW_ELEMENT_BF16> {
    typedef uint16_t type;
    typedef uint2 four;
    static __device__ float widen(uint16_t x) { return stw_float_from_bf16(x); }
    static __device__ uint16_t narrow(float x) { return stw_bf16_from_float(x); }
    static __device__ uint32_t bits(uint16_t x) { return x; }
    static __device__ void unpack(float *x, uint2 v) {
        x[0] = stw_float_from_bits(v.x << 16), x[1] = stw_float_from_bits(v.x & 0xFFFF0000u);
        x[2] = stw_float_from_bits(v.y << 16), x[3] = stw_float_from_bits(v.y & 0xFFFF0000u);
    }
    static __device__ uint2 pack(const float *x) {
        /* The instruction rounds as `narrow`, except for the bits of NaNs. */
        uint32_t low, high;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(x[3]), "f"(x[2]));
        float sum = (x[0] + x[1]) + (x[2] + x[3]);
        if (sum == sum) return make_uint2(low, high);
        return make_uint2(narrow(x[0]) | (uint32_t)narrow(x[1]) << 16,
                          narrow(x[2]) | (uint32_t)narrow(x[3]) << 16);
    }
};

} // namespace

#endif
