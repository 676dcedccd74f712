/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one micro batch as FSDP2 does them, in the order in which its CPU thread
 * claims and drops memory (torch/distributed/fsdp/_fully_shard; what each line rests on is said in
 * plan/engines/bytes.c). The root group (embedding, final norm, head) is gathered around forward's
 * and backward's whole length; every other block is gathered for its forward and again, one block
 * ahead, for its backward; its gradients are reduced one block behind. */
#include <string.h>

#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/engines/fsdp2_keys.h"
#include "plan/engines/movements.h"

typedef struct block_state {
    stw_act act;
    stw_extent all_gather, unshard, reduce;
    stw_extent saved, acts[2], grads[2]; /* acts: the MLP's part, the rest */
    uint32_t gathered;                   /* the collective that made `unshard` */
    uint64_t host_params, host_grads;    /* elements of this rank's shard that lie on the host */
    stw_extent stash;                    /* offloaded activations on the host */
    uint32_t stashed;
} block_state;

typedef struct pass {
    stw_builder *b;
    block_state *blocks; /* [model.n_blocks] */
    uint32_t n;
    uint32_t root; /* the last block of the root group, the head where there is one: the loss */
    uint32_t worked[2]; /* the last two computations: a gather waits for the one before the last */
    uint32_t deferred;  /* block whose all-gather output forward still holds */
    bool lazy_grads;
    stw_extent *outputs; /* [model.n_blocks] what waits for its all-reduce */
} pass;

/* Elements of every block's shard that lie on the host. */
static void find_host_shards(pass *p) {
    const stw_layout *layout = p->b->layout;
    const stw_job *job = p->b->job;
    const stw_rank_kind *kind = &job->kinds[layout->kind];
    const stw_view shards = stw_space_whole(&kind->spaces[STW_SPACE_PARAMS]);
    stw_overlap part;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        bool params = r->component == STW_COMPONENT_PARAMS;
        if (r->tier != STW_TIER_HOST || (!params && r->component != STW_COMPONENT_GRADS)) continue;
        stw_meet meet = stw_meet_begin(stw_region_view(r, &kind->spaces[r->space]), shards);
        while (stw_meet_next(&meet, &part)) {
            block_state *s = &p->blocks[job->model->tensors[part.tensor].block];
            *(params ? &s->host_params : &s->host_grads) += part.n;
        }
    }
}

static stw_act policy_of(const stw_builder *b, uint32_t block) {
    const stw_block *bl = &b->job->model->blocks[block];
    uint32_t seen = 0;
    for (int act = STW_ACT_OFFLOAD, turn = 0; turn < STW_N_ACTS; turn++) {
        for (uint32_t i = 0; i < b->decisions->n_blocks; i++) {
            const stw_block_decision *d = &b->decisions->blocks[i];
            if (d->group != bl->group || d->act != (stw_act)act) continue;
            seen += d->count;
            if (bl->instance < seen) return d->act;
        }
        act = act == STW_ACT_OFFLOAD ? STW_ACT_RECOMPUTE : STW_ACT_KEEP;
    }
    return STW_ACT_KEEP;
}

static void collective(pass *p, uint32_t block, stw_op_kind kind, uint64_t bytes, uint32_t after) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, block);
    op.group = kind == STW_OP_ALL_REDUCE ? STW_RANK_GROUP_REPLICATE : STW_RANK_GROUP_SHARD;
    op.component = kind == STW_OP_ALL_GATHER ? STW_COMPONENT_UNSHARD : STW_COMPONENT_REDUCE;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = bytes;
    op.after[0] = after;
    if (kind == STW_OP_ALL_GATHER) op.after[1] = p->worked[1];
    p->blocks[block].gathered = stw_append(p->b, op);
}

static bool in_root(const pass *p, uint32_t block) { return stw_job_in_root(p->b->job, block); }

static bool reduced_last(const pass *p, uint32_t block) {
    return stw_reduced_last(p->b->job, block);
}

/* Start gathering a block: its host-resident shard goes up first. */
static void gather(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    stw_extent shard = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, s->host_params * element);
    uint32_t up = STW_OP_NONE;
    if (shard.bytes > 0)
        up = stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                             .stream = STW_STREAM_H2D,
                                             .component = STW_COMPONENT_PARAMS,
                                             .unit = block,
                                             .from = {STW_TIER_HOST, 0},
                                             .to = {STW_TIER_GPU, shard.offset},
                                             .bytes = shard.bytes,
                                             .after = {p->worked[1], STW_OP_NONE}});
    s->all_gather =
        stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_all_gather_bytes(job, block));
    s->gathered = up;
    if (job->group > 1) collective(p, block, STW_OP_ALL_GATHER, s->all_gather.bytes, up);
    stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, shard);
}

static void drop_all_gather(pass *p, uint32_t block) {
    if (block == UINT32_MAX) return;
    stw_free(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, p->blocks[block].all_gather);
    p->blocks[block].all_gather = (stw_extent){0, 0};
}

/* Unsharded parameters are copied out of what was gathered. */
static void copy_out(pass *p, uint32_t block) {
    p->blocks[block].unshard =
        stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_unshard_bytes(p->b->job, block));
}

static void release(pass *p, uint32_t block) {
    stw_free(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, p->blocks[block].unshard);
    p->blocks[block].unshard = (stw_extent){0, 0};
}

/* The root is one group: all its blocks are gathered, then all copied out. */
static void gather_root(pass *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) gather(p, i);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) copy_out(p, i);
}

static void drop_root_gather(pass *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) drop_all_gather(p, i);
}

static uint32_t compute(pass *p, uint32_t block, stw_op_kind kind, double flops, uint32_t after) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    op.flops = flops;
    op.after[0] = p->blocks[block].gathered;
    op.after[1] = after;
    p->worked[1] = p->worked[0];
    p->worked[0] = stw_append(p->b, op);
    return p->worked[0];
}

static uint32_t group_of(const pass *p, uint32_t block) {
    return p->b->job->model->blocks[block].group;
}

static uint32_t next_block(const pass *p, uint32_t from, int step) {
    for (int64_t i = (int64_t)from + step; i >= 0 && i < p->n; i += step)
        if (!in_root(p, (uint32_t)i)) return (uint32_t)i;
    return UINT32_MAX;
}

static void alloc_acts(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    uint64_t full = stw_activation_bytes(p->b->job, group_of(p, block), STW_ACT_KEEP);
    uint64_t mlp = stw_mlp_activation_bytes(p->b->job, group_of(p, block));
    s->acts[0] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, mlp);
    s->acts[1] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, full - mlp);
}

static void free_acts(pass *p, uint32_t block, int part) {
    block_state *s = &p->blocks[block];
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->acts[part]);
    s->acts[part] = (stw_extent){0, 0};
}

static void forward_block(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t full = stw_activation_bytes(job, group_of(p, block), STW_ACT_KEEP);
    if (s->act == STW_ACT_RECOMPUTE)
        s->saved = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                             stw_activation_bytes(job, group_of(p, block), s->act));
    else
        alloc_acts(p, block);
    uint32_t done =
        compute(p, block, STW_OP_FORWARD, stw_block_forward_flops(job, block), STW_OP_NONE);
    if (s->act == STW_ACT_OFFLOAD && full > 0) {
        s->stash = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, full);
        s->stashed = stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                                     .stream = STW_STREAM_D2H,
                                                     .component = STW_COMPONENT_ACTIVATIONS,
                                                     .unit = block,
                                                     .from = {STW_TIER_GPU, s->acts[0].offset},
                                                     .to = {STW_TIER_HOST, s->stash.offset},
                                                     .bytes = full,
                                                     .after = {done, STW_OP_NONE}});
    }
    if (stw_fsdp_settings_of(job->run).reshard_after_forward) release(p, block);
}

/* The copy of an offloaded block has one block's forward to finish before its bytes are reused. */
static void drop_offloaded(pass *p, uint32_t block) {
    if (block == UINT32_MAX || p->blocks[block].act != STW_ACT_OFFLOAD) return;
    free_acts(p, block, 0);
    free_acts(p, block, 1);
}

/* What was gathered is held until the next group is copied out of its own. */
static void forward(pass *p) {
    uint32_t first = p->n > 0 && !in_root(p, 0) ? 0 : next_block(p, 0, 1);
    uint32_t previous = UINT32_MAX;
    gather_root(p);
    for (uint32_t i = first; i != UINT32_MAX; i = next_block(p, i, 1)) {
        gather(p, i);
        drop_root_gather(p);
        drop_all_gather(p, p->deferred);
        copy_out(p, i);
        p->deferred = i;
        forward_block(p, i);
        drop_offloaded(p, previous);
        previous = i;
    }
    drop_offloaded(p, previous);
}

static void fetch_offloaded(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    if (s->act != STW_ACT_OFFLOAD || s->stash.bytes == 0) return;
    alloc_acts(p, block);
    s->stashed = stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                                 .stream = STW_STREAM_H2D,
                                                 .component = STW_COMPONENT_ACTIVATIONS,
                                                 .unit = block,
                                                 .from = {STW_TIER_HOST, s->stash.offset},
                                                 .to = {STW_TIER_GPU, s->acts[0].offset},
                                                 .bytes = s->stash.bytes,
                                                 .after = {s->stashed, STW_OP_NONE}});
}

static void prepare_backward(pass *p, uint32_t block) {
    if (block == UINT32_MAX) return;
    if (p->blocks[block].unshard.bytes == 0) gather(p, block);
    fetch_offloaded(p, block);
}

/* The gradient of one block's shard: an engine with lazy state makes it as its reduction ends. */
static void shard_grad(stw_builder *b, uint32_t block) {
    uint64_t bytes = b->job->kinds[b->layout->kind].block_params[block] *
                     stw_job_element_bytes(b->job, STW_COMPONENT_GRADS);
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    b->shard_grads[block] = stw_alloc(b, STW_COMPONENT_GRADS, tier, bytes);
}

void stw_build_shard_grads(stw_builder *b, bool alloc) {
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    for (uint32_t i = 0; i < b->job->model->n_blocks; i++) {
        if (alloc)
            shard_grad(b, i);
        else
            stw_free(b, STW_COMPONENT_GRADS, tier, b->shard_grads[i]);
    }
}

static void free_grads(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    for (int i = 0; i < 2; i++) {
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, s->grads[i]);
        s->grads[i] = (stw_extent){0, 0};
    }
}

static void drop_reduced(pass *p, uint32_t block) {
    if (block == UINT32_MAX) return;
    stw_free(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, p->blocks[block].reduce);
    p->blocks[block].reduce = (stw_extent){0, 0};
}

/* Sum a block's gradients over the group (the copy into the input is done); the sharded result
 * goes where the plan wants it. The output stays where replicas have yet to sum it. */
static void reduce_out(pass *p, uint32_t block, uint32_t after) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t params = job->kinds[p->b->layout->kind].block_params[block];
    uint64_t waits = stw_replica_reduce_bytes(job, params);
    uint64_t bytes = waits > 0 ? waits : stw_reduce_output_bytes(job, s->reduce.bytes);
    stw_extent output = stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, bytes);
    if (job->group > 1) {
        collective(p, block, STW_OP_REDUCE_SCATTER, s->reduce.bytes, after);
        after = s->gathered;
    }
    if (job->world > job->group) { /* on the same stream, after it */
        collective(p, block, STW_OP_ALL_REDUCE, s->reduce.bytes / job->group, after);
        after = s->gathered;
    }
    uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    if (p->lazy_grads) shard_grad(p->b, block);
    if (s->host_grads > 0)
        (void)stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                              .stream = STW_STREAM_D2H,
                                              .component = STW_COMPONENT_GRADS,
                                              .unit = block,
                                              .from = {STW_TIER_GPU, s->reduce.offset},
                                              .to = {STW_TIER_HOST, 0},
                                              .bytes = s->host_grads * element,
                                              .after = {after, STW_OP_NONE}});
    if (waits > 0)
        p->outputs[block] = output;
    else
        stw_free(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, output);
}

static void alloc_reduce(pass *p, uint32_t block) {
    p->blocks[block].reduce =
        stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, stw_reduce_bytes(p->b->job, block));
}

/* Inside the MLP, then inside the attention: see stw_block_backward_bytes. */
static uint32_t block_work(pass *p, uint32_t block, double flops) {
    block_state *s = &p->blocks[block];
    stw_builder *b = p->b;
    stw_backward_bytes need = stw_block_backward_bytes(b->job, block);
    uint32_t fetched = s->act == STW_ACT_OFFLOAD && s->stash.bytes > 0 ? s->stashed : STW_OP_NONE;
    stw_extent more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.mlp_acts);
    s->grads[0] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.mlp_grads);
    uint32_t done = compute(p, block, STW_OP_BACKWARD, flops, fetched);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 0);
    more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.attention_acts);
    s->grads[1] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.grads - need.mlp_grads);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 1);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->saved);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, s->stash);
    return done;
}

static void backward_block(pass *p, uint32_t block, uint32_t behind) {
    block_state *s = &p->blocks[block];
    double flops = 2.0 * stw_block_forward_flops(p->b->job, block);
    if (s->unshard.bytes == 0) copy_out(p, block);
    drop_all_gather(p, block);
    prepare_backward(p, next_block(p, block, -1));
    if (s->act == STW_ACT_RECOMPUTE) {
        alloc_acts(p, block);
        flops *= 1.5;
    }
    uint32_t done = block_work(p, block, flops);
    if (reduced_last(p, block)) return;
    release(p, block);
    drop_reduced(p, behind);
    alloc_reduce(p, block);
    free_grads(p, block);
    reduce_out(p, block, done);
}

/* The block whose reduce-scatter input is left. */
static uint32_t backward(pass *p) {
    uint32_t behind = UINT32_MAX;
    for (uint32_t i = next_block(p, p->n, -1); i != UINT32_MAX; i = next_block(p, i, -1)) {
        backward_block(p, i, behind);
        if (!reduced_last(p, i)) behind = i;
    }
    return behind;
}

static void root_grads(pass *p, bool embedding) {
    const stw_model *model = p->b->job->model;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!in_root(p, i)) continue;
        bool is_embedding = strcmp(model->groups[group_of(p, i)].name, "embed") == 0;
        if ((is_embedding && !model->tied_embeddings) == embedding)
            p->blocks[i].grads[0] = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU,
                                              stw_unsharded_grad_bytes(p->b->job, i));
    }
}

static void loss_and_head(pass *p) {
    stw_builder *b = p->b;
    const stw_job *job = b->job;
    bool reshard = stw_fsdp_settings_of(job->run).reshard_after_forward;
    uint64_t saved = stw_logits_saved_bytes(job), most = stw_logits_backward_bytes(job);
    stw_extent kept = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, saved);
    stw_extent more =
        stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, stw_logits_forward_bytes(job) - saved);
    double flops = 2.0 * (double)job->tokens * (double)(job->model->vocab * job->model->hidden);
    uint32_t done = compute(p, p->root, STW_OP_LOSS, flops, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    drop_root_gather(p);
    drop_all_gather(p, p->deferred);
    for (uint32_t i = 0; i < p->n && reshard; i++)
        if (in_root(p, i)) release(p, i);
    if (reshard) gather_root(p);
    drop_root_gather(p);
    prepare_backward(p, next_block(p, p->n, -1));
    more = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, most - saved);
    (void)compute(p, p->root, STW_OP_LOSS, 2.0 * flops, done);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, kept);
    more = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, stw_logits_grad_bytes(job));
    root_grads(p, false);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
}

/* The embedding's gradient; where the head's waits for it, their sum is made beside both. */
static void embedding_grads(pass *p) {
    const stw_job *job = p->b->job;
    root_grads(p, true);
    if (!job->model->tied_embeddings) return;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!in_root(p, i) || strcmp(job->model->groups[group_of(p, i)].name, "embed") != 0)
            continue;
        uint64_t bytes = stw_unsharded_grad_bytes(job, i);
        stw_extent own = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
        stw_extent sum = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, own);
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, sum);
    }
}

/* Groups whose input has no gradient are reduced when all else is done: the root, then a wrapped
 * embedding. A group's last gradient goes when its reduction has been issued. */
static void finish(pass *p, uint32_t behind) {
    uint32_t last = UINT32_MAX;
    embedding_grads(p);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) release(p, i);
    drop_reduced(p, behind);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) {
            alloc_reduce(p, i);
            last = i;
        }
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i) && i != last) free_grads(p, i);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) reduce_out(p, i, STW_OP_NONE);
    if (last != UINT32_MAX) free_grads(p, last);
    for (uint32_t i = 0; i < p->n; i++) {
        if (!reduced_last(p, i)) continue;
        release(p, i);
        for (uint32_t r = 0; r < p->n; r++)
            if (in_root(p, r)) drop_reduced(p, r);
        alloc_reduce(p, i);
        reduce_out(p, i, STW_OP_NONE);
        free_grads(p, i);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        drop_reduced(p, i);
        stw_free(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, p->outputs[i]);
    }
}

void stw_build_forward_backward(stw_builder *b, bool lazy_grads) {
    pass p = {.b = b,
              .n = b->job->model->n_blocks,
              .worked = {STW_OP_NONE, STW_OP_NONE},
              .deferred = UINT32_MAX,
              .lazy_grads = lazy_grads};
    p.blocks = stw_pool_array(b->program->pool, p.n, sizeof(block_state));
    p.outputs = stw_pool_array(b->program->pool, p.n, sizeof(stw_extent));
    if (p.blocks == NULL || p.outputs == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return;
    }
    for (uint32_t i = 0; i < p.n; i++) {
        p.blocks[i].act = policy_of(b, i);
        p.blocks[i].gathered = p.blocks[i].stashed = STW_OP_NONE;
    }
    find_host_shards(&p);
    for (uint32_t i = 0; i < p.n; i++)
        if (in_root(&p, i)) p.root = i;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_FORWARD_BACKWARD,
                                         .repeat = STW_REPEAT_EVERY_ITERATION});
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(b->job));
    forward(&p);
    loss_and_head(&p);
    finish(&p, backward(&p));
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_end_movement(b);
}
