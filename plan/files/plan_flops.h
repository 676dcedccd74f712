/* SPDX-License-Identifier: Apache-2.0 */
/* How well a plan uses the GPUs' arithmetic. The plan must be derived and simulated; any thread may
 * call. */
#ifndef STW_PLAN_PLAN_FLOPS_H
#define STW_PLAN_PLAN_FLOPS_H

#include "plan/files/plan.h"

/** Floating-point operations that training takes for the tokens of one iteration, whatever an
 * engine repeats: products with active weights, the head and attention (causal: every token sees
 * half of the sequence), once forward, once for the gradients of inputs and once for those of
 * weights that are trained. Recomputation, optimizer, vision towers and passes without gradients
 * (log_prob) are not counted. 0 where the architecture is unknown. */
double stw_plan_model_flops(const stw_plan *plan);

/** Model FLOPs utilisation of an iteration: stw_plan_model_flops per second over the dense bf16
 * rate of the data sheet of all GPUs (Chowdhery et al., PaLM, 2022, arXiv:2204.02311, appendix B,
 * which counts the whole square of attention; here half of it, as causal kernels compute). A share
 * from 0 to 1; NaN where the seconds, the architecture or the rate is not known. */
double stw_plan_mfu(const stw_plan *plan);

#endif
