/* SPDX-License-Identifier: Apache-2.0 */
/* Planning with changed specs. Trials plan bytes alone. Of an engine that puts all state in one
 * place the choices that hold the least are walked, which takes a program each and no rows; of the
 * others the rows are solved, and what they find is walked. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/files/verdict.h"
#include "plan/job/effect.h"
#include "planner/fixes.h"
#include "planner/problem.h"
#include "planner/resolve.h"

/* Where so much of a limit is missing, other policies of activations are not tried. */
static const double FAR_OVER = 0.35;

/* Work of a program that is replayed, and of one that is planned to the end, in such as are walked.
 */
enum { REPLAYED = 3, PLANNED = 40 };

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

/* By what share of a limit a plan is over the one that it exceeds most. */
static double over_share(const stw_plan *plan) {
    const stw_cluster *cluster = &plan->cluster;
    const struct {
        const char *resource;
        uint64_t limit_bytes;
    } limits[] = {{"gpu memory", cluster->gpu.memory_bytes},
                  {"host memory", stw_cluster_host_capacity(cluster)},
                  {"page-locked memory", cluster->host.page_lock_limit_bytes},
                  {"nvme", cluster->nvme.capacity_bytes}};
    double most = 0;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            const uint64_t over = stw_plan_over_bytes(plan, limits[i].resource, (stw_phase)p);
            most = fmax(most, (double)over / (double)stw_max_u64(limits[i].limit_bytes, 1));
        }
    return most;
}

static void spend(stw_trials *trials, const stw_plan *plan, uint64_t times) {
    uint64_t ops = 0;
    for (uint32_t k = 0; plan->programs != NULL && k < plan->job->n_kinds; k++)
        if (plan->programs[k] != NULL) ops += plan->programs[k]->n_ops;
    ops = stw_times(ops, times);
    trials->work_left = trials->work_left > ops ? trials->work_left - ops : 0;
}

/* One trial: what it looks at, and the best that it has found. */
typedef struct trying {
    stw_trials *trials;
    const changed *specs;
    const stw_cost *cost;
    stw_tried best;
} trying;

static stw_trial trial_of(const stw_plan *plan) {
    const stw_margins margins = stw_plan_margins(plan);
    const stw_verdict verdict = stw_plan_trial_verdict(plan);
    /* without margins, at risk is what fills a limit, and others may fill it less */
    if (verdict == STW_VERDICT_AT_RISK && !(margins.gpu > 0) && !(margins.host > 0))
        return STW_TRIAL_FITS;
    return verdict == STW_VERDICT_FITS      ? STW_TRIAL_FITS
           : verdict == STW_VERDICT_AT_RISK ? STW_TRIAL_AT_RISK
                                            : STW_TRIAL_UNFIT;
}

/* A choice in a plan of its own, judged by its walk. */
static stw_status walk_choice(trying *t, const stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan walked = {.model = t->trials->plan->model, .pool = stw_pool_new()};
    stw_plan *plan = &walked;
    if (plan->pool == NULL) return stw_planner_no_memory(err);
    STW_TRY(stw_cost_decide(t->cost, choice, plan->pool, &plan->decisions, err));
    plan->cluster = t->specs->cluster;
    plan->run = t->specs->run;
    plan->job = t->specs->job;
    plan->walk_alone = true; /* most of the time would go to replays */
    STW_TRY(stw_plan_derive_bytes(plan, err));
    stw_tried here = {.over_share = over_share(plan)};
    const bool fits = stw_plan_trial_verdict(plan) != STW_VERDICT_DOES_NOT_FIT;
    if (fits) STW_TRY(stw_plan_replay(plan, err));
    spend(t->trials, plan, fits ? REPLAYED : 1);
    here.is = trial_of(plan);
    if (here.is > t->best.is || (here.is == t->best.is && here.over_share < t->best.over_share))
        t->best = here;
out:
    drop(plan);
    return status;
}

/* ---- engines whose state is in one place ---- */

/* One policy for every group, or the first that the group has. @return does any group have it? */
static bool set_acts(const stw_cost *cost, stw_act act, stw_choice *choice) {
    bool any = cost->n_acts == 0;
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        uint32_t chosen = first;
        for (uint32_t i = first; i < a; i++) {
            choice->acts[i] = 0;
            if (cost->acts[i].act == act) chosen = i;
        }
        any = any || (a > first && cost->acts[chosen].act == act);
        if (a > first) choice->acts[chosen] = cost->acts[chosen].blocks;
        first = a;
    }
    return any;
}

/* The smallest ring, and the load that holds the least. */
static void set_least(const stw_cost *cost, stw_choice *choice) {
    for (uint32_t r = 1; r < cost->n_rings; r++) {
        const stw_cost_ring *ring = &cost->rings[r], *least = &cost->rings[choice->ring];
        if (ring->depth < least->depth ||
            (ring->depth == least->depth && ring->bucket_bytes < least->bucket_bytes))
            choice->ring = r;
    }
    for (uint32_t l = 0; l < cost->n_loads; l++)
        if (cost->loads[l] == STW_LOAD_SHARDED_READ) choice->load = l;
}

/* Every place with the policies of activations that may hold the least, until one fits. */
static stw_status try_whole(trying *t, stw_choice *choice, stw_error *err) {
    static const stw_act acts[] = {STW_ACT_RECOMPUTE, STW_ACT_OFFLOAD, STW_ACT_KEEP};
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = t->cost;
    set_least(cost, choice);
    for (uint32_t p = 0; p < cost->n_places && t->best.is != STW_TRIAL_FITS; p++) {
        bool any = false;
        memset(choice->units, 0, sizeof choice->units);
        choice->units[p] = cost->n_units;
        if (!stw_choice_keeps_shares(cost, choice)) continue;
        for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
            if (t->best.is == STW_TRIAL_FITS || !set_acts(cost, acts[i], choice)) continue;
            if (any && t->best.is == STW_TRIAL_UNFIT && t->best.over_share > FAR_OVER) continue;
            STW_TRY(walk_choice(t, choice, err));
            any = true;
        }
    }
out:
    return status;
}

static stw_status plan_changed(trying *t, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    bool fits = false;
    const bool whole = t->specs->job->engine->whole;
    STW_TRY((whole ? stw_cost_new_options : stw_cost_new_bytes)(t->specs->job, &cost, err));
    t->cost = cost;
    stw_choice choice = stw_choice_new(cost, cost->pool);
    if (choice.acts == NULL) {
        status = stw_planner_no_memory(err);
        goto out;
    }
    if (whole) {
        STW_TRY(try_whole(t, &choice, err));
        goto out;
    }
    t->best.over_share = stw_cost_least_over_share(cost);
    if (!(t->best.over_share > FAR_OVER))
        STW_TRY(stw_planner_feasible(cost, time_limit_s, &choice, &fits, err));
    if (fits) STW_TRY(walk_choice(t, &choice, err));
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

uint64_t stw_fix_ranks(const stw_run_spec *run, const stw_cluster *cluster, uint32_t nodes) {
    stw_job_role *roles = NULL;
    uint64_t trainers = 0;
    stw_pool *pool = stw_pool_new();
    if (pool != NULL && stw_roles_place(run, nodes, pool, &roles, NULL) == STW_STATUS_OK)
        trainers = roles[0].n_nodes;
    stw_pool_free(pool);
    return stw_times(trainers, cluster->gpus > 0 ? cluster->gpus : 1);
}

static uint64_t trainers_ranks(const changed *specs) {
    return stw_fix_ranks(&specs->run, &specs->cluster, specs->cluster.nodes);
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
    STW_TRY(stw_job_new(plan->model, &specs->cluster, &specs->run, stw_engine_of(&specs->run),
                        &specs->job, err));
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

static uint64_t hash_of(const stw_change *changes, uint32_t n) {
    uint64_t hash = 14695981039346656037u;
    for (uint32_t i = 0; i < n; i++)
        for (const char *const *text =
                 (const char *const[]){changes[i].key, changes[i].value, NULL};
             *text != NULL; text++)
            for (const char *c = *text;; c++) {
                hash = (hash ^ (uint8_t)*c) * 1099511628211u;
                if (*c == '\0') break;
            }
    return hash;
}

stw_status stw_fix_try(stw_trials *trials, const stw_change *changes, uint32_t n, stw_tried *out,
                       stw_error *err) {
    const double left_s = trials->end_s - stw_planner_now_s();
    const uint64_t hash = hash_of(changes, n);
    for (uint32_t i = 0; i < trials->n; i++)
        if (trials->list[i].hash == hash) {
            *out = trials->list[i].found;
            return STW_STATUS_OK;
        }
    *out = (stw_tried){STW_TRIAL_UNFIT, INFINITY};
    if (left_s <= 0) trials->late = true;
    if (left_s <= 0 || trials->work_left == 0) return STW_STATUS_OK;
    changed specs = {.cluster = trials->plan->cluster, .run = trials->plan->run};
    trying t = {.trials = trials, .specs = &specs, .best = *out};
    stw_error refused = STW_ERROR_INIT;
    stw_status status = change_specs(trials->plan, changes, n, &specs, &refused);
    if (status == STW_STATUS_OK) status = plan_changed(&t, left_s, &refused);
    stw_job_free(specs.job);
    *out = t.best;
    if (is_refusal(status)) out->is = STW_TRIAL_REFUSED;
    if (trials->n < STW_MAX_TRIALS && status != STW_STATUS_TIME_LIMIT)
        trials->list[trials->n++] = (stw_trial_row){hash, *out};
    if (status == STW_STATUS_OK || is_refusal(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}

stw_status stw_fix_verify(stw_trials *trials, stw_fix *fix, const stw_fix_judge *judge,
                          stw_trial *out, stw_error *err) {
    const stw_plan *plan = trials->plan;
    const double left_s = trials->end_s - stw_planner_now_s();
    stw_change changes[STW_MAX_FIX_CHANGES];
    changed specs = {.cluster = plan->cluster, .run = plan->run};
    stw_plan made = {.model = plan->model, .pool = stw_pool_new()};
    stw_error refused = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    *out = STW_TRIAL_REFUSED;
    if (made.pool == NULL) return stw_planner_no_memory(err);
    if (left_s <= 0 || trials->work_left == 0) goto out;
    for (uint32_t i = 0; i < fix->n_changes; i++) {
        snprintf(changes[i].key, sizeof changes[i].key, "%s", fix->changes[i].set);
        snprintf(changes[i].value, sizeof changes[i].value, "%s", fix->changes[i].value);
    }
    STW_TRY(change_specs(plan, changes, fix->n_changes, &specs, &refused));
    made.cluster = specs.cluster;
    made.run = specs.run;
    made.job = specs.job;
    status = judge->solve(judge->by, &made, left_s, &refused);
    specs.job = made.job; /* it may have another one now */
    if (status != STW_STATUS_OK) goto out;
    spend(trials, &made, PLANNED);
    const stw_verdict verdict = stw_plan_bytes_verdict(&made);
    const double iteration_s = stw_plan_iteration_s(&made);
    if (made.outcome == STW_OUTCOME_INFEASIBLE) {
        *out = STW_TRIAL_UNFIT;
    } else if (verdict != STW_VERDICT_DOES_NOT_FIT && isfinite(iteration_s)) {
        fix->at_risk = verdict != STW_VERDICT_FITS;
        *out = fix->at_risk ? STW_TRIAL_AT_RISK : STW_TRIAL_FITS;
        fix->iteration_s = iteration_s;
        fix->tokens_per_s = stw_plan_iteration_tokens(&made) / iteration_s;
    }
out:
    drop(&made);
    stw_job_free(specs.job);
    if (status == STW_STATUS_OK || is_refusal(status) || status == STW_STATUS_TIME_LIMIT)
        return STW_STATUS_OK;
    if (err != NULL) *err = refused;
    return status;
}
