/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: made, read and written. */
#include <stdlib.h>

#include "backend/probe/probe.h"
#include "core/deadline.h"
#include "library/handles.h"
#include "plan/job/effect.h"
#include "planner/planner.h"
#include "sim/sim.h"

/* ---- handles ---- */

/* Takes the plan over also on failure. */
static stw_status wrap(stw_plan *plan, stw_plan_t **out, stw_error *err) {
    stw_plan_t *handle = calloc(1, sizeof *handle);
    if (handle == NULL) {
        stw_plan_free(plan);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    }
    handle->plan = plan;
    handle->model.model = plan->model;
    pthread_mutex_init(&handle->spaces.mutex, NULL);
    *out = handle;
    return STW_STATUS_OK;
}

void stw_free_plan(stw_plan_t *plan) {
    if (plan == NULL) return;
    /* In use only in a child that was forked while a thread of its parent used them. */
    if (pthread_mutex_trylock(&plan->spaces.mutex) == 0) {
        stw_pool_free(plan->spaces.pool);
        pthread_mutex_unlock(&plan->spaces.mutex);
        pthread_mutex_destroy(&plan->spaces.mutex);
    }
    stw_plan_free(plan->plan);
    free(plan);
}

const stw_model_t *stw_get_plan_model(const stw_plan_t *plan) {
    return plan != NULL ? &plan->model : NULL;
}

/* ---- making ---- */

/* A plan frees its model; one that is made for a caller's model gets a view of it. */
static stw_status view_of(const stw_model *model, stw_model **out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_model *view = pool != NULL ? stw_pool_alloc(pool, sizeof *view) : NULL;
    if (view == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "plan", "out of memory");
    }
    *view = *model;
    view->pool = pool;
    *out = view;
    return STW_STATUS_OK;
}

static stw_status check_options(const stw_plan_options_t *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_library_need_seconds(options->time_limit_s, "time_limit_s", err));
    if (options->n_settings > 0) STW_TRY(stw_library_need(options->settings, "settings", err));
    for (size_t i = 0; i < options->n_settings; i++)
        STW_TRY(stw_library_need(options->settings[i], "settings", err));
out:
    return status;
}

static stw_status read_specs(const stw_plan_options_t *options, stw_cluster *cluster,
                             stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_probe_options sizes = {.depth = STW_PROBE_SIZES};
    STW_TRY(stw_cluster_defaults(cluster, err));
    if (options->cluster != NULL)
        STW_TRY(stw_cluster_read(options->cluster, cluster, err));
    else
        STW_TRY(stw_machine_probe(&sizes, cluster, NULL, err));
    STW_TRY(stw_run_spec_init(run, err));
    if (options->run != NULL) STW_TRY(stw_run_spec_read(options->run, run, err));
    STW_TRY(
        stw_specs_set_all(cluster, run, options->settings, options->n_settings, "settings", err));
    STW_TRY(stw_cluster_check(cluster, options->cluster != NULL ? options->cluster : "this machine",
                              err));
    STW_TRY(stw_run_spec_check(run, options->run != NULL ? options->run : "settings", err));
out:
    return status;
}

/* Without a solver every program stays unsolved, and the planner takes what descents find.
 * See no_solver.c. */
static stw_status solve(stw_plan *plan, const stw_plan_options_t *options, stw_error *err) {
    const stw_planner_options planner = {.time_limit_s = options->time_limit_s,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .simulate = stw_sim_seconds};
    stw_error why = STW_ERROR_INIT;
    stw_status status = stw_planner_solve(plan, &planner, &why);
    bool nothing = status == STW_STATUS_OK && plan->outcome == STW_OUTCOME_INFEASIBLE;
    if (nothing)
        return stw_fail(err, STW_STATUS_NOTHING_FITS, "planner",
                        "the greedy search finds no placement that fits; `stowage plan` searches "
                        "all of them and says what is missing");
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status == STW_STATUS_OK && plan->outcome == STW_OUTCOME_LIMIT)
        plan->outcome = STW_OUTCOME_FEASIBLE;
    return status;
}

stw_status_t stw_make_plan(const stw_model_t *model, const stw_plan_options_t *options, size_t size,
                           stw_plan_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_plan_options_t mine = {0};
    stw_model *view = NULL;
    stw_cluster cluster;
    stw_run_spec run = {0};
    stw_plan *plan = NULL;
    double before_s = stw_deadline_end_s();
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(model, "model", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_library_take(&mine, sizeof mine, options, size,
                             STW_LIBRARY_UP_TO(stw_plan_options_t, time_limit_s), err));
    STW_TRY(check_options(&mine, err));
    before_s = stw_deadline_set(
        stw_now_s() + (mine.time_limit_s > 0 ? mine.time_limit_s : STW_PLANNER_TIME_LIMIT_S));
    STW_TRY(read_specs(&mine, &cluster, &run, err));
    STW_TRY(view_of(model->model, &view, err));
    STW_TRY(stw_plan_new(view, &cluster, &run, &plan, err)); /* takes over also on failure */
    for (size_t i = 0; i < mine.n_settings; i++)
        STW_TRY(stw_job_check_setting(plan->job, mine.settings[i], "settings", err));
    STW_TRY(solve(plan, &mine, err));
    STW_TRY(stw_sim_plan(plan, NULL, err));
    STW_TRY(stw_plan_check(plan, true, err));
    status = wrap(plan, out, err);
    plan = NULL;
out:
    (void)stw_deadline_set(before_s);
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    return stw_library_end(status, error);
}

/* ---- files ---- */

stw_status_t stw_read_plan(const char *path, stw_plan_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    stw_plan *plan = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_library_need(out, "out", err));
    STW_TRY(stw_plan_read(path, &plan, err));
    STW_TRY(stw_plan_check(plan, false, err));
    STW_TRY(stw_sim_check(plan, path, NULL, err));
    status = wrap(plan, out, err);
    plan = NULL;
out:
    stw_plan_free(plan);
    return stw_library_end(status, error);
}

stw_status_t stw_write_plan(const stw_plan_t *plan, const char *path, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    STW_TRY(stw_library_need(plan, "plan", err));
    STW_TRY(stw_library_need(path, "path", err));
    STW_TRY(stw_plan_write(plan->plan, path, err));
out:
    return stw_library_end(status, error);
}
