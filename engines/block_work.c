/* SPDX-License-Identifier: Apache-2.0 */
/* Sources:
 * - Products are the model's matrices: (tokens, inputs) x (inputs, outputs); of experts, each with
 *   its share of the routed rows.
 * - Attention: arXiv 2307.08691, section 4: 4 x s^2 x d FLOP a head forward, half of them under a
 *   causal mask, and five products for two in backward.
 * - Bytes of element-wise operations: measured seconds of each (torch 2.11, H100 and H200, bf16)
 *   times the rate of copies, over its elements: bench/results/2026-11-23-rates. So they contain
 *   what a kernel loses against a copy. Eager norms and rotary embeddings are those of transformers
 *   5.17 (models/llama/modeling_llama.py), which compute in fp32, operation by operation. */
#include "engines/block_work.h"

#include <string.h>

#include "blocks/calls.h"
#include "core/checked.h"

/* Bytes an element: forward, backward. */
typedef struct cost {
    double forward, backward;
} cost;
static const cost EAGER_NORM = {50, 112}, KERNEL_NORM = {6, 14};  /* of the row */
static const cost EAGER_ROTARY = {40, 40}, FUSED_ROTARY = {4, 4}; /* of queries and keys */
static const cost EAGER_GATE = {10, 18}, FUSED_GATE = {6, 10};    /* of the product of both */
static const cost ACTIVATION = {4, 6};
static const cost EAGER_LOSS = {25, 26}, FUSED_LOSS = {8, 6}; /* of the logits */
/* Of scores that a product writes, a softmax replaces and a product reads: in fp32 operation by
 * operation, or in 16 bits in one kernel (Megatron-LM's fused_softmax.py). Backward: the gradient
 * of the softmax is written, it and the softmax are read, theirs is written and read by two
 * products.
 */
static const cost EAGER_SCORES = {24, 30}, FUSED_SCORES = {8, 12};
/* Sums of two: residuals; gradients of inputs that several products read. */
static const double SUM = 6, EAGER_SUMS_BACKWARD = 5, FUSED_SUMS_BACKWARD = 2;
static const double COPY = 4;
/* Of a row on its way to an expert and back: gathered, weighted, summed. */
static const cost EAGER_ROUTE = {14, 20}, FUSED_ROUTE = {8, 8};
/* A tensor cast to 8 bits: read, written as it is and transposed. */
static const double CAST = 4;

static double pick(cost eager, cost fused, const stw_work_style *style, bool backward) {
    const cost c = style->fused ? fused : eager;
    return backward ? c.backward : c.forward;
}

static double of_tokens(const stw_job *job, uint32_t group) {
    return (double)stw_job_group_tokens(job, group);
}

stw_work_style stw_work_style_eager(const stw_job *job) {
    return (stw_work_style){.tp = stw_job_tp(job)};
}

/* ---- products ---- */

/* Tensor parallelism cuts the outputs of a block's first products and the inputs of its last ones:
 * the longer side of most of them. */
static void cut(double ways, double *outputs, double *inputs) {
    if (*outputs >= *inputs)
        *outputs /= ways;
    else
        *inputs /= ways;
}

/* Rows of an expert, and how many experts a rank has. Every rank routes as many tokens. */
static void add_expert(const stw_job *job, const stw_block_facts *f, const stw_work_style *style,
                       const stw_tensor *tensor, double tokens, stw_work *out) {
    const stw_parallel *way = &job->run->parallel;
    const double ep = way->ep > 0 ? way->ep : 1, etp = way->etp > 0 ? way->etp : 1;
    const double experts = (double)stw_max_u64(1, f->experts);
    const double rows = tokens * (double)f->experts_per_token * etp / (double)style->tp;
    const double mine = (double)stw_max_u64(1, tensor->experts) / ep;
    const uint32_t at = tensor->rank - 2;
    double outputs = (double)tensor->shape[at], inputs = (double)tensor->shape[at + 1];
    cut(etp, &outputs, &inputs);
    stw_work_product(out, style->fp8, rows * ep / experts, outputs, inputs, mine,
                     tensor->experts > 1 ? 1 : mine);
}

/* The block's matrices. Biases, norms and convolutions have no products of their own. */
static void add_products(const stw_job *job, uint32_t block, const stw_work_style *style,
                         stw_work *out) {
    const stw_model *model = job->model;
    const stw_block *at = &model->blocks[block];
    const stw_block_facts *f = &model->groups[at->group].facts;
    const double tokens = of_tokens(job, at->group);
    for (uint32_t t = at->first_tensor; t < at->first_tensor + at->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        double outputs = (double)tensor->shape[0], inputs = (double)tensor->shape[1];
        if (tensor->rank < 2 || (tensor->rank > 2 && !tensor->expert)) continue;
        if (tensor->expert && f->experts > 0) {
            add_expert(job, f, style, tensor, tokens, out);
            continue;
        }
        cut(style->tp, &outputs, &inputs);
        stw_work_product(out, style->fp8, tokens, outputs, inputs, 1, 0);
    }
}

/* The list stands for all parameters that a token uses. */
static void match_flops(stw_work *products, double flops, double rows, double columns) {
    const double sum = stw_work_flops(products->items, products->n);
    if (!(sum > 0) && flops > 0 && rows > 0)
        stw_work_product(products, false, rows, flops / (2 * rows * columns), columns, 1, 1);
    else if (sum > 0)
        stw_work_scale(products, flops / sum);
}

/* ---- attention ---- */

/* scaled_dot_product_attention takes cuDNN's kernel on Hopper (torch 2.11, transformers 5.17, five
 * runs on an H200: bench/results/2026-11-23-rates); other rows of rates.csv have both alike. */
static stw_kernel kernel_of(const stw_job *job, const stw_work_style *style) {
    const stw_attention kind = job->run->attention;
    if (kind == STW_ATTENTION_FLASH_TRITON) return STW_KERNEL_TRITON;
    if (style->fused || kind == STW_ATTENTION_FLASH3 || kind == STW_ATTENTION_SDPA)
        return STW_KERNEL_FUSED;
    return STW_KERNEL_FLASH;
}

static void add_attention(const stw_job *job, uint32_t group, const stw_work_style *style,
                          double flops, stw_work *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const double seq = (double)stw_job_group_seq_len(job, group);
    const double head = (double)stw_plus(f->qk_dim, f->v_dim) / 2;
    if (!(flops > 0)) return;
    if (job->run->attention != STW_ATTENTION_EAGER) {
        stw_work_attention(out, kernel_of(job, style), flops, head, seq);
        return;
    }
    /* products of whole squares, head by head in one call */
    const double heads = (double)f->q_heads / style->tp, tokens = of_tokens(job, group);
    stw_work_product(out, false, tokens, seq, (double)f->qk_dim, heads, 1);
    stw_work_product(out, false, tokens, (double)f->v_dim, seq, heads, 1);
    stw_work_traffic(out, pick(EAGER_SCORES, FUSED_SCORES, style, false) * heads * tokens * seq);
}

/* ---- element-wise ---- */

static bool has_query_norm(const stw_job *job, const stw_block *block) {
    for (uint32_t t = block->first_tensor; t < block->first_tensor + block->n_tensors; t++)
        if (job->model->tensors[t].use.weight == STW_WEIGHT_Q_NORM) return true;
    return false;
}

/* Bytes of one token. Norms and residuals have the rows of a rank under sequence parallelism. */
static double traffic_of_token(const stw_job *job, const stw_block *block,
                               const stw_work_style *style, bool backward) {
    const stw_block_facts *f = &job->model->groups[block->group].facts;
    const double hidden = (double)f->hidden, tp = style->tp;
    const double own = job->run->parallel.sequence_parallel ? 1 / tp : 1;
    const double queries = (double)stw_times(f->q_heads, f->qk_dim) / tp,
                 keys = (double)stw_times(f->kv_heads, f->qk_dim) / tp;
    const double routed = (double)stw_times(f->experts_per_token, f->expert_ffn);
    const double columns = ((double)stw_plus(f->ffn, f->shared_ffn) + routed) / tp;
    const double norm = pick(f->gated ? EAGER_NORM : KERNEL_NORM, KERNEL_NORM, style, backward);
    const double sums = !backward ? 2 : style->fused ? FUSED_SUMS_BACKWARD : EAGER_SUMS_BACKWARD;
    double bytes = own * hidden * ((f->norms > 0 ? (double)f->norms : 2) * norm + sums * SUM);
    if (f->gated)
        bytes += pick(EAGER_ROTARY, FUSED_ROTARY, style, backward) * (queries + keys) +
                 pick(EAGER_GATE, FUSED_GATE, style, backward) * columns;
    else
        bytes += pick(ACTIVATION, ACTIVATION, style, backward) * columns;
    if (!style->fused) bytes += COPY * (double)stw_times(f->q_heads, f->v_dim) / tp;
    if (has_query_norm(job, block)) bytes += norm * (queries + keys);
    if (f->experts > 0)
        bytes += pick(EAGER_ROUTE, FUSED_ROUTE, style, backward) * (double)f->experts_per_token *
                 hidden * own;
    return bytes;
}

/* Inputs of products are cast once for all that read them; gradients of outputs one by one. */
static double cast_bytes(const stw_work *forward, bool backward) {
    double bytes = 0;
    for (uint32_t i = 0; i < forward->n; i++) {
        const stw_work_item *item = &forward->items[i];
        bool first = true;
        if (item->kind != STW_WORK_PRODUCT || !item->fp8) continue;
        for (uint32_t k = 0; k < i; k++)
            first = first && (forward->items[k].m != item->m || forward->items[k].k != item->k);
        if (backward)
            bytes += CAST * item->times * item->m * item->n;
        else if (first)
            bytes += CAST * item->launches * item->m * item->k;
    }
    return bytes;
}

/* ---- blocks ---- */

/* With a mask the kernel multiplies all pairs of tokens, also those outside the window: what that
 * adds. */
static double masked_flops(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    if (stw_mask_bytes(job, f, 1) == 0) return 0;
    const double times = (double)stw_job_group_seq_len(job, group) / (double)f->window;
    return stw_group_attention_flops(job, group) * (times - 1);
}

/* Products and attention alone. */
static void add_forward(const stw_job *job, uint32_t block, const stw_work_style *style,
                        stw_work *out) {
    const uint32_t group = job->model->blocks[block].group;
    const stw_block_facts *f = &job->model->groups[group].facts;
    const double whole = stw_block_forward_flops(job, block);
    const double attention = stw_block_attention_flops(job, block);
    out->n = 0;
    if (!f->transformer) return;
    add_products(job, block, style, out);
    match_flops(out, (whole - attention) / style->tp, of_tokens(job, group), (double)f->hidden);
    add_attention(job, group, style, (attention + masked_flops(job, group)) / style->tp, out);
}

void stw_block_forward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                            stw_work *out) {
    const stw_block *at = &job->model->blocks[block];
    add_forward(job, block, style, out);
    if (out->n == 0) return;
    const double rows = of_tokens(job, at->group);
    stw_work_traffic(out, rows * traffic_of_token(job, at, style, false) + cast_bytes(out, false));
}

/* Bytes of eager attention's scores in a forward; their backward moves more. */
static double scores_bytes(const stw_work *forward) {
    double bytes = 0;
    for (uint32_t i = 0; i < forward->n; i++)
        if (forward->items[i].kind == STW_WORK_TRAFFIC) bytes += forward->items[i].moved;
    return bytes;
}

void stw_block_backward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                             stw_work *out) {
    const stw_block *at = &job->model->blocks[block];
    const double params = (double)stw_job_gathered_params(job, block);
    const double trained = (double)stw_job_gathered_grads(job, block);
    stw_work forward;
    out->n = 0;
    add_forward(job, block, style, &forward);
    if (forward.n == 0 || !stw_block_saves(job, block)) return;
    stw_work_add_backward(out, &forward, params > 0 ? trained / params : 1);
    const double rows = of_tokens(job, at->group), scores = scores_bytes(&forward);
    stw_work_traffic(out, rows * traffic_of_token(job, at, style, true) +
                              cast_bytes(&forward, true) +
                              scores * pick(EAGER_SCORES, FUSED_SCORES, style, true) /
                                  pick(EAGER_SCORES, FUSED_SCORES, style, false));
}

void stw_block_parts_work(const stw_job *job, uint32_t group, const stw_work_style *style,
                          const stw_block_parts *parts, stw_work *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const double tokens = of_tokens(job, group), hidden = (double)f->hidden;
    const double width =
        (double)STW_SUM(f->ffn, f->shared_ffn, stw_times(f->experts_per_token, f->expert_ffn));
    out->n = 0;
    if (parts->attention)
        add_attention(
            job, group, style,
            (stw_group_attention_flops(job, group) + masked_flops(job, group)) / style->tp, out);
    if (parts->mlp) {
        stw_work_product(out, style->fp8, tokens, width / style->tp, hidden, f->gated ? 2 : 1, 0);
        stw_work_product(out, style->fp8, tokens, hidden, width / style->tp, 1, 0);
    }
    stw_work_product(out, style->fp8, tokens, parts->columns / style->tp, hidden, 1, 1);
}

void stw_block_append_forward_work(const stw_job *job, uint32_t block, const stw_work_style *style,
                                   stw_work *work) {
    stw_work forward;
    stw_block_forward_work(job, block, style, &forward);
    stw_work_add(work, &forward, 1);
}

void stw_block_append_parts_work(const stw_job *job, uint32_t group, const stw_work_style *style,
                                 const stw_block_parts *parts, stw_work *work) {
    stw_work again;
    stw_block_parts_work(job, group, style, parts, &again);
    stw_work_add(work, &again, 1);
}

/* ---- head and loss ---- */

void stw_head_forward_work(const stw_job *job, const stw_work_style *style, double tokens,
                           stw_work *out) {
    const double vocab = (double)job->model->vocab / style->tp;
    const bool fused = style->fused || job->run->loss.fused;
    out->n = 0;
    stw_work_product(out, false, tokens, vocab, (double)job->model->hidden, 1, 1);
    stw_work_traffic(out, (fused ? FUSED_LOSS : EAGER_LOSS).forward * tokens * vocab);
}

void stw_head_backward_work(const stw_job *job, const stw_work_style *style, double tokens,
                            double products, stw_work *out) {
    const double vocab = (double)job->model->vocab / style->tp;
    const double hidden = (double)job->model->hidden;
    const bool fused = style->fused || job->run->loss.fused;
    out->n = 0;
    stw_work_product(out, false, tokens, hidden, vocab, 1, 1);
    if (products > 1) stw_work_product(out, false, vocab, hidden, tokens, products - 1, 1);
    stw_work_traffic(out, (fused ? FUSED_LOSS : EAGER_LOSS).backward * tokens * vocab);
}

void stw_op_set_work(stw_builder *b, stw_op *op, const stw_work *work) {
    if (work->n == 0 || b->skipping || b->status != STW_STATUS_OK) return;
    op->work = stw_work_keep(b->program->pool, work->items, work->n);
    if (op->work == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return;
    }
    op->n_work = work->n;
    op->flops = stw_work_flops(work->items, work->n);
}
