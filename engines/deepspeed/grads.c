/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 1 leaves gradients with their tensors until the last backward of a step has ended and then
 * reduces them through one bucket. Stage 2 moves every gradient into a bucket as it is made and
 * reduces full buckets; of the result it keeps the tensors of which the rank owns a part, whole
 * (stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads, average_tensor,
 * copy_grads_in_partition). Stage 3 reduce-scatters full buckets into one flat buffer of shards
 * (stage3.py: __add_grad_to_ipg_bucket, __reduce_and_partition_ipg_grads, partition_grads).
 * BF16_Optimizer adds every gradient to a whole fp32 buffer and keeps the 16-bit ones until the
 * step (bf16_optimizer.py). */
#include "engines/deepspeed/grads.h"

#include "core/checked.h"

static uint64_t numel(const stw_grads *g, uint32_t tensor) {
    return g->z->job->model->tensors[tensor].numel;
}

static stw_extent alloc(stw_zero *z, stw_component component, uint64_t bytes) {
    return stw_alloc(z->b, component, STW_TIER_GPU, bytes);
}

static void drop(stw_zero *z, stw_component component, stw_extent *extent, uint32_t after) {
    stw_free_after(z->b, component, STW_TIER_GPU, *extent, after);
    *extent = STW_NO_EXTENT;
}

/* Bytes of the gradients that stages 1 and 2 keep until the step. Collected in fp32 they are the
 * partition alone (_build_compact_grad_partition_buffer). */
static uint64_t partition_bytes(const stw_zero *z) {
    if (z->set.offload_optimizer && !z->fp32_grads) return 0;
    return z->fp32_grads ? stw_times(4, z->placed) : stw_times(stw_zero_owned_whole(z), z->element);
}

static bool accumulates(const stw_zero *z) { return z->job->run->batch.grad_accumulation > 1; }

/* Stage 1 reduces in the last backward of a step alone. */
static bool is_reduced_once(const stw_zero *z) { return z->set.zero_stage == 1; }

/* Buckets of stages 1 and 2 are there from the first gradient on (setup_buckets); in stage 1 they
 * have the dtype in which gradients are collected. */
static void begin_buckets(stw_grads *g) {
    stw_zero *z = g->z;
    if (g->begun || z->set.zero_stage == 3 || z->bf16_optimizer) return;
    uint64_t element = z->fp32_grads && z->set.zero_stage == 1 ? 4 : z->element;
    g->begun = true;
    for (int i = 0; i < (z->set.overlap_comm ? 2 : 1); i++)
        g->buffers[i] = alloc(z, STW_COMPONENT_REDUCE, stw_times(z->set.reduce_bucket, element));
}

bool stw_grads_begin(stw_grads *g, stw_zero *z) {
    *g = (stw_grads){.z = z,
                     .buffers = {STW_NO_EXTENT, STW_NO_EXTENT},
                     .fresh = STW_NO_EXTENT,
                     .large = STW_NO_EXTENT,
                     .writer = {.written = STW_OP_NONE, .waits_for = STW_OP_NONE},
                     .worked = STW_OP_NONE};
    const uint32_t n = z->job->model->n_tensors;
    g->tensors = stw_pool_array(z->b->program->pool, n, sizeof *g->tensors);
    if (g->tensors == NULL) {
        z->b->status = stw_fail(z->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    if (!accumulates(z)) return true;
    g->silent = is_reduced_once(z);
    if (z->set.zero_stage == 2) z->partition = alloc(z, STW_COMPONENT_GRADS, partition_bytes(z));
    if (z->set.zero_stage > 1) return z->b->status == STW_STATUS_OK;
    const uint64_t element = z->fp32_grads && !z->bf16_optimizer ? 4 : z->element;
    for (uint32_t t = 0; t < n; t++)
        if (stw_job_trains(z->job, t))
            z->whole[t] = alloc(z, STW_COMPONENT_GRADS, stw_times(numel(g, t), element));
    begin_buckets(g); /* the first backward made them, the last one drops them */
    return z->b->status == STW_STATUS_OK;
}

/* ---- reductions ---- */

static uint32_t collective(stw_grads *g, stw_op_kind kind, uint64_t bytes, stw_extent at) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, g->block);
    if (g->z->ranks == 1 || g->silent) return g->worked;
    op.group = STW_RANK_GROUP_SHARD;
    op.component = STW_COMPONENT_REDUCE;
    op.from = op.to = STW_TIER_GPU;
    op.from_offset_bytes = op.offset_bytes = at.offset;
    op.bytes = bytes;
    op.after[0] = g->worked;
    op.after[1] = at.alloc;
    return stw_append(g->z->b, op);
}

/* Parts of the bucket with one owner each: what is reduced is a copy where there are several
 * (allreduce_and_scatter flattens them). Parts are not merged where they are added to a partition
 * in fp32. */
static bool is_one_part(const stw_grads *g) {
    uint64_t first = UINT64_MAX, last = 0;
    if (g->z->fp32_grads && g->n > 1) return false;
    for (uint32_t i = 0; i < g->n; i++) {
        uint64_t begin, end;
        stw_zero_parts_of(g->z, g->tensors[i], &begin, &end);
        first = stw_min_u64(first, begin);
        last = stw_max_u64(last, end);
    }
    return first >= last;
}

static uint32_t copy_grads(stw_grads *g, bool up, uint64_t gpu_offset, uint64_t bytes,
                           uint32_t after) {
    const stw_place_at gpu = {STW_TIER_GPU, gpu_offset}, host = {STW_TIER_HOST, 0};
    if (g->silent) return after;
    return stw_copy(g->z->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                              .stream = up ? STW_STREAM_H2D : STW_STREAM_D2H,
                                              .component = STW_COMPONENT_GRADS,
                                              .unit = g->block,
                                              .from = up ? host : gpu,
                                              .to = up ? gpu : host,
                                              .bytes = bytes,
                                              .after = {after, STW_OP_NONE}});
}

/* Elements of which the norm of one tensor makes fp64 copies at once (stage3.py,
 * _constant_buffered_norm2). */
#define NORM_ELEMENTS 250000000u

/* Gradients to the host: first the norm of each, in fp64, then a copy in fp32
 * (stage_1_and_2.py, set_norm_for_param_grad_in_gpu and async_inplace_copy_grad_to_fp32_buffer;
 * stage3.py, _offload_grad_partition_at_boundary). */
static void offload(stw_grads *g, uint64_t params, bool to_host, uint32_t reduced) {
    stw_zero *z = g->z;
    uint64_t at_once = z->set.zero_stage == 3 ? stw_min_u64(params, NORM_ELEMENTS) : params;
    stw_extent squares = alloc(z, STW_COMPONENT_REDUCE, stw_times(8, at_once));
    drop(z, STW_COMPONENT_REDUCE, &squares, STW_OP_NONE);
    if (params == 0) return;
    stw_extent cast = alloc(z, STW_COMPONENT_REDUCE, z->fp32_grads ? 0 : stw_times(4, params));
    uint32_t sent =
        to_host ? copy_grads(g, false, cast.offset, stw_times(4, params), reduced) : reduced;
    if (to_host && accumulates(z) && sent != STW_OP_NONE &&
        !g->silent) /* in the last micro batch */
        z->b->program->ops[sent].once_in = (uint32_t)z->job->run->batch.grad_accumulation;
    drop(z, STW_COMPONENT_REDUCE, &cast, sent);
}

/* Stages 1 and 2 add up the gradients of several micro batches through the GPU, whole tensors at a
 * time (async_accumulate_grad_in_cpu_via_gpu). */
static uint32_t accumulate(stw_grads *g, uint32_t tensor, uint32_t after) {
    const uint64_t bytes = stw_times(numel(g, tensor), g->z->element);
    if (!accumulates(g->z) || g->z->fp32_grads) return after;
    return copy_grads(g, false, 0, bytes, copy_grads(g, true, 0, bytes, after));
}

/* Stages 1 and 2: an all-reduce of all parts together (use_multi_rank_bucket_allreduce), then
 * copies of what the rank owns. */
static void reduce_bucket(stw_grads *g) {
    stw_zero *z = g->z;
    const uint64_t bytes = stw_times(g->filled, z->element);
    if (g->n == 0) return;
    stw_extent flat = alloc(z, STW_COMPONENT_REDUCE, is_one_part(g) ? 0 : bytes);
    stw_extent at = flat.bytes > 0 ? flat : g->large.bytes > 0 ? g->large : g->buffers[0];
    uint32_t reduced = collective(g, STW_OP_ALL_REDUCE, bytes, at);
    drop(z, STW_COMPONENT_REDUCE, &flat, reduced);
    for (uint32_t i = 0; i < g->n; i++) {
        uint64_t owned = stw_zero_owned(z, g->tensors[i]);
        if (owned == 0) continue;
        if (z->partition.bytes == 0)
            z->partition = alloc(z, STW_COMPONENT_GRADS, partition_bytes(z));
        else if (accumulates(z) && z->set.zero_stage == 2 && !z->fp32_grads && g->fresh.bytes == 0)
            g->fresh = alloc(z, STW_COMPONENT_GRADS, partition_bytes(z));
        if (z->set.offload_optimizer)
            offload(g, owned, true, accumulate(g, g->tensors[i], reduced));
    }
    drop(z, STW_COMPONENT_GRADS, &g->large, reduced);
    g->n = 0;
    g->filled = 0;
}

/* The norm, and fp32 gradients that wait until all of the bucket are there. */
static void keep_for_swap(stw_grads *g, uint32_t tensor, stw_extent *back) {
    stw_zero *z = g->z;
    const uint64_t params = stw_zero_shard(z, tensor);
    stw_extent squares =
        alloc(z, STW_COMPONENT_REDUCE, stw_times(8, stw_min_u64(params, NORM_ELEMENTS)));
    drop(z, STW_COMPONENT_REDUCE, &squares, STW_OP_NONE);
    if (z->fp32_grads) drop(z, STW_COMPONENT_REDUCE, back, STW_OP_NONE); /* it is kept itself */
    z->left[tensor] = alloc(z, STW_COMPONENT_GRADS, stw_times(4, params));
}

/* Then they are written, one after the other (stage3.py, _swap_out_offload_fp32_gradients). */
static void swap_bucket(stw_grads *g) {
    stw_zero *z = g->z;
    for (uint32_t i = 0; i < g->n; i++) {
        stw_extent *grad = &z->left[g->tensors[i]];
        if (grad->bytes == 0 ||
            !stw_swap_write_grad(z, &g->writer, g->tensors[i], grad->offset, g->block))
            continue;
        drop(z, STW_COMPONENT_GRADS, grad, g->writer.written);
    }
}

/* Shards are collected on the host and come back to be sent as fp32 (stage3.py,
 * partition_grads). */
static void scatter_one(stw_grads *g, uint32_t tensor, uint32_t reduced) {
    stw_zero *z = g->z;
    const uint64_t params = stw_zero_shard(z, tensor);
    if (!z->set.offload_optimizer) return;
    stw_extent back =
        alloc(z, STW_COMPONENT_REDUCE, stw_times(params, z->fp32_grads ? 4 : z->element));
    uint32_t there = copy_grads(g, false, back.offset, back.bytes, reduced);
    there = copy_grads(g, true, back.offset, back.bytes, there);
    if (z->swapped[z->sub_group_of[tensor]])
        keep_for_swap(g, tensor, &back);
    else
        offload(g, params, z->sub_group_of[tensor] >= z->on_gpu, there);
    drop(z, STW_COMPONENT_REDUCE, &back, there);
}

static void scatter_bucket(stw_grads *g) {
    stw_zero *z = g->z;
    uint64_t padded = 0;
    if (g->n == 0) return;
    for (uint32_t i = 0; i < g->n; i++)
        padded = stw_plus(padded, stw_times(stw_zero_shard(z, g->tensors[i]), z->ranks));
    const uint64_t bytes = stw_times(padded, z->element);
    /* one tensor that needs no padding is reduced where it lies (reduce_scatter_coalesced) */
    const bool in_place = g->n == 1 && padded == numel(g, g->tensors[0]);
    stw_extent flat = alloc(z, STW_COMPONENT_REDUCE, in_place ? 0 : bytes);
    stw_extent at = flat.bytes > 0 ? flat : g->large;
    uint32_t reduced = collective(g, STW_OP_REDUCE_SCATTER, bytes, at);
    /* all shards are cast before any is added */
    stw_extent cast =
        alloc(z, STW_COMPONENT_REDUCE, z->fp32_grads ? stw_times(4, padded / z->ranks) : 0);
    for (uint32_t i = 0; i < g->n; i++) scatter_one(g, g->tensors[i], reduced);
    swap_bucket(g);
    drop(z, STW_COMPONENT_REDUCE, &cast, reduced);
    drop(z, STW_COMPONENT_REDUCE, &flat, reduced);
    drop(z, STW_COMPONENT_GRADS, &g->large, reduced);
    g->n = 0;
    g->filled = 0;
}

/* With overlap_comm, which stage 3 has, reductions have a stream of their own. */
static void reduce(stw_grads *g) {
    const bool apart = g->z->set.overlap_comm || g->z->set.zero_stage == 3;
    g->z->b->pool = apart ? STW_ZERO_REDUCE_POOL : 0;
    if (g->z->set.zero_stage == 3)
        scatter_bucket(g);
    else
        reduce_bucket(g);
    g->z->b->pool = 0;
}

/* ---- one gradient ---- */

/* Into the bucket; a larger one is reduced by itself. */
static void put(stw_grads *g, uint32_t tensor, stw_extent grad) {
    stw_zero *z = g->z;
    if (g->n > 0 && g->filled + numel(g, tensor) > z->set.reduce_bucket) reduce(g);
    g->tensors[g->n++] = tensor;
    g->filled += numel(g, tensor);
    if (numel(g, tensor) > z->set.reduce_bucket)
        g->large = grad;
    else
        drop(z, STW_COMPONENT_GRADS, &grad, STW_OP_NONE);
}

static bool waits(const stw_zero *z) {
    return z->bf16_optimizer || (z->set.zero_stage == 1 && !z->reduces_in_backward);
}

void stw_grads_take(stw_grads *g, uint32_t tensor, stw_extent grad) {
    stw_zero *z = g->z;
    begin_buckets(g);
    if (z->whole[tensor].bytes > 0) { /* added to what earlier micro batches have left */
        drop(z, STW_COMPONENT_GRADS, &grad, STW_OP_NONE);
        grad = z->whole[tensor];
    } else if (z->set.zero_stage == 1 && z->fp32_grads && !z->bf16_optimizer) {
        stw_extent collected = alloc(z, STW_COMPONENT_GRADS, stw_times(4, numel(g, tensor)));
        drop(z, STW_COMPONENT_GRADS, &grad, STW_OP_NONE);
        grad = collected;
    }
    z->whole[tensor] = waits(z) ? grad : STW_NO_EXTENT;
    if (!waits(z)) put(g, tensor, grad);
}

void stw_grads_add(stw_grads *g, uint32_t tensor, uint32_t block, uint32_t worked) {
    g->block = block;
    g->worked = worked;
    if (!stw_job_trains(g->z->job, tensor)) return;
    stw_grads_take(g, tensor,
                   alloc(g->z, STW_COMPONENT_GRADS, stw_times(numel(g, tensor), g->z->element)));
}

/* ---- ends ---- */

/* Tensor by tensor in their order (stage_1_and_2.py, reduce_gradients). */
static void reduce_all(stw_grads *g) {
    stw_zero *z = g->z;
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++) {
        stw_extent grad = z->whole[t];
        if (!stw_job_trains(z->job, t)) continue;
        z->whole[t] = STW_NO_EXTENT;
        g->block = z->job->model->tensors[t].block;
        put(g, t, grad);
    }
}

static uint64_t all_bytes(const stw_zero *z) { return stw_times(z->trained, z->element); }

/* The fp32 buffer is cast for its reduction and back (engine.py, allreduce_bucket with a 16-bit
 * communication_data_type). */
static void reduce_cast(stw_grads *g) {
    stw_extent cast = alloc(g->z, STW_COMPONENT_REDUCE, all_bytes(g->z));
    uint32_t reduced = collective(g, STW_OP_ALL_REDUCE, cast.bytes, cast);
    drop(g->z, STW_COMPONENT_REDUCE, &cast, reduced);
}

void stw_grads_end(stw_grads *g) {
    if (g->z->bf16_optimizer)
        reduce_cast(g);
    else if (waits(g->z))
        reduce_all(g);
    reduce(g);
    drop(g->z, STW_COMPONENT_GRADS, &g->fresh, STW_OP_NONE);
    for (int i = 0; i < 2; i++) drop(g->z, STW_COMPONENT_REDUCE, &g->buffers[i], STW_OP_NONE);
}

void stw_grads_reduce_once(stw_zero *z) {
    if (!is_reduced_once(z) || !accumulates(z)) return;
    if (z->set.offload_optimizer)
        (void)stw_copy(z->b, &(stw_transport){.kind = STW_OP_COPY,
                                              .stream = STW_STREAM_D2H,
                                              .component = STW_COMPONENT_GRADS,
                                              .unit = STW_OP_NONE,
                                              .from = {STW_TIER_GPU, 0},
                                              .to = {STW_TIER_HOST, 0},
                                              .bytes = stw_times(4, z->placed),
                                              .after = {STW_OP_NONE, STW_OP_NONE}});
    if (z->ranks == 1) return;
    stw_op op = stw_op_make(STW_OP_ALL_REDUCE, STW_STREAM_COMM, STW_OP_NONE);
    op.group = STW_RANK_GROUP_SHARD;
    op.component = STW_COMPONENT_REDUCE;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = all_bytes(z);
    (void)stw_append(z->b, op);
}

void stw_grads_appear(stw_zero *z) {
    const uint32_t n = z->job->model->n_tensors;
    if (z->set.zero_stage == 3) return;
    if (!z->bf16_optimizer) {
        z->partition = alloc(z, STW_COMPONENT_GRADS, partition_bytes(z));
        return;
    }
    for (uint32_t t = 0; t < n; t++)
        if (stw_job_trains(z->job, t))
            z->whole[t] = alloc(z, STW_COMPONENT_GRADS,
                                stw_times(z->job->model->tensors[t].numel, z->element));
}

void stw_grads_keep(stw_zero *z, uint32_t group) {
    uint64_t bytes = 0;
    if (z->partition.bytes == 0) return;
    for (uint32_t g = group; z->fp32_grads && g < STW_ZERO_GROUPS; g++)
        bytes = stw_plus(bytes, stw_times(4, z->group_placed[g]));
    for (uint32_t t = 0; !z->fp32_grads && t < z->job->model->n_tensors; t++)
        if (z->places[t].group >= group && stw_zero_owned(z, t) > 0)
            bytes = stw_plus(bytes, stw_times(z->job->model->tensors[t].numel, z->element));
    drop(z, STW_COMPONENT_GRADS, &z->partition, STW_OP_NONE);
    z->partition = alloc(z, STW_COMPONENT_GRADS, bytes);
}

void stw_grads_go(stw_zero *z) {
    drop(z, STW_COMPONENT_GRADS, &z->partition, STW_OP_NONE);
    for (uint32_t t = 0; t < z->job->model->n_tensors; t++)
        drop(z, STW_COMPONENT_GRADS, &z->whole[t], STW_OP_NONE);
}
