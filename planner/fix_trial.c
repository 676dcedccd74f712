/* SPDX-License-Identifier: Apache-2.0 */
/* Planning with changed specs. Only bytes are planned: nobody needs the seconds of a plan that is
 * offered as one that fits. */
#include <stdio.h>

#include "plan/files/verdict.h"
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

/* What is made for a plan whose model, specs and job are not its own. */
static void drop(stw_plan *plan) {
    for (uint32_t k = 0; plan->job != NULL && k < plan->job->n_kinds; k++) {
        if (plan->layouts != NULL) stw_layout_free(plan->layouts[k]);
        if (plan->programs != NULL) stw_program_free(plan->programs[k]);
    }
    stw_pool_free(plan->pool);
}

/* A choice in a plan of its own, judged by its walk. */
static stw_status walk_changed(const changed *specs, const stw_model *model, const stw_cost *cost,
                               stw_choice *choice, stw_verdict *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan walked = {.model = (stw_model *)(uintptr_t)model, .pool = stw_pool_new()};
    stw_plan *plan = &walked;
    if (plan->pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    STW_TRY(stw_cost_decide(cost, choice, plan->pool, &plan->decisions, err));
    plan->cluster = specs->cluster;
    plan->run = specs->run;
    plan->job = specs->job;
    STW_TRY(stw_plan_derive_bytes(plan, err));
    stw_plan_judge(plan);
    const stw_margins margins = stw_plan_margins(plan);
    *out = stw_plan_bytes_verdict(plan);
    /* without margins, at risk is what fills a limit, and others may fill it less */
    if (*out == STW_VERDICT_AT_RISK && !(margins.gpu > 0) && !(margins.host > 0))
        *out = STW_VERDICT_FITS;
out:
    drop(plan);
    return status;
}

/* Rows are upper bounds of the walk: a choice that is a little over them may fit all the same. */
static stw_status try_walk(const changed *specs, const stw_model *model, const stw_cost *cost,
                           double time_limit_s, stw_choice *choice, stw_verdict *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_options options = {.time_limit_s = time_limit_s};
    stw_ilp_result result;
    stw_evaluation evaluation;
    STW_TRY(stw_ilp_solve_least_over(cost, &options, choice, &result, err));
    stw_cost_evaluate(cost, choice, &evaluation);
    if ((double)evaluation.over_bytes > LOOSE_ROWS * (double)specs->cluster.gpu.memory_bytes)
        goto out;
    status = walk_changed(specs, model, cost, choice, out, err);
out:
    return status;
}

static stw_status plan_changed(const changed *specs, const stw_model *model, double time_limit_s,
                               stw_verdict *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    bool fits = false;
    STW_TRY(stw_cost_new_bytes(specs->job, &cost, err));
    stw_choice choice = stw_choice_new(cost, cost->pool);
    if (choice.acts == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
        goto out;
    }
    STW_TRY(stw_planner_feasible(cost, time_limit_s, &choice, &fits, err));
    if (fits)
        STW_TRY(walk_changed(specs, model, cost, &choice, out, err));
    else if (cost->whole)
        STW_TRY(try_walk(specs, model, cost, time_limit_s, &choice, out, err));
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
    specs->run.batch.tokens_per_step = 0; /* a change of the ranks is one of the accumulation */
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
    stw_verdict verdict = STW_VERDICT_DOES_NOT_FIT;
    stw_status status = change_specs(plan, changes, n, &specs, &refused);
    if (status == STW_STATUS_OK) {
        budget->trials--;
        status = plan_changed(&specs, plan->model, left_s, &verdict, &refused);
    }
    stw_job_free(specs.job);
    *out = is_refusal(status)               ? STW_TRIAL_REFUSED
           : verdict == STW_VERDICT_FITS    ? STW_TRIAL_FITS
           : verdict == STW_VERDICT_AT_RISK ? STW_TRIAL_AT_RISK
                                            : STW_TRIAL_UNFIT;
    if (status == STW_STATUS_OK || is_refusal(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}

stw_status stw_fix_verify(const stw_plan *plan, stw_fix *fix, const stw_fix_judge *judge,
                          double time_limit_s, stw_error *err) {
    stw_change changes[STW_MAX_FIX_CHANGES];
    changed specs = {.cluster = plan->cluster, .run = plan->run};
    stw_plan made = {.model = plan->model, .pool = stw_pool_new()};
    stw_error refused = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    if (made.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    for (uint32_t i = 0; i < fix->n_changes; i++) {
        snprintf(changes[i].key, sizeof changes[i].key, "%s", fix->changes[i].set);
        snprintf(changes[i].value, sizeof changes[i].value, "%s", fix->changes[i].value);
    }
    STW_TRY(change_specs(plan, changes, fix->n_changes, &specs, &refused));
    made.cluster = specs.cluster;
    made.run = specs.run;
    made.job = specs.job;
    STW_TRY(judge->solve(judge->by, &made, time_limit_s, &refused));
    if (made.outcome == STW_OUTCOME_OPTIMAL || made.outcome == STW_OUTCOME_FEASIBLE)
        fix->at_risk = stw_plan_bytes_verdict(&made) != STW_VERDICT_FITS;
out:
    drop(&made);
    stw_job_free(specs.job);
    if (status == STW_STATUS_OK || is_refusal(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}
