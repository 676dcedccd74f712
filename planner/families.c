/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of candidates: for every family of choices (some places and policies left out) the
 * best that the integer program finds, plain choices that need no solver, other rings of the
 * fastest ones, and neighbours. The rows of seconds are sums; what order costs shows only in the
 * simulator, which therefore compares families instead of trusting the rows between them. */
#include <math.h>

#include "planner/candidates.h"
#include "planner/clock.h"

/* Choices whose rows take this share longer than the fastest candidate are not of interest. */
static const double OF_INTEREST = 0.02;

/* The same of the family with all state on the GPU, whose programs are small: rows of plans with
 * offloaded blocks are off by so much, and nothing else is left to make up for it. */
static const double RESIDENT_OF_INTEREST = 0.12;

/* Gap of the families' integer programs, and the most time of one. */
static const double FAMILY_GAP = 1e-3, FAMILY_S = 0.25;

/* Candidates that take so much longer than the fastest may become plain ones within the slack. */
static const double MAY_BECOME = 0.03;

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
            const stw_bars bars = {barred, acts[j] | all->bars.acts};
            STW_TRY(
                try_family(all, &bars, i == 0 ? RESIDENT_OF_INTEREST : OF_INTEREST, choice, err));
        }
    }
out:
    return status;
}

/* ---- other rings ---- */

static stw_status try_rings(stw_candidates *all, uint32_t of, stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_choice_copy(all->cost, choice, &all->list[of].choice);
    if (stw_choice_uses(all->cost, choice) == 0) return STW_STATUS_OK;
    for (uint32_t r = 0; r < all->cost->n_rings; r++) {
        stw_evaluation rows;
        choice->ring = r;
        stw_cost_evaluate(all->cost, choice, &rows);
        if (rows.objective_s < all->list[all->fastest].seconds * (1 + OF_INTEREST))
            STW_TRY(stw_candidates_add(all, choice, NULL, err));
    }
out:
    return status;
}

/* ---- plainer ones ---- */

/* All units of a place in another one, all blocks of a policy in another one. */
static stw_status try_merges(stw_candidates *all, uint32_t of, stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = all->cost;
    for (uint32_t from = 0; from < cost->n_places; from++)
        for (uint32_t to = 0; to < cost->n_places; to++) {
            const stw_choice *base = &all->list[of].choice;
            if (base->units[from] == 0 || base->units[to] == 0) continue;
            const stw_unit_move move = {from, to, base->units[from]};
            stw_choice_copy(cost, choice, base);
            if (stw_move_units(cost, &all->bars, &move, choice))
                STW_TRY(stw_candidates_add(all, choice, NULL, err));
        }
    for (uint32_t from = 0; from < cost->n_acts; from++)
        for (uint32_t to = 0; to < cost->n_acts; to++) {
            const stw_choice *base = &all->list[of].choice;
            const stw_unit_move move = {from, to, base->acts[from]};
            stw_choice_copy(cost, choice, base);
            if (stw_move_blocks(cost, &all->bars, &move, choice))
                STW_TRY(stw_candidates_add(all, choice, NULL, err));
        }
out:
    return status;
}

/* As many of the move's units or blocks as fit without filling the GPU further than counts; 0:
 * none.
 */
static uint32_t most_that_fit(stw_candidates *all, uint32_t of, bool blocks, stw_unit_move move,
                              stw_choice *choice) {
    const double most_full = stw_candidates_fullness(all, &all->list[of].rows);
    uint32_t low = 0, high = move.units;
    while (low < high) {
        stw_evaluation rows;
        move.units = high - (high - low) / 2;
        stw_choice_copy(all->cost, choice, &all->list[of].choice);
        bool moves = blocks ? stw_move_blocks(all->cost, &all->bars, &move, choice)
                            : stw_move_units(all->cost, &all->bars, &move, choice);
        if (moves) stw_cost_evaluate(all->cost, choice, &rows);
        if (moves && rows.fits && stw_candidates_fullness(all, &rows) <= most_full)
            low = move.units;
        else
            high = move.units - 1;
    }
    return low;
}

/* Less that is moved: blocks that keep their activations after all, state back on the GPU. */
static stw_status try_fewer(stw_candidates *all, uint32_t of, stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = all->cost;
    for (uint32_t from = 0; from < cost->n_acts; from++)
        for (uint32_t to = 0; to < cost->n_acts; to++) {
            stw_unit_move move = {from, to, all->list[of].choice.acts[from]};
            if (cost->acts[to].act != STW_ACT_KEEP || from == to) continue;
            if (cost->acts[to].group != cost->acts[from].group) continue;
            move.units = most_that_fit(all, of, true, move, choice);
            stw_choice_copy(cost, choice, &all->list[of].choice);
            if (stw_move_blocks(cost, &all->bars, &move, choice))
                STW_TRY(stw_candidates_add(all, choice, NULL, err));
        }
    for (uint32_t from = 0; from < cost->n_places && !cost->whole; from++)
        for (uint32_t to = 0; to < cost->n_places; to++) {
            stw_unit_move move = {from, to, all->list[of].choice.units[from]};
            if (from == to || any_off_gpu(&cost->places[to])) continue;
            move.units = most_that_fit(all, of, false, move, choice);
            stw_choice_copy(cost, choice, &all->list[of].choice);
            if (stw_move_units(cost, &all->bars, &move, choice))
                STW_TRY(stw_candidates_add(all, choice, NULL, err));
        }
out:
    return status;
}

/* The fastest candidate of each plainness below that of the fastest of all, plainest first, is
 * improved without leaving its plainness, until one is within the slack. */
static stw_status improve_plainer(stw_candidates *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plainness done = {0, 0};
    for (;;) {
        const stw_candidate *fastest = &all->list[all->fastest];
        uint32_t next = STW_NO_CANDIDATE;
        for (uint32_t i = 0; i < all->n; i++) {
            const stw_candidate *c = &all->list[i];
            if (stw_plainness_compare(&c->plain, &done) <= 0 ||
                stw_plainness_compare(&c->plain, &fastest->plain) >= 0 ||
                c->seconds > fastest->seconds * (1 + MAY_BECOME))
                continue;
            int order = next == STW_NO_CANDIDATE
                            ? -1
                            : stw_plainness_compare(&c->plain, &all->list[next].plain);
            if (order < 0 || (order == 0 && c->seconds < all->list[next].seconds)) next = i;
        }
        if (next == STW_NO_CANDIDATE) break;
        done = all->list[next].plain;
        STW_TRY(stw_candidates_improve(all, &done, &next, err));
        if (all->list[next].seconds <= all->list[all->fastest].seconds * (1 + STW_PLAIN_SLACK))
            break;
    }
out:
    return status;
}

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
static stw_status improve_fastest(stw_candidates *all, stw_error *err) {
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

stw_status stw_candidates_look_around(stw_candidates *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_choice choice = stw_choice_new(all->cost, all->pool);
    if (choice.acts == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
    STW_TRY(try_rings(all, all->fastest, &choice, err));
    STW_TRY(improve_fastest(all, err));
    STW_TRY(stw_candidates_try_mixes(all, err));
    uint32_t best = all->fastest;
    const stw_plainness any = {UINT32_MAX, UINT32_MAX};
    STW_TRY(stw_candidates_improve(all, &any, &best, err));
    STW_TRY(try_rings(all, all->fastest, &choice, err));
    STW_TRY(try_merges(all, all->fastest, &choice, err));
    STW_TRY(improve_plainer(all, err));
    STW_TRY(try_fewer(all, stw_candidates_choose(all), &choice, err));
    STW_TRY(try_rings(all, stw_candidates_choose(all), &choice, err));
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
    STW_TRY(stw_candidates_look_around(all, err));
out:
    return status;
}
