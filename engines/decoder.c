/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/decoder.h"

#include <string.h>

#include "blocks/block_tensors.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/head_chunks.h"

enum { COMPUTE = 0 }; /* the stream */

static uint64_t bytes_of(stw_dtype dtype) { return stw_dtype_bits(dtype) / 8; }

static uint32_t drop(stw_decoder *d, uint32_t tensor) {
    stw_tensor_drop(d->b, tensor);
    return STW_NO_TENSOR;
}

static uint32_t take(stw_decoder *d, uint64_t bytes) {
    return stw_tensor_take(d->b, COMPUTE, bytes);
}

static bool is_transformer(const stw_decoder *d, uint32_t block) {
    return d->job->model->groups[d->job->model->blocks[block].group].facts.transformer;
}

/* Is it one of the vision tower's? */
static bool sees(const stw_decoder *d, uint32_t block) {
    return d->job->model->groups[d->job->model->blocks[block].group].facts.vision;
}

static bool is_in_group(const stw_decoder *d, uint32_t tensor, const char *group) {
    const stw_model *model = d->job->model;
    const uint32_t block = model->tensors[tensor].block;
    return strcmp(model->groups[model->blocks[block].group].name, group) == 0;
}

/* ---- what is known ---- */

static bool has_experts(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts > 0) return true;
    return false;
}

/* Are they, whatever is decided about activations? */
static bool job_is_known(const stw_job *job) {
    const stw_run_spec *run = job->run;
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.transformer && !stw_group_is_known(job, g)) return false;
    return stw_job_tp(job) == 1 && job->model->facts_known &&
           (run->trainable.lora_rank == 0 || !has_experts(job->model)) &&
           run->trainable.freeze.n == 0 && !run->loss.fused && !job->model->soft_capped &&
           stw_tower_is_known(job);
}

bool stw_decoder_is_known(const stw_job *job, const stw_decisions *decisions) {
    for (uint32_t i = 0; i < decisions->n_blocks; i++)
        if (decisions->blocks[i].act == STW_ACT_OFFLOAD && decisions->blocks[i].count > 0)
            return false;
    return job_is_known(job);
}

stw_margins stw_decoder_margins(const stw_job *job, stw_margins margins) {
    const bool known = job_is_known(job);
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        const stw_block_facts *f = &job->model->groups[g].facts;
        const bool sees = f->transformer && f->vision && job->run->batch.image_tokens > 0;
        const bool is_low = sees && job->run->recompute.granularity != 1;
        if (!(f->kv_rank > 0 && !known) && !(is_low && !stw_group_is_known(job, g))) continue;
        margins.gpu = 0.034;
        margins.reserved = 0.110;
    }
    return margins;
}

/* ---- begin ---- */

/* What a block calls, and room for what it keeps. */
static bool add_calls(stw_decoder *d, uint32_t block) {
    stw_pool *pool = d->b->program->pool;
    const uint32_t n = d->job->model->blocks[block].n_tensors;
    stw_calls **calls = &d->calls[2 * d->job->model->blocks[block].group];
    for (int constant = 0; constant < 2; constant++) {
        if (calls[constant] != NULL) continue;
        calls[constant] = stw_pool_alloc(pool, sizeof *calls[constant]);
        if (calls[constant] == NULL) return false;
        stw_calls_of_block(d->job, block, constant == 1, calls[constant]);
    }
    d->tensors[block] = stw_pool_array(pool, n, sizeof(uint32_t));
    if (d->tensors[block] == NULL) return false;
    stw_block_tensors(d->job->model, block, d->tensors[block]);
    return stw_kept_new(pool, calls[0], &d->kept[block]);
}

bool stw_decoder_begin(stw_decoder *d, stw_builder *b, const stw_act *acts, bool no_grad,
                       const stw_trace_hooks *hooks) {
    const stw_job *job = b->job;
    const stw_model *model = job->model;
    const uint32_t n = model->n_blocks, none = STW_NO_TENSOR;
    stw_pool *pool = b->program->pool;
    *d = (stw_decoder){.b = b, .job = job, .acts = acts, .hooks = hooks, .no_grad = no_grad};
    d->kept = stw_pool_array(pool, (size_t)n + 1, sizeof *d->kept);
    d->calls = stw_pool_array(pool, 2ull * model->n_groups, sizeof(stw_calls *));
    d->tensors = stw_pool_array(pool, n, sizeof(uint32_t *));
    d->grads = stw_pool_array(pool, model->n_tensors, sizeof *d->grads);
    bool made = d->kept != NULL && d->calls != NULL && d->tensors != NULL && d->grads != NULL;
    for (uint32_t i = 0; made && i < n; i++)
        if (is_transformer(d, i)) made = add_calls(d, i);
    if (made) d->norm_block = stw_calls_of_norm(job, &d->norm);
    made = made && stw_kept_new(pool, &d->norm, &d->kept[n]);
    bool again = false;
    for (uint32_t i = 0; made && i < n; i++)
        again = again || (sees(d, i) && acts[i] == STW_ACT_RECOMPUTE);
    made = made && stw_tower_begin(&d->tower, b, d->grads, hooks, no_grad, again);
    if (!made) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory for tensors");
        return false;
    }
    memset(d->grads, 0xff, model->n_tensors * sizeof *d->grads);
    d->normed = d->loss = d->narrow = d->hidden = d->grad = d->passed = d->embedded = none;
    d->leaf = d->tables[0] = d->tables[1] = d->mask = none;
    return true;
}

/* ---- blocks ---- */

static uint64_t hidden_bytes(const stw_decoder *d) {
    return stw_times(stw_times(d->job->tokens, bytes_of(d->job->run->precision.compute)),
                     d->job->model->hidden);
}

/* With adapters everything else is frozen. */
static bool embedding_is_frozen(const stw_decoder *d) {
    return d->job->run->trainable.lora_rank > 0;
}

/* Every pair of tokens (transformers, masking_utils.py, sliding_window_causal_mask). */
uint64_t stw_decoder_mask_bytes(const stw_job *job) {
    uint64_t most = 0;
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        most = stw_max_u64(most, stw_mask_bytes(job, &job->model->groups[g].facts, 1));
    return most;
}

static bool is_recomputed(const stw_decoder *d) {
    for (uint32_t i = 0; i < d->job->model->n_blocks; i++)
        if (is_transformer(d, i) && d->acts[i] == STW_ACT_RECOMPUTE) return true;
    return false;
}

static void drop_tables(stw_decoder *d) {
    for (int i = 0; i < 2; i++) d->tables[i] = drop(d, d->tables[i]);
    d->mask = drop(d, d->mask);
}

/* DeepseekV2RotaryEmbedding.forward: ones turned by angles, and their product with a factor. */
static void take_complex_table(stw_decoder *d, uint64_t elements) {
    uint32_t ones = take(d, stw_times(elements, 2)), turned = take(d, stw_times(elements, 4));
    drop(d, ones);
    d->tables[0] = take(d, stw_times(elements, 4));
    drop(d, turned);
}

/* The rotary tables (transformers, Qwen3RotaryEmbedding.forward) need the first product. */
static void rotary_tables(stw_decoder *d, uint64_t table, bool complex) {
    uint32_t angles = take(d, stw_times(table, 2)), wide[5];
    stw_torch_take_workspace(d->b, d->job, 0);
    if (complex) {
        take_complex_table(d, table);
        drop(d, angles);
        return;
    }
    for (int i = 0; i < 5; i++) { /* both halves; cosines, sines, and both scaled */
        wide[i] = take(d, stw_times(table, 4));
        if (i == 2 || i == 4) drop(d, wide[i - 1]);
    }
    for (int i = 0; i < 2; i++)
        d->tables[i] = take(d, stw_times(table, bytes_of(d->job->run->precision.compute)));
    drop(d, angles);
    for (int i = 0; i < 5; i += 2) drop(d, wide[i]);
}

/* With images every token has three positions, of which angles are mixed
 * (forward of Qwen3VLTextRotaryEmbedding): three times half a table of angles, cosines, sines, both
 * scaled; then sines and cosines of both halves. */
static void mixed_tables(stw_decoder *d, uint64_t table) {
    uint32_t angles = take(d, stw_times(table, 6)), scaled[2], both[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t plain = take(d, stw_times(table, 6));
        scaled[i] = take(d, stw_times(table, 6));
        drop(d, plain);
    }
    for (int i = 2; i-- > 0;) {
        both[i] = take(d, stw_times(table, 4));
        drop(d, scaled[i]);
    }
    for (int i = 0; i < 2; i++)
        d->tables[i] = take(d, stw_times(table, bytes_of(d->job->run->precision.compute)));
    drop(d, angles);
    for (int i = 0; i < 2; i++) drop(d, both[i]);
}

/* Of the decoder's first layer with softmax attention. */
static uint64_t rotary_dim(const stw_job *job, uint32_t block) {
    const stw_model *model = job->model;
    while (block + 1 < model->n_blocks &&
           model->groups[model->blocks[block].group].facts.q_heads == 0)
        block++;
    return stw_rotary_dim(job, block);
}

static void begin_layers(stw_decoder *d, uint32_t block) {
    const stw_job *job = d->job;
    const uint64_t dim = rotary_dim(job, block);
    const bool complex = job->model->groups[job->model->blocks[block].group].facts.complex_rotary;
    if (d->tower.runs) d->hidden = stw_tower_merge(&d->tower, d->hidden);
    if (d->hidden == STW_NO_TENSOR) d->hidden = take(d, hidden_bytes(d));
    d->embedded = d->hidden;
    d->first = block;
    d->mask = take(d, stw_decoder_mask_bytes(d->job));
    if (d->tower.runs)
        mixed_tables(d, stw_times(job->tokens, dim));
    else
        rotary_tables(d, stw_times(job->run->batch.seq_len, dim), complex);
}

void stw_decoder_begin_forward(stw_decoder *d) { stw_tower_begin_forward(&d->tower); }

void stw_decoder_begin_block(stw_decoder *d, uint32_t block) {
    d->at = block;
    if (stw_tower_has(&d->tower, block)) {
        const bool is_first = block == d->tower.first;
        if (is_first && d->hidden == STW_NO_TENSOR) d->hidden = take(d, hidden_bytes(d));
        if (is_first) d->hidden = stw_tower_embed(&d->tower, d->hidden);
        stw_tower_enter(&d->tower);
    } else if (d->tables[0] == STW_NO_TENSOR) {
        begin_layers(d, block);
    }
}

/* Has a block's input no gradient? */
static bool is_constant(const stw_decoder *d, uint32_t block) {
    return d->acts[block] == STW_ACT_KEEP && block == d->first && embedding_is_frozen(d);
}

static stw_trace trace_of(stw_decoder *d, uint32_t block) {
    const stw_block *blk = &d->job->model->blocks[block];
    return (stw_trace){.b = d->b,
                       .job = d->job,
                       .calls = d->calls[2 * blk->group + (is_constant(d, block) ? 1 : 0)],
                       .kept = &d->kept[block],
                       .first_tensor = blk->first_tensor,
                       .n_tensors = blk->n_tensors,
                       .tensors = d->tensors[block],
                       .grads = d->grads,
                       .hooks = d->hooks};
}

/* Of the norm after the last block; nothing is left of it for others to make. */
static stw_trace norm_trace(stw_decoder *d) {
    return (stw_trace){.b = d->b,
                       .job = d->job,
                       .calls = &d->norm,
                       .kept = &d->kept[d->job->model->n_blocks],
                       .first_tensor = d->job->model->blocks[d->norm_block].first_tensor,
                       .grads = d->grads,
                       .hooks = d->hooks};
}

/* A block of the tower saves its input, unless a merger has it. */
static void keep_patches(stw_decoder *d, uint32_t block) {
    if (d->no_grad)
        d->passed = d->hidden;
    else if (block == d->tower.first || !stw_tower_is_tapped(&d->tower, block - 1))
        d->kept[block].values[STW_VALUE_INPUT] = d->hidden;
}

/* Of a layer. Under a checkpoint its input is saved. */
static void keep_tokens(stw_decoder *d, uint32_t block, bool saves) {
    if (!saves && d->hidden != d->embedded) d->passed = d->hidden;
    if (saves) d->kept[block].values[STW_VALUE_INPUT] = d->hidden;
    if (saves && d->hidden == d->embedded) {
        /* enable_input_require_grads: checkpointing asks for it, or nothing would be recomputed */
        if (embedding_is_frozen(d)) d->leaf = d->hidden;
        if (embedding_is_frozen(d)) d->kept[block].values[STW_VALUE_INPUT] = STW_NO_TENSOR;
        d->embedded = STW_NO_TENSOR;
    }
}

void stw_decoder_forward(stw_decoder *d, uint32_t block) {
    if (d->hidden == STW_NO_TENSOR) d->hidden = take(d, hidden_bytes(d));
    if (!is_transformer(d, block)) return;
    stw_trace trace = trace_of(d, block);
    const bool keep = d->acts[block] == STW_ACT_KEEP && !d->no_grad;
    if (stw_tower_has(&d->tower, block))
        keep_patches(d, block);
    else
        keep_tokens(d, block, !keep && !d->no_grad);
    d->hidden = stw_trace_forward(&trace, keep ? STW_TRACE_KEEP : STW_TRACE_FORGET);
}

void stw_decoder_return(stw_decoder *d) {
    d->passed = drop(d, d->passed);
    stw_tower_leave(&d->tower);
    d->hidden = stw_tower_after(&d->tower, d->at, d->hidden);
}

uint64_t stw_decoder_forward_bytes(const stw_job *job, uint32_t block, stw_pool *pool) {
    const uint32_t group = job->model->blocks[block].group;
    stw_program program = {.pool = pool, .with_tensors = true, .n_movements = 1};
    stw_builder b = {.job = job, .program = &program};
    uint64_t live = 0, most = 0;
    if (!job->model->groups[group].facts.transformer) return 0;
    if (!stw_group_is_known(job, group))
        return stw_plus(stw_full_activation_bytes(job, group), stw_forward_work_bytes(job, group));
    stw_calls *calls = stw_pool_alloc(pool, sizeof *calls);
    stw_kept kept;
    if (calls == NULL) return 0;
    stw_calls_of_block(job, block, false, calls);
    if (!stw_kept_new(pool, calls, &kept)) return 0;
    stw_trace trace = {.b = &b, .job = job, .calls = calls, .kept = &kept};
    stw_tensors_instead(&b, 0);
    const uint64_t row = stw_times(bytes_of(job->run->precision.compute), job->model->hidden);
    const bool is_text = !job->model->groups[group].facts.vision;
    (void)stw_tensor_take(&b, COMPUTE, is_text ? stw_times(job->tokens, row) : calls->bytes[0]);
    (void)stw_trace_forward(&trace, STW_TRACE_FORGET);
    uint64_t *bytes = stw_pool_array(pool, (size_t)program.n_tensors + 1, sizeof *bytes);
    for (uint32_t i = 0; i < program.n_events && bytes != NULL; i++) {
        const stw_tensor_event *e = &program.events[i];
        if (e->change == STW_TENSOR_TAKE) {
            bytes[e->tensor] = e->bytes;
            live = stw_plus(live, e->bytes);
            most = stw_max_u64(most, live);
        } else if (e->change == STW_TENSOR_DROP) {
            live -= bytes[e->tensor];
        }
    }
    return most;
}

/* ---- gradients ---- */

static uint64_t grad_bytes(const stw_decoder *d, uint32_t tensor) {
    return stw_times(d->job->model->tensors[tensor].numel,
                     bytes_of(d->job->run->precision.compute));
}

static void take_grad(stw_decoder *d, uint32_t tensor) {
    if (d->grads[tensor] != STW_NO_TENSOR || !stw_job_trains(d->job, tensor)) return;
    stw_trace_grad(d->b, d->hooks, d->grads, tensor, grad_bytes(d, tensor));
}

static void take_grads(stw_decoder *d, const char *group) {
    for (uint32_t i = 0; i < d->job->model->n_tensors; i++)
        if (is_in_group(d, i, group)) take_grad(d, i);
}

void stw_decoder_begin_backward(stw_decoder *d, uint32_t block) {
    if (d->tower.runs && block == d->tower.last) drop_tables(d);
    if (is_transformer(d, block)) d->grad = stw_tower_before_backward(&d->tower, block, d->grad);
}

void stw_decoder_again(stw_decoder *d, uint32_t block) {
    if (!is_transformer(d, block) || d->acts[block] != STW_ACT_RECOMPUTE) return;
    stw_trace trace = trace_of(d, block);
    const bool in_tower = stw_tower_has(&d->tower, block);
    stw_trace_scale(&trace);
    if (in_tower) stw_tower_enter(&d->tower);
    (void)stw_trace_forward(&trace, STW_TRACE_AGAIN);
    if (in_tower) stw_tower_leave(&d->tower);
}

void stw_decoder_backward(stw_decoder *d, uint32_t block) {
    const stw_block *blk = &d->job->model->blocks[block];
    if (!is_transformer(d, block)) {
        for (uint32_t i = 0; i < blk->n_tensors; i++) take_grad(d, blk->first_tensor + i);
        return;
    }
    stw_trace trace = trace_of(d, block);
    d->grad = stw_trace_backward(&trace, d->grad, d->acts[block] == STW_ACT_RECOMPUTE);
}

/* The group with the head's weight. */
static const char *head_group(const stw_decoder *d) {
    return d->job->model->tied_embeddings ? "embed" : "head";
}

/* ---- the head and the loss ---- */

static uint64_t logits(const stw_decoder *d, uint64_t element_bytes) {
    return stw_times(stw_times(d->job->tokens, d->job->model->vocab), element_bytes);
}

static void take_and_drop(stw_decoder *d, const stw_torch_beside *beside) {
    uint32_t tensors[STW_TORCH_MOST_BESIDE];
    for (uint32_t i = 0; i < beside->n; i++) tensors[i] = take(d, beside->bytes[i]);
    for (uint32_t i = 0; i < beside->n; i++) drop(d, tensors[i]);
}

void stw_decoder_logits(stw_decoder *d, uint64_t bytes, const stw_torch_beside *beside) {
    stw_trace norm = norm_trace(d);
    d->normed = stw_trace_forward(&norm, STW_TRACE_FORGET);
    d->hidden = drop(d, d->hidden);
    d->embedded = drop(d, d->embedded);
    stw_tower_end_decoder(&d->tower);
    drop_tables(d);
    d->loss = take(d, bytes);
    take_and_drop(d, beside);
    d->normed = drop(d, d->normed);
}

void stw_decoder_log_prob(stw_decoder *d, const stw_torch_beside *beside) {
    take_and_drop(d, beside);
    d->loss = drop(d, d->loss);
}

/* ForCausalLMLoss: logits, their upcast, log-softmax. */
void stw_decoder_loss(stw_decoder *d) {
    const stw_run_spec *run = d->job->run;
    const uint64_t wide = bytes_of(run->loss.upcast);
    stw_trace norm = norm_trace(d);
    d->normed = stw_trace_forward(&norm, STW_TRACE_KEEP);
    d->hidden = drop(d, d->hidden);
    d->embedded = drop(d, d->embedded);
    stw_tower_end_decoder(&d->tower);
    if (run->loss.checkpoint) {
        stw_torch_chunks_forward(d->b, d->job);
        return;
    }
    d->narrow = take(d, logits(d, bytes_of(run->precision.compute)));
    uint32_t up = STW_NO_TENSOR;
    if (run->loss.upcast != run->precision.compute) up = take(d, logits(d, wide));
    d->loss = take(d, logits(d, wide));
    drop(d, up);
    if (embedding_is_frozen(d)) d->normed = drop(d, d->normed); /* the head is */
}

void stw_decoder_end_forward(stw_decoder *d) {
    d->narrow = drop(d, d->narrow);
    if (!is_recomputed(d)) d->mask = drop(d, d->mask);
    stw_tower_end_forward(&d->tower);
}

/* Of all tokens at once: the gradient of the hidden states. */
static uint32_t whole_loss_backward(stw_decoder *d) {
    const stw_run_spec *run = d->job->run;
    const uint64_t wide = bytes_of(run->loss.upcast);
    uint32_t likelihood = take(d, logits(d, wide)), softmax = take(d, logits(d, wide));
    drop(d, likelihood);
    d->loss = drop(d, d->loss);
    uint32_t narrow = softmax;
    if (run->loss.upcast != run->precision.compute) {
        narrow = take(d, logits(d, bytes_of(run->precision.compute)));
        drop(d, softmax);
    }
    take_grads(d, head_group(d));
    if (!embedding_is_frozen(d)) stw_torch_take_workspace(d->b, d->job, 1);
    uint32_t grad = take(d, hidden_bytes(d));
    if (embedding_is_frozen(d)) stw_torch_take_workspace(d->b, d->job, 1);
    drop(d, narrow);
    return grad;
}

void stw_decoder_head_backward(stw_decoder *d) {
    uint32_t *head = NULL;
    for (uint32_t i = d->job->model->n_tensors; i-- > 0;)
        if (is_in_group(d, i, head_group(d)) && stw_job_trains(d->job, i)) head = &d->grads[i];
    if (d->job->run->loss.checkpoint)
        d->grad = stw_torch_chunks_backward(d->b, d->job, head);
    else
        d->grad = whole_loss_backward(d);
    d->normed = drop(d, d->normed);
}

void stw_decoder_norm_backward(stw_decoder *d) {
    stw_trace norm = norm_trace(d);
    d->grad = stw_trace_backward(&norm, d->grad, false);
    take_grads(d, "norm");
}

/* ---- the embedding ---- */

/* One that waits is the head's. */
static void embedding_grad(stw_decoder *d, uint32_t tensor) {
    uint32_t waits = d->grads[tensor];
    stw_trace_grad(d->b, d->hooks, d->grads, tensor, grad_bytes(d, tensor));
    stw_torch_sum_embedding_rows(d->b, d->job->tokens, d->job->model->vocab, d->job->model->hidden);
    d->grad = drop(d, d->grad);
    if (waits == STW_NO_TENSOR || d->hooks != NULL) return;
    stw_torch_add_up(d->b, &waits, d->grads[tensor], !stw_sums_into_head(d->job),
                     grad_bytes(d, tensor));
    d->grads[tensor] = waits;
}

void stw_decoder_embedding_backward(stw_decoder *d) {
    drop_tables(d);
    if (d->tower.runs) d->grad = stw_tower_embed_backward(&d->tower, d->grad);
    if (embedding_is_frozen(d)) return;
    for (uint32_t i = 0; i < d->job->model->n_tensors; i++) {
        const bool is_made = d->grads[i] != STW_NO_TENSOR && !d->job->model->tied_embeddings;
        if (is_in_group(d, i, "embed") && !is_made) embedding_grad(d, i);
    }
    d->grad = drop(d, d->grad);
}

void stw_decoder_end_backward(stw_decoder *d) {
    d->grad = drop(d, d->grad);
    d->leaf = drop(d, d->leaf);
}
