/* SPDX-License-Identifier: Apache-2.0 */
/* A descent on the candidates' seconds. A neighbour has some units in another place, some blocks
 * under another policy, or another ring. The rows tell in which order neighbours are worth
 * simulating. */
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
    uint32_t policies; /* at most */
    const stw_candidate *centre;
    stw_pool *pool;
    stw_choice now;
    uint32_t move; /* that led to `now` */
    bool offloads; /* it offloads blocks */
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
    double loss = a->offloads ? fmax(MOST_LOSS_OFFLOADED, most_loss) : most_loss;
    if (guess > a->centre->seconds * (1 + loss)) return;
    if (stw_choice_plainness(a->all->cost, choice).policies > a->policies) return;
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

typedef bool move_function(const stw_cost *cost, const stw_bars *bars, const stw_unit_move *move,
                           stw_choice *choice);

static void try_first(around *a, move_function *move, const stw_unit_move *first) {
    stw_evaluation e;
    a->move = (move == stw_move_blocks ? 1u << 16 : 0) + (first->from << 8) + first->to;
    a->offloads = move == stw_move_blocks && a->all->cost->acts[first->to].act == STW_ACT_OFFLOAD;
    stw_choice_copy(a->all->cost, &a->now, &a->centre->choice);
    if (!move(a->all->cost, &a->all->bars, first, &a->now)) return;
    if (evaluate(a, &a->now, &e)) note(a, &a->now, &e, MOST_LOSS);
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

static stw_status look_around(stw_candidates *all, uint32_t policies, uint32_t *index,
                              uint32_t *again, bool *better, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    around a = {.all = all, .policies = policies, .pool = stw_pool_new()};
    const stw_candidate centre = all->list[*index];
    const uint32_t before = all->n;
    a.centre = &centre;
    *better = false;
    if (a.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory");
    a.now = stw_choice_new(all->cost, a.pool);
    a.out_of_memory = a.now.acts == NULL;
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

stw_status stw_candidates_improve(stw_candidates *all, uint32_t policies, uint32_t index,
                                  stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool better = true;
    uint32_t again = UINT32_MAX;
    while (better && stw_candidates_go_on(all))
        STW_TRY(look_around(all, policies, &index, &again, &better, err));
out:
    return status;
}
