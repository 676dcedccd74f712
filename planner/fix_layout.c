/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks: tensor, pipeline and expert parallelism, alone, in pairs and together, on the
 * nodes that there are, then on more of them. Of each combination the widest cuts are tried first;
 * what fits is brought back to the narrowest ones that do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"

/* Of one combination so many are tried before it counts as not enough. */
#define TRIES 4
#define MOST_LAYOUTS 256
#define MOST_DOUBLINGS 6

/* Trials of all layouts: one to two seconds. */
#define MOST_TRIALS 160

enum { TP, PP, EP, N_WAYS };

typedef struct layout {
    uint64_t ways[N_WAYS], nodes;
    const stw_engine_fix *also; /* a change of the engine's own, or NULL */
    bool uneven;                /* the last stage has fewer layers */
} layout;

typedef struct layouts {
    stw_plan *plan;
    stw_fix_budget budget;
    uint64_t now[N_WAYS], layers;
    uint32_t n;
    layout list[MOST_LAYOUTS];
    bool any_risky;
    layout risky; /* the first one at risk */
} layouts;

/* ---- changes ---- */

static void change(stw_change *out, uint32_t *n, const char *key, uint64_t value) {
    snprintf(out[*n].key, sizeof out[*n].key, "%s", key);
    snprintf(out[(*n)++].value, sizeof out->value, "%llu", (unsigned long long)value);
}

static void change_word(stw_change *out, uint32_t *n, const char *key, const char *word) {
    snprintf(out[*n].key, sizeof out[*n].key, "%s", key);
    snprintf(out[(*n)++].value, sizeof out->value, "%s", word);
}

/* Layers of a last stage, the others having as many as divide the rest; 0: none are left. */
static uint64_t last_layers(const layouts *s, uint64_t pp) {
    const uint64_t others = stw_div_up_u64(s->layers, pp) * (pp - 1);
    return others < s->layers ? s->layers - others : 0;
}

/* @param out room for STW_MAX_FIX_CHANGES */
static uint32_t changes_of(const layouts *s, const layout *l, stw_change *out) {
    const stw_run_spec *run = &s->plan->run;
    uint32_t n = 0;
    if (l->ways[TP] != s->now[TP]) change(out, &n, "parallel.tp", l->ways[TP]);
    if (l->ways[TP] != s->now[TP] && !run->parallel.sequence_parallel)
        change_word(out, &n, "parallel.sequence_parallel", "true");
    if (l->ways[PP] != s->now[PP]) {
        change(out, &n, "parallel.pp", l->ways[PP]);
        if (l->uneven)
            change(out, &n, s->plan->job->engine->last_stage_key, last_layers(s, l->ways[PP]));
    }
    if (l->ways[EP] != s->now[EP]) change(out, &n, "parallel.ep", l->ways[EP]);
    if (l->also != NULL) change_word(out, &n, l->also->key, l->also->value);
    if (l->nodes != s->plan->cluster.nodes) change(out, &n, "nodes", l->nodes);
    return n;
}

static stw_status note(layouts *s, const layout *l, stw_trial trial, stw_error *err) {
    static const char *const whys[N_WAYS] = {"cuts every layer over GPUs",
                                             "gives each stage a part of the layers",
                                             "cuts the experts over GPUs"};
    stw_change changes[STW_MAX_FIX_CHANGES];
    char why[256] = "";
    for (int w = 0; w < N_WAYS; w++) {
        const size_t used = strlen(why);
        if (l->ways[w] != s->now[w])
            snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", whys[w]);
    }
    const size_t used = strlen(why);
    if (used == 0 && l->also == NULL) snprintf(why, sizeof why, "shards the state over more GPUs");
    if (l->also != NULL)
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", l->also->why);
    const uint32_t n = changes_of(s, l, changes);
    return stw_fix_note(s->plan, changes, n, why, trial, err);
}

/* ---- trials ---- */

/* Plan a layout; where stages do not divide the layers, with a last stage of fewer. */
static stw_status try_layout(layouts *s, layout *l, stw_trial *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_change changes[STW_MAX_FIX_CHANGES];
    const uint64_t pp = l->ways[PP];
    l->uneven = pp != s->now[PP] && s->layers % pp != 0;
    *out = STW_TRIAL_REFUSED;
    if (l->uneven && (s->plan->job->engine->last_stage_key == NULL || last_layers(s, pp) == 0))
        return status;
    STW_TRY(stw_fix_try(s->plan, &s->budget, changes, changes_of(s, l, changes), out, err));
out:
    return status;
}

/* Bring every way of a layout that fits back to the fewest ranks with which it does. */
static stw_status bring_back(layouts *s, layout *l, stw_trial want, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int w = N_WAYS; w-- > 0;)
        while (l->ways[w] > s->now[w]) {
            layout less = *l;
            stw_trial trial = STW_TRIAL_REFUSED;
            for (less.ways[w]--; less.ways[w] >= s->now[w] && trial == STW_TRIAL_REFUSED;) {
                if (l->ways[w] % less.ways[w] == 0) STW_TRY(try_layout(s, &less, &trial, err));
                if (trial == STW_TRIAL_REFUSED) less.ways[w]--;
            }
            if (trial < want) break;
            *l = less;
        }
out:
    return status;
}

/* ---- what there is to try ---- */

static uint64_t cut_of(const layout *l) { return l->ways[TP] * l->ways[PP] * l->ways[EP]; }

/* The widest cut first, of equal ones that with the fewest stages. */
static int by_cut(const void *a, const void *b) {
    const layout *x = a, *y = b;
    if (cut_of(x) != cut_of(y)) return cut_of(x) > cut_of(y) ? -1 : 1;
    if (x->ways[PP] != y->ways[PP]) return x->ways[PP] < y->ways[PP] ? -1 : 1;
    return x->ways[TP] < y->ways[TP] ? -1 : x->ways[TP] > y->ways[TP];
}

static bool divides_experts(const stw_model *model, uint64_t ep) {
    bool any = ep == 1;
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const uint64_t experts = model->groups[g].facts.experts;
        if (experts % ep != 0) return false;
        any = any || experts > 0;
    }
    return any;
}

/* Is this value of a way one that a combination asks for? */
static bool is_asked(const layouts *s, unsigned ways, int w, uint64_t value) {
    return (ways & 1u << w) != 0 ? value > s->now[w] && value % s->now[w] == 0 : value == s->now[w];
}

/* All layouts of a combination on so many nodes. @param ways bit w: it is turned */
static void list_layouts(layouts *s, unsigned ways, uint64_t nodes, const stw_engine_fix *also) {
    const uint64_t gpus = s->plan->job->ranks_per_node, world = nodes * gpus;
    s->n = 0;
    for (uint64_t tp = 1; tp <= gpus; tp++)
        for (uint64_t pp = 1; pp <= s->layers && is_asked(s, ways, TP, tp) && gpus % tp == 0; pp++)
            for (uint64_t ep = 1; ep * pp <= world && is_asked(s, ways, PP, pp); ep++) {
                if (!is_asked(s, ways, EP, ep) || world % (tp * pp) != 0 ||
                    world % (ep * pp) != 0 || !divides_experts(s->plan->model, ep) ||
                    s->n == MOST_LAYOUTS)
                    continue;
                s->list[s->n++] = (layout){.ways = {tp, pp, ep}, .nodes = nodes, .also = also};
            }
    qsort(s->list, s->n, sizeof *s->list, by_cut);
}

/* Try the widest of a combination. @param found out, set where one fits, which is noted */
static stw_status try_combination(layouts *s, unsigned ways, uint64_t nodes,
                                  const stw_engine_fix *also, unsigned *found, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t tries = 0;
    list_layouts(s, ways, nodes, also);
    for (uint32_t i = 0; i < s->n && tries < TRIES; i++) {
        stw_trial trial;
        layout l = s->list[i];
        STW_TRY(try_layout(s, &l, &trial, err));
        tries += trial != STW_TRIAL_REFUSED;
        if (trial == STW_TRIAL_AT_RISK && !s->any_risky) {
            s->any_risky = true;
            s->risky = l;
        }
        if (trial != STW_TRIAL_FITS) continue;
        STW_TRY(bring_back(s, &l, trial, err));
        STW_TRY(note(s, &l, trial, err));
        *found |= 1u << ways;
        break;
    }
out:
    return status;
}

/* Has a combination of fewer ways been found already? */
static bool is_covered(unsigned found, unsigned ways) {
    for (unsigned fewer = 1; fewer < ways; fewer++)
        if ((fewer & ways) == fewer && (found & 1u << fewer) != 0) return true;
    return false;
}

/* Single ways, pairs, and all three. */
static stw_status try_nodes(layouts *s, uint64_t nodes, const stw_engine_fix *also, unsigned *found,
                            stw_error *err) {
    static const unsigned order[] = {1u << TP,
                                     1u << PP,
                                     1u << EP,
                                     1u << TP | 1u << PP,
                                     1u << TP | 1u << EP,
                                     1u << PP | 1u << EP,
                                     1u << TP | 1u << PP | 1u << EP};
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (!is_covered(*found, order[i]))
            STW_TRY(try_combination(s, order[i], nodes, also, found, err));
out:
    return status;
}

static bool has_key(const stw_engine *engine, const char *key) {
    for (const char *const *k = engine->spec.keys; k != NULL && *k != NULL; k++)
        if (strcmp(*k, key) == 0) return true;
    return false;
}

stw_status stw_fix_layouts(stw_plan *plan, const stw_fix_budget *all, bool *tried, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_engine *engine = plan->job->engine;
    layouts *s = stw_pool_array(plan->pool, 1, sizeof *s);
    unsigned found = 0, also = 0;
    if (s == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
    *s = (layouts){.plan = plan,
                   .budget = {.trials = MOST_TRIALS, .end_s = all->end_s},
                   .now = {plan->run.parallel.tp, plan->run.parallel.pp, plan->run.parallel.ep}};
    *tried = has_key(engine, "parallel.tp") && has_key(engine, "parallel.pp");
    if (!*tried) return status;
    for (uint32_t g = 0; g < plan->model->n_groups; g++)
        if (plan->model->groups[g].facts.transformer) s->layers += plan->model->groups[g].count;
    for (int d = 0; d < MOST_DOUBLINGS && found == 0 && s->budget.trials > 0; d++) {
        STW_TRY(try_nodes(s, plan->cluster.nodes << d, NULL, &found, err));
        /* with a change of the engine's own on fewer nodes than without */
        for (const stw_engine_fix *f = engine->fixes; f->key != NULL && found + also == 0; f++)
            STW_TRY(try_nodes(s, plan->cluster.nodes << d, f, &also, err));
    }
    if (s->any_risky) {
        STW_TRY(bring_back(s, &s->risky, STW_TRIAL_AT_RISK, err));
        STW_TRY(note(s, &s->risky, STW_TRIAL_AT_RISK, err));
    }
out:
    return status;
}
