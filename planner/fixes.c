/* SPDX-License-Identifier: Apache-2.0 */
/* Fixes: changes of the specs under which a plan was found that fits. Each knob is tried alone, at
 * the last step that the specs admit. Where few are enough, all settings are tried at once: if that
 * fits, what is not needed goes again (the deletion filter, as in conflict.c); if not, together
 * with shorter sequences, disks and nodes. What fits is brought back to the fewest steps that do.
 */
#include "planner/fixes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"

/* Combinations are sought where fewer changes than this are enough alone. */
#define ENOUGH_FIXES 3

/* Operations of the programs that trials walk, and of those that plan what was found to the end:
 * second or two each. */
#define SEARCH_WORK 30000000
#define LIMIT_WORK 6000000 /* of one limit */
#define VERIFY_WORK 160000000

/* Nodes that take less than this share off what is over are no help. */
static const double HELPS = 0.02;

/* Values of a key that are planned after one that is at risk. */
enum { SAFER_TRIES = 2 };

/* Layouts of one combination that are tried before it counts as not enough. */
enum { LAYOUT_TRIES = 3 };

/* From nodes that are at risk to such as are not. */
#define FURTHER 4

/* ---- one mix ---- */

static stw_status try_mix(const stw_fix_search *search, const stw_mix *mix, stw_tried *out,
                          stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    const uint32_t n = stw_mix_changes(search->plan, mix, changes);
    stw_status status = stw_fix_try(search->trials, changes, n, out, err);
    for (uint32_t k = 0; k < mix->n && out->is != STW_TRIAL_REFUSED; k++)
        mix->knobs[k]->tried = true;
    return status;
}

static stw_status admits(const stw_fix_search *search, const stw_mix *mix, bool *out,
                         stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    const uint32_t n = stw_mix_changes(search->plan, mix, changes);
    return stw_fix_admits(search->plan, changes, n, out, err);
}

static void put(stw_mix *mix, stw_knob *knob, uint64_t step) {
    mix->knobs[mix->n] = knob;
    mix->steps[mix->n++] = step;
}

static void take_out(stw_mix *mix, uint32_t at) {
    mix->n--;
    for (uint32_t i = at; i < mix->n; i++) {
        mix->knobs[i] = mix->knobs[i + 1];
        mix->steps[i] = mix->steps[i + 1];
    }
}

static stw_status note(stw_found_list *to, const stw_mix *mix, stw_trial trial, stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    stw_mix *kept = stw_pool_array(to->plan->pool, 1, sizeof *kept);
    stw_found found = {.reach = STW_REACH_PARK, .amount = stw_mix_amount(mix), .mix = kept};
    char why[512] = "";
    if (kept == NULL) return stw_planner_no_memory(err);
    *kept = *mix;
    for (uint32_t k = 0; k < mix->n; k++) {
        const size_t used = strlen(why);
        const stw_knob *knob = mix->knobs[k];
        if (knob->reach > found.reach) found.reach = knob->reach;
        if (knob->kind == STW_KNOB_NODES && mix->knobs[0]->kind == STW_KNOB_LAYOUT) continue;
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", knob->why);
    }
    const uint32_t n = stw_mix_changes(to->plan, mix, changes);
    return stw_fix_note(to, changes, n, why, trial, &found, err);
}

/* ---- steps of a knob ---- */

/* The last step that the specs admit: they refuse a loss of few tokens cut in chunks, sequences
 * that cannot be cut so often. 0: there is none. */
static stw_status find_last(const stw_fix_search *search, stw_knob *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_mix at = {0};
    bool admitted = true;
    uint64_t low = 0, high = k->n;
    k->last = k->n;
    if (k->kind == STW_KNOB_NODES) return status; /* by doublings */
    put(&at, k, k->n);
    STW_TRY(admits(search, &at, &admitted, err));
    while (!admitted && high - low > 1) {
        bool here;
        at.steps[0] = low + (high - low) / 2;
        STW_TRY(admits(search, &at, &here, err));
        if (here)
            low = at.steps[0];
        else
            high = at.steps[0];
    }
    if (!admitted) k->last = low;
out:
    return status;
}

typedef struct range {
    uint64_t low, high; /* steps that do not fit, and that do */
} range;

/* A step within a range that the specs admit, *step or near it. @param step in and out; 0: none */
static stw_status admitted_step(const stw_fix_search *search, const stw_mix *mix, uint32_t k,
                                range in, uint64_t *step, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_mix tried = *mix;
    bool admitted = false;
    const uint64_t want = *step;
    *step = 0;
    for (uint64_t i = 0; i < in.high - in.low - 1 && !admitted; i++) {
        tried.steps[k] = want + i < in.high ? want + i : in.high - 1 - i;
        STW_TRY(admits(search, &tried, &admitted, err));
        if (admitted) *step = tried.steps[k];
    }
out:
    return status;
}

/* The fewest steps of one knob of a mix that fits. @param low steps that do not fit
 * @param want what the mix says, which fewer steps must say, too; out: what they say, which may be
 * better */
static stw_status fewest(const stw_fix_search *search, stw_mix *mix, uint32_t k, uint64_t low,
                         stw_trial *want, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    range in = {low, mix->steps[k]};
    while (in.low + 1 < in.high) {
        stw_tried here;
        stw_mix tried = *mix;
        /* lengths are rarely needed in full: look near the start first */
        uint64_t mid = in.low == 0 && in.high > 16 ? in.high / 8 : in.low + (in.high - in.low) / 2;
        STW_TRY(admitted_step(search, mix, k, in, &mid, err));
        if (mid == 0) break;
        tried.steps[k] = mid;
        STW_TRY(try_mix(search, &tried, &here, err));
        if (here.is >= *want) {
            in.high = mid;
            *want = here.is;
        } else {
            in.low = mid;
        }
    }
    mix->steps[k] = in.high;
out:
    return status;
}

/* The widest of a combination of layouts that fits, of LAYOUT_TRIES that the specs admit; the least
 * over where none fits. */
static stw_status try_widest(const stw_fix_search *search, stw_mix *mix, uint32_t at,
                             stw_tried *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t best = 0;
    *out = (stw_tried){STW_TRIAL_REFUSED, INFINITY};
    mix->steps[at] = mix->knobs[at]->n;
    for (int tries = 0; mix->steps[at] > 0 && tries < LAYOUT_TRIES && out->is < STW_TRIAL_FITS;
         mix->steps[at]--) {
        stw_tried here;
        STW_TRY(try_mix(search, mix, &here, err));
        tries += here.is != STW_TRIAL_REFUSED;
        if (here.is < out->is || (here.is == out->is && here.over_share >= out->over_share))
            continue;
        best = mix->steps[at];
        *out = here;
    }
    mix->steps[at] = best;
out:
    return status;
}

/* Try a mix with so many times the nodes, with layouts of theirs, and steps of what cuts something
 * over the ranks that there are then. */
static stw_status try_nodes_times(const stw_fix_search *search, stw_mix *mix, uint32_t nodes,
                                  uint64_t factor, stw_tried *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t ranks = stw_times(search->plan->job->world, factor);
    mix->steps[nodes] = mix->knobs[nodes]->from * (factor - 1);
    for (uint32_t i = 0; i < mix->n; i++) {
        stw_knob *k = mix->knobs[i];
        if (k->kind == STW_KNOB_LAYOUT) {
            STW_TRY(stw_knob_of_layouts(search->plan, mix->knobs[nodes]->from * factor, k, err));
            status = try_widest(search, mix, i, out, err);
            goto out;
        }
        while (k->follows_nodes && mix->steps[i] < k->n &&
               ranks % (k->from << (mix->steps[i] + 1)) == 0)
            mix->steps[i]++;
    }
    status = try_mix(search, mix, out, err);
out:
    return status;
}

/* Counts of machines fit or not by powers of two first: those divide what the others may not. Where
 * some are at risk, a few more may not be. @param want what ends the search
 * @param out of the fewest doublings that fit @param low out, steps that do not */
static stw_status double_nodes(const stw_fix_search *search, stw_mix *mix, uint32_t k,
                               stw_trial want, stw_tried *out, uint64_t *low, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_knob *nodes = mix->knobs[k];
    double before = INFINITY;
    uint64_t most = nodes->n;
    for (uint64_t factor = 2; nodes->from * (factor - 1) <= most; factor *= 2) {
        STW_TRY(try_nodes_times(search, mix, k, factor, out, err));
        if (out->is >= want) break;
        *low = mix->steps[k];
        if (out->is == STW_TRIAL_AT_RISK) most = stw_min_u64(most, FURTHER * nodes->from * factor);
        if (out->is != STW_TRIAL_UNFIT) continue;
        if (out->over_share > before * (1 - HELPS)) break;
        before = out->over_share;
    }
out:
    return status;
}

/* Try a mix at its steps, and bring its knobs back, those that reach furthest first. @param low of
 * its last knob, steps that do not fit */
static stw_status bring_back(const stw_fix_search *search, stw_mix *mix, stw_trial *want,
                             uint64_t low, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t k = mix->n; k-- > 0;)
        STW_TRY(fewest(search, mix, k, k + 1 == mix->n ? low : 0, want, err));
    /* wide cuts divide few counts of nodes, the narrower ones more */
    STW_TRY(fewest(search, mix, mix->n - 1, low, want, err));
out:
    return status;
}

/* ---- alone ---- */

/* Does a knob of this key fit by itself, or is at risk where `risky`? Another is no smaller. */
static bool is_enough(const stw_fix_search *search, const char *key, bool risky) {
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        const stw_knob *k = &search->knobs.list[i];
        if ((risky ? k->enough : k->safe) && strcmp(k->key, key) == 0) return true;
    }
    return false;
}

/* More nodes are of no use to an engine whose layouts were tried on them. */
static bool is_of_layouts(const stw_fix_search *search, const stw_knob *k) {
    return search->layouts && (k->kind == STW_KNOB_NODES || strcmp(k->key, "parallel.ep") == 0);
}

/* Bring a mix back that fits, note it, and where it is at risk such as fits with more nodes. */
static stw_status bring_back_and_note(stw_fix_search *search, stw_mix *mix, stw_trial is,
                                      uint64_t low, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t last = mix->n - 1;
    stw_tried safer = {STW_TRIAL_REFUSED, INFINITY};
    STW_TRY(bring_back(search, mix, &is, low, err));
    STW_TRY(note(&search->found, mix, is, err));
    if (is != STW_TRIAL_AT_RISK || mix->knobs[last]->kind != STW_KNOB_NODES) goto out;
    stw_mix more = *mix; /* cut further, it may take fewer nodes than those at risk */
    low = 0;
    STW_TRY(double_nodes(search, &more, last, STW_TRIAL_FITS, &safer, &low, err));
    if (safer.is != STW_TRIAL_FITS) goto out;
    STW_TRY(bring_back(search, &more, &safer.is, low, err));
    STW_TRY(note(&search->found, &more, safer.is, err));
out:
    return status;
}

static stw_status try_alone(stw_fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tried plan;
    STW_TRY(try_mix(search, &(stw_mix){0}, &plan, err));
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        stw_knob *k = &search->knobs.list[i];
        stw_mix at = {0};
        stw_tried tried = {STW_TRIAL_REFUSED, INFINITY};
        uint64_t low = 0;
        if (is_of_layouts(search, k)) continue;
        STW_TRY(find_last(search, k, err));
        if (k->last == 0 || (k->kind == STW_KNOB_WORD && is_enough(search, k->key, false)))
            continue;
        put(&at, k, k->last);
        if (k->kind == STW_KNOB_NODES)
            STW_TRY(double_nodes(search, &at, 0, STW_TRIAL_AT_RISK, &tried, &low, err));
        else
            STW_TRY(try_mix(search, &at, &tried, err));
        k->enough = tried.is >= STW_TRIAL_AT_RISK;
        k->safe = tried.is == STW_TRIAL_FITS;
        k->worse = tried.over_share > plan.over_share * (1 + HELPS);
        if (!k->enough) continue;
        STW_TRY(bring_back_and_note(search, &at, tried.is, low, err));
        k->last = at.steps[0];
    }
out:
    return status;
}

/* ---- together ---- */

/* What a combination is made of: of one key the first knob or the last; without one that
 * combination has already, without all that are enough alone, or without those that are worse. */
typedef struct choice {
    bool last, weak, no_worse;
    const stw_knob *without;
} choice;

/* All that changes neither samples, numerics, machines nor engine, as far as the specs admit it
 * together. @param out in: what it is to go with */
static stw_status gather(stw_fix_search *search, choice of, stw_mix *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        stw_knob *k = &search->knobs.list[of.last ? search->knobs.n - 1 - i : i];
        bool admitted = false, again = false;
        if (k->alone || k->last == 0 || k->reach > STW_REACH_BATCH || k == of.without ||
            (of.weak && is_enough(search, k->key, true)) || (of.no_worse && k->worse))
            continue;
        for (uint32_t b = 0; b < out->n; b++)
            again = again || strcmp(out->knobs[b]->key, k->key) == 0;
        if (again) continue;
        put(out, k, k->last);
        STW_TRY(admits(search, out, &admitted, err));
        if (!admitted) out->n--;
    }
    for (uint32_t i = 0; of.last && i < out->n / 2; i++) { /* by reach */
        const stw_mix before = *out;
        out->knobs[i] = before.knobs[out->n - 1 - i];
        out->steps[i] = before.steps[out->n - 1 - i];
        out->knobs[out->n - 1 - i] = before.knobs[i];
        out->steps[out->n - 1 - i] = before.steps[i];
    }
out:
    return status;
}

/* Leave out what is not needed, what reaches furthest first. */
static stw_status leave_out(const stw_fix_search *search, stw_mix *mix, stw_trial *want,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t k = mix->n; k-- > 0 && mix->n > 1;) {
        stw_tried here;
        stw_mix less = *mix;
        take_out(&less, k);
        STW_TRY(try_mix(search, &less, &here, err));
        if (here.is < *want) continue;
        *mix = less;
        *want = here.is;
    }
out:
    return status;
}

/* All settings together. @param fits out: that is enough */
static stw_status try_settings(stw_fix_search *search, bool *fits, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tried here = {STW_TRIAL_REFUSED, INFINITY};
    const stw_knob *without = NULL;
    stw_mix all;
    *fits = false;
    for (int turn = 0; turn < 3; turn++) {
        all.n = 0;
        if (turn == 2 && (without == NULL || search->found.n >= ENOUGH_FIXES)) break;
        STW_TRY(gather(search, (choice){.last = turn == 1, .without = without}, &all, err));
        if (all.n < 2) continue;
        STW_TRY(try_mix(search, &all, &here, err));
        if (here.is < STW_TRIAL_AT_RISK) continue;
        *fits = true;
        STW_TRY(leave_out(search, &all, &here.is, err));
        if (all.n < 2) break; /* was found alone */
        STW_TRY(bring_back(search, &all, &here.is, 0, err));
        STW_TRY(note(&search->found, &all, here.is, err));
        without = all.knobs[all.n - 1]; /* the same without what reaches furthest of it */
        if (turn == 0) turn = 1;
    }
out:
    return status;
}

/* Shorter sequences, disks, nodes, or nodes with shorter sequences, and settings with which fewer
 * of them are enough. @param beside of nodes; NULL: none */
static stw_status try_beside(stw_fix_search *search, choice of, stw_knob *k, stw_knob *beside,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const bool nodes = k->kind == STW_KNOB_NODES;
    const uint32_t before = search->found.n;
    stw_mix mix = {0};
    stw_tried here;
    uint64_t low = 0;
    if (k->last == 0) return status;
    if (beside != NULL || !nodes) put(&mix, nodes ? beside : k, nodes ? beside->last : k->last);
    STW_TRY(gather(search, of, &mix, err));
    if (!nodes) mix.n--; /* comes last anyway */
    for (uint32_t i = 0; i < search->knobs.n && nodes; i++)
        if (search->knobs.list[i].follows_nodes && search->knobs.list[i].last == 0)
            put(&mix, &search->knobs.list[i], 1);
    const uint32_t at = mix.n;
    if (at == 0) return status;
    put(&mix, k, k->last);
    if (k->kind == STW_KNOB_NODES)
        STW_TRY(double_nodes(search, &mix, at, STW_TRIAL_AT_RISK, &here, &low, err));
    else
        STW_TRY(try_mix(search, &mix, &here, err));
    if (here.is < STW_TRIAL_AT_RISK) goto out;
    STW_TRY(leave_out(search, &mix, &here.is, err));
    if (mix.n == 1 || mix.knobs[mix.n - 1] != k) goto out;
    STW_TRY(bring_back_and_note(search, &mix, here.is, low, err));
    if (k->enough && mix.steps[mix.n - 1] >= k->last) search->found.n = before;
out:
    return status;
}

static bool any_fits(const stw_fix_search *search) {
    for (uint32_t i = 0; i < search->found.n; i++)
        if (!search->found.list[i].fix.at_risk) return true;
    return false;
}

/* Nodes with settings; where nothing fits so, with those that are not worse, and with these and
 * shorter sequences. */
static stw_status try_nodes(stw_fix_search *search, stw_knob *k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    choice of = {.last = true, .weak = true};
    STW_TRY(try_beside(search, of, k, NULL, err));
    of.no_worse = true;
    if (!any_fits(search)) STW_TRY(try_beside(search, of, k, NULL, err));
    for (uint32_t i = 0; i < search->knobs.n && !any_fits(search); i++)
        if (search->knobs.list[i].reach == STW_REACH_SEQUENCE && search->knobs.list[i].last > 0)
            STW_TRY(try_beside(search, of, k, &search->knobs.list[i], err));
out:
    return status;
}

static stw_status try_together(stw_fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool fits = false;
    uint32_t settings = 0;
    for (uint32_t i = 0; i < search->found.n; i++)
        settings += search->found.list[i].reach <= STW_REACH_BATCH;
    if (settings >= ENOUGH_FIXES) return status;
    STW_TRY(try_settings(search, &fits, err));
    for (uint32_t i = 0; i < search->knobs.n && !search->layouts; i++) {
        stw_knob *k = &search->knobs.list[i];
        if (k->alone || k->reach <= STW_REACH_BATCH) continue;
        if (k->kind == STW_KNOB_NODES) {
            if (!k->enough || k->last > k->from) STW_TRY(try_nodes(search, k, err));
        } else if (!fits) {
            STW_TRY(try_beside(search, (choice){.last = true, .weak = true}, k, NULL, err));
        }
    }
out:
    return status;
}

/* ---- layouts of ranks ---- */

/* Single ways, pairs, and all three; none whose part was enough. */
static stw_status try_ways(stw_fix_search *search, const stw_rank_layouts *layouts,
                           const stw_mix *beside, stw_error *err) {
    static const unsigned order[] = {1, 2, 4, 3, 5, 6, 7};
    enum { N = sizeof order / sizeof order[0] };
    stw_status status = STW_STATUS_OK;
    unsigned found[N], n_found = 0;
    for (int i = 0; i < N; i++) {
        bool covered = false;
        stw_tried tried;
        stw_mix mix = {0};
        stw_knob *k = stw_pool_array(search->plan->pool, 1, sizeof *k);
        if (k == NULL) STW_TRY(stw_planner_no_memory(err));
        for (unsigned f = 0; f < n_found; f++) covered |= (found[f] & order[i]) == found[f];
        if (covered) continue;
        STW_TRY(stw_knob_of_ways(search->plan, layouts, order[i], k, err));
        put(&mix, k, 0);
        for (uint32_t b = 0; b < beside->n; b++)
            if (beside->steps[b] > 0) put(&mix, beside->knobs[b], beside->steps[b]);
        STW_TRY(try_widest(search, &mix, 0, &tried, err));
        if (tried.is < STW_TRIAL_AT_RISK) continue;
        STW_TRY(fewest(search, &mix, 0, 0, &tried.is, err));
        STW_TRY(note(&search->found, &mix, tried.is, err));
        if (tried.is == STW_TRIAL_FITS) found[n_found++] = order[i];
    }
out:
    return status;
}

/* All layouts with settings, on the fewest nodes with which some are at risk, and fit.
 * @param words of the engine; those that are not needed go
 * @param fewest_steps of nodes that fit; in: which must be fewer; out: UINT64_MAX where none do */
static stw_status try_layouts_with(stw_fix_search *search, const stw_mix *words,
                                   uint64_t *fewest_steps, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tried tried;
    stw_knob all = {.kind = STW_KNOB_LAYOUT, .key = "", .why = ""}, *nodes = NULL;
    uint64_t low;
    stw_mix mix = *words;
    for (uint32_t i = 0; i < search->knobs.n; i++)
        if (search->knobs.list[i].kind == STW_KNOB_NODES) nodes = &search->knobs.list[i];
    put(&mix, nodes, 0);
    put(&mix, &all, 0);
    const uint32_t at = mix.n - 2;
    const uint64_t before = *fewest_steps;
    *fewest_steps = UINT64_MAX;
    STW_TRY(try_nodes_times(search, &mix, at, 1, &tried, err));
    for (stw_trial want = STW_TRIAL_AT_RISK; want <= STW_TRIAL_FITS; want++) {
        if (tried.is < want) STW_TRY(double_nodes(search, &mix, at, want, &tried, &low, err));
        if (tried.is < want || mix.steps[at] >= before) break;
        stw_mix beside = mix;
        STW_TRY(leave_out(search, &beside, &tried.is, err));
        for (uint32_t k = beside.n; k-- > 0;)
            if (beside.knobs[k] == &all) take_out(&beside, k);
        STW_TRY(try_ways(search, all.layouts, &beside, err));
        if (tried.is == STW_TRIAL_FITS) *fewest_steps = mix.steps[at];
        if (tried.is == STW_TRIAL_FITS) break;
    }
out:
    return status;
}

/* Layouts, and such with the engine's words where these do with fewer nodes. */
static stw_status try_layouts(stw_fix_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_mix words = {0};
    uint64_t steps = UINT64_MAX;
    STW_TRY(try_layouts_with(search, &words, &steps, err));
    for (uint32_t i = 0; i < search->knobs.n && steps > 0; i++) {
        stw_knob *k = &search->knobs.list[i];
        bool admitted = false;
        if (k->kind != STW_KNOB_WORD || k->reach != STW_REACH_SETTING) continue;
        put(&words, k, 1);
        STW_TRY(admits(search, &words, &admitted, err));
        if (!admitted) words.n--;
    }
    if (words.n > 0) STW_TRY(try_layouts_with(search, &words, &steps, err));
out:
    return status;
}

/* ---- what is told ---- */

/* The keys that were tried, each once: "parallel.cp, batch.seq_len, nodes". */
static stw_status note_tried(const stw_fix_search *search, stw_error *err) {
    stw_text keys = STW_TEXT_INIT;
    if (search->layouts)
        stw_text_printf(&keys, "parallel.tp, parallel.pp, parallel.ep, their combinations");
    for (uint32_t i = 0; i < search->knobs.n; i++) {
        const stw_knob *k = &search->knobs.list[i];
        bool again = false;
        for (uint32_t b = 0; b < i; b++)
            again |= search->knobs.list[b].tried && strcmp(search->knobs.list[b].key, k->key) == 0;
        if (k->tried && !again) stw_text_printf(&keys, "%s%s", keys.length > 0 ? ", " : "", k->key);
    }
    if (search->trials->late && keys.length > 0)
        stw_text_printf(&keys, "; the time limit ended the search");
    stw_status status = stw_text_status(&keys, err);
    if (status == STW_STATUS_OK && keys.data != NULL) {
        search->plan->tried = stw_pool_string(search->plan->pool, keys.data);
        if (search->plan->tried == NULL) status = stw_planner_no_memory(err);
    }
    stw_text_free(&keys);
    return status;
}

/* One that is at risk only by what expandable segments avoid is proposed with these.
 * @param is in and out */
static stw_status try_segments(const stw_fix_search *search, const stw_fix_judge *judge,
                               stw_fix *fix, stw_trial *is, stw_error *err) {
    static const char key[] = "allocator.expandable_segments";
    stw_status status = STW_STATUS_OK;
    stw_trial is_with;
    stw_fix with = *fix;
    if (search->plan->run.allocator.expandable_segments == true ||
        with.n_changes == STW_MAX_FIX_CHANGES)
        goto out;
    with.changes[with.n_changes++] = (stw_fix_change){key, "true"};
    with.why =
        stw_pool_printf(search->plan->pool, "%s; expandable segments leave no gaps", fix->why);
    if (with.why == NULL) STW_TRY(stw_planner_no_memory(err));
    STW_TRY(stw_fix_verify(search->trials, &with, judge, &is_with, err));
    if (is_with != STW_TRIAL_FITS) goto out;
    *fix = with;
    *is = is_with;
out:
    return status;
}

/* A value of the key that reaches furthest with which the plan is not at risk, if there is one. */
static stw_status try_safer(const stw_fix_search *search, const stw_fix_judge *judge,
                            stw_found *found, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_mix mix = {0};
    if (found->mix != NULL) mix = *found->mix;
    for (int i = 0; i < SAFER_TRIES && mix.n > 0 && found->fix.at_risk; i++) {
        stw_found_list one = {.plan = search->plan};
        stw_trial here;
        if (!stw_mix_go_on(&mix)) break;
        STW_TRY(note(&one, &mix, STW_TRIAL_FITS, err));
        if (one.n == 0) break;
        STW_TRY(stw_fix_verify(search->trials, &one.list[0].fix, judge, &here, err));
        if (here == STW_TRIAL_AT_RISK)
            STW_TRY(try_segments(search, judge, &one.list[0].fix, &here, err));
        if (here == STW_TRIAL_REFUSED) break;
        if (here == STW_TRIAL_FITS) *found = one.list[0];
    }
out:
    return status;
}

/* The rows and the walk of a trial know neither which plan is fastest nor how an allocator splits
 * memory up. What the plan says does not fit is no fix. */
static stw_status verify(stw_fix_search *search, const stw_fix_judge *judge, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_found_list *all = &search->found;
    stw_trial is;
    uint32_t n = 0;
    search->trials->work_left = VERIFY_WORK;
    for (uint32_t i = 0; i < all->n; i++) {
        stw_found found = all->list[i];
        STW_TRY(stw_fix_verify(search->trials, &found.fix, judge, &is, err));
        if (is == STW_TRIAL_AT_RISK) STW_TRY(try_segments(search, judge, &found.fix, &is, err));
        /* without a plan it is told where there is no other */
        if (is >= STW_TRIAL_AT_RISK || (is == STW_TRIAL_REFUSED && n == 0)) all->list[n++] = found;
    }
    all->n = n;
    stw_fixes_sort(all);
    for (uint32_t i = 0; i < all->n; i++)
        if (all->list[i].fix.at_risk && all->list[i].fix.iteration_s > 0)
            STW_TRY(try_safer(search, judge, &all->list[i], err));
    stw_fixes_sort(all);
out:
    return status;
}

static stw_status search_all(stw_fix_search *search, const stw_fix_judge *judge, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = search->plan;
    stw_knobs_of(plan, &search->knobs);
    search->layouts = stw_fix_has_layouts(plan);
    if (search->layouts) STW_TRY(try_layouts(search, err));
    STW_TRY(try_alone(search, err));
    STW_TRY(try_together(search, err));
    STW_TRY(note_tried(search, err));
    stw_fixes_sort(&search->found);
    if (judge != NULL) STW_TRY(verify(search, judge, err));
    for (uint32_t i = 0; i < search->found.n; i++)
        plan->fixes[plan->n_fixes++] = search->found.list[i].fix;
out:
    return status;
}

/* ---- limits ---- */

static stw_status note_limit(stw_plan *plan, const stw_mix *mix, stw_binding *out, stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    out->enough_bytes = (mix->knobs[0]->from + mix->steps[0]) << 30;
    out->n_changes = stw_mix_changes(plan, mix, changes);
    for (uint32_t i = 0; i < out->n_changes; i++) {
        out->changes[i].set = stw_pool_string(plan->pool, changes[i].key);
        out->changes[i].value = stw_pool_string(plan->pool, changes[i].value);
        if (out->changes[i].set == NULL || out->changes[i].value == NULL)
            return stw_planner_no_memory(err);
    }
    return STW_STATUS_OK;
}

/* The smallest limit that fits, if need be at risk: what is added is doubled until it is enough. */
static stw_status find_limit(const stw_fix_search *search, stw_binding *binding, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tried here;
    stw_mix mix = {0};
    stw_knob knob;
    if (!stw_knob_of_limit(search->plan, binding->resource, &knob)) return status;
    range in = {0, knob.n};
    put(&mix, &knob, knob.n);
    search->trials->work_left = LIMIT_WORK;
    STW_TRY(try_mix(search, &mix, &here, err));
    if (here.is < STW_TRIAL_AT_RISK) goto out;
    for (uint64_t step = 1; in.low + 1 < in.high;) {
        mix.steps[0] = step;
        STW_TRY(try_mix(search, &mix, &here, err));
        *(here.is >= STW_TRIAL_AT_RISK ? &in.high : &in.low) = step;
        step = stw_min_u64(2 * in.low, in.low + (in.high - in.low) / 2);
    }
    mix.steps[0] = in.high;
    status = note_limit(search->plan, &mix, binding, err);
out:
    return status;
}

/* @return NULL: no memory */
static stw_fix_search *begin(stw_plan *plan, double time_limit_s) {
    stw_fix_search *search = stw_pool_array(plan->pool, 1, sizeof *search);
    stw_trials *trials = stw_pool_array(plan->pool, 1, sizeof *trials);
    if (search == NULL || trials == NULL) return NULL;
    *trials = (stw_trials){
        .plan = plan, .work_left = SEARCH_WORK, .end_s = stw_planner_now_s() + time_limit_s};
    search->plan = search->found.plan = plan;
    search->trials = trials;
    return search;
}

stw_status stw_planner_limits(stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_fix_search *search = begin(plan, time_limit_s);
    if (search == NULL) return stw_planner_no_memory(err);
    for (uint32_t b = 0; b < plan->n_bindings; b++) {
        stw_binding *here = &plan->bindings[b];
        const char *phase = here->phase;
        if (b == 0 || strcmp(here[-1].resource, here->resource) != 0) {
            STW_TRY(find_limit(search, here, err));
            continue;
        }
        *here = here[-1];
        here->phase = phase;
    }
out:
    return status;
}

stw_status stw_planner_fix(stw_plan *plan, double time_limit_s, const stw_fix_judge *judge,
                           stw_error *err) {
    stw_fix_search *search = begin(plan, time_limit_s);
    plan->n_fixes = 0;
    plan->fixes = stw_pool_array(plan->pool, STW_MAX_FIXES, sizeof *plan->fixes);
    if (plan->fixes == NULL || search == NULL) return stw_planner_no_memory(err);
    return search_all(search, judge, err);
}
