/* SPDX-License-Identifier: Apache-2.0 */
/* transformers 5.17, models/qwen3_vl/modeling_qwen3_vl.py (models/qwen3_5 has the same without
 * deepstack): Qwen3VLVisionModel.forward, Qwen3VLModel.forward,
 * Qwen3VLTextModel._deepstack_process. FSDP casts what a unit's forward is given
 * (torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _pre_forward): pixels for the root, tables
 * of positions for every block. Positions are those of a learned grid, four for each patch,
 * interpolated in fp32. Its convolution may take a work area of cuDNN's choice in backward, which
 * is not counted. */
#include "engines/tower.h"

#include <string.h>

#include "blocks/tower.h"
#include "core/checked.h"
#include "engines/head_chunks.h"
#include "plan/job/images.h"

enum { COMPUTE = 0 }; /* the stream */
enum { CORNERS = 4 }; /* of the grid of positions around a patch */
enum { PATCH, PATCH_BIAS, POSITION, N_EMBED };

static uint32_t take(stw_tower *t, uint64_t bytes) { return stw_tensor_take(t->b, COMPUTE, bytes); }

static void drop(stw_tower *t, uint32_t *tensor) {
    stw_tensor_drop(t->b, *tensor);
    *tensor = STW_NO_TENSOR;
}

static uint32_t swap(uint32_t *tensor, uint32_t by) {
    const uint32_t old = *tensor;
    *tensor = by;
    return old;
}

/* ---- what is known ---- */

static const stw_block_facts *facts_of(const stw_job *job, uint32_t block) {
    return &job->model->groups[job->model->blocks[block].group].facts;
}

static bool is_embedding(const stw_job *job, uint32_t block) {
    const stw_block *blk = &job->model->blocks[block];
    const stw_tensor *of = &job->model->tensors[blk->first_tensor];
    return blk->n_tensors == N_EMBED && of[PATCH].rank == 5 && of[PATCH_BIAS].rank == 1 &&
           of[POSITION].use.weight == STW_WEIGHT_POSITION;
}

static bool is_tap(const stw_job *job, uint32_t block) {
    return facts_of(job, block)->tap_step > 0;
}

bool stw_tower_is_known(const stw_job *job) {
    const stw_run_spec *run = job->run;
    uint32_t embeddings = 0, mergers = 0;
    if (!stw_model_has_vision(job->model)) return true;
    if (run->batch.image_tokens == 0 || run->parallel.cp > 1 || run->trainable.lora_rank > 0)
        return false;
    for (uint32_t b = 0; b < job->model->n_blocks; b++) {
        const stw_block_facts *f = facts_of(job, b);
        if (!f->vision) continue;
        if (f->transformer && !stw_tower_has_block(job, job->model->blocks[b].group)) return false;
        if (f->transformer) continue;
        if (is_embedding(job, b))
            embeddings++;
        else if (!stw_tower_has_merger(job, b))
            return false;
        else if (!is_tap(job, b))
            mergers++;
    }
    return embeddings == 1 && mergers == 1;
}

/* ---- begin ---- */

static void find_blocks(stw_tower *t) {
    const uint32_t n = t->job->model->n_blocks;
    t->first = t->layer = n;
    for (uint32_t b = n; b-- > 0;) {
        const stw_block_facts *f = facts_of(t->job, b);
        if (f->vision && f->transformer) {
            if (t->first == n) t->last = b;
            t->first = b;
        } else if (f->transformer) {
            t->layer = b;
        } else if (f->vision && is_embedding(t->job, b)) {
            t->embed = b;
        } else if (f->vision && is_tap(t->job, b)) {
            t->taps = b;
            t->n_taps++;
        } else if (f->vision) {
            t->merger = b;
        }
    }
}

/* Mergers are modules outside blocks: their engine gathers them whole. */
static void no_module(void *owner, const stw_trace *trace, uint32_t call, bool backward) {
    (void)owner, (void)trace, (void)call, (void)backward;
}

bool stw_tower_begin(stw_tower *t, stw_builder *b, uint32_t *grads, const stw_trace_hooks *hooks,
                     bool no_grad, bool again) {
    stw_pool *pool = b->program->pool;
    const uint32_t none = STW_NO_TENSOR;
    *t = (stw_tower){.b = b, .job = b->job, .grads = grads, .no_grad = no_grad, .again = again};
    t->runs = stw_model_has_vision(b->job->model);
    t->is_hooked = hooks != NULL;
    if (t->is_hooked) t->hooks = (stw_trace_hooks){hooks->owner, no_module, no_module, hooks->grad};
    t->pixels = t->index = t->weights = t->positions = t->joined = t->text = t->before = none;
    for (int i = 0; i < 2; i++) t->tables[i] = t->casts[i] = none;
    if (!t->runs) return true;
    find_blocks(t);
    t->kept = stw_pool_array(pool, (size_t)t->n_taps + 1, sizeof *t->kept);
    t->features = stw_pool_array(pool, (size_t)t->n_taps + 1, sizeof *t->features);
    for (int i = 0; i < 2; i++) t->calls[i] = stw_pool_alloc(pool, sizeof *t->calls[i]);
    if (t->kept == NULL || t->features == NULL || t->calls[0] == NULL || t->calls[1] == NULL)
        return false;
    stw_tower_calls_of_merger(t->job, t->merger, t->calls[0]);
    if (t->n_taps > 0) stw_tower_calls_of_merger(t->job, t->taps, t->calls[1]);
    for (uint32_t i = 0; i <= t->n_taps; i++) {
        t->features[i] = none;
        if (!stw_kept_new(pool, t->calls[i < t->n_taps], &t->kept[i])) return false;
    }
    return true;
}

/* ---- sizes ---- */

static uint64_t compute_bytes(const stw_tower *t) {
    return stw_dtype_bits(t->job->run->precision.compute) / 8;
}

static uint64_t patch_bytes(const stw_tower *t, uint64_t columns) {
    return stw_times(stw_job_patches(t->job), columns);
}

static uint64_t width(const stw_tower *t) { return facts_of(t->job, t->first)->hidden; }

/* Elements of the decoder's hidden states, and of those that are images. */
static uint64_t text_elements(const stw_tower *t) {
    return stw_times(t->job->tokens, t->job->model->hidden);
}

static uint64_t image_elements(const stw_tower *t) {
    const uint64_t merged = stw_model_merged_patches(t->job->model);
    return stw_times(stw_job_patches(t->job) / stw_max_u64(merged, 1), t->job->model->hidden);
}

static uint32_t take_text(stw_tower *t) {
    return take(t, stw_times(text_elements(t), compute_bytes(t)));
}

static uint32_t take_images(stw_tower *t) {
    return take(t, stw_times(image_elements(t), compute_bytes(t)));
}

/* ---- mergers ---- */

/* The merger of deepstack that reads a block's output; n_taps: none. */
static uint32_t tap_of(const stw_tower *t, uint32_t block) {
    const stw_block_facts *f = facts_of(t->job, t->taps);
    for (uint32_t i = 0; i < t->n_taps; i++)
        if (block == t->first + f->tap_first + i * f->tap_step) return i;
    return t->n_taps;
}

bool stw_tower_is_tapped(const stw_tower *t, uint32_t block) {
    return stw_tower_has(t, block) && tap_of(t, block) < t->n_taps;
}

static const stw_trace_hooks *hooks_of(const stw_tower *t) {
    return t->is_hooked ? &t->hooks : NULL;
}

static stw_trace merger_trace(stw_tower *t, uint32_t i) {
    const uint32_t block = i < t->n_taps ? t->taps + i : t->merger;
    return (stw_trace){.b = t->b,
                       .job = t->job,
                       .calls = t->calls[i < t->n_taps],
                       .kept = &t->kept[i],
                       .first_tensor = t->job->model->blocks[block].first_tensor,
                       .grads = t->grads,
                       .hooks = hooks_of(t)};
}

static void merge(stw_tower *t, uint32_t i, uint32_t hidden) {
    stw_trace trace = merger_trace(t, i);
    if (!t->no_grad) t->kept[i].values[STW_VALUE_INPUT] = hidden;
    t->features[i] = stw_trace_forward(&trace, t->no_grad ? STW_TRACE_FORGET : STW_TRACE_KEEP);
}

/* ---- forward ---- */

void stw_tower_begin_forward(stw_tower *t) {
    const stw_block *blk = &t->job->model->blocks[t->embed];
    if (!t->runs) return;
    const stw_tensor *patch = &t->job->model->tensors[blk->first_tensor + PATCH];
    const uint64_t row = patch->numel / stw_max_u64(patch->shape[0], 1);
    t->pixels = take(t, patch_bytes(t, stw_times(row, compute_bytes(t))));
}

/* get_vision_interpolation_indices_and_weights, and their weighted sum. */
static uint32_t embed_patches(stw_tower *t) {
    const uint64_t w = width(t), c = compute_bytes(t);
    t->index = take(t, patch_bytes(t, CORNERS * 8));
    t->weights = take(t, patch_bytes(t, CORNERS * 4));
    uint32_t patches = take(t, patch_bytes(t, stw_times(w, c)));
    uint32_t corners = take(t, patch_bytes(t, stw_times(stw_times(CORNERS, w), c)));
    uint32_t weighted = take(t, patch_bytes(t, stw_times(stw_times(CORNERS, w), 4)));
    drop(t, &corners);
    t->positions = take(t, patch_bytes(t, stw_times(w, 4)));
    drop(t, &weighted);
    uint32_t narrow = take(t, patch_bytes(t, stw_times(w, c)));
    const uint32_t hidden = take(t, patch_bytes(t, stw_times(w, c)));
    drop(t, &narrow);
    drop(t, &patches);
    return hidden;
}

/* Qwen3VLVisionRotaryEmbedding.forward: angles of rows and columns; cosines, sines, both scaled;
 * then each twice over. */
static void rotary_tables(stw_tower *t) {
    const uint64_t table = patch_bytes(t, stw_times(facts_of(t->job, t->first)->qk_dim, 4));
    uint32_t at = take(t, patch_bytes(t, 2 * 4)), angles = take(t, table / 2), scaled[2];
    for (int i = 0; i < 2; i++) {
        uint32_t plain = take(t, table / 2);
        scaled[i] = take(t, table / 2);
        drop(t, &plain);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t both = take(t, table / 2);
        t->tables[i] = take(t, table);
        drop(t, &both);
        drop(t, &scaled[i]);
    }
    drop(t, &at);
    drop(t, &angles);
}

uint32_t stw_tower_embed(stw_tower *t, uint32_t text) {
    t->text = text;
    const uint32_t hidden = embed_patches(t);
    rotary_tables(t);
    stw_torch_take_workspace(t->b, t->job, 0);
    return hidden;
}

void stw_tower_enter(stw_tower *t) {
    const uint64_t table = stw_times(facts_of(t->job, t->first)->qk_dim, compute_bytes(t));
    if (!t->job->engine->spec.casts_inputs) return;
    for (int i = 0; i < 2; i++) t->casts[i] = take(t, patch_bytes(t, table));
}

void stw_tower_leave(stw_tower *t) {
    for (int i = 2; i-- > 0;) drop(t, &t->casts[i]);
}

/* A copy, into which the sums of its tokens of images go. */
static uint32_t add_features(stw_tower *t, uint32_t hidden) {
    const uint32_t out = take_text(t);
    uint32_t part = take_images(t), sum = take_images(t);
    drop(t, &part);
    drop(t, &sum);
    t->before = hidden;
    return out;
}

uint32_t stw_tower_after(stw_tower *t, uint32_t block, uint32_t hidden) {
    if (!t->runs) return hidden;
    drop(t, &t->before);
    if (stw_tower_is_tapped(t, block)) merge(t, tap_of(t, block), hidden);
    if (block >= t->layer && block < t->layer + t->n_taps) return add_features(t, hidden);
    return hidden;
}

/* masked_scatter counts the elements of its mask. */
uint32_t stw_tower_merge(stw_tower *t, uint32_t hidden) {
    merge(t, t->n_taps, hidden);
    if (t->no_grad) drop(t, &hidden);
    drop(t, &t->positions);
    for (int i = 2; i-- > 0 && !t->again;) drop(t, &t->tables[i]);
    if (t->no_grad) drop(t, &t->weights);
    if (t->no_grad) drop(t, &t->index);
    t->joined = take_images(t);
    const uint32_t out = take_text(t);
    uint32_t counts = take(t, stw_times(text_elements(t), 8)), mask = take(t, text_elements(t));
    drop(t, &mask);
    drop(t, &counts);
    drop(t, &t->text);
    return out;
}

void stw_tower_end_decoder(stw_tower *t) {
    if (!t->runs) return;
    drop(t, &t->before);
    drop(t, &t->features[t->n_taps]);
    drop(t, &t->joined);
    for (uint32_t i = t->n_taps; i-- > 0;) drop(t, &t->features[i]);
}

void stw_tower_end_forward(stw_tower *t) {
    if (!t->runs || !t->no_grad) return;
    drop(t, &t->pixels);
    for (int i = 2; i-- > 0;) drop(t, &t->tables[i]);
}

/* ---- backward ---- */

static uint32_t merge_backward(stw_tower *t, uint32_t i) {
    stw_trace trace = merger_trace(t, i);
    return stw_trace_backward(&trace, swap(&t->features[i], STW_NO_TENSOR), false);
}

/* index_put, the sum, index. */
static uint32_t add_features_backward(stw_tower *t, uint32_t i, uint32_t grad) {
    uint32_t zeros = take_images(t);
    const uint32_t out = take_text(t);
    drop(t, &zeros);
    t->features[i] = take_images(t);
    drop(t, &grad);
    uint32_t spread = take_text(t);
    drop(t, &spread);
    return out;
}

/* masked_fill; masked_select, with the three coordinates of each element; split. */
static void scatter_backward(stw_tower *t, uint32_t grad) {
    t->text = take_text(t);
    uint32_t mask = take(t, text_elements(t)), at = take(t, stw_times(image_elements(t), 3 * 8));
    drop(t, &mask);
    uint32_t selected = take_images(t);
    drop(t, &at);
    drop(t, &grad);
    t->features[t->n_taps] = take_images(t);
    drop(t, &selected);
}

uint32_t stw_tower_before_backward(stw_tower *t, uint32_t block, uint32_t grad) {
    if (!t->runs) return grad;
    if (block >= t->layer && block < t->layer + t->n_taps)
        return add_features_backward(t, block - t->layer, grad);
    if (block == t->last) {
        scatter_backward(t, grad);
        grad = merge_backward(t, t->n_taps);
    }
    if (stw_tower_is_tapped(t, block)) {
        uint32_t more = merge_backward(t, tap_of(t, block)); /* added in place */
        drop(t, &more);
    }
    return grad;
}

static void make_grad(stw_tower *t, uint32_t tensor) {
    const uint32_t of = t->job->model->blocks[t->embed].first_tensor + tensor;
    if (stw_job_trains(t->job, of))
        stw_trace_grad(t->b, hooks_of(t), t->grads, of,
                       stw_times(t->job->model->tensors[of].numel, compute_bytes(t)));
}

uint32_t stw_tower_embed_backward(stw_tower *t, uint32_t grad) {
    const stw_tensor *of = &t->job->model->tensors[t->job->model->blocks[t->embed].first_tensor];
    const uint64_t w = width(t), c = compute_bytes(t);
    for (int i = 2; i-- > 0;) drop(t, &t->tables[i]);
    uint32_t wide = take(t, patch_bytes(t, stw_times(w, 4)));
    uint32_t weighted = take(t, patch_bytes(t, stw_times(stw_times(CORNERS, w), 4)));
    uint32_t corners = take(t, patch_bytes(t, stw_times(stw_times(CORNERS, w), c)));
    drop(t, &weighted);
    drop(t, &wide);
    drop(t, &t->weights);
    make_grad(t, POSITION);
    stw_torch_sum_embedding_rows(t->b, patch_bytes(t, CORNERS), of[POSITION].shape[0], w);
    drop(t, &corners);
    drop(t, &t->index);
    make_grad(t, PATCH);
    make_grad(t, PATCH_BIAS);
    stw_trace_sum_rows(t->b, stw_job_patches(t->job), w);
    drop(t, &grad);
    drop(t, &t->pixels);
    return swap(&t->text, STW_NO_TENSOR);
}
