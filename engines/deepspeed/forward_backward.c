/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one micro batch. Activations are those of engines/bytes.c; what
 * DeepSpeed does with parameters and gradients beside them is in fetch.c and grads.c. A block's
 * computation stands after the gather of its last tensor, and tensors that are not used again go in
 * the order in which their modules end. */
#include "core/checked.h"
#include "engines/block_work.h"
#include "engines/bytes.h"
#include "engines/deepspeed/fetch.h"
#include "engines/deepspeed/grads.h"
#include "engines/deepspeed/parts.h"
#include "engines/vision.h"
#include "plan/program/blocks.h"

typedef struct block_state {
    stw_extent saved, acts[2]; /* acts: the MLP's part, the rest */
} block_state;

typedef struct pass {
    stw_zero *z;
    stw_builder *b;
    const stw_job *job;
    block_state *blocks; /* [n_blocks] */
    stw_act *acts;       /* [n_blocks] */
    stw_fetch fetch;
    stw_grads grads;
    uint32_t head;   /* the last block: the loss */
    stw_extent tied; /* the head's part of a shared embedding's gradient */
    uint32_t worked; /* the last computation */
} pass;

static const stw_block *block_of(const pass *p, uint32_t block) {
    return &p->job->model->blocks[block];
}

static uint32_t group_of(const pass *p, uint32_t block) { return block_of(p, block)->group; }

static bool is_transformer(const pass *p, uint32_t block) {
    return p->job->model->groups[group_of(p, block)].facts.transformer;
}

/* Is the loss computed within this block? */
static bool is_head(const pass *p, uint32_t block) {
    return block == p->head && !p->job->model->tied_embeddings;
}

static stw_extent alloc(pass *p, stw_component component, uint64_t bytes) {
    return stw_alloc(p->b, component, STW_TIER_GPU, bytes);
}

static void drop(pass *p, stw_component component, stw_extent *extent) {
    stw_free(p->b, component, STW_TIER_GPU, *extent);
    *extent = STW_NO_EXTENT;
}

static void compute(pass *p, stw_op_kind kind, uint32_t block, const stw_work *work) {
    p->worked = stw_fetch_compute(&p->fetch, kind, block, work);
}

/* ---- forward ---- */

/* Every module of a block in turn; the last one keeps its tensor for what follows. */
static void visit(pass *p, uint32_t block) {
    const uint32_t n = block_of(p, block)->n_tensors;
    stw_fetch_enter(&p->fetch, block);
    for (uint32_t i = 0; i < n; i++) {
        stw_fetch_next(&p->fetch, block);
        if (i + 1 < n) stw_fetch_release(&p->fetch, 1);
    }
}

static void alloc_acts(pass *p, uint32_t block) {
    uint64_t full = stw_activation_bytes(p->job, group_of(p, block), STW_ACT_KEEP);
    uint64_t mlp = stw_mlp_activation_bytes(p->job, group_of(p, block));
    p->blocks[block].acts[0] = alloc(p, STW_COMPONENT_ACTIVATIONS, mlp);
    p->blocks[block].acts[1] = alloc(p, STW_COMPONENT_ACTIVATIONS, full - mlp);
}

static void forward_block(pass *p, uint32_t block) {
    if (p->acts[block] == STW_ACT_RECOMPUTE)
        p->blocks[block].saved =
            alloc(p, STW_COMPONENT_ACTIVATIONS,
                  stw_activation_bytes(p->job, group_of(p, block), STW_ACT_RECOMPUTE));
    visit(p, block);
    if (is_transformer(p, block)) {
        if (p->acts[block] != STW_ACT_RECOMPUTE) alloc_acts(p, block);
        stw_extent widest =
            alloc(p, STW_COMPONENT_STAGE, stw_forward_work_bytes(p->job, group_of(p, block)));
        const stw_work_style style = stw_work_style_eager(p->job);
        stw_work work;
        stw_block_forward_work(p->job, block, &style, &work);
        compute(p, STW_OP_FORWARD, block, &work);
        drop(p, STW_COMPONENT_STAGE, &widest);
    }
    if (block_of(p, block)->n_tensors > 0) stw_fetch_release(&p->fetch, 1);
}

/* ---- the head and the loss ---- */

/* The module of the head is entered, forward or backward. */
static void visit_head(pass *p, bool backward) {
    if (p->job->model->tied_embeddings)
        stw_fetch_next(&p->fetch, p->head);
    else if (!backward)
        visit(p, p->head);
    else {
        stw_fetch_enter(&p->fetch, p->head);
        stw_fetch_next(&p->fetch, p->head);
    }
}

/* The rest of the head's block, and its gradients; one of a shared embedding waits for the
 * embedding's own. */
static void head_grads(pass *p) {
    const stw_model *model = p->job->model;
    const uint32_t n = block_of(p, p->head)->n_tensors;
    if (model->tied_embeddings) {
        uint32_t tensor = stw_zero_embedding(p->z);
        stw_fetch_release(&p->fetch, 1);
        if (tensor < model->n_tensors && stw_job_trains(p->job, tensor))
            p->tied = alloc(p, STW_COMPONENT_GRADS,
                            stw_times(model->tensors[tensor].numel, p->z->element));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) stw_fetch_next(&p->fetch, p->head);
        stw_grads_add(&p->grads, stw_fetch_in_order(p->z, p->head, STW_FETCH_BACKWARD, i), p->head,
                      p->worked);
        stw_fetch_release(&p->fetch, 1);
    }
}

static void loss(pass *p) {
    const stw_job *job = p->job;
    uint64_t saved = stw_logits_saved_bytes(job);
    const stw_work_style style = stw_work_style_eager(job);
    stw_work work;
    visit_head(p, false);
    stw_extent kept = alloc(p, STW_COMPONENT_LOGITS, saved);
    stw_extent more = alloc(p, STW_COMPONENT_LOGITS, stw_logits_forward_bytes(job) - saved);
    stw_head_forward_work(job, &style, (double)job->tokens, &work);
    compute(p, STW_OP_LOSS, p->head, &work);
    drop(p, STW_COMPONENT_LOGITS, &more);
    stw_fetch_release(&p->fetch, 1);
    visit_head(p, true);
    more = alloc(p, STW_COMPONENT_LOGITS, stw_logits_backward_bytes(job) - saved);
    stw_head_backward_work(job, &style, (double)job->tokens, 2, &work);
    compute(p, STW_OP_LOSS, p->head, &work);
    drop(p, STW_COMPONENT_LOGITS, &more);
    drop(p, STW_COMPONENT_LOGITS, &kept);
    more = alloc(p, STW_COMPONENT_LOGITS, stw_logits_grad_bytes(job));
    head_grads(p);
    drop(p, STW_COMPONENT_LOGITS, &more);
}

/* ---- backward ---- */

/* Bytes of a block's MLP in the dtype of compute: what its gradients take if all is trained. */
static uint64_t mlp_bytes(const pass *p, uint32_t block) {
    const stw_block_facts *f = &p->job->model->groups[group_of(p, block)].facts;
    uint64_t rows = STW_SUM(f->ffn, f->shared_ffn, stw_times(f->experts, f->expert_ffn));
    return stw_times(stw_times(p->z->element, f->hidden), rows);
}

/* Modules from `from` on that have together at least `bytes`, at least one, and the gradients of
 * those that are trained; the first module is there already. */
static uint32_t grads_of(pass *p, uint32_t block, uint32_t from, uint64_t bytes) {
    const stw_model *model = p->job->model;
    uint32_t i = from;
    for (uint64_t made = 0; i < model->blocks[block].n_tensors && made < bytes; i++) {
        uint32_t tensor = stw_fetch_in_order(p->z, block, STW_FETCH_BACKWARD, i);
        if (i > 0) stw_fetch_next(&p->fetch, block);
        made = stw_plus(made, stw_times(model->tensors[tensor].numel, p->z->element));
        stw_grads_add(&p->grads, tensor, block, p->worked);
        stw_fetch_release(&p->fetch, 1);
    }
    return i;
}

static void free_acts(pass *p, uint32_t block, int part) {
    drop(p, STW_COMPONENT_ACTIVATIONS, &p->blocks[block].acts[part]);
}

/* Inside the MLP, then inside the attention: see stw_block_backward_bytes. */
static void backward_transformer(pass *p, uint32_t block) {
    const stw_backward_bytes need = stw_block_backward_bytes(p->job, block);
    const stw_work_style style = stw_work_style_eager(p->job);
    stw_work work;
    stw_block_backward_work(p->job, block, &style, &work);
    if (p->acts[block] == STW_ACT_RECOMPUTE) {
        visit(p, block);
        stw_fetch_release(&p->fetch, 1);
        alloc_acts(p, block);
        if (stw_block_saves(p->job, block))
            stw_block_append_forward_work(p->job, block, &style, &work);
    }
    stw_fetch_enter(&p->fetch, block);
    stw_fetch_next(&p->fetch, block);
    stw_extent more = alloc(p, STW_COMPONENT_ACTIVATIONS, need.mlp_acts);
    compute(p, STW_OP_BACKWARD, block, &work);
    uint32_t done = grads_of(p, block, 0, stw_max_u64(1, mlp_bytes(p, block)));
    drop(p, STW_COMPONENT_ACTIVATIONS, &more);
    free_acts(p, block, 0);
    more = alloc(p, STW_COMPONENT_ACTIVATIONS, need.attention_acts);
    (void)grads_of(p, block, done, UINT64_MAX);
    drop(p, STW_COMPONENT_ACTIVATIONS, &more);
    free_acts(p, block, 1);
    drop(p, STW_COMPONENT_ACTIVATIONS, &p->blocks[block].saved);
}

/* Where the head shares the embedding, the sum of both gradients is made beside both. */
static void add_tied(pass *p, uint32_t tensor, uint32_t block) {
    stw_extent own = alloc(p, STW_COMPONENT_GRADS, p->tied.bytes);
    stw_extent sum = alloc(p, STW_COMPONENT_GRADS, p->tied.bytes);
    drop(p, STW_COMPONENT_GRADS, &own);
    drop(p, STW_COMPONENT_GRADS, &p->tied);
    p->grads.block = block;
    p->grads.worked = p->worked;
    stw_grads_take(&p->grads, tensor, sum);
}

static void backward_other(pass *p, uint32_t block) {
    const stw_model *model = p->job->model;
    stw_fetch_enter(&p->fetch, block);
    for (uint32_t i = 0; i < model->blocks[block].n_tensors; i++) {
        uint32_t tensor = stw_fetch_in_order(p->z, block, STW_FETCH_BACKWARD, i);
        stw_fetch_next(&p->fetch, block);
        if (p->tied.bytes > 0 && tensor == stw_zero_embedding(p->z))
            add_tied(p, tensor, block);
        else
            stw_grads_add(&p->grads, tensor, block, p->worked);
        stw_fetch_release(&p->fetch, 1);
    }
}

/* ---- all of it ---- */

static bool begin(pass *p) {
    const stw_model *model = p->job->model;
    stw_pool *pool = p->b->program->pool;
    p->blocks = stw_pool_array(pool, model->n_blocks, sizeof *p->blocks);
    p->acts = stw_pool_array(pool, model->n_blocks, sizeof *p->acts);
    if (p->blocks == NULL || p->acts == NULL) {
        p->b->status = stw_fail(p->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    stw_block_acts(p->job, p->b->decisions, p->acts);
    p->head = model->n_blocks - 1;
    return stw_fetch_begin(&p->fetch, p->z, p->acts);
}

static void build(stw_zero *z) {
    pass p = {.z = z, .b = z->b, .job = z->job, .tied = STW_NO_EXTENT, .worked = STW_OP_NONE};
    const uint32_t n = z->job->model->n_blocks;
    if (!begin(&p) || !stw_grads_begin(&p.grads, z)) return;
    stw_extent tower =
        alloc(&p, STW_COMPONENT_STAGE, stw_vision_saved_bytes(z->job)); /* of no block */
    for (uint32_t i = 0; i < n; i++)
        if (!is_head(&p, i)) forward_block(&p, i);
    loss(&p);
    for (uint32_t i = n; i-- > 0;) {
        if (is_head(&p, i)) continue;
        if (is_transformer(&p, i))
            backward_transformer(&p, i);
        else
            backward_other(&p, i);
    }
    drop(&p, STW_COMPONENT_STAGE, &tower);
    stw_grads_end(&p.grads);
    stw_fetch_end(&p.fetch);
}

void stw_zero_build_forward_backward(stw_zero *z) {
    if (z->b->status != STW_STATUS_OK || z->job->model->n_blocks == 0) return;
    stw_begin_movement(z->b, (stw_movement){.phase = STW_PHASE_FORWARD_BACKWARD,
                                            .repeat = STW_REPEAT_EVERY_ITERATION});
    if (z->traced)
        stw_zero_build_traced(z);
    else
        build(z);
    stw_end_movement(z->b);
}
