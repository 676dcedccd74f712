/* SPDX-License-Identifier: Apache-2.0 */
/* Whole choices from fractions, and a descent on the problem's own rows. Every move keeps the sums:
 * units go from one place to another of the same share, blocks from one policy of their group to
 * another. */
#include <math.h>

#include "planner/solvers.h"

/* Steps of the descent: so many units or blocks, and powers of two below. */
#define MOST_SWEEPS 40

static bool same_share(const stw_cost *cost, uint32_t p, uint32_t q) {
    stw_update a = cost->places[p].update, b = cost->places[q].update;
    bool fixed = cost->update_units[a] != STW_AUTO || cost->update_units[b] != STW_AUTO;
    return a == b || !fixed;
}

bool stw_move_units(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                    stw_choice *choice) {
    uint32_t units = move->units;
    if (move->from == move->to || (bars->places & (1u << move->to))) return false;
    if (choice->units[move->from] < units || units == 0) return false;
    if (cost->whole && units != cost->n_units) return false;
    if (!same_share(cost, move->from, move->to)) return false;
    choice->units[move->from] -= units;
    choice->units[move->to] += units;
    return true;
}

bool stw_move_blocks(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                     stw_choice *choice) {
    uint32_t from = move->from, to = move->to;
    if (from == to || cost->acts[from].group != cost->acts[to].group) return false;
    if (choice->acts[from] < move->units || move->units == 0) return false;
    if (stw_act_barred(cost, to, bars)) return false;
    if (bars->frozen & (1u << cost->acts[from].act | 1u << cost->acts[to].act)) return false;
    choice->acts[from] -= move->units;
    choice->acts[to] += move->units;
    return true;
}

bool stw_evaluation_is_better(const stw_evaluation *a, const stw_evaluation *b, double same) {
    const bool less = a->over_share < b->over_share * (1 - same) - 1e-5 * same;
    const bool more = a->over_share > b->over_share * (1 + same) + 1e-5 * same;
    if (less || more) return less;
    if (a->over_share > 0 && a->held_bytes != b->held_bytes) return a->held_bytes < b->held_bytes;
    return a->objective_s < b->objective_s * (1 - 1e-9);
}

typedef struct descent {
    const stw_cost *cost;
    const stw_bars *bars;
    stw_choice *choice;
    stw_evaluation *now;
} descent;

static bool is_better(const descent *d) {
    stw_evaluation e;
    stw_cost_evaluate(d->cost, d->choice, &e);
    if (!stw_evaluation_is_better(&e, d->now, 0)) return false;
    *d->now = e;
    return true;
}

/* @param back a move of numbers that undoes the last one */
static bool keep_if_better(const descent *d, stw_unit_move back, uint32_t *numbers) {
    if (is_better(d)) return true;
    numbers[back.from] -= back.units;
    numbers[back.to] += back.units;
    return false;
}

typedef bool move_function(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                           stw_choice *choice);

/* @param n numbers between which `move` moves, at most so many at a time */
static bool sweep(const descent *d, move_function *move, uint32_t *numbers, uint32_t n,
                  uint32_t most) {
    bool any = false;
    for (uint32_t from = 0; from < n; from++)
        for (uint32_t to = 0; to < n; to++)
            for (uint32_t k = most; k > 0; k /= 2) {
                const stw_unit_move there = {from, to, k}, back = {to, from, k};
                if (!move(d->cost, d->bars, &there, d->choice)) continue;
                any = keep_if_better(d, back, numbers) || any;
            }
    return any;
}

static void try_loads(const descent *d) {
    for (uint32_t l = 0; l < d->cost->n_loads; l++) {
        const uint32_t before = d->choice->load;
        d->choice->load = l;
        if (!is_better(d)) d->choice->load = before;
    }
}

void stw_choice_descend(const stw_cost *cost, const stw_bars *bars, uint32_t most,
                        stw_choice *choice, stw_evaluation *evaluation) {
    const descent d = {cost, bars, choice, evaluation};
    const uint32_t units = cost->whole ? cost->n_units : most;
    stw_cost_evaluate(cost, choice, evaluation);
    try_loads(&d);
    bool any = true;
    for (int i = 0; any && i < MOST_SWEEPS; i++) {
        any = sweep(&d, stw_move_units, choice->units, cost->n_places, units);
        any = sweep(&d, stw_move_blocks, choice->acts, cost->n_acts, most) || any;
    }
    try_loads(&d);
}

/* Whole numbers from fractions whose sum is whole: each gets its whole part, the rest goes where
 * the fractions are largest. Of `n` numbers those count for which `same` is true. */
typedef bool same_function(const stw_cost *cost, uint32_t a, uint32_t b);

static void round_set(const stw_cost *cost, same_function *same, uint32_t first, uint32_t n,
                      const double *values, uint32_t *out) {
    double sum = 0;
    uint32_t given = 0;
    for (uint32_t i = first; i < n; i++) {
        if (!same(cost, first, i)) continue;
        sum += values[i];
        out[i] = values[i] > 0 ? (uint32_t)floor(values[i] + 1e-7) : 0;
        given += out[i];
    }
    for (uint32_t all = (uint32_t)llround(sum); given < all; given++) {
        double most = -INFINITY;
        uint32_t largest = first;
        for (uint32_t i = first; i < n; i++) {
            double part = values[i] - out[i];
            if (!same(cost, first, i) || part <= most) continue;
            most = part;
            largest = i;
        }
        out[largest]++;
    }
}

static bool same_group(const stw_cost *cost, uint32_t a, uint32_t b) {
    return cost->acts[a].group == cost->acts[b].group;
}

static void round_sets(const stw_cost *cost, same_function *same, uint32_t n, const double *values,
                       uint32_t *out) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = 0;
        while (!same(cost, first, i)) first++;
        if (first == i) round_set(cost, same, i, n, values, out);
    }
}

void stw_choice_round(const stw_cost *cost, const double *units, const double *blocks,
                      stw_choice *choice) {
    round_sets(cost, same_share, cost->n_places, units, choice->units);
    if (cost->whole) {
        uint32_t most = 0;
        for (uint32_t p = 1; p < cost->n_places; p++)
            if (choice->units[p] > choice->units[most]) most = p;
        for (uint32_t p = 0; p < cost->n_places; p++) choice->units[p] = 0;
        choice->units[most] = cost->n_units;
    }
    round_sets(cost, same_group, cost->n_acts, blocks, choice->acts);
}
