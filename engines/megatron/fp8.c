/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (TransformerEngine 2.11, pytorch/; megatron/core 0.16.1):
 * - module/linear.py, _Linear; layernorm_linear.py, _LayerNormLinear; grouped_linear.py: forward
 *   quantizes the input by rows and transposed, and keeps the transposed copy alone; where sequence
 *   parallelism gathers the input again, the copy by rows. A norm writes its output in 8 bits if
 *   one product alone reads it.
 * - tensor/float8_tensor.py, Float8Quantizer: one scale of each tensor. Products of GPUs before
 *   Blackwell need a transposed copy (utils.py, is_non_tn_fp8_gemm_supported). The transposed copy
 *   of 1 x 128 blocks and of mxfp8 has scales of its own (float8_blockwise_tensor.py: fp32 of 128
 *   elements, of weights of 128 x 128; mxfp8_tensor.py: one byte of 32), and always exists.
 * - module/base.py, get_weight_workspace: the 8-bit copies of a weight are made in the first micro
 *   batch and stay (core/extensions/transformer_engine.py, is_first_microbatch).
 * - --fp8-param-gather (fp8_model_init): weights themselves are 8 bits wide. By rows they lie in a
 *   flat buffer of bytes, which is gathered (distributed/param_and_grad_buffer.py); the transposed
 *   copy has as many bytes, so that both take the room of a parameter of 16 bits. mxfp8 is gathered
 *   in 16 bits, through the gradients' buffer (reuse_grad_buf_for_mxfp8_param_ag).
 * - quantization.py: delayed scaling has scales and histories of maxima of input, weight and output
 *   of each product, and of two gradients; current scaling a scale and a maximum of each.
 * - Experts' rows are padded to multiples of 16, of 32 with mxfp8 (core/fp8_utils.py,
 *   get_fp8_align_size).
 * - Which blocks are in 16 bits: core/fp8_utils.py, is_first_last_bf16_layer. */
#include "engines/megatron/fp8.h"

#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "plan/spec/gpu_sheets.h"

enum { BLOCK = 128, MX_BLOCK = 32, TENSORS_OF_PRODUCT = 5, BLOCK_BYTES = 512 };

/* ---- keys ---- */

static stw_status check_values(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const bool delayed = s.fp8_recipe == STW_MEGATRON_FP8_DELAYED;
    const bool by_tensor = delayed || s.fp8_recipe == STW_MEGATRON_FP8_TENSORWISE;
    const stw_megatron_modules m = stw_megatron_modules_of(run);
    if (s.transformer_impl != 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8",
                                         "none, or megatron.transformer_impl: transformer_engine");
    if (run->precision.params != STW_DTYPE_BF16)
        return stw_run_spec_refuse_value(run, origin, err, "precision.params",
                                         "bf16 with megatron.fp8");
    if (stw_megatron_is_fsdp(run))
        return stw_run_spec_refuse_value(
            run, origin, err, "megatron.fsdp",
            "none with megatron.fp8: 8-bit parameters of Megatron-FSDP "
            "are not planned");
    if (delayed && s.first_layers_bf16 + s.last_layers_bf16 > 0)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_recipe",
                                         "tensorwise, blockwise or mxfp8 with first_layers_bf16 or "
                                         "last_layers_bf16");
    if (delayed && run->recompute.granularity == 2 && (m.moe_act || m.layernorm))
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_recipe",
                                         "tensorwise, blockwise or mxfp8 with moe_act or layernorm "
                                         "in recompute.modules");
    if (!delayed && s.fp8_amax_history != 1)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_amax_history",
                                         "1, or megatron.fp8_recipe: delayed");
    if (!by_tensor && !s.fp8_transposes)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_transposes",
                                         "true, or megatron.fp8_recipe: delayed or tensorwise");
    if (s.fp8_param_gather && !s.fp8_transposes)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_param_gather",
                                         "false without megatron.fp8_transposes: weights of one "
                                         "copy are not planned");
    if (s.fp8_param_gather && !s.distributed_optimizer)
        return stw_run_spec_refuse_value(run, origin, err, "megatron.fp8_param_gather",
                                         "false, or megatron.distributed_optimizer: true");
    return STW_STATUS_OK;
}

stw_status stw_megatron_check_fp8_gpu(const stw_job *job, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    if (s.fp8 == 0 || !stw_gpu_lacks(job->cluster->gpu.name, STW_DTYPE_F8_E4M3))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, "megatron.fp8",
                    "expected none: %.60s has no fp8 products (TransformerEngine needs Ada, Hopper "
                    "or Blackwell)",
                    job->cluster->gpu.name);
}

stw_status stw_megatron_check_fp8(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const char *key = NULL;
    if (s.fp8 != 0) return check_values(run, origin, err);
    if (s.fp8_recipe != STW_MEGATRON_FP8_DELAYED) key = "megatron.fp8_recipe";
    if (s.fp8_param_gather) key = "megatron.fp8_param_gather";
    if (!s.fp8_transposes) key = "megatron.fp8_transposes";
    if (s.fp8_amax_history != 1) key = "megatron.fp8_amax_history";
    if (s.first_layers_bf16 > 0) key = "megatron.first_layers_bf16";
    if (s.last_layers_bf16 > 0) key = "megatron.last_layers_bf16";
    if (key == NULL) return STW_STATUS_OK;
    return stw_run_spec_refuse_value(run, origin, err, key,
                                     "its default, or megatron.fp8: e4m3 or hybrid");
}

bool stw_megatron_copies_grads(const stw_run_spec *run) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const bool decoupled =
        s.precision_aware && (s.fp8 == 0 || s.fp8_recipe == STW_MEGATRON_FP8_DELAYED ||
                              s.optimizer_cpu_offload || s.optimizer_offload_fraction > 0);
    return stw_dtype_bits(run->precision.grads) < 32 && !decoupled;
}

/* ---- blocks ---- */

static bool is_on(const stw_job *job) { return stw_megatron_settings_of(job->run).fp8 != 0; }

static uint32_t recipe_of(const stw_job *job) {
    return stw_megatron_settings_of(job->run).fp8_recipe;
}

bool stw_megatron_fp8_delayed(const stw_job *job) {
    return recipe_of(job) == STW_MEGATRON_FP8_DELAYED;
}

bool stw_megatron_is_fp8(const stw_job *job, uint32_t block) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    uint32_t before = 0;
    if (s.fp8 == 0) return false;
    if (stw_megatron_is_mtp(job, block)) return true;
    if (!stw_megatron_is_layer(job, block)) return false;
    for (uint32_t b = 0; b < block; b++) before += stw_megatron_is_layer(job, b);
    return before >= s.first_layers_bf16 && before + s.last_layers_bf16 < stw_megatron_layers(job);
}

/* ---- bytes ---- */

/* @param weight blocks of 128 x 128 in the place of 1 x 128 */
static uint64_t one_copy(const stw_job *job, uint64_t elements, bool weight) {
    const uint64_t block = weight ? (uint64_t)BLOCK * BLOCK : BLOCK;
    switch (recipe_of(job)) {
    case STW_MEGATRON_FP8_BLOCKWISE:
        return stw_plus(elements, stw_times(4, stw_div_up_u64(elements, block)));
    case STW_MEGATRON_FP8_MXFP8:
        return stw_plus(elements, stw_div_up_u64(elements, MX_BLOCK));
    default:
        return elements;
    }
}

static uint64_t copies(const stw_job *job) {
    return stw_megatron_settings_of(job->run).fp8_transposes ? 2 : 1;
}

uint64_t stw_megatron_fp8_kept(const stw_job *job, uint64_t elements) {
    return one_copy(job, elements, false);
}

uint64_t stw_megatron_fp8_both(const stw_job *job, uint64_t elements) {
    return stw_times(copies(job), one_copy(job, elements, false));
}

uint64_t stw_megatron_fp8_rows(const stw_job *job, uint64_t rows, uint64_t experts) {
    const uint64_t align = recipe_of(job) == STW_MEGATRON_FP8_MXFP8 ? 32 : 16;
    const uint64_t local = stw_max_u64(experts / job->run->parallel.ep, 1);
    return stw_times(local, stw_round_up_u64(stw_div_up_u64(rows, local), align));
}

/* ---- weights ---- */

/* Parameters of a block follow each other. */
typedef struct seen_block {
    bool any, fp8;
    uint32_t block;
} seen_block;

static bool is_product(const stw_job *job, const stw_megatron_param *p, seen_block *seen) {
    if (!seen->any || seen->block != p->block)
        *seen = (seen_block){true, stw_megatron_is_fp8(job, p->block), p->block};
    return p->product && seen->fp8;
}

uint64_t stw_megatron_fp8_weights(const stw_job *job, const stw_megatron_params *params,
                                  bool expert) {
    const bool on = is_on(job);
    seen_block seen = {0};
    uint64_t n = 0;
    for (uint32_t i = 0; i < params->n && on; i++)
        if (params->list[i].expert == expert && is_product(job, &params->list[i], &seen))
            n = stw_plus(n, params->list[i].numel);
    return n;
}

/* Small tensors of a product, each in a block of its own. */
static uint64_t small_bytes(const stw_job *job, uint64_t products) {
    const uint64_t history = stw_megatron_settings_of(job->run).fp8_amax_history;
    switch (recipe_of(job)) {
    case STW_MEGATRON_FP8_DELAYED: /* scales and histories: of three tensors, of two gradients */
        return stw_times(products,
                         STW_SUM(2 * BLOCK_BYTES,
                                 stw_round_up_u64(stw_times(4 * 3, history), BLOCK_BYTES),
                                 stw_round_up_u64(stw_times(4 * 2, history), BLOCK_BYTES)));
    case STW_MEGATRON_FP8_TENSORWISE: /* a scale and a maximum of each */
        return stw_times(products, 2 * TENSORS_OF_PRODUCT * BLOCK_BYTES);
    default:
        return 0;
    }
}

uint64_t stw_megatron_fp8_cached_bytes(const stw_job *job, const stw_megatron_params *params) {
    const bool gathers = stw_megatron_settings_of(job->run).fp8_param_gather;
    const bool on = is_on(job);
    seen_block seen = {0};
    uint64_t bytes = 0, products = 0;
    for (uint32_t i = 0; i < params->n && on; i++) {
        const uint64_t numel = params->list[i].numel;
        if (!is_product(job, &params->list[i], &seen)) continue;
        const uint64_t all = stw_times(copies(job), one_copy(job, numel, true));
        bytes = stw_plus(bytes, gathers ? all - stw_times(copies(job), numel) : all);
        products++;
    }
    return stw_plus(bytes, small_bytes(job, products));
}

uint64_t stw_megatron_fp8_gathered_less(const stw_job *job, const stw_megatron_params *params,
                                        bool expert) {
    if (!stw_megatron_settings_of(job->run).fp8_param_gather) return 0;
    if (recipe_of(job) == STW_MEGATRON_FP8_MXFP8) return 0;
    return stw_megatron_fp8_weights(job, params, expert) / 2;
}
