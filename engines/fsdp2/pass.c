/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/fsdp2/pass.h"

#include "core/checked.h"
#include "engines/bytes.h"
#include "plan/program/blocks.h"

/* Elements of every block's shard that lie on the host. */
static void find_host_shards(stw_pass *p) {
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
            stw_pass_block *s = &p->blocks[job->model->tensors[part.tensor].block];
            *(params ? &s->host_params : &s->host_grads) += part.n;
        }
    }
}

/* Blocks of a group save the same. */
static void find_saved(const stw_pass *p, uint32_t block) {
    const stw_model *model = p->b->job->model;
    const uint32_t group = model->blocks[block].group;
    stw_pass_block *s = &p->blocks[block];
    if (block > 0 && model->blocks[block - 1].group == group) {
        s->saves = p->blocks[block - 1].saves;
        s->mlp_saves = p->blocks[block - 1].mlp_saves;
        return;
    }
    s->saves = stw_full_activation_bytes(p->b->job, group);
    s->mlp_saves = stw_mlp_activation_bytes(p->b->job, group);
}

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
        s->in_root = stw_job_in_root(b->job, i);
        find_saved(p, i);
        if (s->in_root)
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

void stw_pass_drop(stw_pass *p, stw_component component, stw_extent *extent, uint32_t after) {
    stw_free_after(p->b, component, STW_TIER_GPU, *extent, after);
    *extent = STW_NO_EXTENT;
}

uint32_t stw_pass_collective(stw_pass *p, const stw_op *like, stw_extent from, stw_extent to,
                             uint32_t after) {
    stw_op op = *like;
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

stw_op stw_pass_comm_op(stw_op_kind kind, stw_rank_group group, uint32_t unit, uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, unit);
    op.group = group;
    op.bytes = bytes;
    return op;
}

stw_torch_elements stw_pass_elements(const stw_pass *p, uint32_t unit, bool trained) {
    stw_torch_elements sum = {0};
    for (uint32_t i = stw_pass_unit_first(p, unit); i < stw_pass_unit_end(p, unit); i++) {
        if (!stw_pass_in_unit(p, unit, i)) continue;
        const stw_torch_elements of = stw_torch_elements_of(p->b->job, i, trained);
        sum.dense = stw_plus(sum.dense, of.dense);
        sum.experts = stw_plus(sum.experts, of.experts);
        sum.own = stw_plus(sum.own, of.own);
    }
    return sum;
}

uint32_t stw_pass_compute(stw_pass *p, uint32_t block, stw_op_kind kind, const stw_work *work,
                          uint32_t after) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    stw_op_set_work(p->b, &op, work);
    op.after[0] = p->blocks[block].gathered;
    op.after[1] = after;
    p->worked = stw_append(p->b, op);
    return p->worked;
}
