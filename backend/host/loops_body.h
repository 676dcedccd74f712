/* SPDX-License-Identifier: Apache-2.0 */
/* Source of one table of loops.h: only loops_*.c include it. They first set the instruction set and
 * define LOOPS (the table's name), LOOPS_TEXT, and the macros that loops_adamw_body.h needs. */
#include <stdbool.h>

#include "backend/host/loops.h"

#include "backend/host/loops_adamw_body.h"
#include "backend/host/loops_norm_body.h"

static uint64_t digest(const void *values, stw_element type, uint64_t n, uint64_t element) {
    uint64_t sum = 0;
    if (type == STW_ELEMENT_F32) {
        const float *floats = values;
        for (uint64_t i = 0; i < n; i++)
            sum += stw_digest_element(element + i, stw_bits_from_float(floats[i]));
    } else {
        const uint16_t *halves = values;
        for (uint64_t i = 0; i < n; i++) sum += stw_digest_element(element + i, halves[i]);
    }
    return sum;
}

static void seed_grads(void *to, stw_element type, uint64_t n, uint64_t element, uint64_t seed,
                       uint64_t step) {
    if (type == STW_ELEMENT_F32) {
        float *floats = to;
        for (uint64_t i = 0; i < n; i++) floats[i] = stw_seeded_grad(seed, step, element + i);
    } else {
        uint16_t *halves = to;
        for (uint64_t i = 0; i < n; i++)
            halves[i] = stw_bf16_from_float(stw_seeded_grad(seed, step, element + i));
    }
}

static void seed_weights(float *to, uint64_t n, uint64_t element, uint64_t seed) {
    for (uint64_t i = 0; i < n; i++) to[i] = stw_seeded_weight(seed, element + i);
}

static void from_bf16(float *restrict to, const unsigned char *restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = stw_float_from_bf16(bits);
    }
}

static void to_bf16(uint16_t *restrict to, const float *restrict from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) to[i] = stw_bf16_from_float(from[i]);
}

extern const stw_host_loops LOOPS;
const stw_host_loops LOOPS = {LOOPS_TEXT, adamw,        norm_add,  digest,
                              seed_grads, seed_weights, from_bf16, to_bf16};
