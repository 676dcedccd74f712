/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of backend/boxes.h. A thread has several vectors of up to 16 bytes under way, so that a
 * row that lies behind PCIe costs no more than its bytes. In GPU memory a block takes a few
 * neighbouring tiles and ends: messages of NCCL, on a stream of higher priority, get its
 * multiprocessor soon. Over PCIe few blocks take tiles in turn. Lists without casts, and those from
 * fp32 to bf16 alone, have kernels of their own, which need fewer registers than that of all casts.
 */
#include "backend/cuda/boxes.h"

#include "backend/cuda/elements.h"

namespace {

constexpr unsigned threads_per_block = 256;
constexpr unsigned at_once = 4; /* vectors of a thread */
constexpr unsigned blocks_per_sm = 8;
constexpr unsigned direct_blocks_per_sm = 2;
constexpr unsigned tiles_of_block = 8; /* at most */

/* ---- vectors of n elements ---- */

template <unsigned bytes> struct word;
template <> struct word<2> { typedef uint16_t type; };
template <> struct word<4> { typedef uint32_t type; };
template <> struct word<8> { typedef uint2 type; };
template <> struct word<16> { typedef uint4 type; };

template <unsigned type> struct stored {
    static constexpr unsigned width = type == STW_BOX_F32 ? 4 : 2;
};

template <unsigned type, unsigned n> struct vector_of {
    typedef typename word<stored<type>::width * n>::type type_of_word;
    union {
        type_of_word whole;
        uint32_t wide[type == STW_BOX_F32 ? n : 1];
        uint16_t half[type == STW_BOX_F32 ? 1 : n];
    };
    __device__ vector_of() {}
};

template <unsigned type, unsigned n>
__device__ float element_of(const vector_of<type, n> &v, unsigned i) {
    if (type == STW_BOX_F32) return stw_float_from_bits(v.wide[i]);
    return type == STW_BOX_BF16 ? stw_float_from_bf16(v.half[i]) : stw_float_from_f16(v.half[i]);
}

/* The instruction rounds as stw_f16_from_float does, but for the bits of NaNs. */
__device__ uint16_t to_f16(float x) {
    uint16_t half;
    if (x != x) return stw_f16_from_float(x);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

template <unsigned type, unsigned n>
__device__ void set_element(vector_of<type, n> &v, unsigned i, float x) {
    if (type == STW_BOX_F32)
        v.wide[i] = stw_bits_from_float(x);
    else
        v.half[i] = type == STW_BOX_BF16 ? stw_bf16_from_float(x) : to_f16(x);
}

template <unsigned from, unsigned to, unsigned n>
__device__ void copy_vector(const vector_of<from, n> &x, char *at) {
    vector_of<to, n> y;
    if constexpr (from == to) {
        y.whole = x.whole;
    } else {
#pragma unroll
        for (unsigned i = 0; i < n; i++) set_element<to, n>(y, i, element_of<from, n>(x, i));
    }
    __stcs((typename vector_of<to, n>::type_of_word *)at, y.whole);
}

/* ---- tiles ---- */

/* Rows of `n` vectors each: vector u of the tile is vector u % per_row of row u / per_row. The
 * quotient of numbers below 2^14 is exact in fp32 with the half that is added. */
struct rows {
    const stw_box_copy *copy;
    uint32_t first, per_row;
    float share; /* 1 / per_row */
    __device__ void place(uint32_t u, uint64_t from_step, uint64_t to_step, uint64_t *from,
                          uint64_t *to) const {
        const uint32_t row = (uint32_t)(((float)u + 0.5f) * share), i = u - row * per_row;
        stw_box_row(copy, first + row, from, to);
        *from += i * from_step;
        *to += i * to_step;
    }
};

template <unsigned from, unsigned to, unsigned n>
__device__ void copy_vectors(const char *source, char *target, const rows &r, uint32_t count) {
    const uint64_t from_step = n == 1 ? r.copy->from_stride[3] : n * stored<from>::width;
    const uint64_t to_step = n == 1 ? r.copy->to_stride[3] : n * stored<to>::width;
    for (uint32_t u = threadIdx.x; u < count; u += threads_per_block * at_once) {
        vector_of<from, n> x[at_once];
        uint64_t to_at[at_once];
#pragma unroll
        for (unsigned k = 0; k < at_once; k++) {
            const uint32_t v = u + k * threads_per_block;
            uint64_t from_at = 0;
            if (v >= count) continue;
            r.place(v, from_step, to_step, &from_at, &to_at[k]);
            x[k].whole =
                __ldcs((const typename vector_of<from, n>::type_of_word *)(source + from_at));
        }
#pragma unroll
        for (unsigned k = 0; k < at_once; k++)
            if (u + k * threads_per_block < count)
                copy_vector<from, to, n>(x[k], target + to_at[k]);
    }
}

__device__ bool is_dense(const stw_box_copy &c) {
    return c.from_stride[3] == stw_box_width(c.from_type) &&
           c.to_stride[3] == stw_box_width(c.to_type);
}

/* Elements of a vector: as many as alignment allows, up to 16 bytes of the wider type. */
template <unsigned from, unsigned to>
__device__ unsigned vector_width(const stw_box_copy &c, const stw_box_tile &t, const char *source,
                                 const char *target) {
    constexpr unsigned most =
        16 / (stored<from>::width > stored<to>::width ? stored<from>::width : stored<to>::width);
    if (!is_dense(c)) return 1;
    uint64_t low = (uintptr_t)source, high = (uintptr_t)target;
    if (t.rows > 1)
        for (int d = 0; d < 3; d++) low |= c.from_stride[d], high |= c.to_stride[d];
    for (unsigned n = most; n > 1; n /= 2)
        if (low % (n * stored<from>::width) == 0 && high % (n * stored<to>::width) == 0 &&
            (t.rows == 1 || t.n % n == 0))
            return n;
    return 1;
}

template <unsigned from, unsigned to, unsigned n>
__device__ void copy_tile_by(const stw_box_copy &c, const stw_box_tile &t, const char *source,
                             char *target) {
    const uint32_t per_row = t.n / n;
    if (per_row > 0)
        copy_vectors<from, to, n>(source, target, rows{&c, t.row, per_row, 1.0f / (float)per_row},
                                  per_row * t.rows);
    if (n > 1 && t.n % n != 0) { /* the end of a single row */
        const uint32_t done = per_row * n, left = t.n - done;
        source += (uint64_t)done * stored<from>::width;
        target += (uint64_t)done * stored<to>::width;
        if (stw_box_width(c.from_type) > stored<from>::width) /* halves of dense elements */
            copy_vectors<from, to, 2>(source, target, rows{&c, t.row, left / 2, 2.0f / (float)left},
                                      left / 2);
        else
            copy_vectors<from, to, 1>(source, target, rows{&c, t.row, left, 1.0f / (float)left},
                                      left);
    }
}

template <unsigned from, unsigned to>
__device__ void copy_tile(const stw_box_copy &c, const stw_box_tile &t, const char *source,
                          char *target) {
    constexpr unsigned wide = stored<from>::width == 4 || stored<to>::width == 4;
    source += c.from + t.at * c.from_stride[3];
    target += c.to + t.at * c.to_stride[3];
    /* Alignment is that of the first row; strides keep it. */
    uint64_t from_at, to_at;
    stw_box_row(&c, t.row, &from_at, &to_at);
    switch (vector_width<from, to>(c, t, source + from_at, target + to_at)) {
    case 8:
        if (!wide) copy_tile_by<from, to, wide ? 1 : 8>(c, t, source, target);
        return;
    case 4:
        return copy_tile_by<from, to, 4>(c, t, source, target);
    case 2:
        return copy_tile_by<from, to, 2>(c, t, source, target);
    default:
        return copy_tile_by<from, to, 1>(c, t, source, target);
    }
}

/* Without a cast. Dense elements of 4 bytes are copied as twice as many of 2 bytes. */
__device__ void copy_plain(const stw_box_copy &c, stw_box_tile t, const char *source,
                           char *target) {
    const bool wide = c.from_type == STW_BOX_F32;
    source += t.at * c.from_stride[3];
    target += t.at * c.to_stride[3];
    t.at = 0;
    if (!wide || is_dense(c)) {
        if (wide) t.n *= 2;
        copy_tile<STW_BOX_BF16, STW_BOX_BF16>(c, t, source, target);
    } else {
        copy_tile_by<STW_BOX_F32, STW_BOX_F32, 1>(c, t, source + c.from, target + c.to);
    }
}

template <stw_cuda_casts casts>
__device__ void copy_typed(const stw_box_copy &c, const stw_box_tile &t, const char *source,
                           char *target) {
    if constexpr (casts == STW_CUDA_CASTS_NONE) {
        return copy_plain(c, t, source, target);
    } else if constexpr (casts == STW_CUDA_CASTS_TO_BF16)
        return copy_tile<STW_BOX_F32, STW_BOX_BF16>(c, t, source, target);
    switch (c.from_type * 3u + c.to_type) {
    case STW_BOX_F32 * 3 + STW_BOX_F32:
        return copy_tile<STW_BOX_F32, STW_BOX_F32>(c, t, source, target);
    case STW_BOX_F32 * 3 + STW_BOX_BF16:
        return copy_tile<STW_BOX_F32, STW_BOX_BF16>(c, t, source, target);
    case STW_BOX_F32 * 3 + STW_BOX_F16:
        return copy_tile<STW_BOX_F32, STW_BOX_F16>(c, t, source, target);
    case STW_BOX_BF16 * 3 + STW_BOX_F32:
        return copy_tile<STW_BOX_BF16, STW_BOX_F32>(c, t, source, target);
    case STW_BOX_BF16 * 3 + STW_BOX_F16:
        return copy_tile<STW_BOX_BF16, STW_BOX_F16>(c, t, source, target);
    case STW_BOX_F16 * 3 + STW_BOX_F32:
        return copy_tile<STW_BOX_F16, STW_BOX_F32>(c, t, source, target);
    case STW_BOX_F16 * 3 + STW_BOX_BF16:
        return copy_tile<STW_BOX_F16, STW_BOX_BF16>(c, t, source, target);
    default: /* two bytes, as they are */
        return copy_tile<STW_BOX_BF16, STW_BOX_BF16>(c, t, source, target);
    }
}

/* The copy of a tile: the last one that does not begin after it. */
__device__ uint32_t find_copy(const stw_box_copy *copies, uint32_t low, uint32_t n, uint32_t tile) {
    uint32_t high = n;
    if (low + 1 == n || copies[low + 1].first_tile > tile) return low; /* most often */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (copies[middle].first_tile <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tiles of a block: `each` of them, `step` apart. */
struct share {
    uint32_t step, each;
    __device__ uint32_t first() const { return step == 1 ? blockIdx.x * each : blockIdx.x; }
};

template <stw_cuda_casts casts>
__global__ void __launch_bounds__(threads_per_block, casts == STW_CUDA_CASTS_ANY ? 2 : 4)
    boxes_kernel(const __grid_constant__ stw_cuda_boxes b, const __grid_constant__ share s) {
    __shared__ stw_box_copy copy;
    uint32_t at = 0;
    const uint32_t first = s.first();
    for (uint32_t k = 0, tile = first; k < s.each && tile < b.tiles; k++, tile += s.step) {
        const uint32_t found = find_copy(b.copies, at, b.n, tile);
        if (found != at || k == 0) {
            constexpr unsigned words = sizeof(stw_box_copy) / sizeof(uint64_t);
            __syncthreads(); /* nobody reads the one before any more */
            if (threadIdx.x < words)
                ((uint64_t *)&copy)[threadIdx.x] =
                    ((const uint64_t *)(b.copies + found))[threadIdx.x];
            __syncthreads();
            at = found;
        }
        const char *source = copy.from_base == STW_BOX_FROM_BUFFER ? (const char *)b.buffers.from
                             : copy.from_base == STW_BOX_SENT_BUFFER
                                 ? (const char *)b.buffers.sent
                                 : (const char *)b.bases[copy.from_base - STW_BOX_FIRST_BASE];
        char *target = copy.to_base == STW_BOX_TO_BUFFER
                           ? (char *)b.buffers.to
                           : (char *)b.bases[copy.to_base - STW_BOX_FIRST_BASE];
        copy_typed<casts>(copy, stw_box_tile_of(&copy, tile - copy.first_tile), source, target);
    }
}

static_assert(sizeof(stw_box_copy) % sizeof(uint64_t) == 0, "copied by words");

/* ---- sums ---- */

__global__ void __launch_bounds__(threads_per_block)
    sum_kernel(const uint64_t *words, uint64_t n, uint32_t rest, uint64_t *sum) {
    uint64_t mine = 0;
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (uint64_t i = first; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        mine += stw_box_sum_word(i, __ldcs((const unsigned long long *)words + i));
    if (first == 0 && rest > 0) {
        uint64_t word = 0;
        for (uint32_t k = 0; k < rest; k++)
            word |= (uint64_t)((const uint8_t *)(words + n))[k] << (8 * k);
        mine += stw_box_sum_word(n, word);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        mine += __shfl_down_sync(0xFFFFFFFFu, (unsigned long long)mine, distance);
    if (threadIdx.x % 32 == 0) atomicAdd((unsigned long long *)sum, (unsigned long long)mine);
}

/* ---- digests ---- */

__device__ uint32_t bits_of(const stw_box_copy &c, const char *from) {
    const uint32_t stored =
        stw_box_width(c.from_type) == 4 ? *(const uint32_t *)from : *(const uint16_t *)from;
    if (c.from_type == c.to_type) return stored;
    const float x = c.from_type == STW_BOX_F32    ? stw_float_from_bits(stored)
                    : c.from_type == STW_BOX_BF16 ? stw_float_from_bf16((uint16_t)stored)
                                                  : stw_float_from_f16(stored);
    return c.to_type == STW_BOX_F32    ? stw_bits_from_float(x)
           : c.to_type == STW_BOX_BF16 ? stw_bf16_from_float(x)
                                       : to_f16(x);
}

__device__ uint64_t digest_tile(const stw_box_copy &c, const stw_box_tile &t, const char *source) {
    const uint32_t width = stw_box_width(c.to_type);
    uint64_t sum = 0;
    for (uint32_t u = threadIdx.x; u < t.rows * t.n; u += threads_per_block) {
        const uint32_t row = u / t.n, i = t.at + u % t.n;
        uint64_t from_at, to_at;
        stw_box_row(&c, t.row + row, &from_at, &to_at);
        sum += stw_box_digest_element((c.to + to_at + i * c.to_stride[3]) / width,
                                      bits_of(c, source + c.from + from_at + i * c.from_stride[3]));
    }
    return sum;
}

__global__ void __launch_bounds__(threads_per_block)
    digest_kernel(const __grid_constant__ stw_cuda_boxes b, uint64_t *digest) {
    uint64_t mine = 0;
    uint32_t at = 0;
    for (uint32_t tile = blockIdx.x; tile < b.tiles; tile += gridDim.x) {
        at = find_copy(b.copies, at, b.n, tile);
        const stw_box_copy &c = b.copies[at];
        mine += digest_tile(c, stw_box_tile_of(&c, tile - c.first_tile),
                            (const char *)b.bases[c.from_base - STW_BOX_FIRST_BASE]);
    }
    for (int distance = 16; distance > 0; distance /= 2)
        mine += __shfl_down_sync(0xFFFFFFFFu, (unsigned long long)mine, distance);
    if (threadIdx.x % 32 == 0) atomicAdd((unsigned long long *)digest, (unsigned long long)mine);
}

} // namespace

cudaError_t stw_cuda_boxes_digest(stw_cuda_launch launch, const stw_cuda_boxes *boxes,
                                  uint64_t *digest) {
    if (boxes->tiles == 0) return cudaSuccess;
    const uint32_t most = launch.sms * (boxes->direct ? direct_blocks_per_sm : blocks_per_sm);
    const uint32_t blocks = boxes->tiles < most ? boxes->tiles : most;
    digest_kernel<<<blocks, threads_per_block, 0, launch.stream>>>(*boxes, digest);
    return cudaGetLastError();
}

cudaError_t stw_cuda_boxes_run(stw_cuda_launch launch, const stw_cuda_boxes *boxes) {
    if (boxes->tiles == 0) return cudaSuccess;
    const uint32_t most = launch.sms * (boxes->direct ? direct_blocks_per_sm : blocks_per_sm);
    share s = {1, (boxes->tiles - 1) / most + 1};
    if (boxes->direct)
        s.step = boxes->tiles < most ? boxes->tiles : most;
    else if (s.each > tiles_of_block)
        s.each = tiles_of_block;
    const uint32_t blocks = boxes->direct ? s.step : (boxes->tiles - 1) / s.each + 1;
    if (boxes->casts == STW_CUDA_CASTS_NONE)
        boxes_kernel<STW_CUDA_CASTS_NONE>
            <<<blocks, threads_per_block, 0, launch.stream>>>(*boxes, s);
    else if (boxes->casts == STW_CUDA_CASTS_TO_BF16)
        boxes_kernel<STW_CUDA_CASTS_TO_BF16>
            <<<blocks, threads_per_block, 0, launch.stream>>>(*boxes, s);
    else
        boxes_kernel<STW_CUDA_CASTS_ANY>
            <<<blocks, threads_per_block, 0, launch.stream>>>(*boxes, s);
    return cudaGetLastError();
}

cudaError_t stw_cuda_boxes_sum(stw_cuda_launch launch, const void *address, uint64_t bytes,
                               uint64_t *sum) {
    const uint64_t n = bytes / sizeof(uint64_t);
    const unsigned blocks = blocks_for(n, threads_per_block * 8, launch.sms * blocks_per_sm);
    if (bytes == 0) return cudaSuccess;
    sum_kernel<<<blocks, threads_per_block, 0, launch.stream>>>(
        (const uint64_t *)address, n, (uint32_t)(bytes % sizeof(uint64_t)), sum);
    return cudaGetLastError();
}
