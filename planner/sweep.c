/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/sweep.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/locale.h"
#include "planner/clock.h"

#define MOST_JOBS 256u

/* ---- what varies ---- */

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "sweep", "out of memory");
}

static stw_status add_value(stw_sweep *sweep, stw_sweep_axis *axis, size_t *capacity,
                            const char *value, size_t length, stw_error *err) {
    const char **grown = stw_pool_grow(sweep->pool, axis->values, axis->n, (size_t)axis->n + 1,
                                       capacity, sizeof *grown);
    char *copy = stw_pool_printf(sweep->pool, "%.*s", (int)length, value);
    if (grown == NULL || copy == NULL) return no_memory(err);
    axis->values = grown;
    axis->values[axis->n++] = copy;
    return STW_STATUS_OK;
}

/* "16k": 16 and "k". */
static bool parse_bound(const char *text, size_t length, uint64_t *number, char unit[8]) {
    size_t digits = 0;
    *number = 0;
    while (digits < length && text[digits] >= '0' && text[digits] <= '9' && digits < 18)
        *number = *number * 10 + (uint64_t)(text[digits++] - '0');
    if (digits == 0 || length - digits >= 8) return false;
    memcpy(unit, text + digits, length - digits);
    unit[length - digits] = '\0';
    return strcspn(unit, "0123456789.,:+-") == strlen(unit);
}

typedef struct range {
    uint64_t first, last, step; /* step 0: doubled */
    char unit[8];
} range;

/* @return 1: a range; 0: none, a list of values; -1: begins as one and is none */
static int parse_range(const char *text, range *out) {
    const char *colon = strchr(text, ':'), *second = colon != NULL ? strchr(colon + 1, ':') : NULL;
    char unit[8];
    if (colon == NULL || !parse_bound(text, (size_t)(colon - text), &out->first, out->unit))
        return 0;
    size_t last = second != NULL ? (size_t)(second - colon - 1) : strlen(colon + 1);
    if (!parse_bound(colon + 1, last, &out->last, unit)) return -1;
    if (out->unit[0] != '\0' && strcmp(out->unit, unit) != 0) return -1;
    if (out->unit[0] == '\0' && unit[0] != '\0') return -1;
    out->step = 0;
    if (second != NULL) {
        if (second[1] != '+' || !parse_bound(second + 2, strlen(second + 2), &out->step, unit) ||
            (unit[0] != '\0' && strcmp(out->unit, unit) != 0) || out->step == 0)
            return -1;
    }
    return out->first > 0 && out->first <= out->last && out->last < (1ull << 60) ? 1 : -1;
}

static stw_status add_range(stw_sweep *sweep, stw_sweep_axis *axis, const range *r,
                            stw_error *err) {
    size_t capacity = 0;
    stw_status status = STW_STATUS_OK;
    for (uint64_t v = r->first; v <= r->last && status == STW_STATUS_OK;
         v = r->step > 0 ? v + r->step : v << 1) {
        char value[40];
        int n = snprintf(value, sizeof value, "%" PRIu64 "%s", v, r->unit);
        if (axis->n >= STW_SWEEP_MOST_POINTS)
            return stw_fail(err, STW_STATUS_USAGE, axis->key, "more than %d values",
                            STW_SWEEP_MOST_POINTS);
        status = add_value(sweep, axis, &capacity, value, (size_t)n, err);
    }
    return status;
}

/* Commas inside of brackets and quotes belong to a value. */
static stw_status add_list(stw_sweep *sweep, stw_sweep_axis *axis, const char *text,
                           stw_error *err) {
    size_t capacity = 0;
    stw_status status = STW_STATUS_OK;
    int depth = 0;
    const char *from = text;
    for (const char *p = text; status == STW_STATUS_OK; p++) {
        if (*p == '[' || *p == '{') depth++;
        if (*p == ']' || *p == '}') depth--;
        if (*p != '\0' && (*p != ',' || depth > 0)) continue;
        if (p == from)
            return stw_fail(err, STW_STATUS_USAGE, axis->key, "found an empty value in \"%s\"",
                            text);
        status = add_value(sweep, axis, &capacity, from, (size_t)(p - from), err);
        from = p + 1;
        if (*p == '\0') break;
    }
    return status;
}

static stw_status check_key(const stw_sweep *sweep, const char *key, const char *option,
                            stw_error *err) {
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        if (strcmp(sweep->axes[a].key, key) == 0)
            return stw_fail(err, STW_STATUS_USAGE, option, "%s is given twice", key);
    if (stw_run_spec_has_key(key) || stw_cluster_has_key(key)) return STW_STATUS_OK;
    const char *near[STW_SPEC_MOST_NEAR];
    char hint[512];
    size_t n = stw_spec_near_keys(key, near, STW_SPEC_MOST_NEAR);
    stw_spec_hint("", near, n, hint, sizeof hint);
    return stw_fail(err, STW_STATUS_USAGE, option, "unknown key \"%s\"%s", key, n > 0 ? hint : "");
}

stw_status stw_sweep_add_axis(stw_sweep *sweep, const char *text, const char *option,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *equals = strchr(text, '=');
    range r;
    if (equals == NULL || equals == text || equals[1] == '\0' || equals - text > 150)
        return stw_fail(err, STW_STATUS_USAGE, option,
                        "found \"%s\", expected KEY=FIRST:LAST, KEY=FIRST:LAST:+STEP or KEY=A,B,C",
                        text);
    if (sweep->n_axes == STW_SWEEP_MOST_AXES)
        return stw_fail(err, STW_STATUS_USAGE, option, "is given more than %d times",
                        STW_SWEEP_MOST_AXES);
    stw_sweep_axis *axis = &sweep->axes[sweep->n_axes];
    *axis =
        (stw_sweep_axis){stw_pool_printf(sweep->pool, "%.*s", (int)(equals - text), text), 0, NULL};
    if (axis->key == NULL) return no_memory(err);
    STW_TRY(check_key(sweep, axis->key, option, err));
    int is_range = parse_range(equals + 1, &r);
    if (is_range < 0)
        return stw_fail(err, STW_STATUS_USAGE, option,
                        "found \"%s\", expected FIRST:LAST or FIRST:LAST:+STEP with 0 < FIRST <= "
                        "LAST and the same unit in all",
                        text);
    if (is_range > 0)
        STW_TRY(add_range(sweep, axis, &r, err));
    else
        STW_TRY(add_list(sweep, axis, equals + 1, err));
    sweep->n_axes++;
out:
    return status;
}

/* ---- one row ---- */

static stw_sweep_verdict verdict_of(const stw_plan *plan) {
    static const stw_sweep_verdict of[STW_N_VERDICTS] = {[STW_VERDICT_FITS] = STW_SWEEP_FITS,
                                                         [STW_VERDICT_AT_RISK] = STW_SWEEP_AT_RISK,
                                                         [STW_VERDICT_DOES_NOT_FIT] =
                                                             STW_SWEEP_DOES_NOT_FIT,
                                                         [STW_VERDICT_UNKNOWN] = STW_SWEEP_UNKNOWN};
    return of[plan->verdict];
}

stw_status stw_sweep_fill_row(const stw_plan *plan, stw_pool *pool, stw_sweep_row *row,
                              stw_error *err) {
    stw_point_bound bound;
    stw_point_find_bound(plan, &bound);
    row->verdict = verdict_of(plan);
    row->gpus = plan->job->ranks;
    row->usd_per_gpu_hour = plan->cluster.usd_per_gpu_hour;
    row->gpu_peak_bytes = stw_point_peak(plan, STW_TIER_GPU);
    row->host_peak_bytes = stw_point_peak(plan, STW_TIER_HOST);
    row->iteration_s = stw_plan_iteration_s(plan);
    row->tokens_per_s =
        row->iteration_s > 0 ? stw_plan_iteration_tokens(plan) / row->iteration_s : (double)NAN;
    if (row->verdict == STW_SWEEP_DOES_NOT_FIT) row->iteration_s = row->tokens_per_s = NAN;
    if (bound.resource == NULL) return STW_STATUS_OK;
    row->binds = stw_pool_printf(pool, "%s in %s", bound.resource, stw_phase_name(bound.phase));
    return row->binds != NULL ? STW_STATUS_OK : no_memory(err);
}

/* A failure that is an answer. */
static stw_status note_failure(stw_status status, const stw_error *why, stw_pool *pool,
                               stw_sweep_row *row, stw_error *err) {
    char text[1200];
    const bool late = status == STW_STATUS_TIME_LIMIT;
    if (!late && !stw_point_refuses(status) && status != STW_STATUS_SOLVER) {
        if (err != NULL) *err = *why;
        return status;
    }
    stw_failure_format(status, why, text, sizeof text);
    row->verdict = late                          ? STW_SWEEP_TIME_LIMIT
                   : status == STW_STATUS_SOLVER ? STW_SWEEP_FAILED
                                                 : STW_SWEEP_REFUSED;
    row->reason = stw_pool_string(pool, text);
    return row->reason != NULL ? STW_STATUS_OK : no_memory(err);
}

/* ---- all rows ---- */

typedef struct running {
    stw_sweep *sweep;
    const stw_point_base *base;
    const stw_sweep_options *options;
    pthread_mutex_t mutex; /* of what follows, and of the sweep */
    uint32_t next;
    double saved_s;
    stw_status status; /* the first failure */
    stw_error err;
} running;

static stw_status plan_row(const running *r, uint32_t i, stw_pool *pool, stw_sweep_row *row,
                           stw_error *err) {
    const stw_sweep *sweep = r->sweep;
    const char *settings[STW_SWEEP_MOST_AXES];
    const stw_point_options options = {.time_limit_s = sweep->arguments.time_limit_s};
    stw_error why = STW_ERROR_INIT;
    stw_plan *plan = NULL;
    double start_s = stw_now_s();
    for (uint32_t a = 0; a < sweep->n_axes; a++) {
        settings[a] =
            stw_pool_printf(pool, "%s=%s", sweep->axes[a].key, stw_sweep_value(sweep, i, a));
        if (settings[a] == NULL) return no_memory(err);
    }
    stw_status status = stw_point_plan(r->base, settings, sweep->n_axes, &options, &plan, &why);
    row->iteration_s = row->tokens_per_s = NAN;
    if (status == STW_STATUS_OK)
        status = stw_sweep_fill_row(plan, pool, row, err);
    else
        status = note_failure(status, &why, pool, row, err);
    row->planning_s = stw_now_s() - start_s;
    stw_plan_free(plan);
    return status;
}

/* The mutex is held. */
static stw_status keep_row(running *r, uint32_t i, const stw_sweep_row *row, stw_error *err) {
    stw_sweep_row *kept = &r->sweep->rows[i];
    *kept = *row;
    kept->binds = stw_pool_string(r->sweep->pool, row->binds);
    kept->reason = stw_pool_string(r->sweep->pool, row->reason);
    if ((row->binds != NULL && kept->binds == NULL) ||
        (row->reason != NULL && kept->reason == NULL)) {
        kept->verdict = STW_SWEEP_NOT_PLANNED;
        return no_memory(err);
    }
    if (r->options->save == NULL || stw_now_s() < r->saved_s + r->options->save_every_s)
        return STW_STATUS_OK;
    stw_status status = r->options->save(r->sweep, r->options->user, err);
    r->saved_s = stw_now_s();
    return status;
}

static bool take_row(running *r, uint32_t *out) {
    pthread_mutex_lock(&r->mutex);
    while (r->next < r->sweep->n_points && r->sweep->rows[r->next].verdict != STW_SWEEP_NOT_PLANNED)
        r->next++;
    bool more = r->status == STW_STATUS_OK && r->next < r->sweep->n_points;
    *out = r->next;
    if (more) r->next++;
    pthread_mutex_unlock(&r->mutex);
    return more;
}

static void *work(void *user) {
    running *r = user;
    uint32_t i;
    void *locale = stw_locale_enter();
    while (take_row(r, &i)) {
        stw_error err = STW_ERROR_INIT;
        stw_sweep_row row = {0};
        stw_pool *pool = stw_pool_new();
        stw_status status = pool != NULL ? plan_row(r, i, pool, &row, &err) : no_memory(&err);
        pthread_mutex_lock(&r->mutex);
        if (status == STW_STATUS_OK) status = keep_row(r, i, &row, &err);
        if (status != STW_STATUS_OK && r->status == STW_STATUS_OK) {
            r->status = status;
            r->err = err;
        }
        pthread_mutex_unlock(&r->mutex);
        stw_pool_free(pool);
        if (r->options->count != NULL) r->options->count(1);
    }
    stw_locale_leave(locale);
    return NULL;
}

stw_status stw_sweep_run(stw_sweep *sweep, const stw_point_base *base,
                         const stw_sweep_options *options, stw_error *err) {
    running r = {.sweep = sweep,
                 .base = base,
                 .options = options,
                 .mutex = PTHREAD_MUTEX_INITIALIZER,
                 .saved_s = stw_now_s(),
                 .status = STW_STATUS_OK,
                 .err = STW_ERROR_INIT};
    pthread_t threads[MOST_JOBS];
    uint32_t jobs = options->jobs > 0 ? options->jobs : stw_planner_cores(), started = 0;
    if (jobs > MOST_JOBS) jobs = MOST_JOBS;
    if (jobs > sweep->n_points) jobs = sweep->n_points;
    while (started + 1 < jobs && pthread_create(&threads[started], NULL, work, &r) == 0) started++;
    (void)work(&r); /* this thread works too */
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    stw_sweep_mark_front(sweep);
    if (r.status != STW_STATUS_OK && err != NULL && err->status == STW_STATUS_OK) *err = r.err;
    return r.status;
}
