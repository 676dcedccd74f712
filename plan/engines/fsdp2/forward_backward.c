/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one micro batch as FSDP2 does them (torch/distributed/fsdp/_fully_shard;
 * what each line rests on is said in plan/engines/bytes.c). The root group (embedding, final norm,
 * head) is gathered around forward's and backward's whole length; every other block is gathered one
 * block ahead for its forward and again for its backward; its gradients are reduced one block
 * behind. Activations of an offloaded block are copied to the host after its forward and fetched
 * before its backward, next to the computation of other blocks (stw_block_held_to).
 *
 * Memory is claimed and dropped on the compute stream: what works on it on another stream waits for
 * the claim, and the drop waits for that (stw_alloc). */
#include <string.h>

#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/engines/fsdp2/keys.h"
#include "plan/engines/fsdp2/tensors.h"
#include "plan/engines/movements.h"
#include "plan/engines/park.h"
#include "plan/program/blocks.h"

typedef struct block_state {
    stw_extent shard, all_gather, unshard; /* shard: of it, what comes from the host */
    stw_extent reduce, output;             /* output: what waits for its all-reduce */
    stw_extent saved, acts[2], grads[2];   /* acts: the MLP's part, the rest */
    stw_extent accumulated;                /* unsharded gradients of earlier micro batches */
    uint32_t gathered;                     /* the last operation that made `unshard` */
    uint32_t reduced;                      /* the last operation on `reduce` and `output` */
    uint64_t host_params, host_grads;      /* elements of this rank's shard that lie on the host */
    stw_extent stash;                      /* offloaded activations on the host */
    uint32_t stashed;                      /* the copy of them, either way */
    uint32_t held_to;                      /* see stw_block_held_to */
    uint64_t side_offset;                  /* of the root: in side.root */
} block_state;

typedef struct pass {
    stw_builder *b;
    block_state *blocks; /* [n] */
    stw_act *acts;       /* [n] */
    uint32_t n;          /* model.n_blocks */
    uint32_t *chain;     /* [n_chain] blocks outside the root group, in the order of forward */
    uint32_t n_chain;
    uint32_t root;   /* the last block of the root group, the head where there is one: the loss */
    uint32_t worked; /* the last computation */
    bool lazy_grads;
    bool accumulates; /* sharded gradients of earlier micro batches are there */
    stw_torch *torch; /* what torch's allocator sees */
    struct {
        stw_extent root, output;
        stw_extent staged[2];  /* shards on their way up, in turn */
        uint32_t staged_by[2]; /* the last collective that read each */
        stw_extent sent[2];    /* gradients on their way to the host, in turn */
        uint32_t sent_by[2];   /* the last copy out of each */
        uint32_t stage_turn, sent_turn;
    } side; /* see alloc_side */
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

/* A collective from one extent into another; `bytes` of its full result. */
static uint32_t collective(pass *p, const stw_op *like, stw_extent from, stw_extent to,
                           uint32_t after) {
    stw_op op = *like;
    op.group = op.kind == STW_OP_ALL_REDUCE ? STW_RANK_GROUP_REPLICATE : STW_RANK_GROUP_SHARD;
    op.component = op.kind == STW_OP_ALL_GATHER ? STW_COMPONENT_UNSHARD : STW_COMPONENT_REDUCE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = from.bytes > 0 ? from.offset : to.offset;
    op.offset_bytes = to.bytes > 0 ? to.offset : from.offset;
    op.after[0] = after;
    op.after[1] = STW_OP_NONE; /* the later one of both allocs */
    if (from.bytes > 0) op.after[1] = from.alloc;
    if (to.bytes > 0 && to.alloc != STW_OP_NONE &&
        (op.after[1] == STW_OP_NONE || to.alloc > op.after[1]))
        op.after[1] = to.alloc;
    return stw_append(p->b, op);
}

static stw_op comm_op(stw_op_kind kind, uint32_t block, uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, block);
    op.bytes = bytes;
    return op;
}

static bool in_root(const pass *p, uint32_t block) { return stw_job_in_root(p->b->job, block); }

static bool reduced_last(const pass *p, uint32_t block) {
    return stw_reduced_last(p->b->job, block);
}

/* Where a block's host-resident shard is staged; the copy waits for `*free_by`. */
static stw_extent stage(pass *p, uint32_t block, uint64_t bytes, uint32_t *free_by) {
    *free_by = STW_OP_NONE;
    if (bytes == 0) return STW_NO_EXTENT;
    if (p->b->job->group == 1) {
        stw_extent own = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, bytes);
        *free_by = own.alloc;
        return own;
    }
    uint32_t slot = p->side.stage_turn % 2;
    stw_extent extent = in_root(p, block) ? p->side.root : p->side.staged[slot];
    if (in_root(p, block))
        extent.offset += p->blocks[block].side_offset;
    else
        *free_by = p->side.staged_by[slot];
    extent.bytes = bytes;
    return extent;
}

/* A block's host-resident shard goes up and is gathered. */
static void bring(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t bytes = stw_times(s->host_params, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
    uint32_t free_by, slot = p->side.stage_turn % 2;
    s->shard = stage(p, block, bytes, &free_by);
    s->all_gather =
        stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_all_gather_bytes(job, block));
    const stw_transport up = {.kind = STW_OP_COPY_BLOCK,
                              .stream = STW_STREAM_H2D,
                              .component = STW_COMPONENT_PARAMS,
                              .unit = block,
                              .from = {STW_TIER_HOST, 0},
                              .to = {STW_TIER_GPU, s->shard.offset},
                              .bytes = bytes,
                              .after = {p->worked, free_by}};
    s->gathered = bytes > 0 ? stw_copy(p->b, &up) : STW_OP_NONE;
    const stw_op all = comm_op(STW_OP_ALL_GATHER, block, s->all_gather.bytes);
    if (job->group == 1) return;
    s->gathered = collective(p, &all, s->shard, s->all_gather, s->gathered);
    if (bytes == 0 || in_root(p, block)) return;
    p->side.staged_by[slot] = s->gathered;
    p->side.stage_turn++;
}

static bool is_released(const pass *p, uint32_t block) {
    return p->blocks[block].unshard.bytes == 0 && p->blocks[block].shard.bytes == 0;
}

/* torch's group of one gathers nothing ahead: it copies its shard when the block is due
 * (_fsdp_param_group.py, wait_for_unshard). */
static bool copies_late(const pass *p) {
    return p->b->job->group == 1 && !p->b->job->engine->spec.executes;
}

/* Start gathering a block. */
static void gather(pass *p, uint32_t block) {
    if (!copies_late(p)) bring(p, block);
}

static void drop(pass *p, stw_component component, stw_extent *extent, uint32_t after) {
    stw_free_after(p->b, component, STW_TIER_GPU, *extent, after);
    *extent = STW_NO_EXTENT;
}

static void drop_all_gather(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    drop(p, STW_COMPONENT_UNSHARD, &s->all_gather, s->gathered);
}

/* Unsharded parameters are copied out of what was gathered. With a group of one they are cast from
 * the shard, or are the shard. */
static void copy_out(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    if (copies_late(p) && is_released(p, block)) bring(p, block);
    if (p->b->job->group > 1) s->shard = STW_NO_EXTENT;
    s->unshard =
        stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_unshard_bytes(p->b->job, block));
    if (s->unshard.bytes > 0) drop(p, STW_COMPONENT_STAGE, &s->shard, s->gathered);
}

static void release(pass *p, uint32_t block) {
    drop(p, STW_COMPONENT_UNSHARD, &p->blocks[block].unshard, STW_OP_NONE);
    drop(p, STW_COMPONENT_STAGE, &p->blocks[block].shard, p->blocks[block].gathered);
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
    p->worked = stw_append(p->b, op);
    return p->worked;
}

static uint32_t group_of(const pass *p, uint32_t block) {
    return p->b->job->model->blocks[block].group;
}

static void alloc_acts(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    uint64_t full = stw_activation_bytes(p->b->job, group_of(p, block), STW_ACT_KEEP);
    uint64_t mlp = stw_mlp_activation_bytes(p->b->job, group_of(p, block));
    s->acts[0] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, mlp);
    s->acts[1] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, full - mlp);
}

static void free_acts(pass *p, uint32_t block, int part, uint32_t after) {
    drop(p, STW_COMPONENT_ACTIVATIONS, &p->blocks[block].acts[part], after);
}

/* The activations of an offloaded block on their way out or back, part by part. */
static void move_acts(pass *p, uint32_t block, bool out, uint32_t after) {
    block_state *s = &p->blocks[block];
    uint64_t done = 0;
    for (int part = 0; part < 2; part++) {
        const stw_extent *acts = &s->acts[part];
        const stw_place_at gpu = {STW_TIER_GPU, acts->offset};
        const stw_place_at host = {STW_TIER_HOST, s->stash.offset + done};
        if (acts->bytes == 0) continue;
        s->stashed =
            stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                            .stream = out ? STW_STREAM_D2H : STW_STREAM_H2D,
                                            .component = STW_COMPONENT_ACTIVATIONS,
                                            .unit = block,
                                            .from = out ? gpu : host,
                                            .to = out ? host : gpu,
                                            .bytes = acts->bytes,
                                            .after = {after, out ? s->stash.alloc : acts->alloc}});
        done += acts->bytes;
    }
}

static void forward_block(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t full = stw_activation_bytes(job, group_of(p, block), STW_ACT_KEEP);
    uint32_t from = stw_tensors_begin(p->b);
    if (p->acts[block] == STW_ACT_RECOMPUTE)
        s->saved = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                             stw_activation_bytes(job, group_of(p, block), STW_ACT_RECOMPUTE));
    else
        alloc_acts(p, block);
    stw_torch_forward(p->torch, from, block);
    uint32_t done =
        compute(p, block, STW_OP_FORWARD, stw_block_forward_flops(job, block), STW_OP_NONE);
    if (p->acts[block] == STW_ACT_OFFLOAD && full > 0) {
        s->stash = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, full);
        move_acts(p, block, true, done);
    }
    from = stw_tensors_begin(p->b);
    if (!stw_fsdp_settings_of(job->run).reshard_after_forward) return;
    release(p, block);
    stw_torch_release(p->torch, from, block);
}

/* The first block of the chain that may be held up to `at` (see stw_block_held_to). */
static uint32_t first_held(const pass *p, uint32_t at) {
    uint32_t ahead = p->b->decisions->fetch_ahead > 0 ? p->b->decisions->fetch_ahead : 1;
    return at > ahead ? at - ahead : 0;
}

/* Activations go where block `at` of the chain has run. */
static void drop_offloaded(pass *p, uint32_t at) {
    for (uint32_t i = first_held(p, at); i < at; i++) {
        block_state *s = &p->blocks[p->chain[i]];
        if (p->acts[p->chain[i]] != STW_ACT_OFFLOAD || s->held_to != at) continue;
        free_acts(p, p->chain[i], 0, s->stashed);
        free_acts(p, p->chain[i], 1, s->stashed);
    }
}

/* The last block's all-gather output is held until the loss is there. */
static void forward(pass *p) {
    uint32_t from = stw_tensors_begin(p->b);
    gather_root(p);
    stw_torch_unshard_in_forward(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    if (p->n_chain > 0) gather(p, p->chain[0]);
    for (uint32_t i = 0; i < p->n_chain; i++) {
        drop_root_gather(p);
        copy_out(p, p->chain[i]);
        if (i + 1 < p->n_chain) {
            drop_all_gather(p, p->chain[i]);
            gather(p, p->chain[i + 1]);
        }
        stw_torch_unshard_in_forward(p->torch, from, p->chain[i]);
        forward_block(p, p->chain[i]);
        drop_offloaded(p, i);
        from = stw_tensors_begin(p->b);
    }
    drop_offloaded(p, p->n_chain);
}

/* Before the backward of block `at` of the chain, or the loss: what backward needs next. */
static void prepare_backward(pass *p, uint32_t at) {
    uint32_t from = stw_tensors_begin(p->b);
    if (at > 0 && is_released(p, p->chain[at - 1])) {
        gather(p, p->chain[at - 1]);
        stw_torch_gather(p->torch, from, p->chain[at - 1]);
    }
    for (uint32_t i = at, first = first_held(p, at); i-- > first;) {
        uint32_t block = p->chain[i];
        block_state *s = &p->blocks[block];
        if (p->acts[block] != STW_ACT_OFFLOAD || s->held_to != at) continue;
        uint32_t stashed = s->stashed;
        alloc_acts(p, block);
        move_acts(p, block, false, stashed);
    }
}

/* The gradient of one block's shard: an engine with lazy state makes it as its reduction ends. */
static void shard_grad(stw_builder *b, uint32_t block) {
    uint64_t bytes = stw_times(b->job->kinds[b->layout->kind].block_grads[block],
                               stw_job_element_bytes(b->job, STW_COMPONENT_GRADS));
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    b->shard_grads[block] = stw_alloc(b, STW_COMPONENT_GRADS, tier, bytes);
}

void stw_build_shard_grads(stw_builder *b, bool alloc) {
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    uint32_t from = stw_tensors_begin(b);
    for (uint32_t i = 0; i < b->job->model->n_blocks; i++) {
        if (alloc)
            shard_grad(b, i);
        else
            stw_free(b, STW_COMPONENT_GRADS, tier, b->shard_grads[i]);
    }
    stw_torch_shard_grads(b, from, alloc);
}

static void free_grads(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    for (int i = 0; i < 2; i++) {
        drop(p, STW_COMPONENT_GRADS, &s->grads[i], STW_OP_NONE);
    }
    drop(p, STW_COMPONENT_GRADS, &s->accumulated, STW_OP_NONE);
}

/* A block's gradients are added to those of earlier micro batches, if these were not reduced. */
static void add_to_accumulated(pass *p, uint32_t block) {
    block_state *s = &p->blocks[block];
    for (int i = 0; i < 2 && s->accumulated.bytes > 0; i++)
        drop(p, STW_COMPONENT_GRADS, &s->grads[i], STW_OP_NONE);
}

/* What a reduction makes is added to the sharded gradient that is there. One that lies on the host
 * is added there, from pageable memory. */
static void add_to_shard(pass *p, uint32_t block, uint64_t params) {
    uint64_t element = stw_job_element_bytes(p->b->job, STW_COMPONENT_GRADS);
    stw_tier tier = p->blocks[block].host_grads > 0 ? STW_TIER_HOST : STW_TIER_GPU;
    if (!p->accumulates) return;
    stw_extent added =
        stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, stw_times(params, element));
    stw_free(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, added);
    if (tier == STW_TIER_GPU) return;
    p->b->pageable = true;
    added = stw_alloc(p->b, STW_COMPONENT_STAGE, tier, stw_times(params, element));
    p->b->pageable = false;
    stw_free(p->b, STW_COMPONENT_STAGE, tier, added);
}

static void drop_reduced(pass *p, uint32_t block) {
    if (block == UINT32_MAX) return;
    block_state *s = &p->blocks[block];
    drop(p, STW_COMPONENT_REDUCE, &s->reduce, s->reduced);
}

/* Is this one of the blocks whose gradients pass through side.sent? */
static bool sends_in_turn(const pass *p, uint32_t block) {
    return p->b->job->group > 1 && !in_root(p, block) && !reduced_last(p, block);
}

/* A block's sharded gradients to the host, as far as they belong there. */
static uint32_t send_grads(pass *p, uint32_t block, stw_extent from) {
    block_state *s = &p->blocks[block];
    uint64_t element = stw_job_element_bytes(p->b->job, STW_COMPONENT_GRADS);
    return stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                           .stream = STW_STREAM_D2H,
                                           .component = STW_COMPONENT_GRADS,
                                           .unit = block,
                                           .from = {STW_TIER_GPU, from.offset},
                                           .to = {STW_TIER_HOST, 0},
                                           .bytes = stw_times(s->host_grads, element),
                                           .after = {s->reduced, from.alloc}});
}

/* Sum a block's gradients over the group (the copy into the input is done); the sharded result
 * goes where the plan wants it. */
static void reduce_out(pass *p, uint32_t block, uint32_t after) {
    block_state *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t params = job->kinds[p->b->layout->kind].block_grads[block];
    if (stw_job_gathered_grads(job, block) == 0) return; /* a group of frozen tensors */
    uint64_t waits = stw_replica_reduce_bytes(job, params);
    stw_extent output =
        stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU,
                  waits > 0 ? waits : stw_reduce_output_bytes(job, s->reduce.bytes));
    if (p->lazy_grads) shard_grad(p->b, block);
    add_to_shard(p, block, params);
    if (waits > 0) {
        s->output = output;
    } else {
        stw_free(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, output);
        output = p->side.output;
    }
    const stw_op scatter = comm_op(STW_OP_REDUCE_SCATTER, block, s->reduce.bytes);
    const stw_op all = comm_op(STW_OP_ALL_REDUCE, block, s->reduce.bytes / job->group);
    uint32_t slot = p->side.sent_turn % 2;
    bool in_turn = s->host_grads > 0 && sends_in_turn(p, block);
    if (in_turn) p->side.sent_turn++;
    if (in_turn && p->side.sent_by[slot] != STW_OP_NONE) after = p->side.sent_by[slot];
    s->reduced = after; /* the collective waits for `reduce` to be there, which is after `after` */
    if (job->group > 1) s->reduced = collective(p, &scatter, s->reduce, output, s->reduced);
    if (job->world > job->group) /* on the same stream, after it */
        s->reduced = collective(p, &all, output, output, s->reduced);
    if (s->host_grads == 0) return;
    uint32_t sent = send_grads(p, block, in_turn ? p->side.sent[slot] : s->reduce);
    if (in_turn)
        p->side.sent_by[slot] = sent;
    else
        s->reduced = sent;
}

/* With a group of one, what goes to the host passes through it alone. */
static void alloc_reduce(pass *p, uint32_t block) {
    const stw_job *job = p->b->job;
    uint64_t bytes = stw_reduce_bytes(job, block);
    if (job->group == 1)
        bytes =
            stw_times(p->blocks[block].host_grads, stw_job_element_bytes(job, STW_COMPONENT_GRADS));
    p->blocks[block].reduce = stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, bytes);
}

/* Inside the MLP, then inside the attention: see stw_block_backward_bytes. */
static uint32_t block_work(pass *p, uint32_t block, double flops) {
    block_state *s = &p->blocks[block];
    stw_builder *b = p->b;
    stw_backward_bytes need = stw_block_backward_bytes(b->job, block);
    uint32_t fetched = s->stash.bytes > 0 ? s->stashed : STW_OP_NONE;
    stw_extent more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.mlp_acts);
    s->grads[0] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.mlp_grads);
    uint32_t done = compute(p, block, STW_OP_BACKWARD, flops, fetched);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 0, STW_OP_NONE);
    more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.attention_acts);
    s->grads[1] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.grads - need.mlp_grads);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 1, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->saved);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, s->stash);
    return done;
}

static void backward_block(pass *p, uint32_t at, uint32_t behind) {
    uint32_t block = p->chain[at];
    double flops = stw_block_backward_flops(p->b->job, block);
    uint32_t from = stw_tensors_begin(p->b);
    if (p->blocks[block].unshard.bytes == 0) copy_out(p, block);
    drop_all_gather(p, block);
    stw_torch_copy_out(p->torch, from, block);
    prepare_backward(p, at);
    from = stw_tensors_begin(p->b);
    if (p->acts[block] == STW_ACT_RECOMPUTE) {
        alloc_acts(p, block);
        flops += stw_block_forward_flops(p->b->job, block);
    }
    uint32_t done = block_work(p, block, flops);
    stw_torch_backward(p->torch, from, block);
    if (reduced_last(p, block)) return;
    from = stw_tensors_begin(p->b);
    release(p, block);
    stw_torch_release(p->torch, from, block);
    from = stw_tensors_begin(p->b);
    drop_reduced(p, behind);
    add_to_accumulated(p, block);
    alloc_reduce(p, block);
    free_grads(p, block);
    reduce_out(p, block, done);
    stw_torch_reduce(p->torch, from, block);
}

/* The block whose reduce-scatter input is left. With a group of one there is none: what is dropped
 * has been on its way to the host for one block longer. */
static uint32_t backward(pass *p) {
    uint32_t behind = UINT32_MAX, further = UINT32_MAX;
    for (uint32_t i = p->n_chain; i-- > 0;) {
        backward_block(p, i, p->b->job->group > 1 ? behind : further);
        if (reduced_last(p, p->chain[i])) continue;
        further = behind;
        behind = p->chain[i];
    }
    if (p->b->job->group == 1) drop_reduced(p, further);
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
    /* a fused loss adds every chunk's part to the gradient of the head's weight */
    bool reshard = stw_fsdp_settings_of(job->run).reshard_after_forward,
         fused = job->run->loss.fused;
    uint64_t saved = stw_logits_saved_bytes(job), most = stw_logits_backward_bytes(job);
    uint32_t from = stw_tensors_begin(b);
    stw_extent kept = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, saved);
    stw_extent more =
        stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, stw_logits_forward_bytes(job) - saved);
    double flops =
        2.0 * (double)job->tokens * (double)job->model->vocab * (double)job->model->hidden;
    uint32_t done = compute(p, p->root, STW_OP_LOSS, flops, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_torch_loss(p->torch, from);
    from = stw_tensors_begin(b);
    drop_root_gather(p);
    if (p->n_chain > 0) drop_all_gather(p, p->chain[p->n_chain - 1]);
    stw_torch_end_forward(p->torch, from);
    from = stw_tensors_begin(b);
    for (uint32_t i = 0; i < p->n && reshard; i++)
        if (in_root(p, i)) release(p, i);
    if (reshard) stw_torch_release(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(b);
    if (reshard) gather_root(p);
    drop_root_gather(p);
    if (reshard) stw_torch_gather(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(b);
    stw_torch_copy_out(p->torch, from, STW_TORCH_ROOT);
    prepare_backward(p, p->n_chain);
    from = stw_tensors_begin(b);
    if (fused) root_grads(p, false);
    more = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, most - saved);
    (void)compute(p, p->root, STW_OP_LOSS, stw_head_backward_share(job) * flops, done);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, kept);
    more = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, stw_logits_grad_bytes(job));
    if (!fused) root_grads(p, false);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more);
    stw_torch_loss_backward(p->torch, from);
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
    uint32_t last = UINT32_MAX, from = stw_tensors_begin(p->b);
    embedding_grads(p);
    stw_torch_embedding_backward(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) release(p, i);
    stw_torch_release(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    drop_reduced(p, behind);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) {
            add_to_accumulated(p, i);
            alloc_reduce(p, i);
            last = i;
        }
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i) && i != last) free_grads(p, i);
    for (uint32_t i = 0; i < p->n; i++)
        if (in_root(p, i)) reduce_out(p, i, p->worked);
    if (last != UINT32_MAX) free_grads(p, last);
    stw_torch_reduce(p->torch, from, STW_TORCH_ROOT);
    for (uint32_t i = 0; i < p->n; i++) {
        if (!reduced_last(p, i)) continue;
        from = stw_tensors_begin(p->b);
        release(p, i);
        stw_torch_release(p->torch, from, i);
        from = stw_tensors_begin(p->b);
        for (uint32_t r = 0; r < p->n; r++)
            if (in_root(p, r)) drop_reduced(p, r);
        add_to_accumulated(p, i);
        alloc_reduce(p, i);
        reduce_out(p, i, p->worked);
        free_grads(p, i);
        stw_torch_reduce(p->torch, from, i);
    }
    from = stw_tensors_begin(p->b);
    for (uint32_t i = 0; i < p->n; i++) {
        drop_reduced(p, i);
        drop(p, STW_COMPONENT_REDUCE, &p->blocks[i].output, p->blocks[i].reduced);
    }
    stw_torch_end_backward(p->torch, from);
}

/* Blocks, their policies and what of them lies on the host. */
static bool look_at_blocks(pass *p) {
    stw_builder *b = p->b;
    stw_pool *pool = b->program->pool;
    p->blocks = stw_pool_array(pool, p->n, sizeof *p->blocks);
    p->acts = stw_pool_array(pool, p->n, sizeof *p->acts);
    p->chain = stw_pool_array(pool, p->n, sizeof *p->chain);
    if (p->blocks == NULL || p->acts == NULL || p->chain == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    stw_block_acts(b->job, b->decisions, p->acts);
    for (uint32_t i = 0; i < p->n; i++) {
        block_state *s = &p->blocks[i];
        s->gathered = s->stashed = s->reduced = STW_OP_NONE;
        if (in_root(p, i))
            p->root = i;
        else
            p->chain[p->n_chain++] = i;
    }
    find_host_shards(p);
    for (uint32_t i = 0; i < p->n_chain; i++)
        p->blocks[p->chain[i]].held_to =
            stw_block_held_to(b->job, b->decisions, p->acts, p->chain, p->n_chain, i);
    return true;
}

/* torch drops the input or output of a collective as soon as it is issued, but the bytes stay in
 * the pool of the collective's stream, which its counters of allocated bytes do not show: two
 * shards that come from the host (the root's are gathered together), the largest output of a
 * reduce-scatter, and two sharded gradients on their way to the host. */
static void alloc_side(pass *p) {
    const stw_job *job = p->b->job;
    uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    uint64_t shard = 0, root = 0, output = 0, sent = 0;
    uint64_t grad = stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    for (uint32_t i = 0; i < p->n && job->group > 1; i++) {
        uint64_t bytes = stw_times(p->blocks[i].host_params, element);
        if (in_root(p, i)) {
            p->blocks[i].side_offset = root;
            root += bytes;
        } else {
            shard = stw_max_u64(shard, bytes);
        }
        if (sends_in_turn(p, i)) sent = stw_max_u64(sent, stw_times(p->blocks[i].host_grads, grad));
        output = stw_max_u64(output, stw_reduce_output_bytes(job, stw_reduce_bytes(job, i)));
    }
    if (job->world > job->group) output = 0; /* they are kept until replicas have summed them */
    p->side.root = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, root);
    p->side.output = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, output);
    for (int i = 0; i < 2; i++) {
        p->side.sent[i] = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, sent);
        p->side.staged[i] = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, shard);
        p->side.sent_by[i] = p->side.staged_by[i] = STW_OP_NONE;
    }
}

/* Gradients of earlier micro batches: a movement stands for the last one, which holds the most.
 * Reduced after each, they are sharded; else they are kept unsharded in the dtype of the reduction
 * (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed). */
static void accumulate(pass *p) {
    stw_builder *b = p->b;
    const bool syncs = stw_fsdp_settings_of(b->job->run).sync_each_micro_batch;
    if (b->job->run->batch.grad_accumulation < 2 || !p->lazy_grads) return;
    if (syncs) {
        stw_build_shard_grads(b, true);
        p->lazy_grads = false;
        p->accumulates = true;
    }
    for (uint32_t i = 0; i < p->n && !syncs; i++)
        p->blocks[i].accumulated =
            stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, stw_accumulated_grad_bytes(b->job, i));
}

void stw_build_forward_backward(stw_builder *b, bool lazy_grads) {
    pass p = {
        .b = b, .n = b->job->model->n_blocks, .worked = STW_OP_NONE, .lazy_grads = lazy_grads};
    if (b->status != STW_STATUS_OK || !look_at_blocks(&p)) return;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_FORWARD_BACKWARD,
                                         .repeat = STW_REPEAT_EVERY_ITERATION});
    stw_park_before_forward(b);
    p.torch = stw_torch_begin(b, p.acts);
    alloc_side(&p);
    uint32_t from = stw_tensors_begin(b);
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(b->job));
    stw_torch_workspace(b, from);
    accumulate(&p);
    forward(&p);
    loss_and_head(&p);
    finish(&p, backward(&p));
    from = stw_tensors_begin(b);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_torch_workspace(b, from);
    drop(&p, STW_COMPONENT_SLACK, &p.side.root, STW_OP_NONE);
    drop(&p, STW_COMPONENT_SLACK, &p.side.output, STW_OP_NONE);
    for (int i = 0; i < 2; i++) {
        drop(&p, STW_COMPONENT_SLACK, &p.side.sent[i], p.side.sent_by[i]);
        drop(&p, STW_COMPONENT_SLACK, &p.side.staged[i], p.side.staged_by[i]);
    }
    stw_end_movement(b);
}
