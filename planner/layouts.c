/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/layouts.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/deadline.h"
#include "core/locale.h"
#include "plan/job/effect.h"
#include "planner/clock.h"
#include "planner/layouts_list.h"
#include "planner/point_bound.h"

/* All of so many layouts are looked at; of more, a grid of seeds, then what is near the best ones,
 * up to a number of plans. Constants of plans, not of seconds: the answer depends on no clock. */
#define MOST_EXHAUSTIVE 320u
#define MOST_SEEDS 48u
#define MOST_PLANS 224u
/* Of so many, those that are left then are held to the bounds of rows. */
#define MOST_SIEVED 1024u
#define CENTRES 3u /* of which neighbours are planned in a round */
/* The same of a brief search. */
#define BRIEF_SEEDS 24u
#define BRIEF_PLANS 96u

#define BATCH 16u    /* planned against the same best plan */
#define FINALISTS 4u /* planned at once with all that the planner compares */
#define MOST_FINALISTS 16u
#define MOST_RISKY 24u /* besides, of those that stay at risk */
#define MOST_THREADS 64u

/* Rows may lie above the simulated seconds by this share, and above the bytes of the walk by that
 * share of the GPU's memory. */
static const double ROWS_SLACK = 0.05, BRIEF_SLACK = 0.02;
static const double LOOSE_ROWS = 0.35;
/* A plan that the solver's rows chose may be this much slower than one that the simulator did. */
static const double FAR = 1.25;

typedef enum standing {
    NOT_PLANNED,
    LATE,
    REFUSED,
    TOO_SLOW,
    TOO_BIG,
    UNFIT,
    AT_RISK,
    FITS
} standing;

typedef struct result {
    standing is;
    bool expanded, asked, compared; /* asked to be compared; the time may have been over */
    bool timed;                     /* the seconds are a prediction: not where GPUs are emulated */
    bool hopeless;                  /* as is every layout */
    double seconds, rows_s, over_share; /* rows_s: by the planner's rows, as solved */
    uint64_t gpu_peak_bytes, host_peak_bytes;
} result;

typedef struct search {
    stw_layout_list layouts;
    const stw_run_spec *run;
    const stw_layouts_options *options;
    double end_s, most_s; /* most_s: of the batch; 0: any */
    double most_rows_s;   /* of the batch, by what the solver found; 0: any */
    bool all;             /* layouts are looked at */
    bool whole;           /* all that the planner compares */
    bool hopeless;        /* some layout is, and whether any fits is all that is asked */
    result *results;      /* [layouts.n] */
    uint32_t batch[BATCH], n_batch, next;
    uint32_t planned;
    pthread_mutex_t mutex; /* of `next` and what follows */
    stw_status status;
    stw_error err;
} search;

/* ---- one layout ---- */

static void judge(const stw_plan *plan, result *out) {
    stw_point_bound bound;
    out->gpu_peak_bytes = stw_point_peak(plan, STW_TIER_GPU);
    out->host_peak_bytes = stw_point_peak(plan, STW_TIER_HOST);
    out->seconds = stw_plan_iteration_s(plan);
    out->rows_s = plan->objective_s;
    out->is = plan->verdict == STW_VERDICT_FITS      ? FITS
              : plan->verdict == STW_VERDICT_AT_RISK ? AT_RISK
                                                     : UNFIT;
    out->timed = isfinite(out->seconds);
    if (!out->timed && isfinite(plan->objective_s)) out->seconds = plan->objective_s;
    if (out->is != UNFIT && isfinite(out->seconds)) return;
    stw_point_find_bound(plan, &bound);
    out->is = UNFIT;
    out->seconds = NAN;
    out->over_share = (double)bound.over_bytes / (double)plan->cluster.gpu.memory_bytes;
}

static stw_status solve(const search *s, stw_plan *plan, result *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_planner_sieve sieve = {.most_s = s->most_s,
                               .most_rows_s = s->most_rows_s,
                               .state_first = s->options->fits_only,
                               .bytes_alone = s->options->fits_only,
                               .rough = true,
                               .most_share = LOOSE_ROWS};
    const stw_planner_options planner = {.time_limit_s = s->end_s - stw_now_s(),
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .no_alternatives = true,
                                         .no_reasons = true,
                                         .only_stage1 = !s->whole,
                                         .tells_turns = s->options->tells_turns,
                                         .sieve = s->whole ? NULL : &sieve,
                                         .simulate = s->options->simulate};
    STW_TRY(stw_planner_solve(plan, &planner, err));
    out->is = sieve.too_slow ? TOO_SLOW : TOO_BIG;
    out->over_share = sieve.over_share;
    out->hopeless = sieve.too_much_state;
    if (sieve.too_slow || sieve.too_big) goto out;
    if (!s->options->fits_only) STW_TRY(s->options->finish(plan, err));
    judge(plan, out);
out:
    return status;
}

/* Settings that are refused, and a time that is over, are answers. */
static stw_status plan_layout(const search *s, uint32_t i, result *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = *s->run;
    stw_plan *plan = NULL;
    stw_error why = STW_ERROR_INIT;
    run.pool = stw_pool_new(); /* lists stay in the run's */
    if (run.pool == NULL) return stw_planner_no_memory(err);
    STW_TRY(stw_layout_apply(&s->layouts, i, &run, &why));
    /* the load is chosen last: a thousandth of it counts, and the least memory is this one's */
    if (!s->whole && run.load.method == STW_AUTO) run.load.method = STW_LOAD_SHARDED_READ;
    STW_TRY(stw_run_spec_check(&run, "parallel", &why));
    STW_TRY(stw_plan_new_sharing(s->layouts.c.model, s->layouts.c.cluster, &run, &plan, &why));
    plan->walk_alone = s->options->fits_only;
    STW_TRY(solve(s, plan, out, &why));
out:
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    if (status == STW_STATUS_OK) return status;
    out->is = status == STW_STATUS_TIME_LIMIT ? LATE : REFUSED;
    if (stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT || status == STW_STATUS_SOLVER)
        return STW_STATUS_OK;
    if (err != NULL) *err = why;
    return status;
}

/* ---- a batch ---- */

static bool take(search *s, uint32_t *out) {
    pthread_mutex_lock(&s->mutex);
    const bool more = s->status == STW_STATUS_OK && s->next < s->n_batch;
    if (more) *out = s->batch[s->next++];
    pthread_mutex_unlock(&s->mutex);
    return more;
}

static void *work(void *user) {
    search *s = user;
    uint32_t i = 0;
    const double before = stw_deadline_set(s->end_s);
    void *locale = stw_locale_enter();
    while (take(s, &i)) {
        stw_error err = STW_ERROR_INIT;
        result found = {.is = LATE, .seconds = NAN};
        stw_status status = STW_STATUS_OK;
        if (stw_now_s() < s->end_s) status = plan_layout(s, i, &found, &err);
        pthread_mutex_lock(&s->mutex);
        found.expanded = s->results[i].expanded;
        found.asked = found.compared = s->whole;
        s->hopeless = s->hopeless || (found.hopeless && s->options->fits_only);
        if (found.is != LATE || !s->whole) s->results[i] = found; /* else the plan so far stands */
        if (status != STW_STATUS_OK && s->status == STW_STATUS_OK) {
            s->status = status;
            s->err = err;
        }
        pthread_mutex_unlock(&s->mutex);
    }
    stw_locale_leave(locale);
    (void)stw_deadline_set(before);
    return NULL;
}

static stw_status run_batch(search *s, stw_error *err) {
    pthread_t threads[MOST_THREADS];
    uint32_t jobs = s->options->jobs > 0 ? s->options->jobs : stw_planner_cores(), started = 0;
    if (jobs > MOST_THREADS) jobs = MOST_THREADS;
    s->next = 0;
    while (started + 1 < jobs && started + 1 < s->n_batch &&
           pthread_create(&threads[started], NULL, work, s) == 0)
        started++;
    (void)work(s); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    s->n_batch = 0;
    if (s->status != STW_STATUS_OK && err != NULL) *err = s->err;
    return s->status;
}

/* ---- ranks of results ---- */

/* Is `a` better? What fits is, then what is at risk, then what is over by less. */
static bool is_better(const result *a, const result *b) {
    const standing x = a->is < TOO_BIG ? NOT_PLANNED : a->is;
    const standing y = b->is < TOO_BIG ? NOT_PLANNED : b->is;
    if (x != y) return x > y;
    if (x == UNFIT || x == TOO_BIG) return a->over_share < b->over_share;
    return x > UNFIT && a->seconds < b->seconds;
}

#define NO_LAYOUT UINT32_MAX

/* The best result, of those that are not expanded where `fresh`. */
static uint32_t best_of(const search *s, bool fresh) {
    uint32_t best = NO_LAYOUT;
    for (uint32_t i = 0; i < s->layouts.n; i++) {
        if (s->results[i].is < TOO_BIG || (fresh && s->results[i].expanded)) continue;
        if (best == NO_LAYOUT || is_better(&s->results[i], &s->results[best])) best = i;
    }
    return best;
}

/* Is the question answered? */
static bool is_over(const search *s) {
    const uint32_t best = best_of(s, false);
    if (s->hopeless) return true;
    return s->options->fits_only && best != NO_LAYOUT && s->results[best].is >= AT_RISK;
}

/* ---- which layouts ---- */

static stw_status flush(search *s, stw_error *err) {
    const uint32_t best = best_of(s, false);
    const double slack = s->options->brief ? BRIEF_SLACK : ROWS_SLACK, most_s = s->options->most_s;
    s->most_s = best != NO_LAYOUT && s->results[best].is == FITS
                    ? s->results[best].seconds * (1 + slack)
                    : 0;
    if (most_s > 0 && !(s->most_s > 0 && s->most_s < most_s)) s->most_s = most_s;
    /* what is slower by less than FAR may lead to what is faster */
    s->most_rows_s = s->all ? s->most_s : s->most_s * FAR / (1 + slack);
    s->planned += s->n_batch;
    return s->n_batch > 0 ? run_batch(s, err) : STW_STATUS_OK;
}

static stw_status put(search *s, uint32_t i, stw_error *err) {
    if (s->results[i].is != NOT_PLANNED || is_over(s)) return STW_STATUS_OK;
    for (uint32_t k = 0; k < s->n_batch; k++)
        if (s->batch[k] == i) return STW_STATUS_OK;
    s->batch[s->n_batch++] = i;
    const uint32_t full = s->options->fits_only ? 1 : s->options->brief ? BATCH / 4 : BATCH;
    return s->n_batch == full ? flush(s, err) : STW_STATUS_OK;
}

static stw_status plan_all(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < s->layouts.n; i++) STW_TRY(put(s, i, err));
    STW_TRY(flush(s, err));
out:
    return status;
}

/* So many of the seeds, evenly, and the run's own layout. */
static stw_status plan_seeds(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t seeds = 0, seen = 0;
    for (uint32_t i = 0; i < s->layouts.n; i++) {
        if (stw_layout_is_own(&s->layouts, i)) STW_TRY(put(s, i, err));
        seeds += stw_layout_is_seed(&s->layouts, i);
    }
    const bool any = seeds > 0; /* else from all */
    if (!any) seeds = s->layouts.n;
    const uint32_t most = s->options->brief ? BRIEF_SEEDS : MOST_SEEDS;
    const uint32_t step = (seeds + most - 1) / most;
    for (uint32_t i = 0; i < s->layouts.n; i++)
        if (!any || stw_layout_is_seed(&s->layouts, i))
            if (seen++ % step == 0) STW_TRY(put(s, i, err));
    STW_TRY(flush(s, err));
out:
    return status;
}

/* Neighbours of the best ones, until these have none left. */
static stw_status plan_around(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t most = s->options->brief ? BRIEF_PLANS : MOST_PLANS;
    const uint32_t centres = s->options->brief ? 1 : CENTRES;
    for (;;) {
        uint32_t expanded = 0;
        for (; expanded < centres && s->planned < most; expanded++) {
            const uint32_t best = best_of(s, false), centre = best_of(s, true);
            if (centre == NO_LAYOUT) break;
            /* far from the best: its neighbours are of no interest */
            const double far = s->options->brief ? 1 + BRIEF_SLACK : FAR;
            if (s->results[best].is == FITS &&
                s->results[centre].seconds > far * s->results[best].seconds)
                break;
            s->results[centre].expanded = true;
            for (uint32_t i = 0; i < s->layouts.n && s->planned + s->n_batch < most; i++)
                if (stw_layouts_are_near(&s->layouts, centre, i)) STW_TRY(put(s, i, err));
        }
        STW_TRY(flush(s, err));
        if (expanded == 0 || is_over(s)) break;
    }
out:
    return status;
}

/* May a plan of this layout be faster than the best one once all is compared? Its rows say how fast
 * it would be if all overlapped as they assume. */
static bool may_win(const result *r, const result *best) {
    if (r->seconds < best->seconds * (1 + STW_LEAST_GAIN)) return true;
    return r->rows_s * (1 + STW_LEAST_GAIN) < best->seconds && r->seconds < best->seconds * FAR;
}

/* What comparing all may come to: between what was simulated and what rows promise; every second
 * one is taken by what was simulated. */
static double expected_s(const result *r, bool as_simulated) {
    return as_simulated || r->rows_s > r->seconds ? r->seconds : (r->rows_s + r->seconds) / 2;
}

/* The fastest that was not compared; those that are at risk may not be so after that. */
static uint32_t next_finalist(const search *s) {
    const uint32_t best = best_of(s, false);
    uint32_t next = NO_LAYOUT;
    double least_s = INFINITY;
    if (best == NO_LAYOUT) return NO_LAYOUT;
    for (uint32_t i = 0; i < s->layouts.n; i++) {
        const result *r = &s->results[i];
        bool in = r->asked || r->is < AT_RISK;
        if (s->results[best].is == FITS && s->results[best].asked)
            in = in || !may_win(r, &s->results[best]);
        for (uint32_t b = 0; b < s->n_batch; b++) in = in || s->batch[b] == i;
        if (in) continue;
        const double expected = expected_s(r, s->n_batch % 2 == 0);
        if (expected >= least_s) continue;
        least_s = expected;
        next = i;
    }
    return next;
}

/* The best ones once more, with all that the planner compares, until none that was not is faster.
 */
static stw_status compare_best(search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    s->whole = true;
    s->most_s = 0;
    for (uint32_t n = 0, risky = 0; n < MOST_FINALISTS && risky < MOST_RISKY;) {
        result kept[FINALISTS];
        uint32_t again[FINALISTS], next;
        while (s->n_batch < FINALISTS && (next = next_finalist(s)) != NO_LAYOUT) {
            kept[s->n_batch] = s->results[next];
            again[s->n_batch] = next;
            s->batch[s->n_batch++] = next;
        }
        const uint32_t taken = s->n_batch;
        if (taken == 0) break;
        STW_TRY(run_batch(s, err));
        for (uint32_t k = 0; k < taken; k++) { /* without an answer what was found already stands */
            if (s->results[again[k]].is < UNFIT) s->results[again[k]] = kept[k];
            s->results[again[k]].asked = true;
            n += s->results[again[k]].is == FITS;
            risky += s->results[again[k]].is != FITS;
        }
    }
out:
    return status;
}

/* A plan of a layout that is given may be a little faster than the one that was compared. */
static const double PLAIN_SLACK = 0.8 * STW_LEAST_GAIN;

/* The fastest; of those within PLAIN_SLACK of it, the plainest, which is the first. */
static uint32_t choose(const search *s) {
    const uint32_t best = best_of(s, false);
    if (best == NO_LAYOUT || s->results[best].is < AT_RISK) return best;
    const double most_s = s->results[best].seconds * (1 + PLAIN_SLACK);
    for (uint32_t i = 0; i < best; i++)
        if (s->results[i].is == s->results[best].is && s->results[i].seconds <= most_s) return i;
    return best;
}

/* Where there is none to choose: one whose time was over, else the first. */
static uint32_t first_unseen(const search *s) {
    for (uint32_t i = 0; i < s->layouts.n; i++)
        if (s->results[i].is == LATE) return i;
    return 0;
}

/* ---- what is told ---- */

static bool add_row(const search *s, uint32_t i, stw_pool *pool, stw_layout_search *out) {
    const result *r = &s->results[i];
    const stw_verdict verdict = r->is == FITS      ? STW_VERDICT_FITS
                                : r->is == AT_RISK ? STW_VERDICT_AT_RISK
                                                   : STW_VERDICT_DOES_NOT_FIT;
    const char *words = stw_layout_words(&s->layouts, i, pool);
    out->rows[out->n_rows++] = (stw_layout_row){words, verdict, r->timed ? r->seconds : (double)NAN,
                                                r->gpu_peak_bytes, r->host_peak_bytes};
    return words != NULL;
}

static const char *searched_keys(const search *s, stw_pool *pool) {
    const char *words = "";
    for (int k = 0; k < STW_N_SEARCHES && words != NULL; k++) {
        const char *key = stw_layout_key(s->layouts.rules, (stw_search)k);
        if ((s->layouts.c.searched >> k & 1) != 0 && key != NULL &&
            (s->layouts.n_values[k] > 1 || k == STW_SEARCH_ACCUMULATION))
            words = stw_pool_printf(pool, "%s%s%s", words, words[0] != '\0' ? " " : "", key);
    }
    return words;
}

static bool is_hopeless(const search *s) {
    for (uint32_t i = 0; i < s->layouts.n; i++)
        if (s->results[i].hopeless) return true;
    return false;
}

static bool tell(const search *s, uint32_t chosen, stw_pool *pool, stw_layout_search *out) {
    bool kept = true;
    uint32_t rows[STW_MAX_LAYOUT_ROWS] = {chosen}, n = 1;
    *out = (stw_layout_search){.searched = searched_keys(s, pool), .admitted = s->layouts.n};
    for (uint32_t i = 0; i < s->layouts.n; i++) {
        const standing is = s->results[i].is;
        out->planned += is >= UNFIT;
        out->compared += s->results[i].compared;
        out->unfinished += is >= AT_RISK && s->results[i].asked && !s->results[i].compared;
        out->refused += is == REFUSED;
        out->too_slow += is == TOO_SLOW;
        out->too_big += is == TOO_BIG;
        out->unfit += is == UNFIT;
        out->left += is == NOT_PLANNED;
        out->late += is == LATE;
    }
    if (is_hopeless(s)) { /* what was not looked at is too big as well */
        out->too_big += out->late;
        out->late = 0;
    }
    while (n + 1 < STW_MAX_LAYOUT_ROWS) {
        uint32_t best = NO_LAYOUT;
        for (uint32_t i = 0; i < s->layouts.n; i++) {
            bool in = s->results[i].is < AT_RISK;
            for (uint32_t k = 0; k < n; k++) in = in || rows[k] == i;
            if (!in && (best == NO_LAYOUT || is_better(&s->results[i], &s->results[best])))
                best = i;
        }
        if (best == NO_LAYOUT) break;
        rows[n++] = best;
    }
    for (uint32_t i = 0; i < s->layouts.n && n < STW_MAX_LAYOUT_ROWS; i++) {
        bool in = s->results[i].is < UNFIT || !stw_layout_is_own(&s->layouts, i);
        for (uint32_t k = 0; k < n; k++) in = in || rows[k] == i;
        if (!in) rows[n++] = i;
    }
    for (uint32_t k = 0; k < n; k++) kept = add_row(s, rows[k], pool, out) && kept;
    return kept && out->searched != NULL;
}

/* ---- the whole ---- */

/* The trainer's ranks: those of its nodes where there are further roles. */
static stw_status make_case(const stw_model *model, const stw_cluster *cluster, stw_run_spec *run,
                            stw_pool *pool, stw_layout_case *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_engine *engine = stw_engine_of(run);
    stw_job_role *roles = NULL;
    if (engine->layouts == NULL || !model->facts_known)
        return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel", "found auto, expected values: %s",
                        model->facts_known ? "the engine's layouts are not searched"
                                           : "forward and backward of a list of tensors are "
                                             "unknown");
    STW_TRY(stw_roles_place(run, cluster->nodes, pool, &roles, err));
    if (run->batch.seq_len == 0) run->batch.seq_len = stw_default_seq_len(model);
    const uint32_t gpus = cluster->gpus > 0 ? cluster->gpus : 1;
    *out = (stw_layout_case){.model = model,
                             .cluster = cluster,
                             .run = run,
                             .ranks_per_node = gpus,
                             .world = roles[0].n_nodes * gpus,
                             .searched = stw_run_spec_searched(run, engine->layouts->searches)};
    /* alone they would miss most of what tensor parallelism gains */
    if ((out->searched >> STW_SEARCH_TP & 1) != 0)
        out->searched |=
            engine->layouts->searches & ~run->searches.given & 1u << STW_SEARCH_SEQUENCE;
out:
    return status;
}

bool stw_layouts_open(const stw_model *model, stw_run_spec *run) {
#define BIT(name) (1u << STW_SEARCH_##name)
    static const uint32_t SAVING =
        BIT(TP) | BIT(PP) | BIT(CP) | BIT(EP) | BIT(ETP) | BIT(FUSED_LOSS);
#undef BIT
    const stw_engine *engine = stw_engine_of(run);
    if (engine == NULL || engine->layouts == NULL || !model->facts_known) return false;
    run->searches.keys |= SAVING & engine->layouts->searches & ~run->searches.given;
    return run->searches.keys != 0;
}

stw_status stw_layouts_settle(const stw_layout_search *found, stw_verdict verdict,
                              double time_limit_s, stw_error *err) {
    if (found->searched == NULL || found->late == 0 || verdict != STW_VERDICT_DOES_NOT_FIT)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_TIME_LIMIT, "planner",
                    "the time limit of %.3g s ended the search after %llu of %llu layouts, none of "
                    "which fits; raise --time-limit",
                    time_limit_s, (unsigned long long)(found->admitted - found->left - found->late),
                    (unsigned long long)found->admitted);
}

stw_status stw_layouts_choose(const stw_model *model, const stw_cluster *cluster, stw_run_spec *run,
                              const stw_layouts_options *options, stw_pool *pool,
                              stw_layout_search *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_engine *engine = stw_engine_of(run);
    const double start_s = stw_now_s();
    const double limit_s =
        options->time_limit_s > 0 ? options->time_limit_s : STW_PLANNER_TIME_LIMIT_S;
    search s = {.run = run,
                .options = options,
                .end_s = fmin(start_s + limit_s, stw_deadline_end_s()),
                .mutex = PTHREAD_MUTEX_INITIALIZER,
                .status = STW_STATUS_OK,
                .err = STW_ERROR_INIT};
    stw_layout_case c;
    if (!stw_run_spec_is_open(run) || engine == NULL) return STW_STATUS_OK;
    STW_TRY(make_case(model, cluster, run, pool, &c, err));
    c.slow_too = options->fits_only;
    STW_TRY(stw_layouts_list(&c, engine->layouts, pool, &s.layouts, err));
    s.all = s.layouts.n <= (options->brief ? BRIEF_SEEDS : MOST_EXHAUSTIVE);
    s.results = stw_pool_array(pool, s.layouts.n, sizeof *s.results);
    if (s.results == NULL) STW_TRY(stw_planner_no_memory(err));
    if (!s.all) {
        STW_TRY(plan_seeds(&s, err));
        STW_TRY(plan_around(&s, err));
        s.all = !options->brief && s.layouts.n <= MOST_SIEVED;
        if (s.all) STW_TRY(plan_all(&s, err));
    } else if (s.layouts.n > 1 || !options->brief) {
        STW_TRY(plan_all(&s, err));
    }
    /* that nothing fits is said only of what was looked at */
    if (options->fits_only) STW_TRY(plan_all(&s, err));
    if (!options->fits_only && !options->brief) STW_TRY(compare_best(&s, err));
    uint32_t chosen = choose(&s);
    if (chosen == NO_LAYOUT) chosen = first_unseen(&s); /* planning it says why */
    if (out != NULL && !tell(&s, chosen, pool, out)) STW_TRY(stw_planner_no_memory(err));
    if (out != NULL) out->seconds = stw_now_s() - start_s;
    STW_TRY(stw_layout_apply(&s.layouts, chosen, run, err));
    STW_TRY(stw_run_spec_check(run, "parallel", err)); /* where all are refused: why */
out:
    return status;
}
