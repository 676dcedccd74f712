/* SPDX-License-Identifier: Apache-2.0 */
/* torch/distributed/fsdp/_fully_shard (torch 2.15). What is gathered is allocated on the stream of
 * the copy into it (FSDPCommContext.all_gather_copy_in_stream), the outputs of reduce-scatters and
 * the gradients cast from them on reduce_scatter_stream (all_reduce_stream with replicas), all else
 * on the stream of computation. Nothing is recorded on a second stream.
 * Sizes are padded to chunks of dimension 0 of equal length (FSDPParam._init_sharded_param). */
#include "plan/engines/fsdp2/tensors.h"

#include <string.h>

#include "core/checked.h"
#include "plan/blocks/trace.h"
#include "plan/engines/bytes.h"
#include "plan/engines/fsdp2/chunks.h"
#include "plan/engines/fsdp2/keys.h"
#include "plan/engines/tensor_parallel.h"

enum {
    COMPUTE = STW_TORCH_COMPUTE_POOL,
    GATHER = STW_TORCH_GATHER_POOL,
    REDUCE = STW_TORCH_REDUCE_POOL,
    ALL_REDUCE = STW_TORCH_ALL_REDUCE_POOL
};

/** A parameter group of FSDP: one block, or all blocks of the root. */
typedef struct unit {
    uint32_t n, first_block;
    uint32_t *model;          /* [n] tensors of the model */
    uint32_t *params, *grads; /* [n] unsharded */
    uint32_t *sums;           /* [n] of gradients that were not reduced */
    uint32_t gathered;        /* the all-gather's output */
    uint32_t output;          /* of the reduce-scatter, where it waits for its all-reduce */
} unit;

struct stw_torch {
    stw_builder *b;
    const stw_job *job;
    const stw_act *acts;
    bool no_grad;
    unit *units;       /* [n_blocks + 1], the root last */
    stw_calls **calls; /* [2 n_groups] of a group's blocks; of one whose input has no gradient */
    stw_calls norm;    /* after the last block */
    uint32_t norm_block;
    stw_kept *kept;        /* [n_blocks + 1], that of the norm last */
    uint32_t normed, loss; /* input of the head; log-softmax */
    uint32_t narrow;       /* the logits, which the model's output holds until it returns */
    uint32_t hidden, grad; /* between two blocks */
    uint32_t passed;       /* a block's input, until the block returns */
    uint32_t embedded;     /* the first block's, until the decoder returns */
    uint32_t leaf;         /* a frozen embedding's output of which a gradient is asked for */
    uint32_t first;        /* the first transformer block */
    uint32_t tables[2];    /* cosines and sines of positions */
    uint32_t held;         /* the last gather's output in forward */
    uint32_t reduced;      /* input of the last reduce-scatter */
};

static uint64_t bytes_of(stw_dtype dtype) { return stw_dtype_bits(dtype) / 8; }

static uint32_t drop(stw_torch *t, uint32_t tensor) {
    stw_tensor_drop(t->b, tensor);
    return STW_NO_TENSOR;
}

static unit *unit_of(stw_torch *t, uint32_t block) {
    return &t->units[block == STW_TORCH_ROOT ? t->job->model->n_blocks : block];
}

static const char *group_name(const stw_torch *t, uint32_t block) {
    return t->job->model->groups[t->job->model->blocks[block].group].name;
}

static bool is_transformer(const stw_torch *t, uint32_t block) {
    return t->job->model->groups[t->job->model->blocks[block].group].facts.transformer;
}

/* Is it sharded over the ranks with the same experts? */
static bool apart(const stw_job *job, uint32_t model_tensor) {
    return job->model->tensors[model_tensor].expert && job->expert_cut > 1;
}

/* Ranks that a tensor is sharded over. */
static uint32_t ways(const stw_job *job, uint32_t model_tensor) {
    const uint32_t ranks = apart(job, model_tensor) ? job->expert_group : job->group;
    return ranks > 0 ? ranks : 1;
}

/* After the cuts over experts and by tensor parallelism. */
static uint64_t padded(const stw_job *job, uint32_t model_tensor) {
    const stw_tensor *tensor = &job->model->tensors[model_tensor];
    const uint64_t numel = stw_job_part(job, model_tensor);
    uint64_t rows = tensor->rank > 0 && tensor->shape[0] > 0 ? tensor->shape[0] : 1;
    uint64_t row = numel / rows; /* 0 where the cut leaves less than a row */
    if (stw_job_tp(job) > 1) rows = stw_tp_rows(job, model_tensor, &row);
    const uint32_t parts = ways(job, model_tensor);
    return row > 0 && !tensor->expert ? stw_times(stw_round_up_u64(rows, parts), row)
                                      : stw_round_up_u64(numel, parts);
}

static uint64_t own(const stw_job *job, uint32_t model_tensor) {
    return padded(job, model_tensor) / ways(job, model_tensor);
}

static void add_tensor(const stw_job *job, uint32_t model_tensor, bool trained,
                       stw_torch_elements *sum) {
    uint64_t *all = apart(job, model_tensor) ? &sum->experts : &sum->dense;
    if (trained && !stw_job_trains(job, model_tensor)) return;
    *all = stw_plus(*all, padded(job, model_tensor));
    sum->own = stw_plus(sum->own, own(job, model_tensor));
}

stw_torch_elements stw_torch_elements_of(const stw_job *job, uint32_t block, bool trained) {
    const stw_block *blk = &job->model->blocks[block];
    stw_torch_elements sum = {0};
    for (uint32_t t = blk->first_tensor; t < blk->first_tensor + blk->n_tensors; t++)
        add_tensor(job, t, trained, &sum);
    return sum;
}

static stw_torch_elements elements_of(const stw_torch *t, const unit *u, bool trained) {
    stw_torch_elements sum = {0};
    for (uint32_t i = 0; i < u->n; i++) add_tensor(t->job, u->model[i], trained, &sum);
    return sum;
}

/* ---- units ---- */

/* Modules of a decoder layer in the order of their registration. */
enum { ATTENTION, MLP, NORMS, N_PARTS };

static int part_of(const stw_torch *t, uint32_t model_tensor) {
    const stw_weight_use use = t->job->model->tensors[model_tensor].use;
    if (stw_module_is_attention(use.module)) return ATTENTION;
    return use.weight == STW_WEIGHT_NORM ? NORMS : MLP;
}

/* Is this a tensor of LoRA, of the weight `base` or of any (UINT32_MAX)? They are registered after
 * the weight. */
static bool is_adapter(const stw_torch *t, uint32_t model_tensor, uint32_t base) {
    const stw_tensor *tensors = t->job->model->tensors;
    if (tensors[model_tensor].use.adapter == STW_ADAPTER_NONE) return false;
    if (base == UINT32_MAX) return true;
    const char *name = tensors[model_tensor].name, *weight = tensors[base].name;
    const size_t stem = strlen(name) - (sizeof ".lora_A.weight" - 1);
    return strncmp(name, weight, stem) == 0 && strcmp(weight + stem, ".weight") == 0;
}

static bool add_block(stw_torch *t, unit *u, uint32_t block) {
    const stw_block *blk = &t->job->model->blocks[block];
    stw_pool *pool = t->b->program->pool;
    const size_t n = (size_t)u->n + blk->n_tensors;
    uint32_t *lists[4];
    for (int i = 0; i < 4; i++) {
        lists[i] = stw_pool_array(pool, n, sizeof(uint32_t));
        if (lists[i] == NULL) return false;
        memset(lists[i], 0xff, n * sizeof(uint32_t));
    }
    if (u->n > 0) memcpy(lists[0], u->model, u->n * sizeof(uint32_t));
    if (u->n == 0) u->first_block = block;
    uint32_t at = u->n;
    for (int part = 0; part < N_PARTS; part++)
        for (uint32_t i = blk->first_tensor; i < blk->first_tensor + blk->n_tensors; i++)
            if (part_of(t, i) == part && !is_adapter(t, i, UINT32_MAX)) {
                lists[0][at++] = i;
                for (uint32_t a = i + 1; a < blk->first_tensor + blk->n_tensors; a++)
                    if (is_adapter(t, a, i)) lists[0][at++] = a;
            }
    u->model = lists[0];
    u->params = lists[1];
    u->grads = lists[2];
    u->sums = lists[3];
    u->n = (uint32_t)n;
    return true;
}

/* What a block calls, and room for what it keeps. */
static bool add_calls(stw_torch *t, uint32_t block) {
    stw_calls **calls = &t->calls[2 * t->job->model->blocks[block].group];
    for (int constant = 0; constant < 2; constant++) {
        if (calls[constant] != NULL) continue;
        calls[constant] = stw_pool_alloc(t->b->program->pool, sizeof *calls[constant]);
        if (calls[constant] == NULL) return false;
        stw_calls_of_block(t->job, block, constant == 1, calls[constant]);
    }
    return stw_kept_new(t->b->program->pool, calls[0], &t->kept[block]);
}

/* Are all blocks known tensor by tensor? Not those whose activations are offloaded. */
static bool blocks_are_known(const stw_job *job, const stw_decisions *decisions) {
    for (uint32_t g = 0; g < job->model->n_groups; g++) {
        if (job->model->groups[g].facts.transformer && !stw_group_is_known(job, g)) return false;
    }
    for (uint32_t i = 0; i < decisions->n_blocks; i++)
        if (decisions->blocks[i].act == STW_ACT_OFFLOAD && decisions->blocks[i].count > 0)
            return false;
    return true;
}

/* Are gradients of micro batches added up before they are reduced? */
static bool reduces_once(const stw_job *job) {
    return job->run->batch.grad_accumulation > 1 &&
           !stw_fsdp_settings_of(job->run).sync_each_micro_batch;
}

static bool has_experts(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts > 0) return true;
    return false;
}

/* Parameters are in the dtype of computation, all of one micro batch. */
static bool plain_is_known(const stw_job *job) {
    return stw_trains_in_place(job) && job->run->precision.params == job->run->precision.compute &&
           job->run->batch.grad_accumulation == 1 && job->run->trainable.lora_rank == 0;
}

/* Its gradient of a tensor. */
static uint32_t plain_grad(const stw_builder *b, uint32_t model_tensor) {
    return b->shard_tensors + b->job->model->n_blocks + 2 + model_tensor;
}

/* Neither known are tensor parallelism, selective recomputation, parameters that are resharded to a
 * node or stay from one micro batch to the next, frozen tensors, adapters beside experts, fused
 * losses and soft-capped logits, nor gradients that add up in the dtype of computation. */
bool stw_torch_is_known(const stw_builder *b) {
    const stw_run_spec *run = b->job->run;
    return stw_tensors_wanted(b) && !b->job->engine->spec.own_process &&
           (b->job->group > 1 || plain_is_known(b->job)) && stw_job_tp(b->job) == 1 &&
           b->job->model->facts_known && run->recompute.granularity != 2 &&
           !stw_fsdp_settings_of(run).reshard_to_node &&
           (run->batch.grad_accumulation == 1 ||
            stw_fsdp_settings_of(run).reshard_after_backward) &&
           (!reduces_once(b->job) || run->precision.reduce != run->precision.compute) &&
           (run->trainable.lora_rank == 0 || !has_experts(b->job->model)) &&
           run->trainable.freeze.n == 0 && !run->loss.fused && !b->job->model->soft_capped &&
           blocks_are_known(b->job, b->decisions);
}

stw_torch *stw_torch_begin(stw_builder *b, const stw_act *acts, bool no_grad) {
    const stw_job *job = b->job;
    const uint32_t n = job->model->n_blocks;
    if (!stw_torch_is_known(b)) return NULL;
    stw_pool *pool = b->program->pool;
    stw_torch *t = stw_pool_alloc(pool, sizeof *t);
    if (t != NULL) t->units = stw_pool_array(pool, (size_t)n + 1, sizeof *t->units);
    if (t != NULL) t->kept = stw_pool_array(pool, (size_t)n + 1, sizeof *t->kept);
    if (t != NULL)
        t->calls = stw_pool_array(pool, 2ull * job->model->n_groups, sizeof(stw_calls *));
    bool made = t != NULL && t->units != NULL && t->kept != NULL && t->calls != NULL;
    for (uint32_t i = 0; made && i < n; i++) {
        t->b = b;
        t->job = job;
        made = add_block(t, unit_of(t, stw_job_in_root(job, i) ? STW_TORCH_ROOT : i), i);
        if (made && is_transformer(t, i)) made = add_calls(t, i);
    }
    if (made) t->norm_block = stw_calls_of_norm(job, &t->norm);
    made = made && stw_kept_new(pool, &t->norm, &t->kept[n]);
    if (!made) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory for tensors");
        return NULL;
    }
    t->acts = acts;
    t->no_grad = no_grad;
    for (uint32_t i = 0; i <= n; i++) t->units[i].gathered = t->units[i].output = STW_NO_TENSOR;
    t->normed = t->loss = t->hidden = t->grad = t->held = t->reduced = STW_NO_TENSOR;
    t->leaf = STW_NO_TENSOR;
    t->narrow = t->passed = t->embedded = t->tables[0] = t->tables[1] = STW_NO_TENSOR;
    return t;
}

/* ---- gather ---- */

/* foreach_all_gather: the inputs are cast or copied up first (_get_param_all_gather_inputs). */
static void gather(stw_torch *t, unit *u) {
    const stw_run_spec *run = t->job->run;
    const uint64_t c = bytes_of(run->precision.compute), e = bytes_of(run->precision.params);
    const bool casts = run->precision.compute != run->precision.params;
    const bool up = t->b->decisions->state[0].place.params == STW_TIER_HOST;
    const stw_torch_elements elements = elements_of(t, u, false);
    /* a group of one rank gathers nothing, and casts in wait_for_unshard */
    const uint64_t experts = t->job->expert_group > 1 ? elements.experts : 0;
    const uint64_t own_dense = elements.own - (elements.experts - experts);
    uint32_t first = t->b->program->n_tensors, flat = STW_NO_TENSOR;
    if (stw_trains_in_place(t->job)) return;
    if (u->gathered != STW_NO_TENSOR || u->n == 0) return;
    if (casts && !up) flat = stw_tensor_take(t->b, GATHER, stw_times(own_dense, c));
    for (uint32_t i = 0; up && i < u->n; i++) {
        const uint64_t shard = own(t->job, u->model[i]);
        uint32_t copied = stw_tensor_take(t->b, GATHER, stw_times(shard, e));
        if (!casts) continue;
        (void)stw_tensor_take(t->b, GATHER, stw_times(shard, c));
        drop(t, copied);
    }
    const uint32_t end = t->b->program->n_tensors;
    u->gathered = stw_tensor_take(t->b, GATHER, stw_times(stw_plus(elements.dense, experts), c));
    drop(t, flat);
    for (uint32_t i = end; up && i > first; i -= casts ? 2 : 1) drop(t, i - 1);
}

/* foreach_all_gather_copy_out */
static void copy_out(stw_torch *t, unit *u) {
    const uint64_t c = bytes_of(t->job->run->precision.compute);
    const bool casts = t->job->run->precision.compute != t->job->run->precision.params;
    for (uint32_t i = 0; i < u->n && !stw_trains_in_place(t->job); i++) {
        const uint64_t bytes = stw_times(padded(t->job, u->model[i]), c);
        const bool alone = apart(t->job, u->model[i]) && t->job->expert_group == 1;
        if (u->params[i] != STW_NO_TENSOR) continue;
        uint32_t cast = alone && casts ? stw_tensor_take(t->b, COMPUTE, bytes) : STW_NO_TENSOR;
        u->params[i] = stw_tensor_take(t->b, COMPUTE, bytes);
        drop(t, cast);
    }
}

static uint64_t hidden_bytes(const stw_torch *t) {
    return stw_times(stw_times(t->job->tokens, bytes_of(t->job->run->precision.compute)),
                     t->job->model->hidden);
}

/* Before the first layer: the embedding, and the rotary tables (transformers,
 * Qwen3RotaryEmbedding.forward), which need the first product. */
static void begin_layers(stw_torch *t, uint32_t block) {
    const stw_job *job = t->job;
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    const uint64_t table = stw_times(job->run->batch.seq_len, f->qk_dim);
    if (t->tables[0] != STW_NO_TENSOR) return;
    if (t->hidden == STW_NO_TENSOR) t->hidden = stw_tensor_take(t->b, COMPUTE, hidden_bytes(t));
    t->embedded = t->hidden;
    t->first = block;
    uint32_t angles = stw_tensor_take(t->b, COMPUTE, stw_times(table, 2)), wide[5];
    stw_torch_take_workspace(t->b, t->job, 0);
    for (int i = 0; i < 5; i++) { /* both halves; cosines, sines, and both scaled */
        wide[i] = stw_tensor_take(t->b, COMPUTE, stw_times(table, 4));
        if (i == 2 || i == 4) drop(t, wide[i - 1]);
    }
    for (int i = 0; i < 2; i++)
        t->tables[i] =
            stw_tensor_take(t->b, COMPUTE, stw_times(table, bytes_of(job->run->precision.compute)));
    drop(t, angles);
    for (int i = 0; i < 5; i += 2) drop(t, wide[i]);
}

void stw_torch_unshard_in_forward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    if (u->n == 0) return;
    if (block != STW_TORCH_ROOT && is_transformer(t, block)) begin_layers(t, block);
    gather(t, u);
    copy_out(t, u);
    t->held = drop(t, t->held); /* wait_for_unshard: comm_ctx.all_gather_state */
    t->held = u->gathered;
    u->gathered = STW_NO_TENSOR;
}

void stw_torch_end_forward(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    t->held = drop(t, t->held);
    t->narrow = drop(t, t->narrow);
}

void stw_torch_gather(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    gather(t, unit_of(t, block));
}

void stw_torch_copy_out(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    if (u->gathered == STW_NO_TENSOR) return; /* it was not resharded */
    copy_out(t, u);
    u->gathered = drop(t, u->gathered);
}

void stw_torch_return(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    t->passed = drop(t, t->passed);
}

void stw_torch_release(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    for (uint32_t i = 0; i < u->n; i++) u->params[i] = drop(t, u->params[i]);
}

/* ---- blocks ---- */

/* With adapters everything else is frozen. */
static bool embedding_is_frozen(const stw_torch *t) { return t->job->run->trainable.lora_rank > 0; }

/* Has a block's input no gradient? */
static bool is_constant(const stw_torch *t, uint32_t block) {
    return t->acts[block] == STW_ACT_KEEP && block == t->first && embedding_is_frozen(t);
}

static stw_trace trace_of(stw_torch *t, uint32_t block) {
    const unit *u = &t->units[block];
    const uint32_t group = t->job->model->blocks[block].group;
    return (stw_trace){.b = t->b,
                       .job = t->job,
                       .calls = t->calls[2 * group + (is_constant(t, block) ? 1 : 0)],
                       .kept = &t->kept[block],
                       .first_tensor = t->job->model->blocks[block].first_tensor,
                       .n_tensors = u->n,
                       .tensors = u->model,
                       .grads = u->grads};
}

/* Of the norm after the last block, which is in the root's unit. */
static stw_trace norm_trace(stw_torch *t) {
    const uint32_t n = t->job->model->n_blocks;
    return (stw_trace){.b = t->b,
                       .job = t->job,
                       .calls = &t->norm,
                       .kept = &t->kept[n],
                       .first_tensor = t->job->model->blocks[t->norm_block].first_tensor,
                       .n_tensors = t->units[n].n,
                       .tensors = t->units[n].model,
                       .grads = t->units[n].grads};
}

void stw_torch_forward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    if (t->hidden == STW_NO_TENSOR) t->hidden = stw_tensor_take(t->b, COMPUTE, hidden_bytes(t));
    if (!is_transformer(t, block)) return;
    stw_trace trace = trace_of(t, block);
    const bool keep = t->acts[block] == STW_ACT_KEEP && !t->no_grad;
    const bool saves = !keep && !t->no_grad;
    if (!saves && t->hidden != t->embedded) t->passed = t->hidden;
    if (saves) t->kept[block].values[STW_VALUE_INPUT] = t->hidden;
    if (saves && t->hidden == t->embedded) {
        /* enable_input_require_grads: checkpointing asks for it, or nothing would be recomputed */
        if (embedding_is_frozen(t)) t->leaf = t->hidden;
        if (embedding_is_frozen(t)) t->kept[block].values[STW_VALUE_INPUT] = STW_NO_TENSOR;
        t->embedded = STW_NO_TENSOR;
    }
    t->hidden = stw_trace_forward(&trace, keep ? STW_TRACE_KEEP : STW_TRACE_FORGET);
}

/* The unsharded gradient of the root's tensor in a block of this group. */
static void root_grad(stw_torch *t, unit *u, const char *group) {
    for (uint32_t i = 0; i < u->n; i++) {
        const stw_tensor *tensor = &t->job->model->tensors[u->model[i]];
        if (strcmp(group_name(t, tensor->block), group) != 0) continue;
        if (u->grads[i] == STW_NO_TENSOR && stw_job_trains(t->job, u->model[i]))
            u->grads[i] = stw_tensor_take(
                t->b, COMPUTE, stw_times(tensor->numel, bytes_of(t->job->run->precision.compute)));
    }
}

void stw_torch_backward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    if (!is_transformer(t, block)) {
        root_grad(t, unit_of(t, block), group_name(t, block));
        return;
    }
    stw_trace trace = trace_of(t, block);
    const bool again = t->acts[block] == STW_ACT_RECOMPUTE;
    if (again) stw_trace_scale(&trace);
    if (again) (void)stw_trace_forward(&trace, STW_TRACE_AGAIN);
    t->grad = stw_trace_backward(&trace, t->grad, again);
}

/* ---- head, loss, embedding ---- */

static uint64_t logits(const stw_torch *t, uint64_t element_bytes) {
    return stw_times(stw_times(t->job->tokens, t->job->model->vocab), element_bytes);
}

uint64_t stw_torch_forward_bytes(const stw_job *job, uint32_t block, stw_pool *pool) {
    const stw_block_facts *f = &job->model->groups[job->model->blocks[block].group].facts;
    stw_program program = {.pool = pool, .with_tensors = true, .n_movements = 1};
    stw_builder b = {.job = job, .program = &program};
    uint64_t live = 0, most = 0;
    if (!f->transformer) return 0;
    if (!stw_group_is_known(job, job->model->blocks[block].group))
        return stw_plus(stw_full_activation_bytes(job, job->model->blocks[block].group),
                        stw_forward_work_bytes(job, job->model->blocks[block].group));
    stw_calls *calls = stw_pool_alloc(pool, sizeof *calls);
    stw_kept kept;
    if (calls == NULL) return 0;
    stw_calls_of_block(job, block, false, calls);
    if (!stw_kept_new(pool, calls, &kept)) return 0;
    stw_trace trace = {.b = &b, .job = job, .calls = calls, .kept = &kept};
    stw_tensors_instead(&b, 0);
    (void)stw_tensor_take(&b, COMPUTE,
                          stw_times(stw_times(job->tokens, bytes_of(job->run->precision.compute)),
                                    job->model->hidden));
    (void)stw_trace_forward(&trace, STW_TRACE_FORGET);
    uint64_t *bytes = stw_pool_array(pool, (size_t)program.n_tensors + 1, sizeof *bytes);
    for (uint32_t i = 0; i < program.n_events && bytes != NULL; i++) {
        const stw_tensor_event *e = &program.events[i];
        if (e->change == STW_TENSOR_TAKE) {
            bytes[e->tensor] = e->bytes;
            live = stw_plus(live, e->bytes);
            most = stw_max_u64(most, live);
        } else if (e->change == STW_TENSOR_DROP) {
            live -= bytes[e->tensor];
        }
    }
    return most;
}

static void take_and_drop(stw_torch *t, const stw_torch_beside *beside) {
    uint32_t tensors[STW_TORCH_MOST_BESIDE];
    for (uint32_t i = 0; i < beside->n; i++)
        tensors[i] = stw_tensor_take(t->b, COMPUTE, beside->bytes[i]);
    for (uint32_t i = 0; i < beside->n; i++) drop(t, tensors[i]);
}

void stw_torch_logits(stw_torch *t, uint32_t first_op, uint64_t bytes,
                      const stw_torch_beside *beside) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_trace norm = norm_trace(t);
    t->normed = stw_trace_forward(&norm, STW_TRACE_FORGET);
    t->hidden = drop(t, t->hidden);
    t->embedded = drop(t, t->embedded);
    for (int i = 0; i < 2; i++) t->tables[i] = drop(t, t->tables[i]);
    t->loss = stw_tensor_take(t->b, COMPUTE, bytes);
    take_and_drop(t, beside);
    t->normed = drop(t, t->normed);
}

void stw_torch_log_prob(stw_torch *t, uint32_t first_op, const stw_torch_beside *beside) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    take_and_drop(t, beside);
    t->loss = drop(t, t->loss);
}

/* The gradient of the root's tensor in a block of this group; NULL if it is frozen. */
static uint32_t *trained_grad(stw_torch *t, unit *u, const char *group) {
    for (uint32_t i = 0; i < u->n; i++) {
        const stw_tensor *tensor = &t->job->model->tensors[u->model[i]];
        if (strcmp(group_name(t, tensor->block), group) == 0 && stw_job_trains(t->job, u->model[i]))
            return &u->grads[i];
    }
    return NULL;
}

/* ForCausalLMLoss: logits, their upcast, log-softmax. */
void stw_torch_loss(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    const stw_run_spec *run = t->job->run;
    const uint64_t wide = bytes_of(run->loss.upcast);
    stw_trace norm = norm_trace(t);
    stw_tensors_instead(t->b, first_op);
    t->normed = stw_trace_forward(&norm, STW_TRACE_KEEP);
    t->hidden = drop(t, t->hidden);
    t->embedded = drop(t, t->embedded);
    if (run->loss.checkpoint) {
        stw_torch_chunks_forward(t->b, t->job);
        return;
    }
    t->narrow = stw_tensor_take(t->b, COMPUTE, logits(t, bytes_of(run->precision.compute)));
    uint32_t up = STW_NO_TENSOR;
    if (run->loss.upcast != run->precision.compute)
        up = stw_tensor_take(t->b, COMPUTE, logits(t, wide));
    t->loss = stw_tensor_take(t->b, COMPUTE, logits(t, wide));
    drop(t, up);
    if (embedding_is_frozen(t)) t->normed = drop(t, t->normed); /* the head is */
}

/* Of all tokens at once: the gradient of the hidden states. */
static uint32_t whole_loss_backward(stw_torch *t) {
    const stw_run_spec *run = t->job->run;
    const uint64_t wide = bytes_of(run->loss.upcast);
    uint32_t likelihood = stw_tensor_take(t->b, COMPUTE, logits(t, wide));
    uint32_t softmax = stw_tensor_take(t->b, COMPUTE, logits(t, wide));
    drop(t, likelihood);
    t->loss = drop(t, t->loss);
    uint32_t narrow = softmax;
    if (run->loss.upcast != run->precision.compute) {
        narrow = stw_tensor_take(t->b, COMPUTE, logits(t, bytes_of(run->precision.compute)));
        drop(t, softmax);
    }
    root_grad(t, unit_of(t, STW_TORCH_ROOT), t->job->model->tied_embeddings ? "embed" : "head");
    if (!embedding_is_frozen(t)) stw_torch_take_workspace(t->b, t->job, 1);
    uint32_t grad = stw_tensor_take(t->b, COMPUTE, hidden_bytes(t));
    if (embedding_is_frozen(t)) stw_torch_take_workspace(t->b, t->job, 1);
    drop(t, narrow);
    return grad;
}

void stw_torch_loss_backward(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_trace norm = norm_trace(t);
    unit *u = unit_of(t, STW_TORCH_ROOT);
    stw_tensors_instead(t->b, first_op);
    uint32_t *head = trained_grad(t, u, t->job->model->tied_embeddings ? "embed" : "head");
    const uint32_t grad = t->job->run->loss.checkpoint
                              ? stw_torch_chunks_backward(t->b, t->job, head)
                              : whole_loss_backward(t);
    t->normed = drop(t, t->normed);
    t->grad = stw_trace_backward(&norm, grad, false);
    root_grad(t, u, "norm");
}

/* embedding_dense_backward (aten/src/ATen/native/cuda/Embedding.cu): from 3072 tokens on they are
 * sorted, and rows are summed in parts of at most 10 (EmbeddingBackwardKernel.cu). */
static uint32_t embedding_grad(stw_torch *t, uint64_t bytes) {
    enum { UNSORTED = 3072, PART = 10, WARP = 32 };
    const uint64_t tokens = t->job->tokens;
    uint32_t own = stw_tensor_take(t->b, COMPUTE, bytes);
    if (tokens <= UNSORTED) return own;
    const uint64_t parts = tokens / PART + stw_min_u64(tokens, t->job->model->vocab);
    const uint64_t stride = stw_round_up_u64(t->job->model->hidden, WARP);
    drop(t, stw_tensor_take(t->b, COMPUTE, stw_times(stw_times(parts, stride), 4)));
    return own;
}

/* A tied embedding has a second gradient, and their sum may be a third one for a moment. */
void stw_torch_embedding_backward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    for (int i = 0; i < 2; i++) t->tables[i] = drop(t, t->tables[i]);
    for (uint32_t i = 0; i < u->n && !embedding_is_frozen(t); i++) {
        const stw_tensor *tensor = &t->job->model->tensors[u->model[i]];
        uint64_t bytes = stw_times(tensor->numel, bytes_of(t->job->run->precision.compute));
        if (strcmp(group_name(t, tensor->block), "embed") != 0) continue;
        uint32_t own = embedding_grad(t, bytes);
        t->grad = drop(t, t->grad);
        if (u->grads[i] == STW_NO_TENSOR) {
            u->grads[i] = own;
            continue;
        }
        stw_torch_add_up(t->b, &u->grads[i], own, !stw_sums_into_head(t->job), bytes);
    }
    if (!embedding_is_frozen(t)) t->grad = drop(t, t->grad);
}

/* ---- reduce ---- */

/* _chunk_cat (aten/src/ATen/native/cuda/TensorShape.cu): the index of a tensor for every 2 KiB of a
 * chunk, beside a few numbers per tensor. */
static void chunk_table(stw_torch *t, const unit *u, uint64_t element) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < u->n; i++) {
        if (!stw_job_trains(t->job, u->model[i])) continue;
        const uint64_t chunk = stw_times(own(t->job, u->model[i]), element);
        blocks = stw_plus(blocks, (chunk + 2047) / 2048);
    }
    drop(t, stw_tensor_take(t->b, COMPUTE, stw_times(stw_plus(blocks, 6ull * u->n), 8)));
}

/* FSDPParam.accumulate_unsharded_grad_if_needed: in place. */
void stw_torch_accumulate(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    if (!reduces_once(t->job)) return;
    stw_tensors_unless(t->b, STW_TENSOR_NOT_FIRST);
    for (uint32_t i = 0; i < u->n; i++) drop(t, u->grads[i]);
    stw_tensors_unless(t->b, 0);
}

/* FSDPParam.to_accumulated_grad_if_needed: the sums begin, in the dtype of the reduction. They take
 * the place of the gradients from then on. */
static void begin_sums(stw_torch *t, unit *u, uint64_t element) {
    if (!reduces_once(t->job)) return;
    stw_tensors_unless(t->b, STW_TENSOR_NOT_LATER);
    for (uint32_t i = 0; i < u->n; i++) {
        const stw_tensor *tensor = &t->job->model->tensors[u->model[i]];
        uint64_t numel = tensor->expert ? tensor->numel / t->job->expert_cut : tensor->numel;
        if (!stw_job_trains(t->job, u->model[i])) continue;
        if (u->sums[i] == STW_NO_TENSOR)
            u->sums[i] = stw_tensor_take(t->b, COMPUTE, stw_times(numel, element));
        drop(t, u->grads[i]);
        u->grads[i] = u->sums[i];
        u->sums[i] = STW_NO_TENSOR;
    }
    stw_tensors_unless(t->b, STW_TENSOR_NOT_EARLIER);
}

/* What a reduction leaves: the sharded gradient, or what is added to it. */
static uint32_t reduced_grad(stw_torch *t, const unit *u, uint32_t stream, uint64_t bytes) {
    stw_builder *b = t->b;
    const uint8_t unless = b->tensors_unless;
    const bool adds = t->job->run->batch.grad_accumulation > 1 && !reduces_once(t->job) &&
                      b->decisions->state[0].place.grads != STW_TIER_HOST;
    if (adds) stw_tensors_unless(b, STW_TENSOR_NOT_LATER);
    stw_tensor_take_as(b, b->shard_tensors + u->first_block, stream, bytes);
    if (!adds) return STW_NO_TENSOR;
    stw_tensors_unless(b, STW_TENSOR_NOT_FIRST);
    uint32_t added = stw_tensor_take(b, stream, bytes);
    stw_tensors_unless(b, unless);
    return added;
}

static void keep_grads(stw_torch *t, unit *u) {
    for (uint32_t i = 0; i < u->n; i++) {
        stw_tensor_rename(t->b, u->grads[i], plain_grad(t->b, u->model[i]));
        u->grads[i] = STW_NO_TENSOR;
    }
}

/* FSDPParamGroup.post_backward, foreach_reduce. The last gradient is held by a loop's variable. */
void stw_torch_reduce(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    const stw_run_spec *run = t->job->run;
    unit *u = unit_of(t, block);
    const stw_torch_elements of = elements_of(t, u, true);
    const uint64_t elements = stw_plus(of.dense, of.experts);
    const uint64_t reduce_bytes = bytes_of(run->precision.reduce);
    const bool replicas = stw_job_replicas(t->job) > 1;
    stw_tensors_instead(t->b, first_op);
    if (stw_trains_in_place(t->job)) {
        keep_grads(t, u);
        return;
    }
    if (u->n > 0) begin_sums(t, u, reduce_bytes);
    if (u->n == 0 || elements > 0) t->reduced = drop(t, t->reduced);
    if (elements > 0) {
        uint32_t last = u->n - 1; /* of those with gradients */
        while (last > 0 && !stw_job_trains(t->job, u->model[last])) last--;
        t->reduced = stw_tensor_take(t->b, COMPUTE, stw_times(elements, reduce_bytes));
        chunk_table(t, u, reduce_bytes);
        for (uint32_t i = last; i-- > 0;) u->grads[i] = drop(t, u->grads[i]); /* list.clear() */
        uint32_t out = STW_NO_TENSOR, added;
        if (run->precision.reduce != run->precision.grads) {
            out = stw_tensor_take(t->b, REDUCE, stw_times(of.own, reduce_bytes));
            added = reduced_grad(t, u, replicas ? ALL_REDUCE : REDUCE,
                                 stw_times(of.own, bytes_of(run->precision.grads)));
        } else {
            added = reduced_grad(t, u, REDUCE, stw_times(of.own, reduce_bytes));
        }
        if (!replicas) out = drop(t, out);
        u->output = out;
        u->grads[last] = drop(t, u->grads[last]);
        drop(t, added);
        if (t->b->decisions->state[0].place.grads == STW_TIER_HOST)
            drop(t, t->b->shard_tensors + u->first_block);
    }
    stw_tensors_unless(t->b, 0);
}

void stw_torch_end_backward(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    t->reduced = drop(t, t->reduced);
    t->grad = drop(t, t->grad);
    t->leaf = drop(t, t->leaf);
    for (uint32_t i = 0; i <= t->job->model->n_blocks; i++)
        t->units[i].output = drop(t, t->units[i].output);
}

/* ---- between backward and step ---- */

static void drop_block(stw_builder *b, uint32_t block) {
    const stw_block *blk = &b->job->model->blocks[block];
    if (!stw_trains_in_place(b->job)) stw_tensor_drop(b, b->shard_tensors + block);
    for (uint32_t i = 0; i < blk->n_tensors && stw_trains_in_place(b->job); i++)
        stw_tensor_drop(b, plain_grad(b, blk->first_tensor + i));
}

void stw_torch_shard_grads(stw_builder *b, uint32_t first_op, bool alloc) {
    if (!stw_torch_is_known(b)) return;
    stw_tensors_instead(b, first_op);
    for (uint32_t i = 0; i < b->job->model->n_blocks && !alloc; i++) drop_block(b, i);
}

void stw_torch_drop_shard_grads(stw_builder *b, uint32_t first_op, uint32_t block) {
    if (!stw_torch_is_known(b)) return;
    stw_tensors_instead(b, first_op);
    drop_block(b, block);
}

void stw_torch_workspace(stw_builder *b, uint32_t first_op) {
    if (stw_torch_is_known(b)) stw_tensors_instead(b, first_op);
}
