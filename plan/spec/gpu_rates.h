/* SPDX-License-Identifier: Apache-2.0 */
/* The share of a GPU's dense peak that forward and backward reach (models/clusters/rates.csv,
 * compiled in). Constant; any thread. */
#ifndef STW_PLAN_GPU_RATES_H
#define STW_PLAN_GPU_RATES_H

#include <stdbool.h>

/** Kernels of attention. */
typedef enum stw_kernel {
    STW_KERNEL_FLASH,  /* FlashAttention-2 */
    STW_KERNEL_TRITON, /* FlashAttention's first version, in Triton */
    STW_KERNEL_FUSED   /* cuDNN's, or the framework's own for this GPU */
} stw_kernel;

/** True if `rates` is a name in the table.
 * @param known out, may be NULL: all names, separated by commas */
bool stw_gpu_rates_known(const char *rates, const char **known);
/** Returns the share of the bf16 or fp8 peak that a matrix product reaches; above 0.
 * @param length terms of each sum (the inner dimension)
 * @param rates a name in the table; an unknown name stands for the first one */
double stw_gpu_product_share(const char *rates, bool fp8, double length);
/** Returns the share of the bf16 peak that causal attention reaches over sequences of `length`
 * tokens with heads of width `head`; above 0. */
double stw_gpu_attention_share(const char *rates, stw_kernel kernel, bool backward, double head,
                               double length);

#endif
