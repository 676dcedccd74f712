/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core 0.16.1, pipeline_parallel/fine_grained_activation_offload.py):
 * - What autograd saves inside of a module (PipelineOffloadManager.on_save_for_backward) is copied
 *   to page-locked tensors when the module is done, if it has at least 1 Mi elements
 *   (min_offloaded_tensor_size). Its bytes on the GPU go at once, of views those of the whole
 *   storage (bulk_offload, forced_released_tensors).
 * - Modules: attention.py, multi_latent_attention.py (qkv_linear, core_attn, attn_proj),
 *   transformer_layer.py (attn_norm, mlp_norm: norms that are no part of a product: of multi-latent
 *   attention, of experts), moe/experts.py, TEGroupedMLP (expert_fc1, moe_act).
 * - cuDNN's and flash attention save query, key, value and output; the output projection saves the
 *   same output, so that it leaves the GPU with both alone.
 * - A tensor that two operations save is copied twice, and comes back as two (tensor_push): the
 *   softmax of unfused attention, the norm's output before both down projections.
 * - Inside of core_attn nothing is offloaded where it is recomputed. Tensors that recomputation
 *   drops (layernorm, mla_up_proj) are copied nevertheless. */
#include "engines/megatron/offload.h"

#include <string.h>

#include "core/checked.h"
#include "engines/megatron/acts.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/moe.h"

#define LEAST_ELEMENTS (1ull << 20)

typedef struct modules {
    bool attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act;
} modules;

static bool *module_named(modules *m, const char *name) {
    if (strcmp(name, "attn_norm") == 0) return &m->attn_norm;
    if (strcmp(name, "qkv_linear") == 0) return &m->qkv_linear;
    if (strcmp(name, "core_attn") == 0) return &m->core_attn;
    if (strcmp(name, "attn_proj") == 0) return &m->attn_proj;
    if (strcmp(name, "mlp_norm") == 0) return &m->mlp_norm;
    if (strcmp(name, "expert_fc1") == 0) return &m->expert_fc1;
    if (strcmp(name, "moe_act") == 0) return &m->moe_act;
    return NULL;
}

static modules modules_of(const stw_run_spec *run) {
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    modules m = {0};
    for (uint32_t i = 0; i < s.offload_modules.n; i++) {
        bool *module = module_named(&m, s.offload_modules.items[i]);
        if (module != NULL) *module = true;
    }
    return m;
}

/* transformer_config.py, __post_init__. */
stw_status stw_megatron_check_offload(const stw_run_spec *run, const char *origin, stw_error *err) {
    static const char *const key = "megatron.offload_modules";
    const stw_megatron_settings s = stw_megatron_settings_of(run);
    const modules all = modules_of(run);
    modules none = {0};
    if (s.offload_modules.n == 0) return STW_STATUS_OK;
    for (uint32_t i = 0; i < s.offload_modules.n; i++)
        if (module_named(&none, s.offload_modules.items[i]) == NULL)
            return stw_run_spec_refuse_value(run, origin, err, key,
                                             "of attn_norm, qkv_linear, core_attn, attn_proj, "
                                             "mlp_norm, expert_fc1, moe_act");
    if (all.attn_proj && !all.core_attn)
        return stw_run_spec_refuse_value(run, origin, err, key, "core_attn beside attn_proj");
    if (s.transformer_impl != 1)
        return stw_run_spec_refuse_value(run, origin, err, key,
                                         "[], or megatron.transformer_impl: transformer_engine");
    if ((all.expert_fc1 || all.moe_act) && !s.grouped_gemm)
        return stw_run_spec_refuse_value(run, origin, err, key,
                                         "no expert_fc1 and moe_act, or megatron.grouped_gemm: "
                                         "true");
    if (run->recompute.granularity != 0 && run->recompute.granularity != 2)
        return stw_run_spec_refuse_value(run, origin, err, key,
                                         "[], or recompute.granularity: none or selective");
    if (s.fp8 != 0)
        return stw_run_spec_refuse_value(run, origin, err, key,
                                         "[]: 8-bit activations (megatron.fp8) on the host are "
                                         "not planned");
    if (stw_megatron_is_fsdp(run))
        return stw_run_spec_refuse_value(run, origin, err, key, "[] with megatron.fsdp");
    return STW_STATUS_OK;
}

/* ---- tensors ---- */

/* A tensor that is copied. @return its bytes, 0: it is too small */
static uint64_t copy(stw_megatron_offload *o, uint64_t elements, uint64_t each) {
    const uint64_t bytes = stw_times(elements, each);
    if (elements < LEAST_ELEMENTS || o->n == STW_MEGATRON_OFFLOADED_TENSORS) return 0;
    o->tensors[o->n++] = bytes;
    o->host = stw_plus(o->host, bytes);
    return bytes;
}

/* One that leaves the GPU, too. */
static void move(stw_megatron_offload *o, uint64_t elements, uint64_t each) {
    o->gpu = stw_plus(o->gpu, copy(o, elements, each));
}

typedef struct sizes {
    const stw_job *job;
    const stw_block_facts *f;
    uint32_t group;
    uint64_t c, rows, hidden; /* bytes of an element; rows; elements of this rank's rows */
    uint64_t q, k, v, result; /* elements of all rows */
    modules m;
    stw_megatron_modules dropped; /* by recomputation */
} sizes;

static void offload_inputs(const sizes *s, stw_megatron_offload *o) {
    const uint64_t c = s->c;
    if (s->f->kv_rank == 0) { /* one module with the norm */
        move(o, s->hidden, c);
        if (s->dropped.layernorm)
            (void)copy(o, s->hidden, c);
        else
            move(o, s->hidden, c);
        return;
    }
    (void)copy(o, s->hidden, c);
    if (s->dropped.layernorm)
        (void)copy(o, s->hidden, c);
    else
        move(o, s->hidden, c);
    for (int i = 0; i < 2; i++) { /* of each norm input and output */
        move(o, stw_times(s->rows, s->f->q_rank), c);
        move(o, stw_times(s->rows, s->f->kv_rank), c);
    }
}

/* Query, key and value: of grouped queries as rotation and repetition have made them. */
static void offload_core(const sizes *s, stw_megatron_offload *o) {
    const bool eager = s->job->run->attention == STW_ATTENTION_EAGER;
    const uint64_t heads = s->f->q_heads / s->job->run->parallel.tp;
    const bool mla = s->f->kv_rank > 0, repeats = eager && s->f->q_heads != s->f->kv_heads && !mla;
    const uint64_t keys = stw_job_group_seq_len(s->job, s->group) / s->job->run->parallel.cp;
    const uint64_t c = s->c, scores = stw_times(stw_times(s->rows, keys), heads);
    const uint64_t before = o->host;
    (void)copy(o, s->q, c);
    (void)copy(o, mla || repeats ? s->q : s->k, c);
    (void)copy(o, mla || repeats ? s->result : s->v, c);
    if (o->host > before && mla && !s->dropped.mla_up_proj) {
        const uint64_t rope = s->f->qk_dim > s->f->v_dim ? s->f->qk_dim - s->f->v_dim : 0;
        const uint64_t up =
            STW_SUM(s->q, s->q, s->q - stw_times(stw_times(s->rows, heads), rope), s->result);
        o->gpu = stw_plus(o->gpu, stw_times(up, c));
    } else if (o->host > before && !mla) {
        uint64_t all = STW_SUM(s->q, s->k, s->v); /* in one tensor, of which value is a view */
        if (stw_megatron_turns(s->job)) all = STW_SUM(all, s->q, repeats ? 0 : s->k);
        if (repeats) all = STW_SUM(all, s->q, s->result);
        o->gpu = stw_plus(o->gpu, stw_times(all, c));
    }
    if (!eager) {
        (void)copy(o, s->result, c);
        move(o, stw_times(s->rows, heads), 4); /* log-sum-exp */
        return;
    }
    move(o, scores, c);
    if (stw_megatron_settings_of(s->job->run).attention_dropout > 0) {
        move(o, scores, c);
        move(o, scores, 1);
    } else {
        (void)copy(o, scores, c);
    }
}

static void offload_experts(const sizes *s, stw_megatron_offload *o) {
    const stw_megatron_moe moe = stw_megatron_moe_of(s->job, s->group);
    const uint64_t width = s->f->expert_ffn / s->job->run->parallel.etp;
    if (s->m.mlp_norm) move(o, s->hidden, s->c);
    if (s->dropped.moe) return;
    if (s->m.expert_fc1) move(o, stw_times(moe.rows, s->f->hidden), s->c);
    if (s->m.moe_act) move(o, stw_times(moe.rows, stw_times(width, s->f->gated ? 2 : 1)), s->c);
}

stw_megatron_offload stw_megatron_offload_of(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_parallel *p = &job->run->parallel;
    const uint64_t rows = stw_job_group_tokens(job, group), heads = f->q_heads / p->tp;
    const uint64_t own = p->sequence_parallel ? rows / p->tp : rows;
    stw_megatron_offload o = {0};
    if (stw_megatron_settings_of(job->run).offload_modules.n == 0 || !f->transformer || f->vision)
        return o;
    sizes s = {.job = job,
               .f = f,
               .group = group,
               .c = stw_dtype_bits(job->run->precision.compute) / 8,
               .rows = rows,
               .hidden = stw_times(own, f->hidden),
               .q = stw_times(rows, stw_times(heads, f->qk_dim)),
               .k = stw_times(rows, stw_times(f->kv_heads / p->tp, f->qk_dim)),
               .v = stw_times(rows, stw_times(f->kv_heads / p->tp, f->v_dim)),
               .result = stw_times(rows, stw_times(heads, f->v_dim)),
               .m = modules_of(job->run)};
    if (job->run->recompute.granularity == 2) s.dropped = stw_megatron_modules_of(job->run);
    if (f->linear_v_heads == 0) {
        if (s.m.attn_norm && f->kv_rank > 0) move(&o, s.hidden, s.c);
        if (s.m.qkv_linear) offload_inputs(&s, &o);
        if (s.m.core_attn && !s.dropped.core_attn) offload_core(&s, &o);
        if (s.m.attn_proj) move(&o, s.result, s.c);
    }
    if (f->experts > 0) offload_experts(&s, &o);
    return o;
}
