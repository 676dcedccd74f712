/* SPDX-License-Identifier: Apache-2.0 */
/* What share of a GPU's dense peak the work of forward and backward reaches: models/clusters/
 * rates.csv, compiled in. Constant; any thread. */
#ifndef STW_PLAN_GPU_RATES_H
#define STW_PLAN_GPU_RATES_H

#include <stdbool.h>

/** Kernels of attention. */
typedef enum stw_kernel {
    STW_KERNEL_FLASH,  /* FlashAttention-2 */
    STW_KERNEL_TRITON, /* FlashAttention's first version, in Triton */
    STW_KERNEL_FUSED   /* cuDNN's, or those that a framework brings for the GPU */
} stw_kernel;

/** Is `rates` a name in the table? @param known out, may be NULL: names, with commas between */
bool stw_gpu_rates_known(const char *rates, const char **known);
/** Of products whose sums have `length` terms: of the bf16 peak, or of the fp8 peak; above 0.
 * @param rates a name in the table; an unknown one is the first row's */
double stw_gpu_product_share(const char *rates, bool fp8, double length);
/** Of causal attention over sequences of `length` tokens with heads of that width: of the bf16
 * peak; above 0. */
double stw_gpu_attention_share(const char *rates, stw_kernel kernel, bool backward, double head,
                               double length);

#endif
