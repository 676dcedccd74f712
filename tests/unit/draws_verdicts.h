/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts of a random run (draws.h): the commands agree, and no verdict gets worse with more
 * memory, more nodes or more time. */
#ifndef STW_TESTS_UNIT_DRAWS_VERDICTS_H
#define STW_TESTS_UNIT_DRAWS_VERDICTS_H

#include <math.h>

#include "plan/files/verdict.h"
#include "planner/planner.h"
#include "planner/point.h"
#include "sim/sim.h"
#include "tests/unit/draws.h"

/* In this order an answer gets better; without one, or where it is refused, nothing is compared. */
typedef enum draws_answer { DRAWS_UNKNOWN, DRAWS_REFUSED, DRAWS_UNFIT, DRAWS_FITS } draws_answer;

static inline const char *draws_answer_name(draws_answer answer) {
    static const char *const names[] = {"no answer in time", "refused", "does not fit", "fits"};
    return names[answer];
}

static inline stw_status draws_finish(stw_plan *plan, stw_error *err) {
    stw_status status = stw_sim_plan(plan, NULL, err);
    return status == STW_STATUS_OK ? stw_plan_check(plan, true, err) : status;
}

/* One question: a run on a cluster, with a further setting (NULL: none). */
typedef struct draws_question {
    const stw_model *model;
    const draws_run *run;
    stw_cluster cluster;
    const char *more;
    double time_limit_s;
    uint32_t nodes;
    bool alone; /* there is one rank */
} draws_question;

static inline stw_point_base draws_base(const draws_question *q) {
    return (stw_point_base){.model = q->model,
                            .cluster = &q->cluster,
                            .simulate = stw_sim_seconds,
                            .finish = draws_finish};
}

static inline size_t draws_settings(const draws_question *q, const char **out) {
    size_t n = 0;
    for (; n < q->run->n; n++) out[n] = q->run->text[n];
    if (q->more != NULL) out[n++] = q->more;
    return n;
}

/* What a status says, where it is not OK. @return false: it is a failure */
static inline bool draws_answer_of(stw_status status, draws_answer *out) {
    *out = status == STW_STATUS_TIME_LIMIT || status == STW_STATUS_SOLVER ? DRAWS_UNKNOWN
                                                                          : DRAWS_REFUSED;
    return *out == DRAWS_UNKNOWN || stw_point_refuses(status);
}

/** What a row of `sweep` says, or `plan` with all that it compares. @param peaks out, of GPU and
 * host; NULL: not asked */
static inline stw_status draws_plan_answer(const draws_question *q, draws_answer *out,
                                           uint64_t *peaks, stw_error *err) {
    const stw_point_base base = draws_base(q);
    const stw_point_options options = {.time_limit_s = q->time_limit_s};
    const char *settings[DRAWS_MOST_SETTINGS + 1];
    const size_t n = draws_settings(q, settings);
    stw_plan *plan = NULL;
    stw_status status = stw_point_plan(&base, settings, n, &options, &plan, err);
    if (status != STW_STATUS_OK) return draws_answer_of(status, out) ? STW_STATUS_OK : status;
    *out = plan->verdict == STW_VERDICT_DOES_NOT_FIT ? DRAWS_UNFIT : DRAWS_FITS;
    if (peaks != NULL) {
        peaks[0] = stw_point_peak(plan, STW_TIER_GPU);
        peaks[1] = stw_point_peak(plan, STW_TIER_HOST);
    }
    stw_plan_free(plan);
    return STW_STATUS_OK;
}

/** The same of `plan`, with prices, alternatives and reasons. */
static inline stw_status draws_command_answer(draws_zoo *zoo, const draws_question *q,
                                              draws_answer *out, uint64_t *peaks, stw_error *err) {
    const stw_planner_options options = {
        .time_limit_s = q->time_limit_s, .no_fixes = true, .simulate = stw_sim_seconds};
    stw_plan *plan = NULL;
    stw_status status = draws_plan(zoo, q->run, &plan, err);
    if (status == STW_STATUS_OK) {
        plan->walk_alone = false;
        status = stw_planner_solve(plan, &options, err);
    }
    if (status == STW_STATUS_OK) status = draws_finish(plan, err);
    if (status == STW_STATUS_OK) {
        *out = plan->verdict == STW_VERDICT_DOES_NOT_FIT ? DRAWS_UNFIT : DRAWS_FITS;
        peaks[0] = stw_point_peak(plan, STW_TIER_GPU);
        peaks[1] = stw_point_peak(plan, STW_TIER_HOST);
    }
    stw_plan_free(plan);
    return status == STW_STATUS_OK || draws_answer_of(status, out) ? STW_STATUS_OK : status;
}

/** What `size` asks of a cluster. */
static inline stw_status draws_fit_answer(const draws_question *q, draws_answer *out,
                                          stw_error *err) {
    const stw_point_base base = draws_base(q);
    const stw_point_fit_options options = {.time_limit_s = q->time_limit_s};
    const char *settings[DRAWS_MOST_SETTINGS + 1];
    const size_t n = draws_settings(q, settings);
    stw_point_fit fit = {false, ""};
    stw_pool *pool = stw_pool_new();
    stw_status status = stw_point_fits(&base, settings, n, &options, pool, &fit, err);
    stw_pool_free(pool);
    *out = fit.fits ? DRAWS_FITS : DRAWS_UNFIT;
    if (status == STW_STATUS_OK) return status;
    return draws_answer_of(status, out) ? STW_STATUS_OK : status;
}

/** A plan with a search of layouts. @param said out, what the search says of the layout that it
 * chose: it fits @param layout out, its settings */
static inline stw_status draws_search_answer(const draws_question *q, draws_answer *out, bool *said,
                                             char *layout, size_t layout_size, uint64_t *peaks,
                                             stw_error *err) {
    const stw_point_base base = draws_base(q);
    const stw_point_options options = {.time_limit_s = q->time_limit_s};
    const char *settings[DRAWS_MOST_SETTINGS + 1];
    const size_t n = draws_settings(q, settings);
    stw_plan *plan = NULL;
    stw_status status = stw_point_plan(&base, settings, n, &options, &plan, err);
    if (status != STW_STATUS_OK) return draws_answer_of(status, out) ? STW_STATUS_OK : status;
    const stw_layout_search *found = &plan->layout_search;
    *out = plan->verdict == STW_VERDICT_DOES_NOT_FIT ? DRAWS_UNFIT : DRAWS_FITS;
    if (found->n_rows == 0 || found->late > 0) *out = DRAWS_UNKNOWN;
    *said = found->n_rows > 0 && found->rows[0].verdict != STW_VERDICT_DOES_NOT_FIT;
    snprintf(layout, layout_size, "%s", found->n_rows > 0 ? found->rows[0].settings : "");
    peaks[0] = stw_point_peak(plan, STW_TIER_GPU);
    peaks[1] = stw_point_peak(plan, STW_TIER_HOST);
    stw_plan_free(plan);
    return STW_STATUS_OK;
}

/** The plan with further settings, words with spaces between. */
static inline stw_status draws_layout_answer(const draws_question *q, const char *layout,
                                             draws_answer *out, uint64_t *peaks, stw_error *err) {
    draws_run run = *q->run;
    draws_question fixed = *q;
    fixed.run = &run;
    for (const char *at = layout; *at != '\0' && run.n < DRAWS_MOST_SETTINGS;) {
        const size_t length = strcspn(at, " ");
        char setting[DRAWS_SETTING_BYTES];
        snprintf(setting, sizeof setting, "%.*s", (int)length, at);
        draws_set(&run, setting);
        at += length + strspn(at + length, " ");
    }
    return draws_plan_answer(&fixed, out, peaks, err);
}

/** What `size` asks of a cluster with any layout. @param layout out, with which it fits */
static inline stw_status draws_size_answer(const draws_question *q, draws_answer *out, char *layout,
                                           size_t layout_size, stw_error *err) {
    const stw_point_base base = draws_base(q);
    const stw_point_fit_options options = {.time_limit_s = q->time_limit_s, .any_layout = true};
    const char *settings[DRAWS_MOST_SETTINGS + 1];
    const size_t n = draws_settings(q, settings);
    stw_point_fit fit = {false, ""};
    stw_pool *pool = stw_pool_new();
    stw_status status = stw_point_fits(&base, settings, n, &options, pool, &fit, err);
    snprintf(layout, layout_size, "%s", fit.fits ? fit.layout : "");
    stw_pool_free(pool);
    *out = fit.fits ? DRAWS_FITS : DRAWS_UNFIT;
    if (status == STW_STATUS_OK) return status;
    return draws_answer_of(status, out) ? STW_STATUS_OK : status;
}

/* More of something. */
typedef enum draws_more {
    DRAWS_GPU_MEMORY,
    DRAWS_HOST_MEMORY,
    DRAWS_NODES,
    DRAWS_TIME,
    DRAWS_N_MORE
} draws_more;

static inline const char *draws_more_name(draws_more more) {
    static const char *const names[] = {"GPU memory", "host memory", "nodes", "time"};
    return names[more];
}

static inline void draws_grow(uint64_t *bytes, double factor) {
    if (*bytes < UINT64_MAX / 4) *bytes = (uint64_t)((double)*bytes * factor);
}

/** The question with more of something. @param text room for a setting */
static inline draws_question draws_enlarge(const draws_question *q, draws_more more, double factor,
                                           char text[48]) {
    draws_question larger = *q;
    switch (more) {
    case DRAWS_GPU_MEMORY:
        draws_grow(&larger.cluster.gpu.memory_bytes, factor);
        break;
    case DRAWS_HOST_MEMORY:
        draws_grow(&larger.cluster.host.memory_bytes, factor);
        draws_grow(&larger.cluster.host.limit_bytes, factor);
        draws_grow(&larger.cluster.host.page_lock_limit_bytes, factor);
        break;
    case DRAWS_NODES:
        snprintf(text, 48, "nodes=%u", q->nodes * 2);
        larger.more = text;
        break;
    default:
        larger.time_limit_s *= 100;
        break;
    }
    return larger;
}

/** Does more of it never need more memory? A rank that is alone has no communicator, and its shards
 * are whole. */
static inline bool draws_only_helps(const draws_question *q, draws_more more) {
    return more != DRAWS_NODES || !q->alone;
}

/** Is one answer worse than the other, although there was more? */
static inline bool draws_worse(draws_answer less, draws_answer more) {
    return less == DRAWS_FITS && more == DRAWS_UNFIT;
}

#endif
