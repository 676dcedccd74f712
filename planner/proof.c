/* SPDX-License-Identifier: Apache-2.0 */
/* How much faster could a plan be? Rows of seconds that steer the search are estimates; the rows of
 * the proof say what no order of operations can go below. The program with these rows alone, and
 * with as many bytes to spare as rows overstated for any plan that was walked, has an optimum that
 * no simulated plan lies below. */
#include <math.h>

#include "planner/levels.h"

/* The most time of a proof, and what its own gap may be. */
static const double PROOF_S = 5;
static const double PROOF_GAP = 1e-6;

/* By how much rows lie above the walk of the candidates, at most. */
static uint64_t overstated(const stw_candidates *all) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        const stw_candidate *c = &all->list[i];
        const uint64_t row = stw_cost_forward_bytes(all->cost, &c->choice);
        if (c->forward_bytes > 0 && row > c->forward_bytes + most) most = row - c->forward_bytes;
    }
    return most;
}

/* The problem with rows of the proof. */
static stw_cost proof_of(const stw_cost *cost) {
    stw_cost proof = *cost;
    if (cost->n_proof_rows > 0) { /* else rows are simulated */
        proof.time_rows = cost->proof_rows;
        proof.n_time_rows = cost->n_proof_rows;
    }
    return proof;
}

stw_status stw_solving_prove(stw_solving *s, const stw_candidates *all, double here_s,
                             stw_error *err) {
    stw_cost proof = proof_of(s->cost);
    stw_ilp_result result;
    const bool exact = s->options->gap_is_set && s->options->gap <= 0;
    const stw_ilp_options options = {.time_limit_s = stw_solving_time_for(s, PROOF_S),
                                     .gap = exact ? 0 : PROOF_GAP,
                                     .bars = s->bars,
                                     .most_s = exact ? 0 : here_s};
    const uint64_t spare = overstated(all), before = stw_cost_spare(s->cost);
    stw_choice fastest = stw_choice_new(s->cost, all->pool);
    if (fastest.acts == NULL) return stw_planner_no_memory(err);
    (void)stw_cost_give_spare(&proof, spare > before ? spare : before);
    stw_status status = stw_ilp_solve(&proof, &options, &fastest, &result, err);
    if (status == STW_STATUS_OK && s->options->write_lp != NULL)
        status = stw_ilp_write(&proof, &s->bars, s->options->write_lp, err);
    (void)stw_cost_give_spare(&proof, before);
    if (status != STW_STATUS_OK || !isfinite(result.stages[0].bound)) return status;
    const double bound_s = fmin(result.stages[0].bound, here_s);
    s->proof = s->ilp.n_stages++;
    s->proven = true;
    s->ilp.stage_names[s->proof] = STW_STAGE_PROOF;
    s->ilp.stages[s->proof] = (stw_milp_result){.outcome = STW_MILP_FEASIBLE,
                                                .objective = here_s,
                                                .bound = bound_s,
                                                .gap = (here_s - bound_s) / here_s,
                                                .seconds = result.seconds};
    return STW_STATUS_OK;
}
