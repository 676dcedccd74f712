/* SPDX-License-Identifier: Apache-2.0 */
/* A descent on the candidates' seconds. A neighbour has some units in another place, some blocks
 * under another policy, or another ring. The rows tell in which order neighbours are worth
 * simulating. */
#include <math.h>
#include <stdlib.h>

#include "planner/candidates.h"

/* Neighbours that are simulated before a candidate counts as the best around. */
#define TRIES 40

/* Of moves that differ in their amount alone so many are tried before the next of others. */
#define EACH 2

/* Neighbours must be faster by this share, and their rows not slower by the others. Rows of
 * offloaded blocks are off by more than others, and know little of what rings do in caches. */
static const double LEAST_GAIN = 2e-4, MOST_LOSS = 0.03, MOST_LOSS_OFFLOADED = 0.1,
                    MOST_LOSS_OF_OPTION = 0.2;

/* Load methods as fast as the centre's may take less memory. */
static const double SAME_LOAD = 1e-6;

typedef enum move_kind { UNITS, BLOCKS, RING, LOAD } move_kind;

typedef struct neighbour {
    move_kind kind;
    stw_unit_move move;
    double guess_s; /* the centre's seconds and the difference of the rows */
    uint32_t order; /* in which it was found */
    uint32_t rank;  /* among those with the same move, in steps */
} neighbour;

typedef struct around {
    stw_candidates *all;
    uint32_t policies; /* at most */
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
    switch (kind) {
    case UNITS:
        return stw_move_units(cost, &a->all->bars, move, &a->now);
    case BLOCKS:
        return stw_move_blocks(cost, &a->all->bars, move, &a->now);
    case RING:
        a->now.ring = move->to;
        return move->to != move->from;
    default:
        a->now.load = move->to;
        return move->to != move->from &&
               cost->load_s[move->to] <= cost->load_s[move->from] * (1 + SAME_LOAD);
    }
}

static double most_loss(const around *a, move_kind kind, const stw_unit_move *move) {
    if (kind == RING || kind == LOAD) return MOST_LOSS_OF_OPTION;
    const bool offloads = kind == BLOCKS && a->all->cost->acts[move->to].act == STW_ACT_OFFLOAD;
    return offloads ? MOST_LOSS_OFFLOADED : MOST_LOSS;
}

/* Note a neighbour that fits by the rows and may be faster. */
static stw_status look_at(around *a, move_kind kind, stw_unit_move move, stw_error *err) {
    stw_evaluation e;
    if (!stw_candidates_go_on(a->all) || !go_to(a, kind, &move)) return STW_STATUS_OK;
    stw_candidates_evaluate(a->all, &a->now, &e);
    const double guess_s = a->centre->seconds + e.objective_s - a->centre->rows.objective_s;
    if (!e.fits || guess_s > a->centre->seconds * (1 + most_loss(a, kind, &move)) ||
        stw_choice_plainness(a->all->cost, &a->now).policies > a->policies)
        return STW_STATUS_OK;
    neighbour *list =
        stw_pool_grow(a->pool, a->list, a->n, (size_t)a->n + 1, &a->room, sizeof *list);
    if (list == NULL) return stw_planner_no_memory(err);
    a->list = list;
    list[a->n] = (neighbour){kind, move, guess_s, a->n, 0};
    a->n++;
    return STW_STATUS_OK;
}

static stw_status find_neighbours(around *a, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = a->all->cost;
    const stw_choice *centre = &a->centre->choice;
    for (uint32_t r = 0; r < cost->n_rings; r++)
        STW_TRY(look_at(a, RING, (stw_unit_move){centre->ring, r, 0}, err));
    for (uint32_t l = 0; l < cost->n_loads; l++)
        STW_TRY(look_at(a, LOAD, (stw_unit_move){centre->load, l, 0}, err));
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

static bool same_move(const neighbour *a, const neighbour *b) {
    return a->kind == b->kind && a->move.from == b->move.from && a->move.to == b->move.to;
}

/* Equal ones in the order in which they are found. */
static int by_rank(const void *a, const void *b) {
    const neighbour *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->guess_s != y->guess_s) return x->guess_s < y->guess_s ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* What led to the centre comes first, then the best of every move before the second best of any. */
static void sort_neighbours(around *a) {
    if (a->n == 0) return;
    qsort(a->list, a->n, sizeof *a->list, by_rank);
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = 0; j < i; j++) a->list[i].rank += same_move(&a->list[j], &a->list[i]);
    for (uint32_t i = 0; i < a->n; i++)
        a->list[i].rank = same_move(&a->list[i], &a->last) ? 0 : 1 + a->list[i].rank / EACH;
    qsort(a->list, a->n, sizeof *a->list, by_rank);
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
    sort_neighbours(a);
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

stw_status stw_candidates_improve(stw_candidates *all, uint32_t policies, uint32_t index,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool better = true;
    around a = {.all = all, .policies = policies, .pool = stw_pool_new()};
    if (a.pool != NULL) a.now = stw_choice_new(all->cost, a.pool);
    if (a.now.acts == NULL) STW_TRY(stw_planner_no_memory(err));
    while (better && stw_candidates_go_on(all)) STW_TRY(look_around(&a, &index, &better, err));
out:
    stw_pool_free(a.pool);
    return status;
}
