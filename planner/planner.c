/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/files/verdict.h"
#include "planner/levels.h"
#include "planner/problem.h"
#include "planner/resolve.h"
#include "planner/turns.h"

/* What `optimal` may mean at most, of the integer program and of the simulated seconds; with a
 * larger gap a plan is `feasible`. */
static const double OPTIMAL_GAP = 1e-3, PROVEN_GAP = 5e-3;

#define PRICE_TIME_S 10.0

/* Of the time up to the thread's deadline: the plan is simulated and checked after the search. */
static const double SEARCH_SHARE = 0.7;

/* Candidates that are judged, the preferred one first; after them what the limit was found with. */
#define MOST_JUDGED 6

/* A plan that fills the GPU further is reported if it saves this share of an iteration. */
static const double WORTH_TELLING = 0.01;

static double time_limit_of(const stw_planner_options *options) {
    return options->time_limit_s > 0 ? options->time_limit_s : STW_PLANNER_TIME_LIMIT_S;
}

/* ---- from a choice to a plan ---- */

/* @param derive stw_plan_derive, or stw_plan_derive_bytes where the plan may not fit */
static stw_status take_choice(stw_solving *s, const stw_choice *choice,
                              stw_status (*derive)(stw_plan *, stw_error *), stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    STW_TRY(stw_cost_decide(s->cost, choice, plan->pool, &plan->decisions, err));
    const bool known = stw_risk_has_replay(plan, s->cost, choice, &s->judged);
    plan->walk_alone = plan->walk_alone || known;
    status = derive(plan, err);
    plan->walk_alone = plan->walk_alone && !known;
    if (status != STW_STATUS_OK) goto out;
    if (known) stw_risk_give_replay(&s->judged, plan);
    STW_TRY(stw_cost_check_walk(s->cost, choice, plan->peaks, plan->node_peaks, err));
    stw_plan_judge(plan);

    stw_evaluation evaluation;
    stw_cost_evaluate(s->cost, choice, &evaluation);
    plan->objective_s = evaluation.objective_s;
    for (int p = 0; p < STW_N_PHASES; p++) plan->time_s[p] = NAN;
    plan->time_s[STW_PHASE_LOAD] = evaluation.load_s;
    if (s->cost->forward_backward_known)
        plan->time_s[STW_PHASE_FORWARD_BACKWARD] =
            evaluation.stretch_s[STW_STRETCH_FORWARD] + evaluation.stretch_s[STW_STRETCH_BACKWARD];
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] =
        evaluation.stretch_s[STW_STRETCH_NORM] + evaluation.stretch_s[STW_STRETCH_STEP];
out:
    return status;
}

/* A stage of its own: what was chosen, against the fastest that was found. */
static void note_comparison(stw_solving *s, const stw_candidates *all, uint32_t chosen) {
    uint32_t stage = s->ilp.n_stages++;
    double fastest = all->list[all->fastest].seconds, here = all->list[chosen].seconds;
    s->ilp.stage_names[stage] = all->simulate != NULL ? "simulated_seconds" : "plainness";
    s->ilp.stages[stage] = (stw_milp_result){.outcome = STW_MILP_FEASIBLE,
                                             .objective = here,
                                             .bound = fastest,
                                             .gap = here > 0 ? (here - fastest) / here : 0};
}

static stw_status report_solver(stw_solving *s, stw_error *err) {
    stw_solver_report *report = &s->plan->solver;
    const stw_ilp_result *ilp = &s->ilp;
    report->version = stw_pool_string(s->plan->pool, stw_milp_solver_version());
    report->name = ilp->by_descents || report->version[0] == '\0' ? "greedy" : "glpk";
    report->rows = ilp->rows;
    report->columns = ilp->columns;
    report->objective = ilp->stages[s->proof].objective;
    report->bound = ilp->stages[s->proof].bound;
    report->gap = ilp->stages[s->proof].gap;
    report->n_stages = ilp->n_stages;
    report->stages = stw_pool_array(s->plan->pool, ilp->n_stages, sizeof *report->stages);
    if (report->stages == NULL || report->version == NULL) return stw_planner_no_memory(err);
    for (uint32_t i = 0; i < ilp->n_stages; i++) {
        const stw_milp_result *stage = &ilp->stages[i];
        report->stages[i] = (stw_solver_stage){ilp->stage_names[i], stage->objective, stage->bound,
                                               stage->gap, stage->seconds};
    }
    return STW_STATUS_OK;
}

/* A solver's tolerance is not allowed to reach a limit: rows are exact. */
static stw_status check_limits(const stw_solving *s, stw_error *err) {
    for (uint32_t r = 0; r < s->cost->n_byte_rows; r++) {
        const stw_byte_row *row = &s->cost->byte_rows[r];
        uint64_t bytes = stw_cost_row_bytes(s->cost, row, &s->choice);
        if (bytes > row->limit_bytes + row->spare_bytes && row->limit_bytes != UINT64_MAX)
            return stw_fail(err, STW_STATUS_BUG, row->name,
                            "the solver's plan takes %llu bytes of %s, the limit is %llu",
                            (unsigned long long)bytes, row->resource,
                            (unsigned long long)row->limit_bytes);
    }
    return STW_STATUS_OK;
}

/* ---- outcomes ---- */

/* A step that makes a plan better or tells more of it. It ends at the planner's limit, and what it
 * has found by then counts. */
typedef stw_status optional_step(stw_solving *s, stw_error *err);

static stw_status try_step(stw_solving *s, optional_step *step, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    double before = stw_deadline_set(fmin(s->end_s, stw_deadline_end_s()));
    stw_status status = step(s, &why);
    (void)stw_deadline_set(before);
    if (status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    return status;
}

/* Seconds of a candidate without its part of the load. */
static double iteration_s(const stw_candidate *candidate) {
    return candidate->seconds - candidate->rows.load_s / STW_LOAD_SPREAD;
}

/* What the fastest of the candidates that were passed over needs more. */
static stw_status tell_faster(stw_solving *s, const stw_candidates *all, uint32_t chosen,
                              stw_error *err) {
    const stw_candidate *fastest = &all->list[all->fastest], *here = &all->list[chosen];
    if (!(fastest->seconds < here->seconds * (1 - STW_PLAIN_SLACK / 2))) return STW_STATUS_OK;
    char needs[160];
    stw_choice_tell_more(s->cost, &fastest->choice, &here->choice, needs, sizeof needs);
    bool plainer = stw_plainness_compare(&here->plain, &fastest->plain) < 0;
    return stw_plan_add_alternative(s->plan, plainer ? "plainness" : "headroom",
                                    iteration_s(fastest), iteration_s(here), needs, err);
}

/* The preferred candidate that the level admits; the first one is known to be so. */
static stw_status choose_without_risk(stw_solving *s, stw_candidates *all, uint32_t *chosen,
                                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int i = 0; i < MOST_JUDGED; i++) {
        *chosen = stw_candidates_choose(all);
        if (*chosen == 0) return STW_STATUS_OK;
        STW_TRY(stw_risk_judge(s->plan, s->cost, &all->list[*chosen].choice, s->level, &s->judged,
                               err));
        if (s->judged.excess_bytes == 0) return STW_STATUS_OK;
        stw_candidates_exclude(all, *chosen);
    }
    *chosen = 0;
out:
    return status;
}

/* Let the simulator choose between the solver's choice and others. */
static stw_status compare_candidates(stw_solving *s, stw_candidates *all, uint32_t *chosen,
                                     stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_result spared;
    STW_TRY(stw_candidates_search(all, &s->choice, err));
    if (all->n == 0) {
        status = stw_fail(err, STW_STATUS_BUG, "planner", "the solver's choice does not fit");
        goto out;
    }
    STW_TRY(stw_candidates_use_spare(all, stw_solving_gap(s->options), &spared, err));
    if (spared.outcome != STW_MILP_LIMIT) {
        s->proof = s->ilp.n_stages++;
        s->ilp.stage_names[s->proof] = "seconds_with_spare_memory";
        s->ilp.stages[s->proof] = spared.stages[0];
    }
    if (all->simulate != NULL) s->plan->solver.simulated = all->n;
    STW_TRY(choose_without_risk(s, all, chosen, err));
    stw_choice_copy(s->cost, &s->choice, &all->list[*chosen].choice);
    STW_TRY(tell_faster(s, all, *chosen, err));
out:
    return status;
}

/* The same as far as placement.gpu_fill admits, where risk was avoided, else with nothing of the
 * GPU left free: worth a line where it is much faster. */
static stw_status tell_fuller(stw_solving *s, double here_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t memory = s->plan->cluster.gpu.memory_bytes;
    const uint64_t filled = stw_risk_gpu_limit(s->plan, STW_RISK_ANY);
    const bool avoids = s->level != STW_RISK_ANY && s->limit_bytes < filled;
    const double most_s = here_s * (1 - WORTH_TELLING);
    if (s->limit_bytes >= memory) return STW_STATUS_OK;
    stw_cost_limit_gpu(s->cost, avoids ? filled : memory);
    stw_candidates all = stw_solving_candidates(s, &s->bars);
    all.work_left /= 4;
    STW_TRY(stw_candidates_search_briefly(&all, &s->choice, most_s, err));
    if (all.n == 0 || all.list[all.fastest].seconds > most_s) goto out;
    char needs[160];
    snprintf(needs, sizeof needs, "%.1f%% of the GPU memory",
             100 * (double)all.list[all.fastest].rows.gpu_bytes / (double)memory);
    STW_TRY(stw_plan_add_alternative(s->plan, avoids ? "placement.accept" : "placement.gpu_fill",
                                     iteration_s(&all.list[all.fastest]), here_s, needs, err));
out:
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
    return status;
}

/* What the simulator says of the solver's choice and others. */
static stw_status simulate_choices(stw_solving *s, stw_error *err) {
    stw_candidates all = stw_solving_candidates(s, &s->bars);
    uint32_t chosen = 0;
    stw_status status = compare_candidates(s, &all, &chosen, err);
    if (status == STW_STATUS_TIME_LIMIT && all.n > 0) {
        chosen = stw_risk_is_judged(s->plan, s->level) ? 0 : stw_candidates_choose(&all);
        stw_choice_copy(s->cost, &s->choice, &all.list[chosen].choice);
    } else if (status != STW_STATUS_OK) {
        return status;
    }
    s->here_s = iteration_s(&all.list[chosen]);
    s->fastest_s = iteration_s(&all.list[all.fastest]);
    note_comparison(s, &all, chosen);
    if (all.simulate != NULL && status == STW_STATUS_OK)
        STW_TRY(stw_solving_prove(s, &all, all.list[chosen].seconds, err));
    const bool tells = status == STW_STATUS_OK && !s->options->no_alternatives;
    if (tells) STW_TRY(tell_fuller(s, s->here_s, err));
out:
    return status;
}

static stw_status price(stw_solving *s, stw_error *err) {
    const stw_price_search prices = {.cost = s->cost,
                                     .choice = &s->choice,
                                     .fastest_s = s->fastest_s,
                                     .simulate = s->options->simulate,
                                     .bars = s->bars,
                                     .time_limit_s = stw_solving_time_for(s, PRICE_TIME_S)};
    return stw_planner_price(s->plan, &prices, err);
}

/* Of loads that take as long the one with the fewest GiB, and of these the last, which reads the
 * least per rank. */
static void settle_load(stw_solving *s) {
    static const double AS_LONG = 1.01;
    stw_evaluation e;
    stw_cost_evaluate(s->cost, &s->choice, &e);
    const double most_s = e.load_s * AS_LONG;
    uint64_t least = e.held_bytes >> 30;
    uint32_t best = s->choice.load;
    for (uint32_t l = 0; l < s->cost->n_loads; l++) {
        s->choice.load = l;
        stw_cost_evaluate(s->cost, &s->choice, &e);
        if (!e.fits || e.load_s > most_s || e.held_bytes >> 30 > least) continue;
        best = l;
        least = e.held_bytes >> 30;
    }
    s->choice.load = best;
}

static stw_status finish_fitting(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    s->here_s = s->fastest_s = s->ilp.stages[0].objective;
    if (!s->options->only_stage1) STW_TRY(try_step(s, simulate_choices, err));
    settle_load(s);
    STW_TRY(check_limits(s, err));
    STW_TRY(take_choice(s, &s->choice, stw_plan_derive, err));
    STW_TRY(report_solver(s, err));
    const double most_gap = s->proven ? PROVEN_GAP : OPTIMAL_GAP;
    plan->outcome = s->ilp.outcome != STW_MILP_OPTIMAL        ? STW_OUTCOME_LIMIT
                    : s->ilp.stages[s->proof].gap <= most_gap ? STW_OUTCOME_OPTIMAL
                                                              : STW_OUTCOME_FEASIBLE;
    if (!s->options->no_prices && plan->outcome != STW_OUTCOME_LIMIT)
        STW_TRY(try_step(s, price, err));
out:
    return status;
}

stw_status stw_planner_time(stw_plan *plan, stw_planner_simulate simulate, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int p = 0; p < STW_N_PHASES; p++) plan->time_s[p] = NAN;
    for (uint32_t k = 0; k < plan->job->n_kinds && stw_cluster_has_gpus(&plan->cluster); k++) {
        double seconds[STW_N_PHASES];
        STW_TRY(simulate(plan->job, plan->programs[k], seconds, err));
        for (int p = 0; p < STW_N_PHASES; p++) plan->time_s[p] = fmax(plan->time_s[p], seconds[p]);
    }
out:
    return status;
}

static stw_status solve_alone(const void *by, stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_planner_options options = *(const stw_planner_options *)by;
    options.time_limit_s = time_limit_s;
    options.write_lp = NULL;
    options.no_fixes = options.no_prices = options.no_reasons = options.no_alternatives = true;
    stw_status status = options.again(plan, &options, err);
    if (status != STW_STATUS_OK || plan->outcome == STW_OUTCOME_INFEASIBLE) return status;
    return stw_planner_time(plan, options.simulate, err);
}

stw_fix_judge stw_planner_judge(const stw_planner_options *options) {
    return (stw_fix_judge){solve_alone, options};
}

/* What binds, and what would help. */
static stw_status explain(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_planner_conflict(s->plan, s->cost, stw_solving_left_s(s), err));
    if (s->options->no_fixes) goto out;
    STW_TRY(stw_planner_limits(s->plan, stw_solving_left_s(s), err));
    const stw_fix_judge judge = stw_planner_judge(s->options);
    const bool simulates = s->options->simulate != NULL &&
                           s->options->again != NULL; /* else no plan is the final one */
    STW_TRY(stw_planner_fix(s->plan, stw_solving_left_s(s), simulates ? &judge : NULL, err));
out:
    return status;
}

/* Nothing fits, or nothing that fits was found by a solver that failed: the least-over plan, what
 * binds, and what would help. Rows are upper bounds, so the walk of that plan may turn out to fit
 * after all. */
static stw_status finish_infeasible(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    const stw_ilp_result first = s->ilp;
    stw_ilp_options options = {.time_limit_s =
                                   stw_solving_left_s(s)}; /* searches end by their nodes */
    STW_TRY(stw_ilp_solve_least_over(s->cost, &options, &s->choice, &s->ilp, err));
    if (s->ilp.outcome != STW_MILP_FEASIBLE) {
        status = stw_fail(err, STW_STATUS_BUG, "planner", "no choice keeps the shares of updates");
        goto out;
    }
    STW_TRY(take_choice(s, &s->choice, stw_plan_derive_bytes, err));
    STW_TRY(report_solver(s, err));
    plan->solver.rows = first.rows;
    plan->solver.columns = first.columns;
    plan->solver.objective = plan->solver.bound = plan->solver.gap = NAN; /* of the true stage 1 */
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) {
        plan->outcome = STW_OUTCOME_FEASIBLE;
        status = stw_plan_derive(plan, err);
        goto out;
    }
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    if (!s->options->no_reasons) STW_TRY(try_step(s, explain, err));
out:
    return status;
}

/* The problem of a job, with room for the answers.
 * @param simulate NULL: rows of seconds are bounds that cost little */
static stw_status pose(stw_solving *s, stw_planner_simulate simulate, stw_error *err) {
    const stw_planner_sieve *sieve = s->options->sieve;
    stw_cost_free(s->cost);
    s->cost = NULL;
    stw_status status;
    if (sieve == NULL)
        status = stw_cost_new(s->plan->job, simulate, &s->cost, err);
    else if (sieve->bytes_alone)
        status = stw_cost_new_bytes(s->plan->job, &s->cost, err);
    else
        status = stw_cost_new_rough(s->plan->job, simulate, &s->cost, err);
    if (status != STW_STATUS_OK) return status;
    s->choice = stw_choice_new(s->cost, s->cost->pool);
    s->judged.choice = stw_choice_new(s->cost, s->cost->pool);
    const bool made = s->choice.acts != NULL && s->judged.choice.acts != NULL;
    return made ? STW_STATUS_OK : stw_planner_no_memory(err);
}

/* Is the state alone over some limit? */
static bool has_too_much_state(const stw_plan *plan, stw_planner_sieve *sieve) {
    if (sieve == NULL || !sieve->state_first) return false;
    sieve->over_share = stw_cost_state_over_share(plan->job, &sieve->too_much_state);
    return sieve->too_big = sieve->over_share > 0 || sieve->too_much_state;
}

/* Do bounds say that the caller has no use for any choice? */
static bool is_sieved(const stw_solving *s) {
    stw_planner_sieve *sieve = s->options->sieve;
    if (sieve == NULL) return false;
    sieve->too_slow = sieve->most_s > 0 && stw_cost_least_seconds(s->cost) > sieve->most_s;
    sieve->over_share = stw_cost_least_over_share(s->cost);
    sieve->too_big = !sieve->too_slow && sieve->over_share > sieve->most_share;
    return sieve->too_slow || sieve->too_big;
}

stw_status stw_planner_solve_run(stw_plan *plan, const stw_planner_options *options,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_solving s = {.plan = plan, .options = options, .start_s = stw_planner_now_s()};
    s.end_s = s.start_s + fmin(time_limit_of(options),
                               SEARCH_SHARE * fmax(stw_deadline_end_s() - s.start_s, 0));
    plan->n_alternatives = 0;
    plan->solver.simulated = 0;
    if (has_too_much_state(plan, options->sieve)) goto out;
    STW_TRY(pose(&s, options->sieve != NULL ? NULL : options->simulate, err));
    if (is_sieved(&s)) goto out;
    if (options->sieve != NULL && !options->only_stage1) {
        STW_TRY(pose(&s, options->simulate, err));
        if (is_sieved(&s)) goto out;
    }
    STW_TRY(stw_solving_search(&s, err));
    if (options->sieve != NULL && options->sieve->too_slow) goto out;
    bool timed_out = s.ilp.outcome == STW_MILP_LIMIT && stw_solving_is_over(&s);
    if (!stw_solving_is_solved(&s) && !timed_out) {
        STW_TRY(try_step(&s, stw_solving_search_spare, err));
        timed_out = !stw_solving_is_solved(&s) && !s.settled && stw_solving_is_over(&s);
    }
    STW_TRY(report_solver(&s, err));
    if (stw_solving_is_solved(&s))
        STW_TRY(finish_fitting(&s, err));
    else if (timed_out)
        STW_TRY(stw_fail(err, STW_STATUS_TIME_LIMIT, "planner",
                         "no plan was found in %.3g s; raise --time-limit",
                         time_limit_of(options)));
    else
        STW_TRY(finish_infeasible(&s, err));
    if (options->write_lp != NULL && !s.proven)
        STW_TRY(stw_ilp_write(s.cost, &s.bars, options->write_lp, err));
    plan->solver.seconds = stw_planner_now_s() - s.start_s;
out:
    stw_cost_free(s.cost);
    return status;
}
