/* SPDX-License-Identifier: Apache-2.0 */
/* transformers 5.17, models/qwen3_vl/modeling_qwen3_vl.py: Qwen3VLVisionBlock and
 * Qwen3VLVisionPatchMerger; models/qwen3_5 has the same. Mergers of other towers differ in their
 * norm. */
#include "blocks/tower.h"

#include "blocks/adding.h"
#include "core/checked.h"
#include "plan/job/images.h"

/* A block's tensors: each weight is followed by its bias. */
enum { NORM_1, QKV = 2, PROJ = 4, NORM_2 = 6, FC_1 = 8, FC_2 = 10, N_TENSORS = 12 };

bool stw_tower_has_block(const stw_job *job, uint32_t group) {
    static const stw_weight order[] = {STW_WEIGHT_NORM, STW_WEIGHT_QKV, STW_WEIGHT_O,
                                       STW_WEIGHT_NORM, STW_WEIGHT_UP,  STW_WEIGHT_DOWN};
    const stw_model *model = job->model;
    const stw_block_facts *f = &model->groups[group].facts;
    uint32_t b = 0;
    if (!f->vision || !f->transformer || f->gated || f->window > 0) return false;
    while (b + 1 < model->n_blocks && model->blocks[b].group != group) b++;
    if (model->blocks[b].n_tensors != N_TENSORS) return false;
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        const stw_weight_use use = model->tensors[model->blocks[b].first_tensor + t].use;
        if (use.weight != order[t / 2] || use.bias != (t % 2 == 1)) return false;
    }
    return job->run->attention != STW_ATTENTION_EAGER &&
           stw_dtype_bits(job->run->precision.compute) == 16;
}

/* ---- calls ---- */

/* The weight of a call, and its bias, if it has one. */
static void weigh(const stw_adding *a, stw_call *c, uint32_t weight) {
    const bool biased =
        weight + 1 < a->block->n_tensors && stw_adding_tensor(a, weight + 1)->use.bias;
    const bool trained = stw_job_trains(a->job, a->block->first_tensor + weight);
    c->weight[0] = (uint16_t)weight;
    if (biased) c->weight[1] = (uint16_t)(weight + 1);
    if (trained) c->conditions |= STW_IF_TRAINED;
    if (biased && stw_job_trains(a->job, a->block->first_tensor + weight + 1))
        c->conditions |= STW_IF_BIASED;
}

/* A norm without a bias is RMSNorm. */
static uint8_t norm(stw_adding *a, uint8_t in, uint64_t elements, uint32_t weight) {
    const bool layer =
        weight + 1 < a->block->n_tensors && stw_adding_tensor(a, weight + 1)->use.bias;
    stw_call *c = stw_add_call(a, layer ? STW_FUNCTION_LAYER_NORM : STW_FUNCTION_NORM, in, 4,
                               STW_NORM_NARROW);
    weigh(a, c, weight);
    if (!layer) a->bytes[STW_NORM_WIDE] = stw_times(elements, 4);
    a->bytes[STW_NORM_NARROW] = stw_times(elements, a->element);
    a->bytes[STW_NORM_ROW] =
        stw_times(elements / stw_max_u64(stw_adding_tensor(a, weight)->numel, 1), 4);
    return c->out;
}

static uint8_t product(stw_adding *a, uint8_t in, uint32_t weight) {
    const uint64_t column = stw_times(a->rows, a->element);
    stw_call *c = stw_add_call(a, STW_FUNCTION_PRODUCT, in, 3, STW_PRODUCT_OUT);
    weigh(a, c, weight);
    if ((c->conditions & STW_IF_TRAINED) == 0) c->conditions |= STW_IF_UNREAD;
    a->bytes[STW_PRODUCT_OUT] = stw_times(column, stw_adding_tensor(a, weight)->shape[0]);
    a->bytes[STW_PRODUCT_IN] = stw_times(column, stw_adding_tensor(a, weight)->shape[1]);
    return c->out;
}

/* As large as its input. */
static uint8_t element(stw_adding *a, stw_function_kind kind, uint8_t in, uint8_t second) {
    return stw_add_element(a, kind, in, second, a->out->bytes[a->out->values[in].size]);
}

/* From the product of queries, keys and values on. Only the room that backward works in is that of
 * one image; torch has a tensor of each image in the place of every other one. Flash attention
 * takes all images at once. */
static uint8_t attention(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t width = stw_times(f->q_heads, f->qk_dim), rows = a->rows;
    const bool flash = a->job->run->attention == STW_ATTENTION_FLASH;
    stw_attention_shape image = {.rows = flash ? rows : stw_job_seen_patches(a->job),
                                 .element_bytes = a->element,
                                 .q_heads = f->q_heads,
                                 .kv_heads = f->kv_heads,
                                 .qk_dim = f->qk_dim,
                                 .v_dim = f->v_dim};
    uint64_t of_image[STW_N_ATTENTION_SIZES];
    stw_call *c = stw_add_call(a, flash ? STW_FUNCTION_VISION_FLASH : STW_FUNCTION_VISION_ATTENTION,
                               in, STW_N_VISION_SIZES, STW_VISION_NARROW);
    stw_calls_attention_bytes(&image, of_image);
    a->bytes[STW_VISION_NARROW] = stw_times(stw_times(rows, width), a->element);
    a->bytes[STW_VISION_ALL] = stw_times(a->bytes[STW_VISION_NARROW], 3);
    a->bytes[STW_VISION_WIDE] = stw_times(stw_times(rows, width), 4);
    a->bytes[STW_VISION_HALF] = a->bytes[STW_VISION_WIDE] / 2;
    if (a->job->engine->spec.casts_inputs)
        a->bytes[STW_VISION_TABLE] = stw_times(stw_times(rows, f->qk_dim), 4);
    a->bytes[STW_VISION_ROW] = stw_times(stw_times(rows, f->q_heads), 4);
    a->bytes[STW_VISION_WORK] = of_image[STW_ATTENTION_WORK];
    return c->out;
}

/* ---- lists ---- */

void stw_tower_calls_of_block(const stw_job *job, uint32_t block, bool constant, stw_calls *out) {
    stw_adding a = stw_add_begin(job, block, out);
    const uint64_t elements = stw_times(a.rows, a.facts->hidden);
    out->rows = a.rows;
    a.part = STW_PART_INPUTS;
    const uint8_t first = norm(&a, STW_VALUE_INPUT, elements, NORM_1);
    out->to_attention = first;
    a.part = STW_PART_ATTENTION;
    const uint8_t qkv = product(&a, first, QKV);
    out->list[out->n - 1].conditions |= STW_IF_HEADS;
    const uint8_t attended = attention(&a, qkv);
    const uint8_t projected = product(&a, attended, PROJ);
    stw_add_end(&a, qkv);
    stw_add_end(&a, attended);
    stw_add_end(&a, first);
    a.part = STW_PART_NORMS;
    const uint8_t residual = element(&a, STW_FUNCTION_SUM, STW_VALUE_INPUT, projected);
    stw_add_end(&a, projected);
    a.part = STW_PART_INPUTS;
    const uint8_t second = norm(&a, residual, elements, NORM_2);
    out->to_mlp = second;
    a.part = STW_PART_MLP;
    const uint8_t raised = product(&a, second, FC_1);
    const uint8_t inner = element(&a, STW_FUNCTION_ACTIVATION, raised, STW_NO_VALUE);
    stw_add_end(&a, raised);
    const uint8_t last = product(&a, inner, FC_2);
    stw_add_end(&a, inner);
    stw_add_end(&a, second);
    a.part = STW_PART_NORMS;
    out->out = element(&a, STW_FUNCTION_SUM, residual, last);
    stw_add_end(&a, last);
    stw_add_end(&a, residual);
    stw_calls_finish(out, constant);
}

/* The first matrix from a weight on; n_tensors: there is none. */
static uint32_t matrix_from(const stw_adding *a, uint32_t weight) {
    while (weight < a->block->n_tensors && stw_adding_tensor(a, weight)->rank < 2) weight++;
    return weight;
}

bool stw_tower_has_merger(const stw_job *job, uint32_t block) {
    const stw_block *blk = &job->model->blocks[block];
    const stw_adding a = {.job = job, .block = blk};
    const uint32_t first = matrix_from(&a, 0), second = matrix_from(&a, first + 1);
    const stw_block_facts *f = &job->model->groups[blk->group].facts;
    return f->vision && !f->transformer && first > 0 && second < blk->n_tensors &&
           stw_adding_tensor(&a, 0)->use.weight == STW_WEIGHT_NORM;
}

void stw_tower_calls_of_merger(const stw_job *job, uint32_t block, stw_calls *out) {
    stw_adding a = stw_add_begin(job, block, out);
    const uint64_t elements = stw_times(a.rows, a.facts->hidden);
    const uint32_t first = matrix_from(&a, 0), second = matrix_from(&a, first + 1);
    a.part = STW_PART_MLP;
    const uint8_t normed = norm(&a, STW_VALUE_INPUT, elements, 0);
    a.rows = out->rows = elements / stw_max_u64(stw_adding_tensor(&a, first)->shape[1], 1);
    const uint8_t raised = product(&a, normed, first);
    stw_add_end(&a, normed);
    const uint8_t inner = element(&a, STW_FUNCTION_ACTIVATION, raised, STW_NO_VALUE);
    stw_add_end(&a, raised);
    out->out = product(&a, inner, second);
    stw_add_end(&a, inner);
    stw_calls_finish(out, false);
}
