/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks/adding.h"

#include <string.h>

#include "core/checked.h"
#include "plan/job/images.h"

stw_adding stw_add_begin(const stw_job *job, uint32_t block, stw_calls *out) {
    const stw_block *blk = &job->model->blocks[block];
    const stw_block_facts *f = &job->model->groups[blk->group].facts;
    stw_adding a = {.job = job, .block = blk, .facts = f, .tp = stw_job_tp(job), .out = out};
    a.element = stw_dtype_bits(job->run->precision.compute) / 8;
    a.rows = f->vision ? stw_job_patches(job) : job->tokens;
    a.own_rows = f->vision ? a.rows : stw_job_own_tokens(job);
    stw_calls_begin(out, stw_functions_eager,
                    stw_times(stw_times(a.own_rows, a.element), f->hidden));
    return a;
}

/* ---- weights ---- */

const stw_tensor *stw_adding_tensor(const stw_adding *a, uint32_t weight) {
    return &a->job->model->tensors[a->block->first_tensor + weight];
}

uint32_t stw_adding_weight(const stw_adding *a, stw_weight weight, bool last) {
    uint32_t found = STW_NO_WEIGHT;
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_weight_use use = stw_adding_tensor(a, t)->use;
        if (use.weight != weight || use.bias || use.adapter != STW_ADAPTER_NONE ||
            stw_adding_tensor(a, t)->expert || (found != STW_NO_WEIGHT && !last))
            continue;
        found = t;
    }
    return found;
}

uint32_t stw_adding_beside(const stw_adding *a, uint32_t weight, bool bias, stw_adapter adapter) {
    for (uint32_t t = 0; t < a->block->n_tensors && weight != STW_NO_WEIGHT; t++) {
        const stw_weight_use use = stw_adding_tensor(a, t)->use,
                             of = stw_adding_tensor(a, weight)->use;
        if (use.weight == of.weight && use.module == of.module && use.bias == bias &&
            use.adapter == adapter)
            return t;
    }
    return STW_NO_WEIGHT;
}

bool stw_adding_trains(const stw_adding *a, uint32_t weight) {
    return weight != STW_NO_WEIGHT && stw_job_trains(a->job, a->block->first_tensor + weight);
}

/* ---- calls ---- */

uint64_t stw_adding_column(const stw_adding *a, uint64_t width) {
    return stw_times(stw_times(a->rows, a->element), width);
}

stw_call *stw_add_call(stw_adding *a, stw_function_kind kind, uint8_t in, int n, int size) {
    stw_call *c = stw_calls_add(a->out, (uint8_t)kind, in, n, size, &a->bytes);
    c->part = a->out->values[c->out].part = (uint8_t)a->part;
    return c;
}

void stw_add_end(stw_adding *a, uint8_t value) { stw_calls_end_value(a->out, value); }

uint8_t stw_add_element(stw_adding *a, stw_function_kind kind, uint8_t in, uint8_t second,
                        uint64_t bytes) {
    stw_call *c = stw_add_call(a, kind, in, 1, STW_ELEMENTS_OUT);
    c->in[1] = second;
    a->bytes[STW_ELEMENTS_OUT] = bytes;
    return c->out;
}

uint8_t stw_add_norm(stw_adding *a, uint8_t in, uint64_t tokens, uint64_t width, uint64_t rows,
                     uint32_t weight) {
    const uint64_t elements = stw_times(tokens, width), c_bytes = a->element;
    const bool is_layer_norm =
        a->facts->vision && stw_adding_beside(a, weight, true, STW_ADAPTER_NONE) != STW_NO_WEIGHT;
    const stw_function_kind kind = is_layer_norm          ? STW_FUNCTION_LAYER_NORM
                                   : a->facts->wide_norms ? STW_FUNCTION_WIDE_NORM
                                                          : STW_FUNCTION_NORM;
    stw_call *c = stw_add_call(a, kind, in, 4, STW_NORM_NARROW);
    c->weight[0] = (uint16_t)weight;
    a->bytes[STW_NORM_WIDE] = stw_times(elements, 4);
    a->bytes[STW_NORM_NARROW] = stw_times(elements, c_bytes);
    a->bytes[STW_NORM_ROW] = stw_times(stw_times(tokens, rows), 4);
    if (rows == 1) a->bytes[STW_NORM_WEIGHT] = stw_times(width, 4);
    if (stw_adding_trains(a, weight)) c->conditions = STW_IF_TRAINED;
    return c->out;
}

uint8_t stw_add_product(stw_adding *a, uint8_t in, uint32_t weight, uint64_t width,
                        uint64_t inputs) {
    const uint32_t lora_a = stw_adding_beside(a, weight, false, STW_ADAPTER_A);
    const uint32_t bias = stw_adding_beside(a, weight, true, STW_ADAPTER_NONE);
    const bool adapted = lora_a != STW_NO_WEIGHT, trained = stw_adding_trains(a, weight);
    stw_call *c = stw_add_call(a, adapted ? STW_FUNCTION_ADAPTED_PRODUCT : STW_FUNCTION_PRODUCT, in,
                               3, STW_PRODUCT_OUT);
    c->weight[0] = (uint16_t)weight;
    c->weight[1] = (uint16_t)(adapted ? lora_a : bias);
    if (adapted) c->weight[2] = (uint16_t)stw_adding_beside(a, weight, false, STW_ADAPTER_B);
    a->bytes[STW_PRODUCT_OUT] = stw_adding_column(a, width);
    a->bytes[STW_PRODUCT_IN] = stw_adding_column(a, inputs);
    a->bytes[STW_PRODUCT_RANK] = stw_adding_column(a, a->job->run->trainable.lora_rank);
    if (trained) c->conditions |= STW_IF_TRAINED;
    if (trained && !adapted && stw_adding_trains(a, bias)) c->conditions |= STW_IF_BIASED;
    if (!trained && !adapted && (weight != STW_NO_WEIGHT || a->job->frozen != NULL))
        c->conditions |= STW_IF_UNREAD;
    return c->out;
}

void stw_add_part(stw_adding *a, int input) {
    a->out->list[a->out->n - 1].parts |= (uint8_t)(1u << input);
}

uint8_t stw_add_resized(stw_adding *a, stw_function_kind kind, uint8_t in, uint64_t bytes,
                        uint64_t in_bytes) {
    stw_call *c = stw_add_call(a, kind, in, 2, STW_ELEMENTS_OUT);
    a->bytes[STW_ELEMENTS_OUT] = bytes;
    a->bytes[STW_ELEMENTS_IN] = in_bytes;
    return c->out;
}

uint8_t stw_add_head_product(stw_adding *a, uint8_t in, uint32_t weight, uint64_t width,
                             uint64_t inputs) {
    const uint8_t out = stw_add_product(a, in, weight, width, inputs);
    a->out->list[a->out->n - 1].conditions |= STW_IF_HEADS;
    return out;
}

/* ---- attention ---- */

/* Patches see all of an image, and of a window. */
static uint64_t seen_rows(const stw_adding *a) {
    if (!a->facts->vision) return a->job->run->batch.seq_len;
    const uint64_t seen = stw_job_seen_patches(a->job), window = a->facts->window;
    return window > 0 ? stw_min_u64(seen, window) : seen;
}

/* transformers' sdpa_attention.py and masking_utils.py: a window that is shorter than the sequence
 * is a mask, of each sequence and all of its pairs of tokens; FlashAttention has windows. */
uint64_t stw_mask_bytes(const stw_job *job, const stw_block_facts *f, uint64_t element_bytes) {
    const uint64_t seen = job->run->batch.seq_len;
    if (f->vision || f->window == 0 || f->window >= seen ||
        job->run->attention != STW_ATTENTION_SDPA)
        return 0;
    return stw_times(stw_times(job->tokens, seen), element_bytes);
}

uint8_t stw_add_kernel(stw_adding *a, const uint8_t in[3], uint64_t q_heads, uint64_t kv_heads,
                       uint64_t v_dim) {
    const stw_block_facts *f = a->facts;
    const bool eager = a->job->run->attention == STW_ATTENTION_EAGER;
    const uint64_t mask = stw_mask_bytes(a->job, f, a->element);
    const stw_function_kind kind = eager      ? STW_FUNCTION_EAGER_ATTENTION
                                   : mask > 0 ? STW_FUNCTION_MASKED_ATTENTION
                                              : STW_FUNCTION_ATTENTION;
    stw_call *c = stw_add_call(
        a, kind, in[0], mask > 0 ? STW_N_MASKED_SIZES : STW_N_ATTENTION_SIZES, STW_ATTENTION_OUT);
    memcpy(c->in, in, sizeof c->in);
    if (eager) {
        const uint64_t scores = stw_times(seen_rows(a), q_heads);
        const uint64_t more = q_heads > kv_heads ? q_heads - kv_heads : 0;
        a->bytes[STW_EAGER_COPIES] =
            stw_adding_column(a, stw_times(more, stw_plus(f->qk_dim, v_dim)));
        a->bytes[STW_EAGER_CAPPED] = f->capped_scores ? stw_adding_column(a, scores) : 0;
        a->bytes[STW_EAGER_WIDE] = stw_times(stw_times(a->rows, 4), scores);
        a->bytes[STW_EAGER_CAST] = stw_adding_column(a, scores);
        a->bytes[STW_EAGER_OUT] = stw_adding_column(a, stw_times(q_heads, v_dim));
        return c->out;
    }
    stw_attention_shape shape = {a->rows, a->element, q_heads, kv_heads, f->qk_dim, v_dim};
    if (mask > 0) {
        shape.kv_heads = q_heads;
        stw_calls_attention_bytes(&shape, a->bytes);
        a->bytes[STW_ATTENTION_BIAS] = mask;
        a->bytes[STW_ATTENTION_ALL_K] = kv_heads < q_heads ? a->bytes[STW_ATTENTION_K] : 0;
        a->bytes[STW_ATTENTION_ALL_V] = kv_heads < q_heads ? a->bytes[STW_ATTENTION_V] : 0;
        a->bytes[STW_ATTENTION_K] = stw_adding_column(a, stw_times(kv_heads, f->qk_dim));
        a->bytes[STW_ATTENTION_V] = stw_adding_column(a, stw_times(kv_heads, v_dim));
        return c->out;
    }
    stw_calls_attention_bytes(&shape, a->bytes);
    return c->out;
}
