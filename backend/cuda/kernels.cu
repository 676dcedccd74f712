/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: one pass over memory each, four elements per access where alignment allows, 64-bit
 * indices. Compiled with -fmad=false and without fast-math: the arithmetic is that of
 * backend/element.h and backend/norm.h, operation by operation. */
#include "backend/cuda/kernels.h"

#include "backend/cuda/elements.h"
#include "backend/norm.h"

namespace {

constexpr unsigned threads_per_block = 256;
constexpr unsigned whole_threads = 128;    /* of a block that updates a whole bucket */
constexpr uint64_t most_blocks = 1u << 30; /* beyond, threads take several turns */

__device__ uint64_t thread_index() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ uint64_t thread_count() { return (uint64_t)gridDim.x * blockDim.x; }

/* ---- AdamW ----
 * A block takes chunks of the bucket and walks over the spans that meet each of them. What lies in
 * one span and one chunk is a run; a run whose operands have the same phase modulo four elements is
 * a few single elements, fours, and again single elements, any other run is single elements
 * throughout (neighbouring threads on neighbouring elements: still whole lines per warp).
 *
 * A thread has one four of every operand in flight. With operands behind PCIe many blocks are no
 * faster than a few and would only scatter what the host's memory sees: a direct launch has few
 * blocks with small chunks, taken in turn, so that at any time about one large page (2 MiB) of each
 * array is being walked over. */

constexpr unsigned per_thread = 4;
constexpr unsigned tile = threads_per_block * per_thread; /* elements of a block's turn */
constexpr unsigned most_tiles = 4; /* of a chunk: so that few need a search */
constexpr unsigned direct_blocks_per_sm = 2;

/* Addresses of the bucket's first element as seen from one span: an element of the span lies where
 * its number in the bucket says, counted from there. Wraps around, as the spans' offsets do. */
template <stw_element type>
__device__ char *seen_from(const void *base, uint64_t offset, uint64_t elements_before) {
    return (char *)((uintptr_t)base + offset -
                    elements_before * sizeof(typename element<type>::type));
}

template <stw_element type> __device__ unsigned phase(const char *base, uint64_t i) {
    typedef typename element<type>::type stored_type;
    return (unsigned)((uintptr_t)(base + i * sizeof(stored_type)) / sizeof(stored_type)) & 3u;
}

template <stw_element type> __device__ float get(const void *base, uint64_t i) {
    return element<type>::widen(__ldcs((const typename element<type>::type *)base + i));
}
template <stw_element type> __device__ void set(void *base, uint64_t i, float x) {
    __stcs((typename element<type>::type *)base + i, element<type>::narrow(x));
}
template <stw_element type> __device__ void load_four(float *x, const char *base, uint64_t i) {
    typedef typename element<type>::four four;
    element<type>::unpack(x,
                          __ldcs((const four *)(base + i * sizeof(typename element<type>::type))));
}
template <stw_element type> __device__ void store_four(const float *x, char *base, uint64_t i) {
    typedef typename element<type>::four four;
    __stcs((four *)(base + i * sizeof(typename element<type>::type)), element<type>::pack(x));
}

/* A thread's elements of the tile at element `first`; elements from `end` on stay away. Fours:
 * x[4 k ..] is element first + 4 (thread + k threads). Singles: x[k] is first + thread + k threads.
 */
template <stw_element type>
__device__ void load(float *x, const char *base, uint64_t first, uint64_t end, bool fours) {
    if (fours) {
#pragma unroll
        for (unsigned k = 0; k < per_thread / 4; k++) {
            uint64_t i = first + 4 * (threadIdx.x + k * threads_per_block);
            if (i < end) load_four<type>(x + 4 * k, base, i);
        }
    } else {
#pragma unroll
        for (unsigned k = 0; k < per_thread; k++) {
            uint64_t i = first + threadIdx.x + k * threads_per_block;
            if (i < end) x[k] = get<type>(base, i);
        }
    }
}
template <stw_element type>
__device__ void store(const float *x, char *base, uint64_t first, uint64_t end, bool fours) {
    if (fours) {
#pragma unroll
        for (unsigned k = 0; k < per_thread / 4; k++) {
            uint64_t i = first + 4 * (threadIdx.x + k * threads_per_block);
            if (i < end) store_four<type>(x + 4 * k, base, i);
        }
    } else {
#pragma unroll
        for (unsigned k = 0; k < per_thread; k++) {
            uint64_t i = first + threadIdx.x + k * threads_per_block;
            if (i < end) set<type>(base, i, x[k]);
        }
    }
}

/* Elements of the bucket that lie in one span. */
struct span_part {
    char *params;      /* of the bucket's first element, as this span sees it */
    const char *grads; /* the same */
    uint64_t first, end;
};

template <stw_element params, bool has_master, stw_element grads, stw_element exp_avg,
          stw_element exp_avg_sq>
__device__ void adamw_run(const stw_adamw &a, const stw_cuda_bucket &b, stw_adamw_group group,
                          float factor, const span_part &part) {
    char *const p = part.params;
    const char *const g = part.grads;
    uint64_t at = part.first;
    const uint64_t stop = part.end;
    char *master = (char *)b.master, *avg = (char *)b.exp_avg, *sq = (char *)b.exp_avg_sq;
    unsigned ahead = phase<exp_avg>(avg, at);
    bool together = phase<exp_avg_sq>(sq, at) == ahead && phase<grads>(g, at) == ahead &&
                    phase<params>(p, at) == ahead &&
                    (!has_master || phase<STW_ELEMENT_F32>(master, at) == ahead);
    uint64_t head = together ? (0u - ahead) & 3u : stop - at;
    if (head > stop - at) head = stop - at;
    uint64_t end = at + head;
    bool fours = false;
#pragma unroll 1
    while (at < stop) {
        if (at == end) { /* from the head to the fours, from there to the tail */
            fours = stop - at >= 4;
            end = fours ? at + ((stop - at) & ~3ull) : stop;
        }
        if (at + threadIdx.x * (fours ? 4u : 1u) < end) {
            float w[per_thread] = {}, x[per_thread] = {}, m[per_thread] = {}, v[per_thread] = {};
            load<grads>(x, g, at, end, fours);
            if (has_master)
                load<STW_ELEMENT_F32>(w, master, at, end, fours);
            else
                load<params>(w, p, at, end, fours);
            load<exp_avg>(m, avg, at, end, fours);
            load<exp_avg_sq>(v, sq, at, end, fours);
#pragma unroll
            for (unsigned k = 0; k < per_thread; k++)
                stw_adamw_element(&a, group, factor, &w[k], x[k], &m[k], &v[k]);
            if (has_master) store<STW_ELEMENT_F32>(w, master, at, end, fours);
            store<params>(w, p, at, end, fours);
            store<exp_avg>(m, avg, at, end, fours);
            store<exp_avg_sq>(v, sq, at, end, fours);
        }
        at = end - at < tile ? end : at + tile;
    }
}

template <stw_element params, bool has_master, stw_element grads, stw_element exp_avg,
          stw_element exp_avg_sq>
__global__ void __launch_bounds__(threads_per_block, 5)
    adamw_kernel(const __grid_constant__ stw_adamw a, const float *clip_factor,
                 const __grid_constant__ stw_cuda_bucket b, uint32_t chunk) {
    const float factor = a.clip ? *clip_factor : 1.0f;
    uint64_t end = 0;
    for (uint64_t at = (uint64_t)blockIdx.x * chunk; at < b.n;
         at = end + (uint64_t)(gridDim.x - 1) * chunk) {
        end = b.n - at < chunk ? b.n : at + chunk;
        uint32_t s = b.n_spans == 0 ? 0 : find_span(b.spans, b.n_spans, b.first + at);
        do {
            uint64_t stop = end;
            uint32_t group = b.param_group;
            char *p = (char *)b.params;
            const char *g = (const char *)b.grads;
            if (b.n_spans != 0) {
                const stw_span *span = &b.spans[s];
                uint64_t before = span->first - b.first; /* elements; modulo 2^64 */
                if (before + span->n < end) stop = before + span->n;
                group = span->group;
                if (b.params_in_spans) p = seen_from<params>(p, span->params, before);
                if (b.grads_in_spans) g = seen_from<grads>(g, span->grads, before);
            }
            adamw_run<params, has_master, grads, exp_avg, exp_avg_sq>(a, b, a.groups[group], factor,
                                                                      span_part{p, g, at, stop});
            at = stop;
        } while (at < end && ++s < b.n_spans);
    }
}

/* A whole bucket of one group in which every four is aligned, the usual one: a thread has one four
 * and nothing to look up, so that few registers leave room for many threads. */
template <stw_element params, bool has_master, stw_element grads, stw_element exp_avg,
          stw_element exp_avg_sq>
__global__ void __launch_bounds__(whole_threads)
    adamw_whole_kernel(const __grid_constant__ stw_adamw a, const float *clip_factor,
                       const __grid_constant__ stw_cuda_bucket b) {
    const float factor = a.clip ? *clip_factor : 1.0f;
    const stw_adamw_group group = a.groups[b.param_group];
    const uint64_t i = 4 * thread_index();
    char *master = (char *)b.master, *p = (char *)b.params;
    if (i + 4 <= b.n) {
        float w[4], x[4], m[4], v[4];
        if (has_master)
            load_four<STW_ELEMENT_F32>(w, master, i);
        else
            load_four<params>(w, p, i);
        load_four<grads>(x, (const char *)b.grads, i);
        load_four<exp_avg>(m, (const char *)b.exp_avg, i);
        load_four<exp_avg_sq>(v, (const char *)b.exp_avg_sq, i);
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            stw_adamw_element(&a, group, factor, &w[k], x[k], &m[k], &v[k]);
        if (has_master) store_four<STW_ELEMENT_F32>(w, master, i);
        store_four<params>(w, p, i);
        store_four<exp_avg>(m, (char *)b.exp_avg, i);
        store_four<exp_avg_sq>(v, (char *)b.exp_avg_sq, i);
    }
    for (uint64_t j = i + 4 <= b.n ? b.n : i; j < b.n; j++) { /* the last one to three */
        float w = has_master ? b.master[j] : get<params>(p, j);
        float m = get<exp_avg>(b.exp_avg, j), v = get<exp_avg_sq>(b.exp_avg_sq, j);
        stw_adamw_element(&a, group, factor, &w, get<grads>(b.grads, j), &m, &v);
        if (has_master) b.master[j] = w;
        set<params>(p, j, w);
        set<exp_avg>(b.exp_avg, j, m);
        set<exp_avg_sq>(b.exp_avg_sq, j, v);
    }
}

struct adamw_functions {
    void (*any)(const stw_adamw, const float *, const stw_cuda_bucket, uint32_t); /* NULL: none */
    void (*whole)(const stw_adamw, const float *, const stw_cuda_bucket);
};

/* From types to the kernels, one type per level. */
template <stw_element params, bool has_master, stw_element grads, stw_element exp_avg>
adamw_functions adamw_of_sq(const stw_element_types *types) {
    if (types->exp_avg_sq == STW_ELEMENT_F32)
        return {adamw_kernel<params, has_master, grads, exp_avg, STW_ELEMENT_F32>,
                adamw_whole_kernel<params, has_master, grads, exp_avg, STW_ELEMENT_F32>};
    if (types->exp_avg_sq == STW_ELEMENT_BF16)
        return {adamw_kernel<params, has_master, grads, exp_avg, STW_ELEMENT_BF16>,
                adamw_whole_kernel<params, has_master, grads, exp_avg, STW_ELEMENT_BF16>};
    return {NULL, NULL};
}
template <stw_element params, bool has_master, stw_element grads>
adamw_functions adamw_of_avg(const stw_element_types *types) {
    if (types->exp_avg == STW_ELEMENT_F32)
        return adamw_of_sq<params, has_master, grads, STW_ELEMENT_F32>(types);
    if (types->exp_avg == STW_ELEMENT_BF16)
        return adamw_of_sq<params, has_master, grads, STW_ELEMENT_BF16>(types);
    return {NULL, NULL};
}
template <stw_element params, bool has_master>
adamw_functions adamw_of_grads(const stw_element_types *types) {
    if (types->grads == STW_ELEMENT_F32)
        return adamw_of_avg<params, has_master, STW_ELEMENT_F32>(types);
    if (types->grads == STW_ELEMENT_BF16)
        return adamw_of_avg<params, has_master, STW_ELEMENT_BF16>(types);
    return {NULL, NULL};
}
adamw_functions adamw_of(const stw_element_types *types) {
    if (types->master != STW_ELEMENT_NONE && types->master != STW_ELEMENT_F32) return {NULL, NULL};
    bool master = types->master == STW_ELEMENT_F32;
    if (types->params == STW_ELEMENT_F32)
        return master ? adamw_of_grads<STW_ELEMENT_F32, true>(types)
                      : adamw_of_grads<STW_ELEMENT_F32, false>(types);
    if (types->params == STW_ELEMENT_BF16)
        return master ? adamw_of_grads<STW_ELEMENT_BF16, true>(types)
                      : adamw_of_grads<STW_ELEMENT_BF16, false>(types);
    return {NULL, NULL};
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
    static __device__ float get(uint16_t x) { return stw_float_from_bf16(x); }
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

template <stw_cuda_source source, stw_element to_type, bool by_four>
__global__ void __launch_bounds__(threads_per_block)
    convert_kernel(void *to, const void *from, uint64_t n) {
    typedef typename stored<source>::type type;
    typedef element<to_type> target;
    uint64_t first = thread_index(), stride = thread_count();
    uint64_t done = 0;
    if (by_four) {
        for (uint64_t i = first; i < n / 4; i += stride) {
            four<type> x = ((const four<type> *)from)[i];
            float y[4] = {stored<source>::get(x.x[0]), stored<source>::get(x.x[1]),
                          stored<source>::get(x.x[2]), stored<source>::get(x.x[3])};
            ((typename target::four *)to)[i] = target::pack(y);
        }
        done = n / 4 * 4;
    }
    for (uint64_t i = done + first; i < n; i += stride)
        ((typename target::type *)to)[i] =
            target::narrow(stored<source>::get(((const type *)from)[i]));
}

template <stw_cuda_source source, stw_element to_type>
cudaError_t convert_to(stw_cuda_launch launch, void *to, const void *from, uint64_t n) {
    unsigned from_align = (unsigned)alignof(four<typename stored<source>::type>);
    bool by_four =
        aligned(to, sizeof(typename element<to_type>::four)) && aligned(from, from_align);
    unsigned blocks = blocks_for(by_four ? n / 4 + 4 : n, threads_per_block, most_blocks);
    if (by_four)
        convert_kernel<source, to_type, true>
            <<<blocks, threads_per_block, 0, launch.stream>>>(to, from, n);
    else
        convert_kernel<source, to_type, false>
            <<<blocks, threads_per_block, 0, launch.stream>>>(to, from, n);
    return cudaGetLastError();
}
template <stw_cuda_source source>
cudaError_t convert(stw_cuda_launch launch, stw_element to_type, void *to, const void *from,
                    uint64_t n) {
    if (to_type == STW_ELEMENT_F32) return convert_to<source, STW_ELEMENT_F32>(launch, to, from, n);
    if (to_type == STW_ELEMENT_BF16)
        return convert_to<source, STW_ELEMENT_BF16>(launch, to, from, n);
    return cudaErrorInvalidValue;
}

/* ---- seeded gradients and digests ---- */

template <stw_element type>
__global__ void __launch_bounds__(threads_per_block)
    seed_grads_kernel(void *to, uint64_t n, uint64_t element_0, uint64_t seed, uint64_t step) {
    for (uint64_t i = thread_index(); i < n; i += thread_count())
        ((typename element<type>::type *)to)[i] =
            element<type>::narrow(stw_seeded_grad(seed, step, element_0 + i));
}

template <stw_element type>
__global__ void __launch_bounds__(threads_per_block)
    digest_kernel(const void *values, uint64_t n, uint64_t element_0, unsigned long long *digest) {
    unsigned long long sum = 0;
    for (uint64_t i = thread_index(); i < n; i += thread_count())
        sum += stw_digest_element(
            element_0 + i,
            element<type>::bits(__ldcs((const typename element<type>::type *)values + i)));
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, lanes);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(digest, sum);
}

} // namespace

/* Is every four of the bucket aligned as one access? */
static bool is_aligned(const stw_element_types *types, const stw_cuda_bucket *b) {
    return aligned(b->params, 4 * (unsigned)stw_element_bytes(types->params)) &&
           aligned(b->grads, 4 * (unsigned)stw_element_bytes(types->grads)) &&
           aligned(b->exp_avg, 4 * (unsigned)stw_element_bytes(types->exp_avg)) &&
           aligned(b->exp_avg_sq, 4 * (unsigned)stw_element_bytes(types->exp_avg_sq)) &&
           (types->master == STW_ELEMENT_NONE || aligned(b->master, 16));
}

cudaError_t stw_cuda_adamw(stw_cuda_launch launch, const stw_adamw *adamw, const float *factor,
                           const stw_element_types *types, const stw_cuda_bucket *bucket) {
    adamw_functions kernels = adamw_of(types);
    bool in_spans = bucket->params_in_spans || bucket->grads_in_spans;
    if (kernels.any == NULL || (adamw->clip && factor == NULL) ||
        (bucket->n_spans == 0 && in_spans) || bucket->param_group >= STW_MAX_PARAM_GROUPS)
        return cudaErrorInvalidValue;
    if (bucket->n_spans == 0 && !bucket->direct && is_aligned(types, bucket)) {
        kernels.whole<<<blocks_for(bucket->n / 4 + 1, whole_threads, most_blocks), whole_threads, 0,
                        launch.stream>>>(*adamw, factor, *bucket);
        return cudaGetLastError();
    }
    /* Chunks as long as they may be while every multiprocessor gets several of them. */
    uint64_t tiles = bucket->direct ? 1 : bucket->n / tile / ((uint64_t)launch.sms * 8 + 1);
    uint32_t chunk = tile * (uint32_t)(tiles < 1 ? 1 : tiles > most_tiles ? most_tiles : tiles);
    uint64_t most = bucket->direct ? (uint64_t)launch.sms * direct_blocks_per_sm : most_blocks;
    kernels.any<<<blocks_for(bucket->n, chunk, most), threads_per_block, 0, launch.stream>>>(
        *adamw, factor, *bucket, chunk);
    return cudaGetLastError();
}

cudaError_t stw_cuda_convert(stw_cuda_launch launch, stw_element to_type, void *to,
                             const void *from, stw_cuda_source source, uint64_t n) {
    switch (source) {
    case STW_CUDA_SOURCE_F64:
        return convert<STW_CUDA_SOURCE_F64>(launch, to_type, to, from, n);
    case STW_CUDA_SOURCE_F32:
        return convert<STW_CUDA_SOURCE_F32>(launch, to_type, to, from, n);
    case STW_CUDA_SOURCE_F16:
        return convert<STW_CUDA_SOURCE_F16>(launch, to_type, to, from, n);
    case STW_CUDA_SOURCE_BF16:
        return convert<STW_CUDA_SOURCE_BF16>(launch, to_type, to, from, n);
    case STW_CUDA_SOURCE_F8_E4M3:
        return convert<STW_CUDA_SOURCE_F8_E4M3>(launch, to_type, to, from, n);
    case STW_CUDA_SOURCE_F8_E5M2:
        return convert<STW_CUDA_SOURCE_F8_E5M2>(launch, to_type, to, from, n);
    case STW_CUDA_N_SOURCES:
        break;
    }
    return cudaErrorInvalidValue;
}

cudaError_t stw_cuda_seed_grads(stw_cuda_launch launch, stw_element type, void *to, uint64_t n,
                                uint64_t element, uint64_t seed, uint64_t step) {
    unsigned blocks = blocks_for(n, threads_per_block, (uint64_t)launch.sms * 64);
    if (type == STW_ELEMENT_F32)
        seed_grads_kernel<STW_ELEMENT_F32>
            <<<blocks, threads_per_block, 0, launch.stream>>>(to, n, element, seed, step);
    else if (type == STW_ELEMENT_BF16)
        seed_grads_kernel<STW_ELEMENT_BF16>
            <<<blocks, threads_per_block, 0, launch.stream>>>(to, n, element, seed, step);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

cudaError_t stw_cuda_digest(stw_cuda_launch launch, stw_element type, const void *values,
                            uint64_t n, uint64_t element, uint64_t *digest) {
    unsigned blocks = blocks_for(n, threads_per_block, (uint64_t)launch.sms * 32);
    unsigned long long *sum = (unsigned long long *)digest;
    if (type == STW_ELEMENT_F32)
        digest_kernel<STW_ELEMENT_F32>
            <<<blocks, threads_per_block, 0, launch.stream>>>(values, n, element, sum);
    else if (type == STW_ELEMENT_BF16)
        digest_kernel<STW_ELEMENT_BF16>
            <<<blocks, threads_per_block, 0, launch.stream>>>(values, n, element, sum);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

/* ---- copies from the host ---- */

/* Enough reads under way to fill a PCIe 5 link: 32 blocks of 512 threads with four 16-byte reads
 * each are 1 MiB. */
static const unsigned fetch_blocks = 32, fetch_threads = 512;

static __global__ void __launch_bounds__(fetch_threads)
    fetch_kernel(uint4 *to, const uint4 *from, uint64_t n, unsigned char *to_rest,
                 const unsigned char *from_rest, unsigned rest) {
    uint64_t first = thread_index(), stride = thread_count(), i = first;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        to[i] = a;
        to[i + stride] = b;
        to[i + 2 * stride] = c;
        to[i + 3 * stride] = d;
    }
    for (; i < n; i += stride) to[i] = from[i];
    if (first < rest) to_rest[first] = from_rest[first];
}

cudaError_t stw_cuda_fetch(cudaStream_t stream, void *to, const void *from, uint64_t bytes) {
    uint64_t n = bytes / sizeof(uint4), whole = n * sizeof(uint4);
    if (!aligned(to, sizeof(uint4)) || !aligned(from, sizeof(uint4))) return cudaErrorInvalidValue;
    unsigned blocks = blocks_for(n + 1, fetch_threads, fetch_blocks);
    fetch_kernel<<<blocks, fetch_threads, 0, stream>>>(
        (uint4 *)to, (const uint4 *)from, n, (unsigned char *)to + whole,
        (const unsigned char *)from + whole, (unsigned)(bytes - whole));
    return cudaGetLastError();
}

/* ---- loading ----
 * A launch over nothing loads a kernel: every combination of types and alignments once. */

static cudaError_t load_adamw(stw_cuda_launch launch) {
    const stw_adamw none = {};
    cudaError_t code = cudaSuccess;
    for (unsigned bits = 0; bits < 64 && code == cudaSuccess; bits++) {
        stw_element_types types;
        stw_cuda_bucket nothing = {};
        nothing.direct = (bits & 32u) != 0; /* the kernel that a whole bucket does not take */
        types.params = bits & 1u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
        types.grads = bits & 2u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
        types.exp_avg = bits & 4u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
        types.exp_avg_sq = bits & 8u ? STW_ELEMENT_BF16 : STW_ELEMENT_F32;
        types.master = bits & 16u ? STW_ELEMENT_F32 : STW_ELEMENT_NONE;
        code = stw_cuda_adamw(launch, &none, NULL, &types, &nothing);
    }
    return code;
}

static cudaError_t load_typed(stw_cuda_launch launch, stw_element type, char *scratch) {
    const stw_cuda_grads nothing = {};
    cudaError_t code = cudaSuccess;
    for (unsigned offset = 0; offset < 8 && code == cudaSuccess; offset += 4) { /* 4: unaligned */
        code = stw_cuda_norm_add(launch, type, scratch + offset, 0, (stw_norm_bins *)scratch);
        if (code == cudaSuccess)
            code = stw_cuda_norm_add_spans(launch, type, &nothing, (stw_norm_bins *)scratch);
        for (int s = 0; s < STW_CUDA_N_SOURCES && code == cudaSuccess; s++)
            code = stw_cuda_convert(launch, type, scratch + offset, scratch, (stw_cuda_source)s, 0);
    }
    if (code == cudaSuccess) code = stw_cuda_seed_grads(launch, type, scratch, 0, 0, 0, 0);
    if (code == cudaSuccess)
        code = stw_cuda_digest(launch, type, scratch, 0, 0, (uint64_t *)scratch);
    return code;
}

cudaError_t stw_cuda_kernels_load(stw_cuda_launch launch, void *scratch) {
    uint64_t *words = (uint64_t *)scratch;
    cudaError_t code = stw_cuda_norm_prepare();
    if (code == cudaSuccess) code = load_adamw(launch);
    if (code == cudaSuccess) code = stw_cuda_fetch(launch.stream, scratch, scratch, 0);
    if (code == cudaSuccess) code = load_typed(launch, STW_ELEMENT_F32, (char *)scratch);
    if (code == cudaSuccess) code = load_typed(launch, STW_ELEMENT_BF16, (char *)scratch);
    /* Zeros of zeros: a norm of 0 under a limit of 0 has the factor 0. */
    if (code == cudaSuccess) code = stw_cuda_norm_counters(launch, NULL, NULL, 0, words);
    if (code == cudaSuccess)
        code = stw_cuda_norm_factor(launch, words, 0.0, (double *)(words + STW_NORM_COUNTERS),
                                    (float *)(words + STW_NORM_COUNTERS + 1));
    return code;
}
