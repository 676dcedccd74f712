/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of which a step of an optimizer of bound tensors consists. */
#include <math.h>

#include "backend/executor/bound_parts.h"
#include "backend/process.h"

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
    return stw_bound_note(b, status, &error, err);
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
    stw_bound_issue(b, step->step);
    if (b->has_threads) goto out;
    b->seconds = stw_process_now_s() - b->begin_s;
    STW_TRY(stw_bound_settle(b, &error));
out:
    return stw_bound_note(b, status, &error, err);
}

stw_status stw_bound_wait(stw_bound *b, uint32_t tensor, void *native, stw_error *err) {
    const bool all = tensor == UINT32_MAX;
    if (!all && tensor >= b->n_tensors)
        return stw_fail(err, STW_STATUS_USAGE, "tensor", "found %u, expected one below %u", tensor,
                        b->n_tensors);
    const uint32_t turn = all ? b->n_turns : b->places[tensor].turn;
    if (!b->begun || turn == UINT32_MAX) return STW_STATUS_OK;
    stw_status status = stw_bound_await(b, STW_BOUND_GPU, turn, err);
    if (status != STW_STATUS_OK) return status;
    return b->backend->native_wait(
        b->device, native, all ? b->updated_event : *stw_bound_event(b, b->turns[turn]), err);
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
    if (b->has_threads && stw_bound_uses_disk(b)) {
        STW_TRY(stw_bound_await(b, STW_BOUND_WRITES, b->n_turns, &error));
        b->seconds = fmax(b->seconds, b->written_s - b->begin_s);
    }
    if (b->clipped) b->backend->norm_result(b->device, &norm, &factor);
    if (out != NULL) *out = (stw_bound_sample){b->seconds, norm, (double)factor};
out:
    return stw_bound_note(b, status, &error, err);
}
