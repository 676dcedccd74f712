/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct stw_session {
    stw_executor_options options;
    stw_rank_run *run;
    bool has_params;  /* they were loaded or adopted */
    bool has_stepped; /* the first optimizer step was taken */
};

stw_status stw_session_open(const stw_plan *plan, const stw_executor_options *options,
                            stw_session **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_backend *backend = NULL;
    *out = NULL;
    stw_session *session = calloc(1, sizeof *session);
    if (session == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "session", "out of memory");
    session->options = *options;
    session->options.steps = 1; /* room for the samples of one */
    session->options.other_grad = (stw_other_grad){0};
    STW_TRY(stw_backend_select(options->backend, &backend, err));
    STW_TRY(stw_exec_open(plan, &session->options, backend, &session->run, err));
    session->run->in_session = true;
    *out = session;
    session = NULL;
out:
    free(session);
    return status;
}

void stw_session_close(stw_session *session) {
    if (session == NULL) return;
    stw_exec_close(session->run);
    free(session);
}

const stw_rank_run *stw_session_run(const stw_session *session) { return session->run; }

stw_status stw_session_set_lr(stw_session *session, uint32_t group, double lr, stw_error *err) {
    uint32_t groups = session->run->plan->run.optimizer.n_groups + 1;
    if (group >= groups)
        return stw_fail(err, STW_STATUS_USAGE, "learning rate",
                        "found parameter group %u, the plan has %u", group, groups);
    if (!(lr >= 0 && lr <= STW_MOST_LR))
        return stw_fail(err, STW_STATUS_USAGE, "learning rate", "found %g, expected 0 to %g", lr,
                        STW_MOST_LR);
    session->run->lr[group] = lr;
    return STW_STATUS_OK;
}

static stw_status issue(stw_session *session, const stw_schedule *schedule,
                        stw_session_sample *sample, stw_error *err) {
    stw_rank_run *run = session->run;
    double seconds = 0, norm = (double)NAN;
    float factor = 1.0f;
    stw_status status = stw_exec_schedule(run, schedule, &seconds, err);
    if (run->refused) {
        run->agreed = false; /* the session goes on */
        return status;
    }
    if (status != STW_STATUS_OK) {
        stw_comm_fail(run->comm, err);
        stw_comm_abort(run->comm); /* the others wait for this rank */
        return status;
    }
    sample->seconds += seconds;
    if (!run->adamw.clip || !stw_movement_has(run->program, schedule->movement, STW_OP_UPDATE))
        return status;
    stw_exec_note_norm(run, &norm, &factor);
    sample->grad_norm = norm;
    sample->clip_factor = (double)factor;
    return status;
}

/* Whether Stowage executes a movement of the phase. */
static bool executes(const stw_rank_run *run, stw_phase phase) {
    for (uint32_t m = 0; m < run->program->n_movements; m++)
        if (run->schedules[m] != NULL && run->program->movements[m].phase == phase) return true;
    return false;
}

static bool updates(const stw_rank_run *run, stw_phase phase) {
    for (uint32_t m = 0; m < run->program->n_movements; m++)
        if (run->program->movements[m].phase == phase &&
            stw_movement_has(run->program, &run->program->movements[m], STW_OP_UPDATE))
            return true;
    return false;
}

/* Refuse a phase that the plan does not have or that is out of order. */
static stw_status check_order(const stw_session *session, stw_phase phase, uint64_t step,
                              stw_error *err) {
    const stw_rank_run *run = session->run;
    const char *name = stw_phase_name(phase);
    bool has_first = executes(run, STW_PHASE_FIRST_OPTIMIZER_STEP);
    if (!executes(run, phase))
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "Stowage executes no such movement of this plan");
    if (phase == STW_PHASE_LOAD) return STW_STATUS_OK;
    if (step == 0 && updates(run, phase))
        return stw_fail(err, STW_STATUS_USAGE, "step", "found 0, expected at least 1");
    if (!session->has_params)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "the session has no parameters yet, expected \"load\" or "
                        "stw_adopt_params first");
    if (phase == STW_PHASE_OPTIMIZER_STEP && has_first && !session->has_stepped)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "the session has taken no step yet, expected \"first_optimizer_step\"");
    if (phase == STW_PHASE_FIRST_OPTIMIZER_STEP && session->has_stepped)
        return stw_fail(err, STW_STATUS_USAGE, name,
                        "the session has taken its first step, expected \"optimizer_step\"");
    return STW_STATUS_OK;
}

stw_status stw_session_issue(stw_session *session, stw_phase phase, uint64_t step,
                             stw_session_sample *sample, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_rank_run *run = session->run;
    *sample = (stw_session_sample){.grad_norm = (double)NAN, .clip_factor = 1};
    STW_TRY(check_order(session, phase, step, err));
    run->step = step;
    run->adamw = stw_exec_adamw(run, step);
    for (uint32_t m = 0; m < run->program->n_movements; m++)
        if (run->schedules[m] != NULL && run->program->movements[m].phase == phase)
            STW_TRY(issue(session, run->schedules[m], sample, err));
    session->has_params |= phase == STW_PHASE_LOAD;
    session->has_stepped |= phase == STW_PHASE_FIRST_OPTIMIZER_STEP;
out:
    return status;
}

stw_status stw_session_adopt(stw_session *session, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_rank_run *run = session->run;
    for (uint32_t i = 0; i < run->program->n_ops; i++)
        if (run->program->ops[i].kind == STW_OP_MASTER) STW_TRY(stw_exec_issue(run, i, err));
    STW_TRY(run->backend->synchronize(run->device, err));
    STW_TRY(run->backend->commit(run->device, 0, err));
    session->has_params = true;
out:
    return status;
}

stw_status stw_session_save(stw_session *session, const stw_session_saves *saves, uint64_t step,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_rank_run *run = session->run;
    if (!session->has_params)
        return stw_fail(err, STW_STATUS_USAGE, "save",
                        "the session has no parameters yet, expected a load first");
    if (run->saves == NULL) {
        session->options.checkpoint = stw_pool_string(run->pool, saves->folder);
        session->options.checkpoint_config = stw_pool_string(run->pool, saves->config);
        if (session->options.checkpoint == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, "save", "out of memory");
        status = stw_exec_agree_status(run, stw_exec_saves_open(run, err), err);
        if (status == STW_STATUS_OK) status = stw_exec_saves_agree(run, err);
        if (status != STW_STATUS_OK) stw_exec_saves_close(run);
        STW_TRY(status);
    } else if (strcmp(saves->folder, session->options.checkpoint) != 0) {
        return stw_fail(err, STW_STATUS_USAGE, saves->folder,
                        "expected %.300s, where the session saves", session->options.checkpoint);
    }
    session->options.checkpoint_keep = saves->keep;
    run->step = step;
    stw_exec_save(run);
out:
    return status;
}

stw_status stw_session_resume(stw_session *session, const char *path, uint64_t *step,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_rank_run *run = session->run;
    if (session->has_params)
        return stw_fail(err, STW_STATUS_USAGE, "resume", "the session has parameters already");
    session->options.resume = path;
    status = stw_exec_agree_status(run, stw_exec_resume_open(run, err), err);
    if (status == STW_STATUS_OK) status = stw_exec_agree_resume(run, err);
    if (status == STW_STATUS_OK) status = stw_exec_resume_load(run, err);
    session->options.resume = NULL;
    if (status == STW_STATUS_OK) *step = run->step;
    session->has_params = session->has_stepped = status == STW_STATUS_OK;
    stw_exec_resume_close(run);
    return status;
}

stw_status stw_session_seed_grads(stw_session *session, uint64_t step, stw_error *err) {
    return stw_exec_seed_grads(session->run, step, err);
}

bool stw_session_has(const stw_session *session, int digest) {
    return stw_exec_has_digest(session->run, digest);
}

stw_status stw_session_digest(stw_session *session, uint64_t digest[STW_N_DIGESTS],
                              stw_error *err) {
    stw_status status = stw_exec_digest(session->run, err);
    for (int d = 0; d < STW_N_DIGESTS; d++) digest[d] = session->run->digest[d];
    return status;
}
