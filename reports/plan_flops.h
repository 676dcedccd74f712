/* SPDX-License-Identifier: Apache-2.0 */
/* The share of the GPUs' arithmetic that a plan uses. The plan must be derived and simulated; any
 * thread may call. */
#ifndef STW_REPORTS_PLAN_FLOPS_H
#define STW_REPORTS_PLAN_FLOPS_H

#include "plan/files/plan.h"

/** Returns the floating-point operations that training needs for the tokens of one iteration.
 * Counted are products with active weights, the head and attention (causal: a token sees half of
 * the sequence on average): once forward, once for the gradients of inputs, and once for the
 * gradients of trained weights. Not counted are recomputation, the optimizer, vision towers and
 * passes without gradients (log_prob). 0 if the architecture is unknown. */
double stw_plan_model_flops(const stw_plan *plan);

/** Returns the model FLOPs utilisation of an iteration: stw_plan_model_flops per second, divided by
 * the data sheet's dense bf16 rate of all GPUs (Chowdhery et al., PaLM, 2022, arXiv:2204.02311,
 * appendix B, which counts the whole square of attention; this function counts half of it, as
 * causal kernels compute). A share from 0 to 1; NaN if the seconds, the architecture or the rate is
 * unknown. */
double stw_plan_mfu(const stw_plan *plan);

#endif
