/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/gather.h"

#include "core/checked.h"

uint64_t stw_gather_own(const stw_job *job, uint32_t kind, uint32_t tensor) {
    const stw_space *params = &job->kinds[kind].spaces[STW_SPACE_PARAMS];
    uint32_t low = 0, high = params->n_segments;
    uint64_t n = 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (params->segments[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < params->n_segments && params->segments[low].tensor == tensor; low++)
        n += params->segments[low].n;
    return n;
}

/* Chunks of dimension 0, experts cut first, are padded to the first one's size. */
uint64_t stw_gather_full(const stw_job *job, uint32_t tensor) {
    const stw_tensor *t = &job->model->tensors[tensor];
    const uint64_t ways = t->expert ? stw_max_u64(job->expert_group, 1) : job->group;
    const uint64_t cut = t->expert ? stw_max_u64(job->expert_cut, 1) : 1;
    uint64_t rows = t->rank > 0 ? t->shape[0] : 1;
    if (rows == 0 || ways == 0) return t->numel;
    const uint64_t row = t->numel / rows;
    rows = stw_div_up_u64(rows, cut);
    return stw_times(stw_times(stw_times(stw_div_up_u64(rows, ways), ways), cut), row);
}

stw_gathered stw_gather_tensor(stw_builder *b, uint32_t tensor, uint32_t after) {
    const stw_job *job = b->job;
    const uint64_t element = stw_job_element_bytes(job, STW_COMPONENT_PARAMS);
    const bool on_host = b->decisions->state[0].place.params == STW_TIER_HOST;
    const uint64_t own = stw_times(stw_gather_own(job, b->layout->kind, tensor), element);
    stw_gathered g = {.shard = STW_NO_EXTENT, .full = STW_NO_EXTENT, .ready = after};
    g.bytes = stw_times(job->model->tensors[tensor].numel, element);
    if (on_host && own > 0) {
        g.shard = stw_alloc(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, own);
        g.ready = stw_copy(b, &(stw_transport){.kind = STW_OP_COPY,
                                               .stream = STW_STREAM_H2D,
                                               .component = STW_COMPONENT_PARAMS,
                                               .unit = STW_OP_NONE,
                                               .from = {STW_TIER_HOST, 0},
                                               .to = {STW_TIER_GPU, g.shard.offset},
                                               .bytes = own,
                                               .after = {g.shard.alloc, after}});
    }
    if (job->group == 1 || stw_times(job->model->tensors[tensor].numel, element) <= own) return g;
    stw_op op = stw_op_make(STW_OP_ALL_GATHER, STW_STREAM_COMM, STW_OP_NONE);
    g.full = stw_alloc(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU,
                       stw_times(stw_gather_full(job, tensor), element));
    op.group = STW_RANK_GROUP_SHARD;
    op.component = STW_COMPONENT_UNSHARD;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = g.full.offset;
    op.bytes = g.full.bytes;
    op.after[0] = g.full.alloc;
    op.after[1] = g.ready;
    g.ready = stw_append(b, op);
    /* nothing has the shard's copy any more when full_tensor() has returned */
    stw_free_after(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, g.shard, g.ready);
    g.shard = STW_NO_EXTENT;
    return g;
}

void stw_gather_drop(stw_builder *b, stw_gathered *g, uint32_t after) {
    const uint32_t until = after != STW_OP_NONE ? after : g->ready;
    stw_free_after(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, g->full, until);
    stw_free_after(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, g->shard, g->ready);
    g->shard = g->full = STW_NO_EXTENT;
}
