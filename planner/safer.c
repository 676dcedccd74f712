/* SPDX-License-Identifier: Apache-2.0 */
/* Each setting alone, then pairs of such as are not enough: every one is planned to the end,
 * because only whole plans say what an allocator reserves. */
#include "planner/safer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/files/verdict.h"
#include "planner/fixes.h"
#include "planner/turns.h"

/* Changes that are found, and one that ends the search: it takes at most this share longer than the
 * plan at risk. */
#define ENOUGH 2u
static const double CLOSE = 0.25;

/* Steps of a knob that are planned, the smallest first. */
#define MOST_STEPS 2u

/* All plans together, and the operations of their programs. */
#define MOST_PLANS 24
#define WORK 100000000

typedef struct safer {
    stw_plan *plan;
    stw_trials *trials;
    const stw_fix_judge *judge;
    uint32_t plans;
    double close_s; /* an iteration that ends the search */
    bool ends;
    stw_knobs knobs;
    bool admitted[STW_MAX_KNOBS]; /* a plan was made with the knob */
    bool enough[STW_MAX_KNOBS];
    stw_found_list found;
} safer;

/* ---- settings ---- */

/* Does a knob keep what a run computes, its machines and its engine? */
static bool is_setting(const stw_knob *k) {
    const bool kind = k->kind == STW_KNOB_WORD || k->kind == STW_KNOB_PART ||
                      k->kind == STW_KNOB_DOWN || k->kind == STW_KNOB_PARK;
    return kind && !k->alone && k->reach <= STW_REACH_BATCH;
}

static bool is_of(const stw_engine_fix *f, const stw_knob *k) {
    while (f != NULL && f->key != NULL && strcmp(f->key, k->key) != 0) f++;
    return f != NULL && f->key != NULL;
}

/* Settings of any engine first, then those of this one, then smaller micro batches. */
static int rank_of(const stw_plan *plan, const stw_knob *k) {
    const stw_engine *engine = plan->job->engine;
    if (k->reach == STW_REACH_BATCH) return 3;
    return is_of(engine->fixes, k) ? 2 : is_of(engine->risk_fixes, k) ? 1 : 0;
}

static bool is_risky_in(const stw_plan *plan, stw_phase phase) {
    stw_risk risks[STW_MAX_RISKS];
    const uint32_t n = stw_plan_risks(plan, 0, risks);
    for (uint32_t i = 0; i < n; i++)
        if (risks[i].phase == phase) return true;
    return false;
}

static void list_settings(safer *s) {
    stw_knobs all;
    const bool loads = is_risky_in(s->plan, STW_PHASE_LOAD);
    stw_knobs_of(s->plan, &all);
    if (stw_plan_segments_help(s->plan))
        s->knobs.list[s->knobs.n++] = (stw_knob){.key = "allocator.expandable_segments",
                                                 .why = "expandable segments leave no gaps",
                                                 .kind = STW_KNOB_WORD,
                                                 .word = "true",
                                                 .n = 1};
    for (int rank = 0; rank <= 3; rank++)
        for (uint32_t i = 0; i < all.n && s->knobs.n < STW_MAX_KNOBS; i++)
            if (is_setting(&all.list[i]) && rank_of(s->plan, &all.list[i]) == rank &&
                (loads || strncmp(all.list[i].key, "load.", strlen("load.")) != 0))
                s->knobs.list[s->knobs.n++] = all.list[i];
}

/* ---- trials ---- */

/* Plan with a mix, and keep it if it has no risk. */
static stw_status try_mix(safer *s, const stw_mix *mix, stw_trial *is, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_change changes[STW_MAX_MIX_CHANGES];
    stw_found_list *all = &s->found;
    stw_found found = {.reach = STW_REACH_PARK, .amount = stw_mix_amount(mix)};
    const uint32_t before = all->n, n = stw_mix_changes(s->plan, mix, changes);
    char why[256] = "";
    *is = STW_TRIAL_REFUSED;
    if (s->ends || s->plans == MOST_PLANS) return status;
    for (uint32_t k = 0; k < mix->n; k++) {
        const size_t used = strlen(why);
        if (mix->knobs[k]->reach > found.reach) found.reach = mix->knobs[k]->reach;
        snprintf(why + used, sizeof why - used, "%s%s", k > 0 ? "; " : "", mix->knobs[k]->why);
    }
    STW_TRY(stw_fix_note(all, changes, n, why, STW_TRIAL_FITS, &found, err));
    if (all->n == before) goto out;
    const stw_fix *fix = &all->list[before].fix;
    STW_TRY(stw_fix_verify(s->trials, &all->list[before].fix, s->judge, is, err));
    s->plans += *is != STW_TRIAL_REFUSED;
    if (*is != STW_TRIAL_FITS) all->n = before;
    s->ends = all->n == ENOUGH || (all->n > before && fix->iteration_s <= s->close_s);
out:
    return status;
}

static stw_status try_alone(safer *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < s->knobs.n; i++) {
        stw_mix mix = {.n = 1, .knobs = {&s->knobs.list[i]}};
        const uint64_t last = stw_min_u64(s->knobs.list[i].n, MOST_STEPS);
        stw_trial is = STW_TRIAL_UNFIT;
        while (mix.steps[0] < last && (is == STW_TRIAL_UNFIT || is == STW_TRIAL_AT_RISK)) {
            mix.steps[0]++;
            STW_TRY(try_mix(s, &mix, &is, err));
            s->admitted[i] = s->admitted[i] || is != STW_TRIAL_REFUSED;
        }
        s->enough[i] = is == STW_TRIAL_FITS;
    }
out:
    return status;
}

static stw_status try_pairs(safer *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t b = 1; b < s->knobs.n; b++)
        for (uint32_t a = 0; a < b; a++) {
            stw_knob *x = &s->knobs.list[a], *y = &s->knobs.list[b];
            const stw_mix mix = {.n = 2, .knobs = {x, y}, .steps = {1, 1}};
            stw_trial is;
            if (s->admitted[a] && s->admitted[b] && !s->enough[a] && !s->enough[b] &&
                strcmp(x->key, y->key) != 0)
                STW_TRY(try_mix(s, &mix, &is, err));
        }
out:
    return status;
}

/* An iteration of the plan at risk, by simulation; its seconds stay. */
static stw_status measure(stw_plan *plan, stw_planner_simulate simulate, double *iteration_s,
                          stw_error *err) {
    double estimated[STW_N_PHASES];
    memcpy(estimated, plan->time_s, sizeof estimated);
    const stw_status status = stw_planner_time(plan, simulate, err);
    *iteration_s = stw_plan_iteration_s(plan);
    memcpy(plan->time_s, estimated, sizeof estimated);
    return status;
}

static int by_seconds(const void *a, const void *b) {
    const stw_fix *x = a, *y = b;
    return (x->iteration_s > y->iteration_s) - (x->iteration_s < y->iteration_s);
}

static stw_status search(safer *s, stw_planner_simulate simulate, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    double now_s;
    STW_TRY(measure(plan, simulate, &now_s, err));
    s->close_s = now_s * (1 + CLOSE);
    list_settings(s);
    STW_TRY(try_alone(s, err));
    STW_TRY(try_pairs(s, err));
    stw_fixes_sort(&s->found);
    for (uint32_t i = 0; i < s->found.n; i++) plan->fixes[plan->n_fixes++] = s->found.list[i].fix;
    qsort(plan->fixes, plan->n_fixes, sizeof *plan->fixes, by_seconds);
out:
    return status;
}

/* ---- the whole ---- */

static bool may_search(const stw_plan *plan, const stw_planner_options *options) {
    return plan->verdict == STW_VERDICT_AT_RISK && !stw_verdict_accepts_risk(&plan->run) &&
           !options->no_fixes && options->simulate != NULL && options->sieve == NULL &&
           stw_cluster_has_gpus(&plan->cluster);
}

stw_status stw_planner_avoid_risk(stw_plan *plan, const stw_planner_options *options,
                                  const stw_fix_judge *judge, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    const double now_s = stw_planner_now_s(), deadline_s = stw_deadline_end_s();
    const double limit_s =
        options->time_limit_s > 0 ? options->time_limit_s : STW_PLANNER_TIME_LIMIT_S;
    const double left_s = fmin(limit_s - plan->solver.seconds, fmax(deadline_s - now_s, 0) / 2);
    if (!may_search(plan, options) || !(left_s > 0)) return STW_STATUS_OK;
    safer *s = stw_pool_array(plan->pool, 1, sizeof *s);
    stw_trials *trials = stw_pool_array(plan->pool, 1, sizeof *trials);
    plan->fixes = stw_pool_array(plan->pool, STW_MAX_FIXES, sizeof *plan->fixes);
    if (s == NULL || trials == NULL || plan->fixes == NULL) return stw_planner_no_memory(err);
    *trials = (stw_trials){.plan = plan, .work_left = WORK, .end_s = now_s + left_s};
    *s = (safer){.plan = plan, .trials = trials, .judge = judge, .found = {.plan = plan}};
    const double before = stw_deadline_set(fmin(trials->end_s, deadline_s));
    const stw_status status = search(s, options->simulate, &why);
    (void)stw_deadline_set(before);
    if (status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    return status;
}
