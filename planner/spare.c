/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of forward and backward are upper bounds: they charge the most that blocks' shares can be
 * uneven, and most of what lies around a block for all of them. Where such a row may rule out
 * faster choices, bytes are given to the rows to spare: what rows overstate for good candidates, or
 * what they charge once for shards on the host. The problem is solved again, and whatever is found
 * is held to its own walk. Where that does not fit, the rows have less to spare. */
#include "core/checked.h"
#include "planner/candidates.h"
#include "planner/clock.h"

/* Less than this share of the limit is left alone. */
static const double WORTH = 2e-3;

/* Rows are near the limit from this share below it. */
static const double NEAR = 0.03;

/* Candidates that take so much longer than the fastest may become faster with bytes to spare. */
static const double MAY_BECOME = 0.05;

/* What is over by more than this share of the GPUs is not made up for. */
static const double MOST_OVER = 0.1;

/* So often rows are given more or less. */
#define TRIES 8

/* The most time of an integer program, and work of the search after it. */
static const double SPARE_S = 2;
#define SPARE_WORK 400000

/* Of the GPU; 0: there is no row. */
static uint64_t limit_of(const stw_cost *cost) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU) return cost->byte_rows[r].limit_bytes;
    return 0;
}

/* What rows charge once for shards on the host. It counts even where no candidate has any there: a
 * choice that has some may be faster with it. */
static uint64_t host_bytes(const stw_cost *cost) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier == STW_TIER_GPU && row->phase == STW_PHASE_FORWARD_BACKWARD)
            most = stw_max_u64(most, row->ring_bytes[STW_USE_HOST_PARAMS * cost->n_rings]);
    }
    return most;
}

/* The most bytes to spare of the candidates that are fast enough to become the fastest with them; 0
 * where no row of these is near the limit. */
static uint64_t find_spare(const stw_candidates *all) {
    const uint64_t limit = limit_of(all->cost);
    uint64_t most = 0;
    bool near = false;
    for (uint32_t i = 0; i < all->n; i++) {
        const stw_candidate *c = &all->list[i];
        if (c->seconds > all->list[all->fastest].seconds * (1 + MAY_BECOME)) continue;
        uint64_t row = stw_cost_forward_bytes(all->cost, &c->choice);
        if (c->forward_bytes == 0 || row < c->forward_bytes) continue;
        most = stw_max_u64(most, row - c->forward_bytes);
        near = near || (double)row > (1 - NEAR) * (double)limit;
    }
    most = stw_max_u64(most, host_bytes(all->cost));
    return near && (double)most > WORTH * (double)limit ? most : 0;
}

stw_status stw_candidates_use_spare(stw_candidates *all, double gap, stw_ilp_result *result,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t found;
    uint64_t spare = all->simulate != NULL ? find_spare(all) : 0;
    result->outcome = STW_MILP_LIMIT;
    if (spare == 0) return STW_STATUS_OK;
    stw_ilp_options options = {.time_limit_s = SPARE_S, .gap = gap, .bars = all->bars};
    all->work_left += SPARE_WORK;
    const uint64_t before = stw_cost_spare(all->cost);
    uint64_t least = before, most = 0; /* something was found with; nothing was */
    stw_ilp_result now;
    for (int i = 0; i < TRIES && spare > least; i++) {
        options.most_s = all->list[all->fastest].seconds;
        all->over_row_bytes = all->over_walk_bytes = 0;
        stw_cost_give_spare(all->cost, spare);
        STW_TRY(stw_candidates_solve(all, &options, &found, &now, err));
        if (!stw_milp_has_solution(now.outcome)) break;
        uint64_t over = all->over_walk_bytes, row = all->over_row_bytes;
        if (found != STW_NO_CANDIDATE) {
            *result = now;
            least = spare;
            if (most == 0) break;
            spare += (most - spare) / 2;
        } else {
            most = spare;
            spare = least + (most - least) / 2;
            if (row > over && row - over < most) spare = stw_max_u64(spare, row - over);
        }
        if ((double)(most - least) < WORTH * (double)limit_of(all->cost)) break;
    }
    stw_cost_give_spare(all->cost, least);
    if (least > before) STW_TRY(stw_candidates_descend(all, err));
out:
    return status;
}

/* ---- where nothing fits ---- */

/* Bytes that a choice's row has to spare; 0 where they cannot make up for what is over. */
static stw_status find_spare_of(stw_candidates *all, const stw_choice *choice, uint64_t *spare,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_evaluation rows;
    uint64_t walked, row = stw_cost_forward_bytes(all->cost, choice);
    *spare = 0;
    if (row == 0) return STW_STATUS_OK;
    stw_cost_evaluate(all->cost, choice, &rows);
    double ranks = all->cost->job->ranks_per_node, limit = (double)limit_of(all->cost);
    if ((double)rows.over_bytes > MOST_OVER * ranks * limit) return STW_STATUS_OK;
    STW_TRY(stw_candidates_walk(all, choice, &walked, err));
    if (walked < row && (double)rows.over_bytes <= ranks * (double)(row - walked))
        *spare = row - walked;
out:
    return status;
}

stw_status stw_candidates_fit_spare(stw_candidates *all, const stw_ilp_options *options,
                                    stw_choice *choice, stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t spare, walked;
    result->outcome = STW_MILP_INFEASIBLE;
    STW_TRY(find_spare_of(all, choice, &spare, err));
    for (int i = 0; i < TRIES && spare > 0; i++) {
        stw_cost_give_spare(all->cost, spare);
        STW_TRY(stw_ilp_solve(all->cost, options, choice, result, err));
        if (!stw_milp_has_solution(result->outcome)) break;
        STW_TRY(stw_candidates_walk(all, choice, &walked, err));
        if (walked <= limit_of(all->cost)) return STW_STATUS_OK;
        uint64_t row = stw_cost_forward_bytes(all->cost, choice);
        spare = row > walked && row - walked < spare ? row - walked : 0;
        result->outcome = STW_MILP_INFEASIBLE;
    }
    stw_cost_give_spare(all->cost, 0);
out:
    return status;
}
