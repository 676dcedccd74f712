/* SPDX-License-Identifier: Apache-2.0 */
/* Mixes of policies that no single move reaches: offloaded blocks among recomputed ones, with the
 * few kept blocks whose memory the first fetches need (stw_block_held_to). Their rows are off by
 * more than others, so that families of the integer program miss them. */
#include "planner/candidates.h"

#include "plan/program/blocks.h"

/* Blocks that are kept, of those that were, and offloaded, of those that are not kept. */
static const double KEPT[] = {1, 0.7}, PARTS[] = {0.15, 0.33, 0.6};

/* A descent begins at the best mix where it takes at most so much longer than the fastest. */
static const double MAY_LEAD = 0.06;

/* The three options of a group: offload, recompute, keep. */
static bool has_all(const stw_cost *cost, uint32_t a) {
    return a + 2 < cost->n_acts && cost->acts[a].act == STW_ACT_OFFLOAD &&
           cost->acts[a + 1].act == STW_ACT_RECOMPUTE && cost->acts[a + 2].act == STW_ACT_KEEP &&
           cost->acts[a].group == cost->acts[a + 2].group;
}

/* @return whether any block got another policy */
static bool mix(const stw_cost *cost, double kept, double part, stw_choice *choice) {
    bool changed = false;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        uint32_t all = cost->acts[a].blocks;
        if (!has_all(cost, a) || all <= STW_LAST_BLOCKS) continue;
        uint32_t *blocks = &choice->acts[a], was = blocks[0];
        blocks[2] = (uint32_t)(kept * blocks[2]);
        if (blocks[2] < STW_LAST_BLOCKS) blocks[2] = STW_LAST_BLOCKS;
        blocks[0] = (uint32_t)(part * (all - blocks[2]) + 0.5);
        blocks[1] = all - blocks[2] - blocks[0];
        changed = changed || blocks[0] != was;
    }
    return changed;
}

/* The fewest units from one place to another with which the choice fits; 0: none do. */
static uint32_t fewest_that_fit(const stw_candidates *all, const stw_choice *choice,
                                stw_unit_move move, stw_choice *trial) {
    uint32_t low = 1, high = choice->units[move.from] + 1;
    while (low < high) {
        stw_evaluation rows = {.fits = false};
        move.units = low + (high - low) / 2;
        stw_choice_copy(all->cost, trial, choice);
        if (move.units <= choice->units[move.from] &&
            stw_move_units(all->cost, &all->bars, &move, trial))
            stw_cost_evaluate(all->cost, trial, &rows);
        if (rows.fits)
            high = move.units;
        else
            low = move.units + 1;
    }
    return high <= choice->units[move.from] ? high : 0;
}

/* Make a choice fit with units of one place in another; of several ways the fastest by rows.
 * @return whether it fits now */
static bool fit(const stw_candidates *all, stw_choice *choice, stw_choice *trial) {
    const stw_cost *cost = all->cost;
    stw_evaluation rows;
    stw_unit_move best = {0, 0, 0};
    double least_s = 0;
    stw_cost_evaluate(cost, choice, &rows);
    if (rows.fits || cost->whole) return rows.fits;
    for (uint32_t from = 0; from < cost->n_places; from++)
        for (uint32_t to = 0; to < cost->n_places && choice->units[from] > 0; to++) {
            stw_unit_move move = {from, to, 0};
            if (from == to) continue;
            move.units = fewest_that_fit(all, choice, move, trial);
            if (move.units == 0) continue;
            stw_choice_copy(cost, trial, choice);
            if (!stw_move_units(cost, &all->bars, &move, trial)) continue;
            stw_cost_evaluate(cost, trial, &rows);
            if (best.units > 0 && rows.objective_s >= least_s) continue;
            best = move;
            least_s = rows.objective_s;
        }
    return best.units > 0 && stw_move_units(cost, &all->bars, &best, choice);
}

stw_status stw_candidates_try_mixes(stw_candidates *all, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = all->cost;
    stw_choice choice = stw_choice_new(cost, all->pool), trial = stw_choice_new(cost, all->pool);
    uint32_t best = STW_NO_CANDIDATE;
    if (choice.acts == NULL || trial.acts == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
    const uint32_t base = all->fastest;
    const unsigned parts = sizeof PARTS / sizeof PARTS[0], kepts = sizeof KEPT / sizeof KEPT[0];
    for (unsigned i = 0; i < parts * kepts; i++) {
        uint32_t found;
        stw_choice_copy(cost, &choice, &all->list[base].choice);
        if (!mix(cost, KEPT[i / parts], PARTS[i % parts], &choice)) continue;
        if (!fit(all, &choice, &trial)) continue;
        STW_TRY(stw_candidates_add(all, &choice, &found, err));
        if (found == STW_NO_CANDIDATE) continue;
        if (best == STW_NO_CANDIDATE || all->list[found].seconds < all->list[best].seconds)
            best = found;
    }
    if (best == STW_NO_CANDIDATE ||
        all->list[best].seconds > all->list[all->fastest].seconds * (1 + MAY_LEAD))
        goto out;
    const stw_plainness any = {UINT32_MAX, UINT32_MAX};
    STW_TRY(stw_candidates_improve(all, &any, &best, err));
out:
    return status;
}
