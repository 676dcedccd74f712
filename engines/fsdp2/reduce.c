/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a unit are copied into one input (torch's chunk_cat pads every tensor to chunks of
 * equal length), reduced by one reduce-scatter over the shard group in the dtype of the reduction,
 * and summed over replicas in that dtype (_fsdp_collectives.py, foreach_reduce). A group that does
 * not reduce keeps its unsharded gradients in the dtype of the reduction
 * (_fsdp_param.py, to_accumulated_grad_if_needed). */
#include "core/checked.h"
#include "engines/fsdp2/pass.h"
#include "engines/movements.h"

/* Gradients that a step still needs stay where a backward has made them: tensors of their own, also
 * in a program that has no others. */
static bool are_lone(const stw_builder *b) {
    return stw_tensors_wanted(b) && !stw_torch_is_known(b) && stw_holds_grads(b->job);
}

static void say_lone(stw_builder *b, uint32_t first_op) {
    if (are_lone(b)) stw_tensors_instead_of_these(b, first_op);
}

/* The gradient of one block's shard: an engine with lazy state makes it as its reduction ends. */
static void shard_grad(stw_builder *b, uint32_t block, bool is_new) {
    const uint32_t from = stw_tensors_begin(b);
    uint64_t bytes = stw_times(b->job->kinds[b->layout->kind].block_grads[block],
                               stw_job_element_bytes(b->job, STW_COMPONENT_GRADS));
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    if (b->status != STW_STATUS_OK) return; /* memory may have been out for the list */
    b->shard_grads[block] = stw_alloc(b, STW_COMPONENT_GRADS, tier, bytes);
    say_lone(b, from);
    if (is_new && are_lone(b)) stw_tensor_take_as(b, b->shard_tensors + block, 0, bytes);
}

void stw_build_shard_grads(stw_builder *b, bool alloc) {
    stw_tier tier = stw_place_tier(&b->decisions->state[0].place, STW_COMPONENT_GRADS);
    uint32_t from = stw_tensors_begin(b);
    for (uint32_t i = 0; i < b->job->model->n_blocks && b->status == STW_STATUS_OK; i++) {
        if (alloc)
            shard_grad(b, i, false);
        else
            stw_free(b, STW_COMPONENT_GRADS, tier, b->shard_grads[i]);
    }
    if (!alloc) say_lone(b, from);
    stw_torch_shard_grads(b, from, alloc || stw_holds_grads(b->job));
}

bool stw_holds_grads(const stw_job *job) {
    return stw_job_hides_step(job) && job->run->batch.grad_accumulation < 2;
}

void stw_pass_hold_grads(stw_pass *p) {
    p->holds = p->lazy_grads && stw_holds_grads(p->b->job);
    if (p->holds) stw_build_shard_grads(p->b, true);
}

static void drop_held(stw_pass *p, uint32_t block) {
    const uint32_t from = stw_tensors_begin(p->b);
    if (!p->holds) return;
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, p->b->shard_grads[block]);
    stw_torch_drop_shard_grads(p->b, from, block);
    say_lone(p->b, from);
    if (are_lone(p->b)) stw_tensor_drop(p->b, p->b->shard_tensors + block);
}

void stw_pass_drop_held(stw_pass *p, uint32_t at) {
    if (at < p->n_chain) drop_held(p, p->chain[at]);
}

/* The root of FSDP gathers all that it has before its forward. Without sharding its head waits by
 * itself. */
void stw_pass_drop_held_root(stw_pass *p, bool behind) {
    const uint32_t chain = p->n_chain > 0 ? p->chain[0] : p->n;
    for (uint32_t i = 0; i < p->n; i++)
        if (stw_pass_in_root(p, i) && behind == (p->b->job->group == 1 && i > chain))
            drop_held(p, i);
}

static void free_grads(stw_pass *p, uint32_t block) {
    stw_pass_block *s = &p->blocks[block];
    for (int i = 0; i < 2; i++) {
        stw_pass_drop(p, STW_COMPONENT_GRADS, &s->grads[i], STW_OP_NONE);
    }
    stw_pass_drop(p, STW_COMPONENT_GRADS, &s->accumulated, STW_OP_NONE);
}

/* A block's gradients are added to those of earlier micro batches, if these were not reduced. */
static void add_to_accumulated(stw_pass *p, uint32_t block) {
    stw_pass_block *s = &p->blocks[block];
    for (int i = 0; i < 2 && s->accumulated.bytes > 0; i++)
        stw_pass_drop(p, STW_COMPONENT_GRADS, &s->grads[i], STW_OP_NONE);
}

/* What a reduction makes is added to the sharded gradient that is there. One that lies on the host
 * is added there, from pageable memory. */
static void add_to_shard(stw_pass *p, uint32_t block, uint64_t params) {
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

void stw_pass_drop_reduced(stw_pass *p, uint32_t unit) {
    if (unit == UINT32_MAX) return;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i))
            stw_pass_drop(p, STW_COMPONENT_REDUCE, &p->blocks[i].reduce, p->blocks[i].reduced);
}

/* Of an operation that only the last micro batch has. */
static uint32_t once(stw_pass *p, uint32_t op) {
    if (op != STW_OP_NONE && p->reduced_once_in > 1)
        p->b->program->ops[op].once_in = p->reduced_once_in;
    return op;
}

/* A block's sharded gradients to the host, as far as they belong there. */
static uint32_t send_grads(stw_pass *p, uint32_t block, stw_extent from) {
    stw_pass_block *s = &p->blocks[block];
    uint64_t element = stw_job_element_bytes(p->b->job, STW_COMPONENT_GRADS);
    return once(p, stw_copy(p->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                                   .stream = STW_STREAM_D2H,
                                                   .component = STW_COMPONENT_GRADS,
                                                   .unit = block,
                                                   .from = {STW_TIER_GPU, from.offset},
                                                   .to = {STW_TIER_HOST, 0},
                                                   .bytes = stw_times(s->host_grads, element),
                                                   .after = {s->reduced, from.alloc}}));
}

/* With a group of one, what goes to the host passes through it alone. */
static void alloc_reduce(stw_pass *p, uint32_t block) {
    const stw_job *job = p->b->job;
    const uint64_t sent =
        stw_times(p->blocks[block].host_grads, stw_job_element_bytes(job, STW_COMPONENT_GRADS));
    const uint64_t bytes = job->group == 1 && sent > 0 ? sent : stw_reduce_bytes(job, block);
    p->blocks[block].reduce = stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, bytes);
}

/* Room for a unit's output, and the sharded gradients that are made of it. */
static stw_extent alloc_output(stw_pass *p, uint32_t unit) {
    const stw_job *job = p->b->job;
    const uint64_t *params = job->kinds[p->b->layout->kind].block_grads;
    stw_extent waits = STW_NO_EXTENT;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        stw_pass_block *s = &p->blocks[i];
        if (!stw_pass_in_unit(p, unit, i) || stw_job_gathered_grads(job, i) == 0) continue;
        uint64_t bytes = stw_replica_reduce_bytes(job, params[i]);
        s->output = stw_alloc(p->b, STW_COMPONENT_REDUCE, STW_TIER_GPU,
                              bytes > 0 ? bytes : stw_reduce_output_bytes(job, i));
        if (bytes > 0) waits = s->output;
    }
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        if (!stw_pass_in_unit(p, unit, i) || stw_job_gathered_grads(job, i) == 0) continue;
        if (p->lazy_grads) shard_grad(p->b, i, true);
        add_to_shard(p, i, params[i]);
    }
    for (uint32_t i = stw_pass_unit_first(p, unit);
         i < stw_pass_unit_end(p, unit) && waits.bytes == 0; i++)
        if (stw_pass_in_unit(p, unit, i))
            stw_pass_drop(p, STW_COMPONENT_REDUCE, &p->blocks[i].output, STW_OP_NONE);
    return waits.bytes > 0 ? waits : p->side.output;
}

/* Sum a unit's gradients over the groups (the copy into the input is done): those of experts that
 * are cut by ep x etp over the ranks with the same experts. */
static uint32_t sum(stw_pass *p, uint32_t unit, stw_extent output, uint32_t after) {
    const stw_job *job = p->b->job;
    const uint64_t element = stw_dtype_bits(job->run->precision.reduce) / 8;
    const stw_torch_elements n = stw_pass_elements(p, unit, true);
    stw_extent input = STW_NO_EXTENT;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i) && p->blocks[i].reduce.bytes > 0)
            input = p->blocks[i].reduce; /* the last one: all are there */
    const stw_op scatter = stw_pass_comm_op(STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_SHARD, unit,
                                            stw_times(n.dense, element));
    const stw_op experts = stw_pass_comm_op(STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_EXPERT_DP, unit,
                                            stw_times(n.experts, element));
    const stw_op all = stw_pass_comm_op(STW_OP_ALL_REDUCE, STW_RANK_GROUP_REPLICATE, unit,
                                        stw_times(n.own, element));
    if (job->group > 1 && n.dense > 0)
        after = once(p, stw_pass_collective(p, &scatter, input, output, after));
    if (job->expert_group > 1 && n.experts > 0)
        after = once(p, stw_pass_collective(p, &experts, input, output, after));
    if (stw_job_replicas(job) > 1) /* on the same stream, after it */
        after = once(p, stw_pass_collective(p, &all, output, output, after));
    return after;
}

/* The sharded result goes where the plan wants it. */
static void reduce_out(stw_pass *p, uint32_t unit, uint32_t after) {
    const uint32_t slot = p->side.sent_turn % 2;
    const bool in_turn = p->blocks[unit].host_grads > 0 && stw_pass_sends_in_turn(p, unit);
    if (stw_pass_elements(p, unit, true).own == 0) return; /* a group of frozen tensors */
    stw_extent output = alloc_output(p, unit);
    if (in_turn) p->side.sent_turn++;
    if (in_turn && p->side.sent_by[slot] != STW_OP_NONE) after = p->side.sent_by[slot];
    /* the collective waits for `reduce` to be there, which is after `after` */
    const uint32_t reduced = sum(p, unit, output, after);
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i)) p->blocks[i].reduced = reduced;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        stw_pass_block *s = &p->blocks[i];
        if (!stw_pass_in_unit(p, unit, i) || s->host_grads == 0) continue;
        uint32_t sent = send_grads(p, i, in_turn ? p->side.sent[slot] : s->reduce);
        if (in_turn)
            p->side.sent_by[slot] = sent;
        else
            s->reduced = sent;
    }
}

/* A group whose input has no gradient holds its last gradient until the reduction is issued, but
 * not one of one rank (foreach_reduce). */
void stw_pass_reduce(stw_pass *p, uint32_t unit, uint32_t after) {
    const bool holds = (p->b->job->group > 1 || p->b->job->engine->spec.own_process) &&
                       (stw_pass_in_root(p, unit) || stw_reduced_last(p->b->job, unit));
    uint32_t last = UINT32_MAX;
    stw_pass_sum_whole(p, unit);
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        if (!stw_pass_in_unit(p, unit, i)) continue;
        add_to_accumulated(p, i);
        alloc_reduce(p, i);
        if (holds) last = i;
    }
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i) && i != last) free_grads(p, i);
    reduce_out(p, unit, after);
    if (last != UINT32_MAX) free_grads(p, last);
}

void stw_pass_end_reductions(stw_pass *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        stw_pass_block *s = &p->blocks[i];
        stw_pass_drop(p, STW_COMPONENT_REDUCE, &s->reduce, s->reduced);
        stw_pass_drop(p, STW_COMPONENT_REDUCE, &s->output, s->reduced);
    }
}

/* Gradients of earlier micro batches: a movement stands for the last one, which holds the most.
 * Reduced after each, they are sharded; else they are kept unsharded in the dtype of the reduction
 * (to_accumulated_grad_if_needed). */
void stw_pass_accumulate(stw_pass *p) {
    stw_builder *b = p->b;
    const bool syncs = stw_fsdp_settings_of(b->job->run).sync_each_micro_batch;
    if (b->job->run->batch.grad_accumulation < 2 || !p->lazy_grads) return;
    if (syncs) {
        stw_build_shard_grads(b, true);
        p->lazy_grads = false;
        p->accumulates = true;
    }
    const uint32_t from = stw_tensors_begin(b);
    p->reduced_once_in = syncs ? 0 : (uint32_t)b->job->run->batch.grad_accumulation;
    for (uint32_t i = 0; i < p->n && !syncs; i++)
        p->blocks[i].accumulated =
            stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, stw_accumulated_grad_bytes(b->job, i));
    if (p->torch != NULL) stw_tensors_instead(b, from);
}
