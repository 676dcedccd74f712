/* SPDX-License-Identifier: Apache-2.0 */
/* Sources:
 * - ms-swift 4.0.0 (swift/megatron/tuners/lora.py, LoraParallelLinear): every product of
 *   TransformerEngine has one adapter, so that query, key and value share one, and gate and up; of
 *   grouped products every expert has one. The first matrix is whole where the product is cut by
 *   outputs, and cut by inputs where that is; the second one the other way round. Routers and the
 *   head have none (swift/megatron/utils/utils.py, find_all_linears). Adapters are made in fp32,
 *   and in 16 bits from Float16Module on (megatron_lm_utils.py, wrap_model).
 * - Its forward: base(x) + B(A(dropout(x))) * scale. x is the output of the norm where that is a
 *   part of the product, which keeps it anyway (return_layernorm_output).
 * - Frozen parameters are in no buffer (megatron/core/distributed/distributed_data_parallel.py at
 *   0.16.1: not requires_grad), and no optimizer has them.
 * - TransformerEngine 2.6: products keep no input if their weight is frozen (module/linear.py,
 *   backward_needs_input; grouped_linear.py); those with a norm keep its output all the same
 *   (layernorm_linear.py). The head and the router are torch's (tensor_parallel/layers.py,
 *   LinearWithFrozenWeight).
 * - nn.Dropout keeps a mask of one byte per element; its output is the input of A. */
#include "engines/megatron/lora.h"

#include <string.h>

#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/moe.h"
#include "engines/megatron/vision.h"
#include "engines/tensor_parallel.h"
#include "plan/spec/registry.h"

bool stw_megatron_has_lora(const stw_run_spec *run) { return run->trainable.lora_rank > 0; }

/* ---- which products have adapters ---- */

enum { NONE, ALONE, QKV, FC1, SHARED_FC1 };

uint32_t stw_megatron_adapted(const stw_tensor *t) {
    if (t->expert) return t->rank == 3 ? ALONE : NONE;
    if (t->rank != 2) return NONE;
    switch (t->use.weight) {
    case STW_WEIGHT_ROUTER:
    case STW_WEIGHT_SHARED_GATE:
    case STW_WEIGHT_CONVOLUTION:
        return NONE;
    case STW_WEIGHT_Q:
    case STW_WEIGHT_K:
    case STW_WEIGHT_V:
        return QKV;
    case STW_WEIGHT_GATE:
    case STW_WEIGHT_UP:
        return t->use.module == STW_MODULE_SHARED_EXPERTS ? SHARED_FC1 : FC1;
    default:
        return ALONE;
    }
}

/* ---- bytes ---- */

/* Does the product begin with the norm of its input? Those of latent attention that widen do. */
static bool begins_with_norm(const stw_tensor *a, const stw_block_facts *f) {
    const stw_weight w = a->use.weight;
    if (f->kv_rank > 0 && stw_module_is_attention(a->use.module))
        return w == STW_WEIGHT_Q_UP || w == STW_WEIGHT_KV_UP;
    if (a->use.module == STW_MODULE_SHARED_EXPERTS) return false;
    return w == STW_WEIGHT_Q || w == STW_WEIGHT_QKV || w == STW_WEIGHT_GATE || w == STW_WEIGHT_UP ||
           w == STW_WEIGHT_GATE_UP;
}

typedef struct product {
    uint64_t input, output; /* bytes */
    uint64_t inner;         /* of the result of A */
    bool after_norm, after_attention;
} product;

/* Of the first matrix of an adapter: rows of this rank, and its part of their elements. */
static product product_of(const stw_job *job, uint32_t group, const stw_tensor *a) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t tp = job->run->parallel.tp, width = a->shape[a->rank - 1];
    const uint64_t rank = job->run->trainable.lora_rank;
    const uint64_t own = stw_megatron_row_tokens(job);
    const bool by_inputs = stw_tp_cut_of(a) == STW_TP_COLUMNS;
    product p = {0};
    if (a->expert) {
        const uint64_t rows = stw_megatron_moe_of(job, group).rows;
        p.input = stw_times(stw_times(rows, width), c);
        p.inner = stw_times(stw_times(rows, rank), c);
        return p;
    }
    p.input = by_inputs ? stw_times(stw_times(job->tokens, width / tp), c)
                        : stw_times(stw_times(own, width), c);
    p.inner = stw_times(stw_times(own, rank), c);
    p.after_norm = begins_with_norm(a, f);
    p.after_attention = by_inputs && stw_module_is_attention(a->use.module);
    return p;
}

static uint64_t output_of(const stw_job *job, uint32_t group, const stw_tensor *b) {
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t width = stw_times(b->shape[b->rank - 2], c);
    if (b->expert) return stw_times(stw_megatron_moe_of(job, group).rows, width);
    if (stw_tp_cut_of(b) == STW_TP_ROWS)
        return stw_times(job->tokens, width / job->run->parallel.tp);
    return stw_times(stw_megatron_row_tokens(job), width);
}

/* Without dropout the input of A is kept already where a norm or the attention keeps it. Backward:
 * the gradient of the output and its scaled copy; then, in the place of that, gradients of the
 * dropout's output and input. */
static void add(const stw_job *job, const product *p, stw_megatron_lora *out) {
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const bool drops = stw_megatron_settings_of(job->run).lora_dropout > 0;
    if (drops)
        out->saved = stw_plus(out->saved, stw_plus(p->input, p->input / c));
    else if (!p->after_norm && !p->after_attention)
        out->saved = stw_plus(out->saved, p->input);
    out->saved = stw_plus(out->saved, p->inner);
    const uint64_t more = stw_max_u64(p->output, stw_times(2, p->input));
    out->backward = stw_max_u64(out->backward, stw_plus(p->output, more));
}

/* Inputs that the formulas of trained blocks count: of the second products of MLPs, of experts'
 * first ones; the norm's output of latent attention and of routers, whose products have no norm. */
static uint64_t unsaved_of(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const stw_parallel *p = &job->run->parallel;
    const uint64_t hidden = stw_times(stw_megatron_row_tokens(job), f->hidden);
    uint64_t elements = stw_times(job->tokens, stw_plus(f->ffn / p->tp, f->shared_ffn / p->tp));
    if (f->kv_rank > 0) elements = stw_plus(elements, hidden);
    if (f->experts > 0)
        elements = STW_SUM(elements, hidden,
                           stw_times(stw_megatron_moe_of(job, group).rows,
                                     stw_plus(f->hidden, f->expert_ffn / p->etp)));
    return stw_times(elements, c);
}

stw_megatron_lora stw_megatron_lora_of(const stw_job *job, uint32_t group) {
    const stw_model *model = job->model;
    stw_megatron_lora out = {0};
    product last = {0};
    uint32_t b = 0;
    while (b < model->n_blocks && model->blocks[b].group != group) b++;
    if (!stw_megatron_has_lora(job->run) || b == model->n_blocks) return out;
    const stw_block *block = &model->blocks[b];
    for (uint32_t i = block->first_tensor; i < block->first_tensor + block->n_tensors; i++) {
        const stw_tensor *t = &model->tensors[i];
        if (t->use.adapter == STW_ADAPTER_A) {
            if (last.input > 0) add(job, &last, &out);
            last = product_of(job, group, t);
        } else if (t->use.adapter == STW_ADAPTER_B) { /* those of merged products together */
            last.output = stw_plus(last.output, output_of(job, group, t));
        }
    }
    if (last.input > 0) add(job, &last, &out);
    out.unsaved = unsaved_of(job, group);
    return out;
}

/* ---- checks ---- */

stw_status stw_megatron_check_lora(const stw_run_spec *run, const char *origin, stw_error *err) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const stw_megatron_modules m = stw_megatron_modules_of(run);
    const struct {
        const char *key, *expected;
        bool wrong;
    } keys[] = {
        {"megatron.transformer_impl", "transformer_engine with trainable.lora",
         s.transformer_impl != 1},
        {"recompute.modules", "[core_attn] with trainable.lora",
         run->recompute.granularity == 2 &&
             (m.mlp || m.moe || m.moe_act || m.layernorm || m.mla_up_proj || m.shared_experts)},
        {"parallel.etp", "1 with trainable.lora: adapters of experts are not cut",
         run->parallel.etp > 1},
        {"megatron.fp8", "none with trainable.lora", s.fp8 != 0},
        {"megatron.fsdp", "none with trainable.lora", s.fsdp != STW_MEGATRON_FSDP_NONE},
        {"megatron.mtp_num_layers", "0 with trainable.lora", s.mtp_num_layers > 0},
        {"batch.image_tokens", "0 with trainable.lora", run->batch.image_tokens > 0},
        {"megatron.offload_modules", "[] with trainable.lora", s.offload_modules.n > 0},
        {"megatron.shared_expert_overlap", "false with trainable.lora", s.shared_expert_overlap},
        {"park.backups", "0 with trainable.lora", run->park.backups > 0},
        {"checkpoint.every", "0 with trainable.lora: checkpoints of adapters are not planned",
         run->checkpoint.every > 0},
        {"park.params", "none with trainable.lora", run->park.params},
    };
    if (!stw_megatron_has_lora(run)) {
        if (!(s.lora_dropout > 0)) return STW_STATUS_OK;
        return stw_run_spec_refuse_value(run, origin, err, "megatron.lora_dropout",
                                         "0, or trainable.lora");
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].wrong)
            return stw_run_spec_refuse_value(run, origin, err, keys[i].key, keys[i].expected);
    if (run->n_roles > 0)
        return stw_run_spec_refuse(origin, err, "roles", "a further role",
                                   "the trainer alone with trainable.lora and engine megatron");
    return STW_STATUS_OK;
}
