/* SPDX-License-Identifier: Apache-2.0 */
/* A second solver: it evaluates all choices of a small problem, one by one. The ILP must agree. */
#ifndef STW_TESTS_UNIT_EXHAUSTIVE_H
#define STW_TESTS_UNIT_EXHAUSTIVE_H

#include "planner/solvers.h"

typedef struct search {
    const stw_cost *cost;
    stw_choice now, *best;
    stw_evaluation best_evaluation;
    bool over; /* what is least over the limits counts, fitting or not */
    bool found;
} search;

static void try_now(search *s) {
    stw_evaluation evaluation;
    stw_cost_evaluate(s->cost, &s->now, &evaluation);
    if (s->over ? !stw_choice_keeps_shares(s->cost, &s->now) : !evaluation.fits) return;
    double least = s->over ? s->best_evaluation.over_share : s->best_evaluation.objective_s;
    if (s->found && (s->over ? evaluation.over_share : evaluation.objective_s) >= least) return;
    s->found = true;
    s->best_evaluation = evaluation;
    stw_choice_copy(s->cost, s->best, &s->now);
}

static void try_rings_and_loads(search *s) {
    /* Without a ring in use all options are the same. */
    uint32_t n_rings = stw_choice_uses(s->cost, &s->now) != 0 ? s->cost->n_rings : 1;
    for (s->now.ring = 0; s->now.ring < n_rings; s->now.ring++)
        for (s->now.load = 0; s->now.load < s->cost->n_loads; s->now.load++) try_now(s);
    s->now.ring = s->now.load = 0;
}

/* Blocks of option `a` and of those after it; `left` of its group are still to be given out. */
static void try_acts(search *s, uint32_t a, uint32_t left) {
    if (a == s->cost->n_acts) {
        try_rings_and_loads(s);
        return;
    }
    const stw_cost_act *act = &s->cost->acts[a];
    if (a == 0 || s->cost->acts[a - 1].group != act->group) left = act->blocks;
    bool last = a + 1 == s->cost->n_acts || s->cost->acts[a + 1].group != act->group;
    for (uint32_t n = last ? left : 0; n <= left; n++) {
        s->now.acts[a] = n;
        try_acts(s, a + 1, left - n);
    }
    s->now.acts[a] = 0;
}

static void try_units(search *s, uint32_t p, uint32_t left) {
    bool last = p + 1 == s->cost->n_places;
    uint32_t step = s->cost->whole ? s->cost->n_units : 1;
    for (uint32_t n = last ? left : 0; n <= left; n += step) {
        s->now.units[p] = n;
        if (last)
            try_acts(s, 0, 0);
        else
            try_units(s, p + 1, left - n);
    }
    s->now.units[p] = 0;
}

/* Ways to give `n` alike things to `kinds` different ones: (n + kinds - 1) over (kinds - 1). */
static double ways(uint32_t n, uint32_t kinds) {
    double count = 1;
    for (uint32_t k = 1; k < kinds; k++) count *= (double)(n + k) / k;
    return count;
}

static double count_choices(const stw_cost *cost) {
    double count = cost->whole ? cost->n_places : ways(cost->n_units, cost->n_places);
    count *= (double)cost->n_rings * cost->n_loads;
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        if (a > first) count *= ways(cost->acts[first].blocks, a - first);
        first = a;
    }
    return count;
}

static bool try_everything(const stw_cost *cost, uint64_t most_choices, bool over,
                           stw_choice *choice, stw_evaluation *evaluation) {
    if (count_choices(cost) > (double)most_choices) return false;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return false;
    search s = {.cost = cost, .now = stw_choice_new(cost, pool), .best = choice, .over = over};
    if (s.now.acts != NULL) try_units(&s, 0, cost->n_units);
    if (s.found) *evaluation = s.best_evaluation;
    stw_pool_free(pool);
    return s.found;
}

/* @param most_choices give up (false) above so many @return false where nothing fits or there is
 * too much to try */
static inline bool exhaustive_solve(const stw_cost *cost, uint64_t most_choices, stw_choice *choice,
                                    stw_evaluation *evaluation) {
    return try_everything(cost, most_choices, false, choice, evaluation);
}

/* The choice that is the least over the limits. @return false where there is too much to try */
static inline bool exhaustive_least_over(const stw_cost *cost, uint64_t most_choices,
                                         stw_choice *choice, stw_evaluation *evaluation) {
    return try_everything(cost, most_choices, true, choice, evaluation);
}

#endif
