/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core 0.16.1, distributed/fsdp/src/megatron_fsdp):
 * - megatron_fsdp.py, _register_fsdp_hooks: parameters of a unit are gathered before its forward
 *   and again before its backward, and released after each; those of no unit at their first use,
 *   and they stay until finish_grad_sync resets the pipeline at the end of the iteration. The final
 *   norm and the head gather what follows their bucket, too: the first layers once more. These go
 *   when the backward gathers for the first time (_root_pre_backward, recycle_unused_buckets).
 * - param_and_grad_buffer.py, AllGatherPipeline.all_gather_params: the buckets that follow (in
 *   backward: that precede) are gathered, too, until they have suggested_AG_prefetch_size elements;
 *   with double buffers no more than two units at once.
 * - main_grad_getter, GradReducePipeline: the first gradient of a bucket allocates all of it whole
 *   in the dtype of the main gradients; the last one starts its reduce-scatter into a new tensor,
 *   which is added to the rank's part (with double buffers: into a part of the bucket). Buckets are
 *   released in their order, before the next reduction, as soon as those that wait have more than
 *   suggested_RS_queue_capacity elements; the last ones as backward ends. With double buffers those
 *   that wait and the one that begins belong to two units at most. */
#include "engines/megatron/fsdp_pass.h"

#include "core/checked.h"
#include "engines/megatron/megatron.h"

static uint64_t element(const stw_megatron_flow *f, stw_component component) {
    return stw_job_element_bytes(f->b->job, component);
}

static bool doubles(const stw_megatron_flow *f) {
    return stw_megatron_settings_of(f->b->job->run).fsdp_double_buffer;
}

static bool is_alone(const stw_megatron_bucket *bucket) { return bucket->ways == 1; }

static bool stays(const stw_megatron_bucket *bucket) { return bucket->pooled || bucket->kept; }

uint64_t stw_megatron_flow_pool_bytes(const stw_job *job, const stw_megatron_fsdp *fsdp) {
    return stw_times(stw_plus(stw_times(2, fsdp->pool), fsdp->kept),
                     stw_plus(stw_job_element_bytes(job, STW_COMPONENT_PARAMS),
                              stw_job_element_bytes(job, STW_COMPONENT_GRADS)));
}

static uint32_t collective(stw_megatron_flow *f, stw_op_kind kind, uint32_t number,
                           const uint32_t *after, uint64_t share) {
    const stw_megatron_bucket *bucket = &f->fsdp->buckets[number];
    const bool gathers = kind == STW_OP_ALL_GATHER;
    stw_op op = stw_op_make(kind, STW_STREAM_COMM, bucket->first);
    op.component = gathers ? STW_COMPONENT_UNSHARD : STW_COMPONENT_REDUCE;
    op.group = bucket->expert ? STW_RANK_GROUP_EXPERT_DP : STW_RANK_GROUP_DP;
    op.from = op.to = STW_TIER_GPU;
    op.bytes = stw_times(bucket->elements,
                         element(f, gathers ? STW_COMPONENT_PARAMS : STW_COMPONENT_GRADS)) /
               share;
    op.after[0] = after[0];
    op.after[1] = after[1];
    return stw_append(f->b, op);
}

/* ---- parameters ---- */

static void release(stw_megatron_flow *f, uint32_t number) {
    struct stw_megatron_held *h = &f->held[number];
    stw_free(f->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, h->weights);
    h->weights = STW_NO_EXTENT;
    h->gathered = false;
}

/* What is gathered for no unit stays for all micro batches: each has its share of the bytes. */
static void gather(stw_megatron_flow *f, uint32_t number) {
    const stw_megatron_bucket *bucket = &f->fsdp->buckets[number];
    struct stw_megatron_held *h = &f->held[number];
    if (h->gathered || is_alone(bucket)) return;
    h->recycled = false;
    for (uint32_t i = 0; i < f->fsdp->n; i++) {
        if (f->held[i].recycled) release(f, i);
        f->held[i].recycled = false;
    }
    h->gathered = true;
    if (!stays(bucket))
        h->weights = stw_alloc(f->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU,
                               stw_times(bucket->elements, element(f, STW_COMPONENT_PARAMS)));
    const uint32_t after[2] = {stays(bucket) ? f->pools[0].alloc : h->weights.alloc, f->worked};
    h->ready = collective(f, STW_OP_ALL_GATHER, number, after,
                          bucket->unit == STW_MEGATRON_NO_UNIT ? f->passes : 1);
}

static bool holds(const stw_megatron_flow *f, uint32_t number, uint32_t block) {
    const stw_megatron_bucket *bucket = &f->fsdp->buckets[number];
    if (f->in_unit[block]) return bucket->unit == block;
    return bucket->unit == STW_MEGATRON_NO_UNIT && bucket->first <= block && block <= bucket->last;
}

/* Units of the pool among those that are gathered together: at most two. */
typedef struct unit_set {
    uint32_t n, units[3];
} unit_set;

static void add_unit(unit_set *set, uint32_t unit) {
    for (uint32_t i = 0; i < set->n; i++)
        if (set->units[i] == unit) return;
    if (set->n < 3) set->units[set->n++] = unit;
}

/* Buckets [from, to] and what is gathered ahead of them, in the order of their numbers. */
static void gather_ahead(stw_megatron_flow *f, uint32_t from, uint32_t to, bool backward) {
    uint64_t ahead = 0;
    unit_set set = {0};
    for (uint32_t i = from; i <= to; i++) {
        f->held[i].recycled = false;
        if (f->fsdp->buckets[i].pooled) add_unit(&set, f->fsdp->buckets[i].unit);
    }
    while (ahead < f->fsdp->prefetch) {
        if (backward ? from == 0 : to + 1 == f->fsdp->n) break;
        const uint32_t next = backward ? from - 1 : to + 1;
        if (doubles(f)) add_unit(&set, f->fsdp->buckets[next].unit);
        if (set.n > 2) break;
        ahead = stw_plus(ahead, f->fsdp->buckets[next].elements);
        *(backward ? &from : &to) = next;
    }
    for (uint32_t i = from; i <= to; i++) gather(f, i);
}

static uint32_t gather_block(stw_megatron_flow *f, uint32_t block, bool backward) {
    uint32_t from = UINT32_MAX, to = 0, ready = STW_OP_NONE;
    if (backward && !f->in_unit[block]) return STW_OP_NONE; /* it is there */
    for (uint32_t i = 0; i < f->fsdp->n; i++) {
        if (!holds(f, i, block)) continue;
        if (from == UINT32_MAX) from = i;
        to = i;
    }
    if (from == UINT32_MAX) return STW_OP_NONE;
    gather_ahead(f, from, to, backward);
    for (uint32_t i = from; i <= to; i++) /* of this block alone */
        if (f->held[i].gathered && (ready == STW_OP_NONE || f->held[i].ready > ready))
            ready = f->held[i].ready;
    return ready;
}

/* ---- gradients ---- */

/* The oldest reduction has ended: its bucket goes. */
static void pop(stw_megatron_flow *f) {
    struct stw_megatron_held *h = &f->held[f->queue[0]];
    stw_free_after(f->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, h->grads, h->ready);
    h->grads = STW_NO_EXTENT;
    f->n_queue--;
    for (uint32_t i = 0; i < f->n_queue; i++) f->queue[i] = f->queue[i + 1];
}

static void wait_for_capacity(stw_megatron_flow *f) {
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < f->n_queue; i++)
        waiting = stw_plus(waiting, f->fsdp->buckets[f->queue[i]].elements);
    while (f->n_queue > 0 && waiting > f->fsdp->reduce_capacity) {
        waiting -= f->fsdp->buckets[f->queue[0]].elements;
        pop(f);
    }
}

static void keep_two_units(stw_megatron_flow *f, uint32_t number) {
    unit_set set = {0};
    uint32_t keep = f->n_queue;
    if (!doubles(f)) return;
    if (f->fsdp->buckets[number].pooled) add_unit(&set, f->fsdp->buckets[number].unit);
    for (uint32_t i = f->n_queue; i-- > 0;) {
        add_unit(&set, f->fsdp->buckets[f->queue[i]].unit);
        if (set.n > 2) keep--;
    }
    while (f->n_queue > keep) pop(f);
}

/* The first gradient of a bucket. */
static void open_grads(stw_megatron_flow *f, uint32_t number) {
    const stw_megatron_bucket *bucket = &f->fsdp->buckets[number];
    struct stw_megatron_held *h = &f->held[number];
    if (h->filled || is_alone(bucket)) return;
    h->filled = true;
    keep_two_units(f, number);
    if (!stays(bucket))
        h->grads = stw_alloc(f->b, STW_COMPONENT_REDUCE, STW_TIER_GPU,
                             stw_times(bucket->elements, element(f, STW_COMPONENT_GRADS)));
}

/* The last gradient of a bucket. */
static void reduce(stw_megatron_flow *f, uint32_t number) {
    const stw_megatron_bucket *bucket = &f->fsdp->buckets[number];
    struct stw_megatron_held *h = &f->held[number];
    if (!h->filled || h->reducing || is_alone(bucket)) return;
    wait_for_capacity(f);
    uint64_t part = stw_times(bucket->elements / bucket->ways, element(f, STW_COMPONENT_GRADS));
    stw_extent reduced = stw_alloc(f->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, doubles(f) ? 0 : part);
    const uint32_t after[2] = {reduced.alloc, f->worked};
    h->ready = collective(f, STW_OP_REDUCE_SCATTER, number, after, 1);
    stw_free_after(f->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, reduced, h->ready);
    h->reducing = true;
    f->queue[f->n_queue++] = number;
}

/* ---- what pass.c calls ---- */

void stw_megatron_flow_begin(stw_megatron_flow *f, stw_builder *b, const stw_megatron_fsdp *fsdp) {
    *f = (stw_megatron_flow){.b = b,
                             .fsdp = fsdp,
                             .grads = stw_megatron_cuts_grads(b->job->run),
                             .params = stw_megatron_cuts_params(b->job->run),
                             .passes = b->job->run->batch.grad_accumulation,
                             .pools = {STW_NO_EXTENT, STW_NO_EXTENT},
                             .worked = STW_OP_NONE};
    if (!f->grads || b->status != STW_STATUS_OK) return;
    f->held = stw_pool_array(b->program->pool, fsdp->n, sizeof *f->held);
    f->queue = stw_pool_array(b->program->pool, fsdp->n, sizeof *f->queue);
    f->in_unit = stw_pool_array(b->program->pool, b->job->model->n_blocks, sizeof *f->in_unit);
    if (f->held == NULL || f->queue == NULL || f->in_unit == NULL) {
        b->status = stw_fail(b->err, STW_STATUS_NO_MEMORY, "program", "out of memory");
        f->grads = f->params = false;
        return;
    }
    for (uint32_t i = 0; i < fsdp->n; i++)
        if (fsdp->buckets[i].unit != STW_MEGATRON_NO_UNIT) f->in_unit[fsdp->buckets[i].unit] = true;
    for (uint32_t i = 0; i < fsdp->n; i++)
        f->held[i] = (struct stw_megatron_held){.weights = STW_NO_EXTENT, .grads = STW_NO_EXTENT};
    const uint64_t pool = stw_plus(stw_times(2, fsdp->pool), fsdp->kept);
    f->pools[0] = stw_alloc(b, STW_COMPONENT_UNSHARD, STW_TIER_GPU,
                            stw_times(pool, element(f, STW_COMPONENT_PARAMS)));
    f->pools[1] = stw_alloc(b, STW_COMPONENT_REDUCE, STW_TIER_GPU,
                            stw_times(pool, element(f, STW_COMPONENT_GRADS)));
}

uint32_t stw_megatron_flow_before(stw_megatron_flow *f, uint32_t block, bool backward) {
    uint32_t ready = f->params ? gather_block(f, block, backward) : STW_OP_NONE;
    for (uint32_t i = f->fsdp->n; f->grads && backward && i-- > 0;)
        if (holds(f, i, block)) open_grads(f, i);
    return ready;
}

void stw_megatron_flow_after(stw_megatron_flow *f, uint32_t block, bool backward, uint32_t worked) {
    if (!f->grads) return;
    f->worked = worked;
    for (uint32_t i = 0; i < f->fsdp->n; i++) {
        const stw_megatron_bucket *bucket = &f->fsdp->buckets[i];
        if (backward && holds(f, i, block) && bucket->first == block) reduce(f, i);
        if (bucket->unit == block) release(f, i);
    }
}

void stw_megatron_flow_turn(stw_megatron_flow *f) {
    for (uint32_t i = 0; f->params && i < f->fsdp->n; i++)
        f->held[i].recycled = f->fsdp->buckets[i].unit != STW_MEGATRON_NO_UNIT;
}

void stw_megatron_flow_end(stw_megatron_flow *f) {
    if (!f->grads) return;
    for (uint32_t i = f->fsdp->n; i-- > 0;) { /* what no block of the pass had */
        if (f->held[i].reducing) continue;
        open_grads(f, i);
        reduce(f, i);
    }
    while (f->n_queue > 0) pop(f);
    for (uint32_t i = 0; i < f->fsdp->n; i++) release(f, i);
    stw_free(f->b, STW_COMPONENT_REDUCE, STW_TIER_GPU, f->pools[1]);
    stw_free(f->b, STW_COMPONENT_UNSHARD, STW_TIER_GPU, f->pools[0]);
}
