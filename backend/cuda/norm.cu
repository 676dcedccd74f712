/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the global norm: the exact sum of squares and what follows from it. Compiled as
 * kernels.cu is: the arithmetic is that of backend/norm.h. */
#include "backend/norm.h"

#include "backend/cuda/elements.h"

namespace {

/* ---- the exact sum of squares ----
 * Each lane of a warp keeps a column of cells in shared memory, one per four exponents, which no
 * other lane touches: no atomics, and no bank conflicts whichever cells the lanes hit, because the
 * cells of four exponents fill whole rows of banks. A cell sums squares of mantissas, shifted by
 * twice the exponent modulo four: below 2^22 for bf16, in 32 bits, and below 2^54 for fp32, in 64.
 * After 2^10 values a column is emptied.
 *
 * Gradients are multiplied by 2^64 first, which is exact and makes subnormal numbers normal: cell 0
 * counts zeros alone. The last cell has what overflows, which begins at 2^61, and what is not
 * finite: a warp that finds something there goes over its gradients a second time for these. */

constexpr unsigned norm_cells = 64;      /* of 256 exponents */
constexpr unsigned norm_room = 1u << 10; /* values of a cell */
constexpr unsigned norm_blocks_per_sm = 4;
constexpr unsigned norm_shared = 48u << 10; /* per block, what is to be had without asking */

template <stw_element type> struct norm_type;
template <> struct norm_type<STW_ELEMENT_BF16> {
    typedef uint32_t cell;
    static constexpr unsigned per_load = 8; /* values of a load of 16 bytes, and */
    static constexpr unsigned loads = 3;    /* of these in flight per thread */
    static constexpr int unit = -98; /* cell c counts 2^(8 c + unit) units of stw_norm_bins */
    static __device__ void add_scaled(char *column, uint32_t scaled) { /* in the upper half */
        /* Given an exponent of 132 to 135, it has no bits below 2^-2 and its square is below 2^18:
         * the sum with 2^19 is exact, and its last bits are the square as an integer. */
        float x = stw_float_from_bits((scaled & 0x01FF0000u) | 132u << 23);
        uint32_t square = stw_bits_from_float(fmaf(x, x, 524288.0f)) - 0x49000000u;
        *(cell *)(column + (scaled >> 18 & (norm_cells - 1) << 7)) += square;
    }
    static __device__ void add(char *column, uint32_t two) {
        uint32_t scaled; /* both times 2^64; the addend is -0 */
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(scaled)
            : "r"(two), "r"(0x5F805F80u), "r"(0x80008000u));
        add_scaled(column, scaled << 16);
        add_scaled(column, scaled);
    }
};
template <> struct norm_type<STW_ELEMENT_F32> {
    typedef unsigned long long cell;
    static constexpr unsigned per_load = 4, loads = 8;
    static constexpr int unit = -130;
    static __device__ void add_scaled(char *column, uint32_t scaled) {
        uint32_t mantissa = ((scaled & 0x7FFFFFu) | 0x800000u) << (scaled >> 23 & 3u);
        *(cell *)(column + (scaled >> 17 & (norm_cells - 1) << 8)) += (cell)mantissa * mantissa;
    }
    static __device__ void add(char *column, uint32_t one) {
        add_scaled(column, stw_bits_from_float(stw_float_from_bits(one) * 18446744073709551616.0f));
    }
};

template <stw_element type> struct norm_shape {
    static constexpr unsigned cell_bytes = sizeof(typename norm_type<type>::cell);
    static constexpr unsigned warp_bytes = norm_cells * 32 * cell_bytes;
    static constexpr unsigned warps = norm_shared / warp_bytes; /* of a block */
    static constexpr unsigned loads = norm_type<type>::loads;
    static constexpr unsigned per_turn = loads * norm_type<type>::per_load; /* of a thread */
};

/* Sums of the low and of the high 32 bits of cells. */
struct norm_sum {
    unsigned long long low, high;
};

/* Sum and empty the cells of one row of a warp, beginning with the own column so that lanes meet
 * different banks. */
template <typename cell>
__device__ void norm_empty(cell *cells, unsigned row, unsigned lane, norm_sum *sum) {
    for (unsigned i = 0; i < 32; i++) {
        cell *at = cells + 32u * row + ((lane + i) & 31u);
        sum->low += (uint32_t)*at;
        if (sizeof(cell) == 8) sum->high += (unsigned long long)*at >> 32;
        *at = 0;
    }
}

/* A sum in units of 2^shift goes to the bins, 32 bits at a time: a counter has room for 2^32 of
 * these. Bits below the unit are zeros. */
__device__ void norm_to_bins(norm_sum sum, int shift, stw_norm_bins *bins) {
    stw_norm_u128 value = (stw_norm_u128)sum.low + ((stw_norm_u128)sum.high << 32);
    unsigned bin = shift > 0 ? (unsigned)shift / 16 : 0;
    value = shift > 0 ? value << (shift % 16) : value >> -shift;
    for (; value != 0 && bin < STW_NORM_BINS; bin += 2, value >>= 32)
        if ((uint32_t)value != 0)
            atomicAdd((unsigned long long *)&bins->low[bin], (unsigned long long)(uint32_t)value);
}

/* One gradient straight to the bins. */
__device__ void norm_one(float g, stw_norm_bins *bins) {
    unsigned bin = 0;
    uint64_t value = 0;
    int kind = stw_norm_split(g, &bin, &value);
    if (kind >= 2) atomicAdd((unsigned long long *)&bins->not_finite, 1ull);
    if (kind == 3) atomicAdd((unsigned long long *)&bins->nans, 1ull);
    if (kind != 1) return;
    atomicAdd((unsigned long long *)&bins->low[bin], value & 0xFFFFFFFFull);
    if (value >> 32 != 0) atomicAdd((unsigned long long *)&bins->high[bin], value >> 32);
}

template <stw_element type> __device__ void norm_add(char *column, uint4 load) {
    norm_type<type>::add(column, load.x);
    norm_type<type>::add(column, load.y);
    norm_type<type>::add(column, load.z);
    norm_type<type>::add(column, load.w);
}

/* Turns of a warp: `loads` loads of 16 bytes per lane each, for t = first, first + stride, ... */
struct norm_turns {
    const uint4 *loads;
    uint64_t n, first, stride;
};

__device__ uint4 norm_load(const norm_turns &turns, uint64_t at) {
    return at < turns.n ? __ldcs(turns.loads + at) : make_uint4(0, 0, 0, 0); /* adds nothing */
}

/* What the first pass leaves out: gradients from 2^61 on, now times 2^-64, and what is not finite.
 * The cells are empty. */
template <stw_element type>
__device__ void norm_special(const norm_turns &turns, typename norm_type<type>::cell *cells,
                             unsigned lane, stw_norm_bins *bins) {
    typedef typename element<type>::type stored_type;
    constexpr unsigned per_load = norm_type<type>::per_load;
    constexpr unsigned loads = 32 * norm_type<type>::loads;
    const stored_type *grads = (const stored_type *)turns.loads;
    norm_sum sums[2] = {};
    unsigned room = norm_room;
    unsigned long long not_finite = 0, nans = 0;
    for (uint64_t t = turns.first; t * loads < turns.n; t += turns.stride) {
        uint64_t end = min((unsigned long long)(t + 1) * loads, (unsigned long long)turns.n);
        for (uint64_t i = t * loads * per_load + lane; i < end * per_load; i += 32) {
            float g = element<type>::widen(grads[i]);
            bool finite = fabsf(g) <= 3.40282347e38f;
            not_finite += !finite;
            nans += g != g;
            if (finite && fabsf(g) >= 2305843009213693952.0f)
                norm_type<type>::add_scaled((char *)(cells + lane),
                                            stw_bits_from_float(g * 5.42101086e-20f));
        }
        room -= norm_shape<type>::per_turn;
        if (room >= norm_shape<type>::per_turn && (t + turns.stride) * loads < turns.n) continue;
        room = norm_room;
        __syncwarp();
        norm_empty(cells, lane, lane, &sums[0]);
        norm_empty(cells, lane + 32, lane, &sums[1]);
        __syncwarp();
    }
    for (unsigned k = 0; k < 2; k++)
        norm_to_bins(sums[k], 8 * (int)(lane + 32 * k) + norm_type<type>::unit + 256, bins);
    if (not_finite != 0) atomicAdd((unsigned long long *)&bins->not_finite, not_finite);
    if (nans != 0) atomicAdd((unsigned long long *)&bins->nans, nans);
}

template <stw_element type>
__global__ void __launch_bounds__(32 * norm_shape<type>::warps, norm_blocks_per_sm)
    norm_kernel(const void *grads, uint64_t n, stw_norm_bins *bins) {
    typedef norm_shape<type> shape;
    typedef typename element<type>::type stored_type;
    typedef typename norm_type<type>::cell cell;
    __shared__ cell cells[shape::warps][norm_cells][32];
    constexpr unsigned per_load = norm_type<type>::per_load;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    char *column = (char *)&cells[warp][0][lane];
    for (unsigned c = 0; c < norm_cells; c++) cells[warp][c][lane] = 0;
    norm_sum sums[2] = {}; /* of cells `lane` and `lane` + 32 */
    bool special = false;

    /* Single gradients before and after the aligned loads. */
    const stored_type *all = (const stored_type *)grads;
    uint64_t head = (0u - (uintptr_t)grads) / sizeof(stored_type) % per_load;
    if (head > n) head = n;
    const uint64_t tail = (n - head) % per_load;
    if (blockIdx.x == 0 && warp == 0 && lane < head + tail)
        norm_one(element<type>::widen(all[lane < head ? lane : n - tail + (lane - head)]), bins);

    const norm_turns turns = {(const uint4 *)(all + head), (n - head) / per_load,
                              (uint64_t)blockIdx.x * shape::warps + warp,
                              (uint64_t)gridDim.x * shape::warps};
    constexpr unsigned loads = 32 * shape::loads; /* of a turn of the warp */
    uint4 next[shape::loads];
    unsigned room = norm_room;
    uint64_t at = turns.first * loads + lane;
#pragma unroll
    for (unsigned k = 0; k < shape::loads; k++) next[k] = norm_load(turns, at + 32 * k);
#pragma unroll 1
    for (uint64_t t = turns.first; t * loads < turns.n; t += turns.stride) {
        uint4 now[shape::loads];
        at += turns.stride * loads;
#pragma unroll
        for (unsigned k = 0; k < shape::loads; k++) {
            now[k] = next[k];
            next[k] = norm_load(turns, at + 32 * k);
        }
#pragma unroll
        for (unsigned k = 0; k < shape::loads; k++) norm_add<type>(column, now[k]);
        room -= shape::per_turn;
        if (room >= shape::per_turn && t * loads + turns.stride * loads < turns.n) continue;
        room = norm_room;
        __syncwarp();
        special = special || cells[warp][norm_cells - 1][lane] != 0;
        norm_empty(&cells[warp][0][0], lane, lane, &sums[0]);
        norm_empty(&cells[warp][0][0], lane + 32, lane, &sums[1]);
        __syncwarp();
    }
    special = __any_sync(0xFFFFFFFFu, special);
    if (lane > 0) norm_to_bins(sums[0], 8 * (int)lane + norm_type<type>::unit, bins);
    if (lane < 31) norm_to_bins(sums[1], 8 * (int)lane + 256 + norm_type<type>::unit, bins);
    if (special) norm_special<type>(turns, &cells[warp][0][0], lane, bins);
}

template <stw_element type>
cudaError_t norm_launch(stw_cuda_launch launch, const void *grads, uint64_t n,
                        stw_norm_bins *bins) {
    typedef norm_shape<type> shape;
    constexpr unsigned per_block = 32 * shape::warps * shape::per_turn;
    unsigned blocks = blocks_for(n, per_block, (uint64_t)launch.sms * norm_blocks_per_sm);
    norm_kernel<type><<<blocks, 32 * shape::warps, 0, launch.stream>>>(grads, n, bins);
    return cudaGetLastError();
}

/* ---- gradients that lie apart ----
 * A warp takes chunks of the flat space and goes through the runs of gradients in each of them with
 * the same cells, which are emptied when they are full and at the end. */

constexpr uint64_t norm_chunk = 1u << 15; /* elements: many chunks for every warp, and long runs */

template <stw_element type> struct norm_warp {
    typedef typename norm_type<type>::cell cell;
    cell *cells;
    unsigned lane, room;
    bool special;
    norm_sum sums[2]; /* of cells `lane` and `lane` + 32 */

    __device__ void empty() {
        room = norm_room;
        __syncwarp();
        special = special || cells[32 * (norm_cells - 1) + lane] != 0;
        norm_empty(cells, lane, lane, &sums[0]);
        norm_empty(cells, lane + 32, lane, &sums[1]);
        __syncwarp();
    }
    __device__ void count() { /* a turn of additions */
        room -= norm_shape<type>::per_turn;
        if (room < norm_shape<type>::per_turn) empty();
    }
    __device__ void to_bins(int unit, stw_norm_bins *bins) {
        if (lane > 0) norm_to_bins(sums[0], 8 * (int)lane + unit, bins);
        if (lane < 31) norm_to_bins(sums[1], 8 * (int)lane + 256 + unit, bins);
        sums[0] = sums[1] = norm_sum{};
    }
};

/* All of a run but what the last cell has. */
template <stw_element type>
__device__ void norm_run(norm_warp<type> &w, const typename element<type>::type *grads,
                         uint64_t n) {
    constexpr unsigned per_load = norm_type<type>::per_load;
    constexpr unsigned loads = norm_type<type>::loads;
    char *column = (char *)(w.cells + w.lane);
    uint64_t head = (0u - (uintptr_t)grads) / sizeof *grads % per_load;
    if (head > n) head = n;
    const uint64_t tail = (n - head) % per_load;
    if (head + tail > 0) {
        if (w.lane < head + tail)
            norm_type<type>::add(
                column,
                element<type>::bits(grads[w.lane < head ? w.lane : n - tail + (w.lane - head)]));
        w.count();
    }
    const norm_turns turns = {(const uint4 *)(grads + head), (n - head) / per_load, 0, 1};
    uint4 next[loads];
    uint64_t at = w.lane;
#pragma unroll
    for (unsigned k = 0; k < loads; k++) next[k] = norm_load(turns, at + 32 * k);
#pragma unroll 1
    for (uint64_t done = 0; done < turns.n; done += 32 * loads) {
        uint4 now[loads];
        at += 32 * loads;
#pragma unroll
        for (unsigned k = 0; k < loads; k++) {
            now[k] = next[k];
            next[k] = norm_load(turns, at + 32 * k);
        }
#pragma unroll
        for (unsigned k = 0; k < loads; k++) norm_add<type>(column, now[k]);
        w.count();
    }
}

/* What the last cell has, as in norm_special. */
template <stw_element type>
__device__ void norm_special_run(norm_warp<type> &w, const typename element<type>::type *grads,
                                 uint64_t n, stw_norm_bins *bins) {
    unsigned long long not_finite = 0, nans = 0;
    for (uint64_t i = 0; i < n; i += 32) {
        float g = i + w.lane < n ? element<type>::widen(grads[i + w.lane]) : 0.0f;
        bool finite = fabsf(g) <= 3.40282347e38f;
        not_finite += !finite;
        nans += g != g;
        if (finite && fabsf(g) >= 2305843009213693952.0f)
            norm_type<type>::add_scaled((char *)(w.cells + w.lane),
                                        stw_bits_from_float(g * 5.42101086e-20f));
        w.count();
    }
    if (not_finite != 0) atomicAdd((unsigned long long *)&bins->not_finite, not_finite);
    if (nans != 0) atomicAdd((unsigned long long *)&bins->nans, nans);
}

template <stw_element type>
__device__ void norm_walk(norm_warp<type> &w, const stw_cuda_grads &g, bool special,
                          stw_norm_bins *bins) {
    typedef typename element<type>::type stored_type;
    const uint64_t warps = (uint64_t)gridDim.x * norm_shape<type>::warps;
    uint64_t at = ((uint64_t)blockIdx.x * norm_shape<type>::warps + threadIdx.x / 32) * norm_chunk;
    for (; at < g.n; at += (warps - 1) * norm_chunk) {
        const uint64_t end = min((unsigned long long)(at + norm_chunk), (unsigned long long)g.n);
        for (uint32_t s = find_span(g.spans, g.n_spans, at); at < end; s++) {
            const stw_span *span = &g.spans[s];
            const uint64_t stop =
                min((unsigned long long)(span->first + span->n), (unsigned long long)end);
            const stored_type *grads =
                (const stored_type *)((uintptr_t)g.base + span->grads) + (at - span->first);
            if (special)
                norm_special_run<type>(w, grads, stop - at, bins);
            else
                norm_run<type>(w, grads, stop - at);
            at = stop;
        }
        at = end + (norm_chunk - (end & (norm_chunk - 1))) % norm_chunk; /* the last is short */
    }
}

template <stw_element type>
__global__ void __launch_bounds__(32 * norm_shape<type>::warps, norm_blocks_per_sm)
    norm_spans_kernel(const __grid_constant__ stw_cuda_grads grads, stw_norm_bins *bins) {
    typedef norm_shape<type> shape;
    typedef typename norm_type<type>::cell cell;
    __shared__ cell cells[shape::warps][norm_cells][32];
    norm_warp<type> w = {&cells[threadIdx.x / 32][0][0], threadIdx.x % 32, norm_room, false, {}};
    for (unsigned c = 0; c < norm_cells; c++) w.cells[32 * c + w.lane] = 0;
    norm_walk<type>(w, grads, false, bins);
    w.empty();
    w.to_bins(norm_type<type>::unit, bins);
    if (!__any_sync(0xFFFFFFFFu, w.special)) return;
    norm_walk<type>(w, grads, true, bins);
    w.empty();
    for (unsigned k = 0; k < 2; k++)
        norm_to_bins(w.sums[k], 8 * (int)(w.lane + 32 * k) + norm_type<type>::unit + 256, bins);
}

template <stw_element type>
cudaError_t norm_launch_spans(stw_cuda_launch launch, const stw_cuda_grads *grads,
                              stw_norm_bins *bins) {
    typedef norm_shape<type> shape;
    unsigned blocks = blocks_for(grads->n, (unsigned)(shape::warps * norm_chunk),
                                 (uint64_t)launch.sms * norm_blocks_per_sm);
    norm_spans_kernel<type><<<blocks, 32 * shape::warps, 0, launch.stream>>>(*grads, bins);
    return cudaGetLastError();
}

/* ---- from bins to norm and factor ----
 * One block: its threads fetch and store (one at a time, 74 reads over PCIe would take their time),
 * one of them computes. Bins have the layout of counters. */

constexpr unsigned counter_threads = 96;
static_assert(sizeof(stw_norm_bins) == STW_NORM_COUNTERS * sizeof(uint64_t), "bins are counters");

__global__ void __launch_bounds__(counter_threads)
    norm_counters_kernel(const stw_norm_bins *gpu_bins, const stw_norm_bins *host_bins, int counts,
                         uint64_t *counters) {
    __shared__ stw_norm_bins sum, other;
    for (unsigned i = threadIdx.x; i < STW_NORM_COUNTERS; i += counter_threads) {
        ((uint64_t *)&sum)[i] = counts ? ((const uint64_t *)gpu_bins)[i] : 0;
        ((uint64_t *)&other)[i] =
            counts && host_bins != NULL ? ((const uint64_t *)host_bins)[i] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0 && counts) stw_norm_merge(&sum, &other);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < STW_NORM_COUNTERS; i += counter_threads)
        counters[i] = ((const uint64_t *)&sum)[i];
}

__global__ void __launch_bounds__(counter_threads)
    norm_factor_kernel(const uint64_t *counters, double clip_norm, double *norm, float *factor) {
    __shared__ stw_norm_bins bins;
    for (unsigned i = threadIdx.x; i < STW_NORM_COUNTERS; i += counter_threads)
        ((uint64_t *)&bins)[i] = counters[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    double value = stw_norm_value(&bins);
    *norm = value;
    *factor = stw_norm_clip_factor(value, clip_norm);
}

} // namespace

cudaError_t stw_cuda_norm_add(stw_cuda_launch launch, stw_element type, const void *grads,
                              uint64_t n, stw_norm_bins *bins) {
    if (type == STW_ELEMENT_F32) return norm_launch<STW_ELEMENT_F32>(launch, grads, n, bins);
    if (type == STW_ELEMENT_BF16) return norm_launch<STW_ELEMENT_BF16>(launch, grads, n, bins);
    return cudaErrorInvalidValue;
}

cudaError_t stw_cuda_norm_add_spans(stw_cuda_launch launch, stw_element type,
                                    const stw_cuda_grads *grads, stw_norm_bins *bins) {
    if (type == STW_ELEMENT_F32) return norm_launch_spans<STW_ELEMENT_F32>(launch, grads, bins);
    if (type == STW_ELEMENT_BF16) return norm_launch_spans<STW_ELEMENT_BF16>(launch, grads, bins);
    return cudaErrorInvalidValue;
}

cudaError_t stw_cuda_norm_counters(stw_cuda_launch launch, const stw_norm_bins *gpu_bins,
                                   const stw_norm_bins *host_bins, int counts, uint64_t *counters) {
    norm_counters_kernel<<<1, counter_threads, 0, launch.stream>>>(gpu_bins, host_bins, counts,
                                                                   counters);
    return cudaGetLastError();
}

cudaError_t stw_cuda_norm_factor(stw_cuda_launch launch, const uint64_t *counters, double clip_norm,
                                 double *norm, float *factor) {
    norm_factor_kernel<<<1, counter_threads, 0, launch.stream>>>(counters, clip_norm, norm, factor);
    return cudaGetLastError();
}

/* Ask for as much of the L1 as shared memory as all blocks of a multiprocessor want. */
template <stw_element type> static cudaError_t prefer_shared() {
    const cudaFuncAttribute share = cudaFuncAttributePreferredSharedMemoryCarveout;
    cudaError_t code =
        cudaFuncSetAttribute(norm_kernel<type>, share, cudaSharedmemCarveoutMaxShared);
    if (code != cudaSuccess) return code;
    return cudaFuncSetAttribute(norm_spans_kernel<type>, share, cudaSharedmemCarveoutMaxShared);
}

cudaError_t stw_cuda_norm_prepare(void) {
    cudaError_t code = prefer_shared<STW_ELEMENT_F32>();
    return code == cudaSuccess ? prefer_shared<STW_ELEMENT_BF16>() : code;
}
