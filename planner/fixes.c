/* SPDX-License-Identifier: Apache-2.0 */
/* Fixes: changes of the specs under which a plan was found that fits. A knob is one
 * change that grows in steps. Each knob is tried alone, then in pairs, at its last step; what fits
 * is brought back to the fewest steps that do. Knobs stand in order: freed choices, unused room,
 * other ways to compute the same, then what costs quality of the run, then what costs machines. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/effect.h"
#include "planner/problem.h"
#include "planner/resolve.h"

static const uint64_t GIB = 1ull << 30;
static const uint64_t MAX_NODE_FACTOR = 64;
static const uint64_t MIN_SEQ_LEN = 128, LONG_SEQ_LEN = 8192;

/* Where all state shares one place, rows lie above the walk by at most about this share of the
 * GPU's memory. */
static const double LOOSE_ROWS = 0.35;

#define MAX_KNOBS 32
#define MAX_CUT 16 /* ranks, and experts of each kind of block */
/* Pairs are sought where fewer changes than this are enough alone. */
#define ENOUGH_FIXES 3

/* What a knob's step i sets: from + i x step, from x 2^i, or a word. */
typedef enum knob_kind { KNOB_WORD, KNOB_UP, KNOB_DOWN, KNOB_GIB, KNOB_DOUBLE } knob_kind;

typedef struct knob {
    const char *key, *why;
    knob_kind kind;
    const char *word;
    uint64_t from, step, n; /* steps 1 to n */
    bool keeps_tokens;      /* grad_accumulation makes up for what the knob takes from a step */
    bool single, in_pairs;  /* where it is tried; neither: both */
    bool enough;            /* by itself */
} knob;

typedef struct fix_search {
    stw_plan *plan;
    double end_s;
    knob knobs[MAX_KNOBS];
    uint32_t n_knobs;
} fix_search;

/* ---- changes ---- */

typedef struct change {
    char key[64], value[32];
} change;

static void set_count(change *c, const char *key, uint64_t count, const char *unit) {
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->value, sizeof c->value, "%llu%s", (unsigned long long)count, unit);
}

/* @param out room for two @return how many; 0: there is no such step */
static uint32_t changes_of(const fix_search *search, const knob *k, uint64_t i, change *out) {
    uint64_t value = k->from, factor = 1;
    switch (k->kind) {
    case KNOB_WORD:
        snprintf(out->key, sizeof out->key, "%s", k->key);
        snprintf(out->value, sizeof out->value, "%s", k->word);
        return 1;
    case KNOB_UP:
    case KNOB_GIB:
        value = (k->from / k->step + i) * k->step;
        break;
    case KNOB_DOWN:
        value = (stw_div_up_u64(k->from, k->step) - i) * k->step;
        factor = k->keeps_tokens ? stw_div_up_u64(k->from, value) : 1;
        break;
    case KNOB_DOUBLE:
        value = k->from << i;
        factor = 1ull << i;
        break;
    }
    set_count(out, k->key, value, k->kind == KNOB_GIB ? " GiB" : "");
    if (!k->keeps_tokens || factor <= 1) return 1;
    set_count(&out[1], "batch.grad_accumulation",
              search->plan->run.batch.grad_accumulation * factor, "");
    return 2;
}

/* ---- planning with changes ---- */

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

static stw_status plan_changed(changed *specs, const stw_model *model, double time_limit_s,
                               bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    STW_TRY(stw_job_new(model, &specs->cluster, &specs->run, stw_engine_find(specs->run.engine),
                        &specs->job, err));
    STW_TRY(stw_job_check_effect(specs->job, "fix", err));
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

static stw_status apply(changed *specs, const change *c, stw_error *err) {
    if (stw_run_spec_has_key(c->key))
        return stw_run_spec_set(&specs->run, c->key, c->value, "fix", err);
    return stw_cluster_set(&specs->cluster, c->key, c->value, "fix", err);
}

/* Does the plan fit with these changes? Values that the specs refuse do not. */
static stw_status try_changes(const fix_search *search, const change *changes, uint32_t n,
                              bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *fits = false;
    double left_s = search->end_s - stw_planner_now_s();
    if (left_s <= 0 || n == 0) return STW_STATUS_OK;
    changed specs = {.cluster = search->plan->cluster, .run = search->plan->run};
    stw_error refused = STW_ERROR_INIT;
    for (uint32_t i = 0; i < n && status == STW_STATUS_OK; i++)
        status = apply(&specs, &changes[i], &refused);
    if (status == STW_STATUS_OK) status = stw_run_spec_check(&specs.run, "fix", &refused);
    if (status == STW_STATUS_OK) status = stw_cluster_check(&specs.cluster, "fix", &refused);
    if (status == STW_STATUS_OK)
        status = plan_changed(&specs, search->plan->model, left_s, fits, &refused);
    stw_job_free(specs.job);
    /* Specs that contradict themselves are no fix; everything else is an error of ours. */
    if (status == STW_STATUS_BAD_INPUT || status == STW_STATUS_NOT_BUILT_IN) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = refused;
    return status;
}

/* ---- the search ---- */

/* One knob or two, each at a step; the second may be NULL. */
typedef struct setting {
    const knob *knobs[2];
    uint64_t steps[2];
} setting;

static stw_status try_setting(const fix_search *search, const setting *at, bool *fits,
                              stw_error *err) {
    change changes[4];
    uint32_t n = 0;
    for (int k = 0; k < 2; k++)
        if (at->knobs[k] != NULL) n += changes_of(search, at->knobs[k], at->steps[k], &changes[n]);
    return try_changes(search, changes, n, fits, err);
}

/* The fewest steps of one knob of a setting that fits. */
static stw_status fewest(const fix_search *search, setting *at, int k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t low = 0, high = at->steps[k];
    while (high - low > 1) {
        bool fits;
        setting tried = *at;
        /* machines and lengths are rarely needed in full: look near the start first */
        uint64_t mid = low == 0 && high > 16 ? high / 8 : low + (high - low) / 2;
        tried.steps[k] = mid;
        STW_TRY(try_setting(search, &tried, &fits, err));
        if (fits)
            high = mid;
        else
            low = mid;
    }
    at->steps[k] = high;
out:
    return status;
}

static stw_status note_fix(const fix_search *search, const setting *at, stw_error *err) {
    stw_plan *plan = search->plan;
    if (plan->n_fixes == STW_MAX_FIXES) return STW_STATUS_OK;
    stw_fix *fix = &plan->fixes[plan->n_fixes++];
    char why[256] = "";
    for (int k = 0; k < 2; k++) {
        const knob *turned = at->knobs[k];
        change changes[2];
        if (turned == NULL) continue;
        uint32_t n = changes_of(search, turned, at->steps[k], changes);
        for (uint32_t i = 0; i < n; i++) {
            stw_fix_change *c = &fix->changes[fix->n_changes++];
            c->set = stw_pool_string(plan->pool, changes[i].key);
            c->value = stw_pool_string(plan->pool, changes[i].value);
            if (c->set == NULL || c->value == NULL) goto no_memory;
        }
        size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, "%s%s%s", used > 0 ? "; " : "", turned->why,
                 n == 2 ? ", at the same tokens per step" : "");
    }
    fix->why = stw_pool_string(plan->pool, why);
    if (fix->why != NULL) return STW_STATUS_OK;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
}

static stw_status try_alone(fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < search->n_knobs; i++) {
        knob *k = &search->knobs[i];
        setting at = {{k, NULL}, {k->n, 0}};
        if (!k->single) continue;
        STW_TRY(try_setting(search, &at, &k->enough, err));
        if (!k->enough) continue;
        STW_TRY(fewest(search, &at, 0, err));
        STW_TRY(note_fix(search, &at, err));
    }
out:
    return status;
}

/* Is a knob of this key enough by itself? A pair with another one of that key is no smaller. */
static bool is_enough(const fix_search *search, const char *key) {
    for (uint32_t i = 0; i < search->n_knobs; i++)
        if (search->knobs[i].enough && strcmp(search->knobs[i].key, key) == 0) return true;
    return false;
}

/* The later knob of a pair costs more: it is brought back first. */
static stw_status try_pairs(const fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t b = 1; b < search->n_knobs; b++)
        for (uint32_t a = 0; a < b && search->plan->n_fixes < ENOUGH_FIXES; a++) {
            const knob *first = &search->knobs[a], *second = &search->knobs[b];
            bool fits;
            if (is_enough(search, first->key) || is_enough(search, second->key) ||
                !first->in_pairs || !second->in_pairs)
                continue;
            setting at = {{first, second}, {first->n, second->n}};
            STW_TRY(try_setting(search, &at, &fits, err));
            if (!fits) continue;
            STW_TRY(fewest(search, &at, 1, err));
            STW_TRY(fewest(search, &at, 0, err));
            STW_TRY(note_fix(search, &at, err));
        }
out:
    return status;
}

/* ---- knobs ---- */

static void add_knob(fix_search *search, knob k) {
    if (!k.in_pairs && !k.single) k.in_pairs = k.single = true;
    if (k.n > 0 && search->n_knobs < MAX_KNOBS) search->knobs[search->n_knobs++] = k;
}

static void add_word(fix_search *search, const char *key, const char *word, const char *why) {
    add_knob(search, (knob){.key = key, .why = why, .kind = KNOB_WORD, .word = word, .n = 1});
}

/* Choices that the spec takes from the planner. */
static void add_choices(fix_search *search) {
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
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
        if (choices[i].fixed)
            add_word(search, choices[i].key, "auto", "leaves the choice to the planner");
    const stw_engine *engine = stw_engine_find(run->engine);
    for (const stw_engine_fix *f = engine->fixes; f != NULL && f->key != NULL; f++)
        add_word(search, f->key, f->value, f->why);
}

/* Limits below what the node has. */
static void add_host_room(fix_search *search) {
    const stw_cluster *cluster = &search->plan->cluster;
    uint64_t memory = cluster->host.memory_bytes;
    const struct {
        const char *key;
        uint64_t limit_bytes;
    } limits[] = {{"node.host.limit", cluster->host.limit_bytes},
                  {"node.host.page_lock_limit", cluster->host.page_lock_limit_bytes}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].limit_bytes < memory)
            add_knob(search, (knob){.key = limits[i].key,
                                    .why = "the node has the memory",
                                    .kind = KNOB_GIB,
                                    .from = limits[i].limit_bytes / GIB,
                                    .step = 1,
                                    .n = memory / GIB - limits[i].limit_bytes / GIB});
}

/* Powers of two by which `from` can grow up to `to`. */
static uint64_t doublings(uint64_t from, uint64_t to) {
    uint64_t n = 0;
    while (from << (n + 1) <= to) n++;
    return n;
}

/* The same while all of `whole` can be cut into so many parts: 8 of 24 ranks, not 16. */
static uint64_t cutting_doublings(uint64_t from, const uint64_t *whole, size_t n_whole) {
    for (uint64_t n = 0;; n++)
        for (size_t i = 0; i < n_whole; i++)
            if (whole[i] % (from << (n + 1)) != 0) return n;
}

/* The experts of the kinds of blocks that have some. */
static size_t experts_of(const stw_model *model, uint64_t *out, size_t most) {
    size_t n = 0;
    for (uint32_t g = 0; g < model->n_groups && n < most; g++)
        if (model->groups[g].facts.experts > 0) out[n++] = model->groups[g].facts.experts;
    return n;
}

/* Other ways to compute the same, on the same machines. */
static void add_parallel(fix_search *search) {
    const stw_run_spec *run = &search->plan->run;
    uint64_t cut[MAX_CUT] = {search->plan->job->group};
    size_t kinds = experts_of(search->plan->model, &cut[1], MAX_CUT - 1);
    if (!run->loss.fused) add_word(search, "loss.fused", "true", "never holds all logits at once");
    if (kinds > 0)
        add_knob(search, (knob){.key = "parallel.ep",
                                .why = "gathers only a part of the experts",
                                .kind = KNOB_DOUBLE,
                                .from = run->parallel.ep,
                                .n = cutting_doublings(run->parallel.ep, cut, kinds + 1)});
    if (run->batch.micro_batch > 1)
        add_knob(search, (knob){.key = "batch.micro_batch",
                                .why = "fewer activations and logits per GPU",
                                .kind = KNOB_DOWN,
                                .from = run->batch.micro_batch,
                                .step = 1,
                                .n = run->batch.micro_batch - 1,
                                .keeps_tokens = true});
    add_knob(search, (knob){.key = "parallel.cp",
                            .why = "cuts sequences over GPUs",
                            .kind = KNOB_DOUBLE,
                            .from = run->parallel.cp,
                            .n = cutting_doublings(run->parallel.cp, cut, 1),
                            .keeps_tokens = true});
}

static void add_smaller_and_more(fix_search *search) {
    const stw_plan *plan = search->plan;
    uint64_t length = plan->run.batch.seq_len, nodes = plan->cluster.nodes;
    uint64_t step = length > LONG_SEQ_LEN ? 1024 : MIN_SEQ_LEN;
    if (length > MIN_SEQ_LEN)
        add_knob(search, (knob){.key = "batch.seq_len",
                                .why = "fewer activations and logits per GPU",
                                .kind = KNOB_DOWN,
                                .from = length,
                                .step = step,
                                .n = stw_div_up_u64(length, step) - 1});
    add_knob(search, (knob){.key = "nodes",
                            .why = "shards the state over more GPUs",
                            .kind = KNOB_UP,
                            .from = nodes,
                            .step = 1,
                            .n = nodes * (MAX_NODE_FACTOR - 1),
                            .single = true});
    /* beside groups of ranks, which are powers of two */
    add_knob(search, (knob){.key = "nodes",
                            .why = "shards the state over more GPUs",
                            .kind = KNOB_DOUBLE,
                            .from = nodes,
                            .n = doublings(nodes, nodes * MAX_NODE_FACTOR),
                            .in_pairs = true});
}

stw_status stw_planner_fix(stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    fix_search search = {.plan = plan, .end_s = stw_planner_now_s() + time_limit_s};
    plan->n_fixes = 0;
    plan->fixes = stw_pool_array(plan->pool, STW_MAX_FIXES, sizeof *plan->fixes);
    if (plan->fixes == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    add_choices(&search);
    add_host_room(&search);
    add_parallel(&search);
    add_smaller_and_more(&search);
    STW_TRY(try_alone(&search, err));
    if (plan->n_fixes < ENOUGH_FIXES) STW_TRY(try_pairs(&search, err));
out:
    return status;
}
