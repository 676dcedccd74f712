/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/deepspeed/fetch.h"

#include "core/checked.h"
#include "engines/block_work.h"
#include "engines/deepspeed/calls.h"
#include "engines/deepspeed/swap.h"

enum { NO_TENSOR = UINT32_MAX };

typedef enum where { AWAY, FLYING, HERE } where;

/* Where a shard is. IN_MEMORY: it is never read from NVMe. */
typedef enum shard_at { IN_MEMORY, IN_FILE, BEING_READ, IN_BUFFER } shard_at;

struct stw_fetch_tensor {
    where at;
    shard_at shard;
    bool persists;       /* whole from the first step on */
    bool waited;         /* its handle does not count it any more */
    stw_extent own;      /* the gathered tensor */
    uint32_t handle;     /* that gathers it */
    uint32_t follower;   /* the next tensor of the same handle */
    int64_t fetched_for; /* the use that was last taken from the queue; -1: none */
};

struct stw_fetch_handle {
    stw_extent flat; /* of several tensors: they are copied out of it */
    stw_extent shard;
    uint32_t first, left; /* tensors that were not waited for yet */
    uint32_t op;
    bool copied, alone; /* alone: of one tensor */
};

static uint64_t numel(const stw_fetch *f, uint32_t tensor) {
    return f->z->job->model->tensors[tensor].numel;
}

/* ---- the order of uses ---- */

uint32_t stw_fetch_in_order(const stw_zero *z, uint32_t block, stw_fetch_pass pass, uint32_t i) {
    const stw_block *b = &z->job->model->blocks[block];
    const uint32_t at = pass == STW_FETCH_FORWARD ? i : b->n_tensors - 1 - i;
    return b->first_tensor + z->uses[b->group].tensors[at];
}

static void add_use(stw_fetch *f, uint32_t tensor) {
    uint64_t n = tensor == NO_TENSOR ? 0 : numel(f, tensor);
    f->uses[f->n_uses] = tensor;
    f->before[f->n_uses + 1] = f->before[f->n_uses] + n;
    f->n_uses++;
}

static void add_block(stw_fetch *f, uint32_t block, stw_fetch_pass pass) {
    const stw_model *model = f->z->job->model;
    add_use(f, NO_TENSOR);
    for (uint32_t i = 0; i < model->blocks[block].n_tensors; i++)
        add_use(f, stw_fetch_in_order(f->z, block, pass, i));
}

static void find_next(stw_fetch *f, uint32_t *seen) {
    for (uint32_t t = 0; t < f->z->job->model->n_tensors; t++) seen[t] = f->n_uses;
    for (uint32_t i = f->n_uses; i-- > 0;) {
        if (f->uses[i] == NO_TENSOR) continue;
        f->next[i] = seen[f->uses[i]];
        seen[f->uses[i]] = i;
    }
}

static void order_uses(stw_fetch *f, const stw_act *acts) {
    const stw_model *model = f->z->job->model;
    const uint32_t tied = model->tied_embeddings ? stw_zero_embedding(f->z) : NO_TENSOR;
    for (uint32_t b = 0; b < model->n_blocks; b++) add_block(f, b, STW_FETCH_FORWARD);
    if (tied != NO_TENSOR) add_use(f, tied);
    if (tied != NO_TENSOR) add_use(f, tied);
    for (uint32_t b = model->n_blocks; b-- > 0;) {
        if (acts[b] == STW_ACT_RECOMPUTE) add_block(f, b, STW_FETCH_FORWARD);
        add_block(f, b, STW_FETCH_BACKWARD);
    }
}

bool stw_fetch_begin(stw_fetch *f, stw_zero *z, const stw_act *acts) {
    const stw_model *model = z->job->model;
    stw_pool *pool = z->b->program->pool;
    const size_t most = 3 * ((size_t)model->n_tensors + model->n_blocks) + 2;
    *f = (stw_fetch){.z = z, .needed = STW_OP_NONE};
    f->active = z->set.zero_stage == 3 && (z->ranks > 1 || z->set.offload_param);
    if (!f->active) return true;
    uint32_t *seen = stw_pool_array(pool, model->n_tensors, sizeof *seen);
    f->tensors = stw_pool_array(pool, model->n_tensors, sizeof *f->tensors);
    f->reading = stw_pool_array(pool, model->n_tensors, sizeof *f->reading);
    f->handles = stw_pool_array(pool, most, sizeof *f->handles);
    f->uses = stw_pool_array(pool, most, sizeof *f->uses);
    f->before = stw_pool_array(pool, most + 1, sizeof *f->before);
    f->next = stw_pool_array(pool, most, sizeof *f->next);
    if (seen == NULL || f->tensors == NULL || f->reading == NULL || f->handles == NULL ||
        f->uses == NULL || f->before == NULL || f->next == NULL) {
        z->b->status = stw_fail(z->b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        return false;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        f->tensors[t].persists = numel(f, t) <= z->set.persistence_threshold;
        f->tensors[t].at = f->tensors[t].persists ? HERE : AWAY;
        f->tensors[t].waited = true;
        f->tensors[t].fetched_for = -1;
        f->tensors[t].shard = stw_swap_reads_param(z, t) ? IN_FILE : IN_MEMORY;
    }
    f->fewest = f->free_buffers = z->set.param_buffer_count;
    f->read_by = STW_OP_NONE;
    order_uses(f, acts);
    find_next(f, seen);
    return true;
}

/* ---- shards on NVMe (swap_tensor/partitioned_param_swapper.py) ---- */

/* The read starts after what the GPU has been given so far. */
static void read_shard(stw_fetch *f, uint32_t tensor) {
    f->tensors[tensor].shard = BEING_READ;
    f->reading[f->n_reading++] = tensor;
    if (--f->free_buffers < f->fewest) f->fewest = f->free_buffers;
    f->read_by = stw_copy(
        f->z->b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                  .stream = STW_STREAM_DISK,
                                  .component = STW_COMPONENT_PARAMS,
                                  .unit = f->block,
                                  .from = {STW_TIER_NVME, 0},
                                  .to = {STW_TIER_HOST, 0},
                                  .bytes = stw_swap_param_file(f->z, tensor),
                                  .after = {stw_zero_last(f->z, STW_STREAM_COMPUTE), STW_OP_NONE}});
}

/* A gather reads what is in files, and waits for all reads; if nothing is, but something is being
 * read, it waits for that (partition_parameters.py, _ensure_availability_of_partitioned_params). */
static uint32_t read_shards(stw_fetch *f, uint32_t first) {
    bool waits = false;
    for (uint32_t t = first; t != NO_TENSOR; t = f->tensors[t].follower) {
        if (f->tensors[t].shard == IN_FILE) read_shard(f, t);
        waits = waits || f->tensors[t].shard == BEING_READ;
    }
    if (!waits) return STW_OP_NONE;
    while (f->n_reading > 0) f->tensors[f->reading[--f->n_reading]].shard = IN_BUFFER;
    return f->read_by;
}

/* As many of the next shards as twice what is on its way to the GPU, if there are buffers
 * (__prefetch_nvme_param_partitions). */
static void read_ahead(stw_fetch *f) {
    uint64_t considered = 0;
    if (f->z->set.offload_param != STW_OFFLOAD_NVME) return;
    for (uint32_t use = f->queue; use < f->n_uses; use++) {
        const uint32_t tensor = f->uses[use];
        if (tensor == NO_TENSOR) continue;
        if (considered > 2 * f->in_flight || f->free_buffers <= 0) return;
        if (f->tensors[tensor].shard == IN_FILE) read_shard(f, tensor);
        considered += numel(f, tensor);
    }
}

static void leave_buffer(stw_fetch *f, uint32_t tensor) {
    if (f->tensors[tensor].shard != IN_BUFFER) return;
    f->tensors[tensor].shard = IN_FILE;
    f->free_buffers++;
}

/* ---- gathering ---- */

/* What is gathered and copied out belongs to the stream of the gathers (__allgather_stream). */
static stw_extent alloc(stw_fetch *f, stw_component component, uint64_t bytes) {
    f->z->b->pool = STW_ZERO_GATHER_POOL;
    const stw_extent extent = stw_alloc(f->z->b, component, STW_TIER_GPU, bytes);
    f->z->b->pool = 0;
    return extent;
}

/* Shards that lie on the host go up first (partition_parameters.py, _all_gather_dtype and
 * _all_gather_sequential: ds_tensor.to(device)). */
static uint32_t bring_shards(stw_fetch *f, stw_fetch_handle *h, uint64_t bytes) {
    stw_builder *b = f->z->b;
    if (!f->z->set.offload_param) return STW_OP_NONE;
    const uint32_t read = read_shards(f, h->first);
    h->shard = alloc(f, STW_COMPONENT_STAGE, bytes);
    return stw_copy(b, &(stw_transport){.kind = STW_OP_COPY_BLOCK,
                                        .stream = STW_STREAM_H2D,
                                        .component = STW_COMPONENT_PARAMS,
                                        .unit = f->block,
                                        .from = {STW_TIER_HOST, 0},
                                        .to = {STW_TIER_GPU, h->shard.offset},
                                        .bytes = bytes,
                                        .after = {h->shard.alloc, read}});
}

static void drop_shards(stw_fetch *f, stw_fetch_handle *h) {
    stw_free_after(f->z->b, STW_COMPONENT_STAGE, STW_TIER_GPU, h->shard, h->op);
    h->shard = STW_NO_EXTENT;
}

/* One all-gather of the tensors that follow `first`. The input of one tensor's gather is its shard,
 * which the collective holds until it is waited for; shards of several are copied into the
 * output. */
static void gather(stw_fetch *f, uint32_t first) {
    stw_builder *b = f->z->b;
    stw_fetch_handle *h = &f->handles[f->n_handles];
    uint64_t shards = 0;
    *h = (stw_fetch_handle){.flat = STW_NO_EXTENT, .shard = STW_NO_EXTENT, .first = first};
    for (uint32_t t = first; t != NO_TENSOR; t = f->tensors[t].follower) {
        f->tensors[t].at = FLYING;
        f->tensors[t].waited = false;
        f->tensors[t].handle = f->n_handles;
        shards = stw_plus(shards, stw_zero_shard(f->z, t));
        f->available += numel(f, t);
        f->in_flight += numel(f, t);
        h->left++;
    }
    f->n_handles++;
    uint64_t bytes = stw_times(shards, f->z->element);
    h->flat = alloc(f, STW_COMPONENT_UNSHARD, stw_times(bytes, f->z->ranks));
    h->op = bring_shards(f, h, bytes);
    if (f->z->ranks > 1) {
        stw_op op = stw_op_make(STW_OP_ALL_GATHER, STW_STREAM_COMM, f->block);
        op.group = STW_RANK_GROUP_SHARD;
        op.component = STW_COMPONENT_UNSHARD;
        op.from = op.to = STW_TIER_GPU;
        op.from_offset_bytes = h->shard.bytes > 0 ? h->shard.offset : h->flat.offset;
        op.offset_bytes = h->flat.offset;
        op.bytes = h->flat.bytes;
        op.after[0] = h->op;
        op.after[1] = h->flat.alloc;
        h->op = stw_append(b, op);
    }
    h->alone = h->left == 1;
    if (!h->alone) drop_shards(f, h);
}

/* AllGatherCoalescedHandle.wait copies all tensors out at once; the flat buffer stays until the
 * last of them has been waited for, because the handle refers to it. */
static void wait_for(stw_fetch *f, uint32_t tensor) {
    stw_builder *b = f->z->b;
    stw_fetch_tensor *t = &f->tensors[tensor];
    if (t->waited) return;
    stw_fetch_handle *h = &f->handles[t->handle];
    if (f->needed == STW_OP_NONE || (h->op != STW_OP_NONE && h->op > f->needed)) f->needed = h->op;
    for (uint32_t i = h->first; !h->copied && i != NO_TENSOR; i = f->tensors[i].follower) {
        f->tensors[i].at = HERE;
        f->tensors[i].own =
            h->alone ? h->flat
                     : alloc(f, STW_COMPONENT_UNSHARD, stw_times(numel(f, i), f->z->element));
    }
    h->copied = true;
    t->waited = true;
    f->in_flight -= numel(f, tensor);
    drop_shards(f, h);
    if (--h->left == 0 && !h->alone)
        stw_free_after(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, h->flat, h->op);
}

/* Uses are taken from the queue until so many elements are on their way; what is there already
 * stays for them. */
static void prefetch(stw_fetch *f) {
    const stw_zero *z = f->z;
    uint64_t most = z->set.max_live_parameters, taken = 0;
    most = most > f->available ? most - f->available : 0;
    most = stw_min_u64(most, z->set.prefetch_bucket);
    uint32_t first = NO_TENSOR, last = NO_TENSOR;
    while (f->queue < f->n_uses && taken < most) {
        const uint32_t use = f->queue++, tensor = f->uses[use];
        if (tensor == NO_TENSOR) continue;
        if (f->tensors[tensor].shard == IN_FILE) { /* read_ahead's turn */
            f->queue--;
            break;
        }
        stw_fetch_tensor *t = &f->tensors[tensor];
        if ((int64_t)use > t->fetched_for) t->fetched_for = (int64_t)use;
        if (t->at != AWAY) continue;
        t->at = FLYING;
        t->follower = NO_TENSOR;
        if (last == NO_TENSOR)
            first = tensor;
        else
            f->tensors[last].follower = tensor;
        last = tensor;
        taken += numel(f, tensor);
    }
    if (first != NO_TENSOR) gather(f, first);
    if (z->set.prefetch_bucket > 0) read_ahead(f);
}

static void take_from_queue(stw_fetch *f, uint32_t tensor) {
    if (f->tensors[tensor].fetched_for >= (int64_t)f->step) return;
    while (f->queue < f->n_uses && f->queue <= f->step) {
        uint32_t use = f->queue++;
        if (f->uses[use] != NO_TENSOR) f->tensors[f->uses[use]].fetched_for = (int64_t)use;
    }
}

void stw_fetch_enter(stw_fetch *f, uint32_t block) {
    f->block = block;
    if (!f->active || f->z->b->status != STW_STATUS_OK) return;
    prefetch(f);
    f->step++;
}

void stw_fetch_next(stw_fetch *f, uint32_t block) {
    f->block = block;
    if (!f->active || f->z->b->status != STW_STATUS_OK) return;
    uint32_t tensor = f->uses[f->step];
    if (f->tensors[tensor].at == AWAY) {
        f->tensors[tensor].follower = NO_TENSOR;
        gather(f, tensor);
    }
    wait_for(f, tensor);
    take_from_queue(f, tensor);
    prefetch(f);
    f->step++;
}

uint32_t stw_fetch_compute(stw_fetch *f, stw_op_kind kind, uint32_t block, const stw_work *work) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, block);
    op.component = STW_COMPONENT_ACTIVATIONS;
    op.from = op.to = STW_TIER_GPU;
    stw_op_set_work(f->z->b, &op, work);
    op.after[0] = f->needed;
    return stw_append(f->z->b, op);
}

/* ---- releasing ---- */

static void free_tensor(stw_fetch *f, uint32_t tensor) {
    stw_fetch_tensor *t = &f->tensors[tensor];
    stw_free_after(f->z->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, t->own, f->handles[t->handle].op);
    t->own = STW_NO_EXTENT;
    t->at = AWAY;
    leave_buffer(f, tensor);
    f->available -= numel(f, tensor);
}

/* A tensor stays if prefetching has passed over a later use of it, or if it is used again within
 * max_reuse_distance elements (__params_to_release). */
static void release(stw_fetch *f, uint32_t use) {
    const uint32_t tensor = f->uses[use];
    const stw_fetch_tensor *t = &f->tensors[tensor];
    if (t->persists || t->fetched_for > (int64_t)f->step) return;
    const bool again = f->next[use] < f->n_uses;
    if (again && f->before[f->next[use]] - f->before[use + 1] < f->z->set.max_reuse_distance)
        return;
    free_tensor(f, tensor);
}

void stw_fetch_release(stw_fetch *f, uint32_t n) {
    if (!f->active || f->z->b->status != STW_STATUS_OK) return;
    for (; n > 0; n--) release(f, f->step - n);
}

/* swap_in asserts that there is a buffer for every shard that is read. */
static void check_buffers(const stw_fetch *f) {
    if (f->fewest >= 0 || f->z->b->status != STW_STATUS_OK) return;
    f->z->b->status = stw_fail(
        f->z->b->err, STW_STATUS_BAD_INPUT, "deepspeed.param_buffer_count",
        "found %u, expected at least %llu: each shard that is gathered or read ahead has a buffer "
        "until its parameter is let go; a lower deepspeed.max_reuse_distance needs fewer",
        f->z->set.param_buffer_count,
        (unsigned long long)((int64_t)f->z->set.param_buffer_count - f->fewest));
}

void stw_fetch_end(stw_fetch *f) {
    const uint32_t n = f->z->job->model->n_tensors;
    if (!f->active || f->z->b->status != STW_STATUS_OK) return;
    for (uint32_t t = 0; t < n; t++) wait_for(f, t);
    for (uint32_t t = 0; t < n; t++)
        if (f->tensors[t].at == HERE && !f->tensors[t].persists) free_tensor(f, t);
    check_buffers(f);
}
