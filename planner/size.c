/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/locale.h"
#include "plan/job/engine.h"
#include "planner/clock.h"
#include "planner/size_search.h"
#include "planner/sweep.h"

#define MOST_JOBS 64u
#define SEQ_STEP 1024u
#define MOST_SEQ_LEN (16ull << 20)
#define MOST_MICRO_BATCH 4096u

static stw_point_options to_the_end(const stw_size_search *s) {
    return (stw_point_options){.time_limit_s = s->options->time_limit_s};
}

/* Is it refused with the same words on a GPU, a node and two nodes? */
static bool is_of_settings(stw_size_search *s, const char *text) {
    const uint32_t largest = s->at, two = stw_size_of_nodes(s, 2), counts[] = {0, two - 1, two};
    const stw_point_options how = to_the_end(s);
    bool same = true;
    for (uint32_t i = 0; same && i < 3; i++) {
        char words[1200];
        stw_plan *none = NULL;
        stw_error why = STW_ERROR_INIT;
        stw_size_go(s, counts[i]);
        const stw_status status = stw_size_plan(s, "", &how, &none, &why);
        stw_plan_free(none);
        stw_failure_format(status, &why, words, sizeof words);
        same = stw_point_refuses(status) && strcmp(words, text) == 0;
    }
    stw_size_go(s, largest);
    return same;
}

/* What is refused is a row with the reason. */
static stw_status note_refusal(stw_size_search *s, stw_status refusal, const stw_error *why,
                               stw_error *err) {
    char text[1200];
    s->answer->fits = false;
    s->answer->row.verdict = STW_SWEEP_REFUSED;
    stw_failure_format(refusal, why, text, sizeof text);
    s->answer->row.reason = stw_pool_string(s->pool, text);
    if (!is_of_settings(s, text)) refusal = STW_STATUS_OK;
    s->refusal = refusal;
    s->why = *why;
    return s->answer->row.reason != NULL ? STW_STATUS_OK : stw_size_no_memory(err);
}

/* Whether it fits is not known: the time was over. */
static stw_status note_late(stw_size_search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    if (a->late == 0 && !a->fits) { /* all were looked at, and only its plan is missing */
        a->row.verdict = STW_SWEEP_DOES_NOT_FIT;
        return STW_STATUS_OK;
    }
    a->fits = false;
    a->row.verdict = STW_SWEEP_TIME_LIMIT;
    a->row.reason =
        stw_pool_printf(s->pool,
                        "no size was shown to fit: %" PRIu32 " of %" PRIu32
                        " searches and plans ended at the limit of %.3g s; raise --time-limit",
                        a->late > 0 ? a->late : 1, a->planned, s->options->time_limit_s);
    return a->row.reason != NULL ? STW_STATUS_OK : stw_size_no_memory(err);
}

/* The layout of a plan: what was set, then what a search of the run's own has chosen. It is the one
 * of all that follows. */
static stw_status note_layout(stw_size_search *s, const stw_plan *plan, stw_error *err) {
    const stw_layout_search *searched = &plan->layout_search;
    const bool more = searched->searched != NULL && searched->n_rows > 0;
    s->best = stw_pool_printf(s->pool, "%s%s%s", s->best, more && s->best[0] != '\0' ? " " : "",
                              more ? searched->rows[0].settings : "");
    size_t n;
    if (s->best == NULL || !stw_size_settings(s, s->best, NULL, s->answer->settings, &n))
        return stw_size_no_memory(err);
    s->answer->n_settings = (uint32_t)n;
    return STW_STATUS_OK;
}

/* The plan of the fastest layout where the run asks for a search (parallel: auto); else, and where
 * that finds none, of the one that was found to fit. */
static stw_status plan_best(stw_size_search *s, stw_plan **out, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    const char *found = s->best;
    const stw_point_options how = to_the_end(s);
    stw_plan *plan_of_run = NULL;
    if (found[0] != '\0' && s->searches) {
        s->best = "";
        (void)stw_size_plan(s, s->best, &how, &plan_of_run, &why);
        if (plan_of_run != NULL && plan_of_run->verdict != STW_VERDICT_DOES_NOT_FIT) {
            *out = plan_of_run;
            return STW_STATUS_OK;
        }
        stw_plan_free(plan_of_run);
        s->best = found;
    }
    return stw_size_plan(s, s->best, &how, out, err);
}

/* The plan on the cluster that was found, or on the largest one. */
static stw_status take_plan(stw_size_search *s, bool fits, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    a->cluster = s->cluster;
    a->fits = fits;
    a->row.iteration_s = a->row.tokens_per_s = NAN;
    status = plan_best(s, &found, &why);
    if (stw_point_refuses(status)) return note_refusal(s, status, &why, err);
    if (status == STW_STATUS_TIME_LIMIT) return note_late(s, err);
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK) return status;
    a->cluster.gpu.memory_bytes = found->cluster.gpu.memory_bytes; /* that of --set */
    s->seq_len = found->run.batch.seq_len;
    s->micro_batch = found->run.batch.micro_batch;
    if (found->run.batch.tokens_per_step > 0)
        s->free_tokens = stw_pool_printf(
            s->pool, "batch.tokens_per_step=none batch.grad_accumulation=%" PRIu64 " ",
            (uint64_t)found->run.batch.grad_accumulation);
    if (s->free_tokens == NULL) STW_TRY(stw_size_no_memory(err));
    a->needs = stw_plan_streamed_note(found);
    a->of_trainer = found->job->n_roles > 1;
    stw_size_note_setup(found, &a->setup);
    a->fits = fits && found->verdict != STW_VERDICT_DOES_NOT_FIT;
    STW_TRY(stw_sweep_fill_row(found, s->pool, &a->row, err));
    STW_TRY(note_layout(s, found, err));
    if (!a->fits && a->late > 0) status = note_late(s, err);
out:
    stw_plan_free(found);
    return status;
}

/* ---- help ---- */

static stw_status note_help(stw_size_search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    const stw_cluster *c = &s->cluster;
    char where[64];
    if (c->nodes > 1)
        snprintf(where, sizeof where, "%" PRIu32 " nodes x %" PRIu32, c->nodes, c->gpus);
    else
        snprintf(where, sizeof where, "%" PRIu32 " GPU%s", c->gpus, c->gpus == 1 ? "" : "s");
    a->help = stw_pool_printf(s->pool, "--set %s (%s%s%s)", s->more, where,
                              s->best[0] != '\0' ? ", " : "", s->best);
    return a->help != NULL ? STW_STATUS_OK : stw_size_no_memory(err);
}

/* Where it does not fit: with lower precision, else as another engine cuts it? */
static stw_status find_help(stw_size_search *s, stw_error *err) {
    static const char *const precisions[] = {"precision.reduce=bf16", "precision.grads=bf16"};
    enum { N_PRECISIONS = sizeof precisions / sizeof precisions[0] };
    stw_status status = STW_STATUS_OK;
    const uint32_t largest = s->at;
    const char *best = s->best;
    bool fits = false;
    for (uint32_t i = 0; !fits; i++) {
        const stw_engine_spec *engine =
            i < N_PRECISIONS ? NULL : stw_engine_spec_at(i - N_PRECISIONS);
        if (i >= N_PRECISIONS && engine == NULL) break;
        s->more =
            i < N_PRECISIONS ? precisions[i] : stw_pool_printf(s->pool, "engine=%s", engine->name);
        if (s->more == NULL) STW_TRY(stw_size_no_memory(err));
        stw_size_go(s, s->n_counts - 1);
        if (engine == NULL) STW_TRY(stw_size_ask(s, &fits, err));
        if (fits) STW_TRY(stw_size_find_first(s, 0, &fits, err));
        /* the layouts of another engine may be many: any size will do */
        for (uint32_t n = 1; engine != NULL && n <= STW_SIZE_MOST_NODES && !fits; n *= 4) {
            stw_size_go(s, stw_size_of_nodes(s, n));
            STW_TRY(stw_size_ask(s, &fits, err));
        }
        if (fits) STW_TRY(note_help(s, err));
    }
out:
    s->more = NULL;
    stw_size_go(s, largest);
    s->best = best;
    return status;
}

/* ---- one kind ---- */

/* The smallest whose plan fits: rows of a search of sizes are bounds, so its answer is planned, and
 * where that does not fit, all further ones are. */
static stw_status find_planned(stw_size_search *s, uint32_t from, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool fits = false;
    STW_TRY(stw_size_find_first(s, from, &fits, err));
    STW_TRY(take_plan(s, fits, err));
    if (!fits || s->answer->fits || s->answer->row.verdict == STW_SWEEP_REFUSED ||
        s->answer->row.verdict == STW_SWEEP_TIME_LIMIT)
        goto out;
    s->strict = true;
    STW_TRY(stw_size_find_first(s, s->at + 1, &fits, err));
    STW_TRY(take_plan(s, fits, err));
out:
    s->strict = false;
    return status;
}

/* The run's own engine, or where that fits on no count and the run does not say it, the other,
 * whose layouts are many: half of the nodes that are not enough are not looked at one by one. */
static stw_status find_smallest(stw_size_search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    STW_TRY(find_planned(s, 0, err));
    if (a->row.verdict != STW_SWEEP_DOES_NOT_FIT || a->fits) goto out;
    if (s->other_engine != NULL) {
        const stw_size_answer own = *a;
        const stw_size_search here = *s;
        uint32_t nodes = 1;
        bool fits = false;
        s->more = s->other_engine;
        for (; nodes < STW_SIZE_MOST_NODES && !fits; nodes *= 2) {
            stw_size_go(s, stw_size_of_nodes(s, nodes));
            STW_TRY(stw_size_ask(s, &fits, err));
        }
        if (fits)
            STW_TRY(find_planned(s, nodes > 2 ? stw_size_of_nodes(s, nodes / 4) + 1 : 0, err));
        if (a->fits) goto out;
        *a = own;
        *s = here;
    }
    status = find_help(s, err);
out:
    return status;
}

/* Does anything say the engine? */
static bool has_engine(const stw_point_base *base) {
    static const char key[] = "engine";
    if (base->import != NULL) return true;
    if (base->run != NULL && stw_node_get(base->run->root, key) != NULL) return true;
    for (size_t i = 0; i < base->n_settings; i++)
        if (strncmp(base->settings[i], key, strlen(key)) == 0 &&
            base->settings[i][strlen(key)] == '=')
            return true;
    return false;
}

/* The first engine that divides layers among ranks (pipeline stages). NULL: none, or it is the
 * run's. */
static const stw_engine_spec *engine_that_cuts(const stw_run_spec *run) {
    for (uint32_t i = 0; stw_engine_spec_at(i) != NULL; i++) {
        const stw_engine *engine = stw_engine_find(i);
        if (engine == NULL || engine->layouts == NULL) continue;
        if ((engine->layouts->searches >> STW_SEARCH_PP & 1) != 0)
            return i != run->engine ? stw_engine_spec_at(i) : NULL;
    }
    return NULL;
}

/* Settings that no point can have are an error, not a row. @param searches does the run ask for a
 * search of layouts? @param other where the run says no engine, one that cuts layers; else NULL */
static stw_status check_settings(const stw_point_base *base, bool *searches,
                                 const stw_engine_spec **other, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    stw_cluster cluster = *base->cluster;
    STW_TRY(stw_run_spec_init(&run, err));
    if (base->import != NULL) STW_TRY(stw_import_run(base->import, &run, err));
    if (base->run != NULL) STW_TRY(stw_run_spec_from_node(base->run, base->run->root, &run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, base->settings, base->n_settings, "--set", err));
    *searches = stw_run_spec_is_open(&run);
    *other = has_engine(base) ? NULL : engine_that_cuts(&run);
out:
    stw_run_spec_free(&run);
    return status;
}

static stw_status answer_kind(stw_size_search *s, stw_error *err) {
    stw_size_answer *a = s->answer;
    stw_status status = STW_STATUS_OK;
    double start_s = stw_now_s();
    const stw_engine_spec *other;
    s->node = a->cluster;
    s->n_counts = stw_size_of_nodes(s, STW_SIZE_MOST_NODES) + 1;
    STW_TRY(check_settings(s->base, &s->searches, &other, err));
    if (other != NULL) s->other_engine = stw_pool_printf(s->pool, "engine=%s", other->name);
    STW_TRY(find_smallest(s, err));
    if (a->fits && a->row.verdict != STW_SWEEP_UNKNOWN) {
        STW_TRY(stw_size_find_most(s, "batch.seq_len", s->seq_len, SEQ_STEP, MOST_SEQ_LEN,
                                   &a->longest_seq_len, err));
        STW_TRY(stw_size_find_most(s, "batch.micro_batch", s->micro_batch, 1, MOST_MICRO_BATCH,
                                   &a->largest_micro_batch, err));
        STW_TRY(stw_size_find_cheapest(s, err));
    }
    a->seconds = stw_now_s() - start_s;
out:
    return status;
}

/* ---- all ---- */

typedef struct sizing {
    const stw_point_base *const *bases;
    const stw_size_options *options;
    stw_size_answer *answers;
    uint32_t n, next;
    uint32_t *order;       /* [n] large models first: what takes longest does not begin last */
    pthread_mutex_t mutex; /* of what follows and of `next` and `pool` */
    uint32_t n_refused;    /* answers whose settings every cluster refuses */
    uint32_t first_refused;
    stw_status refusal; /* of the first of them */
    stw_error why;
    stw_pool *pool;
    stw_status status;
    stw_error err;
} sizing;

/* Copy the strings of an answer to the caller's pool. The mutex is held. */
static bool keep_strings(stw_pool *pool, stw_size_answer *a) {
    bool kept = true;
    const char **const strings[] = {&a->row.binds, &a->row.reason, &a->help, &a->safe_layout,
                                    &a->cheapest_row.binds};
    a->cheapest_row.reason = NULL;
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        bool given = *strings[i] != NULL;
        *strings[i] = stw_pool_string(pool, *strings[i]);
        kept &= !given || *strings[i] != NULL;
    }
    for (uint32_t i = 0; i < a->n_settings; i++) {
        a->settings[i] = stw_pool_string(pool, a->settings[i]);
        kept &= a->settings[i] != NULL;
    }
    for (uint32_t i = 0; i < a->n_cheapest_settings; i++) {
        a->cheapest_settings[i] = stw_pool_string(pool, a->cheapest_settings[i]);
        kept &= a->cheapest_settings[i] != NULL;
    }
    return kept;
}

static bool take_kind(sizing *all, uint32_t *out) {
    pthread_mutex_lock(&all->mutex);
    bool more = all->status == STW_STATUS_OK && all->next < all->n;
    if (more) *out = all->order[all->next++];
    pthread_mutex_unlock(&all->mutex);
    return more;
}

/* The mutex is held. */
static void note_refused(sizing *all, uint32_t i, const stw_size_search *s) {
    const bool first = all->n_refused++ == 0 || i < all->first_refused;
    if (!first) return;
    all->first_refused = i;
    all->refusal = s->refusal;
    all->why = s->why;
}

static void *work(void *user) {
    sizing *all = user;
    uint32_t i = 0;
    void *locale = stw_locale_enter();
    while (take_kind(all, &i)) {
        stw_error err = STW_ERROR_INIT;
        stw_pool *pool = stw_pool_new();
        stw_size_search s = {.base = all->bases[i],
                             .options = all->options,
                             .pool = pool,
                             .answer = &all->answers[i],
                             .free_tokens = "",
                             .best = "",
                             .refusal = STW_STATUS_OK,
                             .why = STW_ERROR_INIT};
        stw_status status = pool != NULL ? answer_kind(&s, &err) : STW_STATUS_NO_MEMORY;
        pthread_mutex_lock(&all->mutex);
        if (status == STW_STATUS_OK && !keep_strings(all->pool, s.answer))
            status = STW_STATUS_NO_MEMORY;
        if (s.refusal != STW_STATUS_OK) note_refused(all, i, &s);
        if (status == STW_STATUS_NO_MEMORY) status = stw_size_no_memory(&err);
        if (status != STW_STATUS_OK && all->status == STW_STATUS_OK) {
            all->status = status;
            all->err = err;
        }
        pthread_mutex_unlock(&all->mutex);
        stw_pool_free(pool);
    }
    stw_locale_leave(locale);
    return NULL;
}

static void put_in_order(sizing *all) {
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t at = i;
        for (; at > 0 &&
               all->answers[all->order[at - 1]].model->params < all->answers[i].model->params;
             at--)
            all->order[at] = all->order[at - 1];
        all->order[at] = i;
    }
}

stw_status stw_size_find(const stw_point_base *const *bases, const stw_size_options *options,
                         stw_pool *pool, stw_size_answer *answers, uint32_t n, stw_error *err) {
    sizing all = {.bases = bases,
                  .options = options,
                  .answers = answers,
                  .n = n,
                  .order = stw_pool_array(pool, n + 1, sizeof *all.order),
                  .mutex = PTHREAD_MUTEX_INITIALIZER,
                  .pool = pool,
                  .status = STW_STATUS_OK,
                  .refusal = STW_STATUS_OK,
                  .why = STW_ERROR_INIT,
                  .err = STW_ERROR_INIT};
    pthread_t threads[MOST_JOBS];
    bool searches;
    const stw_engine_spec *other;
    if (all.order == NULL) return stw_size_no_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        stw_status status = i > 0 && bases[i] == bases[i - 1]
                                ? STW_STATUS_OK
                                : check_settings(bases[i], &searches, &other, err);
        if (status != STW_STATUS_OK) return status;
    }
    put_in_order(&all);
    uint32_t jobs = options->jobs > 0 ? options->jobs : stw_planner_cores(), started = 0;
    jobs = jobs < MOST_JOBS ? jobs : MOST_JOBS;
    while (started + 1 < jobs && started + 1 < n &&
           pthread_create(&threads[started], NULL, work, &all) == 0)
        started++;
    (void)work(&all); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (all.status == STW_STATUS_OK && n > 0 && all.n_refused == n) {
        all.status = all.refusal;
        all.err = all.why;
    }
    if (all.status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = all.err;
    return all.status;
}
