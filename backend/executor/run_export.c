/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/run_export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/boxes.h"
#include "backend/executor/export_files.h"
#include "backend/executor/run_parts.h"
#include "backend/process.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/log.h"
#include "core/median.h"
#include "engines/weight_sync.h"
#include "plan/sync/traffic.h"

#define BUCKET_BYTES (64ull << 20) /* without a rollout, whose update_bucket it is */
#define WRITERS 4u                 /* threads of a rank */

struct stw_run_export {
    stw_export *plan;
    stw_sync_schedule *schedule;
    const stw_sync_job *job;
    const stw_sync_view *view;
    stw_sync_device *device;
    stw_export_files *files;
    stw_threads *threads;
    uint32_t rounds, sets;
    uint64_t gpu_base, gpu_room;   /* send and receive buffers of one set */
    uint64_t host_base, host_room; /* a bucket */
    stw_comm_message *messages;
    uint64_t version;
    uint32_t n_samples;
    double *seconds; /* [steps] */
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "--sync-to", "out of memory");
}

/* ---- preparing ---- */

static uint32_t writers_of(const stw_job *job) {
    return job->world < job->ranks_per_node ? job->world : job->ranks_per_node;
}

static stw_status make_schedule(stw_rank_run *run, stw_error *err) {
    stw_run_export *x = run->to_folder;
    const stw_role *role = stw_synced_role(run->job);
    const uint64_t bucket =
        role != NULL ? stw_max_u64(role->update_bucket_bytes, STW_SYNC_LEAST_BUCKET) : BUCKET_BYTES;
    stw_pool *pool = stw_pool_new(); /* the schedule takes it */
    stw_sync_job job;
    if (pool == NULL) return no_memory(err);
    const stw_status status =
        stw_export_job(x->plan, bucket, writers_of(run->job), pool, &job, err);
    if (status == STW_STATUS_OK) return stw_sync_schedule_new(pool, &job, &x->schedule, err);
    stw_pool_free(pool);
    return status;
}

stw_status stw_run_export_prepare(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t most = 0;
    if (run->options->sync_to == NULL) goto out;
    stw_run_export *x = run->to_folder = stw_pool_alloc(run->pool, sizeof *x);
    if (x == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_export_new(run->job, &x->plan, err));
    STW_TRY(make_schedule(run, err));
    x->job = stw_sync_schedule_job(x->schedule);
    STW_TRY(stw_sync_schedule_view(x->schedule, run->ranks.rank, &x->view, err));
    x->rounds = stw_sync_schedule_rounds(x->schedule);
    x->sets = x->rounds > 1 ? 2 : 1;
    x->gpu_room = x->view->send_bytes + x->view->receive_bytes;
    x->host_room = x->view->bucket_bytes;
    for (uint32_t r = 0; r < x->rounds; r++) {
        const uint32_t n = x->view->first_message[r + 1] - x->view->first_message[r];
        if (n > most) most = n;
    }
    x->messages = stw_pool_array(run->pool, (size_t)most + 1, sizeof *x->messages);
    x->seconds = stw_pool_array(run->pool, run->options->steps, sizeof *x->seconds);
    if (x->messages == NULL || x->seconds == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_export_files_new(x->plan, x->job->targets, run->options->sync_to, run->ranks.rank,
                                 &x->files, err));
out:
    return status;
}

/* Between steps nothing is live above the regions but what a rollout was given. */
void stw_run_export_take_room(stw_rank_run *run) {
    stw_run_export *x = run->to_folder;
    uint64_t *arena = run->config.arena_bytes;
    if (x == NULL) return;
    x->gpu_base =
        run->sync != NULL ? arena[STW_TIER_GPU] : run->layout->persistent_bytes[STW_TIER_GPU];
    x->gpu_base = stw_round_up_u64(x->gpu_base, STW_ALIGN_BYTES);
    x->host_base = stw_round_up_u64(run->layout->persistent_bytes[STW_TIER_HOST], STW_ALIGN_BYTES);
    if (x->gpu_room > 0)
        arena[STW_TIER_GPU] =
            stw_max_u64(arena[STW_TIER_GPU], x->gpu_base + stw_times(x->sets, x->gpu_room));
    if (x->host_room > 0)
        arena[STW_TIER_HOST] =
            stw_max_u64(arena[STW_TIER_HOST], x->host_base + stw_times(x->sets, x->host_room));
}

static stw_status cut_published(const void *cutter, uint32_t tensor, uint64_t first, uint64_t n,
                                stw_export_take take, void *state, stw_error *err) {
    return stw_export_run(cutter, tensor, first, n, take, state, err);
}

stw_status stw_run_export_open(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_export *x = run->to_folder;
    stw_sync_places places = {NULL, NULL, NULL};
    stw_pool *pool = NULL;
    if (x == NULL) goto out;
    pool = stw_pool_new();
    if (pool == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_find_parts(run, x->job->n_tensors, cut_published, x->plan, pool, &places, err));
    const void *const arenas[2] = {run->backend->device_address(run->device, 0, 0),
                                   run->backend->host_address(run->device, 0, 0)};
    const stw_sync_memories memories = {.sources = arenas, .n_sources = 2};
    const stw_sync_options options = {.backend = run->backend->name,
                                      .gpu_is_given = run->config.gpu_is_given,
                                      .gpu = run->config.gpu,
                                      .places = &places};
    STW_TRY(
        stw_sync_device_open(x->schedule, run->ranks.rank, &options, &memories, &x->device, err));
    STW_TRY(stw_threads_new(WRITERS, &x->threads, err));
out:
    stw_pool_free(pool);
    return status;
}

void stw_run_export_close(stw_rank_run *run) {
    stw_run_export *x = run->to_folder;
    if (x == NULL) return;
    stw_sync_device_close(x->device);
    stw_threads_free(x->threads);
    stw_export_files_free(x->files);
    stw_sync_schedule_free(x->schedule);
    stw_export_free(x->plan);
}

/* ---- a step ---- */

typedef struct writing {
    const stw_run_export *x;
    const unsigned char *bucket;
    uint32_t first; /* part of the view */
    pthread_mutex_t mutex;
    stw_status status;
    stw_error error;
} writing;

static void write_parts(void *arg, uint64_t first, uint64_t count) {
    writing *w = arg;
    for (uint64_t i = first; i < first + count; i++) {
        const stw_sync_part *part = &w->x->view->parts[w->first + i];
        stw_error error = STW_ERROR_INIT;
        const stw_status status = stw_export_files_write(w->x->files, part->tensor, &part->box,
                                                         w->bucket + part->offset, &error);
        if (status == STW_STATUS_OK) continue;
        pthread_mutex_lock(&w->mutex);
        if (w->status == STW_STATUS_OK) {
            w->status = status;
            w->error = error;
        }
        pthread_mutex_unlock(&w->mutex);
    }
}

static unsigned char *bucket_of(const stw_rank_run *run, uint32_t round) {
    const stw_run_export *x = run->to_folder;
    return run->backend->host_address(
        run->device, x->host_base + stw_times(round % x->sets, x->host_room), x->host_room);
}

/* What a round brought, once it is there. A failure does not end the rounds: others wait for this
 * rank's. */
static void write_round(stw_rank_run *run, uint32_t round, stw_status *so_far, stw_error *err) {
    const stw_run_export *x = run->to_folder;
    const uint32_t first = x->view->first_part[round], n = x->view->first_part[round + 1] - first;
    writing w = {.x = x,
                 .bucket = bucket_of(run, round),
                 .first = first,
                 .mutex = PTHREAD_MUTEX_INITIALIZER,
                 .error = STW_ERROR_INIT};
    if (*so_far != STW_STATUS_OK || n == 0) return;
    stw_threads_for(x->threads, n, 1, write_parts, &w);
    pthread_mutex_destroy(&w.mutex);
    if (w.status == STW_STATUS_OK) return;
    *so_far = w.status;
    if (err != NULL && err->status == STW_STATUS_OK) *err = w.error;
}

static uint64_t gpu_at(const stw_run_export *x, uint32_t round) {
    return x->gpu_base + stw_times(round % x->sets, x->gpu_room);
}

/* "files of step 3, round 2 of 5, a tensor" */
static void name_round(const stw_rank_run *run, uint32_t round, char *out, size_t out_size) {
    const stw_run_export *x = run->to_folder;
    const stw_sync_view *v = x->view;
    const char *name = "nothing of this rank";
    if (v->first_pack[round] < v->first_pack[round + 1])
        name = x->job->tensors[x->job->sources[v->packs[v->first_pack[round]].source].tensor].name;
    else if (v->first_part[round] < v->first_part[round + 1])
        name = x->job->tensors[v->parts[v->first_part[round]].tensor].name;
    snprintf(out, out_size, "files, round %u of %u, %.50s", round + 1, x->rounds, name);
}

/* Pack and send a round; place it into the bucket after `wait`. */
static stw_status send_round(stw_rank_run *run, uint32_t round, const char *what, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_run_export *x = run->to_folder;
    const stw_sync_view *v = x->view;
    const uint64_t send = gpu_at(x, round), receive = send + v->send_bytes;
    uint32_t n = 0;
    /* On the comm stream: the messages of NCCL follow without a wait. */
    STW_TRY(stw_sync_device_pack(x->device, round,
                                 run->backend->device_address(run->device, send, 0),
                                 run->backend->native_stream(run->device, STW_STREAM_COMM), err));
    for (uint32_t i = v->first_message[round]; i < v->first_message[round + 1]; i++) {
        const stw_sync_message *m = &v->messages[i];
        x->messages[n++] = (stw_comm_message){m->peer, m->sends,
                                              (m->sends ? send : receive) + m->offset, m->bytes};
    }
    stw_comm_about(run->comm, what);
    STW_TRY(stw_comm_messages(run->comm, STW_TIER_GPU, x->messages, n, err));
    STW_TRY(stw_sync_device_place(
        x->device, round, run->backend->device_address(run->device, receive, 0),
        bucket_of(run, round), run->backend->native_stream(run->device, STW_STREAM_COMM), err));
out:
    return status;
}

/* A round travels while the one before it is written.
 * @param so_far of this rank's files; @param own their error */
static stw_status run_rounds(stw_rank_run *run, stw_status *so_far, stw_error *own,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char what[96];
    for (uint32_t r = 0; r < run->to_folder->rounds; r++) {
        name_round(run, r, what, sizeof what);
        STW_TRY(send_round(run, r, what, err));
        if (r > 0) write_round(run, r - 1, so_far, own);
        STW_TRY(stw_comm_wait(run->comm, what, err));
        STW_TRY(run->backend->synchronize(run->device, err));
        stw_exec_progress_add(run, 1);
    }
    if (run->to_folder->rounds > 0) write_round(run, run->to_folder->rounds - 1, so_far, own);
out:
    return status;
}

stw_status stw_run_export_step(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK, so_far = STW_STATUS_OK;
    stw_run_export *x = run->to_folder;
    stw_error own = STW_ERROR_INIT;
    const bool first = run->ranks.rank == 0;
    if (x == NULL) goto out;
    stw_exec_progress(run, "files", STW_PROGRESS_SHARE, x->rounds);
    const double start = stw_process_now_s();
    STW_TRY(stw_exec_agree_status(
        run, first ? stw_export_files_make(x->files, run->step, err) : STW_STATUS_OK, err));
    so_far = stw_export_files_begin(x->files, run->step, &own);
    STW_TRY(run_rounds(run, &so_far, &own, err));
    if (so_far == STW_STATUS_OK) so_far = stw_export_files_end(x->files, &own);
    if (so_far != STW_STATUS_OK && err != NULL) *err = own;
    STW_TRY(stw_exec_agree_status(run, so_far, err));
    STW_TRY(stw_exec_agree_status(
        run,
        first ? stw_export_files_publish(x->files, run->weights_path, run->step, err)
              : STW_STATUS_OK,
        err));
    x->version = run->step;
    x->seconds[x->n_samples++] = stw_process_now_s() - start;
out:
    return status;
}

/* ---- verification ---- */

typedef struct comparing {
    stw_rank_run *run;
    stw_weights *weights;
    unsigned char *raw, *params;
} comparing;

enum { AT_ONCE = 1 << 18 }; /* elements that are compared together */

/* Do bits that were written stand for a parameter? */
static bool is_same(const void *raw, stw_dtype stored, const void *params, bool wide, uint64_t i) {
    const uint32_t *raw32 = raw, *params32 = params;
    const uint16_t *raw16 = raw, *params16 = params;
    const float value = wide ? stw_float_from_bits(params32[i]) : stw_float_from_bf16(params16[i]);
    if (stored == STW_DTYPE_F32) return raw32[i] == stw_bits_from_float(value);
    if (stored == STW_DTYPE_F16) return raw16[i] == stw_f16_from_float(value);
    return raw16[i] == (wide ? stw_bf16_from_float(value) : params16[i]);
}

static stw_status compare_run(void *state, const stw_region *region, const stw_overlap *part,
                              uint64_t at, stw_error *err) {
    const comparing *c = state;
    stw_rank_run *run = c->run;
    stw_status status = STW_STATUS_OK;
    const stw_dtype stored = stw_weights_dtype(c->weights, part->tensor);
    const uint64_t width = stw_element_bytes(run->types.params);
    for (uint64_t done = 0, n; done < part->n; done += n) {
        n = stw_min_u64(AT_ONCE, part->n - done);
        STW_TRY(
            stw_weights_read(c->weights, part->tensor, part->tensor_first + done, n, c->raw, err));
        STW_TRY(run->backend->get(run->device, c->params,
                                  stw_at(region->tier, at + stw_times(done, width)),
                                  stw_times(n, width), err));
        run->checked += n;
        for (uint64_t i = 0; i < n; i++)
            if (!is_same(c->raw, stored, c->params, run->types.params == STW_ELEMENT_F32, i) &&
                run->mismatched++ == 0)
                stw_log(STW_LOG_ERROR, "%s: element %llu of %s is not that of step %llu",
                        run->options->sync_to, (unsigned long long)(part->tensor_first + done + i),
                        run->job->model->tensors[part->tensor].name,
                        (unsigned long long)run->to_folder->version);
    }
out:
    return status;
}

stw_status stw_run_export_verify(stw_rank_run *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    comparing c = {.run = run};
    if (run->to_folder == NULL || run->ranks.rank >= writers_of(run->job)) goto out;
    stw_exec_progress(run, "verification of the files", STW_PROGRESS_SECONDS, 0);
    c.raw = malloc(AT_ONCE * sizeof(float));
    c.params = malloc(AT_ONCE * sizeof(float));
    if (c.raw == NULL || c.params == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_weights_open(run->job->model, run->options->sync_to, 0, &c.weights, err));
    STW_TRY(stw_each_run(run, compare_run, &c, err));
out:
    stw_weights_close(c.weights);
    free(c.raw);
    free(c.params);
    return status;
}

stw_status stw_run_export_note(const stw_rank_run *run, stw_run_result *out, stw_error *err) {
    const stw_run_export *x = run->to_folder;
    if (x == NULL || x->n_samples == 0) return STW_STATUS_OK;
    out->synced.folder = stw_pool_string(out->pool, run->options->sync_to);
    if (out->synced.folder == NULL) return no_memory(err);
    out->synced.folder_version = x->version;
    out->synced.folder_bytes = stw_export_files_bytes(x->files);
    out->synced.folder_s = stw_median(x->seconds, x->n_samples);
    return STW_STATUS_OK;
}
