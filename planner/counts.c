/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks are offloaded, and how many kept: what copies and second forwards hide of each
 * other is no sum, so that rows of seconds are off by most here. The integer program is solved for
 * one number after the other, a coarse grid first and then halves of its steps around the best, and
 * each answer is simulated: a search along one line. */
#include <math.h>

#include "planner/candidates.h"
#include "planner/clock.h"

/* Points of the grid. */
#define POINTS 8u

/* Gap of the programs, the most time of one, and the share by which their rows may be slower than
 * the fastest candidate. */
static const double COUNT_GAP = 1e-3, COUNT_S = 0.25, OF_INTEREST = 0.05;

typedef struct line {
    stw_candidates *all;
    stw_choice choice;
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
    double left = all->end_s - stw_planner_now_s();
    uint32_t found = STW_NO_CANDIDATE;
    if (!isnan(l->seconds[blocks]) || !stw_candidates_go_on(all) || left <= 0) return STW_STATUS_OK;
    stw_bars bars = all->bars;
    bars.frozen = 1u << l->act;
    bars.frozen_blocks = blocks;
    stw_ilp_options options = {.time_limit_s = fmin(left, COUNT_S),
                               .gap = COUNT_GAP,
                               .quick = true,
                               .bars = bars,
                               .most_s = all->list[all->fastest].seconds * (1 + OF_INTEREST)};
    stw_ilp_result result;
    l->seconds[blocks] = (double)INFINITY;
    STW_TRY(stw_ilp_solve(all->cost, &options, &l->choice, &result, err));
    if (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE)
        STW_TRY(stw_candidates_add(all, &l->choice, &found, err));
    if (found != STW_NO_CANDIDATE) l->seconds[blocks] = all->list[found].seconds;
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
    l.choice = stw_choice_new(all->cost, all->pool);
    l.seconds = stw_pool_array(all->pool, (size_t)l.blocks + 1, sizeof *l.seconds);
    if (l.choice.acts == NULL || l.seconds == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
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
    stw_status status = STW_STATUS_OK;
    STW_TRY(try_line(all, STW_ACT_OFFLOAD, err));
    STW_TRY(try_line(all, STW_ACT_KEEP, err));
out:
    return status;
}
