/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of an executed movement does. Called from the threads of the streams. */
#include "backend/executor_run.h"

#include <stdio.h>

#include "backend/norm.h"
#include "core/checked.h"

/* Sums over ranks are on the calling thread even where they go through the GPU. */
bool stw_run_on_host(const stw_rank_run *run, uint32_t op) {
    return run->program->ops[op].work == STW_WORK_NORM_SUM;
}

static stw_ring_kind update_ring(const stw_place *place) {
    return place->update == STW_UPDATE_CPU ? STW_RING_HOST_CPU : STW_RING_GPU;
}

uint64_t stw_run_operand(const stw_rank_run *run, const stw_bucket *bucket,
                         stw_component component) {
    const stw_place *place = &run->plan->decisions.state[bucket->decision].place;
    if (!stw_place_moves_up(run->job, place, component) &&
        !stw_place_moves_down(run->job, place, component))
        return stw_layout_address(run->job, run->layout, component, bucket->first_param);
    const stw_ring *ring = &run->layout->rings[update_ring(place)];
    return ring->offset_bytes + bucket->slot * ring->slot_bytes +
           stw_slot_offset(run->job, place, component, bucket->params);
}

static stw_status update(stw_rank_run *run, const stw_op *op, stw_error *err) {
    if (op->unit >= run->layout->n_buckets)
        return stw_fail(err, STW_STATUS_BUG, "update", "bucket %u of %u", op->unit,
                        run->layout->n_buckets);
    const stw_bucket *bucket = &run->layout->buckets[op->unit];
    const stw_run_spec *spec = &run->plan->run;
    stw_adamw adamw =
        stw_adamw_make(spec->optimizer.lr, spec->optimizer.beta1, spec->optimizer.beta2,
                       spec->optimizer.eps, spec->optimizer.weight_decay, run->step,
                       spec->optimizer.clip_norm > 0.0, run->factors[run->step - 1]);
    stw_operands operands = {
        .tier = op->to,
        .params = stw_run_operand(run, bucket, STW_COMPONENT_PARAMS),
        .grads = stw_run_operand(run, bucket, STW_COMPONENT_GRADS),
        .exp_avg = stw_run_operand(run, bucket, STW_COMPONENT_EXP_AVG),
        .exp_avg_sq = stw_run_operand(run, bucket, STW_COMPONENT_EXP_AVG_SQ),
        .n = bucket->params,
    };
    return run->backend->update(run->device, op->stream, &adamw, &operands, err);
}

/* Squares of the gradients that lie in the op's tier. */
static stw_status norm(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS || region->tier != op->to) continue;
        stw_operands operands = {
            .tier = op->to, .grads = region->offset_bytes, .n = region->params};
        STW_TRY(run->backend->norm_add(run->device, op->stream, &operands, err));
    }
out:
    return status;
}

/* The exact sum over ranks, of which one replica counts; then the factor that updates use. */
static stw_status norm_sum(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_norm_bins bins;
    uint64_t counters[STW_NORM_COUNTERS];
    STW_TRY(run->backend->norm_read(run->device, &bins, err));
    if (!run->counts) memset(&bins, 0, sizeof bins);
    stw_norm_normalise(&bins);
    stw_norm_to_counters(&bins, counters);
    STW_TRY(stw_comm_sum_u64(run->comm, counters, STW_NORM_COUNTERS, err));
    stw_norm_from_counters(counters, &bins);
    run->norm = stw_norm_value(&bins);
    run->factors[run->step - 1] =
        stw_norm_clip_factor(run->norm, run->plan->run.optimizer.clip_norm);
out:
    return status;
}

static stw_status copy(stw_rank_run *run, const stw_op *op, stw_error *err) {
    const stw_backend *backend = run->backend;
    /* The plan's bytes of a load piece are of the plan's weights; these may be others. */
    uint64_t bytes = op->component == STW_COMPONENT_LOAD_STAGING
                         ? stw_load_piece_bytes(run, op->unit)
                         : op->bytes;
    if (op->from == STW_TIER_NVME && op->to == STW_TIER_HOST)
        return backend->read(run->device, op->offset_bytes, op->from_offset_bytes, bytes, err);
    if (op->from == STW_TIER_HOST && op->to == STW_TIER_NVME)
        return backend->write(run->device, op->offset_bytes, op->from_offset_bytes, bytes, err);
    return backend->copy(run->device, op->stream, op->to, op->offset_bytes, op->from,
                         op->from_offset_bytes, bytes, err);
}

/* One broadcast may be under way while the next is prepared: its end is awaited with the deadline,
 * so that a rank which does not come is noticed, and named by the tensor. */
static stw_status broadcast(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (run->broadcasting) STW_TRY(stw_comm_wait(run->comm, run->broadcast_of, err));
    snprintf(run->broadcast_of, sizeof run->broadcast_of, "broadcast of %.100s",
             stw_load_piece_name(run, op->unit));
    run->broadcasting = true;
    STW_TRY(stw_comm_broadcast(run->comm, op->to, op->offset_bytes,
                               stw_load_piece_bytes(run, op->unit), 0, err));
out:
    return status;
}

static stw_status not_executable(const stw_op *op, stw_error *err) {
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_op_kind_name(op->kind),
                    "this executor has no operation \"%s %s\" on component %s",
                    stw_op_kind_name(op->kind), stw_work_name(op->work),
                    stw_component_name(op->component));
}

static stw_status account(stw_rank_run *run, const stw_op *op, stw_error *err) {
    if (op->offset_bytes == STW_OFFSET_EXTERNAL) return STW_STATUS_OK; /* measured, not counted */
    pthread_mutex_lock(&run->mutex);
    stw_run_count(run, op);
    uint64_t total = run->live.total[op->to];
    pthread_mutex_unlock(&run->mutex);
    if (op->kind == STW_OP_FREE) return STW_STATUS_OK;
    uint64_t size = run->config.arena_bytes[op->to];
    if (op->offset_bytes > size || op->bytes > size - op->offset_bytes)
        return stw_fail(err, STW_STATUS_BUG, stw_component_name(op->component),
                        "%llu bytes at %llu lie outside the arena of %llu bytes",
                        (unsigned long long)op->bytes, (unsigned long long)op->offset_bytes,
                        (unsigned long long)size);
    if (total > run->config.capacity_bytes[op->to])
        return stw_fail(err, STW_STATUS_NO_RESOURCES, stw_tier_name(op->to),
                        "%llu bytes with %s, the plan's capacity is %llu",
                        (unsigned long long)total, stw_component_name(op->component),
                        (unsigned long long)run->config.capacity_bytes[op->to]);
    return STW_STATUS_OK;
}

stw_status stw_run_issue(stw_rank_run *run, uint32_t index, stw_error *err) {
    const stw_op *op = &run->program->ops[index];
    bool moves =
        op->kind != STW_OP_UPDATE && op->kind != STW_OP_COMPUTE && op->kind != STW_OP_COLLECTIVE;
    if (run->copies_only && !moves) return STW_STATUS_OK;
    switch (op->kind) {
    case STW_OP_ALLOC:
    case STW_OP_FREE:
        return account(run, op, err);
    case STW_OP_COPY:
        return copy(run, op, err);
    case STW_OP_UPDATE:
        return update(run, op, err);
    case STW_OP_READ:
    case STW_OP_WRITE:
        if (op->kind == STW_OP_READ && op->component == STW_COMPONENT_LOAD_STAGING)
            return stw_load_read(run, op, err);
        return copy(run, op, err);
    case STW_OP_COMPUTE:
        if (op->work == STW_WORK_NORM) return norm(run, op, err);
        if (op->work == STW_WORK_PLACE) return stw_load_place(run, op, err);
        return not_executable(op, err);
    case STW_OP_COLLECTIVE:
        if (op->work == STW_WORK_NORM_SUM) return norm_sum(run, err);
        if (op->work == STW_WORK_BROADCAST) return broadcast(run, op, err);
        return not_executable(op, err);
    default:
        return not_executable(op, err);
    }
}
