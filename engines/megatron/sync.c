/* SPDX-License-Identifier: Apache-2.0 */
/* verl/utils/megatron_utils.py, per_tensor_generator: the stage that has a parameter broadcasts it
 * to the others, ranks of the TP group gather its parts and merge them into a second copy, ranks of
 * the EP group gather experts. Shards of Megatron-FSDP are gathered by its data-parallel ranks
 * first. Parameters are 16 bits wide all the way. slime's
 * update_weight/hf_weight_iterator_direct.py does the same bucket by bucket. */
#include "engines/megatron/sync.h"

#include "core/checked.h"
#include "engines/megatron/megatron.h"

static uint64_t ways(const stw_builder *b, const stw_megatron_param *p) {
    const stw_parallel *by = &b->job->run->parallel;
    if (p->expert) return stw_times(by->ep, by->etp);
    return p->whole ? 1 : by->tp;
}

static uint64_t elements(const void *state, const stw_builder *b, uint32_t index) {
    const stw_megatron_sync *all = state;
    return stw_times(all->list[index].param.numel, ways(b, &all->list[index].param));
}

static uint32_t collective(stw_builder *b, stw_op_kind kind, stw_rank_group group,
                           const stw_extent *to, uint32_t after) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, STW_OP_NONE);
    op.group = group;
    op.component = STW_COMPONENT_UNSHARD;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = to->offset;
    op.bytes = to->bytes;
    op.after[0] = to->alloc;
    op.after[1] = after;
    return stw_append(b, op);
}

static stw_whole_tensor gather(const void *state, stw_builder *b, uint32_t index) {
    const stw_megatron_sync *all = state;
    const stw_megatron_param *p = &all->list[index].param;
    const uint64_t half = stw_job_element_bytes(b->job, STW_COMPONENT_PARAMS), n = ways(b, p);
    const stw_component c = STW_COMPONENT_UNSHARD;
    stw_whole_tensor t = {.elements = elements(state, b, index),
                          .extents = {STW_NO_EXTENT, STW_NO_EXTENT, STW_NO_EXTENT},
                          .ready = STW_OP_NONE};
    const bool mine = all->list[index].stage == b->job->kinds[b->layout->kind].stage;
    if (mine && stw_megatron_cuts_params(b->job->run)) {
        t.extents[0] = stw_alloc(b, c, STW_TIER_GPU, stw_times(p->numel, half));
        t.ready = collective(b, STW_OP_ALL_GATHER,
                             p->expert ? STW_RANK_GROUP_EXPERT_DP : STW_RANK_GROUP_DP,
                             &t.extents[0], STW_OP_NONE);
    }
    if (b->job->run->parallel.pp > 1) {
        if (!mine) t.extents[0] = stw_alloc(b, c, STW_TIER_GPU, stw_times(p->numel, half));
        stw_extent sent = t.extents[0];
        sent.bytes = stw_times(p->numel, half);
        t.ready = collective(b, STW_OP_SEND, STW_RANK_GROUP_PP, &sent, t.ready);
    }
    if (n == 1) return t;
    t.extents[1] = stw_alloc(b, c, STW_TIER_GPU, stw_times(t.elements, half));
    t.ready = collective(b, STW_OP_ALL_GATHER, p->expert ? STW_RANK_GROUP_EP : STW_RANK_GROUP_TP,
                         &t.extents[1], t.ready);
    if (!p->expert) t.extents[2] = stw_alloc(b, c, STW_TIER_GPU, stw_times(t.elements, half));
    return t;
}

void stw_megatron_build_sync(stw_builder *b) {
    const stw_job *job = b->job;
    stw_megatron_sync all = {0, NULL};
    size_t room = 0;
    if (stw_synced_role(job) == NULL || b->status != STW_STATUS_OK) return;
    for (uint32_t stage = 0; stage < job->run->parallel.pp; stage++) {
        stw_megatron_params params;
        b->status = stw_megatron_params_of(job, stage, b->program->pool, &params, b->err);
        if (b->status != STW_STATUS_OK) return;
        for (uint32_t i = 0; i < params.n; i++) {
            all.list = stw_pool_grow(b->program->pool, all.list, all.n, (size_t)all.n + 1, &room,
                                     sizeof *all.list);
            if (all.list == NULL) {
                b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
                return;
            }
            all.list[all.n].param = params.list[i];
            all.list[all.n++].stage = stage;
        }
    }
    const stw_sync_source source = {
        .n = all.n, .elements = elements, .gather = gather, .state = &all};
    stw_build_weight_sync(b, &source);
}
