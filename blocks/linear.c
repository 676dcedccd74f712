/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks/linear.h"

#include <string.h>

#include "core/checked.h"

/* The n-th weight of linear attention that is one of these. */
static uint32_t linear_weight(const stw_adding *a, stw_weight weight, uint32_t n) {
    for (uint32_t t = 0; t < a->block->n_tensors; t++) {
        const stw_weight_use use = stw_adding_tensor(a, t)->use;
        if (use.module == STW_MODULE_LINEAR_ATTENTION && use.weight == weight &&
            use.adapter == STW_ADAPTER_NONE && n-- == 0)
            return t;
    }
    return STW_NO_WEIGHT;
}

bool stw_add_is_linear(const stw_adding *a) {
    return a->facts->linear_v_heads > 0 &&
           linear_weight(a, STW_WEIGHT_LINEAR_IN, 1) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_CONVOLUTION, 0) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_LINEAR_STATE, 1) != STW_NO_WEIGHT &&
           linear_weight(a, STW_WEIGHT_NORM, 0) != STW_NO_WEIGHT;
}

static uint8_t linear_product(stw_adding *a, uint8_t in, uint32_t n) {
    const uint32_t weight = linear_weight(a, STW_WEIGHT_LINEAR_IN, n);
    return stw_add_product(a, in, weight, stw_adding_tensor(a, weight)->shape[0], a->facts->hidden);
}

/* A part of a product. */
static uint8_t part_of(stw_adding *a, uint8_t in, uint64_t width) {
    return stw_add_element(a, STW_FUNCTION_PART, in, STW_NO_VALUE, stw_adding_column(a, width));
}

/* What linear attention makes of its input. models/qwen3_5 has a product for each;
 * models/qwen3_next has two, whose parts are copied, in an order of its own. */
typedef struct linear_inputs {
    uint8_t mixed, gate, step, decay; /* query, key and value in one; the norm's gate */
} linear_inputs;

static bool has_products(const stw_adding *a) {
    return linear_weight(a, STW_WEIGHT_LINEAR_IN, 3) != STW_NO_WEIGHT;
}

static linear_inputs linear_in(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t value = stw_times(f->linear_v_heads, f->linear_v_dim);
    const uint8_t first = linear_product(a, in, 0), second = linear_product(a, in, 1);
    linear_inputs out = {first, second, in, in};
    if (has_products(a)) {
        out.step = linear_product(a, in, 2);
        out.decay = linear_product(a, in, 3);
        return out;
    }
    out.mixed = part_of(
        a, first, stw_plus(value, stw_times(2, stw_times(f->linear_k_heads, f->linear_k_dim))));
    out.gate = part_of(a, first, value);
    out.step = part_of(a, second, f->linear_v_heads);
    out.decay = part_of(a, second, f->linear_v_heads);
    stw_add_end(a, first);
    stw_add_end(a, second);
    return out;
}

static uint8_t convolution(stw_adding *a, uint8_t in) {
    const uint32_t weight = linear_weight(a, STW_WEIGHT_CONVOLUTION, 0);
    const stw_tensor *of = stw_adding_tensor(a, weight);
    const uint64_t channels = of->shape[0], kernel_size = of->numel / stw_max_u64(channels, 1);
    const uint64_t sequences = stw_div_up_u64(a->rows, stw_max_u64(a->job->run->batch.seq_len, 1));
    stw_call *c =
        stw_add_call(a, STW_FUNCTION_CONVOLUTION, in, STW_N_CONVOLUTION_SIZES, STW_CONVOLUTION_OUT);
    c->weight[0] = (uint16_t)weight;
    if (stw_adding_trains(a, weight)) c->conditions = STW_IF_TRAINED;
    a->bytes[STW_CONVOLUTION_OUT] = stw_adding_column(a, channels);
    a->bytes[STW_CONVOLUTION_PADDED] =
        stw_plus(stw_adding_column(a, channels),
                 stw_times(stw_times(sequences, kernel_size - 1), stw_times(channels, a->element)));
    return c->out;
}

/* Of query, key and value in one, and what decay and step width are made of. */
static uint8_t delta_rule(stw_adding *a, const uint8_t in[3]) {
    enum { CHUNK = 64 }; /* tokens: fla/ops/gated_delta_rule/chunk.py, chunk_size */
    const stw_block_facts *f = a->facts;
    const uint64_t heads = f->linear_v_heads, value = stw_times(heads, f->linear_v_dim);
    const uint32_t log = linear_weight(a, STW_WEIGHT_LINEAR_STATE, 0),
                   shift = linear_weight(a, STW_WEIGHT_LINEAR_STATE, 1);
    stw_call *c = stw_add_call(
        a, f->linear_k_heads < heads ? STW_FUNCTION_REPEATED_DELTA_RULE : STW_FUNCTION_DELTA_RULE,
        in[0], STW_N_RULE_SIZES, STW_RULE_VALUE);
    memcpy(c->in, in, sizeof c->in);
    c->weight[0] = (uint16_t)log;
    c->weight[1] = (uint16_t)shift;
    if (stw_adding_trains(a, log)) c->conditions |= STW_IF_TRAINED;
    if (stw_adding_trains(a, shift)) c->conditions |= STW_IF_BIASED;
    a->bytes[STW_RULE_QUERY] = stw_adding_column(a, stw_times(heads, f->linear_k_dim));
    a->bytes[STW_RULE_KEY] = stw_adding_column(a, stw_times(f->linear_k_heads, f->linear_k_dim));
    a->bytes[STW_RULE_VALUE] = stw_adding_column(a, value);
    a->bytes[STW_RULE_ROW] = stw_times(stw_times(a->rows, heads), 4);
    a->bytes[STW_RULE_STEP] = stw_adding_column(a, heads);
    a->bytes[STW_RULE_TRIANGLE] = stw_adding_column(a, stw_times(heads, CHUNK));
    a->bytes[STW_RULE_STATES] = stw_times(stw_div_up_u64(a->rows, CHUNK),
                                          stw_times(stw_times(value, f->linear_k_dim), a->element));
    a->bytes[STW_RULE_ALL] =
        stw_plus(stw_times(2, a->bytes[STW_RULE_KEY]), a->bytes[STW_RULE_VALUE]);
    return c->out;
}

static uint8_t gated_norm(stw_adding *a, uint8_t in, uint8_t gate) {
    const stw_block_facts *f = a->facts;
    const uint32_t weight = linear_weight(a, STW_WEIGHT_NORM, 0);
    const uint64_t width = stw_times(f->linear_v_heads, f->linear_v_dim);
    stw_call *c = stw_add_call(a, STW_FUNCTION_GATED_NORM, in, 4, STW_NORM_NARROW);
    c->in[1] = gate;
    c->weight[0] = (uint16_t)weight;
    if (stw_adding_trains(a, weight)) c->conditions = STW_IF_TRAINED;
    a->bytes[STW_NORM_WIDE] = stw_times(stw_times(a->rows, width), 4);
    a->bytes[STW_NORM_NARROW] = stw_adding_column(a, width);
    a->bytes[STW_NORM_ROW] = stw_times(stw_times(a->rows, f->linear_v_heads), 4);
    return c->out;
}

uint8_t stw_add_linear_attention(stw_adding *a, uint8_t in) {
    const stw_block_facts *f = a->facts;
    a->part = STW_PART_ATTENTION;
    const linear_inputs of = linear_in(a, in);
    const uint8_t convolved = convolution(a, of.mixed);
    stw_add_end(a, of.mixed);
    const uint8_t attended = delta_rule(a, (uint8_t[]){convolved, of.decay, of.step});
    const uint8_t normed = gated_norm(a, attended, of.gate);
    stw_add_end(a, attended);
    const uint8_t out = stw_add_product(a, normed, stw_adding_weight(a, STW_WEIGHT_O, false),
                                        f->hidden, stw_times(f->linear_v_heads, f->linear_v_dim));
    const uint8_t locals[] = {of.gate, of.step, of.decay, convolved, normed, in};
    for (size_t i = 0; i < sizeof locals; i++) stw_add_end(a, locals[i]);
    return out;
}
