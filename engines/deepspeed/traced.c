/* SPDX-License-Identifier: Apache-2.0 */
/* The same as forward_backward.c for a replay of torch's allocator: activations are the tensors of
 * a decoder (engines/decoder.h); parameters that are gathered and gradients are bytes of their
 * own, which come and go between these where the hooks of DeepSpeed's modules run. */
#include <string.h>

#include "core/checked.h"
#include "engines/block_work.h"
#include "engines/decoder.h"
#include "engines/deepspeed/fetch.h"
#include "engines/deepspeed/grads.h"
#include "engines/deepspeed/parts.h"
#include "plan/program/blocks.h"

typedef struct pass {
    stw_zero *z;
    stw_builder *b;
    const stw_job *job;
    stw_decoder decoder;
    stw_fetch fetch;
    stw_grads grads;
    stw_act *acts; /* [n_blocks] */
    uint32_t made; /* the tensor whose gradient autograd has made and not accumulated */
    stw_extent grad;
    uint32_t block, head, worked;
    stw_extent tied; /* the head's part of a shared embedding's gradient */
} pass;

static const stw_block *block_of(const pass *p, uint32_t block) {
    return &p->job->model->blocks[block];
}

static bool is_transformer(const pass *p, uint32_t block) {
    return p->job->model->groups[block_of(p, block)->group].facts.transformer;
}

/* From now on tensors are told. */
static void tensors(pass *p) { stw_tensors_instead(p->b, stw_tensors_begin(p->b)); }

static void compute(pass *p, stw_op_kind kind, uint32_t block, const stw_work *work) {
    p->worked = stw_fetch_compute(&p->fetch, kind, block, work);
}

/* ---- gradients ---- */

static stw_extent alloc_grad(pass *p, uint32_t tensor) {
    return stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU,
                     stw_times(p->job->model->tensors[tensor].numel, p->z->element));
}

/* A shared embedding has the head's gradient first; the sum with its own is made beside both. */
static bool is_half(pass *p) {
    if (p->made != stw_zero_embedding(p->z)) return false;
    if (p->tied.bytes == 0) {
        p->tied = p->grad;
        return true;
    }
    const stw_extent sum = alloc_grad(p, p->made);
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, p->grad);
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, p->tied);
    p->grad = sum;
    return false;
}

/* AccumulateGrad runs when the function that made a gradient has returned. */
static void accumulate(pass *p) {
    p->grads.block = p->block;
    p->grads.worked = p->worked;
    if (p->grad.bytes > 0 && !is_half(p)) stw_grads_take(&p->grads, p->made, p->grad);
    p->grad = STW_NO_EXTENT;
}

/* A call may stand for several functions, of which one after the other makes gradients. */
static void make_grad(void *owner, uint32_t tensor) {
    pass *p = owner;
    accumulate(p);
    p->made = tensor;
    p->grad = alloc_grad(p, tensor);
}

/* ---- modules ---- */

static uint32_t n_used(const pass *p, uint32_t call) {
    const stw_uses *u = &p->z->uses[block_of(p, p->block)->group];
    return u->first == NULL ? 0 : u->first[call + 1] - u->first[call];
}

static void enter(void *owner, const stw_trace *trace, uint32_t call, bool backward) {
    pass *p = owner;
    (void)trace;
    (void)backward;
    for (uint32_t i = 0; i < n_used(p, call); i++) stw_fetch_next(&p->fetch, p->block);
}

static void leave(void *owner, const stw_trace *trace, uint32_t call, bool backward) {
    pass *p = owner;
    (void)trace;
    if (backward) accumulate(p);
    stw_fetch_release(&p->fetch, n_used(p, call));
}

/* All modules of a block that is no decoder layer begin or end at once. */
static void enter_all(pass *p, uint32_t block) {
    p->block = block;
    stw_fetch_enter(&p->fetch, block);
    for (uint32_t i = 0; i < block_of(p, block)->n_tensors; i++) stw_fetch_next(&p->fetch, block);
    tensors(p);
}

static void leave_all(pass *p, uint32_t block) {
    accumulate(p);
    stw_fetch_release(&p->fetch, block_of(p, block)->n_tensors);
}

/* ---- forward ---- */

static void forward_block(pass *p, uint32_t block) {
    const stw_work_style style = stw_work_style_eager(p->job);
    stw_work work;
    if (!is_transformer(p, block)) {
        enter_all(p, block);
        stw_decoder_forward(&p->decoder, block);
        leave_all(p, block);
        return;
    }
    p->block = block;
    tensors(p);
    stw_decoder_begin_block(&p->decoder, block);
    stw_fetch_enter(&p->fetch, block);
    tensors(p);
    stw_decoder_forward(&p->decoder, block);
    stw_decoder_return(&p->decoder);
    stw_block_forward_work(p->job, block, &style, &work);
    compute(p, STW_OP_FORWARD, block, &work);
}

/* A shared embedding is one use of its tensor; else the head is a block. */
static void enter_head(pass *p) {
    p->block = p->head;
    if (!p->job->model->tied_embeddings) {
        enter_all(p, p->head);
        return;
    }
    stw_fetch_next(&p->fetch, p->head);
    tensors(p);
}

static void leave_head(pass *p) {
    accumulate(p);
    stw_fetch_release(&p->fetch,
                      p->job->model->tied_embeddings ? 1 : block_of(p, p->head)->n_tensors);
}

static void loss(pass *p) {
    const stw_work_style style = stw_work_style_eager(p->job);
    stw_work work;
    enter_head(p);
    stw_decoder_loss(&p->decoder);
    stw_head_forward_work(p->job, &style, (double)p->job->tokens, &work);
    compute(p, STW_OP_LOSS, p->head, &work);
    leave_head(p);
    tensors(p);
    stw_decoder_end_forward(&p->decoder);
    enter_head(p);
    stw_decoder_head_backward(&p->decoder);
    stw_head_backward_work(p->job, &style, (double)p->job->tokens, 2, &work);
    compute(p, STW_OP_LOSS, p->head, &work);
    leave_head(p);
}

/* ---- backward ---- */

/* What stands between a block and the next one. */
static void begin_backward(pass *p, uint32_t block) {
    tensors(p);
    stw_decoder_begin_backward(&p->decoder, block);
    accumulate(p);
}

static void backward_block(pass *p, uint32_t block) {
    const stw_work_style style = stw_work_style_eager(p->job);
    stw_work work;
    p->block = block;
    stw_block_backward_work(p->job, block, &style, &work);
    if (block != p->decoder.tower.last || !p->decoder.tower.runs) begin_backward(p, block);
    if (p->acts[block] == STW_ACT_RECOMPUTE) {
        stw_fetch_enter(&p->fetch, block);
        tensors(p);
        stw_decoder_again(&p->decoder, block);
        stw_block_append_forward_work(p->job, block, &style, &work);
    }
    stw_fetch_enter(&p->fetch, block);
    compute(p, STW_OP_BACKWARD, block, &work);
    tensors(p);
    stw_decoder_backward(&p->decoder, block);
}

/* A vision tower's merger is followed by its last block, and the embedding of patches by that of
 * the decoder, of which autograd made the function first. */
static void backward_other(pass *p, uint32_t block) {
    const stw_block_group *group = &p->job->model->groups[block_of(p, block)->group];
    const stw_tower *tower = &p->decoder.tower;
    const bool is_embedding = strcmp(group->name, "embed") == 0;
    enter_all(p, block);
    if (block == p->decoder.norm_block)
        stw_decoder_norm_backward(&p->decoder);
    else if (tower->runs ? block == tower->embed : is_embedding)
        stw_decoder_embedding_backward(&p->decoder);
    else if (tower->runs && block == tower->merger)
        stw_decoder_begin_backward(&p->decoder, tower->last);
    else if (!group->facts.vision && !is_embedding)
        stw_decoder_backward(&p->decoder, block);
    leave_all(p, block);
}

/* ---- all of it ---- */

static bool begin(pass *p, const stw_trace_hooks *hooks) {
    const stw_model *model = p->job->model;
    stw_pool *pool = p->b->program->pool;
    p->acts = stw_pool_array(pool, model->n_blocks, sizeof *p->acts);
    if (p->acts == NULL) {
        p->b->status = stw_fail(p->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    stw_block_acts(p->job, p->b->decisions, p->acts);
    p->head = model->n_blocks - 1;
    return stw_decoder_begin(&p->decoder, p->b, p->acts, false, hooks) &&
           stw_fetch_begin(&p->fetch, p->z, p->acts) && stw_grads_begin(&p->grads, p->z);
}

void stw_zero_build_traced(stw_zero *z) {
    pass p = {.z = z,
              .b = z->b,
              .job = z->job,
              .tied = STW_NO_EXTENT,
              .grad = STW_NO_EXTENT,
              .worked = STW_OP_NONE};
    const stw_trace_hooks hooks = {&p, enter, leave, make_grad};
    const uint32_t n = z->job->model->n_blocks;
    const bool shares = z->job->model->tied_embeddings;
    if (!begin(&p, &hooks)) return;
    tensors(&p);
    stw_decoder_begin_forward(&p.decoder);
    for (uint32_t i = 0; i < n; i++)
        if (i != p.head || shares) forward_block(&p, i);
    loss(&p);
    for (uint32_t i = n; i-- > 0;) {
        if (is_transformer(&p, i))
            backward_block(&p, i);
        else if (i != p.head || shares)
            backward_other(&p, i);
    }
    tensors(&p);
    stw_decoder_end_backward(&p.decoder);
    stw_grads_end(&p.grads);
    stw_fetch_end(&p.fetch);
}
