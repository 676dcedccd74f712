/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that move between ranks: schedules, and what one rank packs and places. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/executor/sync_loop.h"
#include "core/checked.h"
#include "library/handles.h"

_Static_assert(STOWAGE_MAX_DIMS == STW_BOX_DIMS, "dimensions of a box");
_Static_assert(STOWAGE_NONE == STW_SYNC_NONE, "no memory");

/** Messages and parts of a rank, as the header has them. */
typedef struct rank_lists {
    stw_pool *pool; /* NULL: not made yet */
    stw_sync_message_t *messages;
    stw_sync_part_t *parts;
} rank_lists;

struct stw_schedule_t {
    stw_sync_schedule *schedule;
    uint32_t world;
    pthread_mutex_t mutex; /* of what follows */
    rank_lists *lists;     /* [world] */
};

struct stw_sync_t {
    long pid; /* of the process that opened it */
    stw_sync_device *device;
    stw_sync_loop *loop;
};

_Static_assert((int)STOWAGE_SYNC_WAIT == (int)STW_SYNC_WAIT, "actions of a loop");

/* ---- what the caller describes ---- */

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

static stw_status take_dtype(const char *text, const char *where, stw_dtype *out, stw_error *err) {
    if (text == NULL)
        return stw_fail(err, STW_STATUS_USAGE, where, "found no dtype, expected F32, BF16 or F16");
    if (!stw_dtype_parse(text, out))
        return stw_fail(err, STW_STATUS_BAD_INPUT, where,
                        "found dtype \"%.40s\", expected F32, BF16 or F16", text);
    return STW_STATUS_OK;
}

static stw_status take_tensors(stw_pool *pool, const stw_sync_options_t *options,
                               const stw_sync_tensor **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_tensor *mine = stw_pool_array(pool, options->n_tensors, sizeof *mine);
    if (mine == NULL) STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < options->n_tensors; i++) {
        const stw_sync_tensor_t *t = &options->tensors[i];
        mine[i].name = t->name != NULL ? stw_pool_string(pool, t->name)
                                       : stw_pool_printf(pool, "tensor %u", i);
        if (mine[i].name == NULL) STW_TRY(no_memory(err));
        STW_TRY(take_dtype(t->dtype, mine[i].name, &mine[i].dtype, err));
        mine[i].dims = t->dims;
        if (t->dims > STOWAGE_MAX_DIMS)
            STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, mine[i].name,
                             "found %u dimensions, expected at most %d", t->dims,
                             STOWAGE_MAX_DIMS));
        for (uint32_t d = 0; d < STOWAGE_MAX_DIMS; d++)
            mine[i].shape[d] = d < t->dims ? t->shape[d] : 1;
    }
    *out = mine;
out:
    return status;
}

static stw_status take_pieces(stw_pool *pool, const stw_sync_piece_t *pieces, uint32_t n,
                              const stw_sync_piece **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sync_piece *mine = stw_pool_array(pool, n, sizeof *mine);
    const char *last = NULL; /* dtypes are most often one and the same text */
    stw_dtype dtype = STW_DTYPE_F32;
    if (mine == NULL) STW_TRY(no_memory(err));
    for (uint32_t i = 0; i < n; i++) {
        const stw_sync_piece_t *p = &pieces[i];
        if (last == NULL || p->dtype != last) STW_TRY(take_dtype(p->dtype, "piece", &dtype, err));
        last = p->dtype;
        mine[i] = (stw_sync_piece){.offset = p->offset,
                                   .rank = p->rank,
                                   .tensor = p->tensor,
                                   .memory = p->memory,
                                   .dtype = dtype};
        for (int d = 0; d < STOWAGE_MAX_DIMS; d++) {
            mine[i].box.first[d] = p->first[d];
            mine[i].box.count[d] = p->count[d];
            mine[i].stride[d] = p->stride[d];
        }
    }
    *out = mine;
out:
    return status;
}

/* ---- schedules ---- */

void stw_free_schedule(stw_schedule_t *schedule) {
    if (schedule == NULL) return;
    for (uint32_t r = 0; r < schedule->world; r++) stw_pool_free(schedule->lists[r].pool);
    stw_sync_schedule_free(schedule->schedule);
    pthread_mutex_destroy(&schedule->mutex);
    free(schedule->lists);
    free(schedule);
}

stw_status_t stw_plan_sync(const stw_sync_options_t *options, size_t size, stw_schedule_t **out,
                           stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_sync_options_t mine = {0};
    stw_schedule_t *handle = NULL;
    stw_pool *pool = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_sync_options_t, bucket_bytes), err));
    if (mine.n_tensors > 0) STW_TRY(stw_library_need(mine.tensors, "tensors", err));
    if (mine.n_sources > 0) STW_TRY(stw_library_need(mine.sources, "sources", err));
    if (mine.n_targets > 0) STW_TRY(stw_library_need(mine.targets, "targets", err));
    handle = calloc(1, sizeof *handle);
    pool = stw_pool_new();
    if (handle == NULL || pool == NULL) STW_TRY(no_memory(err));
    stw_sync_job job = {.n_tensors = mine.n_tensors,
                        .n_sources = mine.n_sources,
                        .n_targets = mine.n_targets,
                        .world = mine.world,
                        .bucket_bytes = mine.bucket_bytes};
    STW_TRY(take_tensors(pool, &mine, &job.tensors, err));
    STW_TRY(take_pieces(pool, mine.sources, mine.n_sources, &job.sources, err));
    STW_TRY(take_pieces(pool, mine.targets, mine.n_targets, &job.targets, err));
    stw_pool *given = pool;
    pool = NULL; /* the schedule's, whatever comes */
    STW_TRY(stw_sync_schedule_new(given, &job, &handle->schedule, err));
    handle->lists = calloc(mine.world, sizeof *handle->lists);
    if (handle->lists == NULL) {
        stw_sync_schedule_free(handle->schedule);
        STW_TRY(no_memory(err));
    }
    handle->world = mine.world;
    pthread_mutex_init(&handle->mutex, NULL);
    *out = handle;
    handle = NULL;
out:
    stw_pool_free(pool);
    free(handle);
    return stw_library_end(status, error);
}

/* A schedule looks the same to those who read it; what it keeps for them has a lock of its own. */
static stw_schedule_t *writable(const stw_schedule_t *schedule) {
    return (stw_schedule_t *)(uintptr_t)schedule;
}

stw_status_t stw_get_schedule_info(const stw_schedule_t *schedule, uint32_t rank,
                                   stw_schedule_info_t *out, size_t size, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    const stw_sync_view *view = NULL;
    STW_TRY(stw_library_need(schedule, "schedule", err));
    STW_TRY(stw_library_take(NULL, 0, out, size, STW_LIBRARY_UP_TO(stw_schedule_info_t, sum), err));
    STW_TRY(stw_sync_schedule_view(schedule->schedule, rank, &view, err));
    const stw_schedule_info_t info = {.rounds = stw_sync_schedule_rounds(schedule->schedule),
                                      .send_bytes = view->send_bytes,
                                      .receive_bytes = view->receive_bytes,
                                      .bucket_bytes = view->bucket_bytes,
                                      .sent_bytes = view->sent_bytes,
                                      .received_bytes = view->received_bytes,
                                      .own_bytes = view->own_bytes,
                                      .sum = stw_sync_schedule_sum(schedule->schedule)};
    stw_library_copy(out, size, &info, sizeof info);
out:
    return stw_library_end(status, error);
}

static stw_status fill_lists(rank_lists *lists, const stw_sync_view *view, uint32_t rounds,
                             stw_error *err) {
    const uint32_t n_messages = view->first_message[rounds], n_parts = view->first_part[rounds];
    stw_pool *pool = stw_pool_new();
    stw_sync_message_t *messages = stw_pool_array(pool, n_messages, sizeof *messages);
    stw_sync_part_t *parts = stw_pool_array(pool, n_parts, sizeof *parts);
    if (messages == NULL || parts == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    for (uint32_t i = 0; i < n_messages; i++) {
        const stw_sync_message *m = &view->messages[i];
        messages[i] = (stw_sync_message_t){
            .peer = m->peer, .sends = m->sends ? 1 : 0, .offset = m->offset, .bytes = m->bytes};
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        const stw_sync_part *p = &view->parts[i];
        parts[i] = (stw_sync_part_t){
            .tensor = p->tensor, .target = p->target, .offset = p->offset, .last = p->last ? 1 : 0};
        for (int d = 0; d < STOWAGE_MAX_DIMS; d++) {
            parts[i].first[d] = p->box.first[d];
            parts[i].count[d] = p->box.count[d];
        }
    }
    *lists = (rank_lists){.pool = pool, .messages = messages, .parts = parts};
    return STW_STATUS_OK;
}

/* What a rank has in a round. */
static stw_status look(const stw_schedule_t *schedule, uint32_t rank, uint32_t round,
                       const stw_sync_view **view, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_library_need(schedule, "schedule", err));
    const uint32_t rounds = stw_sync_schedule_rounds(schedule->schedule);
    if (round >= rounds)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "round", "found %u, expected fewer than %u", round,
                         rounds));
    STW_TRY(stw_sync_schedule_view(schedule->schedule, rank, view, err));
    stw_schedule_t *mine = writable(schedule);
    pthread_mutex_lock(&mine->mutex);
    if (mine->lists[rank].pool == NULL) status = fill_lists(&mine->lists[rank], *view, rounds, err);
    pthread_mutex_unlock(&mine->mutex);
out:
    return status;
}

stw_status_t stw_get_sync_messages(const stw_schedule_t *schedule, uint32_t rank, uint32_t round,
                                   const stw_sync_message_t **out, uint32_t *n,
                                   stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    const stw_sync_view *view = NULL;
    if (out != NULL) *out = NULL;
    if (n != NULL) *n = 0;
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_need(n, "n", err));
    STW_TRY(look(schedule, rank, round, &view, err));
    *out = schedule->lists[rank].messages + view->first_message[round];
    *n = view->first_message[round + 1] - view->first_message[round];
out:
    return stw_library_end(status, error);
}

stw_status_t stw_get_sync_parts(const stw_schedule_t *schedule, uint32_t rank, uint32_t round,
                                const stw_sync_part_t **out, uint32_t *n, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    const stw_sync_view *view = NULL;
    if (out != NULL) *out = NULL;
    if (n != NULL) *n = 0;
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_need(n, "n", err));
    STW_TRY(look(schedule, rank, round, &view, err));
    *out = schedule->lists[rank].parts + view->first_part[round];
    *n = view->first_part[round + 1] - view->first_part[round];
out:
    return stw_library_end(status, error);
}

/* ---- a schedule on a device ---- */

stw_status_t stw_open_sync(const stw_schedule_t *schedule, uint32_t rank,
                           const stw_open_sync_t *options, size_t size, stw_sync_t **out,
                           stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_open_sync_t mine = {0};
    stw_sync_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(schedule, "schedule", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_open_sync_t, n_targets), err));
    if (mine.n_sources > 0) STW_TRY(stw_library_need(mine.sources, "sources", err));
    if (mine.n_targets > 0) STW_TRY(stw_library_need(mine.targets, "targets", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(no_memory(err));
    const stw_sync_options sync = {.backend = mine.backend != NULL ? mine.backend : "auto",
                                   .gpu_is_given = mine.gpu_is_given != 0,
                                   .gpu = mine.gpu};
    const stw_sync_memories memories = {mine.sources, mine.targets, mine.n_sources, mine.n_targets};
    STW_TRY(stw_sync_device_open(schedule->schedule, rank, &sync, &memories, &handle->device, err));
    STW_TRY(stw_sync_loop_open(handle->device, stw_sync_schedule_rounds(schedule->schedule),
                               &handle->loop, err));
    handle->pid = (long)getpid();
    *out = handle;
    handle = NULL;
out:
    if (handle != NULL) stw_sync_device_close(handle->device);
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_sync(stw_sync_t *sync) {
    if (sync == NULL) return;
    /* A child's copy has no threads, and what it would close is the parent's. */
    if (sync->pid == (long)getpid()) {
        (void)stw_library_begin(NULL);
        stw_sync_loop_close(sync->loop);
        stw_sync_device_close(sync->device);
        (void)stw_library_end(STW_STATUS_OK, NULL);
    }
    free(sync);
}

static stw_status need(const stw_sync_t *sync, stw_error *err) {
    stw_status status = stw_library_need(sync, "sync", err);
    return status == STW_STATUS_OK ? stw_library_need_process(sync->pid, "sync", err) : status;
}

stw_status_t stw_bind_sync(stw_sync_t *sync, const void *const *sources, uint32_t n_sources,
                           void *const *targets, uint32_t n_targets, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(sync, err));
    if (n_sources > 0) STW_TRY(stw_library_need(sources, "sources", err));
    if (n_targets > 0) STW_TRY(stw_library_need(targets, "targets", err));
    const stw_sync_memories memories = {sources, targets, n_sources, n_targets};
    STW_TRY(stw_sync_device_bind(sync->device, &memories, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_pack_round(stw_sync_t *sync, uint32_t round, void *send, void *stream,
                            stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(sync, err));
    STW_TRY(stw_sync_device_pack(sync->device, round, send, stream, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_place_round(stw_sync_t *sync, uint32_t round, const void *receive, void *bucket,
                             void *stream, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(sync, err));
    STW_TRY(stw_sync_device_place(sync->device, round, receive, bucket, stream, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_begin_sync(stw_sync_t *sync, const stw_begin_sync_t *options, size_t size,
                            stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_begin_sync_t mine = {.comm = NULL};
    STW_TRY(need(sync, err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_begin_sync_t, timeout_s), err));
    stw_sync_loop_options loop = {.pack = mine.pack_stream,
                                  .comm = mine.comm_stream,
                                  .place = mine.place_stream,
                                  .take = mine.take_stream,
                                  .lent = mine.comm,
                                  .releases = mine.releases != 0,
                                  .timeout_s = mine.timeout_s};
    for (int i = 0; i < STW_SYNC_SETS; i++)
        loop.sets[i] = (stw_sync_buffers){mine.send[i], mine.receive[i], mine.bucket[i]};
    STW_TRY(stw_sync_loop_begin(sync->loop, &loop, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_step_sync(stw_sync_t *sync, int *action, uint32_t *round, uint32_t *set,
                           stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_sync_step step = {STW_SYNC_DONE, 0, 0};
    STW_TRY(need(sync, err));
    STW_TRY(stw_library_need(action, "action", err));
    STW_TRY(stw_library_need(round, "round", err));
    STW_TRY(stw_library_need(set, "set", err));
    status = stw_sync_loop_step(sync->loop, &step, err);
    *action = (int)step.action;
    *round = step.round;
    *set = step.set;
out:
    return stw_library_end(status, error);
}

stw_status_t stw_sum_bytes(stw_sync_t *sync, const void *address, uint64_t bytes, void *stream,
                           uint64_t *out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    if (out != NULL) *out = 0;
    STW_TRY(need(sync, err));
    STW_TRY(stw_library_need(out, "out", err));
    if (bytes > 0) STW_TRY(stw_library_need(address, "address", err));
    if ((uintptr_t)address % sizeof(uint64_t) != 0)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "address",
                         "found %p, expected a multiple of 8 bytes", address));
    STW_TRY(stw_sync_device_sum(sync->device, address, bytes, stream, out, err));
out:
    return stw_library_end(status, error);
}
