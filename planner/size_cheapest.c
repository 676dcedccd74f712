/* SPDX-License-Identifier: Apache-2.0 */
/* The count and the layout with the fewest GPU-hours for the same tokens, up to stw_size_bound
 * GPUs. Powers of two are planned with plain layouts first; around the best of these the layouts of
 * the engine are searched, and what is found is planned on the other counts. Quick plans compare;
 * what is chosen is planned to the end. Bounds that end it: GPU-hours of what forward and backward
 * compute, which no count and no layout goes below; rows of a point, which say that it is slower
 * than what is known already. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/size_search.h"
#include "planner/sweep.h"

#define ACCUMULATION "batch.grad_accumulation="
#define MOST_OFFERS 160u
#define MOST_FOUND 3u   /* layouts of a search that are planned on other counts */
#define MOST_ROUNDS 2u  /* searches of an engine's layouts, where one serves many counts */
#define MOST_BETWEEN 6u /* counts between powers of two */
#define MOST_WHOLE 4u   /* plans to the end */

/* Of GPU-hours. SAME: fewer GPUs are taken instead; SLACK: rows may be above the simulated seconds
 * by that share; FLAT: between counts that differ by less nothing is looked for; LARGE: where the
 * best computes for a smaller part of its time, another engine is tried; FAR: of seconds, over
 * which the way to a better layout may lead. */
static const double FAR = 1.25, SAME = 0.01, SLACK = 0.02, FLAT = 0.02, LARGE = 1.3;

typedef struct offer {
    uint32_t at;
    const char *engine; /* a setting in front of the layout; "": the run's own */
    const char *layout; /* the whole, with the engine */
    stw_sweep_row row;
    stw_size_setup setup;
    bool whole; /* planned to the end */
} offer;

typedef struct hunt {
    stw_size_search *s;
    uint32_t from, to;     /* counts */
    double bound_hours;    /* that forward and backward compute; 0: not known */
    bool ends_at_bound;    /* it holds for all layouts: experts' products depend on ep */
    double tokens_per_gpu; /* of an iteration on the smallest */
    uint32_t n;
    offer list[MOST_OFFERS];
} hunt;

#define NO_OFFER UINT32_MAX

static uint32_t gpus_at(const stw_size_search *s, uint32_t at) {
    const uint32_t parts = s->node.gpus > 0 ? s->node.gpus : 1;
    return at < parts ? at + 1 : parts * (at - parts + 2);
}

static double hours_of(const offer *o) {
    return stw_sweep_row_fits(&o->row) ? stw_sweep_gpu_hours(&o->row) : (double)NAN;
}

/* What fits comes before what is at risk. */
static bool is_better(const offer *a, const offer *b) {
    if (a->row.verdict != b->row.verdict) return a->row.verdict == STW_SWEEP_FITS;
    return hours_of(a) < hours_of(b);
}

/* @param engine NULL: any @param at NO_OFFER: any */
static uint32_t best_of(const hunt *h, const char *engine, uint32_t at) {
    uint32_t best = NO_OFFER;
    for (uint32_t i = 0; i < h->n; i++) {
        const offer *o = &h->list[i];
        if (!isfinite(hours_of(o)) || (engine != NULL && o->engine != engine)) continue;
        if (at != NO_OFFER && o->at != at) continue;
        if (best == NO_OFFER || is_better(o, &h->list[best])) best = i;
    }
    return best;
}

/* The fewest hours, at risk or not: where layouts are worth a search. */
static uint32_t promising(const hunt *h, const char *engine) {
    uint32_t best = NO_OFFER;
    for (uint32_t i = 0; i < h->n; i++) {
        const offer *o = &h->list[i];
        if (!isfinite(hours_of(o)) || (engine != NULL && o->engine != engine)) continue;
        if (best == NO_OFFER || hours_of(o) < hours_of(&h->list[best])) best = i;
    }
    return best;
}

/* So close to what it computes that nothing is left to gain. */
static bool is_at_bound(const hunt *h) {
    const uint32_t best = best_of(h, NULL, NO_OFFER);
    return h->ends_at_bound && best != NO_OFFER && h->list[best].row.verdict == STW_SWEEP_FITS &&
           hours_of(&h->list[best]) <= (1 + SAME) * h->bound_hours;
}

/* Seconds of an iteration that would be cheaper than the best so far; 0: any. */
static double most_s_at(const hunt *h, uint32_t at) {
    const uint32_t best = best_of(h, NULL, NO_OFFER);
    if (best == NO_OFFER || h->list[best].row.verdict != STW_SWEEP_FITS) return 0;
    const double shares =
        h->s->free_tokens[0] != '\0' ? (double)gpus_at(h->s, h->from) / gpus_at(h->s, at) : 1;
    return hours_of(&h->list[best]) * 3600 / 1e9 * h->tokens_per_gpu * shares * (1 + SLACK);
}

/* ---- offers ---- */

static stw_status plan_offer(stw_size_search *s, offer *o, const stw_point_options *how,
                             stw_error *err) {
    stw_plan *found = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_size_go(s, o->at);
    o->row = (stw_sweep_row){.verdict = STW_SWEEP_NOT_PLANNED};
    stw_status status = stw_size_plan(s, o->layout, how, &found, &why);
    if (status == STW_STATUS_OK && found != NULL) {
        status = stw_sweep_fill_row(found, s->pool, &o->row, &why);
        stw_size_note_setup(found, &o->setup);
    }
    stw_plan_free(found);
    s->answer->late += status == STW_STATUS_TIME_LIMIT;
    if (stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT || status == STW_STATUS_SOLVER)
        return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    return status;
}

/* Plan an engine's layout on a count, quickly, if it was not. */
static stw_status look(hunt *h, uint32_t at, const char *engine, const char *layout,
                       stw_error *err) {
    const stw_point_options how = {
        .time_limit_s = h->s->options->time_limit_s, .quick = true, .most_s = most_s_at(h, at)};
    for (uint32_t i = 0; i < h->n; i++)
        if (h->list[i].at == at && strcmp(h->list[i].layout, layout) == 0) return STW_STATUS_OK;
    if (h->n == MOST_OFFERS) return STW_STATUS_OK;
    offer *o = &h->list[h->n++];
    *o = (offer){.at = at, .engine = engine, .layout = layout};
    return plan_offer(h->s, o, &how, err);
}

static uint32_t common(uint32_t a, uint32_t b) {
    while (b > 0) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A layout on another count: numbers of experts' ranks and of replicas that divide its GPUs. Where
 * the tokens of a step are fixed, micro batches follow from the ranks. */
static const char *words_at(const stw_size_search *s, const char *layout, uint32_t at) {
    static const char *const parts[] = {"parallel.ep=", "parallel.dp_replicate="};
    const char *out = "";
    const bool fixed = s->free_tokens[0] != '\0';
    for (const char *from = layout; *from != '\0' && out != NULL;) {
        const size_t length = strcspn(from, " ");
        const bool drop = fixed && strncmp(from, ACCUMULATION, strlen(ACCUMULATION)) == 0;
        const char *between = out[0] != '\0' ? " " : "";
        uint32_t ways = 0;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
            if (strncmp(from, parts[k], strlen(parts[k])) == 0) {
                ways = common((uint32_t)strtoul(from + strlen(parts[k]), NULL, 10), gpus_at(s, at));
                out = stw_pool_printf(s->pool, "%s%s%s%u", out, between, parts[k], ways);
            }
        if (ways == 0 && !drop)
            out = stw_pool_printf(s->pool, "%s%s%.*s", out, between, (int)length, from);
        from += length + strspn(from + length, " ");
    }
    if (out == NULL || !fixed) return out;
    return stw_pool_printf(s->pool, "%s%s" ACCUMULATION "auto", out, out[0] != '\0' ? " " : "");
}

/* Powers of two of GPUs of a node, then of nodes; the first and the last count are among them. */
static uint32_t next_of_grid(const hunt *h, uint32_t at) {
    const uint32_t gpus = gpus_at(h->s, at);
    uint32_t power = 1, next = at + 1;
    const uint32_t whole = h->s->node.gpus > 0 ? h->s->node.gpus : 1;
    while (gpus >= (power < whole ? power : power / whole * whole)) power *= 2;
    for (; next < h->to && gpus_at(h->s, next) < power; next++)
        if (gpus_at(h->s, next) == whole && gpus < whole) break;
    return next < h->to ? next : h->to;
}

static stw_status look_everywhere(hunt *h, const char *engine, const char *layout, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t at = h->from;; at = next_of_grid(h, at)) {
        const char *words = words_at(h->s, layout, at);
        if (words == NULL) return stw_size_no_memory(err);
        STW_TRY(look(h, at, engine, words, err));
        if (at == h->to || is_at_bound(h)) break;
    }
out:
    return status;
}

/* ---- layouts ---- */

/* All keys of a layout that nobody has given. Those near the best so far are planned. */
static stw_status search_layouts(hunt *h, uint32_t at, const char *engine, stw_error *err) {
    stw_size_search *s = h->s;
    stw_status status = STW_STATUS_OK;
    stw_point_base base = *s->base;
    stw_layout_search found;
    stw_error why = STW_ERROR_INIT;
    const stw_point_options how = {
        .time_limit_s = s->options->time_limit_s, .quick = true, .most_s = FAR * most_s_at(h, at)};
    const char *settings[STW_SIZE_MOST_SETTINGS];
    size_t n;
    stw_size_go(s, at);
    base.cluster = &s->cluster;
    s->answer->planned++;
    if (!stw_size_settings(s, engine, "parallel.search=all", settings, &n))
        return stw_size_no_memory(err);
    status = stw_point_layouts(&base, settings, n, &how, s->pool, &found, &why);
    s->answer->late += status == STW_STATUS_TIME_LIMIT || found.late > 0;
    if (stw_point_refuses(status) || status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK) return status;
    for (uint32_t i = 0; i < found.n_rows && i < MOST_FOUND; i++) {
        if (found.rows[i].verdict == STW_VERDICT_DOES_NOT_FIT) continue;
        const char *words =
            stw_pool_printf(s->pool, "%s%s%s", engine,
                            engine[0] != '\0' && found.rows[i].settings[0] != '\0' ? " " : "",
                            found.rows[i].settings);
        if (words == NULL) return stw_size_no_memory(err);
        STW_TRY(look(h, at, engine, words, err));
    }
out:
    return status;
}

/* Counts between powers of two beside the best one, where hours change with the count. */
static stw_status look_between(hunt *h, const char *engine, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t best = best_of(h, engine, NO_OFFER);
    if (best == NO_OFFER) return STW_STATUS_OK;
    const offer o = h->list[best];
    for (uint32_t a = h->from; a < h->to;) {
        const uint32_t b = next_of_grid(h, a), other = a == o.at ? b : a;
        const uint32_t there = best_of(h, engine, other), step = (b - a) / MOST_BETWEEN + 1;
        const bool flat =
            there != NO_OFFER && hours_of(&h->list[there]) <= (1 + FLAT) * hours_of(&o);
        for (uint32_t at = a + step; (a == o.at || b == o.at) && !flat && at < b; at += step) {
            const char *words = words_at(h->s, o.layout, at);
            if (words == NULL) return stw_size_no_memory(err);
            STW_TRY(look(h, at, engine, words, err));
        }
        a = b;
    }
out:
    return status;
}

/* The layouts of an engine on the count with the fewest hours, then on the best; on the last where
 * nothing was found. */
static stw_status hunt_layouts(hunt *h, const char *engine, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t searched[MOST_ROUNDS], n = 0;
    while (n < MOST_ROUNDS) {
        uint32_t best = n == 0 ? promising(h, engine) : best_of(h, engine, NO_OFFER);
        if (best == NO_OFFER && n == 0) best = promising(h, NULL);
        const uint32_t at = best != NO_OFFER ? h->list[best].at : h->to;
        bool again = false;
        for (uint32_t i = 0; i < n; i++) again = again || searched[i] == at;
        if (again || is_at_bound(h)) break;
        searched[n++] = at;
        STW_TRY(search_layouts(h, at, engine, err));
        best = best_of(h, engine, at);
        if (best != NO_OFFER) STW_TRY(look_everywhere(h, engine, h->list[best].layout, err));
    }
    /* how far experts are spread depends on the count */
    for (uint32_t at = h->from; engine[0] == '\0' && !h->ends_at_bound && at < h->to;) {
        at = next_of_grid(h, at);
        bool again = at + 1 < (h->s->node.gpus > 0 ? h->s->node.gpus : 1);
        for (uint32_t i = 0; i < n; i++) again = again || searched[i] == at;
        if (!again) STW_TRY(search_layouts(h, at, engine, err));
    }
    STW_TRY(look_between(h, engine, err));
out:
    return status;
}

/* ---- without risk ---- */

/* Plans an offer; where it fits without risk, it is the answer. */
static stw_status try_safe(stw_size_search *s, offer o, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_point_options how = {.time_limit_s = s->options->time_limit_s};
    STW_TRY(plan_offer(s, &o, &how, err));
    if (o.row.verdict == STW_SWEEP_FITS) {
        s->answer->safe = s->cluster;
        s->answer->safe_layout = o.layout;
    }
out:
    return status;
}

/* The first count that fits without risk, up to one that was seen to: with plain layouts, with that
 * of the smallest, or with the one that was seen. */
static stw_status find_safe(hunt *h, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_size_search *s = h->s;
    const offer *seen = NULL;
    for (uint32_t i = 0; i < h->n; i++)
        if (h->list[i].row.verdict == STW_SWEEP_FITS && (seen == NULL || h->list[i].at < seen->at))
            seen = &h->list[i];
    for (uint32_t at = h->from + 1; seen != NULL && at <= seen->at; at++)
        for (uint32_t i = 0; i < 2 && s->answer->safe.nodes == 0; i++) {
            const char *layout = words_at(s, i > 0 ? s->best : "", at);
            if (layout == NULL) return stw_size_no_memory(err);
            STW_TRY(try_safe(s, (offer){.at = at, .engine = "", .layout = layout}, err));
        }
    if (seen != NULL && s->answer->safe.nodes == 0)
        STW_TRY(try_safe(s, (offer){.at = seen->at, .engine = seen->engine, .layout = seen->layout},
                         err));
out:
    return status;
}

/* ---- the cheapest ---- */

/* Of what costs the same the fewest GPUs. */
static offer *choose(hunt *h) {
    const uint32_t best = best_of(h, NULL, NO_OFFER);
    offer *chosen = &h->list[best];
    for (uint32_t i = 0; i < h->n; i++) {
        offer *o = &h->list[i];
        if (o->row.verdict != h->list[best].row.verdict || o->at > chosen->at) continue;
        if (!(hours_of(o) <= (1 + SAME) * hours_of(&h->list[best]))) continue;
        if (o->at < chosen->at || hours_of(o) < hours_of(chosen)) chosen = o;
    }
    return chosen;
}

static stw_status settle(hunt *h, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_size_answer *a = h->s->answer;
    const stw_point_options how = {.time_limit_s = h->s->options->time_limit_s};
    offer *chosen = choose(h);
    for (uint32_t i = 0; i < MOST_WHOLE && !chosen->whole; i++) {
        STW_TRY(plan_offer(h->s, chosen, &how, err));
        chosen->whole = true;
        chosen = choose(h);
    }
    if (!chosen->whole) chosen = &h->list[0];
    stw_size_go(h->s, chosen->at);
    a->cheapest = h->s->cluster;
    a->cheapest_row = chosen->row;
    a->cheapest_setup = chosen->setup;
    size_t n;
    if (!stw_size_settings(h->s, chosen->layout, NULL, a->cheapest_settings, &n))
        return stw_size_no_memory(err);
    a->n_cheapest_settings = (uint32_t)n;
out:
    return status;
}

/* Lower the bound to what an offer would take if it only computed in forward and backward, in this
 * layout. */
static void lower_bound(hunt *h, const offer *o, const char *layout) {
    stw_size_search *s = h->s;
    stw_point_base base = *s->base;
    stw_error why = STW_ERROR_INIT;
    const char *settings[STW_SIZE_MOST_SETTINGS];
    double seconds = 0;
    size_t n;
    stw_size_go(s, o->at);
    base.cluster = &s->cluster;
    if (!stw_size_settings(s, layout, NULL, settings, &n) ||
        stw_point_compute_seconds(&base, settings, n, &seconds, &why) != STW_STATUS_OK)
        return;
    const double hours = stw_sweep_gpu_hours(&o->row) * seconds / o->row.iteration_s;
    if (!(h->bound_hours > 0 && h->bound_hours <= hours)) h->bound_hours = hours;
}

static bool has_experts(const stw_model *model) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.experts > 0) return true;
    return false;
}

stw_status stw_size_find_cheapest(stw_size_search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_size_answer *a = s->answer;
    hunt *h = stw_pool_array(s->pool, 1, sizeof *h);
    if (h == NULL) return stw_size_no_memory(err);
    const uint32_t most = stw_size_bound(a->cluster.nodes);
    h->s = s;
    h->from = s->at;
    h->to = stw_size_of_nodes(s, most);
    h->tokens_per_gpu = a->row.tokens_per_s * a->row.iteration_s / gpus_at(s, s->at);
    h->list[h->n++] = (offer){.at = s->at,
                              .engine = "",
                              .layout = s->best,
                              .row = a->row,
                              .setup = a->setup,
                              .whole = true};
    lower_bound(h, &h->list[0], "");
    h->ends_at_bound = !has_experts(a->model);
    STW_TRY(look_everywhere(h, "", "", err));
    if (s->best[0] != '\0') STW_TRY(look_everywhere(h, "", s->best, err));
    STW_TRY(hunt_layouts(h, "", err));
    const uint32_t best = best_of(h, NULL, NO_OFFER);
    lower_bound(h, &h->list[best], h->list[best].layout);
    a->bound_hours = h->bound_hours;
    if (s->other_engine != NULL && s->more == NULL &&
        hours_of(&h->list[best]) > LARGE * h->bound_hours)
        STW_TRY(hunt_layouts(h, s->other_engine, err));
    if (a->row.verdict == STW_SWEEP_AT_RISK) STW_TRY(find_safe(h, err));
    STW_TRY(settle(h, err));
out:
    return status;
}
