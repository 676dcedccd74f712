/* SPDX-License-Identifier: Apache-2.0 */
/* Changes that are planned anew: the plan's run with what it decided, within what the run had, less
 * what it needed beyond the plan. What fits is planned once more, for bytes, seconds and the
 * framework's own settings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "core/tree.h"
#include "core/units.h"
#include "plan/files/verdict.h"
#include "planner/explain/parts.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/planner.h"
#include "planner/turns.h"

enum { MOST_PINS = 8, MOST_SET = MOST_PINS + STW_MAX_FIX_CHANGES + 4 };

static const char segments[] = "allocator.expandable_segments";
static const char acts[] = "placement.activations";
static const char optimizer[] = "optimizer.implementation";

typedef struct anew {
    stw_explanation *e;
    const stw_explain_options *options;
    double end_s;
    char pins[MOST_PINS][96]; /* KEY=VALUE: what the plan decided, and the limit */
    uint32_t n_pins;
    uint32_t n_refused; /* changes that contradict the plan or the limit */
    stw_error *err;
} anew;

/* ---- what the plan decided ---- */

static const char *tier_of(const stw_decisions *d, stw_component component) {
    if (d->n_state == 0) return NULL;
    const stw_tier tier = stw_place_tier(&d->state[0].place, component);
    for (uint32_t i = 1; i < d->n_state; i++)
        if (stw_place_tier(&d->state[i].place, component) != tier) return NULL;
    return stw_tier_name(tier);
}

static const char *act_of(const stw_decisions *d) {
    for (uint32_t i = 1; i < d->n_blocks; i++)
        if (d->blocks[i].act != d->blocks[0].act) return NULL;
    return d->n_blocks > 0 ? stw_act_name(d->blocks[0].act) : NULL;
}

/* Of an optimizer that is `auto`: what the frameworks' own do, unless its update says otherwise. */
static const char *optimizer_of(const stw_decisions *d) {
    static const char *const words[] = {"fused", "streamed", "direct", "cpu"};
    if (d->n_state == 0) return NULL;
    for (uint32_t i = 1; i < d->n_state; i++)
        if (d->state[i].place.update != d->state[0].place.update) return NULL;
    return words[d->state[0].place.update];
}

/* The word that a key has in the plan, its decision where it is `auto`; NULL: no single one. */
static const char *decided(const stw_plan *plan, const char *key) {
    const stw_decisions *d = &plan->decisions;
    static const struct {
        const char *key;
        stw_component component;
    } places[] = {{"placement.params", STW_COMPONENT_PARAMS},
                  {"placement.grads", STW_COMPONENT_GRADS},
                  {"placement.moments", STW_COMPONENT_EXP_AVG},
                  {"placement.master", STW_COMPONENT_MASTER}};
    if (strcmp(key, acts) == 0) return act_of(d);
    if (strcmp(key, optimizer) == 0) return optimizer_of(d);
    if (strcmp(key, "load.method") == 0) return stw_load_name(d->load);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (strcmp(key, places[i].key) == 0) return tier_of(d, places[i].component);
    return NULL;
}

static bool is_auto(const stw_run_spec *run, const char *key) {
    const struct {
        const char *key;
        bool is;
    } keys[] = {{acts, run->placement.activations == STW_AUTO},
                {optimizer, run->optimizer.implementation == STW_OPTIMIZER_AUTO},
                {"placement.params", run->placement.params == STW_AUTO},
                {"placement.grads", run->placement.grads == STW_AUTO},
                {"placement.moments", run->placement.moments == STW_AUTO}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i].key) == 0) return keys[i].is;
    return false;
}

static void pin(anew *a, const char *key, const char *value) {
    if (a->n_pins == MOST_PINS) return;
    snprintf(a->pins[a->n_pins++], sizeof a->pins[0], "%s=%s", key, value);
}

/* A decision becomes a setting: with less memory the planner would recompute more by itself. Where
 * state lies stays open: places that it would choose are settings of no framework. */
static void pin_decisions(anew *a) {
    const char *word = decided(a->e->plan, acts);
    if (word != NULL && is_auto(&a->e->plan->run, acts)) pin(a, acts, word);
}

static bool pin_limit(anew *a) {
    char bytes[32];
    if (a->e->planned_within == STW_NOT_SAID || a->e->planned_within == 0) return false;
    snprintf(bytes, sizeof bytes, "%llu B", (unsigned long long)a->e->planned_within);
    pin(a, a->e->on_host ? "node.host.limit" : "node.gpu.memory", bytes);
    return true;
}

/* ---- one plan ---- */

/* A copy of the plan's run that is its own. */
static stw_status copy_run(const stw_plan *plan, stw_run_spec *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    STW_TRY(stw_run_spec_init(out, err));
    stw_run_spec_write_yaml(&plan->run, &text);
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_tree_parse_yaml("plan", text.data, text.length, &tree, err));
    STW_TRY(stw_run_spec_from_node(tree, tree->root, out, err));
out:
    stw_tree_free(tree);
    stw_text_free(&text);
    return status;
}

static stw_status solve(const anew *a, const char *const *set, size_t n, bool fixes, stw_plan **out,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    stw_cluster cluster = a->e->plan->cluster;
    stw_plan *plan = NULL;
    const stw_planner_options options = {.time_limit_s = fmax(a->end_s - stw_now_s(), 0.2),
                                         .no_fixes = !fixes,
                                         .no_prices = true,
                                         .no_alternatives = true,
                                         .no_reasons = !fixes,
                                         .tells_turns = true,
                                         .simulate = a->options->simulate};
    STW_TRY(copy_run(a->e->plan, &run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, set, n, "explain", err));
    STW_TRY(stw_cluster_check(&cluster, "explain", err));
    STW_TRY(stw_run_spec_check(&run, "explain", err));
    STW_TRY(stw_plan_new_sharing(a->e->plan->model, &cluster, &run, &plan, err));
    STW_TRY(stw_planner_solve(plan, &options, err));
    if (plan->outcome != STW_OUTCOME_INFEASIBLE)
        STW_TRY(stw_planner_time(plan, options.simulate, err));
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    return status;
}

/* What contradicts itself, or is late, is no change; all else is an error of ours. */
static bool is_no_change(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_NOT_BUILT_IN ||
           status == STW_STATUS_USAGE || status == STW_STATUS_TIME_LIMIT;
}

/* The pins that no change sets again, then the changes. @return how many */
static size_t settings_of(anew *a, const stw_fix *fix, const char **set, char changes[][160]) {
    size_t n = 0;
    for (uint32_t p = 0; p < a->n_pins; p++) {
        bool again = false;
        for (uint32_t i = 0; fix != NULL && i < fix->n_changes; i++) {
            const char *key = fix->changes[i].set;
            const size_t length = strlen(key);
            again |= strncmp(a->pins[p], key, length) == 0 && a->pins[p][length] == '=';
        }
        if (!again) set[n++] = a->pins[p];
    }
    for (uint32_t i = 0; fix != NULL && i < fix->n_changes; i++) {
        snprintf(changes[i], 160, "%s=%s", fix->changes[i].set, fix->changes[i].value);
        set[n++] = changes[i];
    }
    return n;
}

/* ---- changes ---- */

static bool kept_change(anew *a, stw_explained_change *c, const stw_fix *fix,
                        const stw_plan *plan) {
    c->n = 0;
    for (uint32_t i = 0; i < fix->n_changes; i++) {
        const char *value = fix->changes[i].value;
        const char *word = strcmp(value, "auto") == 0 ? decided(plan, fix->changes[i].set) : NULL;
        c->set[c->n].set = stw_pool_string(a->e->pool, fix->changes[i].set);
        c->set[c->n].value = stw_pool_string(a->e->pool, word != NULL ? word : value);
        if (c->set[c->n].set == NULL || c->set[c->n].value == NULL) return false;
        c->n++;
    }
    c->why = stw_pool_string(a->e->pool, fix->why != NULL ? fix->why : "");
    return c->why != NULL;
}

static void measure(stw_explained_change *c, const stw_plan *plan) {
    c->at_risk = stw_plan_bytes_verdict(plan) != STW_VERDICT_FITS;
    c->iteration_s = stw_plan_iteration_s(plan);
    for (int p = 0; p < STW_N_PHASES; p++) {
        for (uint32_t k = 0; k < plan->job->n_kinds; k++)
            if (plan->peaks[k].has[p])
                c->gpu_bytes =
                    stw_max_u64(c->gpu_bytes, plan->peaks[k].phase[p][STW_TIER_GPU].total);
        for (uint32_t k = 0; k < plan->job->n_node_kinds; k++)
            if (plan->node_peaks[k].has[p])
                c->host_bytes =
                    stw_max_u64(c->host_bytes, plan->node_peaks[k].phase[p][STW_TIER_HOST].total);
    }
}

/* The same plan with its decisions in keys that settings of frameworks have: recomputation by
 * granularity, the optimizer by its name. NULL: there is none.
 * @param n of the settings in `set`, which has room for three more */
static stw_plan *say_plainly(const anew *a, const stw_plan *plan, const char **set, size_t n) {
    const char *act = act_of(&plan->decisions), *how = optimizer_of(&plan->decisions);
    stw_plan *out = NULL;
    if (act != NULL && strcmp(act, "offload") != 0) {
        set[n++] = "placement.activations=auto";
        set[n++] =
            strcmp(act, "keep") == 0 ? "recompute.granularity=none" : "recompute.granularity=full";
    }
    if (how != NULL && strcmp(how, "fused") == 0 && is_auto(&plan->run, optimizer))
        set[n++] = "optimizer.implementation=fused";
    const stw_status status = solve(a, set, n, false, &out, NULL);
    a->e->failed |= status == STW_STATUS_NO_MEMORY;
    return out;
}

static const char *settings_of_change(const anew *a, const stw_plan *plan, const char **set,
                                      size_t n) {
    const char *none[MOST_SET];
    stw_plan *now = say_plainly(a, plan, set, n);
    stw_plan *before = now != NULL ? say_plainly(a, a->e->plan, none, 0) : NULL;
    const char *out = before != NULL ? stw_explain_settings(a->e, a->options, before, now) : NULL;
    stw_plan_free(now);
    stw_plan_free(before);
    return out;
}

/* Plan a change to the end, and keep it if it fits. @param kept out: it fits */
static stw_status try_change(anew *a, const stw_fix *fix, bool *kept) {
    stw_explanation *e = a->e;
    const char *set[MOST_SET];
    char changes[STW_MAX_FIX_CHANGES][160];
    stw_plan *plan = NULL;
    stw_error refused = STW_ERROR_INIT;
    *kept = false;
    if (e->n_changes == STW_MOST_EXPLAINED || stw_now_s() >= a->end_s) return STW_STATUS_OK;
    const size_t n = settings_of(a, fix, set, changes);
    stw_status status = solve(a, set, n, false, &plan, &refused);
    if (status != STW_STATUS_OK) {
        if (is_no_change(status)) {
            a->n_refused += status != STW_STATUS_TIME_LIMIT;
            return STW_STATUS_OK;
        }
        if (a->err != NULL) *a->err = refused;
        return status;
    }
    stw_explained_change *c = &e->changes[e->n_changes];
    if (plan->outcome != STW_OUTCOME_INFEASIBLE &&
        stw_plan_bytes_verdict(plan) != STW_VERDICT_DOES_NOT_FIT && kept_change(a, c, fix, plan)) {
        measure(c, plan);
        if (e->n_changes == 0) c->settings = settings_of_change(a, plan, set, n);
        e->n_changes++;
        *kept = true;
    }
    stw_plan_free(plan);
    return STW_STATUS_OK;
}

/* `auto` activations are all recomputed where that fits: one word says it. */
static stw_status add_change(anew *a, const stw_fix *fix) {
    stw_status status = STW_STATUS_OK;
    stw_fix plain = *fix;
    bool kept = false, open = false;
    for (uint32_t i = 0; i < plain.n_changes; i++) {
        if (strcmp(plain.changes[i].set, acts) != 0 || strcmp(plain.changes[i].value, "auto") != 0)
            continue;
        plain.changes[i].value = stw_act_name(STW_ACT_RECOMPUTE);
        plain.why = "activations are computed again in backward";
        open = true;
    }
    STW_TRY(try_change(a, &plain, &kept));
    if (!kept && open) STW_TRY(try_change(a, fix, &kept));
out:
    return status;
}

static uint32_t n_kept(const stw_decisions *d) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_blocks; i++) n += d->blocks[i].act == STW_ACT_KEEP;
    return n;
}

/* The word of a decision that was planned with less memory; NULL: there is none. Where fewer blocks
 * keep their activations the word is full recomputation: frameworks cannot set a share of blocks.
 */
static const char *decided_anew(const anew *a, const stw_plan *plan, const char *key) {
    const char *word = decided(plan, key);
    if (word == NULL && strcmp(key, acts) == 0 &&
        n_kept(&plan->decisions) < n_kept(&a->e->plan->decisions))
        return stw_act_name(STW_ACT_RECOMPUTE);
    return word;
}

/* What the planner decides otherwise where there is less memory, as settings. @return are there
 * any? */
static bool other_decisions(const anew *a, const stw_plan *plan, stw_fix *out) {
    static const char *const keys[] = {"placement.params", "placement.grads", "placement.moments",
                                       "placement.activations", "optimizer.implementation"};
    *out = (stw_fix){.why = "what the planner chooses with so much memory"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *was = decided(a->e->plan, keys[i]), *is = decided_anew(a, plan, keys[i]);
        if (!is_auto(&plan->run, keys[i]) || is == NULL || (was != NULL && strcmp(was, is) == 0))
            continue;
        out->changes[out->n_changes++] = (stw_fix_change){keys[i], is};
    }
    return out->n_changes > 0;
}

/* A fused loss holds no logits. It is tried also where other decisions would fit. */
static stw_status add_fused_loss(anew *a) {
    const stw_fix fix = {.n_changes = 1,
                         .changes = {{"loss.fused", "true"}},
                         .why = "never holds all logits at once"};
    const uint32_t refused = a->n_refused; /* not every engine has it */
    const stw_status status = a->e->plan->run.loss.fused ? STW_STATUS_OK : add_change(a, &fix);
    a->n_refused = refused;
    return status;
}

static stw_status add_segments(anew *a) {
    const stw_fix fix = {
        .n_changes = 1, .changes = {{segments, "true"}}, .why = "segments grow, and leave no gaps"};
    if (a->e->plan->run.allocator.expandable_segments == true) {
        stw_explain_unknown(a->e, "why segments had gaps: the plan has expandable segments");
        return STW_STATUS_OK;
    }
    return add_change(a, &fix);
}

static bool is_of_machines(const stw_fix *fix) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strncmp(fix->changes[i].set, "node", 4) == 0 ||
            strcmp(fix->changes[i].set, "engine") == 0)
            return true;
    return false;
}

/* A limit that is raised says nothing where some of what there was is not the plan's. */
static bool is_of_limits(const stw_fix *fix) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strncmp(fix->changes[i].set, "node.", 5) == 0) return true;
    return false;
}

/* What there was, less what the run needed beyond the plan. */
static void find_limit(stw_explanation *e) {
    uint64_t limit = e->available;
    const bool over = e->planned_bytes != STW_NOT_SAID && e->planned_bytes > e->planned_limit;
    if (limit == STW_NOT_SAID && (over || e->beyond > 0)) limit = e->planned_limit;
    if (limit == STW_NOT_SAID) return;
    /* the plan's own limit may be lower: what others hold there */
    if (e->on_host && limit > e->planned_limit) limit = e->planned_limit;
    e->planned_within = limit > e->beyond ? limit - e->beyond : 0;
}

static void say_fits(const anew *a, const stw_plan *plan) {
    char within[32];
    stw_bytes_format(a->e->planned_within, within, sizeof within);
    if (a->e->cause == STW_CAUSE_FRAGMENTS || a->e->cause == STW_CAUSE_OTHERS) return;
    stw_explain_unknown(a->e,
                        "why it failed: the plan fits within %s%s; `stowage validate` shows "
                        "what the run does otherwise",
                        within, plan->verdict == STW_VERDICT_AT_RISK ? ", at risk" : "");
}

/* Nothing fits beside what every process has: context and communication. */
static bool say_no_room(stw_explanation *e) {
    const stw_cluster *cluster = &e->plan->cluster;
    const uint64_t fixed = stw_plus(cluster->gpu.context_bytes, cluster->gpu.comm_bytes);
    char left[32], needs[32];
    if (e->on_host || e->planned_within > fixed) return false;
    stw_bytes_format(e->planned_within, left, sizeof left);
    stw_bytes_format(fixed, needs, sizeof needs);
    stw_explain_unknown(e,
                        "what would fit: %s are left for the plan, less than CUDA and NCCL take by "
                        "themselves (%s)",
                        left, needs);
    return true;
}

static void say_refused(const anew *a) {
    if (a->n_refused > 0)
        stw_explain_unknown(a->e, "what %u other change%s would do: %s cannot be planned here",
                            a->n_refused, a->n_refused > 1 ? "s" : "",
                            a->n_refused > 1 ? "they" : "it");
}

static stw_status plan_anew(anew *a) {
    stw_explanation *e = a->e;
    const char *set[MOST_SET];
    char none[STW_MAX_FIX_CHANGES][160];
    stw_fix other;
    stw_plan *plan = NULL;
    stw_error refused = STW_ERROR_INIT;
    if (say_no_room(e)) return STW_STATUS_OK;
    size_t n = settings_of(a, NULL, set, none);
    stw_status status = solve(a, set, n, true, &plan, &refused);
    if (is_no_change(status)) { /* the limit alone */
        memmove(a->pins[0], a->pins[a->n_pins - 1], sizeof a->pins[0]);
        a->n_pins = 1;
        n = settings_of(a, NULL, set, none);
        refused = (stw_error)STW_ERROR_INIT;
        status = solve(a, set, n, true, &plan, &refused);
    }
    if (is_no_change(status)) {
        stw_explain_unknown(e, status == STW_STATUS_TIME_LIMIT
                                   ? "what would fit: the time limit of planning was reached"
                                   : "what would fit: within what there was the plan's own "
                                     "settings cannot be planned");
        return STW_STATUS_OK;
    }
    if (status != STW_STATUS_OK) {
        if (a->err != NULL) *a->err = refused;
        return status;
    }
    if (e->cause == STW_CAUSE_FRAGMENTS) STW_TRY(add_segments(a));
    if (a->options->import != NULL)
        STW_TRY(stw_emit_order_fixes(a->options->from, a->options->import, plan, a->err));
    for (int machines = 0; machines < 2; machines++) /* other machines come last */
        for (uint32_t i = 0; i < plan->n_fixes; i++)
            if (is_of_machines(&plan->fixes[i]) == (machines > 0) &&
                !(e->beyond > 0 && is_of_limits(&plan->fixes[i])))
                STW_TRY(add_change(a, &plan->fixes[i]));
    if (plan->n_fixes == 0 && e->component == STW_COMPONENT_LOGITS) STW_TRY(add_fused_loss(a));
    if (plan->outcome != STW_OUTCOME_INFEASIBLE && other_decisions(a, plan, &other))
        STW_TRY(add_change(a, &other));
    if (plan->outcome != STW_OUTCOME_INFEASIBLE && e->n_changes == 0)
        say_fits(a, plan);
    else if (e->n_changes == 0)
        stw_explain_unknown(e, "what would fit: no change that was tried does");
    say_refused(a);
out:
    stw_plan_free(plan);
    return status;
}

stw_status stw_explain_changes(stw_explanation *e, const stw_explain_options *options,
                               stw_error *err) {
    const double limit_s =
        options->time_limit_s > 0 ? options->time_limit_s : STW_PLANNER_TIME_LIMIT_S;
    anew a = {.e = e, .options = options, .end_s = stw_now_s() + limit_s, .err = err};
    if (e->plan == NULL || e->failure == NULL || e->plan->peaks == NULL) return STW_STATUS_OK;
    /* shares of a GPU, which another process or the trainer has, and no limit of the job */
    if (e->cause == STW_CAUSE_CACHE || e->cause == STW_CAUSE_SHARED ||
        e->failure->kind == STW_FAILURE_START)
        return STW_STATUS_OK;
    find_limit(e);
    pin_decisions(&a);
    if (!pin_limit(&a)) {
        if (e->planned_within == 0)
            stw_explain_unknown(e, "what would fit: the run needed more beyond the plan than there "
                                   "was; it is of another run");
        else
            stw_explain_unknown(e, "what would fit: the text does not say what there was, and the "
                                   "plan fits in what it was made for");
        e->planned_within = STW_NOT_SAID;
        return STW_STATUS_OK;
    }
    return plan_anew(&a);
}
