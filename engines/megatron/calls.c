/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: acts.c, and functions.c for the order. */
#include "engines/megatron/calls.h"

#include "core/checked.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/deepep.h"
#include "engines/megatron/functions.h"
#include "engines/megatron/lora.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/moe.h"
#include "engines/megatron/params.h"

typedef struct adding {
    const stw_job *job;
    const stw_block_facts *facts;
    stw_calls *out;
    uint64_t element; /* bytes in the dtype of computation */
    uint64_t rows, own_rows;
    uint32_t tp;
    bool cuts_rows; /* sequence parallelism */
} adding;

static uint64_t bytes_of(const adding *a, uint64_t rows, uint64_t width) {
    return stw_times(stw_times(rows, width), a->element);
}

/* ---- what is known ---- */

static bool job_is_known(const stw_job *job) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    return !stw_megatron_te(job) && job->run->recompute.granularity != 2 &&
           job->run->attention != STW_ATTENTION_EAGER && !(s.hidden_dropout > 0) &&
           !(s.attention_dropout > 0) && !stw_megatron_has_lora(job->run) &&
           job->run->moe.dispatcher == 0 && job->run->parallel.etp == 1 &&
           !(job->run->moe.capacity_factor > 0);
}

bool stw_local_is_known(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    return job_is_known(job) && f->transformer && !f->vision && !f->decoder && f->q_heads > 0 &&
           f->kv_rank == 0 && f->linear_v_heads == 0 && !stw_megatron_uses_deepep(job) &&
           !stw_megatron_has_output_gate(job, group) &&
           (f->experts == 0 || f->experts > job->run->parallel.ep);
}

/* ---- calls ---- */

static uint8_t call(adding *a, stw_local_function function, uint8_t in, uint64_t out_bytes,
                    uint64_t in_bytes, uint64_t more_bytes) {
    uint64_t *bytes;
    const stw_call *c = stw_calls_add(a->out, (uint8_t)function, in, 4, STW_LOCAL_OUT, &bytes);
    bytes[STW_LOCAL_OUT] = out_bytes;
    bytes[STW_LOCAL_IN] = in_bytes;
    bytes[STW_LOCAL_OWN] = more_bytes;
    return c->out;
}

/* The next call's input is a part of the value. */
static void part(adding *a) { a->out->list[a->out->n - 1].parts = 1; }

static void ends(adding *a, uint8_t value) { stw_calls_end_value(a->out, value); }

static uint8_t product(adding *a, stw_local_function function, uint8_t in, uint64_t width,
                       uint64_t inputs) {
    const uint64_t own = function == STW_LOCAL_GATHERED ? bytes_of(a, a->own_rows, inputs) : 0;
    const uint8_t out =
        call(a, function, in, bytes_of(a, a->rows, width), bytes_of(a, a->rows, inputs), own);
    a->out->bytes[a->out->list[a->out->n - 1].sizes + STW_LOCAL_WEIGHT] =
        bytes_of(a, width, inputs);
    return out;
}

/* A product that tensor parallelism cuts by columns, of the output of a norm. */
static uint8_t first_product(adding *a, uint8_t in, uint64_t width) {
    return product(a, a->cuts_rows ? STW_LOCAL_GATHERED : STW_LOCAL_PRODUCT, in, width,
                   a->facts->hidden);
}

/* One that it cuts by rows. */
static uint8_t second_product(adding *a, uint8_t in, uint64_t inputs) {
    const uint64_t hidden = a->facts->hidden;
    const uint8_t sums = product(a, STW_LOCAL_PRODUCT, in, hidden, inputs);
    ends(a, in);
    if (!a->cuts_rows) return sums;
    const uint8_t out = call(a, STW_LOCAL_SCATTER, sums, bytes_of(a, a->own_rows, hidden),
                             bytes_of(a, a->rows, hidden), 0);
    ends(a, sums);
    return out;
}

static uint8_t norm(adding *a, uint8_t in, uint64_t rows, uint64_t heads, uint64_t width) {
    return call(a, STW_LOCAL_NORM, in, bytes_of(a, stw_times(rows, heads), width),
                stw_times(stw_times(rows, heads), 4), 0);
}

static uint8_t sum(adding *a, uint8_t residual, uint8_t more) {
    const uint8_t out =
        call(a, STW_LOCAL_SUM, residual, bytes_of(a, a->own_rows, a->facts->hidden), 0, 0);
    a->out->list[a->out->n - 1].in[1] = more;
    ends(a, more);
    ends(a, residual);
    return out;
}

/* ---- attention ---- */

/* Queries or keys on their way to core attention: a part of the mixed tensor, or tensors of their
 * own. */
static uint8_t heads(adding *a, uint32_t group, uint8_t mixed, uint64_t n, bool copies) {
    const uint64_t dim = a->facts->qk_dim, bytes = bytes_of(a, a->rows, stw_times(n, dim));
    const uint64_t table =
        bytes_of(a, stw_job_group_seq_len(a->job, group) / a->job->run->parallel.cp, dim);
    uint8_t at = mixed, before = mixed;
    if (copies) {
        at = call(a, STW_LOCAL_COPY, mixed, bytes, 0, 0);
        part(a);
    }
    if (stw_megatron_has_query_norm(a->job, group)) {
        before = at;
        at = norm(a, before, a->rows, n, dim);
        if (before == mixed) part(a);
        if (before != mixed) ends(a, before);
    }
    if (!stw_megatron_turns(a->job)) return at;
    before = at;
    at = call(a, STW_LOCAL_ROTARY, before, bytes, bytes / 2, table);
    if (before == mixed) part(a);
    if (before != mixed) ends(a, before);
    return at;
}

/* Queries are copied out of the mixed tensor where a rank has several groups of them. */
static uint8_t attention(adding *a, uint32_t group, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const uint64_t n_q = f->q_heads / a->tp, n_kv = f->kv_heads / a->tp;
    const uint64_t out_width = stw_times(n_q, f->v_dim);
    const uint8_t mixed = first_product(
        a, in, stw_plus(stw_times(n_q, f->qk_dim), stw_times(n_kv, stw_plus(f->qk_dim, f->v_dim))));
    const uint8_t q = heads(a, group, mixed, n_q, n_kv > 1),
                  k = heads(a, group, mixed, n_kv, false);
    uint64_t *bytes;
    stw_call *c = stw_calls_add(a->out, STW_LOCAL_ATTENTION, q, STW_ATTENTION_WORK + 1,
                                STW_ATTENTION_OUT, &bytes);
    const uint8_t attended = c->out;
    c->in[1] = k;
    c->in[2] = mixed;
    c->parts = (uint8_t)(4u | (q == mixed ? 1u : 0u) | (k == mixed ? 2u : 0u));
    stw_calls_attention_bytes(
        &(stw_attention_shape){a->rows, a->element, n_q, n_kv, f->qk_dim, f->v_dim}, bytes);
    const uint8_t out = second_product(a, attended, out_width);
    ends(a, q);
    ends(a, k);
    ends(a, mixed);
    ends(a, in);
    return out;
}

/* ---- MLP and experts ---- */

static uint8_t mlp(adding *a, uint8_t in, uint64_t width) {
    const uint64_t first = a->facts->gated ? stw_times(2, width) : width;
    const uint8_t raised = first_product(a, in, first);
    const uint8_t active = call(a, STW_LOCAL_ACTIVATION, raised, bytes_of(a, a->rows, width),
                                bytes_of(a, a->rows, first), 0);
    ends(a, raised);
    return second_product(a, active, width);
}

static uint8_t experts(adding *a, uint32_t group, uint8_t in) {
    const stw_block_facts *f = a->facts;
    const stw_megatron_moe moe = stw_megatron_moe_of(a->job, group);
    const uint64_t first = f->gated ? stw_times(2, f->expert_ffn) : f->expert_ffn;
    uint64_t *bytes;
    const stw_call *c =
        stw_calls_add(a->out, STW_LOCAL_EXPERTS, in, STW_LOCAL_MATRIX + 1, STW_LOCAL_OUT, &bytes);
    bytes[STW_LOCAL_OUT] = bytes_of(a, a->own_rows, f->hidden);
    bytes[STW_LOCAL_ROUTER] = moe.router;
    bytes[STW_LOCAL_SENT] = a->job->run->parallel.ep > 1 ? bytes_of(a, moe.sent, f->hidden) : 0;
    bytes[STW_LOCAL_ROWS] = bytes_of(a, moe.rows, f->hidden);
    bytes[STW_LOCAL_FIRST] = bytes_of(a, moe.rows, first);
    bytes[STW_LOCAL_ACTIVE] = bytes_of(a, moe.rows, f->expert_ffn);
    bytes[STW_LOCAL_MATRIX] = bytes_of(a, first, f->hidden);
    return c->out;
}

/* ---- layers ---- */

static adding begin(const stw_job *job, const stw_block_facts *f, uint64_t rows, stw_calls *out) {
    const stw_parallel *p = &job->run->parallel;
    adding a = {.job = job, .facts = f, .out = out, .rows = rows, .own_rows = rows, .tp = p->tp};
    a.element = stw_dtype_bits(job->run->precision.compute) / 8;
    a.cuts_rows = p->sequence_parallel && p->tp > 1;
    if (a.cuts_rows) a.own_rows = rows / p->tp;
    stw_calls_begin(out, stw_functions_local, bytes_of(&a, a.own_rows, f->hidden));
    return a;
}

void stw_local_calls(const stw_job *job, uint32_t group, stw_calls *out) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    adding a = begin(job, f, stw_job_group_tokens(job, group), out);
    const uint8_t first = norm(&a, STW_VALUE_INPUT, a.own_rows, 1, f->hidden);
    const uint8_t residual = sum(&a, STW_VALUE_INPUT, attention(&a, group, first));
    const uint8_t second = norm(&a, residual, a.own_rows, 1, f->hidden);
    uint8_t last = second;
    if (f->experts > 0) last = experts(&a, group, second);
    if (f->experts > 0 && f->shared_ffn > 0) {
        const uint8_t routed = last;
        last = sum(&a, routed, mlp(&a, second, f->shared_ffn / a.tp));
    } else if (f->experts == 0) {
        last = mlp(&a, second, f->ffn / a.tp);
    }
    ends(&a, second);
    out->out = sum(&a, residual, last);
    stw_calls_finish(out, false);
}

void stw_local_loss_calls(const stw_job *job, stw_calls *out, uint32_t *head) {
    const stw_model *model = job->model;
    const stw_parallel *p = &job->run->parallel;
    stw_block_facts f = {.hidden = model->hidden};
    adding a = begin(job, &f, job->decoder_tokens, out);
    const uint64_t vocab = stw_megatron_vocab(job), logits = stw_times(a.rows, vocab);
    const bool fused = stw_megatron_settings_of(job->run).cross_entropy_fusion;
    const bool tied = model->tied_embeddings && p->pp == 1;
    const uint8_t normed = norm(&a, STW_VALUE_INPUT, a.own_rows, 1, model->hidden);
    *head = out->n;
    const uint8_t narrow = tied && !a.cuts_rows
                               ? product(&a, STW_LOCAL_TIED_PRODUCT, normed, vocab, model->hidden)
                               : first_product(&a, normed, vocab);
    ends(&a, normed);
    out->out = call(&a, fused ? STW_LOCAL_FUSED_LOSS : STW_LOCAL_LOSS, narrow, stw_times(a.rows, 4),
                    stw_times(logits, a.element), stw_times(logits, 4));
    ends(&a, narrow);
    stw_calls_finish(out, false);
}
