/* SPDX-License-Identifier: Apache-2.0 */
/* What planning by hand comes to, as the price of not planning: one default ring, one policy for
 * all activations, as much state resident as the fullest row lets in, the rest in one other place.
 */
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

/* `first` units in one place, the rest in another. */
static bool split_fits(const stw_cost *cost, uint32_t near, uint32_t far, uint32_t first,
                       stw_choice *choice, stw_evaluation *evaluation) {
    for (uint32_t p = 0; p < cost->n_places; p++) choice->units[p] = 0;
    choice->units[near] = first;
    choice->units[far] += cost->n_units - first;
    stw_cost_evaluate(cost, choice, evaluation);
    return evaluation->fits;
}

/* The most units in `near` for which all rows hold; the choice is left at it. */
static bool fill(const stw_cost *cost, uint32_t near, uint32_t far, stw_choice *choice,
                 stw_evaluation *evaluation) {
    if (split_fits(cost, near, far, cost->n_units, choice, evaluation)) return true;
    if (near == far || !split_fits(cost, near, far, 0, choice, evaluation)) return false;
    uint32_t low = 0, high = cost->n_units; /* low fits, high does not */
    while (!cost->engine->whole && high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (split_fits(cost, near, far, mid, choice, evaluation))
            low = mid;
        else
            high = mid;
    }
    return split_fits(cost, near, far, low, choice, evaluation);
}

bool stw_greedy_solve(const stw_cost *cost, stw_choice *choice, stw_evaluation *evaluation) {
    static const stw_act acts[] = {STW_ACT_KEEP, STW_ACT_RECOMPUTE, STW_ACT_OFFLOAD};
    uint32_t order[STW_MAX_PLACES]; /* places, those with the most bytes on the GPU first */
    for (uint32_t p = 0; p < cost->n_places; p++) {
        uint32_t at = p;
        while (at > 0 && gpu_bytes_per_unit(cost, order[at - 1]) < gpu_bytes_per_unit(cost, p)) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = p;
    }
    choice->ring = usual_ring(cost);
    for (unsigned a = 0; a < sizeof acts / sizeof acts[0]; a++) {
        set_acts(cost, acts[a], choice);
        for (uint32_t far = cost->n_places > 1 ? 1 : 0; far < cost->n_places; far++)
            /* the method that reads least per rank first */
            for (uint32_t l = cost->n_loads; l-- > 0;) {
                choice->load = l;
                if (fill(cost, order[0], order[far], choice, evaluation)) return true;
            }
    }
    return false;
}
