/* SPDX-License-Identifier: Apache-2.0 */
/* Where nothing fits: the choice that is least over the limits, by the order of solvers.h. The
 * integer program of each ring option, with rows of bytes that may be exceeded, gives one start;
 * every place by itself gives others, which need no solver. A descent on the rows makes them whole,
 * and the best is taken. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "planner/clock.h"
#include "planner/formulation.h"

/* Of the search for least over, and of the seconds after it. */
static const double OVER_GAP = 1e-3, SECONDS_GAP = 1e-2, SLICE_S = 0.5;
#define OVER_NODES 100

/* Choices that differ by less than this share of it are over the limits alike. */
static const double SAME_OVER = 1e-4;

typedef struct over_search {
    const stw_cost *cost;
    stw_bars bars;
    stw_pool *pool;
    stw_ilp_result *result;
    stw_error *err;
    double end_s;
    stw_choice *best, now;
    stw_evaluation best_e;
    bool found;
} over_search;

static void offer(over_search *s) {
    stw_evaluation e;
    stw_choice_descend(s->cost, &s->bars, s->cost->n_units, &s->now, &e);
    if (!stw_choice_keeps_shares(s->cost, &s->now)) return;
    if (s->found && !stw_evaluation_is_better(&e, &s->best_e, SAME_OVER)) return;
    s->found = true;
    s->best_e = e;
    stw_choice_copy(s->cost, s->best, &s->now);
}

/* ---- without a solver ---- */

/* One policy for every group: this one, or the first that the group has and that is not barred. */
static void set_acts(over_search *s, stw_act act) {
    const stw_cost *cost = s->cost;
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        uint32_t chosen = a;
        for (uint32_t i = first; i < a; i++) {
            s->now.acts[i] = 0;
            if (stw_act_barred(cost, i, &s->bars)) continue;
            if (chosen == a || cost->acts[i].act == act) chosen = i;
        }
        if (chosen < a) s->now.acts[chosen] = cost->acts[chosen].blocks;
        first = a;
    }
}

/* All that shares leave open in one place; each fixed share in that place if it can be, else in the
 * first or the last place that it has. */
static bool set_units(over_search *s, uint32_t place, bool last) {
    const stw_cost *cost = s->cost;
    uint32_t left = cost->n_units;
    memset(s->now.units, 0, sizeof s->now.units);
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t units = cost->update_units[u], p = cost->n_places;
        if (units == STW_AUTO || units == 0) continue;
        for (uint32_t i = 0; i < cost->n_places; i++)
            if (cost->places[i].update == (stw_update)u && (p == cost->n_places || last)) p = i;
        if (cost->places[place].update == (stw_update)u) p = place;
        if (p == cost->n_places) return false;
        s->now.units[p] = units;
        left -= units;
    }
    bool fixed = cost->update_units[cost->places[place].update] != STW_AUTO;
    if (left > 0 && fixed) return false;
    s->now.units[place] += left;
    return true;
}

static uint32_t smallest_ring(const stw_cost *cost) {
    uint32_t smallest = 0;
    for (uint32_t r = 1; r < cost->n_rings; r++) {
        const stw_cost_ring *ring = &cost->rings[r], *least = &cost->rings[smallest];
        if (stw_times(ring->depth, ring->bucket_bytes) <
            stw_times(least->depth, least->bucket_bytes))
            smallest = r;
    }
    return smallest;
}

/* A descent from every place; where no solver helps, with every policy and from both ends of what
 * shares fix. */
static void try_places(over_search *s) {
    static const stw_act acts[] = {STW_ACT_RECOMPUTE, STW_ACT_OFFLOAD, STW_ACT_KEEP};
    const uint32_t n_acts = s->found ? 1 : sizeof acts / sizeof acts[0], n_ends = s->found ? 1 : 2;
    const uint32_t ring = smallest_ring(s->cost);
    for (uint32_t p = 0; p < s->cost->n_places; p++)
        for (uint32_t i = 0; i < n_acts * n_ends; i++) {
            if (s->found && stw_planner_now_s() > s->end_s) return;
            if ((s->bars.places & (1u << p)) || !set_units(s, p, i >= n_acts)) continue;
            s->now.ring = ring;
            s->now.load = 0;
            set_acts(s, acts[i % n_acts]);
            offer(s);
        }
}

/* The best so far with every other ring: how much of a host a ring takes shows in no relaxation. */
static void try_rings(over_search *s) {
    const uint32_t ring = s->best->ring;
    for (uint32_t r = 0; r < s->cost->n_rings && s->found; r++) {
        if (r == ring) continue;
        stw_choice_copy(s->cost, &s->now, s->best);
        s->now.ring = r;
        offer(s);
    }
}

/* ---- with one ---- */

static stw_status solve_shape(over_search *s, const stw_ilp_shape *shape, double gap, bool relaxed,
                              stw_milp_result *solved) {
    const double left = s->end_s - stw_planner_now_s();
    const stw_milp_options options = {.time_limit_s = fmax(0.01, fmin(left, SLICE_S)),
                                      .gap = gap,
                                      .relaxed = relaxed,
                                      .max_nodes = OVER_NODES,
                                      .enough = INFINITY};
    stw_status status = stw_ilp_solve_shape(s->cost, shape, &options, &s->now, solved, s->err);
    if (status == STW_STATUS_OK && !relaxed && stw_milp_has_solution(solved->outcome)) offer(s);
    return status;
}

static void note_stage(over_search *s, const char *name, const stw_milp_result *solved) {
    s->result->stage_names[s->result->n_stages] = name;
    s->result->stages[s->result->n_stages++] = *solved;
}

/* The ring option whose relaxation is least over; of the others none can be much less. */
static stw_status try_solver(over_search *s) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_shape shape = {.goal = STW_GOAL_OVER,
                           .n_rings = 1,
                           .bars = s->bars,
                           .units_split = true,
                           .elastic = true,
                           .most_over = INFINITY};
    stw_milp_result solved;
    uint32_t best = 0;
    double least = INFINITY;
    for (uint32_t r = 0; r < s->cost->n_rings; r++) {
        shape.first_ring = r;
        STW_TRY(solve_shape(s, &shape, OVER_GAP, true, &solved));
        if (solved.outcome != STW_MILP_OPTIMAL || solved.bound >= least - 1e-6) continue;
        least = solved.bound;
        best = r;
    }
    if (isinf(least)) goto out;
    shape.first_ring = best;
    STW_TRY(solve_shape(s, &shape, OVER_GAP, false, &solved));
    note_stage(s, "over_share", &solved);
    if (isnan(solved.objective)) goto out;
    shape.goal = STW_GOAL_SECONDS;
    shape.most_over = solved.objective * (1 + OVER_GAP) + 1e-6;
    STW_TRY(solve_shape(s, &shape, SECONDS_GAP, false, &solved));
    note_stage(s, "seconds", &solved);
out:
    return status;
}

stw_status stw_ilp_solve_least_over(const stw_cost *cost, const stw_ilp_options *options,
                                    stw_choice *choice, stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double start_s = stw_planner_now_s();
    memset(result, 0, sizeof *result);
    over_search s = {.cost = cost,
                     .bars = options->bars,
                     .pool = stw_pool_new(),
                     .result = result,
                     .err = err,
                     .end_s = start_s + options->time_limit_s,
                     .best = choice};
    if (s.pool != NULL) s.now = stw_choice_new(cost, s.pool);
    if (s.pool == NULL || s.now.acts == NULL) {
        status = stw_planner_no_memory(err);
        goto out;
    }
    if (!options->no_solver) STW_TRY(try_solver(&s));
    try_places(&s);
    try_rings(&s);
    result->outcome = s.found ? STW_MILP_FEASIBLE : STW_MILP_LIMIT;
    result->seconds = stw_planner_now_s() - start_s;
out:
    stw_pool_free(s.pool);
    return status;
}
