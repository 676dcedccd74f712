/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/host/kernels.h"

#include <pthread.h>

#include "backend/host/loops.h"
#include "backend/norm.h"

/* Items of one piece of parallel work: large enough to hide handing it out, small enough that the
 * last one does not keep everybody waiting. */
#define GRAIN (1u << 16)
#define GRAIN_BYTES (1u << 20)

/* ---- AdamW ---- */

typedef struct adamw_work {
    stw_adamw adamw;
    float *params;
    const float *grads;
    float *exp_avg, *exp_avg_sq;
} adamw_work;

static void adamw_piece(void *arg, uint64_t first, uint64_t count) {
    const adamw_work *work = arg;
    stw_host_loops_get(0)->adamw(&work->adamw, work->params + first, work->grads + first,
                                 work->exp_avg + first, work->exp_avg_sq + first, count);
}

void stw_host_adamw(stw_threads *threads, const stw_adamw *adamw, float *params, const float *grads,
                    float *exp_avg, float *exp_avg_sq, uint64_t n) {
    adamw_work work = {*adamw, params, grads, exp_avg, exp_avg_sq};
    stw_threads_for(threads, n, GRAIN, adamw_piece, &work);
}

/* ---- exact sum of squares ---- */

__extension__ typedef unsigned __int128 u128;

typedef struct norm_work {
    const float *grads;
    pthread_mutex_t mutex; /* of the sums below */
    u128 sums[STW_NORM_BINS];
    uint64_t not_finite;
} norm_work;

/* Sets of bins that neighbours use in turn, so that an addition need not wait for the one before
 * (gradients of one tensor fall into few bins). */
#define LANES 4

static void norm_piece(void *arg, uint64_t first, uint64_t count) {
    norm_work *work = arg;
    const float *grads = work->grads + first;
    u128 sums[LANES][STW_NORM_BINS] = {{0}};
    uint64_t not_finite = 0;
    for (uint64_t i = 0; i < count; i++) {
        unsigned bin = 0;
        uint64_t value = 0;
        int kind = stw_norm_split(grads[i], &bin, &value);
        if (kind == 1)
            sums[i % LANES][bin] += value;
        else
            not_finite += kind == 2;
    }
    pthread_mutex_lock(&work->mutex);
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned b = 0; b < STW_NORM_BINS; b++) work->sums[b] += sums[lane][b];
    work->not_finite += not_finite;
    pthread_mutex_unlock(&work->mutex);
}

void stw_host_norm_add(stw_threads *threads, const float *grads, uint64_t n, stw_norm_bins *bins) {
    norm_work work = {.grads = grads, .mutex = PTHREAD_MUTEX_INITIALIZER};
    stw_threads_for(threads, n, GRAIN, norm_piece, &work);
    pthread_mutex_destroy(&work.mutex);
    /* 128 bits do not fit the two limbs of a bin as they are: low 96 bits stay in theirs, what is
     * above has the weight of six bins on. Values are below 2^63, so n < 2^33 never gets there. */
    stw_norm_bins mine = {.not_finite = work.not_finite};
    for (unsigned b = 0; b < STW_NORM_BINS; b++) {
        mine.low[b] += (uint64_t)work.sums[b] & 0xFFFFFFFFu;
        mine.high[b] += (uint64_t)(work.sums[b] >> 32) & 0x7FFFFFFFFFFFFFFFu;
        uint64_t above = (uint64_t)(work.sums[b] >> 95);
        if (above != 0 && b + 5 < STW_NORM_BINS) {
            /* weight 2^(16 b + 95) = 2^(16 (b + 5) + 15) */
            mine.low[b + 5] += (above << 15) & 0xFFFFFFFFu;
            mine.high[b + 5] += above >> 17;
        }
    }
    stw_norm_merge(bins, &mine);
}

/* ---- digest, conversion, seeded values ---- */

typedef struct digest_work {
    const float *values;
    uint64_t element;
    uint64_t sum; /* atomic */
} digest_work;

static void digest_piece(void *arg, uint64_t first, uint64_t count) {
    digest_work *work = arg;
    uint64_t sum =
        stw_host_loops_get(0)->digest(work->values + first, count, work->element + first);
    __atomic_fetch_add(&work->sum, sum, __ATOMIC_RELAXED);
}

uint64_t stw_host_digest(stw_threads *threads, const float *values, uint64_t n, uint64_t element) {
    digest_work work = {values, element, 0};
    stw_threads_for(threads, n, GRAIN, digest_piece, &work);
    return __atomic_load_n(&work.sum, __ATOMIC_RELAXED);
}

typedef struct seed_work {
    float *to;
    uint64_t element, seed, step;
} seed_work;

static void seed_piece(void *arg, uint64_t first, uint64_t count) {
    const seed_work *work = arg;
    stw_host_loops_get(0)->seed_grads(work->to + first, count, work->element + first, work->seed,
                                      work->step);
}

void stw_host_seed_grads(stw_threads *threads, float *to, uint64_t n, uint64_t element,
                         uint64_t seed, uint64_t step) {
    seed_work work = {to, element, seed, step};
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
    float *to;
    const unsigned char *from;
    stw_dtype dtype;
} convert_work;

static void convert_piece(void *arg, uint64_t first, uint64_t count) {
    const convert_work *work = arg;
    float *to = work->to + first;
    const unsigned char *from = work->from + first * (stw_dtype_bits(work->dtype) / 8);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;
        switch (work->dtype) {
        case STW_DTYPE_F32:
            memcpy(to, from, count * sizeof(float));
            return;
        case STW_DTYPE_BF16:
            stw_host_loops_get(0)->bf16(to, from, count);
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

void stw_host_convert(stw_threads *threads, float *to, const void *from, stw_dtype from_dtype,
                      uint64_t n) {
    convert_work work = {to, from, from_dtype};
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
