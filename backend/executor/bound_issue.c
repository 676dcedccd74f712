/* SPDX-License-Identifier: Apache-2.0 */
/* How a step of an optimizer of bound tensors is issued: the order of its operations, the events
 * between streams, and the threads that issue them. Each thread takes its operations in the order
 * of all, so that what one waits for is never behind what another waits for. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#include "backend/executor/bound_parts.h"
#include "backend/process.h"
#include "core/locale.h"

/* A copy engine serves one stream until its queue is empty. Copies of the caller (a flag that its
 * forward waits for, a loss that is printed, a batch) would wait for the rest of the step, up to
 * 0.8 s (bench/results/2026-11-24-torch). So each queue runs dry at every so many buckets: the next
 * copy is issued when the one before it is done. */
#define DRY_EACH 8u
#define POLL_NS 20000

/* ---- the order ---- */

/* Memory is there, the norm is made before: these are not issued. */
static bool is_issued(const stw_op *op) {
    return op->kind == STW_OP_COPY || op->kind == STW_OP_UPDATE || op->kind == STW_OP_NVME_READ ||
           op->kind == STW_OP_NVME_WRITE;
}

static stw_bound_lane lane_of(const stw_op *op) {
    if (op->stream == STW_STREAM_D2H) return STW_BOUND_DOWN;
    if (stw_stream_is_gpu(op->stream)) return STW_BOUND_GPU;
    return op->stream == STW_STREAM_DISK ? STW_BOUND_READS : STW_BOUND_WRITES;
}

static const stw_op *op_of(const stw_bound *b, uint32_t turn) {
    return &b->program->ops[b->turns[turn]];
}

static bool is_resident(const stw_bound *b, const stw_op *op) {
    const stw_bucket *bucket = &b->layout->buckets[op->unit];
    return b->plan->decisions.state[bucket->decision].place.update == STW_UPDATE_RESIDENT;
}

static stw_status check_op(const stw_bound *b, uint32_t index, stw_error *err) {
    const stw_op *op = &b->program->ops[index];
    const bool known = is_issued(op) || op->kind == STW_OP_ALLOC || op->kind == STW_OP_FREE ||
                       op->kind == STW_OP_NORM || op->kind == STW_OP_NORM_SUM ||
                       op->kind == STW_OP_COMMIT;
    const bool on_lane = op->kind == STW_OP_NVME_READ    ? op->stream == STW_STREAM_DISK
                         : op->kind == STW_OP_NVME_WRITE ? op->stream == STW_STREAM_DISK_OUT
                                                         : stw_stream_is_gpu(op->stream);
    if (known && (!is_issued(op) || (on_lane && op->unit < b->layout->n_buckets)))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, stw_op_kind_name(op->kind),
                    "operation %u on stream %s is not issued for bound tensors", index,
                    stw_stream_name(op->stream));
}

/* Elements in the order of the model: a resident bucket comes before the first streamed one behind
 * it. Streamed ones keep the program's order, in which slots were dealt. */
static void order_turns(stw_bound *b, uint32_t *residents, uint32_t n_residents) {
    const stw_movement *m = b->movement;
    uint32_t next = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        const stw_op *op = &b->program->ops[i];
        if (!is_issued(op) || is_resident(b, op)) continue;
        const uint64_t at = b->layout->buckets[op->unit].first_param;
        for (; next < n_residents; next++) {
            const stw_op *resident = &b->program->ops[residents[next]];
            if (b->layout->buckets[resident->unit].first_param > at) break;
            b->turns[b->n_turns++] = residents[next];
        }
        b->turns[b->n_turns++] = i;
    }
    while (next < n_residents) b->turns[b->n_turns++] = residents[next++];
}

/* Updates have events, and work on the GPU that another stream waits for. */
static uint32_t deal_events(stw_bound *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->movement->n_ops; i++) b->events[i] = STW_OP_NONE;
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = op_of(b, t);
        if (op->kind == STW_OP_UPDATE) *stw_bound_event(b, b->turns[t]) = n++;
        for (int a = 0; a < 2; a++) {
            if (op->after[a] == STW_OP_NONE) continue;
            const stw_op *other = &b->program->ops[op->after[a]];
            uint32_t *event = stw_bound_event(b, op->after[a]);
            if (is_issued(other) && stw_stream_is_gpu(other->stream) &&
                other->stream != op->stream && *event == STW_OP_NONE)
                *event = n++;
        }
    }
    b->norm_event = n++;
    b->updated_event = n++;
    b->ended_event = n++;
    return n;
}

/* A tensor is done with the last of its updates. */
static void find_last_turns(stw_bound *b) {
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = op_of(b, t);
        if (op->kind != STW_OP_UPDATE) continue;
        const stw_bucket_operands *bucket = &b->operands[op->unit];
        for (uint32_t s = 0; s < bucket->n_spans; s++)
            b->places[b->parts[bucket->first_span + s].tensor].turn = t;
    }
}

stw_status stw_bound_prepare_step(stw_bound *b, uint32_t *n_events, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_movement *m = b->movement;
    uint32_t *residents = stw_pool_array(b->pool, m->n_ops, sizeof *residents), n = 0;
    b->turns = stw_pool_array(b->pool, m->n_ops, sizeof *b->turns);
    b->turn_of = stw_pool_array(b->pool, m->n_ops, sizeof *b->turn_of);
    b->events = stw_pool_array(b->pool, m->n_ops, sizeof *b->events);
    if (residents == NULL || b->turns == NULL || b->turn_of == NULL || b->events == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "optimizer", "out of memory"));
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        STW_TRY(check_op(b, i, err));
        if (is_issued(&b->program->ops[i]) && is_resident(b, &b->program->ops[i]))
            residents[n++] = i;
    }
    order_turns(b, residents, n);
    for (uint32_t t = 0; t < b->n_turns; t++) b->turn_of[b->turns[t] - m->first_op] = t;
    *n_events = deal_events(b);
    find_last_turns(b);
out:
    return status;
}

/* ---- waiting ---- */

static uint64_t turns_before(const stw_bound *b, uint64_t step) {
    return step * ((uint64_t)b->n_turns + 1);
}

/* The mutex is held. */
static stw_status wait_passed(stw_bound *b, stw_bound_lane lane, uint64_t turns) {
    while (b->status == STW_STATUS_OK && b->passed[lane] < turns)
        pthread_cond_wait(&b->change, &b->mutex);
    return b->status;
}

stw_status stw_bound_await(stw_bound *b, stw_bound_lane lane, uint32_t turn, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    pthread_mutex_lock(&b->mutex);
    if (b->steps > 0) status = wait_passed(b, lane, turns_before(b, b->steps - 1) + turn + 1);
    if (b->status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = b->error;
    if (b->status != STW_STATUS_OK) status = b->status;
    pthread_mutex_unlock(&b->mutex);
    return status;
}

static void pass(stw_bound *b, stw_bound_lane lane, uint64_t turns) {
    pthread_mutex_lock(&b->mutex);
    b->passed[lane] = turns;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
}

stw_status stw_bound_note(stw_bound *b, stw_status status, const stw_error *error, stw_error *err) {
    if (error->status == STW_STATUS_OK) return status;
    pthread_mutex_lock(&b->mutex);
    if (b->status == STW_STATUS_OK) {
        b->status = status;
        b->error = *error;
        pthread_cond_broadcast(&b->change);
    }
    pthread_mutex_unlock(&b->mutex);
    if (err != NULL && err->status == STW_STATUS_OK) *err = *error;
    return status;
}

/* ---- issuing ---- */

static stw_location moved(const stw_bound *b, stw_tier tier, uint64_t offset) {
    return stw_at(tier, tier == STW_TIER_GPU ? offset - b->skipped_bytes : offset);
}

/* Make an operation follow one of another stream. What a thread of NVMe has passed is done. */
static stw_status follow(stw_bound *b, uint64_t base, const stw_op *op, uint32_t index,
                         stw_error *err) {
    const stw_op *other = &b->program->ops[index];
    stw_status status = STW_STATUS_OK;
    if (!is_issued(other) || other->stream == op->stream) return STW_STATUS_OK;
    if (b->has_threads && lane_of(op) != lane_of(other)) {
        pthread_mutex_lock(&b->mutex);
        status =
            wait_passed(b, lane_of(other), base + b->turn_of[index - b->movement->first_op] + 1);
        pthread_mutex_unlock(&b->mutex);
    }
    if (status != STW_STATUS_OK || !stw_stream_is_gpu(other->stream)) return status;
    const uint32_t event = *stw_bound_event(b, index);
    return stw_stream_is_gpu(op->stream) ? b->backend->wait(b->device, op->stream, event, err)
                                         : b->backend->wait_host(b->device, event, err);
}

/* Does an operation change state at its home on the host or on NVMe? */
static bool changes_home(const stw_op *op) {
    return op->kind == STW_OP_NVME_WRITE ||
           (op->kind == STW_OP_COPY && op->stream == STW_STREAM_D2H && op->to == STW_TIER_HOST);
}

static void ask_guard(stw_bound *b, const stw_op *op) {
    if (!changes_home(op)) return;
    pthread_mutex_lock(&b->guard_mutex);
    if (b->guard != NULL) b->guard(b->guard_state, stw_bound_turn_of(b, op->unit));
    pthread_mutex_unlock(&b->guard_mutex);
}

void stw_bound_set_guard(stw_bound *b, stw_bound_guard_fn *fn, void *state) {
    pthread_mutex_lock(&b->guard_mutex);
    b->guard = fn;
    b->guard_state = state;
    pthread_mutex_unlock(&b->guard_mutex);
}

static stw_status issue(stw_bound *b, uint64_t base, uint32_t index, stw_error *err) {
    const stw_backend *backend = b->backend;
    const stw_op *op = &b->program->ops[index];
    const uint32_t event = *stw_bound_event(b, index);
    stw_status status = STW_STATUS_OK;
    for (int a = 0; a < 2; a++)
        if (op->after[a] != STW_OP_NONE) STW_TRY(follow(b, base, op, op->after[a], err));
    ask_guard(b, op);
    if (op->kind == STW_OP_UPDATE)
        status = backend->update(b->device, op->stream, &b->adamw, &b->operands[op->unit], err);
    else if (op->kind == STW_OP_NVME_READ)
        status = backend->read(b->device, op->offset_bytes, op->from_offset_bytes, op->bytes, err);
    else if (op->kind == STW_OP_NVME_WRITE)
        status = backend->write(b->device, op->offset_bytes, op->from_offset_bytes, op->bytes, err);
    else
        status = backend->copy(b->device, op->stream, moved(b, op->to, op->offset_bytes),
                               moved(b, op->from, op->from_offset_bytes), op->bytes, err);
    STW_TRY(status);
    if (event != STW_OP_NONE) STW_TRY(backend->record(b->device, op->stream, event, err));
out:
    if (status != STW_STATUS_OK && err->status != STW_STATUS_OK) {
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, " [%s of bucket %u of %u]",
                 stw_op_kind_name(op->kind), op->unit, b->layout->n_buckets);
    }
    return status;
}

/* The last bucket that a lane has copied. */
typedef struct copied {
    uint32_t bucket, n; /* its number; buckets so far */
    uint32_t event;     /* of its end; STW_OP_NONE: nobody waits for it */
} copied;

static stw_status let_run_dry(stw_bound *b, copied *last, const stw_op *op, stw_error *err) {
    const struct timespec pause = {0, POLL_NS};
    stw_status status = STW_STATUS_OK;
    bool reached = last->n == 0 || last->event == STW_OP_NONE;
    if (op->unit == last->bucket) return STW_STATUS_OK;
    if (last->n++ % DRY_EACH != 0) reached = true;
    while (!reached) {
        STW_TRY(b->backend->reached(b->device, last->event, &reached, err));
        if (!reached) (void)nanosleep(&pause, NULL);
    }
    last->bucket = op->unit;
out:
    return status;
}

/* Slots and files are those of the steps before until these are written. */
static stw_status begin_reads(stw_bound *b, uint64_t base, stw_error *err) {
    pthread_mutex_lock(&b->mutex);
    stw_status status = b->has_threads ? wait_passed(b, STW_BOUND_WRITES, base) : STW_STATUS_OK;
    const uint64_t number = b->number;
    pthread_mutex_unlock(&b->mutex);
    return status == STW_STATUS_OK ? b->backend->commit(b->device, number, err) : status;
}

static stw_status end_gpu(stw_bound *b, uint64_t base, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (b->has_threads) {
        pthread_mutex_lock(&b->mutex);
        status = wait_passed(b, STW_BOUND_DOWN, base + b->n_turns + 1);
        pthread_mutex_unlock(&b->mutex);
        if (status != STW_STATUS_OK) goto out; /* the other lane has noted why */
    }
    STW_TRY(b->backend->record(b->device, STW_STREAM_COMPUTE, b->updated_event, err));
    STW_TRY(b->backend->wait(b->device, STW_STREAM_D2H, b->updated_event, err));
    STW_TRY(b->backend->record(b->device, STW_STREAM_D2H, b->ended_event, err));
    if (b->backend->mark != NULL) STW_TRY(b->backend->mark(b->device, STW_STREAM_D2H, 1, err));
out:
    return status;
}

/* The operations of a lane, or without threads of all. */
static stw_status issue_lane(stw_bound *b, stw_bound_lane lane, uint64_t base, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    copied last = {.bucket = UINT32_MAX, .event = STW_OP_NONE};
    if (stw_bound_uses_disk(b) && (lane == STW_BOUND_READS || !b->has_threads))
        STW_TRY(begin_reads(b, base, err));
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = op_of(b, t);
        const bool copies = op->kind == STW_OP_COPY && b->has_threads;
        if (b->has_threads && lane_of(op) != lane) continue;
        if (copies) STW_TRY(let_run_dry(b, &last, op, err));
        STW_TRY(issue(b, base, b->turns[t], err));
        if (copies) last.event = *stw_bound_event(b, b->turns[t]);
        if (b->has_threads) pass(b, lane, base + t + 1);
    }
    if (lane == STW_BOUND_GPU) STW_TRY(end_gpu(b, base, err));
out:
    return status;
}

static void work(stw_bound *b, stw_bound_lane lane, uint64_t step) {
    stw_error error = STW_ERROR_INIT;
    (void)stw_bound_note(b, issue_lane(b, lane, turns_before(b, step), &error), &error, NULL);
    if (lane == STW_BOUND_WRITES) {
        pthread_mutex_lock(&b->mutex);
        b->written_s = stw_process_now_s();
        pthread_mutex_unlock(&b->mutex);
    }
    pass(b, lane, turns_before(b, step + 1));
}

void stw_bound_issue(stw_bound *b, uint64_t number) {
    pthread_mutex_lock(&b->mutex);
    const uint64_t step = b->steps++;
    b->number = number;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
    if (!b->has_threads) work(b, STW_BOUND_GPU, step);
}

/* ---- threads ---- */

static void *worker_main(void *arg) {
    static const stw_stream streams[] = {STW_STREAM_H2D, STW_STREAM_D2H, STW_STREAM_DISK,
                                         STW_STREAM_DISK_OUT};
    const stw_bound_worker *worker = arg;
    stw_bound *b = worker->bound;
    b->backend->enter(b->device, streams[worker->lane]);
    (void)stw_locale_enter();
    (void)prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; else pauses of POLL_NS are 70 us */
    pthread_mutex_lock(&b->mutex);
    for (uint64_t step = 0;; step++) {
        while (!b->stop && b->steps == step) pthread_cond_wait(&b->change, &b->mutex);
        if (b->steps == step) break;
        pthread_mutex_unlock(&b->mutex);
        work(b, worker->lane, step);
        pthread_mutex_lock(&b->mutex);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

stw_status stw_bound_start(stw_bound *b, stw_error *err) {
    if (!b->backend->gpu) return STW_STATUS_OK; /* its calls are done when they return */
    b->has_threads = true;
    for (int lane = 0; lane < (stw_bound_uses_disk(b) ? STW_BOUND_N_LANES : STW_BOUND_READS);
         lane++) {
        stw_bound_worker *worker = &b->workers[lane];
        *worker = (stw_bound_worker){.bound = b, .lane = (stw_bound_lane)lane};
        int code = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (code != 0)
            return stw_fail_native(err, STW_STATUS_NO_RESOURCES, code, "optimizer",
                                   "the threads that issue steps could not be started");
        worker->started = true;
    }
    return STW_STATUS_OK;
}

void stw_bound_stop(stw_bound *b) {
    pthread_mutex_lock(&b->mutex);
    b->stop = true;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
    for (int lane = 0; lane < STW_BOUND_N_LANES; lane++) {
        if (b->workers[lane].started) (void)pthread_join(b->workers[lane].thread, NULL);
        b->workers[lane].started = false;
    }
}
