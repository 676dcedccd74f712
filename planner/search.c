/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of candidates: the best that the integer program finds for one number of offloaded and
 * of kept blocks after the other, and descents from the fastest of them. The rows of seconds are
 * sums; what order costs shows only in the simulator. */
#include <math.h>
#include <stdlib.h>

#include "planner/candidates.h"

/* Choices whose rows take this share longer than the fastest candidate are not of interest. */
static const double OF_INTEREST = 0.05;

/* Points of the first grid of numbers of blocks. */
#define POINTS 8u

/* Descents begin at so many candidates. Neighbours that are simulated before one counts as the best
 * around. */
#define STARTS 3
#define TRIES 40

/* Neighbours must be faster by this share, and their rows not slower by the others: rows of
 * offloaded blocks are off by more. */
static const double LEAST_GAIN = 2e-4, MOST_LOSS = 0.03, MOST_LOSS_OFFLOADED = 0.1;

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
    STW_TRY(stw_candidates_solve_quickly(
        all, &bars, all->list[all->fastest].seconds * (1 + OF_INTEREST), &found, err));
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

/* ---- a descent on the candidates' seconds ---- */

/* Some units in another place, some blocks under another policy, or another ring. */
typedef enum move_kind { UNITS, BLOCKS, RING } move_kind;
typedef struct neighbour {
    move_kind kind;
    stw_unit_move move;
    double guess_s; /* the centre's seconds and the difference of the rows */
    uint32_t order; /* in which it was found */
    bool again;     /* the move that led to the centre once more */
} neighbour;

typedef struct around {
    stw_candidates *all;
    const stw_candidate *centre;
    stw_pool *pool;
    stw_choice now;
    neighbour last; /* what led to the centre */
    neighbour *list;
    uint32_t n;
    size_t room;
} around;

/* Makes a->now the neighbour; false where it is none. */
static bool go_to(around *a, move_kind kind, const stw_unit_move *move) {
    const stw_cost *cost = a->all->cost;
    stw_choice_copy(cost, &a->now, &a->centre->choice);
    if (kind == UNITS) return stw_move_units(cost, &a->all->bars, move, &a->now);
    if (kind == BLOCKS) return stw_move_blocks(cost, &a->all->bars, move, &a->now);
    a->now.ring = move->to;
    return move->to != move->from;
}

/* Note a neighbour that fits by the rows and may be faster. */
static stw_status look_at(around *a, move_kind kind, stw_unit_move move, stw_error *err) {
    const stw_cost *cost = a->all->cost;
    const bool offloads = kind == BLOCKS && cost->acts[move.to].act == STW_ACT_OFFLOAD;
    const double most_s = a->centre->seconds * (1 + (offloads ? MOST_LOSS_OFFLOADED : MOST_LOSS));
    stw_evaluation e;
    if (!stw_candidates_go_on(a->all) || !go_to(a, kind, &move)) return STW_STATUS_OK;
    stw_candidates_evaluate(a->all, &a->now, &e);
    const double guess_s = a->centre->seconds + e.objective_s - a->centre->rows.objective_s;
    if (!e.fits || guess_s > most_s) return STW_STATUS_OK;
    neighbour *list =
        stw_pool_grow(a->pool, a->list, a->n, (size_t)a->n + 1, &a->room, sizeof *list);
    if (list == NULL) return stw_planner_no_memory(err);
    a->list = list;
    list[a->n] = (neighbour){kind, move, guess_s, a->n, false};
    a->n++;
    return STW_STATUS_OK;
}

static stw_status find_neighbours(around *a, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = a->all->cost;
    const stw_choice *centre = &a->centre->choice;
    for (uint32_t r = 0; r < cost->n_rings; r++)
        STW_TRY(look_at(a, RING, (stw_unit_move){centre->ring, r, 0}, err));
    for (uint32_t from = 0; from < cost->n_places; from++)
        for (uint32_t to = 0; to < cost->n_places; to++)
            for (uint32_t k = centre->units[from]; k > 0; k = k > 1 && !cost->whole ? k / 4 : 0)
                STW_TRY(look_at(a, UNITS, (stw_unit_move){from, to, k}, err));
    for (uint32_t from = 0; from < cost->n_acts; from++)
        for (uint32_t to = 0; to < cost->n_acts; to++)
            for (uint32_t k = centre->acts[from]; k > 0; k /= 2)
                STW_TRY(look_at(a, BLOCKS, (stw_unit_move){from, to, k}, err));
out:
    return status;
}

/* What led to the centre comes first, then what the rows say is fastest; equal ones in the order in
 * which they are found. */
static int by_promise(const void *a, const void *b) {
    const neighbour *x = a, *y = b;
    if (x->again != y->again) return x->again ? -1 : 1;
    if (x->guess_s != y->guess_s) return x->guess_s < y->guess_s ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static bool same_move(const neighbour *a, const neighbour *b) {
    return a->kind == b->kind && a->move.from == b->move.from && a->move.to == b->move.to;
}

/* @param index in and out: the first neighbour that is faster */
static stw_status look_around(around *a, uint32_t *index, bool *better, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_candidates *all = a->all;
    const stw_candidate centre = all->list[*index];
    const uint32_t before = all->n;
    a->centre = &centre;
    a->n = 0;
    *better = false;
    STW_TRY(find_neighbours(a, err));
    for (uint32_t i = 0; i < a->n; i++) a->list[i].again = same_move(&a->list[i], &a->last);
    if (a->n > 0) qsort(a->list, a->n, sizeof *a->list, by_promise);
    for (uint32_t i = 0; i < a->n && all->n < before + TRIES && !*better; i++) {
        uint32_t found;
        (void)go_to(a, a->list[i].kind, &a->list[i].move);
        STW_TRY(stw_candidates_add(all, &a->now, &found, err));
        if (found == STW_NO_CANDIDATE) continue;
        *better = all->list[found].seconds < centre.seconds * (1 - LEAST_GAIN);
        if (!*better) continue;
        *index = found;
        a->last = a->list[i];
    }
out:
    return status;
}

/* The fastest candidate of the first `n` that no descent began at yet. */
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
    const uint32_t n = all->n;
    around a = {.all = all, .pool = stw_pool_new()};
    bool *done = stw_pool_array(all->pool, n, sizeof *done);
    if (a.pool != NULL) a.now = stw_choice_new(all->cost, a.pool);
    if (a.now.acts == NULL || done == NULL) STW_TRY(stw_planner_no_memory(err));
    for (int start = 0; start < STARTS; start++) {
        uint32_t index = next_start(all, done, n);
        bool better = index != STW_NO_CANDIDATE;
        if (better) done[index] = true;
        while (better && stw_candidates_go_on(all)) STW_TRY(look_around(&a, &index, &better, err));
    }
out:
    stw_pool_free(a.pool);
    return status;
}

/* ---- all of it ---- */

stw_status stw_candidates_search(stw_candidates *all, const stw_choice *first, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_candidates_add(all, first, NULL, err));
    if (all->n == 0) goto out;
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
    if (all->n > 0) STW_TRY(stw_candidates_descend(all, err));
out:
    return status;
}
