/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of calls, whatever functions they name. */
#include <string.h>

#include "blocks/calls.h"
#include "core/checked.h"

void stw_calls_begin(stw_calls *out, const stw_function *table, uint64_t input_bytes) {
    out->table = table;
    out->n = out->stop = out->n_ended = out->n_bytes = 0;
    out->n_values = STW_VALUE_INPUT + 1;
    out->bytes[out->n_bytes++] = input_bytes;
    out->values[STW_VALUE_INPUT] = (stw_value){.part = STW_PART_NORMS, .ends = STW_NO_VALUE};
}

stw_call *stw_calls_add(stw_calls *out, uint8_t function, uint8_t in, int n, int size,
                        uint64_t **bytes) {
    stw_call *c = &out->list[out->n++];
    *c = (stw_call){.function = function,
                    .in = {in, STW_NO_VALUE, STW_NO_VALUE},
                    .out = out->n_values++,
                    .sizes = out->n_bytes,
                    .weight = {STW_NO_WEIGHT, STW_NO_WEIGHT, STW_NO_WEIGHT}};
    out->values[c->out] =
        (stw_value){.size = (uint8_t)(c->sizes + size), .part = c->part, .ends = STW_NO_VALUE};
    *bytes = &out->bytes[out->n_bytes];
    memset(*bytes, 0, (size_t)n * sizeof **bytes);
    out->n_bytes = (uint8_t)(out->n_bytes + n);
    return c;
}

void stw_calls_end_value(stw_calls *out, uint8_t value) {
    if (out->values[value].ends == STW_NO_VALUE) out->ended[out->n_ended++] = value;
    out->values[value].ends = (uint8_t)(out->n - 1);
}

static void count_reads(stw_calls *out, const stw_call *c) {
    if ((c->conditions & STW_IF_IDLE) != 0) return;
    for (int k = 0; k < STW_MOST_INPUTS; k++)
        if ((stw_function_of(out, c)->reads >> k & 1u) != 0 && (c->conditions & STW_IF_UNREAD) == 0)
            out->values[c->in[k]].reads++;
    if (stw_function_of(out, c)->reads_out) out->values[c->out].reads++;
}

static bool may_stop(const stw_calls *calls, const stw_call *c) {
    const stw_call_step *s = stw_function_of(calls, c)->forward;
    while (s->act != STW_STEP_END && s->act != STW_STEP_STOP) s++;
    return s->act == STW_STEP_STOP;
}

void stw_calls_finish(stw_calls *out, bool constant) {
    out->values[STW_VALUE_INPUT].constant = constant;
    for (uint8_t i = 0; i < out->n; i++) {
        stw_call *c = &out->list[i];
        const stw_function *function = stw_function_of(out, c);
        bool all = true;
        for (int k = 0; k < STW_MOST_INPUTS; k++)
            if (c->in[k] != STW_NO_VALUE) all = all && out->values[c->in[k]].constant;
        if (all) c->conditions |= STW_IF_CONSTANT;
        if (all && (c->conditions & STW_IF_TRAINED) == 0 && !function->adapts)
            c->conditions |= STW_IF_IDLE;
        out->values[c->out].constant = (c->conditions & STW_IF_IDLE) != 0;
        if (may_stop(out, c)) out->stop = i;
        count_reads(out, c);
    }
}

void stw_calls_checkpoint(stw_calls *out, stw_part part) {
    stw_call_region r = {.first = out->n};
    for (uint8_t i = 0; i < out->n; i++) {
        if (out->list[i].part != part) continue;
        if (r.first == out->n) r.first = i;
        if (may_stop(out, &out->list[i])) r.stop = i;
        r.last = i;
    }
    if (r.first < out->n) out->regions[out->n_regions++] = r;
}

static uint64_t columns(const stw_attention_shape *s, uint64_t heads, uint64_t dim) {
    return stw_times(stw_times(s->rows, s->element_bytes), stw_times(heads, dim));
}

void stw_calls_attention_bytes(const stw_attention_shape *s, uint64_t *bytes) {
    const uint64_t row = stw_times(stw_times(s->rows, 4), s->q_heads);
    bytes[STW_ATTENTION_Q] = columns(s, s->q_heads, s->qk_dim);
    bytes[STW_ATTENTION_K] = columns(s, s->kv_heads, s->qk_dim);
    bytes[STW_ATTENTION_V] = columns(s, s->kv_heads, s->v_dim);
    bytes[STW_ATTENTION_OUT] = columns(s, s->q_heads, s->v_dim);
    bytes[STW_ATTENTION_ROW] = row;
    bytes[STW_ATTENTION_WORK] = stw_plus(row, stw_times(row, s->qk_dim));
    if (s->kv_heads != s->q_heads)
        bytes[STW_ATTENTION_WORK] =
            STW_SUM(bytes[STW_ATTENTION_WORK], bytes[STW_ATTENTION_Q], bytes[STW_ATTENTION_OUT]);
}

/* ---- what they save ---- */

/* Of one call, its output apart. */
static uint64_t saved_by(const stw_calls *calls, const stw_call *c) {
    const uint8_t holds = c->conditions | STW_IF_KEPT;
    uint8_t taken[STW_MOST_SLOTS] = {0}; /* size + 1 of what is there */
    uint64_t sum = 0;
    if ((holds & STW_IF_IDLE) != 0) return 0;
    for (const stw_call_step *s = stw_function_of(calls, c)->forward; s->act != STW_STEP_END; s++) {
        if ((holds & s->with) != s->with || (holds & s->without) != 0) continue;
        if (s->act == STW_STEP_TAKE) taken[s->slot] = (uint8_t)(s->size + 1);
        if (s->act == STW_STEP_DROP) taken[s->slot] = 0;
    }
    for (int i = STW_SLOT_OUT + 1; i < STW_MOST_SLOTS; i++)
        if (taken[i] > 0) sum = stw_plus(sum, calls->bytes[c->sizes + taken[i] - 1]);
    return sum;
}

void stw_calls_saved(const stw_calls *calls, uint64_t bytes[STW_N_PARTS]) {
    memset(bytes, 0, STW_N_PARTS * sizeof *bytes);
    for (uint32_t i = 0; i < calls->n; i++) {
        const stw_call *c = &calls->list[i];
        bytes[c->part] = stw_plus(bytes[c->part], saved_by(calls, c));
    }
    for (uint32_t v = 0; v < calls->n_values; v++) {
        const stw_value *value = &calls->values[v];
        if (value->reads > 0)
            bytes[value->part] = stw_plus(bytes[value->part], calls->bytes[value->size]);
    }
}
