/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification compares with: one element's life from its weight to the last step, written
 * a second time from the formulas. It shares no line with element.h and the kernels, so that a
 * change of an operation there does not change what it is held against; a test keeps it so
 * (unit.backend_reference). It is slow: for samples. Pure functions, any thread.
 *
 * Every operation on fp32 is computed in double and rounded once: sums, products, quotients and
 * roots of two fp32 are correctly rounded that way (double has more than twice the bits; Figueroa,
 * When is double rounding innocuous?, 1995), and a fused multiply-add is where the double is
 * rounded to odd first (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
 * No result depends on a compiler's contraction, on fmaf or on the vector units. */
#ifndef STW_BACKEND_REFERENCE_H
#define STW_BACKEND_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "models/model.h"

/** AdamW's settings for one parameter group. */
typedef struct stw_reference_settings {
    double lr, weight_decay, beta1, beta2, eps;
    bool clip; /* gradients are multiplied by a factor */
} stw_reference_settings;

/** What one step makes of them. */
typedef struct stw_reference_step {
    float decay, beta1, beta2, eps, step_size, spread;
    bool clip;
    float factor;
} stw_reference_step;

/** `weight` is the master where there is one, else the parameter. */
typedef struct stw_reference_state {
    float weight, exp_avg, exp_avg_sq;
} stw_reference_state;

/** @param step 1 for the first; below 2^24
 * @param factor of clipping; used where gradients are clipped */
stw_reference_step stw_reference_begin(const stw_reference_settings *settings, uint64_t step,
                                       float factor);
/** One step: torch's fused AdamW on a GPU (aten/src/ATen/native/cuda/fused_adam_utils.cuh, torch
 * 2.11); torch's kernel for CPU tensors has other bits.
 * Results are fp32; who calls rounds them to their types. */
void stw_reference_adamw(const stw_reference_step *step, float grad, stw_reference_state *state);
/** beta^step as torch's kernel has it on a GPU: the bits of CUDA 13's powf. 0 <= beta < 1. */
float stw_reference_power(float beta, uint64_t step);

/** An fp32 as bf16 keeps it: to nearest, ties to even, every NaN 0x7FC0. */
uint16_t stw_reference_bf16(float value);
float stw_reference_from_bf16(uint16_t bits);
/** Element i of `raw`, which is stored as `dtype` (those of stw_host_can_convert), in fp32. */
float stw_reference_weight(const void *raw, stw_dtype dtype, uint64_t i);

/** Seeded values: an element's weight, and its gradient in a step. */
float stw_reference_seeded_weight(uint64_t seed, uint64_t element);
float stw_reference_seeded_grad(uint64_t seed, uint64_t step, uint64_t element);

/** An element's share of a digest (bits: 32 of fp32 or 16 of bf16), and the bits that have this
 * share. */
uint64_t stw_reference_digest(uint64_t element, uint32_t bits);
uint64_t stw_reference_bits_of(uint64_t element, uint64_t digest);

#endif
