/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of candidates: for every family of choices (some places and policies left out) the
 * best that the integer program finds, plain choices that need no solver, other rings of the
 * fastest ones, and neighbours. The rows of seconds are sums; what order costs shows only in the
 * simulator, which therefore compares families instead of trusting the rows between them. */

#include "planner/candidates.h"
#include "planner/clock.h"

/* Choices whose rows take this share longer than the fastest candidate are not of interest. */
static const double OF_INTEREST = 0.02;

/* The same of the family with all state on the GPU, whose programs are small: rows of plans with
 * offloaded blocks are off by so much, and nothing else is left to make up for it. */
static const double RESIDENT_OF_INTEREST = 0.12;

/* Gap of the families' integer programs, and the most time of one. */
static const double FAMILY_GAP = 1e-3, FAMILY_S = 0.25;

/* Descents begin at so many candidates, which take at most so much longer than the fastest. */
#define MOST_STARTS 6
static const double MAY_LEAD = 0.06;

static uint32_t places_where(const stw_cost *cost, bool (*is)(const stw_place *place)) {
    uint32_t bits = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (is(&cost->places[p])) bits |= 1u << p;
    return bits;
}

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

/* ---- families ---- */

#define N_PLACE_BARS 7
#define N_ACT_BARS 5

static stw_status try_family(stw_candidates *all, const stw_bars *bars, double of_interest,
                             stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double left = all->end_s - stw_planner_now_s();
    if (!stw_candidates_go_on(all) || left <= 0) return STW_STATUS_OK;
    stw_ilp_options options = {.time_limit_s = left < FAMILY_S ? left : FAMILY_S,
                               .gap = FAMILY_GAP,
                               .quick = true,
                               .bars = *bars,
                               .most_s = all->list[all->fastest].seconds * (1 + of_interest)};
    stw_ilp_result result;
    STW_TRY(stw_ilp_solve(all->cost, &options, choice, &result, err));
    if (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE)
        STW_TRY(stw_candidates_add(all, choice, NULL, err));
out:
    return status;
}

static stw_status try_families(stw_candidates *all, stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = all->cost;
    const uint32_t keep = 1u << STW_ACT_KEEP, recompute = 1u << STW_ACT_RECOMPUTE;
    const uint32_t offload = 1u << STW_ACT_OFFLOAD;
    const uint32_t places[N_PLACE_BARS] = {places_where(cost, any_off_gpu),
                                           places_where(cost, grads_off_gpu),
                                           places_where(cost, params_off_gpu),
                                           places_where(cost, on_cpu),
                                           places_where(cost, resident),
                                           places_where(cost, grads_on_gpu),
                                           0};
    const uint32_t acts[N_ACT_BARS] = {offload | recompute, offload | keep, offload, recompute, 0};
    const uint32_t every = cost->n_places < 32 ? (1u << cost->n_places) - 1 : UINT32_MAX;
    for (int i = 0; i < N_PLACE_BARS; i++) {
        uint32_t barred = places[i] | all->bars.places;
        bool again = barred == every; /* nothing is left */
        for (int j = 0; j < i; j++) again = again || places[j] == places[i];
        for (int j = 0; j < N_ACT_BARS && !again; j++) {
            const stw_bars bars = {.places = barred, .acts = acts[j] | all->bars.acts};
            STW_TRY(
                try_family(all, &bars, i == 0 ? RESIDENT_OF_INTEREST : OF_INTEREST, choice, err));
        }
    }
out:
    return status;
}

/* ---- descents ---- */

/* The fastest candidate that no descent began at yet. */
static uint32_t next_start(const stw_candidates *all, const bool *done, uint32_t n) {
    uint32_t best = STW_NO_CANDIDATE;
    for (uint32_t i = 0; i < n; i++)
        if (!done[i] &&
            (best == STW_NO_CANDIDATE || all->list[i].seconds < all->list[best].seconds))
            best = i;
    return best;
}

/* Descents from the fastest of the families: the first ends in a local optimum. */
stw_status stw_candidates_descend(stw_candidates *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = all->n;
    bool *done = stw_pool_array(all->pool, n, sizeof *done);
    if (done == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
    for (int start = 0; start < MOST_STARTS; start++) {
        uint32_t index = next_start(all, done, n);
        if (index == STW_NO_CANDIDATE) break;
        done[index] = true;
        if (all->list[index].seconds > all->list[all->fastest].seconds * (1 + MAY_LEAD)) break;
        const stw_plainness same = {UINT32_MAX - 1, all->list[index].plain.policies};
        STW_TRY(stw_candidates_improve(all, &same, &index, err));
    }
out:
    return status;
}

stw_status stw_candidates_search(stw_candidates *all, const stw_choice *first, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_choice choice = stw_choice_new(all->cost, all->pool);
    if (choice.acts == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
    STW_TRY(stw_candidates_add(all, first, NULL, err));
    if (all->n == 0) goto out;
    STW_TRY(try_families(all, &choice, err));
    STW_TRY(stw_candidates_try_counts(all, err));
    STW_TRY(stw_candidates_descend(all, err));
out:
    return status;
}
