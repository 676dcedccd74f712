/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of forward and backward are upper bounds: they charge the staging of whole blocks for shards
 * that lie on the host in part, and most of what lies around a block for all of them. Where such a
 * row rules out faster choices, the bytes by which the fastest candidate's walk stays below its row
 * are given to the rows to spare, and the problem is solved again. Whatever is found is held to its
 * own walk; where that does not fit, the rows have less to spare. */
#include "planner/candidates.h"
#include "planner/clock.h"

/* Less than this share of the limit is left alone. */
static const double WORTH = 2e-3;

/* So often rows are given less where a walk did not fit. */
#define TRIES 4

/* The most time of an integer program, and work of the search after it. */
static const double SPARE_S = 0.5;
#define SPARE_WORK 500000

static void give(stw_cost *cost, uint64_t bytes) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier == STW_TIER_GPU && row->phase == STW_PHASE_FORWARD_BACKWARD)
            row->spare_bytes = bytes;
    }
}

/* Of the GPU; 0: there is no row. */
static uint64_t limit_of(const stw_cost *cost) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU) return cost->byte_rows[r].limit_bytes;
    return 0;
}

/* Bytes to spare at the fastest candidate; 0 where its row is not near the limit, or it is as fast
 * as one with any memory would be. */
static uint64_t find_spare(const stw_candidates *all) {
    const stw_candidate *fastest = &all->list[all->fastest];
    uint64_t row = stw_cost_forward_bytes(all->cost, &fastest->choice), limit = limit_of(all->cost);
    if (fastest->forward_bytes == 0 || row <= fastest->forward_bytes) return 0;
    uint64_t spare = row - fastest->forward_bytes;
    bool near = (double)(row + spare) > (double)limit;
    return near && (double)spare > WORTH * (double)limit ? spare : 0;
}

/* Solve with so much to spare. @param found the candidate, or STW_NO_CANDIDATE */
static stw_status try_spare(stw_candidates *all, uint64_t spare, double gap, stw_choice *choice,
                            uint32_t *found, stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double left = all->end_s - stw_planner_now_s();
    stw_ilp_options options = {.time_limit_s = left < SPARE_S ? left : SPARE_S,
                               .gap = gap,
                               .bars = all->bars,
                               .most_s = all->list[all->fastest].seconds};
    *found = STW_NO_CANDIDATE;
    result->outcome = STW_MILP_LIMIT;
    if (left <= 0) return STW_STATUS_OK;
    give(all->cost, spare);
    all->over_row_bytes = all->over_walk_bytes = 0;
    STW_TRY(stw_ilp_solve(all->cost, &options, choice, result, err));
    if (result->outcome == STW_MILP_OPTIMAL) STW_TRY(stw_candidates_add(all, choice, found, err));
out:
    return status;
}

stw_status stw_candidates_use_spare(stw_candidates *all, double gap, stw_ilp_result *result,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t found = STW_NO_CANDIDATE;
    uint64_t spare = all->simulate != NULL ? find_spare(all) : 0;
    result->outcome = STW_MILP_LIMIT;
    if (spare == 0) return STW_STATUS_OK;
    stw_choice choice = stw_choice_new(all->cost, all->pool);
    if (choice.acts == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the candidates");
    all->work_left += SPARE_WORK;
    for (int i = 0; i < TRIES; i++) {
        STW_TRY(try_spare(all, spare, gap, &choice, &found, result, err));
        uint64_t over = all->over_walk_bytes, row = all->over_row_bytes;
        if (result->outcome != STW_MILP_OPTIMAL || found != STW_NO_CANDIDATE) break;
        if (row <= over || row - over >= spare) break;
        spare = row - over;
    }
    if (result->outcome == STW_MILP_OPTIMAL)
        STW_TRY(stw_candidates_look_around(all, err));
    else
        give(all->cost, 0);
out:
    return status;
}
