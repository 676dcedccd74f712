/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a rank in vLLM (vllm/model_executor/layers/linear.py: ColumnParallelLinear,
 * QKVParallelLinear, RowParallelLinear; vocab_parallel_embedding.py: VocabParallelEmbedding;
 * fused_moe/layer.py: FusedMoE, determine_expert_map). SGLang's layers are copies of these. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/rollout_weights.h"

/* vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE */
enum { VOCAB_STEP = 64 };
/* fp8 with block scales: one fp32 per 128 x 128 (fp8.py, weight_block_size); mxfp4: one byte per 32
 * elements (mxfp4.py, mxfp4_block). */
enum { FP8_BLOCK = 128, MXFP4_BLOCK = 32 };

stw_rollout_role stw_rollout_resolve(const stw_job *job, uint32_t number) {
    const stw_role *spec = job->roles[number].spec;
    const uint64_t positions = job->model->max_positions;
    stw_rollout_role role = {job->model,          spec,        spec->parallel.tp, spec->parallel.ep,
                             spec->max_model_len, spec->dtype, STW_DTYPE_BF16};
    if (role.max_model_len == 0) role.max_model_len = positions > 0 ? positions : 4096;
    if (stw_dtype_bits(spec->dtype) < 16) role.compute = STW_DTYPE_BF16;
    role.kv_dtype = spec->kv_dtype == STW_AUTO ? role.compute : (stw_dtype)spec->kv_dtype;
    return role;
}

static const stw_block_facts *facts_of(const stw_rollout_role *role, const stw_tensor *t) {
    return &role->model->groups[role->model->blocks[t->block].group].facts;
}

static bool is_vocabulary(const stw_rollout_role *role, const stw_tensor *t) {
    return t->rank == 2 && role->model->vocab > 0 && t->shape[0] == role->model->vocab &&
           !facts_of(role, t)->transformer;
}

/* ReplicatedLinear, norms and tables are whole on every rank. */
static bool is_whole(const stw_tensor *t) {
    switch (t->use.weight) {
    case STW_WEIGHT_Q:
    case STW_WEIGHT_K:
    case STW_WEIGHT_V:
    case STW_WEIGHT_QKV:
    case STW_WEIGHT_GATE:
    case STW_WEIGHT_UP:
    case STW_WEIGHT_GATE_UP:
    case STW_WEIGHT_LINEAR_STATE:
    case STW_WEIGHT_SINKS:
        return false;
    case STW_WEIGHT_ROUTER:
    case STW_WEIGHT_Q_DOWN:
    case STW_WEIGHT_KV_DOWN:
    case STW_WEIGHT_SHARED_GATE:
    case STW_WEIGHT_PATCH:
    case STW_WEIGHT_POSITION:
        return true;
    default:
        return t->rank <= 1;
    }
}

/* Each rank has one head at least: with more ranks than heads, ranks share copies. */
static bool is_kv(const stw_tensor *t) {
    return t->use.weight == STW_WEIGHT_K || t->use.weight == STW_WEIGHT_V;
}

static uint64_t expert_elements(const stw_rollout_role *role, const stw_tensor *t) {
    const uint64_t experts = stw_max_u64(facts_of(role, t)->experts, 1);
    if (role->ep <= 1) return stw_div_up_u64(t->numel, role->tp);
    /* of a tensor per expert, this rank has its share of all of them */
    if (t->experts <= 1) return stw_div_up_u64(t->numel, role->ep);
    return stw_times(t->numel / experts, stw_div_up_u64(experts, role->ep));
}

static uint64_t elements(const stw_rollout_role *role, const stw_tensor *t) {
    const stw_block_facts *facts = facts_of(role, t);
    if (t->expert) return expert_elements(role, t);
    if (is_vocabulary(role, t))
        return stw_times(stw_round_up_u64(t->shape[0], VOCAB_STEP) / role->tp, t->shape[1]);
    if (is_whole(t)) return t->numel;
    if (is_kv(t) && facts->kv_heads > 0 && facts->kv_heads < role->tp)
        return t->numel / facts->kv_heads;
    return stw_div_up_u64(t->numel, role->tp);
}

/* RowParallelLinear: cut by columns. */
static bool is_cut_by_columns(const stw_tensor *t) {
    return t->rank > 1 && (t->use.weight == STW_WEIGHT_O || t->use.weight == STW_WEIGHT_DOWN);
}

/* QKVParallelLinear and MergedColumnParallelLinear of tensors that are stored merged: a rank's rows
 * are several runs. */
static bool is_merged(const stw_tensor *t) {
    switch (t->use.weight) {
    case STW_WEIGHT_QKV:
    case STW_WEIGHT_GATE_UP:
    case STW_WEIGHT_LINEAR_IN:
    case STW_WEIGHT_CONVOLUTION:
        return true;
    default:
        return false;
    }
}

/* ---- boxes ---- */

typedef struct boxes {
    stw_box whole;
    stw_box *out;
    uint32_t n;
} boxes;

/* Part `part` of elements [from, from + n) of dimension d, cut into equal parts, the last ones
 * shorter. */
static void add_part(boxes *b, int d, uint64_t from, uint64_t n, uint64_t parts, uint64_t part) {
    const uint64_t share = stw_div_up_u64(n, stw_max_u64(parts, 1));
    const uint64_t begin = stw_min_u64(share * part, n), end = stw_min_u64(begin + share, n);
    stw_box *box = &b->out[b->n];
    if (end == begin) return;
    *box = b->whole;
    box->first[d] = from + begin;
    box->count[d] = end - begin;
    b->n++;
}

static int last_dim(const stw_box *whole) {
    int d = STW_BOX_DIMS - 1;
    while (d > 0 && whole->count[d] == 1) d--;
    return d;
}

/* The dimension of an expert's width: the last one of what comes last, else the first. gate_up has
 * it twice. */
static int width_dim(const stw_rollout_role *role, const stw_tensor *t, const stw_box *whole,
                     bool *twice) {
    const uint64_t width = facts_of(role, t)->expert_ffn;
    const bool last = t->use.weight == STW_WEIGHT_DOWN;
    const int first = t->experts > 1 ? 1 : 0, end = last_dim(whole);
    *twice = false;
    for (int i = first; i <= end; i++) {
        const int d = last ? end - (i - first) : i;
        *twice = whole->count[d] == stw_times(2, width);
        if (whole->count[d] == width || *twice) return d;
    }
    return end;
}

static void add_expert(boxes *b, const stw_rollout_role *role, const stw_tensor *t, uint32_t rank) {
    bool twice = false;
    if (role->ep > 1) { /* of a tensor per expert: this rank's share of it stands for experts */
        add_part(b, 0, 0, b->whole.count[0], role->ep, rank % role->ep);
        return;
    }
    const int d = width_dim(role, t, &b->whole, &twice);
    const uint64_t n = b->whole.count[d] / (twice ? 2 : 1);
    add_part(b, d, 0, n, role->tp, rank % role->tp);
    if (twice) add_part(b, d, n, n, role->tp, rank % role->tp);
}

/* QKVParallelLinear: with more ranks than key and value heads, ranks share copies of those.
 * Merged tensors of other layouts count as rows: what a rank gets is as much. */
static void add_merged(boxes *b, const stw_rollout_role *role, const stw_tensor *t, uint32_t rank) {
    const stw_block_facts *f = facts_of(role, t);
    const uint64_t rows = b->whole.count[0], part = rank % role->tp;
    const uint64_t q = stw_times(f->q_heads, f->qk_dim), k = stw_times(f->kv_heads, f->qk_dim);
    const uint64_t v = stw_times(f->kv_heads, f->v_dim);
    const bool gates = t->use.weight == STW_WEIGHT_GATE_UP;
    if (t->use.weight == STW_WEIGHT_QKV && f->kv_heads > 0 && rows == q + k + v) {
        const uint64_t parts = stw_min_u64(f->kv_heads, role->tp);
        add_part(b, 0, 0, q, role->tp, part);
        add_part(b, 0, q, k, parts, part * parts / role->tp);
        add_part(b, 0, q + k, v, parts, part * parts / role->tp);
    } else if (gates && f->gated && rows % 2 == 0) {
        add_part(b, 0, 0, rows / 2, role->tp, part);
        add_part(b, 0, rows / 2, rows / 2, role->tp, part);
    } else {
        add_part(b, 0, 0, rows, role->tp, part);
    }
}

stw_box stw_rollout_whole(const stw_tensor *t) {
    stw_box box = {{0}, {1, 1, 1, 1}};
    uint64_t numel = 1;
    for (uint32_t d = 0; d < t->rank; d++) {
        box.count[d < STW_BOX_DIMS ? d : STW_BOX_DIMS - 1] *= t->shape[d];
        numel = stw_times(numel, t->shape[d]);
    }
    if (numel != t->numel) box = (stw_box){{0}, {t->numel, 1, 1, 1}};
    return box;
}

uint32_t stw_rollout_boxes(const stw_rollout_role *role, const stw_tensor *t, uint32_t rank,
                           stw_box out[STW_ROLLOUT_BOXES]) {
    const uint64_t shared = facts_of(role, t)->kv_heads, part = rank % role->tp;
    boxes b = {.whole = stw_rollout_whole(t), .out = out};
    const uint64_t rows = b.whole.count[0];
    if (t->expert) {
        add_expert(&b, role, t, rank);
    } else if (is_vocabulary(role, t)) {
        const uint64_t share = stw_round_up_u64(rows, VOCAB_STEP) / role->tp;
        const uint64_t first = stw_min_u64(share * part, rows);
        add_part(&b, 0, first, stw_min_u64(share, rows - first), 1, 0);
    } else if (is_whole(t)) {
        add_part(&b, 0, 0, rows, 1, 0);
    } else if (is_kv(t) && shared > 0 && shared < role->tp) {
        add_part(&b, 0, 0, rows, shared, part * shared / role->tp);
    } else if (is_cut_by_columns(t)) {
        const int d = last_dim(&b.whole);
        add_part(&b, d, 0, b.whole.count[d], role->tp, part);
    } else if (is_merged(t)) {
        add_merged(&b, role, t, rank);
    } else {
        add_part(&b, 0, 0, rows, role->tp, part);
    }
    return b.n;
}

/* Layers whose matrices are quantized: those of blocks, without the replicated ones. */
static bool is_quantized(const stw_rollout_role *role, const stw_tensor *t) {
    const stw_block_facts *facts = facts_of(role, t);
    if (!facts->transformer || facts->vision || t->rank < 2) return false;
    if (role->spec->dtype == STW_DTYPE_F4) return t->expert;
    return role->spec->dtype == STW_DTYPE_F8_E4M3 && (t->expert || !is_whole(t));
}

static uint64_t tensor_bytes(const stw_rollout_role *role, const stw_tensor *t) {
    const uint64_t n = elements(role, t);
    if (!is_quantized(role, t)) return stw_times(n, stw_dtype_bits(role->compute) / 8);
    if (role->spec->dtype == STW_DTYPE_F4) return n / 2 + stw_div_up_u64(n, MXFP4_BLOCK);
    return stw_plus(n, stw_times(stw_div_up_u64(n, FP8_BLOCK * FP8_BLOCK), sizeof(float)));
}

/* cos and sin of all positions (rotary_embedding/base.py, _compute_cos_sin_cache), one table for
 * all layers. Learned positions have none. */
static uint64_t rotary_bytes(const stw_rollout_role *role) {
    uint64_t dim = 0;
    for (uint32_t g = 0; g < role->model->n_groups; g++) {
        const stw_block_facts *facts = &role->model->groups[g].facts;
        if (facts->transformer && !facts->vision && facts->kv_rank == 0)
            dim = stw_max_u64(dim, facts->qk_dim);
    }
    for (uint32_t t = 0; t < role->model->n_tensors; t++) {
        const stw_tensor *tensor = &role->model->tensors[t];
        if (tensor->use.weight == STW_WEIGHT_POSITION && !facts_of(role, tensor)->vision) return 0;
        if (tensor->use.weight == STW_WEIGHT_KV_DOWN)
            dim = tensor->shape[0] - facts_of(role, tensor)->kv_rank;
    }
    return stw_times(stw_times(role->model->max_positions, dim), stw_dtype_bits(role->compute) / 8);
}

/* The copy on the host is made allocation by allocation (device_allocator/cumem.py,
 * CuMemAllocator.sleep), page-locked by torch's caching allocator. Layers' tensors of 1 MiB and
 * more have allocations of their own; smaller ones count for little. */
uint64_t stw_rollout_weight_bytes(const stw_rollout_role *role, uint64_t *rounding) {
    uint64_t bytes = rotary_bytes(role);
    if (rounding != NULL) *rounding = 0;
    for (uint32_t t = 0; t < role->model->n_tensors; t++) {
        const uint64_t of = tensor_bytes(role, &role->model->tensors[t]);
        bytes = stw_plus(bytes, of);
        if (rounding != NULL) *rounding = stw_plus(*rounding, stw_page_lock_rounding_bytes(of));
    }
    return bytes;
}

static stw_status refuse(uint32_t number, const char *key, uint32_t found, const char *expected,
                         uint64_t of, stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, NULL, "roles.%u.%s: found %u, expected %s %llu",
                    (unsigned)number - 1, key, (unsigned)found, expected, (unsigned long long)of);
}

/* ModelConfig.verify_with_parallel_config; QKVParallelLinear. */
stw_status stw_rollout_check_cuts(const stw_rollout_role *role, uint32_t number, stw_error *err) {
    const uint64_t vocab = stw_round_up_u64(role->model->vocab, VOCAB_STEP);
    bool experts = false;
    if (vocab % role->tp != 0)
        return refuse(number, "parallel.tp", role->tp, "a divisor of the padded vocabulary,", vocab,
                      err);
    for (uint32_t g = 0; g < role->model->n_groups; g++) {
        const stw_block_facts *f = &role->model->groups[g].facts;
        if (!f->transformer || f->vision) continue;
        if (f->q_heads % role->tp != 0)
            return refuse(number, "parallel.tp", role->tp, "a divisor of the attention heads,",
                          f->q_heads, err);
        if (f->kv_rank == 0 && f->kv_heads > 0 && role->tp % f->kv_heads != 0 &&
            f->kv_heads % role->tp != 0)
            return refuse(number, "parallel.tp", role->tp,
                          "a divisor or a multiple of the key and value heads,", f->kv_heads, err);
        if (f->linear_k_heads % role->tp != 0)
            return refuse(number, "parallel.tp", role->tp,
                          "a divisor of the heads of linear attention,", f->linear_k_heads, err);
        experts = experts || f->experts > 0;
        if (f->experts > 0 && role->ep > f->experts)
            return refuse(number, "parallel.ep", role->ep, "at most the number of experts,",
                          f->experts, err);
    }
    if (!experts && role->ep > 1)
        return stw_fail(err, STW_STATUS_BAD_INPUT, NULL,
                        "roles.%u.parallel.ep: found %u, expected 1: the model has no experts",
                        (unsigned)number - 1, (unsigned)role->ep);
    if (!experts && role->spec->dtype == STW_DTYPE_F4)
        return stw_fail(err, STW_STATUS_BAD_INPUT, NULL,
                        "roles.%u.dtype: found mxfp4, expected another: it quantizes experts, and "
                        "the model has none",
                        (unsigned)number - 1);
    return STW_STATUS_OK;
}
