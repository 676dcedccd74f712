/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of candidates: the best that the integer program finds for every family of choices (some
 * places and policies left out) and for one number of offloaded and of kept blocks after the other,
 * and descents from the fastest of them. The rows of seconds are sums; what order costs shows only
 * in the simulator, which therefore compares families instead of trusting the rows between them. */
#include <math.h>

#include "planner/candidates.h"
#include "planner/clock.h"

/* Choices whose rows take this share longer than the fastest candidate are not of interest. */
static const double OF_INTEREST = 0.02;

/* The same of the family with all state on the GPU, whose programs are small: rows of plans with
 * offloaded blocks are off by so much, and nothing else is left to make up for it. */
static const double RESIDENT_OF_INTEREST = 0.12;

/* The same of numbers of blocks, and points of the first grid of them. */
static const double COUNT_OF_INTEREST = 0.05;
#define POINTS 8u

/* Descents begin at so many candidates, which take at most so much longer than the fastest. */
#define MOST_STARTS 6
static const double MAY_LEAD = 0.06;

static double seconds_of_interest(const stw_candidates *all, double share) {
    return all->list[all->fastest].seconds * (1 + share);
}

/* ---- families ---- */

static bool any_off_gpu(const stw_place *p) {
    return p->params != STW_TIER_GPU || p->grads != STW_TIER_GPU || p->moments != STW_TIER_GPU;
}
static bool grads_off_gpu(const stw_place *p) {
    return p->params != STW_TIER_GPU || p->grads != STW_TIER_GPU;
}
static bool params_off_gpu(const stw_place *p) { return p->params != STW_TIER_GPU; }
static bool on_cpu(const stw_place *p) { return p->update == STW_UPDATE_CPU; }
static bool resident(const stw_place *p) { return !any_off_gpu(p); }
static bool grads_on_gpu(const stw_place *p) { return p->grads == STW_TIER_GPU; }
static bool none(const stw_place *p) { return p == NULL; }

static uint32_t places_where(const stw_cost *cost, bool (*is)(const stw_place *place)) {
    uint32_t bits = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (is(&cost->places[p])) bits |= 1u << p;
    return bits;
}

static stw_status try_families(stw_candidates *all, stw_error *err) {
    static bool (*const left_out[])(const stw_place *place) = {
        any_off_gpu, grads_off_gpu, params_off_gpu, on_cpu, resident, grads_on_gpu, none};
    enum { KEEP = 1 << STW_ACT_KEEP, RECOMPUTE = 1 << STW_ACT_RECOMPUTE };
    enum { OFFLOAD = 1 << STW_ACT_OFFLOAD, N_PLACES = sizeof left_out / sizeof left_out[0] };
    static const uint32_t acts[] = {OFFLOAD | RECOMPUTE, OFFLOAD | KEEP, OFFLOAD, RECOMPUTE, 0};
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = all->cost;
    const uint32_t every = cost->n_places < 32 ? (1u << cost->n_places) - 1 : UINT32_MAX;
    uint32_t places[N_PLACES], found;
    for (int i = 0; i < N_PLACES; i++) {
        places[i] = places_where(cost, left_out[i]) | all->bars.places;
        bool again = places[i] == every; /* nothing is left */
        for (int j = 0; j < i; j++) again = again || places[j] == places[i];
        for (size_t j = 0; j < sizeof acts / sizeof acts[0] && !again; j++) {
            const stw_bars bars = {.places = places[i], .acts = acts[j] | all->bars.acts};
            const double share = i == 0 ? RESIDENT_OF_INTEREST : OF_INTEREST;
            STW_TRY(stw_candidates_solve_quickly(all, &bars, seconds_of_interest(all, share),
                                                 &found, err));
        }
    }
out:
    return status;
}

/* ---- numbers of blocks ---- */

/* What copies and second forwards hide of each other is no sum, so that rows of seconds are off by
 * most in the number of offloaded blocks, and of kept ones: a coarse grid first, then halves of its
 * steps around the best. */
typedef struct line {
    stw_candidates *all;
    stw_act act;
    double *seconds; /* [blocks + 1] NaN: not tried; INFINITY: nothing of interest */
    uint32_t blocks;
} line;

/* Blocks of all groups that may have the policy or another one. */
static uint32_t blocks_with(const stw_cost *cost, stw_act act) {
    uint32_t blocks = 0;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *here = &cost->acts[a];
        bool before = a > 0 && cost->acts[a - 1].group == here->group;
        bool after = a + 1 < cost->n_acts && cost->acts[a + 1].group == here->group;
        if (here->act == act && (before || after)) blocks += here->blocks;
    }
    return blocks;
}

static stw_status try_count(line *l, uint32_t blocks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_candidates *all = l->all;
    uint32_t found;
    if (!isnan(l->seconds[blocks]) || !stw_candidates_go_on(all)) return STW_STATUS_OK;
    stw_bars bars = all->bars;
    bars.frozen = 1u << l->act;
    bars.frozen_blocks = blocks;
    STW_TRY(stw_candidates_solve_quickly(all, &bars, seconds_of_interest(all, COUNT_OF_INTEREST),
                                         &found, err));
    l->seconds[blocks] = found != STW_NO_CANDIDATE ? all->list[found].seconds : (double)INFINITY;
out:
    return status;
}

static uint32_t best_of(const line *l) {
    uint32_t best = 0;
    for (uint32_t n = 0; n <= l->blocks; n++)
        if (l->seconds[n] < l->seconds[best] || isnan(l->seconds[best])) best = n;
    return best;
}

static stw_status try_line(stw_candidates *all, stw_act act, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    line l = {.all = all, .act = act, .blocks = blocks_with(all->cost, act)};
    if (l.blocks == 0) return STW_STATUS_OK;
    l.seconds = stw_pool_array(all->pool, (size_t)l.blocks + 1, sizeof *l.seconds);
    if (l.seconds == NULL) return stw_planner_no_memory(err);
    for (uint32_t n = 0; n <= l.blocks; n++) l.seconds[n] = NAN;
    for (uint32_t k = 0; k <= POINTS; k++) STW_TRY(try_count(&l, l.blocks * k / POINTS, err));
    for (uint32_t step = l.blocks / POINTS; step > 1;) {
        step = (step + 1) / 2;
        const uint32_t best = best_of(&l);
        if (!isfinite(l.seconds[best])) break;
        if (best >= step) STW_TRY(try_count(&l, best - step, err));
        if (best + step <= l.blocks) STW_TRY(try_count(&l, best + step, err));
    }
out:
    return status;
}

stw_status stw_candidates_try_counts(stw_candidates *all, stw_error *err) {
    stw_status status = try_line(all, STW_ACT_OFFLOAD, err);
    return status == STW_STATUS_OK ? try_line(all, STW_ACT_KEEP, err) : status;
}

/* ---- all of it ---- */

/* The fastest candidate that no descent began at yet. */
static uint32_t next_start(const stw_candidates *all, const bool *done, uint32_t n) {
    uint32_t best = STW_NO_CANDIDATE;
    for (uint32_t i = 0; i < n; i++)
        if (!done[i] &&
            (best == STW_NO_CANDIDATE || all->list[i].seconds < all->list[best].seconds))
            best = i;
    return best;
}

stw_status stw_candidates_descend(stw_candidates *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = all->n;
    bool *done = stw_pool_array(all->pool, n, sizeof *done);
    if (done == NULL) return stw_planner_no_memory(err);
    for (int start = 0; start < MOST_STARTS; start++) {
        uint32_t index = next_start(all, done, n);
        if (index == STW_NO_CANDIDATE) break;
        done[index] = true;
        if (all->list[index].seconds > seconds_of_interest(all, MAY_LEAD)) break;
        STW_TRY(stw_candidates_improve(all, all->list[index].plain.policies, index, err));
    }
out:
    return status;
}

stw_status stw_candidates_search(stw_candidates *all, const stw_choice *first, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_candidates_add(all, first, NULL, err));
    if (all->n == 0) goto out;
    STW_TRY(try_families(all, err));
    STW_TRY(stw_candidates_try_counts(all, err));
    STW_TRY(stw_candidates_descend(all, err));
out:
    return status;
}

stw_status stw_candidates_search_briefly(stw_candidates *all, const stw_choice *known,
                                         double most_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t found;
    STW_TRY(stw_candidates_add(all, known, NULL, err));
    STW_TRY(stw_candidates_solve_quickly(all, &all->bars, most_s, &found, err));
    if (all->n > 0) STW_TRY(stw_candidates_improve(all, UINT32_MAX, all->fastest, err));
out:
    return status;
}
