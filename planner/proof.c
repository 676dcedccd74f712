/* SPDX-License-Identifier: Apache-2.0 */
/* How much faster could a plan be? Rows of seconds that steer the search are estimates; the rows of
 * the proof say what no order of operations can go below. The program with these rows alone, and
 * with as many bytes to spare as rows overstated for any plan that was walked and that rows of
 * seconds put below it, has an optimum that no simulated plan lies below. */
#include <math.h>

#include "core/checked.h"
#include "planner/levels.h"

/* The most time of a proof, and what its own gap may be. */
static const double PROOF_S = 5;
static const double PROOF_GAP = 1e-6;

/* The problem with rows of the proof. */
static stw_cost proof_of(const stw_cost *cost) {
    stw_cost proof = *cost;
    if (cost->n_proof_rows > 0) { /* else rows are simulated */
        proof.time_rows = cost->proof_rows;
        proof.n_time_rows = cost->n_proof_rows;
    }
    return proof;
}

/* By how much rows lie above the walk, at most: of the candidates that rows of the proof put below
 * a bound. */
static uint64_t overstated(const stw_candidates *all, const stw_cost *proof, double bound_s) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        const stw_candidate *c = &all->list[i];
        const uint64_t row = stw_cost_forward_bytes(all->cost, &c->choice);
        stw_evaluation rows;
        stw_cost_evaluate(proof, &c->choice, &rows);
        if (rows.objective_s < bound_s && c->forward_bytes > 0 && row > c->forward_bytes + most)
            most = row - c->forward_bytes;
    }
    return most;
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
    const uint64_t before = stw_cost_spare(s->cost);
    uint64_t spare = before, more = before;
    double bound_s = here_s;
    stw_choice fastest = stw_choice_new(s->cost, all->pool);
    stw_status status = STW_STATUS_OK;
    if (fastest.acts == NULL) return stw_planner_no_memory(err);
    do {
        spare = more;
        (void)stw_cost_give_spare(&proof, spare);
        STW_TRY(stw_ilp_solve(&proof, &options, &fastest, &result, err));
        if (!isfinite(result.stages[0].bound)) break;
        bound_s = fmin(result.stages[0].bound, here_s);
        more = stw_max_u64(spare, overstated(all, &proof, bound_s));
    } while (more > spare);
    if (s->options->write_lp != NULL)
        STW_TRY(stw_ilp_write(&proof, &s->bars, s->options->write_lp, err));
    if (!isfinite(result.stages[0].bound)) goto out;
    s->proof = s->ilp.n_stages++;
    s->proven = true;
    s->ilp.stage_names[s->proof] = STW_STAGE_PROOF;
    s->ilp.stages[s->proof] = (stw_milp_result){.outcome = STW_MILP_FEASIBLE,
                                                .objective = here_s,
                                                .bound = bound_s,
                                                .gap = (here_s - bound_s) / here_s,
                                                .seconds = result.seconds};
out:
    (void)stw_cost_give_spare(&proof, before);
    return status;
}
