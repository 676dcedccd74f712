/* SPDX-License-Identifier: Apache-2.0 */
/* torch/distributed/fsdp/_fully_shard (torch 2.15). What is gathered is allocated on the stream of
 * the copy into it (FSDPCommContext.all_gather_copy_in_stream), the outputs of reduce-scatters and
 * the gradients cast from them on reduce_scatter_stream (all_reduce_stream with replicas), all else
 * on the stream of computation. Nothing is recorded on a second stream.
 * Sizes are padded to chunks of dimension 0 of equal length (FSDPParam._init_sharded_param). */
#include "engines/fsdp2/tensors.h"

#include <string.h>

#include "blocks/block_tensors.h"
#include "core/checked.h"
#include "engines/bytes.h"
#include "engines/fsdp_keys.h"
#include "engines/tensor_parallel.h"

enum {
    COMPUTE = STW_TORCH_COMPUTE_POOL,
    GATHER = STW_TORCH_GATHER_POOL,
    REDUCE = STW_TORCH_REDUCE_POOL,
    ALL_REDUCE = STW_TORCH_ALL_REDUCE_POOL
};

/** A parameter group of FSDP: one block, or all blocks of the root. */
typedef struct unit {
    uint32_t n, first_block;
    uint32_t *model;   /* [n] tensors of the model */
    uint32_t *params;  /* [n] unsharded */
    uint32_t *sums;    /* [n] of gradients that were not reduced */
    uint32_t gathered; /* the all-gather's output */
    uint32_t output;   /* of the reduce-scatter, where it waits for its all-reduce */
} unit;

struct stw_torch {
    stw_builder *b;
    const stw_job *job;
    unit *units; /* [n_blocks + 1], the root last */
    stw_decoder decoder;
    uint32_t held;    /* the last gather's output in forward */
    uint32_t reduced; /* input of the last reduce-scatter */
};

static uint64_t bytes_of(stw_dtype dtype) { return stw_dtype_bits(dtype) / 8; }

static uint32_t drop(stw_torch *t, uint32_t tensor) {
    stw_tensor_drop(t->b, tensor);
    return STW_NO_TENSOR;
}

static unit *unit_of(stw_torch *t, uint32_t block) {
    return &t->units[block == STW_TORCH_ROOT ? t->job->model->n_blocks : block];
}

/* The unsharded gradient of a unit's tensor. */
static uint32_t *grad_of(stw_torch *t, const unit *u, uint32_t i) {
    return &t->decoder.grads[u->model[i]];
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

static bool add_block(stw_torch *t, unit *u, uint32_t block) {
    const stw_block *blk = &t->job->model->blocks[block];
    stw_pool *pool = t->b->program->pool;
    const size_t n = (size_t)u->n + blk->n_tensors;
    uint32_t *lists[3];
    for (int i = 0; i < 3; i++) {
        lists[i] = stw_pool_array(pool, n, sizeof(uint32_t));
        if (lists[i] == NULL) return false;
        memset(lists[i], 0xff, n * sizeof(uint32_t));
    }
    if (u->n > 0) memcpy(lists[0], u->model, u->n * sizeof(uint32_t));
    if (u->n == 0) u->first_block = block;
    stw_block_tensors(t->job->model, block, lists[0] + u->n);
    u->model = lists[0];
    u->params = lists[1];
    u->sums = lists[2];
    u->n = (uint32_t)n;
    return true;
}

/* Are gradients of micro batches added up before they are reduced? */
static bool reduces_once(const stw_job *job) {
    return job->run->batch.grad_accumulation > 1 &&
           !stw_fsdp_settings_of(job->run).sync_each_micro_batch;
}

/* Of a plain module: parameters are in the dtype of computation, all of one micro batch. Of a group
 * of one rank: nothing comes from the host. */
static bool one_is_known(const stw_builder *b) {
    const stw_run_spec *run = b->job->run;
    if (!stw_trains_in_place(b->job)) return b->decisions->state[0].place.params == STW_TIER_GPU;
    return run->precision.params == run->precision.compute && run->batch.grad_accumulation == 1 &&
           run->trainable.lora_rank == 0;
}

/* Its gradient of a tensor. */
static uint32_t plain_grad(const stw_builder *b, uint32_t model_tensor) {
    return b->shard_tensors + b->job->model->n_blocks + 2 + model_tensor;
}

/* Of modules, attention and MLP alone. */
static bool modules_are_known(const stw_run_spec *run) {
    const stw_fsdp_modules modules = stw_fsdp_modules_of(run);
    return run->recompute.granularity != 2 || (!modules.ops && !modules.layernorm);
}

static void checkpoint_modules(stw_torch *t) {
    const stw_fsdp_modules modules = stw_fsdp_modules_of(t->job->run);
    if (t->job->run->recompute.granularity != 2) return;
    for (uint32_t i = 0; i < 2 * t->job->model->n_groups; i++) {
        stw_calls *calls = t->decoder.calls[i];
        if (calls == NULL || t->job->model->groups[i / 2].facts.vision) continue;
        if (modules.self_attn) stw_calls_checkpoint(calls, STW_PART_ATTENTION);
        if (modules.mlp) stw_calls_checkpoint(calls, STW_PART_MLP);
    }
}

/* Neither known are parameters that are resharded to a node or stay from one micro batch to the
 * next, nor gradients that add up in the dtype of computation. */
bool stw_torch_is_known(const stw_builder *b) {
    const stw_run_spec *run = b->job->run;
    return stw_tensors_wanted(b) && !b->job->engine->spec.own_process &&
           (b->job->group > 1 || one_is_known(b)) && !stw_fsdp_settings_of(run).reshard_to_node &&
           modules_are_known(run) &&
           (run->batch.grad_accumulation == 1 ||
            stw_fsdp_settings_of(run).reshard_after_backward) &&
           (!reduces_once(b->job) || run->precision.reduce != run->precision.compute) &&
           stw_decoder_is_known(b->job, b->decisions);
}

stw_torch *stw_torch_begin(stw_builder *b, const stw_act *acts, bool no_grad) {
    const stw_job *job = b->job;
    const uint32_t n = job->model->n_blocks;
    if (!stw_torch_is_known(b)) return NULL;
    stw_pool *pool = b->program->pool;
    stw_torch *t = stw_pool_alloc(pool, sizeof *t);
    if (t != NULL) t->units = stw_pool_array(pool, (size_t)n + 1, sizeof *t->units);
    bool made = t != NULL && t->units != NULL;
    for (uint32_t i = 0; made && i < n; i++) {
        t->b = b;
        t->job = job;
        made = add_block(t, unit_of(t, stw_job_in_root(job, i) ? STW_TORCH_ROOT : i), i);
    }
    if (!made) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory for tensors");
        return NULL;
    }
    if (!stw_decoder_begin(&t->decoder, b, acts, no_grad, NULL)) return NULL;
    checkpoint_modules(t);
    for (uint32_t i = 0; i <= n; i++) t->units[i].gathered = t->units[i].output = STW_NO_TENSOR;
    t->held = t->reduced = STW_NO_TENSOR;
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
    const uint64_t experts = t->job->expert_group > 1 ? elements.experts : 0;
    const uint64_t own_dense = elements.own - (elements.experts - experts);
    uint32_t first = t->b->program->n_tensors, flat = STW_NO_TENSOR;
    if (t->job->group == 1) return;
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

/* A group of one rank gathers nothing, and casts in wait_for_unshard (FSDPParamGroup). */
static bool is_alone(const stw_job *job, uint32_t model_tensor) {
    return apart(job, model_tensor) ? job->expert_group == 1 : job->group == 1;
}

/* foreach_all_gather_copy_out. A cast goes when the loop has the next one. */
static void copy_out(stw_torch *t, unit *u) {
    const uint64_t c = bytes_of(t->job->run->precision.compute);
    const bool casts = t->job->run->precision.compute != t->job->run->precision.params;
    uint32_t last = STW_NO_TENSOR;
    for (uint32_t i = 0; i < u->n && !stw_trains_in_place(t->job); i++) {
        const uint64_t bytes = stw_times(padded(t->job, u->model[i]), c);
        if (u->params[i] != STW_NO_TENSOR) continue;
        if (is_alone(t->job, u->model[i]) && casts) {
            const uint32_t cast = stw_tensor_take(t->b, COMPUTE, bytes);
            drop(t, last);
            last = cast;
        }
        u->params[i] = stw_tensor_take(t->b, COMPUTE, bytes);
    }
    drop(t, last);
}

void stw_torch_unshard_in_forward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    if (block == STW_TORCH_ROOT) stw_decoder_begin_forward(&t->decoder);
    if (u->n == 0) return;
    if (block != STW_TORCH_ROOT &&
        t->job->model->groups[t->job->model->blocks[block].group].facts.transformer)
        stw_decoder_begin_block(&t->decoder, block);
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
    stw_decoder_end_forward(&t->decoder);
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
    if (block != STW_TORCH_ROOT) stw_decoder_begin_backward(&t->decoder, block);
    if (u->gathered == STW_NO_TENSOR && t->job->group > 1) return; /* it was not resharded */
    copy_out(t, u);
    u->gathered = drop(t, u->gathered);
}

void stw_torch_return(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_return(&t->decoder);
}

void stw_torch_release(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    unit *u = unit_of(t, block);
    stw_tensors_instead(t->b, first_op);
    for (uint32_t i = 0; i < u->n; i++) u->params[i] = drop(t, u->params[i]);
}

/* ---- the decoder ---- */

void stw_torch_forward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_forward(&t->decoder, block);
}

void stw_torch_backward(stw_torch *t, uint32_t first_op, uint32_t block) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_again(&t->decoder, block);
    stw_decoder_backward(&t->decoder, block);
}

void stw_torch_logits(stw_torch *t, uint32_t first_op, uint64_t bytes,
                      const stw_torch_beside *beside) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_logits(&t->decoder, bytes, beside);
}

void stw_torch_log_prob(stw_torch *t, uint32_t first_op, const stw_torch_beside *beside) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_log_prob(&t->decoder, beside);
}

void stw_torch_loss(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_loss(&t->decoder);
}

void stw_torch_loss_backward(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_head_backward(&t->decoder);
    stw_decoder_norm_backward(&t->decoder);
}

void stw_torch_embedding_backward(stw_torch *t, uint32_t first_op) {
    if (t == NULL) return;
    stw_tensors_instead(t->b, first_op);
    stw_decoder_embedding_backward(&t->decoder);
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
    for (uint32_t i = 0; i < u->n; i++) drop(t, *grad_of(t, u, i));
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
        drop(t, *grad_of(t, u, i));
        *grad_of(t, u, i) = u->sums[i];
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

static void keep_grads(stw_torch *t, const unit *u) {
    for (uint32_t i = 0; i < u->n; i++) {
        stw_tensor_rename(t->b, *grad_of(t, u, i), plain_grad(t->b, u->model[i]));
        *grad_of(t, u, i) = STW_NO_TENSOR;
    }
}

/* FSDPParamGroup.post_backward, foreach_reduce. The last gradient is held by a loop's variable,
 * which a group of one rank does not have. */
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
        if (t->job->group == 1) last = u->n;
        t->reduced = stw_tensor_take(t->b, COMPUTE, stw_times(elements, reduce_bytes));
        chunk_table(t, u, reduce_bytes);
        for (uint32_t i = last; i-- > 0;) /* list.clear() */
            *grad_of(t, u, i) = drop(t, *grad_of(t, u, i));
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
        if (last < u->n) *grad_of(t, u, last) = drop(t, *grad_of(t, u, last));
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
    stw_decoder_end_backward(&t->decoder);
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
