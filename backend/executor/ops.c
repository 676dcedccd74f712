/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of an executed movement does. Called from the threads of the streams. */
#include "backend/executor/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/run_sync.h"
#include "backend/norm.h"
#include "core/checked.h"

void stw_exec_rates(const stw_rank_run *run, uint32_t group, double *lr, double *decay) {
    const stw_run_spec *spec = &run->plan->run;
    *lr = spec->optimizer.lr;
    *decay = spec->optimizer.weight_decay;
    if (group > 0) {
        const stw_param_group *own = &spec->optimizer.groups[group - 1];
        if (own->lr < STW_AUTO_NUMBER) *lr = own->lr;
        if (own->weight_decay < STW_AUTO_NUMBER) *decay = own->weight_decay;
    }
    if (!isnan(run->lr[group])) *lr = run->lr[group];
}

stw_adamw stw_exec_adamw(const stw_rank_run *run, uint64_t step) {
    const stw_run_spec *spec = &run->plan->run;
    stw_adamw a = stw_adamw_make(spec->optimizer.lr, spec->optimizer.beta1, spec->optimizer.beta2,
                                 spec->optimizer.eps, spec->optimizer.weight_decay, step,
                                 spec->optimizer.clip_norm > 0.0);
    for (uint32_t g = 0; g <= spec->optimizer.n_groups; g++) {
        double lr, decay;
        stw_exec_rates(run, g, &lr, &decay);
        stw_adamw_set_group(&a, g, lr, decay, step);
    }
    return a;
}

static stw_status update(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_bucket_operands operands;
    if (op->unit >= run->layout->n_buckets)
        return stw_fail(err, STW_STATUS_BUG, "update", "bucket %u of %u", op->unit,
                        run->layout->n_buckets);
    stw_exec_operands(run->plan, run->layout, op->unit, &operands);
    operands.first_span = run->bucket_spans[op->unit].first;
    operands.n_spans = run->bucket_spans[op->unit].n;
    return run->backend->update(run->device, op->stream, &run->adamw, &operands, err);
}

/* Squares of the gradients that lie in the op's tier. */
static stw_status norm(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS || region->tier != op->to) continue;
        STW_TRY(run->backend->norm_add(
            run->device, op->stream,
            stw_typed(region->tier, region->offset_bytes, run->types.grads, region->params), err));
    }
out:
    return status;
}

/* The exact sum over ranks, of which one replica counts; then the factor that updates use. On a GPU
 * all of it is queued on the stream; nobody waits here. */
static stw_status norm_sum(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t *counters = NULL;
    bool counts = stw_job_counts(run->job, STW_SPACE_GRADS, run->ranks.rank);
    STW_TRY(run->backend->norm_counters(run->device, op->stream, counts, &counters, err));
    STW_TRY(stw_comm_sum_counters(run->comm, counters, STW_NORM_COUNTERS, err));
    STW_TRY(run->backend->norm_factor(run->device, op->stream, run->plan->run.optimizer.clip_norm,
                                      err));
out:
    return status;
}

/* A collective whose peers do not come would hold the stream for ever: its end is awaited with the
 * deadline, by the thread of its stream alone. */
stw_status stw_exec_settle(stw_rank_run *run, uint32_t op, stw_error *err) {
    if (run->program->ops[op].kind != STW_OP_NORM_SUM || run->ranks.world == 1)
        return STW_STATUS_OK;
    return stw_comm_wait(run->comm, "sum of squared gradients", err);
}

/* Master weights of a region: its parameters, widened, wherever they lie. */
static stw_status make_master(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_region *master = &run->layout->regions[op->unit];
    const stw_view wanted = stw_region_view(master, &run->spaces[master->space]);
    uint64_t size = stw_element_bytes(run->types.params), made = 0;
    stw_overlap part;
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *params = &run->layout->regions[i];
        if (params->component != STW_COMPONENT_PARAMS) continue;
        stw_meet meet =
            stw_meet_begin(wanted, stw_region_view(params, &run->spaces[params->space]));
        while (stw_meet_next_run(&meet, &part)) {
            made += part.n;
            STW_TRY(run->backend->convert(
                run->device, op->stream,
                stw_typed(master->tier,
                          master->offset_bytes +
                              (part.a_first - master->first_param) * sizeof(float),
                          STW_ELEMENT_F32, part.n),
                stw_at(params->tier,
                       params->offset_bytes + stw_times(part.b_first - params->first_param, size)),
                run->plan->run.precision.params, err));
        }
    }
    if (made != master->params)
        status = stw_fail(err, STW_STATUS_BUG, "master",
                          "this rank has params of %llu of the %llu elements of region %u",
                          (unsigned long long)made, (unsigned long long)master->params, op->unit);
out:
    return status;
}

static stw_status copy_bytes(stw_rank_run *run, const stw_op *op, uint64_t bytes, stw_error *err) {
    return run->backend->copy(run->device, op->stream, stw_at(op->to, op->offset_bytes),
                              stw_at(op->from, op->from_offset_bytes), bytes, err);
}

static stw_status copy(stw_rank_run *run, const stw_op *op, stw_error *err) {
    return copy_bytes(run, op, op->bytes, err);
}

/* The plan's bytes of a piece are of the plan's weights; these may be others. */
static stw_status copy_piece(stw_rank_run *run, const stw_op *op, stw_error *err) {
    if (op->from_offset_bytes == STW_OFFSET_EXTERNAL) return STW_STATUS_OK;
    return copy_bytes(run, op, stw_transfer_piece_bytes(run, op->unit), err);
}

static stw_status nvme_read(stw_rank_run *run, const stw_op *op, stw_error *err) {
    return run->backend->read(run->device, op->offset_bytes, op->from_offset_bytes, op->bytes, err);
}

static stw_status nvme_write(stw_rank_run *run, const stw_op *op, stw_error *err) {
    return run->backend->write(run->device, op->offset_bytes, op->from_offset_bytes, op->bytes,
                               err);
}

static stw_status commit(stw_rank_run *run, const stw_op *op, stw_error *err) {
    (void)op;
    return run->backend->commit(run->device, run->step, err);
}

/* To the ranks of this one's node, from the first of them, or to all from rank op->peer. A
 * broadcast of the world is the transport's own. */
static stw_status send_to(stw_rank_run *run, const stw_op *op, uint64_t bytes, stw_error *err) {
    uint32_t ranks, on_node;
    stw_job_group_size(run->job, op->group, &ranks, &on_node);
    if (ranks == run->ranks.world)
        return stw_comm_broadcast(run->comm, op->to, op->offset_bytes, bytes, op->peer, err);
    if (op->group != STW_RANK_GROUP_NODE)
        return stw_fail(err, STW_STATUS_BUG, stw_rank_group_name(op->group),
                        "a send to %u of %u ranks", ranks, run->ranks.world);
    uint32_t *list = calloc(ranks, sizeof *list);
    if (list == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "send", "out of memory");
    for (uint32_t i = 0; i < ranks; i++) list[i] = run->ranks.rank / ranks * ranks + i;
    const stw_comm_group group = {list, ranks};
    const stw_status status =
        stw_comm_group_broadcast(run->comm, &group, op->to, op->offset_bytes, bytes, list[0], err);
    free(list);
    return status;
}

/* One send may be under way while the next is prepared: its end is awaited with the deadline, so
 * that a rank which does not come is noticed, and named by the tensor. */
static stw_status send(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (run->sending) STW_TRY(stw_comm_wait(run->comm, run->sending_what, err));
    snprintf(run->sending_what, sizeof run->sending_what, "broadcast of %.100s",
             op->unit == STW_OP_NONE ? "parameters" : stw_transfer_piece_name(run, op->unit));
    run->sending = true;
    uint64_t bytes = op->unit == STW_OP_NONE ? op->bytes : stw_transfer_piece_bytes(run, op->unit);
    stw_comm_about(run->comm, run->sending_what);
    STW_TRY(send_to(run, op, bytes, err));
out:
    return status;
}

static stw_status pack(stw_rank_run *run, const stw_op *op, stw_error *err) {
    return stw_run_sync_is(run, run->movement) ? stw_run_sync_pack(run, op, err)
                                               : stw_transfer_pack(run, op, err);
}

static stw_status place(stw_rank_run *run, const stw_op *op, stw_error *err) {
    return stw_run_sync_is(run, run->movement) ? stw_run_sync_place(run, op, err)
                                               : stw_transfer_place(run, op, err);
}

/* For tests: who reads what was freed finds no number. */
static void poison(stw_rank_run *run, const stw_op *op) {
    bool region = op->offset_bytes + op->bytes <= run->layout->persistent_bytes[op->to];
    if (!run->options->poison_freed || run->backend->gpu || !region || op->to == STW_TIER_NVME)
        return;
    void *address = op->to == STW_TIER_GPU
                        ? run->backend->device_address(run->device, op->offset_bytes, op->bytes)
                        : run->backend->host_address(run->device, op->offset_bytes, op->bytes);
    if (address != NULL) memset(address, 0xff, (size_t)op->bytes);
}

static stw_status account(stw_rank_run *run, const stw_op *op, stw_error *err) {
    if (op->offset_bytes == STW_OFFSET_EXTERNAL) return STW_STATUS_OK; /* measured, not counted */
    pthread_mutex_lock(&run->mutex);
    stw_exec_count(run, op);
    uint64_t total = run->live.total[op->to];
    pthread_mutex_unlock(&run->mutex);
    if (op->kind == STW_OP_FREE) {
        poison(run, op);
        return STW_STATUS_OK;
    }
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

/* How each operation of the table is issued; NULL: this executor does not. */
static stw_status (*const issues[STW_N_OP_KINDS])(stw_rank_run *, const stw_op *, stw_error *) = {
    [STW_OP_ALLOC] = account,       [STW_OP_FREE] = account,
    [STW_OP_COPY] = copy,           [STW_OP_COPY_PIECE] = copy_piece,
    [STW_OP_NVME_READ] = nvme_read, [STW_OP_NVME_WRITE] = nvme_write,
    [STW_OP_COMMIT] = commit,       [STW_OP_FILE_READ] = stw_transfer_read,
    [STW_OP_PACK] = pack,           [STW_OP_SEND] = send,
    [STW_OP_PLACE] = place,         [STW_OP_EXCHANGE] = stw_run_sync_exchange,
    [STW_OP_MASTER] = make_master,  [STW_OP_NORM] = norm,
    [STW_OP_NORM_SUM] = norm_sum,   [STW_OP_UPDATE] = update,
};

stw_status stw_exec_issue(stw_rank_run *run, uint32_t index, stw_error *err) {
    const stw_op *op = &run->program->ops[index];
    if ((unsigned)op->kind < STW_N_OP_KINDS && issues[op->kind] != NULL)
        return issues[op->kind](run, op, err);
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_op_kind_name(op->kind),
                    "this executor does not issue the operation \"%s\" on component %s",
                    stw_op_kind_name(op->kind), stw_component_name(op->component));
}
