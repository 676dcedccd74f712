/* SPDX-License-Identifier: Apache-2.0 */
/* What planning by hand comes to, as the price of not planning: one default ring, one policy for
 * all activations, as much state resident as the fullest row lets in, the rest in one other place;
 * shares that the run fixes in one place each. */
#include "planner/solvers.h"

#define USUAL_DEPTH 3
#define USUAL_BUCKET_BYTES (32ull << 20)

static uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

static uint32_t usual_ring(const stw_cost *cost) {
    uint32_t best = 0;
    for (uint32_t r = 1; r < cost->n_rings; r++) {
        const stw_cost_ring *ring = &cost->rings[r], *so_far = &cost->rings[best];
        uint64_t depth = distance(ring->depth, USUAL_DEPTH);
        uint64_t best_depth = distance(so_far->depth, USUAL_DEPTH);
        if (depth < best_depth ||
            (depth == best_depth && distance(ring->bucket_bytes, USUAL_BUCKET_BYTES) <
                                        distance(so_far->bucket_bytes, USUAL_BUCKET_BYTES)))
            best = r;
    }
    return best;
}

/* One policy for all groups; where a group does not have it, the one it has that saves least. */
static void set_acts(const stw_cost *cost, stw_act act, stw_choice *choice) {
    for (uint32_t a = 0; a < cost->n_acts; a++) choice->acts[a] = 0;
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        uint32_t chosen = a - 1; /* options of a group end with keep, where it is admitted */
        for (uint32_t i = first; i < a; i++)
            if (cost->acts[i].act == act) chosen = i;
        if (a > first) choice->acts[chosen] = cost->acts[chosen].blocks;
        first = a;
    }
}

static uint64_t gpu_bytes_per_unit(const stw_cost *cost, uint32_t p) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU && cost->byte_rows[r].unit_bytes[p] > most)
            most = cost->byte_rows[r].unit_bytes[p];
    return most;
}

/* Places in the order in which they are filled, and the quanta whose engine the run leaves open. */
typedef struct by_hand {
    const stw_cost *cost;
    const stw_bars *bars;
    uint32_t n;                            /* places in use */
    uint32_t order[STW_MAX_PLACES];        /* those with the most bytes on the GPU first */
    uint32_t open[STW_MAX_PLACES], n_open; /* of `order`: places of engines without a fixed share */
    uint32_t open_units;
    bool far; /* fixed shares go to the last place of their engine, not to the first */
} by_hand;

static void order_places(const stw_cost *cost, const stw_bars *bars, by_hand *hand) {
    *hand = (by_hand){.cost = cost, .bars = bars, .open_units = cost->n_units};
    for (uint32_t p = 0; p < cost->n_places; p++) {
        if (bars->places & (1u << p)) continue;
        uint32_t at = hand->n++;
        while (at > 0 &&
               gpu_bytes_per_unit(cost, hand->order[at - 1]) < gpu_bytes_per_unit(cost, p)) {
            hand->order[at] = hand->order[at - 1];
            at--;
        }
        hand->order[at] = p;
    }
    for (uint32_t i = 0; i < hand->n; i++)
        if (cost->update_units[cost->places[hand->order[i]].update] == STW_AUTO)
            hand->open[hand->n_open++] = hand->order[i];
    for (int u = 0; u < STW_N_UPDATES; u++)
        if (cost->update_units[u] != STW_AUTO) hand->open_units -= cost->update_units[u];
}

/* Fixed shares in one place each, nothing elsewhere. */
static void set_shares(const by_hand *hand, stw_choice *choice) {
    const stw_cost *cost = hand->cost;
    bool done[STW_N_UPDATES] = {false};
    for (uint32_t p = 0; p < cost->n_places; p++) choice->units[p] = 0;
    for (uint32_t i = 0; i < hand->n; i++) {
        uint32_t p = hand->order[hand->far ? hand->n - 1 - i : i];
        stw_update update = cost->places[p].update;
        if (done[update] || cost->update_units[update] == STW_AUTO) continue;
        done[update] = true;
        choice->units[p] = cost->update_units[update];
    }
}

/* `first` open units in one place, the rest of them in another. */
static bool split_fits(const by_hand *hand, uint32_t near, uint32_t far, uint32_t first,
                       stw_choice *choice, stw_evaluation *evaluation) {
    set_shares(hand, choice);
    if (hand->n_open > 0) {
        choice->units[near] += first;
        choice->units[far] += hand->open_units - first;
    }
    stw_cost_evaluate(hand->cost, choice, evaluation);
    return evaluation->fits;
}

/* The most units in `near` for which all rows hold; the choice is left at it. */
static bool fill(const by_hand *hand, uint32_t near, uint32_t far, stw_choice *choice,
                 stw_evaluation *evaluation) {
    if (split_fits(hand, near, far, hand->open_units, choice, evaluation)) return true;
    if (near == far || !split_fits(hand, near, far, 0, choice, evaluation)) return false;
    uint32_t low = 0, high = hand->open_units; /* low fits, high does not */
    while (!hand->cost->whole && high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (split_fits(hand, near, far, mid, choice, evaluation))
            low = mid;
        else
            high = mid;
    }
    return split_fits(hand, near, far, low, choice, evaluation);
}

/* With the activations and the rest of the choice as they are. */
static bool fill_places(by_hand *hand, stw_choice *choice, stw_evaluation *evaluation) {
    const stw_cost *cost = hand->cost;
    bool any_fixed = hand->n_open < hand->n;
    for (uint32_t far = hand->n_open > 1 ? 1 : 0; far == 0 || far < hand->n_open; far++)
        /* the method that reads least per rank first */
        for (uint32_t l = cost->n_loads; l-- > 0;) {
            choice->load = l;
            for (int turn = 0; turn <= (any_fixed ? 1 : 0); turn++) {
                hand->far = turn == 1;
                if (fill(hand, hand->open[0], hand->open[far], choice, evaluation)) return true;
            }
        }
    return false;
}

bool stw_greedy_solve(const stw_cost *cost, stw_choice *choice, stw_evaluation *evaluation) {
    const stw_bars none = {.places = 0};
    return stw_greedy_solve_without(cost, &none, choice, evaluation);
}

bool stw_greedy_solve_without(const stw_cost *cost, const stw_bars *bars, stw_choice *choice,
                              stw_evaluation *evaluation) {
    static const stw_act acts[] = {STW_ACT_KEEP, STW_ACT_RECOMPUTE, STW_ACT_OFFLOAD};
    by_hand hand;
    order_places(cost, bars, &hand);
    if (hand.n == 0 || (hand.n_open == 0 && hand.open_units > 0)) return false;
    choice->ring = usual_ring(cost);
    for (unsigned a = 0; a < sizeof acts / sizeof acts[0]; a++) {
        set_acts(cost, acts[a], choice);
        if (fill_places(&hand, choice, evaluation)) return true;
    }
    return false;
}
