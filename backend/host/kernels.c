/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/host/kernels.h"

#include <pthread.h>

#include "backend/host/loops.h"
#include "backend/norm.h"
#include "core/checked.h"

/* Items of one piece of parallel work: large enough to hide handing it out, small enough that the
 * last one does not keep everybody waiting. */
#define GRAIN (1u << 16)
/* Small buckets too have pieces for all threads, many times over. */
#define ADAMW_GRAIN (1u << 13)
#define GRAIN_BYTES (1u << 20)

/* ---- AdamW ---- */

typedef struct adamw_work {
    stw_adamw adamw;
    float factor;
    stw_element_types types;
    const stw_host_bucket *bucket;
} adamw_work;

/* Of the spans of a bucket the one that holds an element of the flat space. */
static const stw_span *find_span(const stw_host_bucket *bucket, uint64_t element) {
    uint32_t low = 0, high = bucket->n_spans; /* it is one of [low, high) */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (bucket->spans[middle].first <= element)
            low = middle;
        else
            high = middle;
    }
    return &bucket->spans[low];
}

/* Where element `at` of the bucket, which is element `in_span` of its span, lies. Through integers:
 * the offsets of spans count modulo 2^64. */
static void *place(const void *base, stw_element type, uint64_t at, const stw_span *in,
                   uint64_t offset, uint64_t in_span) {
    uint64_t bytes =
        in != NULL ? offset + in_span * stw_element_bytes(type) : at * stw_element_bytes(type);
    return (void *)((uintptr_t)base + (uintptr_t)bytes);
}

static void adamw_piece(void *arg, uint64_t first, uint64_t count) {
    const adamw_work *work = arg;
    const stw_host_bucket *b = work->bucket;
    const stw_span all = {.first = b->first, .n = b->n};
    const stw_span *span = b->n_spans > 0 ? find_span(b, b->first + first) : &all;
    while (count > 0) {
        uint64_t in_span = b->first + first - span->first;
        uint64_t n = stw_min_u64(span->n - in_span, count);
        const stw_adamw_arrays arrays = {
            .adamw = work->adamw,
            .group = work->adamw.groups[span->group],
            .factor = work->factor,
            .params = place(b->params, work->types.params, first, b->params_in_spans ? span : NULL,
                            span->params, in_span),
            .grads = place(b->grads, work->types.grads, first, b->grads_in_spans ? span : NULL,
                           span->grads, in_span),
            .master = b->master != NULL ? b->master + first : NULL,
            .exp_avg = place(b->exp_avg, work->types.exp_avg, first, NULL, 0, 0),
            .exp_avg_sq = place(b->exp_avg_sq, work->types.exp_avg_sq, first, NULL, 0, 0),
            .n = n};
        stw_host_loops_get(0)->adamw(&arrays, &work->types);
        first += n;
        count -= n;
        span++;
    }
}

void stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float factor,
                    const stw_element_types *types, const stw_host_bucket *bucket) {
    adamw_work work = {*adamw, factor, *types, bucket};
    stw_threads_for(threads, bucket->n, ADAMW_GRAIN, adamw_piece, &work);
}

/* ---- exact sum of squares ---- */

typedef struct norm_work {
    const void *grads;
    stw_element type;
    pthread_mutex_t mutex; /* of the sum */
    stw_norm_wide sum;
} norm_work;

static void norm_piece(void *arg, uint64_t first, uint64_t count) {
    norm_work *work = arg;
    stw_norm_wide mine = {.not_finite = 0};
    const unsigned char *grads = work->grads;
    stw_host_loops_get(0)->norm_add(grads + first * stw_element_bytes(work->type), work->type,
                                    count, &mine);
    pthread_mutex_lock(&work->mutex);
    for (unsigned b = 0; b < STW_NORM_BINS; b++) work->sum.bin[b] += mine.bin[b];
    work->sum.not_finite += mine.not_finite;
    work->sum.nans += mine.nans;
    pthread_mutex_unlock(&work->mutex);
}

/* Digits of 16 bits and a carry of either sign; what is left for the last bin is never negative. */
static void carry(const stw_norm_wide *wide, stw_norm_bins *out) {
    stw_i128 left = 0;
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        left += wide->bin[b];
        uint64_t digit = (uint64_t)left & 0xFFFFu;
        if (b + 1 < STW_NORM_BINS) {
            out->low[b] = digit;
            left = (left - (stw_i128)digit) / 65536;
        } else {
            out->low[b] = (uint64_t)left & 0xFFFFFFFFu;
            out->high[b] = (uint64_t)(left >> 32);
        }
    }
    out->not_finite = wide->not_finite;
    out->nans = wide->nans;
}

void stw_host_norm_add(stw_threads *threads, const void *grads, stw_element type, uint64_t n,
                       stw_norm_bins *bins) {
    norm_work work = {.grads = grads, .type = type, .mutex = PTHREAD_MUTEX_INITIALIZER};
    stw_threads_for(threads, n, GRAIN, norm_piece, &work);
    pthread_mutex_destroy(&work.mutex);
    stw_norm_bins mine = {.not_finite = 0};
    carry(&work.sum, &mine);
    stw_norm_merge(bins, &mine);
}

/* ---- digest, conversion, seeded values ---- */

typedef struct digest_work {
    const unsigned char *values;
    stw_element type;
    uint64_t element;
    uint64_t sum; /* atomic */
} digest_work;

static void digest_piece(void *arg, uint64_t first, uint64_t count) {
    digest_work *work = arg;
    uint64_t sum =
        stw_host_loops_get(0)->digest(work->values + first * stw_element_bytes(work->type),
                                      work->type, count, work->element + first);
    __atomic_fetch_add(&work->sum, sum, __ATOMIC_RELAXED);
}

uint64_t stw_host_digest(stw_threads *threads, const void *values, stw_element type, uint64_t n,
                         uint64_t element) {
    digest_work work = {values, type, element, 0};
    stw_threads_for(threads, n, GRAIN, digest_piece, &work);
    return __atomic_load_n(&work.sum, __ATOMIC_RELAXED);
}

typedef struct seed_work {
    unsigned char *to;
    stw_element type;
    uint64_t element, seed, step;
} seed_work;

static void seed_piece(void *arg, uint64_t first, uint64_t count) {
    const seed_work *work = arg;
    stw_host_loops_get(0)->seed_grads(work->to + first * stw_element_bytes(work->type), work->type,
                                      count, work->element + first, work->seed, work->step);
}

void stw_host_seed_grads(stw_threads *threads, void *to, stw_element type, uint64_t n,
                         uint64_t element, uint64_t seed, uint64_t step) {
    seed_work work = {to, type, element, seed, step};
    stw_threads_for(threads, n, GRAIN, seed_piece, &work);
}

bool stw_host_can_convert(stw_dtype from_dtype) {
    switch (from_dtype) {
    case STW_DTYPE_F64:
    case STW_DTYPE_F32:
    case STW_DTYPE_F16:
    case STW_DTYPE_BF16:
    case STW_DTYPE_F8_E4M3:
    case STW_DTYPE_F8_E5M2:
        return true;
    default:
        return false;
    }
}

/* A small float (exponent_bits, mantissa_bits) with IEEE infinities and NaNs as fp32 bits. */
static uint32_t widen(uint32_t bits, unsigned exponent_bits, unsigned mantissa_bits) {
    uint32_t sign = bits >> (exponent_bits + mantissa_bits) << 31;
    uint32_t exponent_mask = (1u << exponent_bits) - 1u;
    uint32_t exponent = bits >> mantissa_bits & exponent_mask;
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1u);
    uint32_t bias = exponent_mask >> 1;
    if (exponent == exponent_mask) return sign | 0x7F800000u | mantissa << (23 - mantissa_bits);
    if (exponent == 0) {
        if (mantissa == 0) return sign;
        unsigned shift = (unsigned)__builtin_clz(mantissa) - (31u - mantissa_bits);
        mantissa = mantissa << shift & ((1u << mantissa_bits) - 1u);
        return sign | (127u - bias + 1u - shift) << 23 | mantissa << (23 - mantissa_bits);
    }
    return sign | (exponent + 127u - bias) << 23 | mantissa << (23 - mantissa_bits);
}

/* F8_E4M3 is the "fn" kind: no infinities, NaN is all ones, the top exponent is an ordinary one. */
static uint32_t widen_e4m3(uint32_t bits) {
    if ((bits & 0x7Fu) == 0x7Fu) return bits >> 7 << 31 | 0x7FC00000u;
    if ((bits & 0x78u) == 0x78u) return bits >> 7 << 31 | 135u << 23 | (bits & 7u) << 20;
    return widen(bits, 4, 3);
}

typedef struct convert_work {
    unsigned char *to;
    stw_element to_type;
    const unsigned char *from;
    stw_dtype dtype;
} convert_work;

/* to[i] = (float)from[i] on the caller alone. */
static void to_floats(float *to, const unsigned char *from, stw_dtype dtype, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;
        switch (dtype) {
        case STW_DTYPE_F32:
            memcpy(to, from, count * sizeof(float));
            return;
        case STW_DTYPE_BF16:
            stw_host_loops_get(0)->from_bf16(to, from, count);
            return;
        case STW_DTYPE_F16:
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = stw_float_from_bits(widen(half, 5, 10));
            break;
        case STW_DTYPE_F64:
            memcpy(&wide, from + 8 * i, sizeof wide);
            to[i] = (float)wide;
            break;
        case STW_DTYPE_F8_E4M3:
            to[i] = stw_float_from_bits(widen_e4m3(from[i]));
            break;
        default: /* F8_E5M2 */
            to[i] = stw_float_from_bits(widen(from[i], 5, 2));
        }
    }
}

#define CONVERT_AT_ONCE 1024u /* floats on the stack, for bf16 */

static void convert_piece(void *arg, uint64_t first, uint64_t count) {
    const convert_work *work = arg;
    uint64_t from_bytes = stw_dtype_bits(work->dtype) / 8;
    const unsigned char *from = work->from + first * from_bytes;
    unsigned char *to = work->to + first * stw_element_bytes(work->to_type);
    if (work->to_type == STW_ELEMENT_F32) {
        to_floats((float *)(void *)to, from, work->dtype, count);
        return;
    }
    float floats[CONVERT_AT_ONCE];
    for (uint64_t done = 0; done < count; done += CONVERT_AT_ONCE) {
        uint64_t n = stw_min_u64(count - done, CONVERT_AT_ONCE);
        to_floats(floats, from + done * from_bytes, work->dtype, n);
        stw_host_loops_get(0)->to_bf16((uint16_t *)(void *)to + done, floats, n);
    }
}

void stw_host_convert(stw_threads *threads, void *to, stw_element to_type, const void *from,
                      stw_dtype from_dtype, uint64_t n) {
    convert_work work = {to, to_type, from, from_dtype};
    stw_threads_for(threads, n, GRAIN, convert_piece, &work);
}

/* ---- bytes ---- */

typedef struct bytes_work {
    unsigned char *to;
    const unsigned char *from; /* NULL: zeros */
} bytes_work;

static void bytes_piece(void *arg, uint64_t first, uint64_t count) {
    const bytes_work *work = arg;
    if (work->from == NULL)
        memset(work->to + first, 0, count);
    else
        memcpy(work->to + first, work->from + first, count);
}

void stw_host_copy(stw_threads *threads, void *to, const void *from, uint64_t bytes) {
    bytes_work work = {to, from};
    stw_threads_for(threads, bytes, GRAIN_BYTES, bytes_piece, &work);
}

void stw_host_zero(stw_threads *threads, void *to, uint64_t bytes) {
    bytes_work work = {to, NULL};
    stw_threads_for(threads, bytes, GRAIN_BYTES, bytes_piece, &work);
}
