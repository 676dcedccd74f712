/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks send each other inside a block. The computation waits for it: it stands on the stream
 * of computation.
 *
 * Experts (torchtitan/distributed/expert_parallel.py, ExpertParallel): rows go to their experts and
 * come back, in forward and again, as gradients, in backward.
 * Context parallelism (torch/distributed/tensor/experimental/_context_parallel/_attention.py, with
 * its default rotation): keys and values of all ranks are gathered in forward and again in
 * backward; their fp32 gradients go around once.
 *
 * Tensor parallelism (torchtitan/models/llama3/infra/parallelize.py at 018740b, apply_tp;
 * torch/distributed/tensor/parallel/style.py at v2.11). With sequence parallelism attention and MLP
 * gather their input (PrepareModuleInput) and reduce-scatter their output (RowwiseParallel with
 * output_layouts Shard(1)); backward does the same with gradients, the other way round. Without it
 * outputs are all-reduced in forward; each product that reads a whole input is given it as a plain
 * tensor, and all-reduces its gradient by itself. A forward that is recomputed
 * ends before the last product (torch/utils/checkpoint.py); torchtitan's policy for operations
 * keeps outputs of reduce-scatters, but not those of all-reduces. The embedding has a part of the
 * vocabulary on each rank, whose rows are summed, and the head gathers its input; loss parallelism
 * all-reduces the maximum, the sum of exponentials and the target's logit of each token (loss.py,
 * _log_softmax, _nll_loss_forward), else logits are gathered.
 * FSDP sums gradients of parameters that are whole before it reduces them, one by one and in the
 * dtype of computation, or of the gradients that were added up (_fsdp_param.py at v2.11,
 * _get_grad_inner_tensor: redistribute to the placements of the parameter; 2.15 sums in the dtype
 * of the reduction): with sequence parallelism, which makes norms DTensors. NVIDIA-NeMo/Automodel
 * leaves them alone without it (optimized_tp_plans.py, sequence_parallel false).
 * Counts and bytes equal those of torch 2.15 (bench/results/2026-11-22-engines/fsdp2-tp.txt). */
#include "core/checked.h"
#include "engines/fsdp2/pass.h"
#include "engines/tensor_parallel.h"

static void exchanges(stw_pass *p, const stw_op *like, uint32_t calls, uint64_t bytes) {
    uint32_t ranks, on_node;
    stw_job_group_size(p->b->job, like->group, &ranks, &on_node);
    if (ranks <= 1 || bytes == 0 || calls == 0) return;
    stw_op op = *like;
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = stw_times(bytes, calls);
    op.calls = calls;
    if (op.unit != STW_OP_NONE) op.after[0] = p->blocks[op.unit].gathered;
    (void)stw_append(p->b, op);
}

static void exchange(stw_pass *p, stw_op_kind kind, stw_rank_group group, uint32_t block,
                     uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.group = group;
    exchanges(p, &op, 1, bytes);
}

/* ---- tensor parallelism ---- */

static void among_tp(stw_pass *p, stw_op_kind kind, uint32_t block, uint32_t calls,
                     uint64_t bytes) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.group = STW_RANK_GROUP_TP;
    exchanges(p, &op, calls, bytes);
}

static uint64_t compute_bytes(const stw_pass *p) {
    return stw_dtype_bits(p->b->job->run->precision.compute) / 8;
}

/* Rows of all tokens. */
static uint64_t rows_bytes(const stw_pass *p) {
    return stw_times(stw_times(p->b->job->tokens, compute_bytes(p)), p->b->job->model->hidden);
}

/* Products whose output is cut: those that read the rows of all tokens. */
static uint32_t first_products(const stw_model *model, uint32_t block) {
    const stw_block *b = &model->blocks[block];
    uint32_t n = 0;
    for (uint32_t t = b->first_tensor; t < b->first_tensor + b->n_tensors; t++)
        n += model->tensors[t].rank == 2 && stw_tp_cut_of(&model->tensors[t]) == STW_TP_ROWS;
    return n;
}

static void exchange_rows(stw_pass *p, uint32_t block, stw_exchange when) {
    const stw_run_spec *run = p->b->job->run;
    const bool again = when == STW_EXCHANGE_AGAIN, ops = run->recompute.granularity == 2;
    if (!run->parallel.sequence_parallel) {
        uint32_t calls = again ? 1 : 2;
        if (when == STW_EXCHANGE_BACKWARD) calls = first_products(p->b->job->model, block);
        among_tp(p, STW_OP_ALL_REDUCE, block, calls, rows_bytes(p));
        return;
    }
    among_tp(p, STW_OP_ALL_GATHER, block, 2, rows_bytes(p));
    among_tp(p, STW_OP_REDUCE_SCATTER, block, !again ? 2 : ops ? 0 : 1, rows_bytes(p));
}

void stw_pass_exchange_embedding(stw_pass *p, stw_exchange when) {
    const bool rows = p->b->job->run->parallel.sequence_parallel;
    const uint32_t block = stw_pass_has_root(p) ? p->root : STW_OP_NONE;
    if (when == STW_EXCHANGE_FORWARD)
        among_tp(p, rows ? STW_OP_REDUCE_SCATTER : STW_OP_ALL_REDUCE, block, 1, rows_bytes(p));
    else if (rows)
        among_tp(p, STW_OP_ALL_GATHER, block, 1, rows_bytes(p));
}

void stw_pass_exchange_loss(stw_pass *p, stw_exchange when) {
    const stw_job *job = p->b->job;
    const bool rows = job->run->parallel.sequence_parallel;
    const uint64_t logits = stw_times(stw_times(job->tokens, job->model->vocab), compute_bytes(p));
    if (when == STW_EXCHANGE_BACKWARD) {
        among_tp(p, rows ? STW_OP_REDUCE_SCATTER : STW_OP_ALL_REDUCE, p->root, 1, rows_bytes(p));
        return;
    }
    if (rows) among_tp(p, STW_OP_ALL_GATHER, p->root, 1, rows_bytes(p));
    if (stw_fsdp_settings_of(job->run).loss_parallel)
        among_tp(p, STW_OP_ALL_REDUCE, p->root, 3,
                 stw_times(job->tokens, stw_dtype_bits(job->run->loss.upcast) / 8));
    else
        among_tp(p, STW_OP_ALL_GATHER, p->root, 1, logits);
}

/* Is a whole tensor's gradient on a rank a part of the sum? */
static bool has_part(const stw_job *job, const stw_tensor *tensor) {
    return job->run->parallel.sequence_parallel && stw_tp_cut_of(tensor) == STW_TP_WHOLE;
}

void stw_pass_sum_whole(stw_pass *p, uint32_t unit) {
    const stw_model *model = p->b->job->model;
    uint32_t calls = 0;
    uint64_t elements = 0;
    if (stw_job_tp(p->b->job) == 1) return;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (!stw_pass_in_unit(p, unit, model->tensors[t].block) ||
            !has_part(p->b->job, &model->tensors[t]))
            continue;
        calls++;
        elements = stw_plus(elements, model->tensors[t].numel);
    }
    if (calls == 0) return;
    const stw_run_spec *run = p->b->job->run;
    const stw_dtype dtype = p->reduced_once_in > 1 ? run->precision.reduce : run->precision.compute;
    stw_op op = stw_op_make(STW_OP_ALL_REDUCE, STW_STREAM_COMPUTE, unit);
    op.group = STW_RANK_GROUP_TP;
    op.component = STW_COMPONENT_REDUCE;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = stw_times(elements, stw_dtype_bits(dtype) / 8);
    op.calls = calls;
    if (p->reduced_once_in > 1) op.once_in = p->reduced_once_in;
    (void)stw_append(p->b, op);
}

/* ---- blocks ---- */

void stw_pass_exchange(stw_pass *p, uint32_t block, stw_exchange when) {
    const stw_job *job = p->b->job;
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    const uint64_t element = compute_bytes(p);
    const uint64_t rows = stw_times(stw_times(job->tokens, f->experts_per_token), f->hidden);
    const uint64_t keys = stw_times(stw_times(job->tokens, job->run->parallel.cp),
                                    stw_times(f->kv_heads, stw_plus(f->qk_dim, f->v_dim)));
    if (stw_job_tp(job) > 1 && f->transformer) exchange_rows(p, block, when);
    if (when == STW_EXCHANGE_AGAIN && job->run->recompute.granularity == 2) return;
    if (f->experts > 0)
        exchange(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_EP, block,
                 stw_times(stw_times(rows, element), 2));
    exchange(p, STW_OP_ALL_GATHER, STW_RANK_GROUP_CP, block, stw_times(keys, element));
    if (when == STW_EXCHANGE_BACKWARD)
        exchange(p, STW_OP_ALL_TO_ALL, STW_RANK_GROUP_CP, block, stw_times(keys, 4));
}
