/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one micro batch as FSDP2 does them (torch/distributed/fsdp/_fully_shard;
 * what each line rests on is said in engines/bytes.c). The root group (embedding, final norm,
 * head) is gathered around forward's and backward's whole length; every other block is gathered one
 * block ahead for its forward and again for its backward; its gradients are reduced one block
 * behind. Activations of an offloaded block are copied to the host after its forward and fetched
 * before its backward, next to the computation of other blocks (stw_block_held_to).
 *
 * Memory is claimed and dropped on the compute stream: what works on it on another stream waits for
 * the claim, and the drop waits for that (stw_alloc). */
#include <string.h>

#include "core/checked.h"
#include "engines/fsdp2/pass.h"
#include "engines/movements.h"
#include "engines/park.h"
#include "engines/vision.h"
#include "plan/program/blocks.h"

static uint32_t group_of(const stw_pass *p, uint32_t block) {
    return p->b->job->model->blocks[block].group;
}

static void alloc_acts(stw_pass *p, uint32_t block) {
    stw_pass_block *s = &p->blocks[block];
    const stw_selective selective = stw_selective_of(p->b->job, group_of(p, block));
    uint64_t full = s->saves, mlp = s->mlp_saves;
    if (selective.is_used) {
        mlp = selective.saved[0];
        full = stw_plus(mlp, selective.saved[1]);
    }
    s->acts[0] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, mlp);
    s->acts[1] = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, full - mlp);
}

static void free_acts(stw_pass *p, uint32_t block, int part, uint32_t after) {
    stw_pass_drop(p, STW_COMPONENT_ACTIVATIONS, &p->blocks[block].acts[part], after);
}

/* The activations of an offloaded block on their way out or back, part by part. */
static void move_acts(stw_pass *p, uint32_t block, bool out, uint32_t after) {
    stw_pass_block *s = &p->blocks[block];
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

/* A sharded block is copied out of the all-gather's output, and its gradients into the input of
 * the reduce-scatter (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
 * split_with_sizes_copy and chunk_cat): every byte is read and written. */
static void add_copies(const stw_pass *p, uint32_t block, bool backward, stw_work *work) {
    const stw_job *job = p->b->job;
    if (job->group <= 1 || job->engine->spec.own_process || stw_job_in_root(job, block)) return;
    double bytes = 2.0 * (double)stw_unshard_bytes(job, block);
    if (backward)
        bytes +=
            (double)stw_plus(stw_unsharded_grad_bytes(job, block), stw_reduce_bytes(job, block));
    stw_work_traffic(work, bytes);
}

static void forward_block(stw_pass *p, uint32_t block) {
    stw_pass_block *s = &p->blocks[block];
    const stw_job *job = p->b->job;
    const uint64_t full = s->saves;
    uint32_t from = stw_tensors_begin(p->b);
    if (p->acts[block] == STW_ACT_RECOMPUTE)
        s->saved = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU,
                             stw_activation_bytes(job, group_of(p, block), STW_ACT_RECOMPUTE));
    else
        alloc_acts(p, block);
    stw_extent work = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU,
                                stw_forward_work_bytes(job, group_of(p, block)));
    stw_torch_forward(p->torch, from, block);
    stw_pass_exchange(p, block, STW_EXCHANGE_FORWARD);
    const stw_work_style style = stw_work_style_eager(job);
    stw_work list;
    stw_block_forward_work(job, block, &style, &list);
    add_copies(p, block, false, &list);
    uint32_t done = stw_pass_compute(p, block, STW_OP_FORWARD, &list, STW_OP_NONE);
    stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, work);
    if (p->acts[block] == STW_ACT_OFFLOAD && full > 0) {
        s->stash = stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, full);
        move_acts(p, block, true, done);
    }
    from = stw_tensors_begin(p->b);
    if (stw_fsdp_settings_of(job->run).reshard_after_forward) {
        stw_pass_reshard(p, block);
        stw_torch_release(p->torch, from, block);
    }
    stw_torch_return(p->torch, stw_tensors_begin(p->b));
}

/* The first block of the chain that may be held up to `at` (see stw_block_held_to). */
static uint32_t first_held(const stw_pass *p, uint32_t at) {
    uint32_t ahead = p->b->decisions->fetch_ahead > 0 ? p->b->decisions->fetch_ahead : 1;
    return at > ahead ? at - ahead : 0;
}

/* Activations go where block `at` of the chain has run. */
static void drop_offloaded(stw_pass *p, uint32_t at) {
    for (uint32_t i = first_held(p, at); i < at; i++) {
        stw_pass_block *s = &p->blocks[p->chain[i]];
        if (p->acts[p->chain[i]] != STW_ACT_OFFLOAD || s->held_to != at) continue;
        free_acts(p, p->chain[i], 0, s->stashed);
        free_acts(p, p->chain[i], 1, s->stashed);
    }
}

/* The last block's all-gather output is held until the loss is there. Gradients that a step still
 * needed go before a block is gathered, which is one thing; without sharding each of its modules
 * waits for its own, the last one when the block has all but run. */
/* What is saved beside blocks: by a vision tower's embedding and mergers, and for checkpoints. */
static uint64_t beside_blocks(const stw_pass *p) {
    bool again = false;
    for (uint32_t i = 0; i < p->n; i++) again = again || p->acts[i] == STW_ACT_RECOMPUTE;
    return stw_plus(stw_vision_saved_bytes(p->b->job),
                    again ? stw_decoder_mask_bytes(p->b->job) : 0);
}

static void forward(stw_pass *p) {
    const uint32_t next = p->b->job->group > 1 ? 1 : 0;
    stw_pass_drop_held_root(p, false);
    if (next > 0) stw_pass_drop_held(p, 0);
    uint32_t from = stw_tensors_begin(p->b);
    p->beside = stw_alloc(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, beside_blocks(p));
    stw_pass_gather_root(p);
    stw_torch_unshard_in_forward(p->torch, from, STW_TORCH_ROOT);
    stw_pass_exchange_embedding(p, STW_EXCHANGE_FORWARD);
    from = stw_tensors_begin(p->b);
    if (p->n_chain > 0) stw_pass_gather(p, p->chain[0]);
    for (uint32_t i = 0; i < p->n_chain; i++) {
        stw_pass_drop_root_gather(p);
        stw_pass_copy_out(p, p->chain[i]);
        if (i + 1 < p->n_chain) {
            stw_pass_drop_gather(p, p->chain[i]);
            stw_pass_gather(p, p->chain[i + 1]);
        }
        stw_torch_unshard_in_forward(p->torch, from, p->chain[i]);
        forward_block(p, p->chain[i]);
        drop_offloaded(p, i);
        stw_pass_drop_held(p, i + next);
        from = stw_tensors_begin(p->b);
    }
    drop_offloaded(p, p->n_chain);
    stw_pass_drop_held_root(p, true);
}

/* Before the backward of block `at` of the chain, or the loss: what backward needs next. */
static void prepare_backward(stw_pass *p, uint32_t at) {
    uint32_t from = stw_tensors_begin(p->b);
    if (at > 0 && stw_pass_is_released(p, p->chain[at - 1])) {
        stw_pass_gather(p, p->chain[at - 1]);
        stw_torch_gather(p->torch, from, p->chain[at - 1]);
    }
    for (uint32_t i = at, first = first_held(p, at); i-- > first;) {
        uint32_t block = p->chain[i];
        stw_pass_block *s = &p->blocks[block];
        if (p->acts[block] != STW_ACT_OFFLOAD || s->held_to != at) continue;
        uint32_t stashed = s->stashed;
        alloc_acts(p, block);
        move_acts(p, block, false, stashed);
    }
}

/* Inside the MLP, then inside the attention: see stw_block_backward_bytes. */
static uint32_t block_work(stw_pass *p, uint32_t block, const stw_work *work) {
    stw_pass_block *s = &p->blocks[block];
    stw_builder *b = p->b;
    stw_backward_bytes need = stw_block_backward_bytes(b->job, block);
    uint32_t fetched = s->stash.bytes > 0 ? s->stashed : STW_OP_NONE;
    const stw_selective part = stw_selective_of(b->job, group_of(p, block));
    stw_extent again[2] = {
        stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, part.again[0]),
        stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, part.at_once ? part.again[1] : 0)};
    stw_extent more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.mlp_acts);
    s->grads[0] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.mlp_grads);
    if (p->acts[block] == STW_ACT_RECOMPUTE || (part.is_used && part.at_once))
        stw_pass_exchange(p, block, STW_EXCHANGE_AGAIN);
    stw_pass_exchange(p, block, STW_EXCHANGE_BACKWARD);
    uint32_t done = stw_pass_compute(p, block, STW_OP_BACKWARD, work, fetched);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 0, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, again[0]);
    if (!part.at_once)
        again[1] = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, part.again[1]);
    more = stw_alloc(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, need.attention_acts);
    s->grads[1] = stw_alloc(b, STW_COMPONENT_GRADS, STW_TIER_GPU, need.grads - need.mlp_grads);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, more);
    free_acts(p, block, 1, STW_OP_NONE);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, again[1]);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, s->saved);
    stw_free(b, STW_COMPONENT_ACTIVATIONS, STW_TIER_HOST, s->stash);
    return done;
}

/* Work of a block's backward, with what is recomputed for it. */
static void backward_work(const stw_pass *p, uint32_t block, stw_work *out) {
    const stw_job *job = p->b->job;
    const stw_work_style style = stw_work_style_eager(job);
    const stw_block_parts parts = stw_selective_parts(job, group_of(p, block));
    stw_block_backward_work(job, block, &style, out);
    stw_block_append_parts_work(job, group_of(p, block), &style, &parts, out);
    add_copies(p, block, true, out);
    if (p->acts[block] != STW_ACT_RECOMPUTE || !stw_block_saves(job, block)) return;
    stw_block_append_forward_work(job, block, &style, out);
}

static void backward_block(stw_pass *p, uint32_t at, uint32_t behind) {
    uint32_t block = p->chain[at];
    stw_work work;
    uint32_t from = stw_tensors_begin(p->b);
    if (p->blocks[block].unshard.bytes == 0) stw_pass_copy_out(p, block);
    stw_pass_drop_gather(p, block);
    stw_torch_copy_out(p->torch, from, block);
    prepare_backward(p, at);
    from = stw_tensors_begin(p->b);
    if (p->acts[block] == STW_ACT_RECOMPUTE) alloc_acts(p, block);
    backward_work(p, block, &work);
    uint32_t done = block_work(p, block, &work);
    stw_torch_backward(p->torch, from, block);
    if (stw_reduced_last(p->b->job, block)) return;
    stw_torch_accumulate(p->torch, stw_tensors_begin(p->b), block);
    from = stw_tensors_begin(p->b);
    if (p->stays == 0) stw_pass_release(p, block);
    stw_torch_release(p->torch, from, block);
    from = stw_tensors_begin(p->b);
    stw_pass_drop_reduced(p, behind);
    stw_pass_reduce(p, block, done);
    stw_torch_reduce(p->torch, from, block);
}

/* Does one rank alone send gradients to the host? */
static bool sends_alone(const stw_pass *p) {
    bool sends = false;
    for (uint32_t i = 0; i < p->n; i++) sends = sends || p->blocks[i].host_grads > 0;
    return sends && p->b->job->group == 1;
}

/* The block whose reduce-scatter input is left. With a group of one, what goes to the host has been
 * on its way for one block longer. */
static uint32_t backward(stw_pass *p) {
    uint32_t behind = UINT32_MAX, further = UINT32_MAX;
    const bool sends = sends_alone(p);
    for (uint32_t i = p->n_chain; i-- > 0;) {
        backward_block(p, i, sends ? further : behind);
        if (stw_reduced_last(p->b->job, p->chain[i])) continue;
        further = behind;
        behind = p->chain[i];
    }
    if (sends) stw_pass_drop_reduced(p, further);
    return behind;
}

static void root_grads(stw_pass *p, bool embedding) {
    const stw_model *model = p->b->job->model;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!stw_pass_in_root(p, i)) continue;
        bool is_embedding = strcmp(model->groups[group_of(p, i)].name, "embed") == 0;
        if ((is_embedding && !model->tied_embeddings) == embedding)
            p->blocks[i].grads[0] = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU,
                                              stw_unsharded_grad_bytes(p->b->job, i));
    }
}

/* Chunks after the first one make a gradient of the head's weight beside their sum: the first sum
 * is a new tensor, since what it is added to is a view (torch/csrc/autograd/input_buffer.cpp). */
static void add_chunks(stw_pass *p) {
    const uint64_t bytes = stw_head_grad_bytes(p->b->job);
    if (!stw_loss_is_cut(p->b->job)) return;
    stw_extent own = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
    stw_extent sum = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, own);
    stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, sum);
}

/* The head's and the loss's backward, with what a checkpoint makes again. */
static void loss_backward_work(const stw_job *job, stw_work *out) {
    const stw_work_style style = stw_work_style_eager(job);
    stw_work again;
    stw_head_backward_work(job, &style, (double)job->tokens, stw_head_backward_share(job), out);
    if (!job->run->loss.checkpoint) return;
    stw_head_forward_work(job, &style, (double)job->tokens, &again);
    stw_work_add(out, &again, 1);
}

/* Bytes of logits beside those that are kept. Where tensors are not told one by one, torch's
 * allocator sees none that is larger than the largest of them. */
typedef struct beside {
    stw_extent parts[4];
} beside;

static beside alloc_beside(stw_builder *b, uint64_t bytes) {
    beside out = {{STW_NO_EXTENT, STW_NO_EXTENT, STW_NO_EXTENT, STW_NO_EXTENT}};
    uint64_t each = stw_job_tp(b->job) > 1 ? stw_logits_tensor_bytes(b->job) : bytes;
    for (int i = 0; i < 4; i++) {
        const uint64_t part = i < 3 ? stw_min_u64(bytes, each) : bytes;
        out.parts[i] = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, part);
        bytes -= part;
    }
    return out;
}

static void free_beside(stw_builder *b, const beside *more) {
    for (int i = 0; i < 4; i++) stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, more->parts[i]);
}

static void loss_and_head(stw_pass *p) {
    stw_builder *b = p->b;
    const stw_job *job = b->job;
    /* every chunk's part is added to the gradient of the head's weight */
    bool reshard = stw_fsdp_settings_of(job->run).reshard_after_forward,
         adds = job->run->loss.fused || stw_loss_is_cut(job);
    uint64_t saved = stw_logits_saved_bytes(job), most = stw_logits_backward_bytes(job);
    uint32_t from = stw_tensors_begin(b);
    stw_extent kept = stw_alloc(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, saved);
    beside more = alloc_beside(b, stw_logits_forward_bytes(job) - saved);
    const stw_work_style style = stw_work_style_eager(job);
    stw_work work;
    stw_pass_exchange_loss(p, STW_EXCHANGE_FORWARD);
    stw_head_forward_work(job, &style, (double)job->tokens, &work);
    uint32_t done = stw_pass_compute(p, p->root, STW_OP_LOSS, &work, STW_OP_NONE);
    free_beside(b, &more);
    stw_torch_loss(p->torch, from);
    from = stw_tensors_begin(b);
    if (reshard && stw_pass_has_root(p)) stw_pass_reshard(p, p->root);
    if (reshard) stw_torch_release(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(b);
    stw_pass_drop_root_gather(p);
    if (p->n_chain > 0) stw_pass_drop_gather(p, p->chain[p->n_chain - 1]);
    stw_torch_end_forward(p->torch, from);
    from = stw_tensors_begin(b);
    if (reshard) stw_pass_gather_root(p);
    stw_pass_drop_root_gather(p);
    if (reshard) stw_torch_gather(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(b);
    stw_torch_copy_out(p->torch, from, STW_TORCH_ROOT);
    prepare_backward(p, p->n_chain);
    from = stw_tensors_begin(b);
    if (adds) root_grads(p, false);
    more = alloc_beside(b, most - saved);
    loss_backward_work(job, &work);
    (void)stw_pass_compute(p, p->root, STW_OP_LOSS, &work, done);
    stw_pass_exchange_loss(p, STW_EXCHANGE_BACKWARD);
    free_beside(b, &more);
    add_chunks(p);
    stw_free(b, STW_COMPONENT_LOGITS, STW_TIER_GPU, kept);
    more = alloc_beside(b, stw_logits_grad_bytes(job));
    if (!adds) root_grads(p, false);
    free_beside(b, &more);
    stw_torch_loss_backward(p->torch, from);
}

/* The embedding's gradient; where the head's waits for it, their sum is made beside both, if the
 * head's is a view: neither a sum of chunks nor cast to another dtype. */
static void embedding_grads(stw_pass *p) {
    const stw_job *job = p->b->job;
    stw_pass_exchange_embedding(p, STW_EXCHANGE_BACKWARD);
    stw_extent rows =
        stw_alloc(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, stw_embedding_rows_bytes(job));
    root_grads(p, true);
    stw_free(p->b, STW_COMPONENT_ACTIVATIONS, STW_TIER_GPU, rows);
    if (!job->model->tied_embeddings) return;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!stw_pass_in_root(p, i) ||
            strcmp(job->model->groups[group_of(p, i)].name, "embed") != 0)
            continue;
        uint64_t bytes = stw_unsharded_grad_bytes(job, i);
        stw_extent waits = STW_NO_EXTENT;
        if (bytes == 0 && !job->engine->spec.own_process) { /* one rank: it is reduced later */
            bytes = stw_head_grad_bytes(job);
            waits = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
        }
        stw_extent own = stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, bytes);
        stw_extent sum =
            stw_alloc(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, stw_sums_into_head(job) ? 0 : bytes);
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, own);
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, sum);
        stw_free(p->b, STW_COMPONENT_GRADS, STW_TIER_GPU, waits);
    }
}

/* Groups whose input has no gradient are reduced when all else is done: the root, then a wrapped
 * embedding. A group's last gradient goes when its reduction has been issued. */
static void finish(stw_pass *p, uint32_t behind) {
    uint32_t from = stw_tensors_begin(p->b);
    stw_free(p->b, STW_COMPONENT_STAGE, STW_TIER_GPU, p->beside);
    embedding_grads(p);
    stw_torch_embedding_backward(p->torch, from);
    stw_torch_accumulate(p->torch, stw_tensors_begin(p->b), STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    if (stw_pass_has_root(p) && p->stays == 0) stw_pass_release(p, p->root);
    stw_torch_release(p->torch, from, STW_TORCH_ROOT);
    from = stw_tensors_begin(p->b);
    stw_pass_drop_reduced(p, behind);
    if (stw_pass_has_root(p)) stw_pass_reduce(p, p->root, p->worked);
    stw_torch_reduce(p->torch, from, STW_TORCH_ROOT);
    for (uint32_t i = 0; i < p->n; i++) {
        if (!stw_reduced_last(p->b->job, i)) continue;
        stw_torch_accumulate(p->torch, stw_tensors_begin(p->b), i);
        from = stw_tensors_begin(p->b);
        if (p->stays == 0) stw_pass_release(p, i);
        stw_torch_release(p->torch, from, i);
        from = stw_tensors_begin(p->b);
        if (stw_pass_has_root(p)) stw_pass_drop_reduced(p, p->root);
        stw_pass_reduce(p, i, p->worked);
        stw_torch_reduce(p->torch, from, i);
    }
    from = stw_tensors_begin(p->b);
    stw_pass_end_reductions(p);
    stw_torch_end_backward(p->torch, from);
}

void stw_build_forward_backward(stw_builder *b, bool lazy_grads) {
    stw_pass p = {
        .b = b, .n = b->job->model->n_blocks, .worked = STW_OP_NONE, .lazy_grads = lazy_grads};
    const bool accumulates = b->job->run->batch.grad_accumulation > 1;
    if (b->status != STW_STATUS_OK || !stw_pass_begin(&p)) return;
    const uint64_t micro_batches = stw_torch_is_known(b) ? b->job->run->batch.grad_accumulation : 1;
    stw_begin_movement(b, (stw_movement){.phase = STW_PHASE_FORWARD_BACKWARD,
                                         .repeat = STW_REPEAT_EVERY_ITERATION,
                                         .micro_batches = (uint32_t)micro_batches});
    stw_park_before_forward(b);
    p.torch = stw_torch_begin(b, p.acts, false);
    stw_pass_alloc_side(&p);
    uint32_t from = stw_tensors_begin(b);
    stw_extent workspace =
        stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, stw_workspace_bytes(b->job));
    stw_torch_workspace(b, from);
    stw_pass_accumulate(&p);
    stw_pass_hold_grads(&p);
    if (accumulates && !stw_fsdp_settings_of(b->job->run).reshard_after_backward) {
        p.stays = (uint32_t)b->job->run->batch.grad_accumulation;
        stw_pass_hold_all(&p);
    }
    forward(&p);
    loss_and_head(&p);
    finish(&p, backward(&p));
    for (uint32_t i = 0; i < p.n && p.stays > 0; i++) stw_pass_release(&p, i);
    from = stw_tensors_begin(b);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, workspace);
    stw_torch_workspace(b, from);
    stw_pass_free_side(&p);
    stw_end_movement(b);
}
