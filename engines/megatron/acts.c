/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core at d98e8a6; torch 2.11):
 * - Norms: torch's fused rms_norm saves its input and one fp32 reciprocal root per row; the next
 *   product saves the output. The input is the residual, which the block keeps once for each norm
 *   (transformer_layer.py, _forward_attention, _forward_mlp).
 * - Query, key, value: one product into a mixed tensor; value is a view of it, so that all of it
 *   lives as long as value does (attention.py, get_query_key_value_tensors). Query is copied out of
 *   it before its norm where a rank has more than one group of queries, and the norm saves that
 *   copy.
 * - Rotary embedding without fusion (rope_utils.py, _apply_rotary_pos_emb_bshd) makes query and key
 *   anew and saves cosine and sine in the compute dtype, for each of both.
 * - Core attention: flash saves query, key, value, output and one fp32 log-sum-exp per head.
 * Unfused (dot_product_attention.py) repeats keys and values for every query head and saves the
 * softmax.
 * - Multi-latent attention (multi_latent_attention.py): query and key are concatenated of their
 *   parts with and without positions, value is a view of the up projection; the latent is saved by
 *   its norm, the norm's output by the up projection.
 * - MLP (mlp.py; fused_bias_swiglu.py, SwiGLUFunction): the first product's output, its activation.
 * - Experts (moe_layer.py; moe.c; experts.py): permuted rows as they arrive, and the two tensors of
 *   the MLP for each of them; probabilities are applied to the activation.
 * - Tensor parallelism (tensor_parallel/layers.py,
 *   LinearWithGradAccumulationAndAsyncCommunication): with sequence parallelism products save their
 *   part of the rows and gather them into one buffer again (utils.py, GlobalMemoryBuffer); without,
 *   all rows.
 * - Weight gradients are in the compute dtype for a moment, then added to the main gradients. With
 *   gradient accumulation fusion TransformerEngine's products add them themselves (base.py).
 * - Selective recomputation (transformer_config.py, recompute_modules; tensor_parallel/random.py,
 *   CheckpointWithoutOutput): norms without their output, core attention without what it saves
 *   beside query, key, value and output, the MLP and the experts without anything between their
 *   input and output.
 * - Dropout (fusions/fused_bias_dropout.py; dot_product_attention.py): a mask of one byte per
 *   element; of scores also what is left of them.
 * - TransformerEngine (module/layernorm_linear.py, layernorm_mlp.py): norms are a part of the
 * product that follows and save the same tensors. Rotary embeddings save no cosine and sine of
 * their own (attention/rope.py, FusedRoPEFunc). cuDNN's attention saves query, key, value and
 * output (attention/dot_product_attention/backends.py, FusedAttnFunc), the unfused one what the
 * local layers do.
 * - Losses of multi-token prediction (multi_token_prediction.py, process_mtp_loss) come before the
 *   main one and keep their softmax.
 * - A decoder beside an encoder (attention.py, CrossAttention; transformer_layer.py): one more
 *   norm, whose output is the input of the query product; keys and values are views of one product
 *   of the encoder's output, which all blocks share; one more dropout.
 * - Loss (tensor_parallel/cross_entropy.py, _VocabParallelCrossEntropy): logits, their fp32 copy,
 * in which the softmax is made in place; backward turns it into the gradient in place and casts it.
 *   The fused form (fused_cross_entropy.py) is compiled and makes the softmax apart.
 *   TransformerEngine's (common/triton/cross_entropy.py) puts the gradient in the place of the
 *   logits in forward; there is no fp32 copy. */
#include "engines/megatron/acts.h"

#include <string.h>

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/megatron/fp8.h"
#include "engines/megatron/linear.h"
#include "engines/megatron/lora.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/moe.h"
#include "engines/megatron/params.h"

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

/* Rows of which this rank works on all elements, those that tp cuts by elements, and those that
 * sequence parallelism leaves it. */
static uint64_t all_rows(const stw_job *job, uint32_t group) {
    return stw_job_group_tokens(job, group);
}

static uint64_t own_rows(const stw_job *job, uint64_t rows) {
    const stw_parallel *p = &job->run->parallel;
    return p->sequence_parallel ? rows / p->tp : rows;
}

/* Of as many whole rows. */
static uint64_t hidden_bytes(const stw_job *job, uint64_t rows) {
    return stw_times(stw_times(rows, job->model->hidden), compute_bytes(job));
}

uint64_t stw_megatron_hidden_bytes(const stw_job *job) {
    return hidden_bytes(job, stw_megatron_row_tokens(job));
}

static uint64_t gathered_bytes(const stw_job *job, uint64_t rows) {
    const stw_parallel *p = &job->run->parallel;
    if (!p->sequence_parallel || p->tp == 1) return 0;
    return hidden_bytes(job, rows);
}

/* Scores of all heads of this rank, between rows and a sequence of keys. */
static uint64_t scores_bytes(const stw_job *job, uint32_t group, uint64_t keys) {
    uint64_t heads = job->model->groups[group].facts.q_heads / job->run->parallel.tp;
    return stw_times(stw_times(stw_times(all_rows(job, group), keys), heads), compute_bytes(job));
}

static uint64_t keys_of(const stw_job *job, uint32_t group) {
    return stw_job_group_seq_len(job, group) / job->run->parallel.cp;
}

/* Both are the buffer "mpu" of one dtype. */
bool stw_megatron_te(const stw_job *job) {
    return stw_megatron_settings_of(job->run).transformer_impl == 1;
}

bool stw_megatron_fuses_grads(const stw_job *job) {
    return stw_megatron_te(job) && stw_megatron_settings_of(job->run).grad_fusion;
}

uint64_t stw_megatron_buffer_bytes(const stw_job *job) {
    uint64_t bytes = gathered_bytes(job, stw_max_u64(job->tokens, job->decoder_tokens));
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        const stw_block_facts *f = &job->model->groups[g].facts;
        if (f->experts > 0) {
            const uint64_t rows = stw_megatron_moe_of(job, g).gathered;
            bytes = stw_max_u64(bytes, stw_times(stw_times(rows, f->hidden), compute_bytes(job)));
        }
        if (!f->transformer || f->vision || job->run->attention != STW_ATTENTION_EAGER ||
            stw_megatron_te(job))
            continue;
        bytes = stw_max_u64(bytes, scores_bytes(job, g, keys_of(job, g)));
        if (f->decoder) bytes = stw_max_u64(bytes, scores_bytes(job, g, job->run->batch.seq_len));
    }
    return bytes;
}

/* TransformerEngine (module/base.py, get_cublas_workspace_size_bytes): 32 MiB on Hopper and later
 * GPUs; grouped products run on four streams with one each (get_multi_stream_cublas_workspace;
 * common/util/multi_stream.h). */
#define TE_WORKSPACE_BYTES (32ull << 20)
enum { TE_STREAMS = 4 };

static uint64_t workspace_bytes(const stw_job *job) {
    uint64_t n = stw_megatron_te(job) ? 1 : 0;
    if (stw_megatron_settings_of(job->run).grouped_gemm) n += TE_STREAMS;
    return stw_plus(stw_workspace_bytes(job) / 2, stw_times(n, TE_WORKSPACE_BYTES));
}

uint64_t stw_megatron_work_areas(const stw_job *job, const stw_megatron_params *params) {
    const bool fuses = stw_megatron_fuses_grads(job) && !stw_megatron_has_lora(job->run);
    const uint64_t dummies = fuses ? stw_megatron_dummy_grads(job, params) : 0;
    return stw_plus(workspace_bytes(job), stw_times(dummies, compute_bytes(job)));
}

/* ---- dropout ---- */

/* Masks of one byte for every element of hidden states. */
static uint64_t hidden_masks(const stw_job *job, uint64_t rows, uint64_t n) {
    if (!(stw_megatron_settings_of(job->run).hidden_dropout > 0)) return 0;
    return stw_times(stw_times(own_rows(job, rows), job->model->hidden), n);
}

uint64_t stw_megatron_embedding_mask_bytes(const stw_job *job) {
    return hidden_masks(job, job->tokens, 1);
}

uint64_t stw_megatron_outer_bytes(const stw_job *job) {
    const uint64_t rows = job->tokens, masks = stw_megatron_embedding_mask_bytes(job);
    if (!stw_job_has_encoder(job)) return masks;
    return STW_SUM(masks, hidden_masks(job, job->decoder_tokens, 1),
                   stw_times(2, hidden_bytes(job, own_rows(job, rows))),
                   stw_times(4, own_rows(job, rows)));
}

/* ---- attention ---- */

/* Learned positions are added to the embedding; others turn query and key. */
bool stw_megatron_turns(const stw_job *job) {
    const stw_model *model = job->model;
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        if (model->groups[model->blocks[model->tensors[i].block].group].facts.transformer) continue;
        if (model->tensors[i].use.weight == STW_WEIGHT_POSITION) return false;
    }
    return true;
}

/* The weight of a group's blocks, or NULL. */
static const stw_tensor *tensor_of(const stw_job *job, uint32_t group, stw_weight weight) {
    const stw_model *model = job->model;
    uint32_t b = 0;
    while (b < model->n_blocks && model->blocks[b].group != group) b++;
    if (b == model->n_blocks) return NULL;
    const stw_block *block = &model->blocks[b];
    for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++)
        if (model->tensors[t].use.weight == weight && !model->tensors[t].use.bias)
            return &model->tensors[t];
    return NULL;
}

bool stw_megatron_has_query_norm(const stw_job *job, uint32_t group) {
    return tensor_of(job, group, STW_WEIGHT_Q_NORM) != NULL;
}

bool stw_megatron_has_output_gate(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_tensor *q = tensor_of(job, group, STW_WEIGHT_Q);
    return q != NULL && q->shape[0] == stw_times(2, stw_times(f->q_heads, f->qk_dim));
}

typedef struct attention_bytes {
    uint64_t always;            /* query, key, value, output */
    uint64_t core;              /* what core attention saves beside these */
    uint64_t up;                /* of `always`: outputs of MLA's up projections */
    uint64_t weight_grad;       /* of its largest matrix */
    uint64_t forward, backward; /* beside what is saved: of linear attention */
} attention_bytes;

/* What core attention saves beside query, key, value and output. */
static uint64_t core_bytes(const stw_job *job, uint32_t group, uint64_t keys) {
    const uint64_t heads = job->model->groups[group].facts.q_heads / job->run->parallel.tp;
    if (job->run->attention != STW_ATTENTION_EAGER)
        return stw_times(stw_times(4, all_rows(job, group)), heads);
    const uint64_t scores = scores_bytes(job, group, keys);
    uint64_t bytes = stw_plus(scores, stw_times(keys_of(job, group), keys)); /* and the mask */
    if (stw_megatron_settings_of(job->run)
            .softmax_fp32) /* fused_softmax.py, forward_torch_softmax */
        bytes = stw_plus(bytes, stw_times(scores / compute_bytes(job), 4 - compute_bytes(job)));
    if (stw_megatron_settings_of(job->run).attention_dropout > 0)
        bytes = STW_SUM(bytes, scores, scores / compute_bytes(job)); /* what is left, its mask */
    return bytes;
}

/* Of a decoder's attention to the encoder's output: query and output of its own rows, key and
 * value of the encoder's. */
static uint64_t cross_attention_bytes(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = compute_bytes(job), tp = job->run->parallel.tp;
    if (!f->decoder) return 0;
    uint64_t each = stw_times(f->q_heads / tp, stw_plus(f->qk_dim, f->v_dim));
    return stw_times(stw_times(c, each), stw_plus(all_rows(job, group), job->tokens));
}

/* TransformerEngine's unfused attention (attention/dot_product_attention/backends.py,
 * UnfusedDotProductAttention): products beside the softmax in forward, its gradient in backward. */
static uint64_t working_scores(const stw_job *job, uint32_t group) {
    return scores_bytes(job, group, keys_of(job, group));
}

/* What keeps the attention's products: of rows and heads of this rank. */
static attention_bytes attention_of(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = compute_bytes(job), tp = job->run->parallel.tp, rows = all_rows(job, group);
    const uint64_t heads = f->q_heads / tp, groups = f->kv_heads / tp;
    const bool eager = job->run->attention == STW_ATTENTION_EAGER;
    attention_bytes out = {0};
    if (f->linear_v_heads > 0) {
        const stw_megatron_linear l = stw_megatron_linear_of(job, group, stw_megatron_te(job));
        return (attention_bytes){.always = l.saved,
                                 .weight_grad = l.weight_grad,
                                 .forward = l.forward,
                                 .backward = l.backward};
    }
    uint64_t q = stw_times(heads, f->qk_dim), k = stw_times(groups, f->qk_dim);
    uint64_t v = stw_times(groups, f->v_dim), result = stw_times(heads, f->v_dim);
    uint64_t row = result; /* elements of a row */
    if (f->kv_rank > 0) {
        uint64_t rope = f->qk_dim > f->v_dim ? f->qk_dim - f->v_dim : 0;
        uint64_t up = STW_SUM(q, q, stw_times(heads, stw_plus(f->qk_dim - rope, f->v_dim)));
        uint64_t latents = STW_SUM(stw_times(2, f->kv_rank), rope, stw_times(2, f->q_rank));
        out.up = stw_times(stw_times(rows, c), up);
        row = STW_SUM(row, up, latents);
    } else {
        row = STW_SUM(row, q, k, v);                           /* mixed */
        if (stw_megatron_turns(job)) row = STW_SUM(row, q, k); /* query and key with positions */
        if (groups > 1 && stw_megatron_has_query_norm(job, group)) row = stw_plus(row, q);
        /* the gate in `mixed`, copied where it is strided; the gated output */
        if (stw_megatron_has_output_gate(job, group))
            row = STW_SUM(row, q, groups > 1 ? q : 0, result);
    }
    out.always = stw_times(stw_times(rows, c), row);
    if (f->kv_rank == 0 && stw_megatron_turns(job) &&
        !stw_megatron_te(job)) { /* cosine, sine of both */
        uint64_t tables = stw_times(stw_times(4, f->qk_dim), c);
        out.always = stw_plus(out.always, stw_times(tables, keys_of(job, group)));
    }
    if (f->kv_rank == 0 && stw_megatron_has_query_norm(job, group))
        out.always = stw_plus(out.always, stw_times(stw_times(4, rows), heads + groups));
    out.core = core_bytes(job, group, keys_of(job, group));
    if (f->decoder) {
        out.always = stw_plus(out.always, cross_attention_bytes(job, group));
        out.core = stw_plus(out.core, core_bytes(job, group, job->run->batch.seq_len));
    }
    if (eager && heads != groups) { /* repeated keys and values in the place of keys */
        out.core = stw_plus(out.core, stw_times(stw_times(rows, c), stw_plus(q, result)));
        out.always -= stw_min_u64(out.always, stw_times(stw_times(rows, c), k));
    }
    if (eager && stw_megatron_te(job)) out.forward = out.backward = working_scores(job, group);
    if (stw_megatron_has_output_gate(job, group)) q = stw_times(2, q);
    out.weight_grad =
        stw_megatron_fuses_grads(job) ? 0 : stw_times(stw_times(c, f->hidden), STW_SUM(q, k, v));
    return out;
}

/* Inputs of products that a norm or linear attention makes for them alone are kept in 8 bits. The
 * output projection keeps the output of core attention itself, which that has kept anyway
 * (set_save_original_input), but not with delayed scaling. */
static void quantize_attention(const stw_job *job, uint32_t group, attention_bytes *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = compute_bytes(job), tp = job->run->parallel.tp, rows = all_rows(job, group);
    const uint64_t result = stw_times(f->q_heads / tp, f->v_dim);
    const bool eager = job->run->attention == STW_ATTENTION_EAGER;
    uint64_t in_8 = 0, not_in_16 = 0; /* elements of a row */
    if (f->linear_v_heads > 0) {
        in_8 = not_in_16 = stw_times(f->linear_v_heads / tp, f->linear_v_dim);
    } else {
        if (f->kv_rank > 0) in_8 = not_in_16 = stw_plus(f->kv_rank, f->q_rank);
        if (stw_megatron_fp8_delayed(job)) {
            in_8 = stw_plus(in_8, result);
            if (eager || stw_megatron_has_output_gate(job, group))
                not_in_16 = stw_plus(not_in_16, result);
        }
    }
    out->always -= stw_min_u64(out->always, stw_times(stw_times(rows, c), not_in_16));
    out->always = stw_plus(out->always, stw_megatron_fp8_kept(job, stw_times(rows, in_8)));
    const uint64_t width = out->weight_grad / stw_times(c, f->hidden); /* of the gradient */
    out->weight_grad =
        stw_plus(out->weight_grad, stw_megatron_fp8_both(job, stw_times(rows, width)));
}

uint64_t stw_megatron_key_value_bytes(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    uint64_t row = stw_times(f->kv_heads / job->run->parallel.tp, stw_plus(f->qk_dim, f->v_dim));
    return stw_times(stw_times(all_rows(job, group), compute_bytes(job)), row);
}

uint64_t stw_megatron_heads_sent_bytes(const stw_job *job, uint32_t group) {
    if (job->model->groups[group].facts.linear_v_heads == 0) return 0;
    const stw_megatron_linear l = stw_megatron_linear_of(job, group, stw_megatron_te(job));
    return stw_plus(l.sent_out, l.sent_back);
}

/* ---- MLP and experts ---- */

typedef struct mlp_bytes {
    uint64_t dense;             /* between the products of the dense MLP */
    uint64_t shared;            /* of the shared expert */
    uint64_t routed;            /* rows of experts, and between their products */
    uint64_t activation;        /* of `routed`: input of the second product */
    uint64_t activation_again;  /* the same as recomputation brings it back */
    uint64_t forward, backward; /* at the widest moments */
} mlp_bytes;

/* Backward of an MLP of width f on n rows: after the second product its gradients of input and
 * weight lie beside all that was saved; then the gradient of the first product's output takes the
 * place of the activation and its gradient. */
static uint64_t mlp_backward(const stw_job *job, uint64_t rows, uint64_t width, uint64_t products) {
    const uint64_t c = compute_bytes(job);
    uint64_t grad = stw_times(stw_times(rows, width), c);
    uint64_t weight =
        stw_megatron_fuses_grads(job) ? 0 : stw_times(stw_times(job->model->hidden, width), c);
    return stw_max_u64(STW_SUM(gathered_bytes(job, rows), grad, weight), stw_times(grad, products));
}

/* The same with gradients in 8 bits, by rows and transposed, beside those in 16 bits. */
static uint64_t mlp_backward_fp8(const stw_job *job, uint64_t rows, uint64_t width,
                                 uint64_t products) {
    const uint64_t c = compute_bytes(job), hidden = job->model->hidden;
    const uint64_t elements = stw_times(rows, width), out = stw_times(elements, products);
    uint64_t weight = stw_times(stw_times(hidden, width), c);
    return stw_max_u64(STW_SUM(stw_megatron_fp8_both(job, stw_times(rows, hidden)),
                               stw_times(elements, c), weight),
                       stw_plus(stw_times(out, c), stw_megatron_fp8_both(job, out)));
}

/* What a product keeps of an input that is made for it. */
static uint64_t input_bytes(const stw_job *job, uint64_t elements, bool fp8) {
    return fp8 ? stw_megatron_fp8_kept(job, elements) : stw_times(elements, compute_bytes(job));
}

/* Between the products of an MLP of this width. */
static uint64_t between(const stw_job *job, uint64_t rows, uint64_t width, uint64_t products,
                        bool fp8) {
    const uint64_t elements = stw_times(rows, width);
    return stw_plus(stw_times(stw_times(elements, products), compute_bytes(job)),
                    input_bytes(job, elements, fp8));
}

/* Experts: rows as they arrive, and what is between their products. */
static void add_routed(const stw_job *job, uint32_t group, bool fp8, mlp_bytes *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = compute_bytes(job), products = f->gated ? 2 : 1;
    const stw_megatron_moe moe = stw_megatron_moe_of(job, group);
    const uint64_t rows = fp8 ? stw_megatron_fp8_rows(job, moe.rows, f->experts) : moe.rows;
    const uint64_t width = f->expert_ffn / job->run->parallel.etp;
    const uint64_t elements = stw_times(rows, width), hidden = stw_times(rows, f->hidden);
    out->activation = input_bytes(job, elements, fp8);
    out->activation_again = stw_times(elements, c);
    if (fp8) out->activation_again = stw_plus(out->activation_again, out->activation);
    out->routed = STW_SUM(input_bytes(job, hidden, fp8), between(job, rows, width, products, fp8),
                          moe.router);
    if (!f->gated) /* before probabilities multiply it (experts.py, mlp.py: not fused) */
        out->routed = stw_plus(out->routed, stw_times(elements, c));
    out->forward = moe.forward;
    out->backward = stw_max_u64(out->backward, moe.backward);
    if (fp8)
        out->backward = stw_max_u64(out->backward, STW_SUM(stw_times(hidden, c),
                                                           stw_megatron_fp8_both(job, hidden),
                                                           stw_times(elements, c)));
}

static mlp_bytes mlp_of(const stw_job *job, uint32_t group, bool fp8) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_parallel *p = &job->run->parallel;
    const uint64_t c = compute_bytes(job), products = f->gated ? 2 : 1;
    const uint64_t rows = all_rows(job, group);
    const uint64_t widest = stw_max_u64(f->ffn, f->shared_ffn) / p->tp;
    mlp_bytes out = {0};
    out.dense = between(job, rows, f->ffn / p->tp, products, fp8);
    out.shared = between(job, rows, f->shared_ffn / p->tp, products, fp8);
    if (f->shared_ffn > 0 &&
        tensor_of(job, group, STW_WEIGHT_SHARED_GATE) != NULL) /* two outputs */
        out.shared = STW_SUM(out.shared, stw_megatron_hidden_bytes(job),
                             stw_times(c, stw_megatron_row_tokens(job)));
    out.backward = (fp8 ? mlp_backward_fp8 : mlp_backward)(job, rows, widest, products);
    if (fp8) /* the second product's input in 16 bits, and its copy by rows */
        out.forward = stw_plus(stw_times(stw_times(rows, widest), c),
                               stw_megatron_fp8_kept(job, stw_times(rows, widest)));
    if (f->experts == 0) return out;
    add_routed(job, group, fp8, &out);
    /* all rows instead of this rank's (shared_experts.py, pre_forward_comm) */
    if (f->shared_ffn > 0 && stw_megatron_settings_of(job->run).shared_expert_overlap)
        out.shared = stw_plus(out.shared, gathered_bytes(job, rows));
    return out;
}

/* ---- blocks ---- */

/* What products keep of the outputs of a block's norms. In 8 bits the down projections of
 * multi-latent attention keep a copy each. Routers keep theirs in 16 bits, and so does the shared
 * expert beside them, except with delayed scaling (shared_experts.py, set_save_original_input). */
static uint64_t norm_outputs(const stw_job *job, uint32_t group, uint64_t norms, bool fp8) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t rows = own_rows(job, all_rows(job, group));
    const uint64_t hidden = hidden_bytes(job, rows);
    if (!fp8) return stw_times(norms, hidden);
    const uint64_t kept = stw_megatron_fp8_kept(job, stw_times(rows, job->model->hidden));
    const uint64_t attention = stw_times(f->kv_rank > 0 ? 2 : 1, kept);
    if (f->experts == 0) return stw_plus(attention, kept);
    const bool copied = f->shared_ffn > 0 && stw_megatron_fp8_delayed(job);
    return STW_SUM(attention, hidden, copied ? kept : 0);
}

/* Frozen products have no gradients of weights, and keep less; adapters keep more. */
static void adapt(const stw_job *job, uint32_t group, stw_megatron_layer *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_megatron_lora lora = stw_megatron_lora_of(job, group);
    const uint64_t dropped = out->whole - out->kept;
    out->whole = stw_plus(out->whole - stw_min_u64(lora.unsaved, out->whole), lora.saved);
    out->kept = out->whole - stw_min_u64(dropped, out->whole);
    out->backward = lora.backward;
    if (f->experts > 0)
        out->backward = stw_max_u64(out->backward, stw_megatron_moe_of(job, group).backward);
}

stw_megatron_layer stw_megatron_layer_of(const stw_job *job, uint32_t group, bool fp8) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    stw_megatron_modules m = {0};
    if (job->run->recompute.granularity == 2) m = stw_megatron_modules_of(job->run);
    attention_bytes a = attention_of(job, group);
    if (fp8) quantize_attention(job, group, &a);
    const mlp_bytes mlp = mlp_of(job, group, fp8);
    const uint64_t rows = all_rows(job, group), norms = f->decoder ? 3 : 2;
    const uint64_t hidden = hidden_bytes(job, own_rows(job, rows));
    const uint64_t roots = stw_times(4, own_rows(job, rows));
    const uint64_t normed = norm_outputs(job, group, norms, fp8);
    uint64_t dropped_mlp = 0, again_mlp, dropped = 0;
    stw_megatron_layer out = {.input = hidden, .router = f->experts > 0};
    out.whole = STW_SUM(stw_times(norms, hidden), normed, stw_times(norms, roots), a.always, a.core,
                        mlp.dense, mlp.shared, mlp.routed, hidden_masks(job, rows, norms));
    const uint64_t attention = STW_SUM(m.core_attn ? a.core : 0, m.mla_up_proj ? a.up : 0);
    if (f->experts == 0)
        dropped_mlp = m.mlp ? mlp.dense : 0;
    else if (m.moe)
        dropped_mlp = stw_plus(mlp.routed, mlp.shared);
    else
        dropped_mlp = stw_plus(m.moe_act ? mlp.activation : 0, m.shared_experts ? mlp.shared : 0);
    again_mlp = dropped_mlp;
    if (f->experts > 0 && !m.moe && m.moe_act) again_mlp += mlp.activation_again - mlp.activation;
    dropped = STW_SUM(attention, dropped_mlp,
                      m.layernorm ? stw_min_u64(normed, stw_times(2, hidden)) : 0);
    out.kept = out.whole - stw_min_u64(dropped, out.whole);
    out.again = stw_plus(m.layernorm ? hidden : 0, stw_max_u64(attention, again_mlp));
    out.forward = stw_max_u64(mlp.forward, a.forward);
    out.backward = stw_max_u64(mlp.backward, stw_max_u64(a.weight_grad, a.backward));
    if (f->decoder) /* the sum of the gradients of the encoder's output */
        out.backward = stw_plus(out.backward, stw_megatron_hidden_bytes(job));
    if (stw_megatron_has_lora(job->run)) adapt(job, group, &out);
    return out;
}

/* ---- multi-token prediction ---- */

/* MultiTokenPredictionLayer (multi_token_prediction.py): norms of the embedding's output and of the
 * hidden states save these; the projection saves both norms' outputs side by side; the last norm
 * saves the layer's output. With sequence parallelism the layer's input is a view of rows that were
 * gathered from the TP group (tensor_parallel/mappings.py, _split_along_first_dim). Full
 * recomputation keeps the projection's two inputs. */
stw_megatron_layer stw_megatron_mtp_of(const stw_job *job, uint32_t group, bool fp8) {
    stw_megatron_layer out = stw_megatron_layer_of(job, group, fp8);
    const uint64_t hidden = stw_megatron_hidden_bytes(job);
    const uint64_t roots = stw_times(4, stw_megatron_row_tokens(job));
    const uint64_t all = hidden_bytes(job, all_rows(job, group));
    const uint64_t mask = stw_megatron_embedding_mask_bytes(job);
    const uint64_t view = job->run->parallel.tp > 1 ? all - hidden : 0;
    const uint64_t rows = stw_megatron_row_tokens(job);
    const uint64_t both = input_bytes(job, stw_times(stw_times(2, rows), job->model->hidden), fp8);
    const uint64_t more = STW_SUM(stw_times(3, hidden), both, stw_times(3, roots), view, mask);
    out.input = STW_SUM(hidden, hidden, mask);
    out.whole = stw_plus(out.whole, more);
    out.kept = stw_plus(out.kept, more);
    return out;
}

uint64_t stw_megatron_hidden_states(const stw_job *job) {
    return 1ull + stw_megatron_mtp_layers(job);
}

/* ---- loss ---- */

/* Inputs of the head and gradients of its output (tensor_parallel/layers.py: grad_output_buffer,
 * embedding_activation_buffer), of all micro batches before the last. */
uint64_t stw_megatron_deferred_bytes(const stw_job *job) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const uint64_t rows = job->decoder_tokens;
    uint64_t n = stw_times(job->run->batch.grad_accumulation - 1, stw_megatron_hidden_states(job));
    if (!s.defer_embedding_wgrad) return 0;
    if (s.wgrad_deferral_limit > 0) n = stw_min_u64(n, s.wgrad_deferral_limit);
    uint64_t logits = stw_times(stw_times(rows, stw_megatron_vocab(job)), compute_bytes(job));
    return stw_times(n, stw_plus(logits, hidden_bytes(job, own_rows(job, rows))));
}

stw_megatron_loss stw_megatron_loss_of(const stw_job *job) {
    const uint64_t c = compute_bytes(job), vocab = stw_megatron_vocab(job);
    const uint64_t rows = job->decoder_tokens, logits = stw_times(rows, vocab);
    const uint64_t hidden = hidden_bytes(job, rows);
    const bool fused = stw_megatron_settings_of(job->run).cross_entropy_fusion;
    const uint32_t last = job->run->parallel.pp * job->run->parallel.vpp - 1;
    const uint64_t states = stw_megatron_hidden_states(job);
    stw_megatron_loss out = {.kept = stw_times(2, hidden_bytes(job, own_rows(job, rows))),
                             .logits = stw_times(logits, 4)};
    if (states > 1) { /* the head's inputs are views of the hidden states end to end */
        uint64_t each = stw_megatron_mtp_chunk(job) == last ? states : stw_times(2, states);
        out.kept = stw_times(stw_megatron_hidden_bytes(job), each);
        out.predictions = stw_times(out.logits, states - 1);
    }
    out.forward = stw_times(logits, stw_plus(c, fused ? 4 : 0));
    out.backward = stw_times(logits, c);
    if (stw_megatron_settings_of(job->run).cross_entropy_impl == 1) {
        out.logits = stw_times(logits, c);
        out.forward = out.backward = 0;
    }
    out.head = stw_plus(stw_times(logits, c), hidden);
    if (stw_megatron_has_lora(job->run)) /* the frozen head keeps no input */
        out.kept /= 2;
    else
        out.head = stw_plus(out.head, stw_times(stw_times(vocab, job->model->hidden), c));
    return out;
}
