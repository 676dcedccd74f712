/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/run_sync.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/run_parts.h"
#include "core/checked.h"
#include "core/log.h"
#include "engines/sync_plan.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

/* The movement that is executed, or NULL. */
static const stw_movement *movement_of(const stw_rank_run *run) {
    const stw_movement *m = stw_program_movement(run->program, STW_PHASE_WEIGHT_SYNC);
    return m != NULL && m->by_stowage && m->executable && !m->transfer.used ? m : NULL;
}

/* ---- preparing ---- */

/* Buffers of this rank lie in what the program allocates for its kind. */
static stw_status find_buffers(stw_rank_run *run, stw_error *err) {
    stw_run_sync *sync = run->sync;
    const stw_movement *m = sync->movement;
    const stw_sync_view *v = sync->view;
    const uint64_t need = STW_SUM(v->send_bytes, v->receive_bytes, v->bucket_bytes);
    sync->sets = stw_sync_schedule_rounds(sync->schedule) > 1 ? 2 : 1;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &run->program->ops[i];
        if (op->kind != STW_OP_ALLOC || op->component != STW_COMPONENT_STAGE) continue;
        sync->base = op->offset_bytes;
        sync->room = op->bytes / sync->sets;
    }
    if (need <= sync->room) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "weight sync", "buffers of %llu bytes, expected %llu",
                    (unsigned long long)sync->room, (unsigned long long)need);
}

static stw_status make_schedule(const stw_job *job, stw_sync_schedule **out, stw_error *err) {
    stw_pool *pool = stw_pool_new(); /* the schedule takes it */
    stw_sync_job sync;
    if (pool == NULL) return no_memory(err);
    const stw_status status = stw_sync_job_of(job, pool, &sync, err);
    if (status == STW_STATUS_OK) return stw_sync_schedule_new(pool, &sync, out, err);
    stw_pool_free(pool);
    return status;
}

stw_status stw_run_sync_prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t most = 0;
    if (movement_of(run) == NULL) goto out;
    stw_run_sync *sync = run->sync = stw_pool_alloc(run->pool, sizeof *sync);
    if (sync == NULL) STW_TRY(no_memory(err));
    sync->movement = movement_of(run);
    STW_TRY(make_schedule(run->job, &sync->schedule, err));
    sync->job = stw_sync_schedule_job(sync->schedule);
    STW_TRY(stw_sync_schedule_view(sync->schedule, run->ranks.rank, &sync->view, err));
    STW_TRY(find_buffers(run, err));
    for (uint32_t r = 0; r < stw_sync_schedule_rounds(sync->schedule); r++) {
        const uint32_t n = sync->view->first_message[r + 1] - sync->view->first_message[r];
        if (n > most) most = n;
    }
    sync->messages = stw_pool_array(run->pool, (size_t)most + 1, sizeof *sync->messages);
    if (sync->messages == NULL) status = no_memory(err);
out:
    return status;
}

/* ---- where pieces lie ---- */

static void c_order(const uint64_t *shape, uint64_t stride[STW_BOX_DIMS]) {
    stride[STW_BOX_DIMS - 1] = 1;
    for (int d = STW_BOX_DIMS - 1; d > 0; d--) stride[d - 1] = stw_times(stride[d], shape[d]);
}

/* Tensors of the sync are those of the model. */
static stw_status cut_boxes(const void *cutter, uint32_t tensor, uint64_t first, uint64_t n,
                            stw_export_take take, void *state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t *shape = ((const stw_sync_job *)cutter)->tensors[tensor].shape;
    stw_box boxes[STW_BOX_RUNS];
    stw_sync_piece piece = {.tensor = tensor};
    const unsigned n_boxes = stw_box_of_run(shape, first, n, boxes);
    c_order(shape, piece.stride);
    for (unsigned i = 0; i < n_boxes; i++) { /* one after the other */
        piece.box = boxes[i];
        STW_TRY(take(state, &piece, err));
        piece.offset += stw_box_volume(&boxes[i]);
    }
out:
    return status;
}

/* The rank's targets one after the other, each as a tensor of its own. */
static stw_status find_targets(const stw_rank_run *run, stw_pool *pool, stw_sync_places *out,
                               stw_error *err) {
    const stw_sync_job *job = run->sync->job;
    const uint64_t first = run->layout->rollout_offset_bytes;
    uint64_t at = first, end = run->config.arena_bytes[STW_TIER_GPU];
    stw_sync_piece *targets = stw_pool_array(pool, (size_t)job->n_targets + 1, sizeof *targets);
    if (targets == NULL) return no_memory(err);
    for (uint32_t i = 0; i < job->n_targets; i++) {
        stw_sync_piece *t = &targets[i];
        *t = job->targets[i];
        if (t->rank != run->ranks.rank) continue;
        const uint64_t width = stw_sync_width(t->dtype);
        t->memory = 0;
        t->offset = at / width;
        c_order(t->box.count, t->stride);
        at += stw_sync_aligned(stw_times(stw_box_volume(&t->box), width));
    }
    out->targets = targets;
    if (at <= end || at == first) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "weight sync",
                    "the rollout's weights end at %llu, the arena at %llu", (unsigned long long)at,
                    (unsigned long long)end);
}

stw_status stw_run_sync_open(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = NULL;
    stw_sync_places places = {NULL, NULL, NULL};
    stw_run_sync *sync = run->sync;
    if (sync == NULL) goto out;
    pool = stw_pool_new();
    if (pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_find_parts(run, sync->job->n_tensors, cut_boxes, sync->job, pool, &places, err));
    STW_TRY(find_targets(run, pool, &places, err));
    void *const arenas[2] = {run->backend->device_address(run->device, 0, 0),
                             run->backend->host_address(run->device, 0, 0)};
    const stw_sync_memories memories = {(const void *const *)arenas, arenas, 2, 2};
    const stw_sync_options options = {.backend = run->backend->name,
                                      .gpu_is_given = run->config.gpu_is_given,
                                      .gpu = run->config.gpu,
                                      .places = &places};
    STW_TRY(stw_sync_device_open(sync->schedule, run->ranks.rank, &options, &memories,
                                 &sync->device, err));
out:
    stw_pool_free(pool);
    return status;
}

void stw_run_sync_close(stw_rank_run *run) {
    if (run->sync == NULL) return;
    stw_sync_device_close(run->sync->device);
    stw_sync_schedule_free(run->sync->schedule);
}

/* ---- operations ---- */

const char *stw_run_sync_tensor(const stw_rank_run *run, uint32_t round) {
    const stw_run_sync *sync = run->sync;
    const stw_sync_view *v = sync->view;
    const stw_sync_job *job = sync->job;
    uint32_t tensor = job->n_tensors;
    if (v->first_pack[round] < v->first_pack[round + 1])
        tensor = job->sources[v->packs[v->first_pack[round]].source].tensor;
    else if (v->first_place[round] < v->first_place[round + 1])
        tensor = job->targets[v->places[v->first_place[round]].target].tensor;
    return tensor < job->n_tensors ? job->tensors[tensor].name : "nothing of this rank";
}

typedef struct buffers {
    uint64_t send, receive, bucket; /* in the GPU arena */
} buffers;

static buffers buffers_of(const stw_run_sync *sync, uint32_t round) {
    const uint64_t send = sync->base + stw_times(round % sync->sets, sync->room);
    return (buffers){send, send + sync->view->send_bytes,
                     send + sync->view->send_bytes + sync->view->receive_bytes};
}

static void *address(const stw_rank_run *run, uint64_t offset) {
    return run->backend->device_address(run->device, offset, 0);
}

stw_status stw_run_sync_pack(stw_rank_run *run, const stw_op *op, stw_error *err) {
    const buffers b = buffers_of(run->sync, op->unit);
    return stw_sync_device_pack(run->sync->device, op->unit, address(run, b.send),
                                run->backend->native_stream(run->device, op->stream), err);
}

stw_status stw_run_sync_place(stw_rank_run *run, const stw_op *op, stw_error *err) {
    const buffers b = buffers_of(run->sync, op->unit);
    void *stream = run->backend->native_stream(run->device, op->stream);
    if (op->component == STW_COMPONENT_ROLLOUT_WEIGHTS && !stw_sync_is_in_place(run->job))
        return stw_sync_device_collect(run->sync->device, op->unit, address(run, b.bucket), stream,
                                       err);
    return stw_sync_device_place(run->sync->device, op->unit, address(run, b.receive),
                                 address(run, b.bucket), stream, err);
}

/* As a send: one round may be under way while the next is prepared. */
stw_status stw_run_sync_exchange(stw_rank_run *run, const stw_op *op, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_run_sync *sync = run->sync;
    const stw_sync_view *v = sync->view;
    const buffers b = buffers_of(sync, op->unit);
    uint32_t n = 0;
    if (run->sending) STW_TRY(stw_comm_wait(run->comm, run->sending_what, err));
    snprintf(run->sending_what, sizeof run->sending_what, "weight sync, round %u of %u, %.80s",
             op->unit + 1, stw_sync_schedule_rounds(sync->schedule),
             stw_run_sync_tensor(run, op->unit));
    run->sending = true;
    for (uint32_t i = v->first_message[op->unit]; i < v->first_message[op->unit + 1]; i++) {
        const stw_sync_message *m = &v->messages[i];
        sync->messages[n++] = (stw_comm_message){
            m->peer, m->sends, (m->sends ? b.send : b.receive) + m->offset, m->bytes};
    }
    stw_comm_about(run->comm, run->sending_what);
    STW_TRY(stw_comm_messages(run->comm, STW_TIER_GPU, sync->messages, n, err));
out:
    return status;
}

void stw_run_sync_end(stw_rank_run *run, stw_comm_counts before) {
    const stw_comm_counts now = stw_comm_counted(run->comm);
    stw_comm_counts *all = &run->sync->counts;
    all->rounds += now.rounds - before.rounds;
    all->sent += now.sent - before.sent;
    all->received += now.received - before.received;
    all->sent_bytes += now.sent_bytes - before.sent_bytes;
    all->received_bytes += now.received_bytes - before.received_bytes;
    run->sync->version = run->step;
}

/* ---- verification ---- */

stw_status stw_run_sync_verify(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_run_sync *sync = run->sync;
    uint64_t *sums = NULL;
    if (sync == NULL || sync->version == 0) goto out;
    const uint32_t n = sync->job->n_tensors;
    sums = calloc(2 * (size_t)n + 1, sizeof *sums);
    if (sums == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_sync_device_digest(
        sync->device, run->backend->native_stream(run->device, STW_STREAM_COMPUTE), sums, err));
    stw_comm_about(run->comm, "digests of the weight sync");
    STW_TRY(stw_comm_sum_u64(run->comm, sums, 2 * n, err));
    for (uint32_t t = 0; t < n && run->ranks.rank == 0; t++)
        if (sums[t] != sums[n + t] && run->mismatched++ == 0)
            stw_log(STW_LOG_ERROR,
                    "%s: the rollout has other bits than the parameters of step %llu",
                    sync->job->tensors[t].name, (unsigned long long)sync->version);
out:
    free(sums);
    return status;
}
