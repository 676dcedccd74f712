/* SPDX-License-Identifier: Apache-2.0 */
/* The order is that of transformers' eager decoder (5.23, models/qwen3/modeling_qwen3.py and
 * models/qwen3_moe, integrations/moe.py: grouped_mm) and of autograd's backward of it, operation by
 * operation: a tensor is taken when the operation that makes it runs, and dropped when the last
 * reference to it goes, which for a local variable of forward is the end of its function.
 * Attention is the flash kernel (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
 * mha_fwd and mha_bwd). torch/utils/checkpoint.py recomputes up to the last tensor that is saved.
 */
#include "plan/engines/fsdp2/layer.h"

#include <string.h>

#include "core/checked.h"

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

static uint32_t take(stw_builder *b, uint64_t bytes) { return stw_tensor_take(b, 0, bytes); }

static void drop(stw_builder *b, uint32_t *tensor) {
    stw_tensor_drop(b, *tensor);
    *tensor = STW_NO_TENSOR;
}

/* The first goes when the second is there. */
static void become(stw_builder *b, uint32_t *tensor, uint32_t other) {
    stw_tensor_drop(b, *tensor);
    *tensor = other;
}

static uint64_t column(const stw_torch_layer *l, uint64_t width) {
    return stw_times(stw_times(l->job->tokens, compute_bytes(l->job)), width);
}

bool stw_torch_layer_is_known(const stw_job *job, const stw_block_facts *f) {
    return f->transformer && !f->vision && f->q_heads > 0 && f->linear_v_heads == 0 &&
           !f->wide_norms && !f->capped_scores && (f->norms == 0 || f->norms == 2) &&
           f->kv_rank == 0 && f->q_rank == 0 && job->run->attention != STW_ATTENTION_EAGER &&
           (f->gated || f->experts == 0);
}

/* ---- norms ---- */

stw_torch_norm stw_torch_norm_forward(stw_builder *b, const stw_job *job, uint64_t width,
                                      uint64_t rows, bool keep, uint32_t *out) {
    const uint64_t wide = stw_times(stw_times(job->tokens, 4), width);
    const uint64_t row = stw_times(stw_times(job->tokens, 4), rows);
    const uint64_t narrow = stw_times(stw_times(job->tokens, compute_bytes(job)), width);
    stw_torch_norm norm = {.wide = take(b, wide)};
    uint32_t squares = take(b, wide), mean = take(b, row);
    drop(b, &squares);
    uint32_t sum = take(b, row);
    norm.root = take(b, row);
    drop(b, &sum);
    uint32_t product = take(b, wide);
    if (!keep) drop(b, &norm.wide);
    if (!keep) drop(b, &norm.root);
    norm.normed = take(b, narrow);
    *out = take(b, narrow);
    drop(b, &mean);
    drop(b, &product);
    if (!keep) drop(b, &norm.normed);
    return norm;
}

uint32_t stw_torch_norm_backward(stw_builder *b, const stw_job *job, uint64_t width, uint64_t rows,
                                 stw_torch_norm *norm, uint32_t grad) {
    const uint64_t wide = stw_times(stw_times(job->tokens, 4), width);
    const uint64_t row = stw_times(stw_times(job->tokens, 4), rows);
    const uint64_t narrow = stw_times(stw_times(job->tokens, compute_bytes(job)), width);
    uint32_t normed = take(b, narrow), weighted = take(b, narrow);
    drop(b, &weighted);
    drop(b, &norm->normed);
    drop(b, &grad);
    uint32_t up = take(b, wide);
    drop(b, &normed);
    uint32_t to_root = take(b, wide), direct = take(b, wide), sum = take(b, row);
    drop(b, &to_root);
    drop(b, &up);
    uint32_t cube = take(b, row), half = take(b, row), rest = take(b, row);
    drop(b, &cube);
    drop(b, &half);
    drop(b, &norm->root);
    drop(b, &sum);
    uint32_t mean = take(b, wide);
    drop(b, &rest);
    uint32_t power = take(b, wide), twice = take(b, wide), through = take(b, wide);
    drop(b, &power);
    drop(b, &twice);
    drop(b, &norm->wide);
    drop(b, &mean);
    uint32_t both = take(b, wide);
    drop(b, &direct);
    drop(b, &through);
    uint32_t out = take(b, narrow);
    drop(b, &both);
    return out;
}

/* ---- gradients of weights ---- */

static bool is_mlp(const stw_tensor *tensor) {
    return tensor->expert || strstr(tensor->name, "mlp") != NULL ||
           strstr(tensor->name, "feed_forward") != NULL || strstr(tensor->name, "moe") != NULL;
}

/* The next matrix of the MLP or of the attention in the order of backward, or all that are left. */
static void weight_grads(stw_torch_layer *l, bool mlp, bool matrices, uint32_t most) {
    for (uint32_t i = l->n_tensors; i-- > 0 && most > 0;) {
        const stw_tensor *tensor = &l->job->model->tensors[l->first_tensor + i];
        uint64_t numel = tensor->expert ? tensor->numel / l->job->expert_cut : tensor->numel;
        if (l->grads[i] != STW_NO_TENSOR || is_mlp(tensor) != mlp) continue;
        if (matrices && tensor->rank < 2) continue;
        l->grads[i] = take(l->b, stw_times(numel, compute_bytes(l->job)));
        most--;
    }
}

/* ---- attention ---- */

static void rotate(stw_torch_layer *l, uint64_t width, uint32_t *in_place) {
    stw_builder *b = l->b;
    uint32_t straight = take(b, column(l, width)), negative = take(b, column(l, width / 2));
    uint32_t turned = take(b, column(l, width));
    drop(b, &negative);
    uint32_t sines = take(b, column(l, width));
    drop(b, &turned);
    *in_place = take(b, column(l, width));
    drop(b, &straight);
    drop(b, &sines);
}

static void rotate_backward(stw_torch_layer *l, uint64_t width, uint32_t *grad) {
    stw_builder *b = l->b;
    uint32_t sines = take(b, column(l, width)), negative = take(b, column(l, width / 2));
    uint32_t low = take(b, column(l, width));
    drop(b, &negative);
    uint32_t high = take(b, column(l, width));
    drop(b, &sines);
    uint32_t turned = take(b, column(l, width));
    drop(b, &low);
    drop(b, &high);
    uint32_t straight = take(b, column(l, width));
    drop(b, grad);
    *grad = take(b, column(l, width));
    drop(b, &turned);
    drop(b, &straight);
}

static uint64_t q_width(const stw_block_facts *f) { return stw_times(f->q_heads, f->qk_dim); }
static uint64_t k_width(const stw_block_facts *f) { return stw_times(f->kv_heads, f->qk_dim); }
static uint64_t v_width(const stw_block_facts *f) { return stw_times(f->kv_heads, f->v_dim); }
static uint64_t o_width(const stw_block_facts *f) { return stw_times(f->q_heads, f->v_dim); }

/* The output of the attention's last product. */
static uint32_t attend(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    uint32_t q = take(b, column(l, q_width(f))), k, normed;
    if (l->qk_norm) {
        s->q_norm = stw_torch_norm_forward(b, l->job, q_width(f), f->q_heads, keep, &normed);
        become(b, &q, normed);
    }
    k = take(b, column(l, k_width(f)));
    if (l->qk_norm) {
        s->k_norm = stw_torch_norm_forward(b, l->job, k_width(f), f->kv_heads, keep, &normed);
        become(b, &k, normed);
    }
    s->v = take(b, column(l, v_width(f)));
    rotate(l, q_width(f), &s->q);
    rotate(l, k_width(f), &s->k);
    drop(b, &q);
    drop(b, &k);
    s->attended = take(b, column(l, o_width(f)));
    s->lse = take(b, stw_times(stw_times(l->job->tokens, 4), f->q_heads));
    if (!keep) drop(b, &s->lse);
    uint32_t out = take(b, column(l, f->hidden));
    if (keep) return out;
    drop(b, &s->normed_first);
    drop(b, &s->v);
    drop(b, &s->q);
    drop(b, &s->k);
    drop(b, &s->attended);
    return out;
}

/* From the gradient of the attention's output to that of its input. mha_bwd: dq, dk, dv, the sums
 * of rows, dq in fp32, and dk and dv of all query heads where there are fewer key heads. */
static uint32_t attend_backward(stw_torch_layer *l, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t rows = stw_times(stw_times(l->job->tokens, 4), f->q_heads);
    weight_grads(l, false, true, 1);
    uint32_t out = take(b, column(l, o_width(f)));
    uint32_t dq = take(b, column(l, q_width(f))), dk = take(b, column(l, k_width(f)));
    uint32_t dv = take(b, column(l, v_width(f))), sums = take(b, rows);
    uint32_t dq_wide = take(b, stw_times(rows, f->qk_dim)),
             more[2] = {STW_NO_TENSOR, STW_NO_TENSOR};
    if (f->kv_heads != f->q_heads) {
        more[0] = take(b, column(l, q_width(f)));
        more[1] = take(b, column(l, o_width(f)));
    }
    uint32_t *gone[] = {&more[0], &more[1], &dq_wide,     &sums,   &s->q,
                        &s->k,    &s->v,    &s->attended, &s->lse, &out};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) drop(b, gone[i]);
    rotate_backward(l, k_width(f), &dk);
    rotate_backward(l, q_width(f), &dq);
    weight_grads(l, false, true, 1); /* v */
    uint32_t dx = take(b, column(l, f->hidden));
    drop(b, &dv);
    if (l->qk_norm)
        dk = stw_torch_norm_backward(b, l->job, k_width(f), f->kv_heads, &s->k_norm, dk);
    weight_grads(l, false, true, 1); /* k */
    uint32_t more_x = take(b, column(l, f->hidden));
    drop(b, &dk);
    uint32_t sum = take(b, column(l, f->hidden));
    drop(b, &more_x);
    become(b, &dx, sum);
    if (l->qk_norm) dq = stw_torch_norm_backward(b, l->job, q_width(f), f->q_heads, &s->q_norm, dq);
    weight_grads(l, false, true, 1); /* q */
    more_x = take(b, column(l, f->hidden));
    drop(b, &s->normed_first);
    drop(b, &dq);
    sum = take(b, column(l, f->hidden));
    drop(b, &more_x);
    become(b, &dx, sum);
    return dx;
}

/* ---- the MLP ---- */

static uint64_t mlp_column(const stw_torch_layer *l) {
    return column(l, stw_plus(l->facts->ffn, l->facts->shared_ffn));
}

/* Up to the input of the last product. */
static void mlp(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t bytes = mlp_column(l);
    if (bytes == 0) return;
    s->gate = take(b, bytes);
    if (!l->facts->gated) {
        s->product = take(b, bytes);
        if (!keep) drop(b, &s->gate);
        return;
    }
    s->active = take(b, bytes);
    if (!keep) drop(b, &s->gate);
    s->up = take(b, bytes);
    s->product = take(b, bytes);
    if (keep) return;
    drop(b, &s->active);
    drop(b, &s->up);
}

static uint32_t mlp_backward(stw_torch_layer *l, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t bytes = mlp_column(l), x = column(l, l->facts->hidden);
    weight_grads(l, true, true, 1); /* down */
    uint32_t product = take(b, bytes), up, active, dx, more;
    drop(b, &s->product);
    if (!l->facts->gated) {
        up = take(b, bytes);
        drop(b, &s->gate);
        drop(b, &product);
        weight_grads(l, true, true, 1);
        dx = take(b, x);
        drop(b, &up);
        return dx;
    }
    up = take(b, bytes);
    active = take(b, bytes);
    drop(b, &s->active);
    drop(b, &s->up);
    drop(b, &product);
    weight_grads(l, true, true, 1); /* up */
    dx = take(b, x);
    drop(b, &up);
    uint32_t gate = take(b, bytes);
    drop(b, &s->gate);
    drop(b, &active);
    weight_grads(l, true, true, 1); /* gate */
    more = take(b, x);
    drop(b, &gate);
    uint32_t sum = take(b, x);
    drop(b, &dx);
    drop(b, &more);
    return sum;
}

/* ---- routed experts, as grouped products over copies of the tokens ---- */

static uint64_t copies_column(const stw_torch_layer *l, uint64_t width) {
    uint64_t copies = stw_times(l->job->tokens, l->facts->experts_per_token);
    return stw_times(stw_times(stw_scaled(copies, l->job->run->moe.imbalance), width),
                     compute_bytes(l->job));
}

static uint32_t experts(stw_torch_layer *l, bool keep, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t x = copies_column(l, f->hidden), inner = copies_column(l, f->expert_ffn);
    const uint64_t index = stw_times(copies_column(l, 1) / compute_bytes(l->job), 8);
    uint32_t scores = take(b, column(l, f->experts)),
             wide = take(b, stw_times(column(l, f->experts), 2));
    s->probs = take(b, stw_times(stw_times(l->job->tokens, 4), f->experts));
    drop(b, &wide);
    for (int i = 0; i < 3; i++) s->order[i] = take(b, index);
    s->copies = take(b, x);
    s->e_gate = take(b, stw_times(inner, 2));
    if (!keep) drop(b, &s->copies);
    s->e_active = take(b, inner);
    s->e_product = take(b, inner);
    if (!keep) drop(b, &s->e_gate);
    if (!keep) drop(b, &s->e_active);
    s->e_down = take(b, x);
    if (!keep) drop(b, &s->e_product);
    uint32_t weighted = take(b, x);
    if (!keep) drop(b, &s->e_down);
    uint32_t ordered = take(b, x);
    drop(b, &weighted);
    uint32_t out = take(b, column(l, f->hidden));
    drop(b, &ordered);
    drop(b, &scores);
    for (int i = 0; i < 3 && !keep; i++) drop(b, &s->order[i]);
    if (!keep) drop(b, &s->probs);
    return out;
}

static uint32_t experts_backward(stw_torch_layer *l, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const stw_block_facts *f = l->facts;
    const uint64_t x = copies_column(l, f->hidden), inner = copies_column(l, f->expert_ffn);
    uint32_t spread = take(b, x), zeros = take(b, x), back = take(b, x);
    drop(b, &zeros);
    drop(b, &spread);
    uint32_t to_weights = take(b, x), down = take(b, x);
    drop(b, &to_weights);
    drop(b, &s->e_down);
    drop(b, &back);
    weight_grads(l, true, true, 1); /* down projections */
    uint32_t product = take(b, inner);
    drop(b, &s->e_product);
    drop(b, &down);
    uint32_t up = take(b, inner), active = take(b, inner);
    drop(b, &s->e_active);
    drop(b, &product);
    uint32_t gate = take(b, inner);
    drop(b, &active);
    uint32_t both = take(b, stw_times(inner, 2));
    drop(b, &s->e_gate);
    drop(b, &up);
    drop(b, &gate);
    weight_grads(l, true, true, 1); /* gate and up projections */
    uint32_t dx = take(b, x);
    drop(b, &s->copies);
    drop(b, &both);
    zeros = take(b, column(l, f->hidden));
    uint32_t out = take(b, column(l, f->hidden));
    drop(b, &zeros);
    drop(b, &dx);
    for (int i = 0; i < 3; i++) drop(b, &s->order[i]);
    drop(b, &s->probs);
    weight_grads(l, true, true, UINT32_MAX); /* the router and the rest */
    uint32_t router = take(b, column(l, f->hidden)), sum = take(b, column(l, f->hidden));
    drop(b, &out);
    drop(b, &router);
    return sum;
}

/* ---- the layer ---- */

uint32_t stw_torch_layer_forward(stw_torch_layer *l, uint32_t hidden, bool keep, bool again,
                                 stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t x = column(l, l->facts->hidden);
    const bool dense = mlp_column(l) > 0;
    uint32_t out = STW_NO_TENSOR;
    s->first = stw_torch_norm_forward(b, l->job, l->facts->hidden, 1, keep, &s->normed_first);
    uint32_t attention = attend(l, keep, s), residual = take(b, x);
    drop(b, &attention);
    s->second = stw_torch_norm_forward(b, l->job, l->facts->hidden, 1, keep, &s->normed_second);
    uint32_t routed = l->facts->experts > 0 ? experts(l, keep, s) : STW_NO_TENSOR;
    if (dense) mlp(l, keep, s);
    if (again) {
        drop(b, &residual);
        drop(b, &routed);
        return STW_NO_TENSOR;
    }
    if (dense) {
        uint32_t down = take(b, x);
        if (!keep) drop(b, &s->product);
        become(b, &routed, down);
    }
    if (!keep) drop(b, &s->normed_second);
    out = take(b, x);
    drop(b, &residual);
    drop(b, &routed);
    if (s->hidden == STW_NO_TENSOR) drop(b, &hidden);
    return out;
}

uint32_t stw_torch_layer_backward(stw_torch_layer *l, uint32_t grad, stw_torch_saved *s) {
    stw_builder *b = l->b;
    const uint64_t x = column(l, l->facts->hidden);
    uint32_t dx = STW_NO_TENSOR, sum;
    if (mlp_column(l) > 0) dx = mlp_backward(l, s);
    if (l->facts->experts > 0) become(b, &dx, experts_backward(l, s));
    drop(b, &s->normed_second);
    weight_grads(l, true, false, UINT32_MAX);
    dx = stw_torch_norm_backward(b, l->job, l->facts->hidden, 1, &s->second, dx);
    sum = take(b, x);
    drop(b, &dx);
    drop(b, &grad); /* the residual path held it */
    dx = attend_backward(l, s);
    weight_grads(l, false, false, UINT32_MAX);
    dx = stw_torch_norm_backward(b, l->job, l->facts->hidden, 1, &s->first, dx);
    uint32_t out = take(b, x);
    drop(b, &dx);
    drop(b, &sum);
    drop(b, &s->hidden);
    return out;
}
