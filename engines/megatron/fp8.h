/* SPDX-License-Identifier: Apache-2.0 */
/* Products of TransformerEngine in 8 bits: which blocks have them, what they keep of their inputs,
 * and the 8-bit copies of their weights. Sources: fp8.c. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_FP8_H
#define STW_ENGINES_MEGATRON_FP8_H

#include "engines/megatron/params.h"

typedef enum stw_megatron_recipe {
    STW_MEGATRON_FP8_DELAYED,
    STW_MEGATRON_FP8_TENSORWISE,
    STW_MEGATRON_FP8_BLOCKWISE,
    STW_MEGATRON_FP8_MXFP8
} stw_megatron_recipe;

/** megatron.fp8*: are there keys that the others contradict? */
STW_MUST_USE stw_status stw_megatron_check_fp8(const stw_run_spec *run, const char *origin,
                                               stw_error *err);
/** megatron.fp8 on the cluster's GPU: BAD_INPUT if its data sheet has no rate of fp8. */
STW_MUST_USE stw_status stw_megatron_check_fp8_gpu(const stw_job *job, stw_error *err);
/** Are main gradients copied to fp32 for the step? The precision-aware optimizer reads them as they
 * are, on the GPU only without scales of its own (optimizer_config.py,
 * use_precision_aware_optimizer_no_fp8_or_ds_fp8). */
bool stw_megatron_copies_grads(const stw_run_spec *run);

/** Are the products of a block in 8 bits? Those of embeddings, heads, routers and vision towers
 * never are. */
bool stw_megatron_is_fp8(const stw_job *job, uint32_t block);
bool stw_megatron_fp8_delayed(const stw_job *job);

/** What a product keeps of an input of so many elements: one copy. */
uint64_t stw_megatron_fp8_kept(const stw_job *job, uint64_t elements);
/** The same as products of both layouts need it: by rows, and transposed. */
uint64_t stw_megatron_fp8_both(const stw_job *job, uint64_t elements);
/** Rows of routed tokens that experts get: of each a multiple of what products need. */
uint64_t stw_megatron_fp8_rows(const stw_job *job, uint64_t rows, uint64_t experts);

/** Elements of the weights of 8-bit products of a rank, dense or of experts. */
uint64_t stw_megatron_fp8_weights(const stw_job *job, const stw_megatron_params *params,
                                  bool expert);
/** Bytes beside parameters that stay from the first forward on: copies of weights (none where the
 * parameters are 8 bits wide), scales and histories of maxima. */
uint64_t stw_megatron_fp8_cached_bytes(const stw_job *job, const stw_megatron_params *params);
/** What an all-gather of `elements` parameters moves less than in 16 bits, in elements. */
uint64_t stw_megatron_fp8_gathered_less(const stw_job *job, const stw_megatron_params *params,
                                        bool expert);

#endif
