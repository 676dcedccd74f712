/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "backend/executor/schedule.h"
#include "core/locale.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- preparing ---- */

static stw_status check_after(const stw_schedule *s, uint32_t op, uint32_t other, stw_error *err) {
    if (other >= s->movement->first_op && other < op) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_phase_name(s->movement->phase),
                    "operation %u waits for %u, which is not an earlier one of its movement", op,
                    other);
}

stw_status stw_schedule_new(const stw_program *program, const stw_movement *movement,
                            stw_pool *pool, stw_schedule **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t first = movement->first_op, n = movement->n_ops;
    stw_schedule *s = stw_pool_alloc(pool, sizeof *s);
    if (s == NULL) goto no_memory;
    s->program = program;
    s->movement = movement;
    s->position = stw_pool_array(pool, n, sizeof(uint32_t));
    s->event = stw_pool_array(pool, n, sizeof(uint32_t));
    s->awaited = stw_pool_array(pool, n, sizeof(bool));
    if (s->position == NULL || s->event == NULL || s->awaited == NULL) goto no_memory;
    for (uint32_t i = 0; i < n; i++) {
        const stw_op *op = &program->ops[first + i];
        s->position[i] = s->n_stream_ops[op->stream]++;
        s->event[i] = STW_OP_NONE;
        for (int a = 0; a < 2; a++) {
            if (op->after[a] == STW_OP_NONE) continue;
            STW_TRY(check_after(s, first + i, op->after[a], err));
            if (program->ops[op->after[a]].stream != op->stream)
                s->awaited[op->after[a] - first] = true;
        }
    }
    for (int t = 0; t < STW_N_STREAMS; t++) {
        s->stream_ops[t] = stw_pool_array(pool, s->n_stream_ops[t], sizeof(uint32_t));
        if (s->stream_ops[t] == NULL) goto no_memory;
    }
    for (uint32_t i = 0; i < n; i++) {
        stw_stream stream = program->ops[first + i].stream;
        s->stream_ops[stream][s->position[i]] = first + i;
        if (s->awaited[i] && stw_stream_is_gpu(stream)) s->event[i] = s->n_events++;
    }
    *out = s;
out:
    return status;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "schedule", "out of memory");
}

/* ---- threads ---- */

/* Streams that one thread issues, in the order in which it looks at them; the last one alone may
 * block. */
typedef struct crew {
    uint32_t n;
    stw_stream streams[3];
} crew;

/* STW_THREADING_SHARED: copies and kernels are issued far ahead of the GPU. CPU updates use all
 * cores, so waking another thread adds latency: the thread that made an update issues what follows
 * it. */
static const crew shared_crews[STW_N_STREAMS] = {
    [STW_STREAM_H2D] = {3, {STW_STREAM_H2D, STW_STREAM_D2H, STW_STREAM_COMPUTE}},
    [STW_STREAM_COMM] = {1, {STW_STREAM_COMM}},
    [STW_STREAM_DISK] = {1, {STW_STREAM_DISK}},
    [STW_STREAM_DISK_OUT] = {1, {STW_STREAM_DISK_OUT}},
    [STW_STREAM_CPU] = {3, {STW_STREAM_FROM_CPU, STW_STREAM_TO_CPU, STW_STREAM_CPU}},
};

_Static_assert(STW_N_STREAMS == 9, "a stream without a crew would never be issued");

typedef struct lane {
    stw_streams *streams;
    stw_stream stream; /* its own, or the crew that is its own */
    pthread_t thread;
    bool started;
} lane;

struct stw_streams {
    const stw_backend *backend;
    stw_device *device;
    stw_streams_calls calls;
    lane lanes[STW_N_STREAMS];
    pthread_mutex_t mutex;        /* of everything below */
    pthread_cond_t begun;         /* a movement, or the end */
    pthread_cond_t ended;         /* the movement, for all lanes */
    pthread_cond_t change;        /* of what is issued, or a failure */
    uint32_t waiting;             /* lanes that wait for a change */
    const stw_schedule *schedule; /* of the movement under way */
    uint64_t turn;                /* movements begun */
    uint32_t running;             /* lanes that have not finished this turn */
    uint32_t issued[STW_N_STREAMS];
    bool failed, stop;
    stw_status status;
    stw_error error;
};

/* Has all been issued that an op of another stream names? The mutex is held. */
static bool is_ready(const stw_streams *s, const stw_schedule *schedule, uint32_t op) {
    const stw_op *ops = schedule->program->ops;
    for (int a = 0; a < 2; a++) {
        uint32_t other = ops[op].after[a];
        if (other == STW_OP_NONE || ops[other].stream == ops[op].stream) continue;
        uint32_t position = schedule->position[other - schedule->movement->first_op];
        if (s->issued[ops[other].stream] <= position) return false;
    }
    return true;
}

/* Make an op that is ready follow another one of another stream. */
static stw_status follow(stw_streams *s, const stw_schedule *schedule, uint32_t op, uint32_t other,
                         stw_error *err) {
    const stw_op *ops = schedule->program->ops;
    stw_stream mine = ops[op].stream, theirs = ops[other].stream;
    uint32_t event = schedule->event[other - schedule->movement->first_op];
    if (mine == theirs || !stw_stream_is_gpu(theirs))
        return STW_STATUS_OK; /* in order; or host work, which is done once it is issued */
    if (stw_stream_is_gpu(mine)) return s->backend->wait(s->device, mine, event, err);
    return s->backend->wait_host(s->device, event, err);
}

static stw_status issue_one(stw_streams *s, const stw_schedule *schedule, uint32_t op,
                            stw_error *err) {
    const stw_op *o = &schedule->program->ops[op];
    uint32_t index = op - schedule->movement->first_op;
    stw_status status = STW_STATUS_OK;
    for (int a = 0; a < 2; a++)
        if (o->after[a] != STW_OP_NONE) STW_TRY(follow(s, schedule, op, o->after[a], err));
    STW_TRY(s->calls.issue(s->calls.state, op, err));
    if (schedule->event[index] != STW_OP_NONE)
        STW_TRY(s->backend->record(s->device, o->stream, schedule->event[index], err));
    pthread_mutex_lock(&s->mutex);
    s->issued[o->stream] = schedule->position[index] + 1;
    if (schedule->awaited[index] && s->waiting > 0) pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->mutex);
    status = s->calls.settle(s->calls.state, op, err);
out:
    return status;
}

static void note_failure(stw_streams *s, stw_status status, const stw_error *error) {
    pthread_mutex_lock(&s->mutex);
    bool first = !s->failed;
    if (first) {
        s->failed = true;
        s->status = status;
        s->error = *error;
    }
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->mutex);
    if (first) s->calls.failed(s->calls.state, &s->error);
}

/* The next op of a crew that is ready, the first stream's before the others'; waits for one.
 * STW_OP_NONE once there is none left, or after a failure anywhere. */
static uint32_t next_op(stw_streams *s, const stw_schedule *schedule, const crew *c) {
    uint32_t found = STW_OP_NONE;
    bool left = true;
    pthread_mutex_lock(&s->mutex);
    while (left && found == STW_OP_NONE && !s->failed) {
        left = false;
        for (uint32_t i = 0; i < c->n && found == STW_OP_NONE; i++) {
            stw_stream stream = c->streams[i];
            if (s->issued[stream] == schedule->n_stream_ops[stream]) continue;
            uint32_t op = schedule->stream_ops[stream][s->issued[stream]];
            left = true;
            if (is_ready(s, schedule, op)) found = op;
        }
        if (!left || found != STW_OP_NONE) break;
        s->waiting++;
        pthread_cond_wait(&s->change, &s->mutex);
        s->waiting--;
    }
    pthread_mutex_unlock(&s->mutex);
    return found;
}

static void run_crew(stw_streams *s, const stw_schedule *schedule, const crew *c) {
    for (uint32_t op; (op = next_op(s, schedule, c)) != STW_OP_NONE;) {
        stw_error error = STW_ERROR_INIT;
        stw_status status = issue_one(s, schedule, op, &error);
        if (status != STW_STATUS_OK) {
            note_failure(s, status, &error);
            return;
        }
    }
}

static crew crew_of(const stw_schedule *schedule, stw_stream own) {
    if (schedule->movement->threading == STW_THREADING_PER_STREAM)
        return (crew){.n = 1, .streams = {own}};
    return shared_crews[own];
}

static void *lane_main(void *arg) {
    lane *l = arg;
    stw_streams *s = l->streams;
    uint64_t turn = 0;
    s->backend->enter(s->device, l->stream);
    (void)stw_locale_enter();
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->stop && s->turn == turn) pthread_cond_wait(&s->begun, &s->mutex);
        if (s->stop) break;
        turn = s->turn;
        const stw_schedule *schedule = s->schedule;
        const crew mine = crew_of(schedule, l->stream);
        pthread_mutex_unlock(&s->mutex);
        run_crew(s, schedule, &mine);
        pthread_mutex_lock(&s->mutex);
        s->running--;
        if (s->running == 0) pthread_cond_broadcast(&s->ended);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

stw_status stw_streams_new(const stw_backend *backend, stw_device *device,
                           const stw_streams_calls *calls, stw_streams **out, stw_error *err) {
    *out = NULL;
    stw_streams *s = calloc(1, sizeof *s);
    if (s == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "streams", "out of memory");
    s->backend = backend;
    s->device = device;
    s->calls = *calls;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->begun, NULL);
    pthread_cond_init(&s->ended, NULL);
    pthread_cond_init(&s->change, NULL);
    for (int t = 0; t < STW_N_STREAMS && !calls->one_thread; t++) {
        lane *l = &s->lanes[t];
        l->streams = s;
        l->stream = (stw_stream)t;
        int code = pthread_create(&l->thread, NULL, lane_main, l);
        if (code != 0) {
            stw_streams_free(s);
            return stw_fail_native(err, STW_STATUS_NO_RESOURCES, code, "streams",
                                   "the thread of stream %s could not be started",
                                   stw_stream_name((stw_stream)t));
        }
        l->started = true;
    }
    *out = s;
    return STW_STATUS_OK;
}

void stw_streams_free(stw_streams *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_broadcast(&s->begun);
    pthread_mutex_unlock(&s->mutex);
    for (int t = 0; t < STW_N_STREAMS; t++)
        if (s->lanes[t].started) pthread_join(s->lanes[t].thread, NULL);
    pthread_cond_destroy(&s->begun);
    pthread_cond_destroy(&s->ended);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* An operation follows earlier ones alone. */
static stw_status run_here(stw_streams *s, const stw_schedule *schedule, stw_error *err) {
    const stw_movement *movement = schedule->movement;
    stw_status status = STW_STATUS_OK;
    stw_error error = STW_ERROR_INIT;
    memset(s->issued, 0, sizeof s->issued);
    for (uint32_t i = 0; i < movement->n_ops && status == STW_STATUS_OK; i++)
        status = issue_one(s, schedule, movement->first_op + i, &error);
    if (status == STW_STATUS_OK) return status;
    s->calls.failed(s->calls.state, &error);
    if (err != NULL && err->status == STW_STATUS_OK) *err = error;
    return status;
}

stw_status stw_streams_run(stw_streams *s, const stw_schedule *schedule, stw_error *err) {
    if (s->calls.one_thread) return run_here(s, schedule, err);
    pthread_mutex_lock(&s->mutex);
    s->schedule = schedule;
    s->failed = false;
    s->running = STW_N_STREAMS;
    memset(s->issued, 0, sizeof s->issued);
    s->turn++;
    pthread_cond_broadcast(&s->begun);
    while (s->running > 0) pthread_cond_wait(&s->ended, &s->mutex);
    stw_status status = s->failed ? s->status : STW_STATUS_OK;
    if (s->failed && err != NULL && err->status == STW_STATUS_OK) *err = s->error;
    pthread_mutex_unlock(&s->mutex);
    return status;
}
