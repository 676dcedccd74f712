/* SPDX-License-Identifier: Apache-2.0 */
/* A forward under torch.no_grad() and log-probabilities of its tokens. Blocks are gathered as in
 * the forward of training; the last all-gather's output and the root go when the model's forward
 * has returned its logits (_fsdp_state.py, _post_forward). Parameters that are not resharded after
 * a forward stay for the next micro batch, and go after the last one.
 *
 * Bytes per logit, beside the logits in the compute dtype: their upcast and the log-softmax; with
 * entropy the probabilities and their product with the log-softmax. verl
 * (utils/torch_functional.py, logprobs_from_logits) reads the logits in one kernel of flash_attn
 * and compiles the entropy: nothing more. AReaL (utils/functional.py, gather_logprobs) works by
 * chunks of 1,024 tokens. */
#include "core/checked.h"
#include "engines/fsdp2/pass.h"
#include "engines/movements.h"
#include "engines/park.h"

/* Beside the logits. */
static stw_torch_beside beside_logits(const stw_job *job, uint64_t tokens) {
    const stw_run_spec *run = job->run;
    const uint64_t wide = stw_dtype_bits(run->loss.upcast) / 8;
    const uint64_t each = stw_times(stw_times(tokens, job->model->vocab), wide);
    stw_torch_beside out = {0};
    if (run->batch.log_prob_method == STW_LOG_PROB_KERNEL) return out;
    if (run->loss.upcast != run->precision.compute) out.bytes[out.n++] = each;
    out.bytes[out.n++] = each;
    for (int i = 0; i < 2 && run->batch.log_prob_entropy; i++) out.bytes[out.n++] = each;
    return out;
}

static stw_extent alloc(stw_pass *p, stw_component component, uint64_t bytes) {
    return stw_alloc(p->b, component, STW_TIER_GPU, bytes);
}

/* @param hidden bytes of a block's input and output */
static void forward(stw_pass *p, uint64_t hidden, bool reshard) {
    const stw_model *model = p->b->job->model;
    const stw_work_style style = stw_work_style_eager(p->b->job);
    stw_work work;
    uint64_t most = 0; /* of a block; those of a group are alike */
    uint32_t from = stw_tensors_begin(p->b);
    stw_pass_gather_root(p);
    stw_torch_unshard_in_forward(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    if (p->n_chain > 0) stw_pass_gather(p, p->chain[0]);
    for (uint32_t i = 0; i < p->n_chain; i++) {
        const uint32_t block = p->chain[i];
        stw_pass_drop_root_gather(p);
        stw_pass_copy_out(p, block);
        if (i + 1 < p->n_chain) {
            stw_pass_drop_gather(p, block);
            stw_pass_gather(p, p->chain[i + 1]);
        }
        stw_torch_unshard_in_forward(p->torch, from, block);
        from = stw_tensors_begin(p->b);
        if (i == 0 || model->blocks[block].group != model->blocks[p->chain[i - 1]].group)
            most = stw_decoder_forward_bytes(p->b->job, block, p->b->program->pool);
        stw_extent widest = alloc(p, STW_COMPONENT_ACTIVATIONS, most - stw_min_u64(most, hidden));
        stw_torch_forward(p->torch, from, block);
        stw_block_forward_work(p->b->job, block, &style, &work);
        (void)stw_pass_compute(p, block, STW_OP_FORWARD, &work, STW_OP_NONE);
        stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, widest);
        from = stw_tensors_begin(p->b);
        if (reshard) {
            stw_pass_release(p, block);
            stw_torch_release(p->torch, from, block);
        }
        stw_torch_return(p->torch, stw_tensors_begin(p->b));
        from = stw_tensors_begin(p->b);
    }
}

/* The bytes of the tensors beside the logits, for a moment. */
static void claim(stw_pass *p, const stw_torch_beside *beside) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < beside->n; i++) bytes = stw_plus(bytes, beside->bytes[i]);
    stw_extent all = alloc(p, STW_COMPONENT_LOGITS, bytes);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, all);
}

/* The model's output, what is dropped when it is there, and what is made of it. */
static void log_probs(stw_pass *p, stw_extent hidden, bool reshard) {
    const stw_job *job = p->b->job;
    const stw_log_prob_method how = job->run->batch.log_prob_method;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t chunk =
        stw_min_u64(job->tokens, job->run->loss.chunk > 0 ? job->run->loss.chunk : STW_LOSS_CHUNK);
    const uint64_t tokens = how == STW_LOG_PROB_FUSED ? chunk : job->tokens;
    const uint64_t bytes = stw_times(stw_times(tokens, job->model->vocab), c);
    const stw_torch_beside none = {0},
                           all = beside_logits(job, how == STW_LOG_PROB_WHOLE ? tokens : chunk);
    const bool fused = how == STW_LOG_PROB_FUSED;
    uint32_t from = stw_tensors_begin(p->b);
    stw_extent normed = alloc(p, STW_COMPONENT_LOGITS, hidden.bytes);
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, hidden);
    stw_extent logits = alloc(p, STW_COMPONENT_LOGITS, bytes);
    const stw_work_style style = stw_work_style_eager(job);
    stw_work work;
    stw_head_forward_work(job, &style, (double)job->tokens, &work);
    (void)stw_pass_compute(p, p->root, STW_OP_LOSS, &work, STW_OP_NONE);
    claim(p, fused ? &all : &none);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, normed);
    stw_torch_logits(p->torch, from, bytes, fused ? &all : &none);
    from = stw_tensors_begin(p->b);
    if (reshard && stw_pass_has_root(p)) stw_pass_release(p, p->root);
    if (reshard) stw_torch_release(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    stw_pass_drop_root_gather(p);
    if (p->n_chain > 0) stw_pass_drop_gather(p, p->chain[p->n_chain - 1]);
    stw_torch_end_forward(p->torch, from);
    from = stw_tensors_begin(p->b);
    claim(p, fused ? &none : &all);
    stw_free(p->b, STW_COMPONENT_LOGITS, STW_TIER_GPU, logits);
    stw_torch_log_prob(p->torch, from, fused ? &none : &all);
}

/* Parked parameters come back for the whole phase. */
static void bring_params(stw_builder *b, bool back, uint64_t passes) {
    const uint32_t from = b->program->n_ops;
    if (b->park == NULL) return;
    if (back)
        stw_park_return(b, b->park, STW_PARKED_PARAMS, true);
    else
        stw_park_leave(b, b->park, STW_PARKED_PARAMS, STW_OP_NONE);
    for (uint32_t i = from; i < b->program->n_ops; i++)
        if (stw_op_is(&b->program->ops[i], STW_OP_CLASS_MOVE))
            b->program->ops[i].once_in = (uint32_t)passes;
}

static void build(stw_builder *b, uint64_t passes) {
    const bool reshard = stw_fsdp_settings_of(b->job->run).reshard_after_forward;
    stw_pass p = {.b = b, .n = b->job->model->n_blocks, .worked = STW_OP_NONE};
    if (!stw_pass_begin(&p)) return;
    stw_begin_movement(
        b, (stw_movement){.phase = STW_PHASE_LOG_PROB, .repeat = STW_REPEAT_EVERY_ITERATION});
    bring_params(b, true, passes);
    p.torch = stw_torch_begin(b, p.acts, true);
    if (!reshard) p.gathered_once_in = (uint32_t)passes;
    stw_pass_alloc_side(&p);
    uint32_t from = stw_tensors_begin(b);
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(b->job));
    stw_torch_workspace(b, from);
    stw_extent hidden = alloc(&p, STW_COMPONENT_ACTIVATIONS,
                              stw_times(stw_times(b->job->tokens, b->job->model->hidden),
                                        stw_dtype_bits(b->job->run->precision.compute) / 8));
    forward(&p, hidden.bytes, reshard);
    log_probs(&p, hidden, reshard);
    for (uint32_t i = 0; i < p.n && !reshard; i++) {
        from = stw_tensors_begin(b);
        stw_pass_release(&p, i);
        stw_torch_release(p.torch, from, stw_pass_in_root(&p, i) ? STW_TORCH_ROOT : i);
    }
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_pass_free_side(&p);
    bring_params(b, false, passes);
    stw_end_movement(b);
}

void stw_build_log_prob(stw_builder *b) {
    const stw_job *job = b->job;
    const uint64_t tokens = stw_job_log_prob_tokens(job);
    if (b->status != STW_STATUS_OK || tokens == 0 || !job->model->facts_known) return;
    stw_run_spec run = *job->run;
    stw_job other = *job; /* the same one with other micro batches */
    run.batch.micro_batch = run.batch.log_prob_micro_batch;
    other.run = &run;
    other.tokens = tokens;
    b->job = &other;
    build(b, stw_job_passes(job, STW_PHASE_LOG_PROB));
    b->job = job;
}
