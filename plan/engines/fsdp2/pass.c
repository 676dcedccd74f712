/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/fsdp2/pass.h"

#include "plan/program/blocks.h"

/* Blocks, their policies and what of them lies on the host. */
bool stw_pass_begin(stw_pass *p) {
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
        stw_pass_block *s = &p->blocks[i];
        s->gathered = s->stashed = s->reduced = STW_OP_NONE;
        if (stw_pass_in_root(p, i))
            p->root = i;
        else
            p->chain[p->n_chain++] = i;
    }
    stw_pass_find_host_shards(p);
    for (uint32_t i = 0; i < p->n_chain; i++)
        p->blocks[p->chain[i]].held_to =
            stw_block_held_to(b->job, b->decisions, p->acts, p->chain, p->n_chain, i);
    return true;
}

void stw_pass_drop(stw_pass *p, stw_component component, stw_extent *extent, uint32_t after) {
    stw_free_after(p->b, component, STW_TIER_GPU, *extent, after);
    *extent = STW_NO_EXTENT;
}

uint32_t stw_pass_collective(stw_pass *p, const stw_op *like, stw_extent from, stw_extent to,
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

stw_op stw_pass_comm_op(stw_op_kind kind, uint32_t unit, uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, unit);
    op.bytes = bytes;
    return op;
}

uint32_t stw_pass_compute(stw_pass *p, uint32_t block, stw_op_kind kind, double flops,
                          uint32_t after) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    op.flops = flops;
    op.after[0] = p->blocks[block].gathered;
    op.after[1] = after;
    p->worked = stw_append(p->b, op);
    return p->worked;
}

void stw_pass_gather_root(stw_pass *p) {
    if (!stw_pass_has_root(p)) return;
    stw_pass_gather(p, p->root);
    stw_pass_copy_out(p, p->root);
}

void stw_pass_drop_root_gather(stw_pass *p) {
    if (stw_pass_has_root(p)) stw_pass_drop_gather(p, p->root);
}
