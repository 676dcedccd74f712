/* SPDX-License-Identifier: Apache-2.0 */
/* Execution with memory and streams of the caller. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include "backend/executor/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library/handles.h"

struct stw_session_t {
    long pid;                 /* of the process that opened it */
    stw_device_config caller; /* memory, streams and GPU of the caller */
    stw_executor_options options;
    stw_session *session;
};

static void take_options(const stw_session_options_t *from, stw_session_t *handle) {
    stw_device_config *c = &handle->caller;
    c->external[STW_TIER_GPU] = (stw_external_arena){from->gpu_address, from->gpu_bytes};
    c->external[STW_TIER_HOST] = (stw_external_arena){from->host_address, from->host_bytes};
    c->streams[STW_STREAM_COMPUTE] = from->compute_stream;
    c->streams[STW_STREAM_H2D] = from->h2d_stream;
    c->streams[STW_STREAM_D2H] = from->d2h_stream;
    c->streams[STW_STREAM_COMM] = from->comm_stream;
    c->gpu_is_given = from->gpu_is_given != 0;
    c->gpu = from->gpu;
    handle->options =
        (stw_executor_options){.backend = from->backend != NULL ? from->backend : "auto",
                               .steps = 1,
                               .seed = from->seed,
                               .weights = from->weights,
                               .nvme_folder = from->nvme_folder,
                               .nvme_in_memory = from->nvme_in_memory != 0,
                               .timeout_s = from->timeout_s,
                               .error_if_nonfinite = from->error_if_nonfinite != 0,
                               .caller = c};
}

stw_status_t stw_open_session(const stw_plan_t *plan, const stw_session_options_t *options,
                              size_t size, stw_session_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_session_options_t mine = {0};
    stw_session_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_session_options_t, timeout_s), err));
    STW_TRY(stw_library_need_seconds(mine.timeout_s, "timeout_s", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "session", "out of memory"));
    take_options(&mine, handle);
    handle->pid = (long)getpid();
    STW_TRY(stw_session_open(plan->plan, &handle->options, &handle->session, err));
    *out = handle;
    handle = NULL;
out:
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_session(stw_session_t *session) {
    if (session == NULL) return;
    /* A child's copy has no threads, and what it would close is the parent's. */
    if (session->pid == (long)getpid()) {
        (void)stw_library_begin(NULL); /* it may say something */
        stw_session_close(session->session);
        (void)stw_library_end(STW_STATUS_OK, NULL);
    }
    free(session);
}

void stw_get_session_info(const stw_session_t *session, stw_session_info_t *out, size_t size) {
    static const stw_session_info_t none = {0};
    if (session == NULL) {
        stw_library_copy(out, size, &none, sizeof none);
        return;
    }
    const stw_rank_run *run = stw_session_run(session->session);
    const uint64_t *bytes = run->layout->arena_bytes;
    const stw_session_info_t info = {
        .backend = run->backend->name,
        .rank = run->ranks.rank,
        .world = run->ranks.world,
        .rank_kind = run->kind,
        .gpu_address = run->backend->device_address(run->device, 0, bytes[STW_TIER_GPU]),
        .host_address = run->backend->host_address(run->device, 0, bytes[STW_TIER_HOST])};
    stw_library_copy(out, size, &info, sizeof info);
}

static stw_status need(const stw_session_t *session, stw_error *err) {
    stw_status status = stw_library_need(session, "session", err);
    return status == STW_STATUS_OK ? stw_library_need_process(session->pid, "session", err)
                                   : status;
}

stw_status_t stw_set_learning_rate(stw_session_t *session, uint32_t group, double learning_rate,
                                   stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(session, err));
    STW_TRY(stw_session_set_lr(session->session, group, learning_rate, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_adopt_params(stw_session_t *session, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(session, err));
    STW_TRY(stw_session_adopt(session->session, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_seed_gradients(stw_session_t *session, uint64_t step, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(session, err));
    STW_TRY(stw_session_seed_grads(session->session, step, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_execute_movement(stw_session_t *session, const char *phase, uint64_t step,
                                  stw_sample_t *out, size_t size, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_session_sample sample;
    stw_phase wanted;
    STW_TRY(need(session, err));
    STW_TRY(stw_library_need(phase, "phase", err));
    STW_TRY(
        stw_library_take(NULL, 0, out, size, STW_LIBRARY_UP_TO(stw_sample_t, clip_factor), err));
    if (!stw_phase_parse(phase, &wanted))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "phase",
                         "found \"%.60s\", expected one of the plan's", phase));
    STW_TRY(stw_session_issue(session->session, wanted, step, &sample, err));
    const stw_sample_t measured = {.seconds = sample.seconds,
                                   .grad_norm = sample.grad_norm,
                                   .clip_factor = sample.clip_factor};
    stw_library_copy(out, size, &measured, sizeof measured);
out:
    return stw_library_end(status, error);
}

stw_status_t stw_save_session(stw_session_t *session, const stw_session_save_t *options,
                              size_t size, uint64_t step, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_session_save_t mine = {0};
    STW_TRY(need(session, err));
    STW_TRY(stw_library_need(options, "options", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_session_save_t, config), err));
    STW_TRY(stw_library_need(mine.folder, "folder", err));
    const stw_session_saves saves = {mine.folder, mine.config, mine.keep};
    STW_TRY(stw_session_save(session->session, &saves, step, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_resume_session(stw_session_t *session, const char *path, uint64_t *step,
                                stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(need(session, err));
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_library_need(step, "step", err));
    STW_TRY(stw_session_resume(session->session, path, step, err));
out:
    return stw_library_end(status, error);
}

stw_status_t stw_digest_state(stw_session_t *session, const char *component, uint64_t *out,
                              stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    uint64_t digest[STW_N_DIGESTS];
    STW_TRY(need(session, err));
    STW_TRY(stw_library_need(component, "component", err));
    STW_TRY(stw_library_need(out, "out", err));
    int d = stw_library_digest_of(component);
    if (d < 0)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "component",
                         "found \"%.60s\", expected params, exp_avg, exp_avg_sq or master",
                         component));
    if (!stw_session_has(session->session, d))
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "component",
                         "found \"%.60s\", which this plan's state does not have", component));
    STW_TRY(stw_session_digest(session->session, digest, err));
    *out = digest[d];
out:
    return stw_library_end(status, error);
}
