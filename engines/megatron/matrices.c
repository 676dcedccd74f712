/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer has dense matrices, the next one those of experts (optimizer/__init__.py at
 * d98e8a6, _get_megatron_emerging_optimizer); each goes through its parameters in the order of the
 * model. */
#include "engines/megatron/matrices.h"

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/state_tensors.h"
#include "plan/program/tensors.h"

/* Kinds of matrices of a model that are told apart: any more are counted as the last one. */
enum { MOST_KINDS = 32 };

typedef struct kind {
    const stw_megatron_param *like;
    stw_update_matrix matrix;
    stw_update_need need;
    uint64_t n;
    uint32_t after; /* a bit for each kind that one of these follows */
} kind;

typedef struct kinds {
    kind list[MOST_KINDS];
    uint32_t n;
    uint64_t peak_bytes;
} kinds;

/* Weights of products have a partition_dim even where one rank has all of them
 * (tensor_parallel/layers.py, _initialize_affine_weight_gpu; TransformerEngine's linear.py,
 * reset_parameters), and are then gathered from themselves. */
static stw_update_matrix matrix_of(const stw_job *job, const stw_megatron_param *p) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const uint64_t columns = stw_max_u64(p->row, 1);
    stw_update_matrix m = {.columns = columns,
                           .parts = {p->numel / columns},
                           .ways = 1,
                           .by_columns = p->by_columns,
                           .nesterov = s.muon_nesterov,
                           .repeats = s.muon_ns_steps};
    for (int i = 0; i < STW_MOST_PARTS && p->parts[1] > 0 && !s.muon_whole_qkv; i++)
        m.parts[i] = p->parts[i] / columns;
    if (!p->product || p->whole || s.muon_tp_mode == STW_MEGATRON_MUON_BLOCKWISE) return m;
    m.cut =
        s.muon_tp_mode == STW_MEGATRON_MUON_DUPLICATED ? STW_UPDATE_GATHERED : STW_UPDATE_SUMMED;
    m.ways = p->expert ? job->run->parallel.etp : job->run->parallel.tp;
    return m;
}

static bool is_like(const stw_megatron_param *a, const stw_megatron_param *b) {
    return a->numel == b->numel && a->row == b->row && a->expert == b->expert &&
           a->product == b->product && a->whole == b->whole && a->by_columns == b->by_columns &&
           a->parts[0] == b->parts[0] && a->parts[1] == b->parts[1] && a->parts[2] == b->parts[2];
}

/* @return the number of its kind */
static uint32_t kind_of(kinds *k, const stw_job *job, const struct stw_update_step *steps,
                        const stw_megatron_param *p) {
    uint32_t i = 0;
    while (i < k->n && !is_like(k->list[i].like, p)) i++;
    if (i == MOST_KINDS) i--;
    if (i < k->n) return i;
    kind *new = &k->list[k->n++];
    *new = (kind){.like = p, .matrix = matrix_of(job, p)};
    new->need = stw_update_of(steps, &new->matrix, NULL);
    return i;
}

/* ---- tensors ---- */

typedef struct replay {
    stw_builder *b;
    const struct stw_update_step *steps;
    uint32_t left;      /* of the matrix before */
    uint32_t left_kind; /* its kind */
} replay;

/* Only of pairs of neighbours that were not there before: others take the same blocks. */
static void replay_pair(replay *r, const kinds *k, uint32_t before, uint32_t now) {
    if (r->b == NULL) return;
    if (r->left_kind != before && before != UINT32_MAX) {
        stw_tensor_drop(r->b, r->left);
        r->left = stw_tensor_take(r->b, 0, k->list[before].need.left_bytes);
    }
    stw_update_tensors(r->b, r->steps, &k->list[now].matrix, &r->left);
    r->left_kind = now;
}

/* All matrices of one optimizer, from the first module on: the list has the last one first. */
static void look_at(kinds *k, const stw_job *job, const stw_megatron_params *list, bool expert,
                    replay *r) {
    uint32_t before = UINT32_MAX;
    for (uint32_t i = list->n; i-- > 0;) {
        const stw_megatron_param *p = &list->list[i];
        if (!p->matrix || p->expert != expert) continue;
        const uint32_t now = kind_of(k, job, r->steps, p);
        kind *at = &k->list[now];
        uint64_t left = before == UINT32_MAX ? 0 : k->list[before].need.left_bytes;
        k->peak_bytes = stw_max_u64(k->peak_bytes, stw_plus(left, at->need.peak_bytes));
        if (before == UINT32_MAX || (at->after & 1u << before) == 0) replay_pair(r, k, before, now);
        if (before != UINT32_MAX) at->after |= 1u << before;
        at->n++;
        before = now;
    }
    if (r->b != NULL) stw_tensor_drop(r->b, r->left);
    r->left = STW_NO_TENSOR;
    r->left_kind = UINT32_MAX;
}

/* ---- operations ---- */

static uint32_t communicate(stw_builder *b, const kinds *k, bool expert, bool gathers,
                            uint32_t after) {
    const stw_rank_group group = expert ? STW_RANK_GROUP_ETP : STW_RANK_GROUP_TP;
    stw_op op =
        stw_op_make(gathers ? STW_OP_ALL_GATHER : STW_OP_ALL_REDUCE, STW_STREAM_COMM, STW_OP_NONE);
    uint32_t ranks, on_node;
    stw_job_group_size(b->job, group, &ranks, &on_node);
    op.component = STW_COMPONENT_STAGE;
    op.from = op.to = STW_TIER_GPU;
    op.group = group;
    op.after[0] = after;
    for (uint32_t i = 0; i < k->n && ranks > 1; i++) {
        const kind *at = &k->list[i];
        if (at->like->expert != expert) continue;
        op.bytes = stw_plus(
            op.bytes, stw_times(at->n, gathers ? at->need.gathered_bytes : at->need.summed_bytes));
        op.calls += (uint32_t)stw_times(at->n, gathers ? at->need.gathers : at->need.sums);
    }
    return op.bytes > 0 ? stw_append(b, op) : after;
}

/* The process issues one kernel after the other, beside the GPU. */
static void issue(stw_builder *b, const kinds *k) {
    stw_op op = stw_op_make(STW_OP_CALLS, STW_STREAM_CPU, STW_OP_NONE);
    for (uint32_t i = 0; i < k->n; i++)
        op.params = stw_plus(op.params, stw_times(k->list[i].n, k->list[i].need.calls));
    (void)stw_append(b, op);
}

static void compute(stw_builder *b, const kinds *k, const struct stw_update_step *steps,
                    uint64_t elements, uint32_t after) {
    stw_work all = {.n = 0};
    stw_op op = stw_op_make(STW_OP_UPDATE, STW_STREAM_COMPUTE, STW_OP_NONE);
    for (uint32_t i = 0; i < k->n; i++) {
        stw_work one = {.n = 0};
        (void)stw_update_of(steps, &k->list[i].matrix, &one);
        stw_work_add(&all, &one, (double)k->list[i].n);
    }
    op.component = STW_COMPONENT_PARAMS;
    op.update = STW_UPDATE_RESIDENT;
    op.from = op.to = STW_TIER_GPU;
    op.params = elements;
    op.flops = stw_work_flops(all.items, all.n);
    op.n_work = all.n;
    op.work = stw_work_keep(b->program->pool, all.items, all.n);
    op.after[0] = after;
    if (op.work == NULL)
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
    else
        (void)stw_append(b, op);
}

void stw_megatron_update_matrices(stw_builder *b, const stw_megatron_state *s, bool first) {
    const stw_job *job = b->job;
    const struct stw_update_step *steps = stw_optimizer_of(job->run)->matrices.steps;
    replay none = {NULL, steps, STW_NO_TENSOR, UINT32_MAX}, tensors = none;
    if (steps == NULL || s->matrices == 0 || b->status != STW_STATUS_OK) return;
    kinds *k = stw_pool_alloc(b->program->pool, sizeof *k);
    if (k == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return;
    }
    for (int e = 0; e < 2; e++) look_at(k, job, &s->shard, e == 1, &none);
    const uint32_t from = stw_tensors_begin(b);
    stw_extent temporary = stw_alloc(b, STW_COMPONENT_STAGE, STW_TIER_GPU, k->peak_bytes);
    uint32_t sent = STW_OP_NONE;
    for (int e = 0; e < 2; e++) {
        sent = communicate(b, k, e == 1, true, sent);
        sent = communicate(b, k, e == 1, false, sent);
    }
    issue(b, k);
    compute(b, k, steps, s->matrices, sent);
    stw_free(b, STW_COMPONENT_STAGE, STW_TIER_GPU, temporary);
    if (!s->traced) return;
    stw_tensors_instead(b, from);
    tensors.b = b;
    *k = (kinds){.n = 0};
    for (int e = 0; e < 2; e++) {
        if (first) stw_megatron_moments_of(b, s, true, e == 1);
        look_at(k, job, &s->shard, e == 1, &tensors);
    }
    if (first) stw_megatron_moments_of(b, s, false, false);
}
