/* SPDX-License-Identifier: Apache-2.0 */
/* Planning with changed specs. Only bytes are planned: nobody needs the seconds of a plan that is
 * offered as one that fits. */
#include "plan/program/effect.h"
#include "planner/fixes.h"
#include "planner/problem.h"
#include "planner/resolve.h"

/* Where all state shares one place, rows lie above the walk by at most about this share of the
 * GPU's memory. */
static const double LOOSE_ROWS = 0.35;

/* Specs with changes, and the job that they describe. */
typedef struct changed {
    stw_cluster cluster;
    stw_run_spec run;
    stw_job *job;
} changed;

/* The least over in a plan of its own, judged by its walk. */
static stw_status walk_changed(const changed *specs, const stw_cost *cost, stw_choice *choice,
                               stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cost_decide(cost, choice, plan->pool, &plan->decisions, err));
    plan->cluster = specs->cluster;
    plan->run = specs->run;
    plan->job = specs->job;
    STW_TRY(stw_plan_derive_bytes(plan, err));
    stw_plan_judge(plan);
out:
    for (uint32_t k = 0; k < specs->job->n_kinds; k++) {
        if (plan->layouts != NULL) stw_layout_free(plan->layouts[k]);
        if (plan->programs != NULL) stw_program_free(plan->programs[k]);
    }
    return status;
}

/* Rows are upper bounds of the walk: a choice that is a little over them may fit all the same. */
static stw_status try_walk(const changed *specs, const stw_model *model, const stw_cost *cost,
                           double time_limit_s, stw_choice *choice, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan plan = {.model = (stw_model *)(uintptr_t)model, .pool = stw_pool_new()};
    stw_ilp_options options = {.time_limit_s = time_limit_s};
    stw_ilp_result result;
    stw_evaluation evaluation;
    if (plan.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    STW_TRY(stw_ilp_solve_least_over(cost, &options, choice, &result, err));
    stw_cost_evaluate(cost, choice, &evaluation);
    if ((double)evaluation.over_bytes > LOOSE_ROWS * (double)specs->cluster.gpu.memory_bytes)
        goto out;
    STW_TRY(walk_changed(specs, cost, choice, &plan, err));
    *fits = plan.verdict != STW_VERDICT_DOES_NOT_FIT;
out:
    stw_pool_free(plan.pool);
    return status;
}

static stw_status plan_changed(const changed *specs, const stw_model *model, double time_limit_s,
                               bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    STW_TRY(stw_cost_new_bytes(specs->job, &cost, err));
    stw_choice choice = stw_choice_new(cost, cost->pool);
    if (choice.acts == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
        goto out;
    }
    STW_TRY(stw_planner_feasible(cost, time_limit_s, &choice, fits, err));
    if (!*fits && cost->whole)
        STW_TRY(try_walk(specs, model, cost, time_limit_s, &choice, fits, err));
out:
    stw_cost_free(cost);
    return status;
}

static stw_status apply(changed *specs, const stw_change *c, stw_error *err) {
    if (stw_run_spec_has_key(c->key))
        return stw_run_spec_set(&specs->run, c->key, c->value, "fix", err);
    return stw_cluster_set(&specs->cluster, c->key, c->value, "fix", err);
}

/* @param specs copies of the plan's; out: changed, with a job, which the caller frees */
static stw_status change_specs(const stw_plan *plan, const stw_change *changes, uint32_t n,
                               changed *specs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < n; i++) STW_TRY(apply(specs, &changes[i], err));
    STW_TRY(stw_run_spec_check(&specs->run, "fix", err));
    STW_TRY(stw_cluster_check(&specs->cluster, "fix", err));
    STW_TRY(stw_job_new(plan->model, &specs->cluster, &specs->run,
                        stw_engine_find(specs->run.engine), &specs->job, err));
    STW_TRY(stw_job_check_effect(specs->job, "fix", err));
out:
    return status;
}

/* Specs that contradict themselves are no fix; everything else is an error of ours. */
static bool is_refusal(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_NOT_BUILT_IN;
}

stw_status stw_fix_admits(const stw_plan *plan, const stw_change *changes, uint32_t n, bool *out,
                          stw_error *err) {
    changed specs = {.cluster = plan->cluster, .run = plan->run};
    stw_error refused = STW_ERROR_INIT;
    stw_status status = change_specs(plan, changes, n, &specs, &refused);
    stw_job_free(specs.job);
    *out = status == STW_STATUS_OK;
    if (*out || is_refusal(status) || status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}

stw_status stw_fix_try(const stw_plan *plan, stw_fix_budget *budget, const stw_change *changes,
                       uint32_t n, stw_trial *out, stw_error *err) {
    double left_s = budget->end_s - stw_planner_now_s();
    *out = STW_TRIAL_UNFIT;
    if (left_s <= 0) budget->late = true;
    if (left_s <= 0 || budget->trials == 0) return STW_STATUS_OK;
    changed specs = {.cluster = plan->cluster, .run = plan->run};
    stw_error refused = STW_ERROR_INIT;
    bool fits = false;
    stw_status status = change_specs(plan, changes, n, &specs, &refused);
    if (status == STW_STATUS_OK) {
        budget->trials--;
        status = plan_changed(&specs, plan->model, left_s, &fits, &refused);
    }
    stw_job_free(specs.job);
    *out = is_refusal(status) ? STW_TRIAL_REFUSED : fits ? STW_TRIAL_FITS : STW_TRIAL_UNFIT;
    if (status == STW_STATUS_OK || is_refusal(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}
