/* SPDX-License-Identifier: Apache-2.0 */
/* A descent on the candidates' seconds. A neighbour has some units in another place or some blocks
 * under another policy; where that breaks a limit a second move makes up for it, and where it frees
 * memory a second move may use it. The rows tell in which order neighbours are worth simulating. */
#include <math.h>
#include <stdlib.h>

#include "planner/candidates.h"

/* Neighbours that are simulated before a candidate counts as the best around. */
#define TRIES 40

/* Of one kind of move so many are tried before the next of another kind. */
#define EACH 2

/* Neighbours must be faster by this share, and their rows not slower by that one. Rows of offloaded
 * blocks are off by more than others. */
static const double LEAST_GAIN = 2e-4, MOST_LOSS = 0.03, MOST_LOSS_OFFLOADED = 0.1,
                    MOST_LOSS_OF_OPTION = 0.2;

/* Load methods as fast as the centre's may take less memory. */
static const double SAME_LOAD = 1e-6;

typedef struct neighbour {
    stw_choice choice;
    double guess_s; /* the candidate's seconds and the difference of the rows */
    uint32_t order; /* in which it was found */
    uint32_t move;  /* what its first move does, without the amount */
    uint32_t rank;  /* among those with the same move */
} neighbour;

typedef struct around {
    stw_candidates *all;
    const stw_plainness *most;
    const stw_candidate *centre;
    stw_pool *pool;
    stw_choice now, second, trial;
    uint32_t move;      /* that led to `now` */
    bool offloads;      /* it offloads blocks */
    uint32_t uses;      /* of `now` */
    double *room_bytes; /* [n_byte_rows] that its rows leave */
    neighbour *list;
    uint32_t n;
    size_t room;
    bool out_of_memory;
} around;

static bool evaluate(around *a, const stw_choice *choice, stw_evaluation *e) {
    stw_cost_evaluate(a->all->cost, choice, e);
    a->all->work_left -= a->all->work_left > 4 ? 4 : a->all->work_left;
    return e->fits;
}

/* @param most_loss share of the seconds that the rows may promise to lose */
static void note(around *a, const stw_choice *choice, const stw_evaluation *e, double most_loss) {
    double guess = a->centre->seconds + e->objective_s - a->centre->rows.objective_s;
    stw_plainness plain = stw_choice_plainness(a->all->cost, choice);
    double loss = a->offloads ? fmax(MOST_LOSS_OFFLOADED, most_loss) : most_loss;
    if (guess > a->centre->seconds * (1 + loss)) return;
    if (plain.level > a->most->level || plain.policies > a->most->policies) return;
    neighbour *list =
        stw_pool_grow(a->pool, a->list, a->n, (size_t)a->n + 1, &a->room, sizeof *list);
    if (list != NULL) {
        a->list = list;
        list[a->n].choice = stw_choice_new(a->all->cost, a->pool);
    }
    if (list == NULL || list[a->n].choice.acts == NULL) {
        a->out_of_memory = true;
        return;
    }
    stw_choice_copy(a->all->cost, &list[a->n].choice, choice);
    list[a->n].order = a->n;
    list[a->n].move = a->move;
    list[a->n++].guess_s = guess;
}

/* ---- second moves ---- */

typedef bool move_function(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                           stw_choice *choice);

/* What a move of one unit or block adds to a row, and what it adds once. */
typedef struct addition {
    double each, once;
} addition;

static addition of_units(const around *a, const stw_byte_row *row, const stw_unit_move *move) {
    const stw_cost *cost = a->all->cost;
    addition added = {(double)row->unit_bytes[move->to] - (double)row->unit_bytes[move->from], 0};
    uint32_t new_uses = a->now.units[move->to] > 0 ? 0 : cost->place_uses[move->to] & ~a->uses;
    for (uint32_t u = 0; new_uses >> u != 0; u++)
        if (new_uses & (1u << u))
            added.once += (double)row->ring_bytes[u * cost->n_rings + a->now.ring];
    return added;
}

static addition of_blocks(const around *a, const stw_byte_row *row, const stw_unit_move *move) {
    addition added = {(double)row->act_bytes[move->to] - (double)row->act_bytes[move->from], 0};
    if (a->now.acts[move->to] == 0) added.once = (double)row->act_once_bytes[move->to];
    return added;
}

/* The least that must be moved for every row to hold, or the most for which it does where all hold
 * as it is; 0: none. */
static uint32_t amount(const around *a, const stw_unit_move *move, bool blocks, bool repair) {
    const stw_cost *cost = a->all->cost;
    double least = repair ? 1 : 0, most = move->units;
    for (uint32_t r = 0; r < cost->n_byte_rows && most >= 1; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        addition added = blocks ? of_blocks(a, row, move) : of_units(a, row, move);
        double room = a->room_bytes[r] - added.once;
        if (added.each > 0)
            most = fmin(most, floor(room / added.each));
        else if (room < 0 && added.each == 0)
            most = 0;
        else if (room < 0)
            least = fmax(least, ceil(room / added.each));
    }
    if (most < least || most < 1) return 0;
    return (uint32_t)(repair ? least : most);
}

/* Try the second move; the best by rows is kept in a->second. */
static void try_second(around *a, move_function *move, stw_unit_move second, bool repair,
                       stw_evaluation *best, bool *found) {
    stw_evaluation e;
    second.units = amount(a, &second, move == stw_move_blocks, repair);
    if (second.units == 0) return;
    stw_choice_copy(a->all->cost, &a->trial, &a->now);
    if (!move(a->all->cost, &a->all->bars, &second, &a->trial)) return;
    if (!evaluate(a, &a->trial, &e)) return;
    if (*found && e.objective_s >= best->objective_s) return;
    *best = e;
    *found = true;
    stw_choice_copy(a->all->cost, &a->second, &a->trial);
}

static void measure_room(around *a) {
    const stw_cost *cost = a->all->cost;
    a->uses = stw_choice_uses(cost, &a->now);
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        a->room_bytes[r] =
            (double)stw_cost_row_limit(row) - (double)stw_cost_row_bytes(cost, row, &a->now);
    }
}

/* Complete a->now: with a second move that makes it fit, or that uses what room there is. */
static void complete(around *a, bool fits, const stw_evaluation *first) {
    const stw_cost *cost = a->all->cost;
    stw_evaluation best = *first;
    bool found = fits;
    measure_room(a);
    if (fits) stw_choice_copy(cost, &a->second, &a->now);
    for (uint32_t from = 0; from < cost->n_places && !cost->whole; from++)
        for (uint32_t to = 0; to < cost->n_places && a->now.units[from] > 0; to++) {
            const stw_unit_move second = {from, to, a->now.units[from]};
            if (from != to) try_second(a, stw_move_units, second, !fits, &best, &found);
        }
    for (uint32_t from = 0; from < cost->n_acts; from++)
        for (uint32_t to = 0; to < cost->n_acts && a->now.acts[from] > 0; to++) {
            if (from == to || cost->acts[from].group != cost->acts[to].group) continue;
            const stw_unit_move second = {from, to, a->now.acts[from]};
            try_second(a, stw_move_blocks, second, !fits, &best, &found);
        }
    if (found) note(a, &a->second, &best, MOST_LOSS);
}

/* ---- first moves ---- */

static void try_first(around *a, move_function *move, const stw_unit_move *first) {
    stw_evaluation e;
    a->move = (move == stw_move_blocks ? 1u << 16 : 0) + (first->from << 8) + first->to;
    a->offloads = move == stw_move_blocks && a->all->cost->acts[first->to].act == STW_ACT_OFFLOAD;
    stw_choice_copy(a->all->cost, &a->now, &a->centre->choice);
    if (!move(a->all->cost, &a->all->bars, first, &a->now)) return;
    bool fits = evaluate(a, &a->now, &e);
    if (fits) note(a, &a->now, &e, MOST_LOSS);
    complete(a, fits, &e);
}

/* The same placement with another ring or load method. Rows know little of what rings do in caches.
 */
static void try_option(around *a, uint32_t ring, uint32_t load) {
    stw_evaluation e;
    a->move = (2u << 16) + (ring << 8) + load;
    stw_choice_copy(a->all->cost, &a->now, &a->centre->choice);
    a->now.ring = ring;
    a->now.load = load;
    if (evaluate(a, &a->now, &e)) note(a, &a->now, &e, MOST_LOSS_OF_OPTION);
}

static void find_options(around *a) {
    const stw_cost *cost = a->all->cost;
    const stw_choice *centre = &a->centre->choice;
    for (uint32_t r = 0; r < cost->n_rings; r++)
        if (r != centre->ring) try_option(a, r, centre->load);
    for (uint32_t l = 0; l < cost->n_loads; l++)
        if (l != centre->load && cost->load_s[l] <= cost->load_s[centre->load] * (1 + SAME_LOAD))
            try_option(a, centre->ring, l);
}

static void find_neighbours(around *a) {
    const stw_cost *cost = a->all->cost;
    const stw_choice *centre = &a->centre->choice;
    for (uint32_t from = 0; from < cost->n_places; from++)
        for (uint32_t to = 0; to < cost->n_places; to++)
            for (uint32_t k = centre->units[from]; k > 0 && from != to;
                 k = k > 1 && !cost->whole ? k / 4 : 0) {
                const stw_unit_move move = {from, to, k};
                if (a->all->work_left > 0) try_first(a, stw_move_units, &move);
            }
    for (uint32_t from = 0; from < cost->n_acts; from++)
        for (uint32_t to = 0; to < cost->n_acts; to++)
            for (uint32_t k = centre->acts[from]; k > 0 && from != to; k /= 2) {
                const stw_unit_move move = {from, to, k};
                if (a->all->work_left > 0) try_first(a, stw_move_blocks, &move);
            }
}

/* The best of every move come before the second of any. */
static int by_rank(const void *a, const void *b) {
    const neighbour *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->guess_s != y->guess_s) return x->guess_s < y->guess_s ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static int by_guess(const void *a, const void *b) {
    const neighbour *x = a, *y = b;
    if (x->guess_s != y->guess_s) return x->guess_s < y->guess_s ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* @param again a move that is worth trying first */
static void sort_neighbours(around *a, uint32_t again) {
    if (a->n == 0) return;
    qsort(a->list, a->n, sizeof *a->list, by_guess);
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = 0; j < i; j++) a->list[i].rank += a->list[j].move == a->list[i].move;
    for (uint32_t i = 0; i < a->n; i++)
        a->list[i].rank = a->list[i].move == again ? 0 : 1 + a->list[i].rank / EACH;
    qsort(a->list, a->n, sizeof *a->list, by_rank);
}

static stw_status look_around(stw_candidates *all, const stw_plainness *most, uint32_t *index,
                              uint32_t *again, bool *better, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    around a = {.all = all, .most = most, .pool = stw_pool_new()};
    const stw_candidate centre = all->list[*index];
    const uint32_t before = all->n;
    a.centre = &centre;
    *better = false;
    if (a.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory");
    a.now = stw_choice_new(all->cost, a.pool);
    a.second = stw_choice_new(all->cost, a.pool);
    a.trial = stw_choice_new(all->cost, a.pool);
    a.room_bytes = stw_pool_array(a.pool, all->cost->n_byte_rows, sizeof *a.room_bytes);
    a.out_of_memory =
        a.now.acts == NULL || a.second.acts == NULL || a.trial.acts == NULL || a.room_bytes == NULL;
    if (!a.out_of_memory) {
        find_options(&a);
        find_neighbours(&a);
    }
    if (a.out_of_memory) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for neighbours");
        goto out;
    }
    sort_neighbours(&a, *again);
    for (uint32_t i = 0; i < a.n && all->n < before + TRIES && !*better; i++) {
        uint32_t found;
        STW_TRY(stw_candidates_add(all, &a.list[i].choice, &found, err));
        if (found == STW_NO_CANDIDATE) continue;
        if (all->list[found].seconds >= centre.seconds * (1 - LEAST_GAIN)) continue;
        *index = found;
        *again = a.list[i].move;
        *better = true;
    }
out:
    stw_pool_free(a.pool);
    return status;
}

stw_status stw_candidates_improve(stw_candidates *all, const stw_plainness *most, uint32_t *index,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool better = true;
    uint32_t again = UINT32_MAX;
    while (better && stw_candidates_go_on(all))
        STW_TRY(look_around(all, most, index, &again, &better, err));
out:
    return status;
}
