/* SPDX-License-Identifier: Apache-2.0 */
/* When the operations of rank 0 began and ended. On a GPU stream marks before and after an
 * operation are taken by the GPU itself; host work is timed where it is called. */
#include <math.h>
#include <stdlib.h>

#include "backend/executor/run.h"
#include "backend/process.h"

#define BASE_MARK 0u /* of the movement's begin; then two of each operation */
#define TRIES 10
#define MOMENT_S 5e-5

static uint32_t mark_of(uint32_t op, bool end) { return 1 + 2 * op + (end ? 1u : 0u); }

uint32_t stw_timeline_marks(const stw_rank_run *run) {
    bool marks = run->timeline != NULL && run->backend->mark != NULL;
    return marks ? mark_of(run->program->n_ops, false) : 0;
}

stw_status stw_timeline_prepare(stw_rank_run *run, stw_error *err) {
    stw_timeline *t = run->options->timeline;
    if (t == NULL || run->ranks.rank != 0) return STW_STATUS_OK;
    uint32_t n = run->program->n_ops;
    stw_timeline_free(t);
    t->start_s = calloc((size_t)n + 1, sizeof *t->start_s);
    t->end_s = calloc((size_t)n + 1, sizeof *t->end_s);
    if (t->start_s == NULL || t->end_s == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "time line", "out of memory");
    t->n_ops = n;
    for (uint32_t i = 0; i < n; i++) t->start_s[i] = t->end_s[i] = (double)NAN;
    run->timeline = t;
    return STW_STATUS_OK;
}

void stw_timeline_free(stw_timeline *timeline) {
    free(timeline->start_s);
    free(timeline->end_s);
    *timeline = (stw_timeline){0};
}

/* Both clocks begin with a mark that the host saw done within a moment; a few tries are enough. */
static stw_status begin_clocks(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double before_s = 0, after_s = 1;
    for (int i = 0; i < TRIES && after_s - before_s > MOMENT_S; i++) {
        before_s = stw_process_now_s();
        STW_TRY(run->backend->mark(run->device, STW_STREAM_COMPUTE, BASE_MARK, err));
        STW_TRY(run->backend->synchronize(run->device, err));
        after_s = stw_process_now_s();
    }
    run->timed_from_s = (before_s + after_s) / 2;
out:
    return status;
}

/* Of movements that are repeated in every iteration, the last one. */
stw_status stw_timeline_begin(stw_rank_run *run, stw_error *err) {
    bool repeated = run->movement->repeat == STW_REPEAT_LATER ||
                    run->movement->repeat == STW_REPEAT_EVERY_ITERATION;
    run->timed = run->timeline != NULL && (!repeated || run->step == run->options->steps);
    if (!run->timed) return STW_STATUS_OK;
    if (run->backend->mark != NULL) return begin_clocks(run, err);
    run->timed_from_s = stw_process_now_s();
    return STW_STATUS_OK;
}

static bool by_marks(const stw_rank_run *run, const stw_op *op) {
    return run->backend->mark != NULL && stw_stream_is_gpu(op->stream) &&
           !stw_op_is(op, STW_OP_CLASS_MEMORY);
}

stw_status stw_timeline_issue(stw_rank_run *run, uint32_t index, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_op *op = &run->program->ops[index];
    bool marks = by_marks(run, op);
    run->timeline->start_s[index] = stw_process_now_s() - run->timed_from_s;
    if (marks) STW_TRY(run->backend->mark(run->device, op->stream, mark_of(index, false), err));
    STW_TRY(stw_exec_issue(run, index, err));
    if (marks) STW_TRY(run->backend->mark(run->device, op->stream, mark_of(index, true), err));
    run->timeline->end_s[index] = stw_process_now_s() - run->timed_from_s;
out:
    return status;
}

stw_status stw_timeline_end(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_movement *movement = run->movement;
    stw_timeline *t = run->timeline;
    if (!run->timed) goto out;
    run->timed = false;
    double length_s = stw_process_now_s() - run->timed_from_s;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        double *times[2] = {&t->start_s[i], &t->end_s[i]};
        for (int end = 0; end < 2; end++) {
            if (by_marks(run, &run->program->ops[i]))
                STW_TRY(run->backend->mark_seconds(run->device, BASE_MARK, mark_of(i, end == 1),
                                                   times[end], err));
            *times[end] += t->length_s;
        }
    }
    t->length_s += length_s;
out:
    return status;
}
