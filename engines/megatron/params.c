/* SPDX-License-Identifier: Apache-2.0 */
/* Only counts matter here: a matrix that is cut by columns (RowParallelLinear) counts as a run of
 * as many elements, and so does the part of the flat buffers that a data-parallel rank holds. */
#include "engines/megatron/params.h"

#include <math.h>
#include <string.h>

#include "blocks/optimizer.h"
#include "core/checked.h"
#include "engines/megatron/layer_wise.h"
#include "engines/megatron/megatron.h"
#include "engines/megatron/vision.h"
#include "engines/tensor_parallel.h"

/* Buckets of the distributed optimizer end at multiples of lcm(ranks, 128) elements, parameters
 * begin at multiples of 64 (param_and_grad_buffer.py, _pad_end_of_bucket_if_needed,
 * _pad_start_of_param_if_needed). With overlapped reductions a bucket has at least 40 M elements,
 * or 1 M per rank (distributed_data_parallel.py); otherwise there is one. */
enum { BUCKET_STEP = 128, PARAM_STEP = 64 };
#define BUCKET_PARAMS 40000000ull
#define BUCKET_PARAMS_PER_RANK 1000000ull

/* Shapes of a model's matrices. */
enum { MOST_SHAPES = 32 };

/* ---- tensors ---- */

uint64_t stw_megatron_vocab(const stw_job *job) {
    uint64_t tp = job->run->parallel.tp;
    uint64_t multiple = stw_times(stw_megatron_settings_of(job->run).vocab_multiple, tp);
    return stw_round_up_u64(job->model->vocab, multiple > 0 ? multiple : 1) / tp;
}

static bool is_vocabulary(const stw_job *job, const stw_tensor *t) {
    if (t->rank == 1 && t->use.weight == STW_WEIGHT_HEAD && t->use.bias) return true;
    return t->rank == 2 && t->shape[0] == job->model->vocab && job->model->vocab > 0 &&
           (stw_megatron_is_embedding(job, t->block) || stw_megatron_is_head(job, t->block));
}

/* emerging_optimizers.py, _is_nonlinear_or_embedding. Each expert has a matrix. */
static bool is_matrix(const stw_job *job, const stw_tensor *t) {
    return t->rank == (t->expert ? 3 : 2) && !is_vocabulary(job, t);
}

/* Elements of a matrix or vector over the vocabulary on a rank, padding included. */
static uint64_t vocabulary_part(const stw_job *job, const stw_tensor *t) {
    return stw_times(stw_megatron_vocab(job), t->rank == 2 ? t->shape[1] : 1);
}

/* Elements of a tensor on a rank, without padding. @param tp,expert numbers of the rank in its
 * groups */
static void run_of(const stw_job *job, const stw_tensor *t, uint32_t tp, uint32_t expert,
                   uint64_t *first, uint64_t *n) {
    uint32_t ways = job->run->parallel.tp, part = tp;
    if (t->expert) {
        ways = job->expert_cut;
        part = expert;
    } else if (stw_tp_cut_of(t) == STW_TP_WHOLE || stw_megatron_is_whole_vision(job, t)) {
        ways = 1;
        part = 0;
    }
    uint64_t each = stw_div_up_u64(t->numel, ways);
    if (is_vocabulary(job, t)) each = vocabulary_part(job, t);
    *first = stw_min_u64(stw_times(each, part), t->numel);
    *n = stw_min_u64(each, t->numel - *first);
}

/* Elements of a parameter's dimensions after the first; products that are cut by columns have a
 * part of each row. */
static uint64_t row_of(const stw_job *job, const stw_tensor *t) {
    uint64_t row = 1;
    for (uint32_t d = t->expert ? 2 : 1; d < t->rank; d++) row = stw_times(row, t->shape[d]);
    if (stw_megatron_is_whole_vision(job, t) || stw_tp_cut_of(t) != STW_TP_COLUMNS) return row;
    return stw_max_u64(row / (t->expert ? job->run->parallel.etp : job->run->parallel.tp), 1);
}

/* ---- parameters as modules have them ---- */

/* Tensors that are one parameter: q, k and v; gate and up; of shared experts likewise; all that
 * linear attention makes of its input. */
enum { MERGED_QKV = 1, MERGED_FC1 = 3, MERGED_SHARED_FC1 = 5, MERGED_LINEAR = 7, N_MERGED };

static int merged_as(const stw_weight_use *use) {
    const int bias = use->bias ? 1 : 0;
    if (use->adapter != STW_ADAPTER_NONE) return 0;
    switch (use->weight) {
    case STW_WEIGHT_LINEAR_IN:
        return bias ? 0 : MERGED_LINEAR;
    case STW_WEIGHT_Q:
    case STW_WEIGHT_K:
    case STW_WEIGHT_V:
        return MERGED_QKV + bias;
    case STW_WEIGHT_GATE:
    case STW_WEIGHT_UP:
        return (use->module == STW_MODULE_SHARED_EXPERTS ? MERGED_SHARED_FC1 : MERGED_FC1) + bias;
    default:
        return 0;
    }
}

static int qkv_part(const stw_weight_use *use) {
    return use->weight == STW_WEIGHT_Q ? 0 : use->weight == STW_WEIGHT_K ? 1 : 2;
}

typedef struct adding {
    stw_pool *pool;
    stw_megatron_params *out;
    size_t room;
    uint32_t chunk;
} adding;

static stw_megatron_param *append(adding *a) {
    stw_megatron_params *out = a->out;
    stw_megatron_param *list =
        stw_pool_grow(a->pool, out->list, out->n, (size_t)out->n + 1, &a->room, sizeof *list);
    if (list == NULL) return NULL;
    out->list = list;
    return memset(&list[out->n++], 0, sizeof *list);
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "parameters of a rank", "out of memory");
}

/* Every expert of the rank. */
static stw_status add_experts(const stw_job *job, const stw_tensor *t, adding *a, stw_error *err) {
    uint64_t n = stw_max_u64(t->experts / job->run->parallel.ep, 1), first, all;
    run_of(job, t, 0, 0, &first, &all);
    for (uint64_t e = 0; e < n; e++) {
        stw_megatron_param *p = append(a);
        if (p == NULL) return no_memory(err);
        *p = (stw_megatron_param){.numel = all / n,
                                  .row = row_of(job, t),
                                  .block = t->block,
                                  .chunk = a->chunk,
                                  .expert = true,
                                  .product = t->rank == 3,
                                  .matrix = is_matrix(job, t),
                                  .by_columns = stw_tp_cut_of(t) == STW_TP_COLUMNS};
    }
    a->out->expert = stw_plus(a->out->expert, all / n * n);
    return STW_STATUS_OK;
}

/* language_module.py, setup_embeddings_and_output_layer: `shared_embedding`. */
static bool is_shared(const stw_job *job, uint32_t block) {
    return job->run->parallel.pp > 1 && stw_megatron_is_embedding(job, block) &&
           (job->model->tied_embeddings || stw_megatron_mtp_layers(job) > 0);
}

/* Routers, gates of shared experts and convolutions are not TransformerEngine's. */
static bool is_product(const stw_tensor *t) {
    const stw_weight w = t->use.weight;
    return t->rank == 2 && w != STW_WEIGHT_ROUTER && w != STW_WEIGHT_SHARED_GATE &&
           w != STW_WEIGHT_CONVOLUTION;
}

static stw_status add_block(const stw_job *job, const stw_block *block, adding *a, stw_error *err) {
    uint32_t merged[N_MERGED] = {
        0}; /* number of the parameter that a kind is merged into, plus 1 */
    for (uint32_t i = block->first_tensor; i < block->first_tensor + block->n_tensors; i++) {
        const stw_tensor *t = &job->model->tensors[i];
        uint64_t first, n;
        if (!stw_job_trains(job, i)) {
            run_of(job, t, 0, 0, &first, &n);
            a->out->frozen =
                stw_plus(a->out->frozen, is_vocabulary(job, t) ? vocabulary_part(job, t) : n);
            continue;
        }
        if (t->expert) {
            stw_status status = add_experts(job, t, a, err);
            if (status != STW_STATUS_OK) return status;
            continue;
        }
        run_of(job, t, 0, 0, &first, &n);
        if (is_vocabulary(job, t)) n = vocabulary_part(job, t);
        a->out->dense = stw_plus(a->out->dense, n);
        int kind = stw_megatron_is_whole_vision(job, t) ? 0 : merged_as(&t->use);
        const int part = kind == MERGED_QKV ? qkv_part(&t->use) : 0;
        if (kind > 0 && merged[kind] > 0) {
            stw_megatron_param *into = &a->out->list[merged[kind] - 1];
            into->numel += n;
            into->parts[part] = kind == MERGED_QKV ? n : 0;
            continue;
        }
        stw_megatron_param *p = append(a);
        if (p == NULL) return no_memory(err);
        *p = (stw_megatron_param){.numel = n,
                                  .row = row_of(job, t),
                                  .block = t->block,
                                  .whole = stw_tp_cut_of(t) == STW_TP_WHOLE,
                                  .product = is_product(t),
                                  .matrix = is_matrix(job, t),
                                  .by_columns = stw_tp_cut_of(t) == STW_TP_COLUMNS,
                                  .chunk = a->chunk,
                                  .bucket = is_vocabulary(job, t) && is_shared(job, t->block)};
        if (kind == MERGED_QKV) p->parts[part] = n;
        if (kind > 0) merged[kind] = a->out->n;
    }
    return STW_STATUS_OK;
}

static uint64_t common_multiple(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    while (y > 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x > 0 ? stw_times(a / x, b) : b;
}

/* Elements of a bucket. */
static uint64_t full_bucket(const stw_job *job) {
    if (!stw_megatron_settings_of(job->run).overlap_grad_reduce) return UINT64_MAX;
    return stw_max_u64(BUCKET_PARAMS, stw_times(BUCKET_PARAMS_PER_RANK, job->dp_shard));
}

/* Elements of the flat buffers of dense or of expert parameters, without matrices that are dealt.
 */
static uint64_t padded(const stw_job *job, const stw_megatron_params *params, bool expert) {
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    uint64_t ranks = expert ? job->expert_group : job->group, at = 0, begin = 0;
    if (!s.distributed_optimizer) return expert ? params->expert : params->dense;
    const uint64_t step = common_multiple(ranks, BUCKET_STEP), full = full_bucket(job);
    for (uint32_t i = params->n; i-- > 0;) {
        const stw_megatron_param *p = &params->list[i];
        if (p->expert != expert || (p->matrix && stw_megatron_deals(job))) continue;
        if (p->bucket) begin = at = stw_round_up_u64(at, step);
        at = stw_plus(stw_round_up_u64(at, PARAM_STEP), p->numel);
        if (p->bucket || at - begin >= full) begin = at = stw_round_up_u64(at, step);
    }
    return stw_round_up_u64(at, step);
}

/* The head of the last stage has a tensor of its own although the embedding is tied. Where that
 * stage predicts several tokens it has the embedding beside it, and does not use the head's
 * (gpt_model.py, GPTModel: skip_weight_param_allocation). */
static bool is_head_copy(const stw_job *job, uint32_t chunk, uint32_t block) {
    const stw_parallel *p = &job->run->parallel;
    return chunk > 0 && chunk + 1 == p->pp * p->vpp && job->model->tied_embeddings &&
           stw_megatron_is_embedding(job, block);
}

stw_status stw_megatron_params_of(const stw_job *job, uint32_t stage, stw_pool *pool,
                                  stw_megatron_params *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = (stw_megatron_params){0};
    adding a = {pool, out, 0, 0};
    const stw_parallel *p = &job->run->parallel;
    const uint32_t n = job->model->n_blocks;
    for (uint32_t chunk = stage; chunk < p->pp * p->vpp; chunk += p->pp, a.chunk++) {
        const bool predicts = chunk > 0 && chunk == stw_megatron_mtp_chunk(job);
        uint32_t last = n; /* a copy that is the head */
        for (uint32_t b = 0; b < n; b++) {
            if (!stw_megatron_builds(job, chunk, b)) continue;
            bool head = is_head_copy(job, chunk, b);
            if (head) last = b;
            if (!head || predicts) STW_TRY(add_block(job, &job->model->blocks[b], &a, err));
        }
        if (last < n) STW_TRY(add_block(job, &job->model->blocks[last], &a, err));
        if (last < n && predicts) out->list[out->n - 1].bucket = false;
    }
    for (int e = 0; e < 2; e++) STW_TRY(stw_megatron_deal(job, out, e == 1, full_bucket(job), err));
    out->dense_padded = stw_plus(padded(job, out, false), out->dealt_padded[0]);
    out->expert_padded = stw_plus(padded(job, out, true), out->dealt_padded[1]);
out:
    return status;
}

/* ---- the distributed optimizer's range ---- */

static uint64_t share(const stw_job *job, uint64_t elements, uint32_t ranks) {
    return stw_megatron_settings_of(job->run).distributed_optimizer
               ? stw_div_up_u64(elements, ranks)
               : elements;
}

uint64_t stw_megatron_dense_share(const stw_job *job, const stw_megatron_params *params) {
    return stw_plus(share(job, params->dense_padded - params->dealt_padded[0], job->group),
                    params->dealt_share[0]);
}

uint64_t stw_megatron_expert_share(const stw_job *job, const stw_megatron_params *params) {
    return stw_plus(share(job, params->expert_padded - params->dealt_padded[1], job->expert_group),
                    params->dealt_share[1]);
}

uint32_t stw_megatron_turn(const stw_job *job, const stw_megatron_param *param) {
    const uint32_t half = STW_MEGATRON_TURNS / 2;
    if (!stw_optimizer_divides(job->run)) return param->expert;
    const bool deals = stw_megatron_deals(job) && job->world > 1; /* one rank has either way */
    const uint32_t first = param->matrix == deals ? half : 0;
    return first + (param->matrix ? param->expert : param->row == 1);
}

stw_status stw_megatron_shard_of(const stw_job *job, const stw_megatron_params *params,
                                 stw_pool *pool, stw_megatron_params *out, stw_error *err) {
    uint64_t left[2] = {stw_megatron_dense_share(job, params) - params->dealt_share[0],
                        stw_megatron_expert_share(job, params) - params->dealt_share[1]};
    *out = (stw_megatron_params){.list = stw_pool_array(pool, params->n, sizeof *out->list)};
    if (out->list == NULL && params->n > 0) return no_memory(err);
    for (uint32_t i = params->n; i-- > 0;) {
        stw_megatron_param p = params->list[i];
        if (p.matrix && stw_megatron_deals(job)) {
            if (p.owner != params->dealt_rank[p.expert]) continue;
        } else {
            p.numel = stw_min_u64(p.numel, left[p.expert]);
            left[p.expert] -= p.numel;
        }
        if (p.numel == 0) continue;
        out->list[out->n++] = p;
        *(p.expert ? &out->expert : &out->dense) += p.numel;
    }
    return STW_STATUS_OK;
}

/* ---- HybridDeviceOptimizer ---- */

bool stw_megatron_is_hybrid(const stw_job *job) {
    return stw_megatron_offloads(job) || stw_megatron_settings_of(job->run).optimizer_cpu_offload;
}

bool stw_megatron_offloads(const stw_job *job) {
    return stw_megatron_settings_of(job->run).optimizer_offload_fraction > 0;
}

/* Dense and expert parameters have optimizers of their own, and the fraction applies to each. The
 * list of a shard is in the order of the buffers, from behind. */
static uint64_t first_fit(const stw_megatron_params *shard, bool expert, double fraction) {
    uint64_t all = expert ? shard->expert : shard->dense, taken = 0;
    double threshold = (double)all * fraction;
    for (uint32_t i = shard->n; i-- > 0;)
        if (shard->list[i].expert == expert && (double)taken < threshold)
            taken += shard->list[i].numel;
    return taken;
}

uint64_t stw_megatron_offloaded(const stw_job *job, const stw_megatron_params *shard, bool expert) {
    return first_fit(shard, expert, stw_megatron_settings_of(job->run).optimizer_offload_fraction);
}

/* ---- spaces ---- */

/* Numbers of a rank in its groups, and what it holds of dense or expert elements: a range, counted
 * over the parameters of its stage. */
typedef struct cutting {
    uint32_t stage, tp, expert_part;
    uint64_t low[2], high[2]; /* dense, expert */
    uint64_t seen[2];
} cutting;

/* Is a tensor in a space? Frozen ones have parameters alone. */
static bool is_in(const stw_job *job, uint32_t space, uint32_t tensor) {
    const bool state = space == STW_SPACE_OPTIMIZER || space == STW_MEGATRON_SPACE_RESIDENT;
    if (state && stw_optimizer_divides(job->run) &&
        is_matrix(job, &job->model->tensors[tensor]) != (space == STW_MEGATRON_SPACE_RESIDENT))
        return false;
    return space == STW_SPACE_PARAMS || stw_job_trains(job, tensor);
}

static void count_stage(const stw_job *job, uint32_t space, const cutting *c, uint64_t *elements) {
    elements[0] = elements[1] = 0;
    for (uint32_t i = 0; i < job->model->n_tensors; i++) {
        const stw_tensor *t = &job->model->tensors[i];
        uint64_t first, n;
        if (!stw_megatron_holds(job, c->stage, t->block) || !is_in(job, space, i)) continue;
        run_of(job, t, c->tp, c->expert_part, &first, &n);
        elements[t->expert] += n;
    }
}

/* The buffers are in the order of the backward: the first rank holds the last elements. */
static stw_status cut_state(const stw_job *job, uint32_t space, uint32_t rank, cutting *c,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const stw_parallel *p = &job->run->parallel;
    uint32_t inside = rank % (job->world / p->pp);
    uint32_t number[2] = {inside / p->tp, inside / job->expert_cut};
    uint32_t ranks[2] = {job->group, job->expert_group};
    stw_megatron_params params, shard = {0};
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return no_memory(err);
    STW_TRY(stw_megatron_params_of(job, c->stage, pool, &params, err));
    STW_TRY(stw_megatron_shard_of(job, &params, pool, &shard, err));
    for (int e = 0; e < 2; e++) {
        uint64_t all = c->high[e], each = all;
        if (s.distributed_optimizer) each = stw_div_up_u64(all, ranks[e]);
        const bool dealt = space == STW_MEGATRON_SPACE_RESIDENT && stw_megatron_deals(job);
        if (dealt) each = params.dealt_share[e]; /* as if all had as many as the one with most */
        const uint64_t most = dealt ? all - stw_min_u64(all, each) : all;
        uint64_t skipped =
            s.distributed_optimizer ? stw_min_u64(most, stw_times(number[e] % ranks[e], each)) : 0;
        c->high[e] = all - skipped;
        c->low[e] = c->high[e] - stw_min_u64(each, c->high[e]);
        if (space == STW_SPACE_PARAMS || space == STW_SPACE_GRADS) continue;
        if (stw_optimizer_divides(job->run)) continue;
        uint64_t off = stw_megatron_offloaded(job, &shard, e == 1);
        off = stw_min_u64(off, c->high[e] - c->low[e]);
        if (!stw_megatron_offloads(job)) off = c->high[e] - c->low[e];
        if (space == STW_SPACE_OPTIMIZER)
            c->high[e] = c->low[e] + off;
        else
            c->low[e] += off;
    }
out:
    stw_pool_free(pool);
    return status;
}

/* Is the space cut over data-parallel ranks, too? */
static bool is_cut(const stw_job *job, uint32_t space) {
    if (space == STW_SPACE_PARAMS) return stw_megatron_cuts_params(job->run);
    if (space == STW_SPACE_GRADS) return stw_megatron_cuts_grads(job->run);
    return true;
}

stw_status stw_megatron_cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_parallel *p = &job->run->parallel;
    uint32_t inside = rank % (job->world / p->pp);
    cutting c = {.stage = stw_megatron_stage(job, rank),
                 .tp = inside % p->tp,
                 .expert_part = inside % job->expert_cut};
    count_stage(job, space, &c, c.high);
    if (is_cut(job, space)) STW_TRY(cut_state(job, space, rank, &c, err));
    uint64_t global = 0;
    for (uint32_t i = 0; i < job->model->n_tensors; i++) {
        const stw_tensor *t = &job->model->tensors[i];
        uint64_t first, n, *seen = &c.seen[t->expert];
        if (stw_megatron_holds(job, c.stage, t->block) && is_in(job, space, i)) {
            run_of(job, t, c.tp, c.expert_part, &first, &n);
            uint64_t low = stw_max_u64(c.low[t->expert], *seen);
            uint64_t high = stw_min_u64(c.high[t->expert], *seen + n);
            if (low < high)
                STW_TRY(stw_space_add(out, i, global, first + low - *seen, high - low, err));
            *seen += n;
        }
        global += t->numel;
    }
out:
    return status;
}

/* The first replica of each part; of a tied embedding the first stage's. */
bool stw_megatron_counts(const stw_job *job, uint32_t space, uint32_t rank) {
    const stw_parallel *p = &job->run->parallel;
    if (is_cut(job, space) && stw_megatron_settings_of(job->run).distributed_optimizer)
        return rank % (job->world / p->pp) / p->tp < job->group; /* of the first instance */
    return rank % (job->world / p->pp) < p->tp;
}

uint64_t stw_megatron_dummy_grads(const stw_job *job, const stw_megatron_params *params) {
    const stw_megatron_param *seen[MOST_SHAPES];
    uint32_t n = 0;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < params->n; i++) {
        const stw_megatron_param *p = &params->list[i];
        uint32_t k = 0;
        while (k < n && (seen[k]->numel != p->numel || seen[k]->row != p->row)) k++;
        if (!p->product || k < n || n == MOST_SHAPES) continue;
        if (!stw_megatron_is_layer(job, p->block) && !stw_megatron_is_mtp(job, p->block)) continue;
        seen[n++] = p;
        elements = stw_plus(elements, p->numel);
    }
    return elements;
}

uint64_t stw_megatron_part_of_chunk(const stw_megatron_params *params, uint32_t chunk,
                                    bool expert) {
    const uint64_t all = expert ? params->expert : params->dense;
    uint64_t n = 0;
    for (uint32_t i = 0; i < params->n; i++) {
        const stw_megatron_param *p = &params->list[i];
        if (p->expert == expert && p->chunk == chunk) n = stw_plus(n, p->numel);
    }
    uint64_t in = expert ? params->expert_padded : params->dense_padded;
    return all > 0 ? (uint64_t)((double)in * ((double)n / (double)all) + 0.5) : 0;
}
