/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of a unit are gathered by one all-gather, of every tensor padded to chunks of
 * dimension 0 of equal length (_fsdp_collectives.py, foreach_all_gather). */
#include "core/checked.h"
#include "engines/fsdp2/pass.h"

/* Where a block's host-resident shard is staged; the copy waits for `*free_by`. */
static stw_extent stage(stw_pass *p, uint32_t block, uint64_t bytes, uint32_t *free_by) {
    *free_by = STW_OP_NONE;
    if (bytes == 0) return STW_NO_EXTENT;
    if (p->b->job->group == 1) {
        stw_extent own = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, bytes);
        *free_by = own.alloc;
        return own;
    }
    uint32_t slot = p->side.stage_turn % 2;
    stw_extent extent = stw_pass_in_root(p, block) ? p->side.root : p->side.staged[slot];
    if (stw_pass_in_root(p, block))
        extent.offset += p->blocks[block].side_offset;
    else
        *free_by = p->side.staged_by[slot];
    extent.bytes = bytes;
    return extent;
}

/* Of an operation that does not happen in every pass. */
static uint32_t once(stw_pass *p, uint32_t op, bool there) {
    const uint32_t in = there ? p->stays : p->gathered_once_in;
    if (op != STW_OP_NONE && in > 1) p->b->program->ops[op].once_in = in;
    return op;
}

/* A block's host-resident shard goes up.
 * @param there its parameters have stayed, but in the first pass */
static void bring(stw_pass *p, uint32_t block, bool there) {
    stw_pass_block *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    uint64_t bytes = stw_times(s->host_params, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
    if (s->resharded.bytes > 0) bytes = 0;
    uint32_t free_by;
    s->shard = stage(p, block, bytes, &free_by);
    s->all_gather = stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU,
                              there ? 0 : stw_all_gather_bytes(job, block));
    const stw_transport up = {.kind = STW_OP_COPY_BLOCK,
                              .stream = STW_STREAM_H2D,
                              .component = STW_COMPONENT_PARAMS,
                              .unit = block,
                              .from = {STW_TIER_HOST, 0},
                              .to = {STW_TIER_GPU, s->shard.offset},
                              .bytes = bytes,
                              .after = {p->worked, free_by}};
    s->gathered = bytes > 0 ? once(p, stw_copy(p->b, &up), there) : STW_OP_NONE;
}

void stw_pass_hold_all(stw_pass *p) {
    for (uint32_t i = 0; i < p->n; i++)
        p->blocks[i].unshard =
            stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_unshard_bytes(p->b->job, i));
}

bool stw_pass_is_released(const stw_pass *p, uint32_t block) {
    return p->blocks[block].unshard.bytes == 0 && p->blocks[block].shard.bytes == 0;
}

/* torch's group of one gathers nothing ahead: it copies its shard when the block is due
 * (_fsdp_param_group.py, wait_for_unshard). */
static bool copies_late(const stw_pass *p) {
    return p->b->job->group == 1 && !p->b->job->engine->spec.own_process;
}

/* One all-gather of the unit, and one of experts that are cut by ep x etp, over the ranks with the
 * same experts. The last operation; both are on one stream. */
static uint32_t gather(stw_pass *p, uint32_t unit, stw_extent from, stw_extent to, uint32_t brought,
                       bool there) {
    const stw_job *job = p->b->job;
    const uint64_t element = stw_dtype_bits(job->run->precision.compute) / 8;
    const stw_torch_elements n = stw_pass_elements(p, unit, false);
    const stw_rank_group ranks =
        p->blocks[unit].resharded.bytes > 0 ? STW_RANK_GROUP_NODE : STW_RANK_GROUP_SHARD;
    const stw_op dense =
        stw_pass_comm_op(STW_OP_ALL_GATHER, ranks, unit, stw_times(n.dense, element));
    const stw_op experts = stw_pass_comm_op(STW_OP_ALL_GATHER, STW_RANK_GROUP_EXPERT_DP, unit,
                                            stw_times(n.experts, element));
    uint32_t last = brought;
    if (n.dense > 0 || n.experts == 0)
        last = once(p, stw_pass_collective(p, &dense, from, to, last), there);
    if (n.experts > 0 && job->expert_group > 1)
        last = once(p, stw_pass_collective(p, &experts, from, to, last), there);
    return last;
}

void stw_pass_gather(stw_pass *p, uint32_t unit) {
    uint32_t slot = p->side.stage_turn % 2, brought = STW_OP_NONE;
    stw_extent from = STW_NO_EXTENT, to = STW_NO_EXTENT;
    const bool there = p->blocks[unit].unshard.bytes > 0;
    if (copies_late(p)) return;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        stw_pass_block *s = &p->blocks[i];
        if (!stw_pass_in_unit(p, unit, i)) continue;
        bring(p, i, there);
        if (s->gathered != STW_OP_NONE) brought = s->gathered;
        if (from.bytes == 0) from = s->shard;
        if (s->all_gather.bytes > 0) to = s->all_gather; /* the last one: all are there */
    }
    if (p->b->job->group == 1) return;
    const uint32_t gathered = gather(p, unit, from, to, brought, there);
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i)) p->blocks[i].gathered = gathered;
    if (from.bytes == 0 || stw_pass_in_root(p, unit)) return;
    p->side.staged_by[slot] = gathered;
    p->side.stage_turn++;
}

void stw_pass_drop_gather(stw_pass *p, uint32_t unit) {
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i))
            stw_pass_drop(p, STW_COMPONENT_UNSHARD, &p->blocks[i].all_gather,
                          p->blocks[i].gathered);
}

/* With a group of one they are cast from the shard, or are the shard. */
static void copy_out(stw_pass *p, uint32_t block) {
    stw_pass_block *s = &p->blocks[block];
    if (p->b->job->group > 1) s->shard = STW_NO_EXTENT; /* of the side */
    if (s->unshard.bytes > 0) return;                   /* it has stayed */
    if (copies_late(p) && stw_pass_is_released(p, block)) bring(p, block, false);
    s->unshard =
        stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, stw_unshard_bytes(p->b->job, block));
    if (s->unshard.bytes > 0) stw_pass_drop(p, STW_COMPONENT_STAGE, &s->shard, s->gathered);
    stw_pass_drop(p, STW_COMPONENT_UNSHARD, &s->resharded, s->gathered);
}

void stw_pass_copy_out(stw_pass *p, uint32_t unit) {
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++)
        if (stw_pass_in_unit(p, unit, i)) copy_out(p, i);
}

void stw_pass_gather_root(stw_pass *p) {
    if (!stw_pass_has_root(p)) return;
    stw_pass_gather(p, p->root);
    stw_pass_copy_out(p, p->root);
}

void stw_pass_drop_root_gather(stw_pass *p) {
    if (stw_pass_has_root(p)) stw_pass_drop_gather(p, p->root);
}

void stw_pass_release(stw_pass *p, uint32_t unit) {
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        stw_pass_block *s = &p->blocks[i];
        if (!stw_pass_in_unit(p, unit, i)) continue;
        stw_pass_drop(p, STW_COMPONENT_UNSHARD, &s->unshard, STW_OP_NONE);
        stw_pass_drop(p, STW_COMPONENT_STAGE, &s->shard, s->gathered);
    }
}

void stw_pass_reshard(stw_pass *p, uint32_t unit) {
    const stw_job *job = p->b->job;
    const uint64_t element = stw_dtype_bits(job->run->precision.compute) / 8;
    const bool to_node = stw_fsdp_settings_of(job->run).reshard_to_node;
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit) && to_node;
         i++) {
        if (!stw_pass_in_unit(p, unit, i)) continue;
        const uint64_t dense = stw_torch_elements_of(job, i, false).dense; /* places: no ep */
        p->blocks[i].resharded = stw_alloc(p->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU,
                                           stw_times(dense / job->ranks_per_node, element));
    }
    stw_pass_release(p, unit);
}

/* Two shards that come from the host (the root's are gathered together), the largest output of a
 * reduce-scatter, and two sharded gradients on their way to the host. */
void stw_pass_alloc_side(stw_pass *p) {
    const stw_job *job = p->b->job;
    uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    uint64_t shard = 0, root = 0, output = 0, sent = 0;
    uint64_t grad = stw_job_element_bytes(job, STW_COMPONENT_GRADS);
    for (uint32_t i = 0; i < p->n && job->group > 1; i++) {
        uint64_t bytes = stw_times(p->blocks[i].host_params, element);
        if (stw_pass_in_root(p, i)) {
            p->blocks[i].side_offset = root;
            root += bytes;
        } else {
            shard = stw_max_u64(shard, bytes);
        }
        if (stw_pass_sends_in_turn(p, i))
            sent = stw_max_u64(sent, stw_times(p->blocks[i].host_grads, grad));
        output = stw_max_u64(output, stw_reduce_output_bytes(job, i));
    }
    if (stw_job_replicas(job) > 1) output = 0; /* they are kept until replicas have summed them */
    p->side.root = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, root);
    p->side.output = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, output);
    for (int i = 0; i < 2; i++) {
        p->side.sent[i] = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, sent);
        p->side.staged[i] = stw_alloc(p->b, STW_COMPONENT_SLACK, STW_TIER_GPU, shard);
        p->side.sent_by[i] = p->side.staged_by[i] = STW_OP_NONE;
    }
}

void stw_pass_free_side(stw_pass *p) {
    stw_pass_drop(p, STW_COMPONENT_SLACK, &p->side.root, STW_OP_NONE);
    stw_pass_drop(p, STW_COMPONENT_SLACK, &p->side.output, STW_OP_NONE);
    for (int i = 0; i < 2; i++) {
        stw_pass_drop(p, STW_COMPONENT_SLACK, &p->side.sent[i], p->side.sent_by[i]);
        stw_pass_drop(p, STW_COMPONENT_SLACK, &p->side.staged[i], p->side.staged_by[i]);
    }
}
