/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks that fit: those that the search for layouts lists (layouts_list.h), in tensor,
 * pipeline and expert parallelism. Of each combination of these the widest cuts are tried first;
 * what fits is brought back to the narrowest one that does. Where nothing fits on the nodes that
 * there are, the fewest doublings of them are looked for with which the widest cuts of all do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"
#include "planner/layouts_list.h"

/* Of one combination so many are tried before it counts as not enough. */
#define TRIES 3
#define MOST_DOUBLINGS 10

/* Nodes that take less than this share off what is over are no help. */
static const double HELPS = 0.05;

enum { TP, PP, EP, N_WAYS };
static const stw_search KEYS[N_WAYS] = {STW_SEARCH_TP, STW_SEARCH_PP, STW_SEARCH_EP};
#define ALL_WAYS ((1u << N_WAYS) - 1)

/* The layouts on some nodes, the narrowest cuts first, with settings of the engine's own. */
typedef struct layouts {
    stw_fix_search *search;
    stw_pool *pool;
    uint64_t nodes;
    stw_mix mix; /* of words */
    stw_cluster cluster;
    stw_run_spec run;
    stw_layout_list list; /* n 0: there are none */
} layouts;

/* A narrowest layout of a combination, or any layout at all. */
typedef struct fitting {
    uint32_t index;
    stw_tried tried;
} fitting;

/* ---- the list ---- */

static uint64_t cut_of(const stw_listed_layout *l) {
    return l->value[STW_SEARCH_TP] * l->value[STW_SEARCH_PP] * l->value[STW_SEARCH_EP];
}

/* Of equal cuts that with the fewest stages is the wider one. */
static int by_cut(const void *a, const void *b) {
    const stw_listed_layout *x = a, *y = b;
    if (cut_of(x) != cut_of(y)) return cut_of(x) < cut_of(y) ? -1 : 1;
    const uint64_t p = x->value[STW_SEARCH_PP], q = y->value[STW_SEARCH_PP];
    if (p != q) return p > q ? -1 : 1;
    const uint64_t s = x->value[STW_SEARCH_TP], t = y->value[STW_SEARCH_TP];
    return s < t ? -1 : s > t;
}

static bool has_key(const stw_fix_search *s, stw_search key) {
    return (s->plan->job->engine->layouts->searches >> key & 1) != 0;
}

/* List the layouts on `nodes`, with the tokens of a step that the plan has. */
static stw_status list_on(layouts *l, uint64_t nodes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = l->search->plan;
    stw_layout_case c = {.model = plan->model,
                         .cluster = &l->cluster,
                         .run = &l->run,
                         .ranks_per_node = plan->job->ranks_per_node,
                         .slow_too = true};
    l->nodes = nodes;
    l->cluster = plan->cluster;
    l->cluster.nodes = (uint32_t)nodes;
    l->run = plan->run;
    l->run.searches.keys = 0;
    if (l->run.batch.tokens_per_step == 0)
        l->run.batch.tokens_per_step = stw_job_step_tokens(plan->job);
    c.world = (uint32_t)stw_fix_ranks(&l->run, &l->cluster, (uint32_t)nodes);
    for (int w = 0; w < N_WAYS; w++)
        if (has_key(l->search, KEYS[w])) c.searched |= 1u << KEYS[w];
    if (!l->run.parallel.sequence_parallel && has_key(l->search, STW_SEARCH_SEQUENCE))
        c.searched |= 1u << STW_SEARCH_SEQUENCE;
    status = c.world > 0 ? stw_layouts_list(&c, plan->job->engine->layouts, l->pool, &l->list, NULL)
                         : STW_STATUS_BAD_INPUT;
    if (status == STW_STATUS_NO_MEMORY)
        return stw_fail(err, status, "planner", "no memory for layouts");
    if (status != STW_STATUS_OK) l->list.n = 0; /* none divides the ranks or the tokens */
    if (l->list.n > 0) qsort(l->list.list, l->list.n, sizeof *l->list.list, by_cut);
    return STW_STATUS_OK;
}

/* Which ways a layout turns; bit N_WAYS: some below the run's, or without what goes with them. */
static unsigned ways_of(const layouts *l, uint32_t i) {
    const uint64_t *value = l->list.list[i].value, *own = l->list.own;
    unsigned ways = 0;
    for (int w = 0; w < N_WAYS; w++) {
        if (value[KEYS[w]] != own[KEYS[w]]) ways |= 1u << w;
        if (value[KEYS[w]] % own[KEYS[w]] != 0) ways |= 1u << N_WAYS;
    }
    const bool sequence = value[STW_SEARCH_SEQUENCE] != 0, was = own[STW_SEARCH_SEQUENCE] != 0;
    const bool wanted = was || (value[STW_SEARCH_TP] > 1 && (ways & 1u << TP) != 0 &&
                                has_key(l->search, STW_SEARCH_SEQUENCE));
    return sequence == wanted ? ways : ways | 1u << N_WAYS;
}

/* ---- trials ---- */

/* @param out room for STW_MAX_MIX_CHANGES */
static uint32_t changes_of(const layouts *l, uint32_t i, stw_change *out) {
    const char *at = stw_layout_words(&l->list, i, l->pool);
    uint32_t n = 0;
    while (at != NULL && *at != '\0' && n < STW_MAX_FIX_CHANGES) {
        const char *equals = strchr(at, '='), *end = equals + strcspn(equals, " ");
        snprintf(out[n].key, sizeof out->key, "%.*s", (int)(equals - at), at);
        snprintf(out[n].value, sizeof out->value, "%.*s", (int)(end - equals - 1), equals + 1);
        if (strcmp(out[n].key, "batch.grad_accumulation") != 0) n++; /* a trial sets it */
        at = *end == ' ' ? end + 1 : end;
    }
    n += stw_mix_changes(l->search->plan, &l->mix, &out[n]);
    if (l->nodes != l->search->plan->cluster.nodes) {
        snprintf(out[n].key, sizeof out->key, "nodes");
        snprintf(out[n++].value, sizeof out->value, "%llu", (unsigned long long)l->nodes);
    }
    return n;
}

static stw_status try_layout(const layouts *l, uint32_t i, stw_tried *out, stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES + STW_MAX_FIX_CHANGES];
    const uint32_t n = changes_of(l, i, changes);
    return stw_fix_try(l->search->trials, changes, n, out, err);
}

static stw_status note(const layouts *l, uint32_t i, stw_trial trial, stw_error *err) {
    static const char *const whys[N_WAYS] = {"cuts every layer over GPUs",
                                             "gives each stage a part of the layers",
                                             "cuts the experts over GPUs"};
    stw_change changes[STW_MAX_MIX_CHANGES + STW_MAX_FIX_CHANGES];
    const stw_plan *plan = l->search->plan;
    const bool more = l->nodes != plan->cluster.nodes;
    const unsigned ways = ways_of(l, i);
    char why[320] = "";
    double cut = 1;
    for (int w = 0; w < N_WAYS; w++) {
        const size_t used = strlen(why);
        if ((ways & 1u << w) == 0) continue;
        cut *= (double)l->list.list[i].value[KEYS[w]] / (double)l->list.own[KEYS[w]];
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", whys[w]);
    }
    for (uint32_t k = 0; k < l->mix.n; k++) {
        const size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", l->mix.knobs[k]->why);
    }
    if (why[0] == '\0') snprintf(why, sizeof why, "shards the state over more GPUs");
    const stw_found found = {.reach = more ? STW_REACH_MACHINES : STW_REACH_SETTING,
                             .amount = log2(cut) + stw_mix_amount(&l->mix)};
    const uint32_t n = changes_of(l, i, changes);
    return stw_fix_note(&l->search->found, changes, n, why, trial, &found, err);
}

/* Layouts that turn just these ways, all ways where `ways` is 0, the narrowest first.
 * @param out [list.n] indices @return how many */
static uint32_t select_ways(const layouts *l, unsigned ways, uint32_t *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->list.n; i++) {
        const unsigned turned = ways_of(l, i);
        if (turned > ALL_WAYS || (ways != 0 && turned != ways)) continue;
        out[n++] = i;
    }
    return n;
}

/* The widest of a combination that fits, of TRIES that the specs admit. @param out its place in
 * `chosen`; the least over where none fits */
static stw_status try_widest(const layouts *l, const uint32_t *chosen, uint32_t n, fitting *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t tries = 0;
    *out = (fitting){0, {STW_TRIAL_REFUSED, INFINITY}};
    for (uint32_t i = n; i-- > 0 && tries < TRIES && out->tried.is < STW_TRIAL_FITS;) {
        stw_tried here;
        STW_TRY(try_layout(l, chosen[i], &here, err));
        tries += here.is != STW_TRIAL_REFUSED;
        if (here.is > out->tried.is ||
            (here.is == out->tried.is && here.over_share < out->tried.over_share))
            *out = (fitting){i, here};
    }
out:
    return status;
}

/* Bring a layout that fits back to a narrower one, by halves: what is refused counts as too narrow.
 */
static stw_status bring_back(const layouts *l, const uint32_t *chosen, fitting *at,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t low = 0;
    while (low < at->index) {
        const uint32_t mid = low + (at->index - low) / 2;
        stw_tried here;
        STW_TRY(try_layout(l, chosen[mid], &here, err));
        if (here.is >= at->tried.is)
            *at = (fitting){mid, here};
        else
            low = mid + 1;
    }
out:
    return status;
}

/* Single ways, pairs, and all three; none whose part was enough. Risky ones are noted, too: their
 * plan may have none. */
static stw_status try_all(const layouts *l, stw_error *err) {
    static const unsigned order[] = {
        1u << TP, 1u << PP, 1u << EP, 1u << TP | 1u << PP, 1u << TP | 1u << EP, 1u << PP | 1u << EP,
        ALL_WAYS};
    stw_status status = STW_STATUS_OK;
    uint32_t *chosen = stw_pool_array(l->pool, l->list.n + 1, sizeof *chosen);
    unsigned found[sizeof order / sizeof order[0]], n_found = 0;
    if (chosen == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "out of memory");
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        fitting at;
        bool covered = false;
        for (unsigned f = 0; f < n_found; f++)
            covered = covered || (found[f] & order[i]) == found[f];
        const uint32_t n = covered ? 0 : select_ways(l, order[i], chosen);
        STW_TRY(try_widest(l, chosen, n, &at, err));
        if (at.tried.is < STW_TRIAL_AT_RISK) continue;
        STW_TRY(bring_back(l, chosen, &at, err));
        STW_TRY(note(l, chosen[at.index], at.tried.is, err));
        if (at.tried.is == STW_TRIAL_FITS) found[n_found++] = order[i];
    }
out:
    return status;
}

/* ---- more nodes ---- */

/* The fewest doublings with which any of the widest layouts fits, and is at risk.
 * @param out [STW_TRIAL_FITS + 1] by what they say; NONE: there are none */
#define NONE UINT32_MAX
static stw_status double_nodes(layouts *l, uint32_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double before = INFINITY;
    out[STW_TRIAL_FITS] = out[STW_TRIAL_AT_RISK] = NONE;
    for (uint32_t d = 0; d <= MOST_DOUBLINGS && out[STW_TRIAL_FITS] == NONE; d++) {
        fitting at;
        if (out[STW_TRIAL_AT_RISK] != NONE && d > out[STW_TRIAL_AT_RISK] + 2) break;
        STW_TRY(list_on(l, (uint64_t)l->search->plan->cluster.nodes << d, err));
        uint32_t *chosen = stw_pool_array(l->pool, l->list.n + 1, sizeof *chosen);
        if (chosen == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "out of memory"));
        STW_TRY(try_widest(l, chosen, select_ways(l, 0, chosen), &at, err));
        if (at.tried.is >= STW_TRIAL_AT_RISK) {
            if (out[at.tried.is] == NONE) out[at.tried.is] = d;
        } else if (at.tried.is == STW_TRIAL_UNFIT) {
            if (at.tried.over_share > before * (1 - HELPS)) break;
            before = at.tried.over_share;
        }
    }
out:
    return status;
}

/* Words of the engine that go together; each that is not needed goes again. */
static stw_status add_words(layouts *l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_knobs *knobs = &l->search->knobs;
    for (uint32_t k = 0; k < knobs->n; k++) {
        const stw_knob *knob = &knobs->list[k];
        stw_change changes[STW_MAX_MIX_CHANGES];
        bool admitted = false;
        if (knob->kind != STW_KNOB_WORD || knob->reach != STW_REACH_SETTING) continue;
        l->mix.knobs[l->mix.n] = &knobs->list[k];
        l->mix.steps[l->mix.n++] = 1;
        const uint32_t n = stw_mix_changes(l->search->plan, &l->mix, changes);
        STW_TRY(stw_fix_admits(l->search->plan, changes, n, &admitted, err));
        if (!admitted) l->mix.n--;
    }
out:
    return status;
}

static stw_status drop_words(layouts *l, stw_trial want, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t *chosen = stw_pool_array(l->pool, l->list.n + 1, sizeof *chosen);
    if (chosen == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "out of memory");
    const uint32_t n = select_ways(l, 0, chosen);
    for (uint32_t k = l->mix.n; k-- > 0;) {
        const stw_mix before = l->mix;
        fitting at;
        l->mix.n--;
        for (uint32_t i = k; i < l->mix.n; i++) l->mix.knobs[i] = before.knobs[i + 1];
        STW_TRY(try_widest(l, chosen, n, &at, err));
        if (at.tried.is < want) l->mix = before;
    }
out:
    return status;
}

/* What the engine's words bring: fewer nodes than without them. @param plain without them */
static stw_status try_with_words(layouts *l, const uint32_t *plain, stw_trial want,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t with[STW_TRIAL_FITS + 1];
    STW_TRY(add_words(l, err));
    if (l->mix.n == 0) return status;
    STW_TRY(double_nodes(l, with, err));
    if (with[want] >= plain[want]) return status;
    STW_TRY(list_on(l, (uint64_t)l->search->plan->cluster.nodes << with[want], err));
    STW_TRY(drop_words(l, want, err));
    STW_TRY(try_all(l, err));
out:
    return status;
}

static stw_status search_layouts(layouts *l, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t plain[STW_TRIAL_FITS + 1];
    STW_TRY(double_nodes(l, plain, err));
    for (stw_trial is = STW_TRIAL_FITS; is >= STW_TRIAL_AT_RISK; is--) {
        if (plain[is] == NONE) continue;
        STW_TRY(list_on(l, (uint64_t)l->search->plan->cluster.nodes << plain[is], err));
        STW_TRY(try_all(l, err));
    }
    if (plain[STW_TRIAL_FITS] != 0) STW_TRY(try_with_words(l, plain, STW_TRIAL_FITS, err));
    if (l->search->found.n == 0) STW_TRY(try_with_words(l, plain, STW_TRIAL_AT_RISK, err));
out:
    return status;
}

stw_status stw_fix_layouts(stw_fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = search->plan;
    const stw_layout_rules *rules = plan->job->engine->layouts;
    search->layouts = rules != NULL && plan->model->facts_known && has_key(search, STW_SEARCH_TP) &&
                      has_key(search, STW_SEARCH_PP);
    if (!search->layouts) return status;
    layouts *l = stw_pool_array(plan->pool, 1, sizeof *l);
    stw_pool *pool = stw_pool_new();
    if (l == NULL || pool == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes"));
    l->search = search;
    l->pool = pool;
    STW_TRY(search_layouts(l, err));
out:
    stw_pool_free(pool);
    return status;
}
