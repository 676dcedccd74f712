/* SPDX-License-Identifier: Apache-2.0 */
/* Fixes: single changes of the specs under which a plan was found that fits, walk included. Freed
 * choices come first, then what costs quality of the run, then what costs machines. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/checked.h"
#include "planner/problem.h"
#include "planner/resolve.h"

typedef struct fix_search {
    stw_plan *plan;
    double end_s; /* by the clock */
} fix_search;

static double now_s(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A changed plan without anything of its own but job and derived parts. */
static void shell_free(stw_plan *shell) {
    for (uint32_t k = 0; shell->job != NULL && k < shell->job->n_kinds; k++) {
        if (shell->layouts != NULL) stw_layout_free(shell->layouts[k]);
        if (shell->programs != NULL) stw_program_free(shell->programs[k]);
    }
    stw_job_free(shell->job);
    stw_pool_free(shell->pool);
}

/* Plan the shell's specs: any plan will do, but its walk must fit. */
static stw_status plan_shell(stw_plan *shell, double time_limit_s, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    STW_TRY(stw_job_new(shell->model, &shell->cluster, &shell->run,
                        stw_engine_find(shell->run.engine), &shell->job, err));
    STW_TRY(stw_cost_new(shell->job, &cost, err));
    stw_choice choice = stw_choice_new(cost, cost->pool);
    if (choice.acts == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
        goto out;
    }
    stw_evaluation evaluation;
    if (!stw_greedy_solve(cost, &choice, &evaluation)) {
        stw_ilp_options options = {.time_limit_s = time_limit_s, .gap = 0.5, .only_stage1 = true};
        stw_ilp_result result;
        STW_TRY(stw_ilp_solve(cost, &options, &choice, &result, err));
        if (result.outcome == STW_MILP_INFEASIBLE || result.outcome == STW_MILP_LIMIT) goto out;
    }
    STW_TRY(stw_cost_decide(cost, &choice, shell->pool, &shell->decisions, err));
    STW_TRY(stw_plan_derive(shell, err));
    stw_plan_judge(shell);
    *fits = shell->verdict != STW_VERDICT_DOES_NOT_FIT;
out:
    stw_cost_free(cost);
    return status;
}

/* Does the plan fit with one key changed? A value that the specs refuse does not. */
static stw_status try_change(const fix_search *search, const char *key, const char *value,
                             bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *fits = false;
    double left_s = search->end_s - now_s();
    if (left_s <= 0) return STW_STATUS_OK;
    stw_plan shell = {.pool = stw_pool_new(),
                      .model = search->plan->model,
                      .cluster = search->plan->cluster,
                      .run = search->plan->run};
    if (shell.pool == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    stw_error refused = STW_ERROR_INIT;
    if (stw_run_spec_has_key(key)) {
        status = stw_run_spec_set(&shell.run, key, value, "fix", &refused);
        if (status == STW_STATUS_OK) status = stw_run_spec_check(&shell.run, "fix", &refused);
    } else {
        status = stw_cluster_set(&shell.cluster, key, value, "fix", &refused);
        if (status == STW_STATUS_OK) status = stw_cluster_check(&shell.cluster, "fix", &refused);
    }
    if (status == STW_STATUS_OK) status = plan_shell(&shell, left_s, fits, &refused);
    shell_free(&shell);
    /* Specs that contradict themselves are no fix; everything else is an error of ours. */
    if (status == STW_STATUS_BAD_INPUT || status == STW_STATUS_NOT_BUILT_IN) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = refused;
    return status;
}

static stw_status note_fix(const fix_search *search, const char *key, const char *value,
                           const char *why, stw_error *err) {
    stw_plan *plan = search->plan;
    if (plan->n_fixes == STW_MAX_FIXES) return STW_STATUS_OK;
    stw_fix fix = {stw_pool_string(plan->pool, key), stw_pool_string(plan->pool, value),
                   stw_pool_string(plan->pool, why)};
    if (fix.set == NULL || fix.value == NULL || fix.why == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    plan->fixes[plan->n_fixes++] = fix;
    return STW_STATUS_OK;
}

static stw_status try_word(const fix_search *search, const char *key, const char *value,
                           const char *why, stw_error *err) {
    bool fits;
    stw_status status = STW_STATUS_OK;
    if (search->plan->n_fixes == STW_MAX_FIXES) return STW_STATUS_OK;
    STW_TRY(try_change(search, key, value, &fits, err));
    if (fits) STW_TRY(note_fix(search, key, value, why, err));
out:
    return status;
}

static stw_status try_count(const fix_search *search, const char *key, uint64_t count, bool *fits,
                            stw_error *err) {
    char value[32];
    snprintf(value, sizeof value, "%llu", (unsigned long long)count);
    return try_change(search, key, value, fits, err);
}

/* The change nearest to `from` that fits: by doubling (or halving) up to `to`, then bisecting
 * between the last two where the value need not be a power of two times `from`. */
static stw_status try_counts(const fix_search *search, const char *key, uint64_t from, uint64_t to,
                             bool bisect, const char *why, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool fits = false, up = to > from;
    uint64_t near = from, far = from;
    if (search->plan->n_fixes == STW_MAX_FIXES) return STW_STATUS_OK;
    while (!fits && (up ? far <= to / 2 : far / 2 >= to) && now_s() < search->end_s) {
        near = far;
        far = up ? far * 2 : far / 2;
        STW_TRY(try_count(search, key, far, &fits, err));
    }
    if (!fits) goto out;
    while (bisect && (up ? far - near : near - far) > 1 && now_s() < search->end_s) {
        uint64_t mid = near + (far - near) / 2;
        if (!up) mid = far + (near - far) / 2;
        STW_TRY(try_count(search, key, mid, &fits, err));
        if (fits)
            far = mid;
        else
            near = mid;
    }
    char value[32];
    snprintf(value, sizeof value, "%llu", (unsigned long long)far);
    STW_TRY(note_fix(search, key, value, why, err));
out:
    return status;
}

/* Choices that the spec takes from the planner. */
static stw_status free_choices(const fix_search *search, stw_error *err) {
    const stw_run_spec *run = &search->plan->run;
    const struct {
        const char *key;
        bool fixed;
    } choices[] = {
        {"placement.moments", run->placement.moments != STW_AUTO},
        {"placement.master", run->placement.master != STW_AUTO},
        {"placement.grads", run->placement.grads != STW_AUTO},
        {"placement.params", run->placement.params != STW_AUTO},
        {"placement.activations", run->placement.activations != STW_AUTO},
        {"recompute.granularity", run->recompute.granularity != STW_AUTO},
        {"optimizer.implementation", run->optimizer.implementation != STW_OPTIMIZER_AUTO},
        {"update.resident", run->update.resident < STW_AUTO_NUMBER},
        {"update.stream", run->update.stream < STW_AUTO_NUMBER},
        {"update.direct", run->update.direct > 0 && run->update.direct < STW_AUTO_NUMBER},
        {"update.cpu", run->update.cpu < STW_AUTO_NUMBER},
        {"load.method", run->load.method != STW_AUTO},
        {"prefetch.bucket", run->prefetch.bucket_bytes != STW_AUTO_BYTES},
        {"prefetch.depth", run->prefetch.depth != STW_AUTO},
    };
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
        if (choices[i].fixed)
            STW_TRY(
                try_word(search, choices[i].key, "auto", "leaves the choice to the planner", err));
    const stw_engine *engine = stw_engine_find(run->engine);
    for (const stw_engine_fix *f = engine->fixes; f != NULL && f->key != NULL; f++)
        STW_TRY(try_word(search, f->key, f->value, f->why, err));
out:
    return status;
}

/* Less per step, the same machines. */
static stw_status smaller_run(const fix_search *search, stw_error *err) {
    const stw_run_spec *run = &search->plan->run;
    stw_status status = STW_STATUS_OK;
    uint32_t group = search->plan->job->group;
    bool experts = false;
    for (uint32_t t = 0; t < search->plan->model->n_tensors; t++)
        experts = experts || search->plan->model->tensors[t].expert;
    if (!run->loss.fused)
        STW_TRY(try_word(search, "loss.fused", "true", "never holds all logits at once", err));
    if (experts && run->parallel.ep < group)
        STW_TRY(try_counts(search, "parallel.ep", run->parallel.ep, group, false,
                           "gathers a part of the experts only", err));
    if (run->batch.micro_batch > 1)
        STW_TRY(try_counts(search, "batch.micro_batch", run->batch.micro_batch, 1, true,
                           "fewer activations and logits per GPU", err));
    if (run->batch.seq_len > 128)
        STW_TRY(try_counts(search, "batch.seq_len", run->batch.seq_len, 128, false,
                           "fewer activations and logits per GPU", err));
out:
    return status;
}

/* The host limit raised to what the plan needs, where the node has that much. */
static stw_status more_host(const fix_search *search, stw_error *err) {
    const stw_cluster *cluster = &search->plan->cluster;
    const uint64_t gib = 1ull << 30;
    uint64_t need = 0;
    for (uint32_t i = 0; i < search->plan->n_bindings; i++)
        if (strcmp(search->plan->bindings[i].resource, "host memory") == 0)
            need = stw_max_u64(need, search->plan->bindings[i].over_bytes);
    if (need == 0 || cluster->host.limit_bytes >= cluster->host.memory_bytes) return STW_STATUS_OK;
    uint64_t limit = stw_div_up_u64(cluster->host.limit_bytes + need, gib) * gib;
    if (limit > cluster->host.memory_bytes) return STW_STATUS_OK;
    char value[32];
    snprintf(value, sizeof value, "%llu GiB", (unsigned long long)(limit / gib));
    return try_word(search, "node.host.limit", value, "the node has the memory", err);
}

stw_status stw_planner_fix(stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    fix_search search = {plan, now_s() + time_limit_s};
    plan->n_fixes = 0;
    plan->fixes = stw_pool_array(plan->pool, STW_MAX_FIXES, sizeof *plan->fixes);
    if (plan->fixes == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    STW_TRY(free_choices(&search, err));
    STW_TRY(smaller_run(&search, err));
    STW_TRY(more_host(&search, err));
    uint64_t nodes = plan->cluster.nodes;
    STW_TRY(try_counts(&search, "nodes", nodes, nodes * 64, true, "shards the state over more GPUs",
                       err));
out:
    return status;
}
