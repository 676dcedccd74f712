/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks send each other inside a block. The computation waits for it: it stands on the stream
 * of computation.
 *
 * Experts (torchtitan/distributed/expert_parallel.py, ExpertParallel): rows go to their experts and
 * come back, in forward and again, as gradients, in backward.
 * Context parallelism (torch/distributed/tensor/experimental/_context_parallel/_attention.py, with
 * its default rotation): keys and values of all ranks are gathered in forward and again in
 * backward; their fp32 gradients go around once. */
#include "core/checked.h"
#include "plan/engines/fsdp2/pass.h"

static void exchange(stw_pass *p, stw_op_kind kind, stw_rank_group group, uint32_t block,
                     uint64_t bytes) {
    uint32_t ranks, on_node;
    stw_job_group_size(p->b->job, group, &ranks, &on_node);
    if (ranks <= 1 || bytes == 0) return;
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.group = group;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = bytes;
    op.after[0] = p->blocks[block].gathered;
    (void)stw_append(p->b, op);
}

void stw_pass_exchange(stw_pass *p, uint32_t block, bool backward) {
    const stw_job *job = p->b->job;
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    const uint64_t element = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t rows = stw_times(stw_times(job->tokens, f->experts_per_token), f->hidden);
    const uint64_t keys = stw_times(stw_times(job->tokens, job->run->parallel.cp),
                                    stw_times(f->kv_heads, stw_plus(f->qk_dim, f->v_dim)));
    if (f->experts > 0)
        exchange(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, block,
                 stw_times(stw_times(rows, element), 2));
    exchange(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_CP, block, stw_times(keys, element));
    if (backward) exchange(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_CP, block, stw_times(keys, 4));
}
