/* SPDX-License-Identifier: Apache-2.0 */
/* A step of an optimizer of bound tensors: the order in which operations of the plan's step are
 * issued, the events between streams, and the thread that issues them. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "backend/executor/bound_parts.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/locale.h"

/* Updates that are issued ahead of the GPU. A stream's queue holds about 1024 entries, an update
 * has up to six on one stream. */
#define AHEAD 64u
#define POLL_NS 50000

/* ---- the order ---- */

/* Memory is there, the norm is made before: these are not issued. */
static bool is_issued(const stw_op *op) {
    return op->kind == STW_OP_COPY || op->kind == STW_OP_UPDATE;
}

static const stw_op *op_of(const stw_bound *b, uint32_t turn) {
    return &b->program->ops[b->turns[turn]];
}

/* Event of an operation of the step; STW_OP_NONE: it records none. */
static uint32_t *event_of(const stw_bound *b, uint32_t op) {
    return &b->events[op - b->movement->first_op];
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
    if (known &&
        (!is_issued(op) || (stw_stream_is_gpu(op->stream) && op->unit < b->layout->n_buckets)))
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

/* Updates have events, and what another stream waits for. */
static uint32_t deal_events(stw_bound *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->movement->n_ops; i++) b->events[i] = STW_OP_NONE;
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = op_of(b, t);
        if (op->kind == STW_OP_UPDATE) *event_of(b, b->turns[t]) = n++;
        for (int a = 0; a < 2; a++) {
            if (op->after[a] == STW_OP_NONE) continue;
            const stw_op *other = &b->program->ops[op->after[a]];
            uint32_t *event = event_of(b, op->after[a]);
            if (is_issued(other) && other->stream != op->stream && *event == STW_OP_NONE)
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
    b->events = stw_pool_array(b->pool, m->n_ops, sizeof *b->events);
    if (residents == NULL || b->turns == NULL || b->events == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "optimizer", "out of memory"));
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++) {
        STW_TRY(check_op(b, i, err));
        if (is_issued(&b->program->ops[i]) && is_resident(b, &b->program->ops[i]))
            residents[n++] = i;
    }
    order_turns(b, residents, n);
    *n_events = deal_events(b);
    find_last_turns(b);
out:
    return status;
}

/* ---- issuing ---- */

static stw_location moved(const stw_bound *b, stw_tier tier, uint64_t offset) {
    return stw_at(tier, tier == STW_TIER_GPU ? offset - b->skipped_bytes : offset);
}

static stw_status issue(stw_bound *b, uint32_t index, stw_error *err) {
    const stw_op *op = &b->program->ops[index];
    const uint32_t event = *event_of(b, index);
    stw_status status = STW_STATUS_OK;
    for (int a = 0; a < 2; a++) {
        if (op->after[a] == STW_OP_NONE) continue;
        const stw_op *other = &b->program->ops[op->after[a]];
        if (is_issued(other) && other->stream != op->stream)
            STW_TRY(b->backend->wait(b->device, op->stream, *event_of(b, op->after[a]), err));
    }
    if (op->kind == STW_OP_UPDATE)
        STW_TRY(b->backend->update(b->device, op->stream, &b->adamw, &b->operands[op->unit], err));
    else
        STW_TRY(b->backend->copy(b->device, op->stream, moved(b, op->to, op->offset_bytes),
                                 moved(b, op->from, op->from_offset_bytes), op->bytes, err));
    if (event != STW_OP_NONE) STW_TRY(b->backend->record(b->device, op->stream, event, err));
out:
    return status;
}

/* Let the GPU come as near as AHEAD updates. */
static stw_status keep_near(stw_bound *b, uint32_t event, stw_error *err) {
    const struct timespec pause = {0, POLL_NS};
    stw_status status = STW_STATUS_OK;
    for (bool reached = false; !reached;) {
        STW_TRY(b->backend->reached(b->device, event, &reached, err));
        if (!reached) (void)nanosleep(&pause, NULL);
    }
out:
    return status;
}

static stw_status issue_all(stw_bound *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t recent[AHEAD], n = 0;
    for (uint32_t t = 0; t < b->n_turns; t++) {
        const stw_op *op = op_of(b, t);
        const bool updates = op->kind == STW_OP_UPDATE;
        if (updates && n >= AHEAD && b->has_thread) STW_TRY(keep_near(b, recent[n % AHEAD], err));
        status = issue(b, b->turns[t], err);
        if (status != STW_STATUS_OK && err != NULL) {
            size_t used = strlen(err->text);
            snprintf(err->text + used, sizeof err->text - used, " [%s of bucket %u of %u]",
                     stw_op_kind_name(op->kind), op->unit, b->layout->n_buckets);
        }
        STW_TRY(status);
        if (!updates) continue;
        recent[n++ % AHEAD] = *event_of(b, b->turns[t]);
        pthread_mutex_lock(&b->mutex);
        b->issued = t + 1;
        pthread_cond_broadcast(&b->change);
        pthread_mutex_unlock(&b->mutex);
    }
    STW_TRY(b->backend->record(b->device, STW_STREAM_COMPUTE, b->updated_event, err));
    STW_TRY(b->backend->wait(b->device, STW_STREAM_D2H, b->updated_event, err));
    STW_TRY(b->backend->record(b->device, STW_STREAM_D2H, b->ended_event, err));
    if (b->backend->mark != NULL) STW_TRY(b->backend->mark(b->device, STW_STREAM_D2H, 1, err));
out:
    return status;
}

/* Keep the first failure of the device, which is of no use after it, and tell the caller.
 * @param error of calls to the device alone; OK: there was none */
static stw_status note(stw_bound *b, stw_status status, const stw_error *error, stw_error *err) {
    if (error->status == STW_STATUS_OK) return status;
    pthread_mutex_lock(&b->mutex);
    if (b->status == STW_STATUS_OK) {
        b->status = status;
        b->error = *error;
    }
    pthread_mutex_unlock(&b->mutex);
    if (err != NULL && err->status == STW_STATUS_OK) *err = *error;
    return status;
}

static void work(stw_bound *b) {
    stw_error error = STW_ERROR_INIT;
    note(b, issue_all(b, &error), &error, NULL);
    pthread_mutex_lock(&b->mutex);
    b->issued = b->n_turns;
    b->working = false;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
}

static void *thread_main(void *arg) {
    stw_bound *b = arg;
    b->backend->enter(b->device, STW_STREAM_H2D);
    (void)stw_locale_enter();
    pthread_mutex_lock(&b->mutex);
    for (;;) {
        while (!b->stop && !b->working) pthread_cond_wait(&b->change, &b->mutex);
        if (!b->working) break;
        pthread_mutex_unlock(&b->mutex);
        work(b);
        pthread_mutex_lock(&b->mutex);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

stw_status stw_bound_start(stw_bound *b, stw_error *err) {
    if (!b->backend->gpu) return STW_STATUS_OK; /* its calls are done when they return */
    int code = pthread_create(&b->thread, NULL, thread_main, b);
    if (code != 0)
        return stw_fail_native(err, STW_STATUS_NO_RESOURCES, code, "optimizer",
                               "the thread that issues steps could not be started");
    b->has_thread = true;
    return STW_STATUS_OK;
}

void stw_bound_stop(stw_bound *b) {
    if (!b->has_thread) return;
    pthread_mutex_lock(&b->mutex);
    b->stop = true;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
    (void)pthread_join(b->thread, NULL);
    b->has_thread = false;
}

/* The mutex is held. */
static stw_status failure(const stw_bound *b, stw_error *err) {
    if (b->status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = b->error;
    return b->status;
}

stw_status stw_bound_settle(stw_bound *b, stw_error *err) {
    pthread_mutex_lock(&b->mutex);
    while (b->working) pthread_cond_wait(&b->change, &b->mutex);
    stw_status status = failure(b, err);
    pthread_mutex_unlock(&b->mutex);
    return status;
}

/* ---- the calls ---- */

static stw_status need_gradients(const stw_bound *b, stw_error *err) {
    if (b->bound_grads) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, "gradients",
                    "none were bound since the last step; bind those of this one first");
}

static stw_status queue_spans(stw_bound *b, stw_error *err) {
    if (!b->moved) return STW_STATUS_OK;
    stw_status status =
        b->backend->queue_spans(b->device, STW_STREAM_COMPUTE, b->spans, b->n_spans, err);
    if (status == STW_STATUS_OK) b->moved = false;
    return status;
}

stw_status stw_bound_begin_norm(stw_bound *b, bool counts, void *native, uint64_t **counters,
                                stw_error *err) {
    const stw_stream stream = STW_STREAM_COMPUTE;
    stw_error error = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    *counters = NULL;
    STW_TRY(stw_bound_settle(b, &error));
    STW_TRY(need_gradients(b, err));
    STW_TRY(b->backend->follow_native(b->device, stream, native, &error));
    STW_TRY(queue_spans(b, &error));
    STW_TRY(b->backend->norm_reset(b->device, stream, &error));
    if (counts) STW_TRY(b->backend->norm_add_spans(b->device, stream, &error));
    STW_TRY(b->backend->norm_counters(b->device, stream, counts, counters, &error));
    STW_TRY(b->backend->record(b->device, stream, b->norm_event, &error));
    STW_TRY(b->backend->native_wait(b->device, native, b->norm_event, &error));
    b->has_norm = true;
out:
    return note(b, status, &error, err);
}

static stw_status check_step(const stw_bound *b, const stw_bound_step *step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (step->step == 0 || step->step >= 1u << 24)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "step", "found %llu, expected 1 to %u",
                         (unsigned long long)step->step, (1u << 24) - 1));
    if (!(step->beta1 >= 0 && step->beta1 < 1))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "beta1", "found %g, expected 0 to below 1",
                         step->beta1));
    if (!(step->beta2 >= 0 && step->beta2 < 1))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "beta2", "found %g, expected 0 to below 1",
                         step->beta2));
    if (!(step->eps >= 0) || isinf(step->eps))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "eps", "found %g, expected at least 0", step->eps));
    if (!(step->clip_norm >= 0) || isinf(step->clip_norm))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "clip_norm", "found %g, expected at least 0",
                         step->clip_norm));
    STW_TRY(need_gradients(b, err));
    if (step->clip_norm > 0 && !b->has_norm)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "clip_norm",
                         "found %g without the norm of these gradients; call stw_begin_norm first",
                         step->clip_norm));
out:
    return status;
}

/* What the thread does not: it knows no stream of the caller's. */
static stw_status queue_before(stw_bound *b, const stw_bound_step *step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(b->backend->follow_native(b->device, STW_STREAM_COMPUTE, step->native, err));
    STW_TRY(queue_spans(b, err));
    if (step->clip_norm > 0)
        STW_TRY(b->backend->norm_factor(b->device, STW_STREAM_COMPUTE, step->clip_norm, err));
    /* Slots, and state that comes back, are those of the step before. */
    if (b->begun) STW_TRY(b->backend->wait(b->device, STW_STREAM_H2D, b->ended_event, err));
    if (b->backend->mark != NULL)
        STW_TRY(b->backend->mark(
            b->device, b->sizes.streamed_bytes > 0 ? STW_STREAM_H2D : STW_STREAM_COMPUTE, 0, err));
out:
    return status;
}

stw_status stw_bound_begin_step(stw_bound *b, const stw_bound_step *step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT;
    STW_TRY(stw_bound_settle(b, &error));
    STW_TRY(check_step(b, step, err));
    b->adamw = stw_adamw_make(b->rates[0].lr, step->beta1, step->beta2, step->eps,
                              b->rates[0].weight_decay, step->step, step->clip_norm > 0);
    for (uint32_t g = 0; g < STW_MAX_PARAM_GROUPS; g++)
        stw_adamw_set_group(&b->adamw, g, b->rates[g].lr, b->rates[g].weight_decay, step->step);
    b->begin_s = stw_process_now_s();
    STW_TRY(queue_before(b, step, &error));
    b->clipped = step->clip_norm > 0;
    b->bound_grads = b->has_norm = false;
    b->begun = true;
    pthread_mutex_lock(&b->mutex);
    b->issued = 0;
    b->working = true;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->mutex);
    if (b->has_thread) goto out;
    work(b);
    b->seconds = stw_process_now_s() - b->begin_s;
    STW_TRY(stw_bound_settle(b, &error));
out:
    return note(b, status, &error, err);
}

stw_status stw_bound_wait(stw_bound *b, uint32_t tensor, void *native, stw_error *err) {
    const bool all = tensor == UINT32_MAX;
    if (!all && tensor >= b->n_tensors)
        return stw_fail(err, STW_STATUS_USAGE, "tensor", "found %u, expected one below %u", tensor,
                        b->n_tensors);
    const uint32_t turn = all ? b->n_turns : b->places[tensor].turn;
    if (!b->begun || turn == UINT32_MAX) return STW_STATUS_OK;
    pthread_mutex_lock(&b->mutex);
    while (b->working && (all || b->issued <= turn)) pthread_cond_wait(&b->change, &b->mutex);
    stw_status status = failure(b, err);
    pthread_mutex_unlock(&b->mutex);
    if (status != STW_STATUS_OK) return status;
    return b->backend->native_wait(b->device, native,
                                   all ? b->updated_event : *event_of(b, b->turns[turn]), err);
}

stw_status stw_bound_finish(stw_bound *b, stw_bound_sample *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT;
    float factor = 1.0f;
    double norm = (double)NAN;
    STW_TRY(stw_bound_settle(b, &error));
    STW_TRY(b->backend->synchronize(b->device, &error));
    if (b->begun && b->backend->mark != NULL)
        STW_TRY(b->backend->mark_seconds(b->device, 0, 1, &b->seconds, &error));
    if (b->clipped) b->backend->norm_result(b->device, &norm, &factor);
    if (out != NULL) *out = (stw_bound_sample){b->seconds, norm, (double)factor};
out:
    return note(b, status, &error, err);
}
