/* SPDX-License-Identifier: Apache-2.0 */
/* Source of one table of loops.h: included by loops_*.c alone, which set the instruction set first
 * and define LOOPS (the table's name) and LOOPS_TEXT. */
#include "backend/host/loops.h"

/* `clip` is a constant in each copy of the loop, or the compiler would not vectorise it. */
static inline void adamw_loop(const stw_adamw a, float *restrict params,
                              const float *restrict grads, float *restrict exp_avg,
                              float *restrict exp_avg_sq, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        stw_adamw_element(&a, &params[i], grads[i], &exp_avg[i], &exp_avg_sq[i]);
}

static void adamw(const stw_adamw *adamw, float *params, const float *grads, float *exp_avg,
                  float *exp_avg_sq, uint64_t n) {
    stw_adamw a = *adamw;
    if (a.clip) {
        a.clip = 1;
        adamw_loop(a, params, grads, exp_avg, exp_avg_sq, n);
    } else {
        adamw_loop(a, params, grads, exp_avg, exp_avg_sq, n);
    }
}

static uint64_t digest(const float *values, uint64_t n, uint64_t element) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += stw_digest_element(element + i, stw_bits_from_float(values[i]));
    return sum;
}

static void seed_grads(float *to, uint64_t n, uint64_t element, uint64_t seed, uint64_t step) {
    for (uint64_t i = 0; i < n; i++) to[i] = stw_seeded_grad(seed, step, element + i);
}

static void seed_weights(float *to, uint64_t n, uint64_t element, uint64_t seed) {
    for (uint64_t i = 0; i < n; i++) to[i] = stw_seeded_weight(seed, element + i);
}

static void bf16(float *restrict to, const unsigned char *restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = stw_float_from_bits((uint32_t)bits << 16);
    }
}

extern const stw_host_loops LOOPS;
const stw_host_loops LOOPS = {LOOPS_TEXT, adamw, digest, seed_grads, seed_weights, bf16};
