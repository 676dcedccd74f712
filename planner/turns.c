/* SPDX-License-Identifier: Apache-2.0 */
/* A turn whose first key is `auto` is the planner's own decision: the fastest is taken, unless the
 * verdict is worse with it; then the next on top of it. Of a key whose default is what a launch
 * without it does, the plan stays as it is, and the turn is told as an alternative. */
#include "planner/turns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "plan/spec/registry.h"
#include "planner/clock.h"
#include "planner/copies.h"
#include "planner/safer.h"

#define MOST_TURNS 32u
#define MOST_TOLD 4u
#define MOST_PASSED 8u

/* A turn is taken, and told, if it saves this share of an iteration. */
static const double WORTH_TAKING = STW_LEAST_GAIN;
static const double WORTH_TELLING = 0.01;

/* Rows may lie above the simulated seconds by this share, and above the bytes of the walk by that
 * share of the GPU's memory. */
static const double ROWS_SLACK = 0.05;
static const double LOOSE_ROWS = 0.1;

/* A plan with what was taken is made once more: in so many times what the first one took. */
static const double TIME_AGAIN = 4;

/* Turns that were planned together, and settings that they are, with spaces between. */
typedef struct trial {
    const char *set; /* "": none */
    double seconds;  /* INFINITY: refused, over a limit, or not faster */
    stw_verdict verdict;
    bool gives_way;   /* some block recomputes or offloads its activations */
    const char *asks; /* of the last one */
} trial;

typedef struct search {
    stw_plan *plan;
    const stw_planner_options *options;
    const stw_engine_turn *turns;
    stw_run_spec defaults; /* of the engine */
    stw_pool *pool;        /* for texts of values */
    double end_s;
    trial passed[MOST_PASSED]; /* the planner's to take, faster, and at risk where the plan fits */
    uint32_t n_passed;
} search;

/* ---- which turns a run leaves open ---- */

/* The next of some settings: KEY, and VALUE. @return false: there is none */
static bool next_setting(const char **at, char *key, char *value, size_t size) {
    while (**at == ' ') (*at)++;
    const char *equals = strchr(*at, '=');
    if (**at == '\0' || equals == NULL) return false;
    const char *end = equals + strcspn(equals, " ");
    snprintf(key, size, "%.*s", (int)(equals - *at), *at);
    snprintf(value, size, "%.*s", (int)(end - equals - 1), equals + 1);
    *at = end;
    return true;
}

static const char *text_of(const search *s, const stw_run_spec *run, const char *key) {
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    stw_text text = STW_TEXT_INIT;
    if (row != NULL) stw_spec_write_value(row, run, &text);
    const char *out = stw_pool_string(s->pool, text.data != NULL ? text.data : "");
    stw_text_free(&text);
    return out != NULL ? out : "";
}

static stw_status set_all(stw_run_spec *run, const char *settings, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char key[64], value[64];
    while (next_setting(&settings, key, value, sizeof key))
        STW_TRY(stw_run_spec_set(run, key, value, "turn", err));
out:
    return status;
}

/* What becomes of a turn for a run: each of its keys has the engine's default, what a launch takes
 * for it, or the turn's value already, and not all have that. @param taken: is its first key
 * `auto`? */
static bool is_open(const search *s, const stw_run_spec *run, const stw_engine_turn *turn,
                    bool *taken) {
    const char *at = turn->set;
    char key[64], value[64];
    bool differs = false, first = true;
    stw_run_spec turned = *run, needed = *run;
    turned.pool = needed.pool = s->pool;
    if (set_all(&turned, turn->set, NULL) != STW_STATUS_OK) return false;
    if (turn->when != NULL && set_all(&needed, turn->when, NULL) != STW_STATUS_OK) return false;
    while (next_setting(&at, key, value, sizeof key)) {
        const char *now = text_of(s, run, key);
        const bool same = strcmp(now, text_of(s, &turned, key)) == 0;
        const bool usual = first && turn->usual != NULL && strcmp(now, turn->usual) == 0;
        if (!same && !usual && strcmp(now, text_of(s, &s->defaults, key)) != 0) return false;
        if (first) *taken = strcmp(now, "auto") == 0;
        differs = differs || !same;
        first = false;
    }
    at = turn->when != NULL ? turn->when : "";
    while (next_setting(&at, key, value, sizeof key))
        if (strcmp(text_of(s, run, key), text_of(s, &needed, key)) != 0) return false;
    return differs;
}

/* ---- planning with turns ---- */

static bool gives_way(const stw_plan *plan) {
    for (uint32_t i = 0; i < plan->decisions.n_blocks; i++) {
        const stw_block_decision *b = &plan->decisions.blocks[i];
        if (b->count > 0 && b->act != STW_ACT_KEEP) return true;
    }
    return false;
}

/* To recompute modules costs time that only a plan has to gain which recomputes more. */
static bool is_pointless(const stw_engine_turn *turn, const trial *here) {
    return !here->gives_way && strncmp(turn->set, "recompute.", strlen("recompute.")) == 0;
}

/* Settings that are refused, and a time that is over, are answers. */
static bool is_answer(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_USAGE ||
           status == STW_STATUS_NOT_BUILT_IN || status == STW_STATUS_TIME_LIMIT ||
           status == STW_STATUS_SOLVER;
}

static stw_status plan_turned(const search *s, stw_plan *plan, double most_s, trial *out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_planner_sieve sieve = {.most_s = most_s * (1 + ROWS_SLACK), .most_share = LOOSE_ROWS};
    stw_planner_options options = *s->options;
    options.time_limit_s = s->end_s - stw_planner_now_s();
    options.write_lp = NULL;
    options.no_fixes = options.no_prices = options.no_alternatives = options.no_reasons = true;
    options.sieve = &sieve;
    STW_TRY(stw_planner_solve_run(plan, &options, err));
    if (sieve.too_slow || sieve.too_big || plan->outcome == STW_OUTCOME_INFEASIBLE ||
        plan->outcome == STW_OUTCOME_LIMIT)
        goto out;
    STW_TRY(stw_planner_time(plan, options.simulate, err));
    const double seconds = stw_plan_iteration_s(plan);
    if (!(seconds <= most_s)) goto out;
    out->seconds = seconds;
    out->verdict = plan->verdict;
    out->gives_way = gives_way(plan);
out:
    return status;
}

/* The plan's run with some settings. @param most_s plans that take longer are of no interest */
static stw_status try_settings(const search *s, const char *settings, double most_s, trial *out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = s->plan->run;
    stw_plan *plan = NULL;
    stw_error why = STW_ERROR_INIT;
    *out = (trial){.set = settings, .seconds = INFINITY, .verdict = STW_VERDICT_DOES_NOT_FIT};
    if (settings == NULL) return stw_planner_no_memory(err);
    if (stw_planner_now_s() >= s->end_s) return STW_STATUS_OK;
    run.pool = stw_pool_new(); /* lists stay in the plan's */
    if (run.pool == NULL) return stw_planner_no_memory(err);
    STW_TRY(set_all(&run, settings, &why));
    STW_TRY(stw_run_spec_check(&run, "turn", &why));
    STW_TRY(stw_plan_new_sharing(s->plan->model, &s->plan->cluster, &run, &plan, &why));
    STW_TRY(plan_turned(s, plan, most_s, out, &why));
out:
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    if (status == STW_STATUS_OK || is_answer(status)) return STW_STATUS_OK;
    if (err != NULL) *err = why;
    return status;
}

/* NULL: no memory. */
static const char *joined(const search *s, const char *a, const char *b) {
    return stw_pool_printf(s->pool, "%s%s%s", a, a[0] != '\0' ? " " : "", b);
}

/* ---- what the planner decides ---- */

static bool is_worse(stw_verdict a, stw_verdict b) {
    return a != STW_VERDICT_FITS && b == STW_VERDICT_FITS;
}

/* The fastest of the turns that are the planner's to take. @param best in and out; set "": none */
static stw_status find_best(search *s, const stw_run_spec *run, const trial *here, trial *best,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *best = *here;
    best->set = "";
    for (const stw_engine_turn *turn = s->turns; turn->set != NULL; turn++) {
        const bool first = best->set[0] == '\0';
        bool taken = false;
        trial found;
        if (is_pointless(turn, here) || !is_open(s, run, turn, &taken) || !taken) continue;
        STW_TRY(try_settings(s, joined(s, here->set, turn->set),
                             first ? here->seconds * (1 - WORTH_TAKING) : best->seconds, &found,
                             err));
        found.asks = turn->asks;
        if (!isfinite(found.seconds)) continue;
        if (!is_worse(found.verdict, here->verdict))
            *best = found;
        else if (here->set[0] == '\0' && s->n_passed < MOST_PASSED)
            s->passed[s->n_passed++] = found;
    }
out:
    return status;
}

/* @param here in: the run as it is; out: with what is taken */
static stw_status find_taken(search *s, trial *here, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = s->plan->run;
    trial best;
    run.pool = s->pool;
    for (uint32_t i = 0; i < MOST_TURNS; i++) {
        STW_TRY(find_best(s, &run, here, &best, err));
        if (best.set[0] == '\0') break;
        *here = best;
        STW_TRY(set_all(&run, best.set, err));
    }
out:
    return status;
}

static stw_status take(const search *s, const trial *found, double before_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    stw_run_spec run = plan->run;
    STW_TRY(set_all(&run, found->set, err)); /* strings lie in the plan's */
    STW_TRY(stw_plan_rerun(plan, &run, err));
    STW_TRY(stw_planner_solve_run(plan, s->options, err));
    plan->turned = stw_pool_string(plan->pool, found->set);
    plan->unturned_s = before_s;
    if (plan->turned == NULL) status = stw_planner_no_memory(err);
out:
    return status;
}

/* ---- what is told ---- */

static int by_seconds(const void *a, const void *b) {
    const trial *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return strcmp(x->set, y->set);
}

/* Every turn of a key that has a default, by itself, that is worth a line; the fastest first. */
static stw_status find_single(const search *s, const trial *here, trial *list, uint32_t *n,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (const stw_engine_turn *turn = s->turns; turn->set != NULL && *n < MOST_TURNS; turn++) {
        bool taken = false;
        if (is_pointless(turn, here) || !is_open(s, &s->plan->run, turn, &taken) ||
            (taken && !s->options->tells_turns))
            continue;
        STW_TRY(try_settings(s, turn->set, here->seconds * (1 - WORTH_TELLING), &list[*n], err));
        list[*n].asks = turn->asks;
        *n += isfinite(list[*n].seconds);
    }
    if (*n > 0) qsort(list, *n, sizeof *list, by_seconds);
out:
    return status;
}

/* The fastest, and on top of it the next ones, each if it helps more. */
static stw_status combine(const search *s, const trial *list, uint32_t n, trial *all,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = s->plan->run;
    run.pool = s->pool;
    *all = list[0];
    STW_TRY(set_all(&run, all->set, err));
    for (uint32_t i = 1; i < n; i++) {
        const stw_engine_turn turn = {.set = list[i].set};
        trial found;
        bool taken = false;
        if (!is_open(s, &run, &turn, &taken)) continue;
        STW_TRY(try_settings(s, joined(s, all->set, list[i].set), all->seconds * (1 - WORTH_TAKING),
                             &found, err));
        if (!isfinite(found.seconds)) continue;
        *all = found;
        STW_TRY(set_all(&run, all->set, err));
    }
out:
    return status;
}

/* Is every key of some settings among those of others? */
static bool keys_are_among(const char *keys, const char *others) {
    char key[64], other[64], value[64];
    while (next_setting(&keys, key, value, sizeof key)) {
        bool found = false;
        for (const char *at = others; !found && next_setting(&at, other, value, sizeof other);)
            found = strcmp(key, other) == 0;
        if (!found) return false;
    }
    return true;
}

/* Another one is as good, and faster, by no other keys. */
static bool adds_nothing(const trial *list, uint32_t i) {
    for (uint32_t k = 0; k < i; k++)
        if (keys_are_among(list[k].set, list[i].set) && !is_worse(list[k].verdict, list[i].verdict))
            return true;
    return false;
}

static stw_status tell(const search *s, const trial *here, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double here_s = here->seconds;
    trial *list = stw_pool_array(s->pool, MOST_TURNS + MOST_PASSED + 1, sizeof *list);
    uint32_t n = 0;
    if (list == NULL) return stw_planner_no_memory(err);
    STW_TRY(find_single(s, here, list, &n, err));
    if (n > 0) {
        STW_TRY(combine(s, list, n, &list[n], err));
        if (strcmp(list[n].set, list[0].set) != 0) n++;
    }
    for (uint32_t i = 0; i < s->n_passed; i++)
        if (s->passed[i].seconds <= here_s * (1 - WORTH_TELLING)) list[n++] = s->passed[i];
    if (n > 0) qsort(list, n, sizeof *list, by_seconds);
    for (uint32_t i = 0, told = 0; i < n && told < MOST_TOLD; i++) {
        if (adds_nothing(list, i)) continue;
        told++;
        STW_TRY(stw_plan_add_turn(s->plan,
                                  &(stw_alternative){"setting", list[i].seconds, 0, list[i].set,
                                                     list[i].verdict, list[i].asks},
                                  here_s, err));
    }
out:
    return status;
}

/* ---- the whole ---- */

static bool may_turn(const stw_plan *plan, const stw_planner_options *options) {
    const stw_engine *engine = plan->job->engine;
    return engine->turns != NULL && options->simulate != NULL && !options->only_stage1 &&
           options->sieve == NULL && stw_cluster_has_gpus(&plan->cluster) &&
           (plan->outcome == STW_OUTCOME_OPTIMAL || plan->outcome == STW_OUTCOME_FEASIBLE) &&
           (plan->verdict == STW_VERDICT_FITS || plan->verdict == STW_VERDICT_AT_RISK);
}

/* @param start_s when the plan of the run as it is was begun */
static stw_status turn_keys(search *s, double start_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    double estimated[STW_N_PHASES];
    memcpy(estimated, plan->time_s, sizeof estimated);
    STW_TRY(stw_planner_time(plan, s->options->simulate, err));
    trial here = {.set = "",
                  .seconds = stw_plan_iteration_s(plan),
                  .verdict = plan->verdict,
                  .gives_way = gives_way(plan)};
    memcpy(plan->time_s, estimated, sizeof estimated);
    const double before_s = here.seconds, first_s = stw_planner_now_s() - start_s;
    if (!isfinite(before_s) || before_s <= 0) goto out;
    if (!s->options->tells_turns) {
        const double end_s = s->end_s;
        s->end_s -= TIME_AGAIN * first_s;
        STW_TRY(find_taken(s, &here, err));
        s->end_s = end_s;
    }
    if (here.set[0] != '\0') STW_TRY(take(s, &here, before_s, err));
    if (!s->options->no_alternatives) STW_TRY(tell(s, &here, err));
out:
    return status;
}

static stw_status solve_and_turn(stw_plan *plan, const stw_planner_options *given, stw_error *err) {
    stw_planner_options whole = *given;
    const stw_planner_options *options = &whole;
    whole.again = stw_planner_solve;
    const double start_s = stw_planner_now_s(), limit_s = options->time_limit_s;
    plan->turned = NULL;
    stw_status status = stw_planner_solve_run(plan, options, err);
    if (status != STW_STATUS_OK || !may_turn(plan, options)) return status;
    search s = {.plan = plan,
                .options = options,
                .turns = plan->job->engine->turns,
                .pool = stw_pool_new(),
                .end_s = fmin(start_s + (limit_s > 0 ? limit_s : STW_PLANNER_TIME_LIMIT_S),
                              stw_planner_now_s() +
                                  fmax(stw_deadline_end_s() - stw_planner_now_s(), 0) / 2)};
    if (s.pool == NULL) return stw_planner_no_memory(err);
    status = stw_run_spec_init_as(&plan->run, &s.defaults, err);
    if (status == STW_STATUS_OK) status = turn_keys(&s, start_s, err);
    if (plan->solver.seconds > 0) plan->solver.seconds = stw_planner_now_s() - start_s;
    stw_run_spec_free(&s.defaults);
    stw_pool_free(s.pool);
    return status;
}

stw_status stw_planner_solve(stw_plan *plan, const stw_planner_options *given, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_planner_options again = *given;
    again.again = stw_planner_solve;
    const stw_fix_judge judge = stw_planner_judge(&again);
    STW_TRY(solve_and_turn(plan, given, err));
    STW_TRY(stw_planner_choose_copies(plan, given, err));
    STW_TRY(stw_planner_avoid_risk(plan, given, &judge, err));
out:
    return status;
}
