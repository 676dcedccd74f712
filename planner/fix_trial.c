/* SPDX-License-Identifier: Apache-2.0 */
/* Planning with changed specs. Only bytes are planned: nobody needs the seconds of a plan that is
 * offered as one that fits. */
#include <inttypes.h>
#include <stdio.h>

#include "core/checked.h"
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
    plan->walk_alone = true; /* most of the time would go to replays */
    STW_TRY(stw_plan_derive_bytes(plan, err));
    if (stw_plan_trial_verdict(plan) != STW_VERDICT_DOES_NOT_FIT)
        STW_TRY(stw_plan_replay(plan, err));
    const stw_margins margins = stw_plan_margins(plan);
    *out = stw_plan_trial_verdict(plan);
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

/* ---- the tokens of a step ---- */

#define MOST_ACCUMULATION 65536

/* Ranks of the trainer on so many nodes; 0: they have no room for the roles. */
static uint64_t trainers_ranks(const changed *specs) {
    stw_job_role *roles = NULL;
    uint64_t nodes = 0;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL &&
        stw_roles_place(&specs->run, specs->cluster.nodes, pool, &roles, NULL) == STW_STATUS_OK)
        nodes = roles[0].n_nodes;
    stw_pool_free(pool);
    return stw_times(nodes, specs->cluster.gpus > 0 ? specs->cluster.gpus : 1);
}

/* Tokens that a step is to have: the sequences stay where these have another length and the tokens
 * are not given. */
static uint64_t wanted_tokens(const stw_plan *plan, const stw_run_spec *run) {
    const uint64_t tokens = stw_job_step_tokens(plan->job), length = plan->run.batch.seq_len;
    if (plan->run.batch.tokens_per_step > 0 || run->batch.max_tokens_per_gpu > 0 || length == 0)
        return tokens;
    return stw_times(tokens / length, run->batch.seq_len);
}

/* @return the micro batches with which a step has as many tokens; 0: none do */
static uint64_t accumulation_of(const stw_plan *plan, const changed *specs) {
    stw_run_spec one = specs->run;
    one.batch.grad_accumulation = 1;
    const uint64_t micro = stw_run_spec_full_step_tokens(&one, trainers_ranks(specs));
    const uint64_t tokens = wanted_tokens(plan, &specs->run);
    const bool fills = one.batch.max_tokens_per_gpu == 0 || plan->run.batch.tokens_per_step == 0;
    if (micro == 0 || (fills && tokens % micro != 0)) return 0;
    const uint64_t n = stw_div_up_u64(tokens, micro);
    return n <= MOST_ACCUMULATION ? n : 0;
}

/* Does every rank get as many sequences of a step, and every GPU of an iteration? Trainers of
 * packed sequences deal them out so before they pack them. */
static bool deals_evenly(const stw_run_spec *run, uint64_t gpus, uint64_t tokens) {
    const uint64_t ways = stw_max_u64(stw_times(run->parallel.tp, run->parallel.pp), 1);
    const uint64_t ranks = gpus / stw_max_u64(stw_times(ways, run->parallel.cp), 1);
    const uint64_t length = stw_max_u64(run->batch.seq_len, 1), sequences = tokens / length;
    return tokens % length == 0 && ranks > 0 && sequences % ranks == 0 &&
           stw_times(sequences, run->batch.mini_batches) % (gpus / ways) == 0;
}

/* Where none do, it stays as it is: the step has other tokens. */
static stw_status keep_step(const stw_plan *plan, changed *specs, stw_error *err) {
    const uint64_t n = accumulation_of(plan, specs);
    if (specs->run.batch.max_tokens_per_gpu > 0 &&
        deals_evenly(&plan->run, plan->job->world, stw_job_step_tokens(plan->job)) &&
        !deals_evenly(&specs->run, trainers_ranks(specs), wanted_tokens(plan, &specs->run)))
        return stw_fail(err, STW_STATUS_BAD_INPUT, "fix",
                        "the sequences of a step cannot be dealt to so many ranks");
    if (n > 0) specs->run.batch.grad_accumulation = n;
    if (n > 0 || plan->run.batch.tokens_per_step == 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, "fix", "batch.tokens_per_step cannot be kept");
}

static stw_status apply_all(const stw_plan *plan, const stw_change *changes, uint32_t n,
                            changed *specs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < n; i++) STW_TRY(apply(specs, &changes[i], err));
    STW_TRY(keep_step(plan, specs, err));
out:
    return status;
}

stw_status stw_fix_keep_step(const stw_plan *plan, stw_change *changes, uint32_t *n,
                             uint64_t *tokens, stw_error *err) {
    static const char key[] = "batch.grad_accumulation";
    changed specs = {.cluster = plan->cluster, .run = plan->run};
    stw_status status = apply_all(plan, changes, *n, &specs, err);
    if (status != STW_STATUS_OK) return status;
    const uint64_t now = stw_run_spec_step_tokens(&specs.run, trainers_ranks(&specs));
    const uint64_t accumulation = specs.run.batch.grad_accumulation;
    *tokens = now == wanted_tokens(plan, &specs.run) ? 0 : now;
    if (accumulation == plan->run.batch.grad_accumulation) return STW_STATUS_OK;
    snprintf(changes[*n].key, sizeof changes->key, "%s", key);
    snprintf(changes[(*n)++].value, sizeof changes->value, "%" PRIu64, accumulation);
    return STW_STATUS_OK;
}

/* ---- planning ---- */

/* @param specs copies of the plan's; out: changed, with a job, which the caller frees */
static stw_status change_specs(const stw_plan *plan, const stw_change *changes, uint32_t n,
                               changed *specs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(apply_all(plan, changes, n, specs, err));
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
