/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "plan/files/verdict.h"
#include "planner/candidates.h"
#include "planner/problem.h"
#include "planner/resolve.h"
#include "planner/risk.h"
#include "planner/solvers.h"
#include "planner/turns.h"

#define USUAL_GAP 1e-4
#define OPTIMAL_GAP                                                                                \
    1e-3 /* what `optimal` may mean at most; a looser gap asked for is `feasible`                  \
          */
#define PRICE_TIME_S 10.0
#define LATER_S 1.0

/* Work of comparing choices, in operations of programs that are built or simulated: a quarter of a
 * second or so. */
#define SEARCH_WORK 1400000

/* Of the time up to the thread's deadline: the plan is simulated and checked after the search. */
static const double SEARCH_SHARE = 0.7;

/* Limits between placement.gpu_fill and the whole GPU. */
#define FILL_STEPS 4

/* Of one attempt to find a plan without risk; limits that differ by less are the same. */
#define MOST_LIMITS 6
static const double SAME_LIMIT = 5e-4;

/* Where a limit that admits something is lower by more than this share than one that is too much,
 * limits between them are tried so often. */
#define MOST_RAISES 2
static const double WIDE = 0.03;

/* Candidates that are judged, the preferred one first; after them what the limit was found with. */
#define MOST_JUDGED 6

/* A plan that fills the GPU further is reported if it saves this share of an iteration. */
static const double WORTH_TELLING = 0.01;

typedef struct solving {
    stw_plan *plan;
    const stw_planner_options *options;
    stw_planner_whole *whole;
    stw_cost *cost;
    stw_bars bars;        /* of the attempt at hand */
    uint64_t limit_bytes; /* of a GPU in it */
    stw_risk_level level; /* of it */
    stw_choice choice, greedy;
    bool greedy_fits;
    stw_evaluation greedy_evaluation;
    stw_ilp_result ilp;
    uint32_t proof; /* its stage whose bound is the plan's */
    double start_s, end_s;
    double here_s, fastest_s; /* an iteration of the choice, and of the fastest that was found */
    bool settled;             /* nothing fits: all that was to be looked at was */
} solving;

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the plan");
}

static double gap_of(const stw_planner_options *options) {
    if (options->gap < 0 || (options->gap == 0 && !options->gap_is_set)) return USUAL_GAP;
    return options->gap;
}

static double left_s(const solving *s) {
    double left = s->end_s - stw_planner_now_s();
    return left > 0.001 ? left : 0.001;
}

static bool is_over(const solving *s) { return stw_planner_now_s() >= s->end_s; }

static double time_limit_of(const stw_planner_options *options) {
    return options->time_limit_s > 0 ? options->time_limit_s : STW_PLANNER_TIME_LIMIT_S;
}

/* ---- from a choice to a plan ---- */

/* @param derive stw_plan_derive, or stw_plan_derive_bytes where the plan may not fit */
static stw_status take_choice(solving *s, const stw_choice *choice,
                              stw_status (*derive)(stw_plan *, stw_error *), stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    STW_TRY(stw_cost_decide(s->cost, choice, plan->pool, &plan->decisions, err));
    STW_TRY(derive(plan, err));
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
static void note_comparison(solving *s, const stw_candidates *all, uint32_t chosen) {
    uint32_t stage = s->ilp.n_stages++;
    double fastest = all->list[all->fastest].seconds, here = all->list[chosen].seconds;
    s->ilp.stage_names[stage] = all->simulate != NULL ? "simulated_seconds" : "plainness";
    s->ilp.stages[stage] = (stw_milp_result){.outcome = STW_MILP_FEASIBLE,
                                             .objective = here,
                                             .bound = fastest,
                                             .gap = here > 0 ? (here - fastest) / here : 0};
}

static stw_status report_solver(solving *s, stw_error *err) {
    stw_solver_report *report = &s->plan->solver;
    const stw_ilp_result *ilp = &s->ilp;
    report->version = stw_pool_string(s->plan->pool, stw_milp_solver_version());
    report->name = stw_milp_solver_version()[0] != '\0' ? "glpk" : "greedy";
    report->rows = ilp->rows;
    report->columns = ilp->columns;
    report->objective = ilp->stages[s->proof].objective;
    report->bound = ilp->stages[s->proof].bound;
    report->gap = ilp->stages[s->proof].gap;
    report->greedy_objective = s->greedy_fits ? s->greedy_evaluation.objective_s : NAN;
    report->n_stages = ilp->n_stages;
    report->stages = stw_pool_array(s->plan->pool, ilp->n_stages, sizeof *report->stages);
    if (report->stages == NULL || report->version == NULL) return no_memory(err);
    for (uint32_t i = 0; i < ilp->n_stages; i++) {
        const stw_milp_result *stage = &ilp->stages[i];
        report->stages[i] = (stw_solver_stage){ilp->stage_names[i], stage->objective, stage->bound,
                                               stage->gap, stage->seconds};
    }
    return STW_STATUS_OK;
}

/* A solver's tolerance is not allowed to reach a limit: rows are exact. */
static stw_status check_limits(const solving *s, stw_error *err) {
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
typedef stw_status optional_step(solving *s, stw_error *err);

static stw_status try_step(solving *s, optional_step *step, stw_error *err) {
    stw_error why = STW_ERROR_INIT;
    double before = stw_deadline_set(fmin(s->end_s, stw_deadline_end_s()));
    stw_status status = step(s, &why);
    (void)stw_deadline_set(before);
    if (status == STW_STATUS_TIME_LIMIT) return STW_STATUS_OK;
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    return status;
}

/* Time for a step that only adds information: what is left, at most `most_s`. */
static double time_for(const solving *s, double most_s) {
    double left = left_s(s);
    return left < most_s ? left : most_s;
}

static stw_candidates candidates_of(const solving *s, const stw_bars *bars) {
    return (stw_candidates){.cost = s->cost,
                            .bars = *bars,
                            .simulate = s->options->simulate,
                            .pool = s->cost->pool,
                            .work_left = SEARCH_WORK,
                            .end_s = s->end_s};
}

/* Seconds of a candidate without its part of the load. */
static double iteration_s(const stw_candidate *candidate) {
    return candidate->seconds - candidate->rows.load_s / STW_LOAD_SPREAD;
}

/* What the fastest of the candidates that were passed over needs more. */
static stw_status tell_faster(solving *s, const stw_candidates *all, uint32_t chosen,
                              stw_error *err) {
    const stw_candidate *fastest = &all->list[all->fastest], *here = &all->list[chosen];
    if (!(fastest->seconds < here->seconds * (1 - STW_PLAIN_SLACK / 10))) return STW_STATUS_OK;
    char needs[160];
    stw_choice_tell_more(s->cost, &fastest->choice, &here->choice, needs, sizeof needs);
    bool plainer = stw_plainness_compare(&here->plain, &fastest->plain) < 0;
    return stw_plan_add_alternative(s->plan, plainer ? "plainness" : "headroom",
                                    iteration_s(fastest), iteration_s(here), needs, err);
}

/* The preferred candidate that the level admits; the first one is known to be so. */
static stw_status choose_without_risk(solving *s, stw_candidates *all, uint32_t *chosen,
                                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int i = 0; i < MOST_JUDGED; i++) {
        uint64_t excess = 0;
        *chosen = stw_candidates_choose(all);
        if (*chosen == 0) return STW_STATUS_OK;
        STW_TRY(
            stw_risk_excess(s->plan, s->cost, &all->list[*chosen].choice, s->level, &excess, err));
        if (excess == 0) return STW_STATUS_OK;
        stw_candidates_exclude(all, *chosen);
    }
    *chosen = 0;
out:
    return status;
}

/* Let the simulator choose between the solver's choice and others. */
static stw_status compare_candidates(solving *s, stw_candidates *all, uint32_t *chosen,
                                     stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_result spared;
    STW_TRY(stw_candidates_search(all, &s->choice, err));
    if (all->n == 0) {
        status = stw_fail(err, STW_STATUS_BUG, "planner", "the solver's choice does not fit");
        goto out;
    }
    STW_TRY(stw_candidates_use_spare(all, gap_of(s->options), &spared, err));
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
static stw_status tell_fuller(solving *s, double here_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t memory = s->plan->cluster.gpu.memory_bytes;
    const uint64_t filled = stw_risk_gpu_limit(s->plan, STW_RISK_ANY);
    const bool avoids = s->level != STW_RISK_ANY && s->limit_bytes < filled;
    if (s->limit_bytes >= memory) return STW_STATUS_OK;
    stw_choice fuller = stw_choice_new(s->cost, s->cost->pool);
    if (fuller.acts == NULL) return no_memory(err);
    stw_cost_limit_gpu(s->cost, avoids ? filled : memory);
    stw_ilp_options options = {.time_limit_s = time_for(s, LATER_S),
                               .gap = 1e-3,
                               .quick = true,
                               .bars = s->bars,
                               .most_s = here_s * (1 - WORTH_TELLING)};
    stw_ilp_result result;
    stw_candidates all = candidates_of(s, &s->bars);
    all.work_left /= 4;
    STW_TRY(stw_candidates_add(&all, &s->choice, NULL, err));
    STW_TRY(stw_ilp_solve(s->cost, &options, &fuller, &result, err));
    if (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE)
        STW_TRY(stw_candidates_add(&all, &fuller, NULL, err));
    if (all.n == 0) goto out;
    uint32_t best = all.fastest;
    const stw_plainness any = {UINT32_MAX, UINT32_MAX};
    STW_TRY(stw_candidates_improve(&all, &any, &best, err));
    if (all.list[best].seconds > here_s * (1 - WORTH_TELLING)) goto out;
    char needs[160];
    snprintf(needs, sizeof needs, "%.1f%% of the GPU memory",
             100 * (double)all.list[best].rows.gpu_bytes / (double)memory);
    STW_TRY(stw_plan_add_alternative(s->plan, avoids ? "placement.accept" : "placement.gpu_fill",
                                     iteration_s(&all.list[best]), here_s, needs, err));
out:
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
    return status;
}

/* What the simulator says of the solver's choice and others. */
static stw_status simulate_choices(solving *s, stw_error *err) {
    stw_candidates all = candidates_of(s, &s->bars);
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
    const bool tells = status == STW_STATUS_OK && !s->options->no_alternatives;
    return tells ? tell_fuller(s, s->here_s, err) : status;
}

static stw_status price(solving *s, stw_error *err) {
    const stw_price_search prices = {.cost = s->cost,
                                     .choice = &s->choice,
                                     .fastest_s = s->fastest_s,
                                     .simulate = s->options->simulate,
                                     .bars = s->bars,
                                     .limit_bytes = s->limit_bytes,
                                     .time_limit_s = time_for(s, PRICE_TIME_S)};
    return stw_planner_price(s->plan, &prices, err);
}

/* Of loads that take as long the one with the fewest GiB, and of these the last, which reads the
 * least per rank. */
static void settle_load(solving *s) {
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

static stw_status finish_fitting(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    s->here_s = s->fastest_s = s->ilp.stages[0].objective;
    if (!s->options->only_stage1) STW_TRY(try_step(s, simulate_choices, err));
    settle_load(s);
    STW_TRY(check_limits(s, err));
    STW_TRY(take_choice(s, &s->choice, stw_plan_derive, err));
    STW_TRY(report_solver(s, err));
    plan->outcome = s->ilp.outcome != STW_MILP_OPTIMAL           ? STW_OUTCOME_LIMIT
                    : s->ilp.stages[s->proof].gap <= OPTIMAL_GAP ? STW_OUTCOME_OPTIMAL
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
    const solving *s = by;
    stw_planner_options options = *s->options;
    options.time_limit_s = time_limit_s;
    options.write_lp = NULL;
    options.no_fixes = options.no_prices = options.no_reasons = options.no_alternatives = true;
    stw_status status = s->whole(plan, &options, err);
    if (status != STW_STATUS_OK || plan->outcome == STW_OUTCOME_INFEASIBLE) return status;
    return stw_planner_time(plan, options.simulate, err);
}

/* What binds, and what would help. */
static stw_status explain(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_planner_conflict(s->plan, s->cost, left_s(s), err));
    if (s->options->no_fixes) goto out;
    STW_TRY(stw_planner_limits(s->plan, left_s(s), err));
    const stw_fix_judge judge = {solve_alone, s};
    const bool simulates = s->options->simulate != NULL; /* else no plan is the final one */
    STW_TRY(stw_planner_fix(s->plan, left_s(s), simulates ? &judge : NULL, err));
out:
    return status;
}

/* Nothing fits, or nothing that fits was found by a solver that failed: the least-over plan, what
 * binds, and what would help. Rows are upper bounds, so the walk of that plan may turn out to fit
 * after all. */
static stw_status finish_infeasible(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    const stw_ilp_result first = s->ilp;
    stw_ilp_options options = {.time_limit_s = left_s(s)}; /* searches end by their nodes */
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

/* The time was over before the ILP had anything: what greedy found is still a plan. */
static stw_status finish_greedy(solving *s, stw_error *err) {
    if (!s->greedy_fits)
        return stw_fail(err, STW_STATUS_TIME_LIMIT, "planner",
                        "no plan was found in %.3g s; raise --time-limit",
                        time_limit_of(s->options));
    s->plan->solver.name = "greedy";
    s->plan->solver.objective = s->greedy_evaluation.objective_s;
    double bound = s->plan->solver.bound;
    s->plan->solver.gap = (s->plan->solver.objective - bound) / s->plan->solver.objective;
    s->plan->outcome = STW_OUTCOME_LIMIT;
    return take_choice(s, &s->greedy, stw_plan_derive, err);
}

/* The problem of a job, with room for the answers. */
static stw_status pose(solving *s, const stw_job *job, stw_error *err) {
    stw_status status = stw_cost_new(job, &s->cost, err);
    if (status != STW_STATUS_OK) return status;
    s->choice = stw_choice_new(s->cost, s->cost->pool);
    s->greedy = stw_choice_new(s->cost, s->cost->pool);
    return s->choice.acts == NULL || s->greedy.acts == NULL ? no_memory(err) : STW_STATUS_OK;
}

/* One attempt: greedy rule and integer program under the attempt's limit and bars. */
static stw_status solve_once(solving *s, stw_error *err) {
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
    s->greedy_fits = stw_greedy_solve_without(s->cost, &s->bars, &s->greedy, &s->greedy_evaluation);
    stw_ilp_options ilp = {.time_limit_s = left_s(s),
                           .gap = gap_of(s->options),
                           .write_lp = s->options->write_lp,
                           .bars = s->bars,
                           .start = s->greedy_fits && !s->options->only_stage1 ? &s->greedy : NULL};
    return stw_ilp_solve(s->cost, &ilp, &s->choice, &s->ilp, err);
}

static uint32_t places_on_nvme(const stw_cost *cost) {
    uint32_t places = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].moments == STW_TIER_NVME) places |= 1u << p;
    return places;
}

/* Places whose update the framework's own optimizers lack. */
static uint32_t places_streamed(const stw_plan *plan, const stw_cost *cost) {
    uint32_t places = 0;
    if (plan->job->engine->streamed_note == NULL ||
        plan->run.optimizer.implementation != STW_OPTIMIZER_AUTO)
        return 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == STW_UPDATE_STREAM) places |= 1u << p;
    return places;
}

/* Has an attempt found anything? The solver fails at times, and the greedy rule finds what it can
 * without it. */
static bool has_plan(const solving *s) {
    bool solved = s->ilp.outcome == STW_MILP_OPTIMAL || s->ilp.outcome == STW_MILP_FEASIBLE;
    return solved || s->greedy_fits;
}

/* What an attempt under a limit has found. */
typedef struct found {
    stw_choice choice, greedy;
    bool greedy_fits;
    stw_evaluation greedy_evaluation;
    stw_ilp_result ilp;
    uint64_t limit_bytes, gpu_bytes; /* gpu_bytes: of its rows */
    uint64_t excess_bytes;
} found;

static bool is_solved(const solving *s) {
    return s->ilp.outcome == STW_MILP_OPTIMAL || s->ilp.outcome == STW_MILP_FEASIBLE;
}

/* Solve under s->limit_bytes, and judge what is found. */
static stw_status solve_and_judge(solving *s, found *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_evaluation rows;
    STW_TRY(solve_once(s, err));
    if (!has_plan(s)) return STW_STATUS_OK;
    const stw_choice *choice = is_solved(s) ? &s->choice : &s->greedy;
    stw_cost_evaluate(s->cost, choice, &rows);
    out->gpu_bytes = rows.gpu_bytes;
    out->limit_bytes = s->limit_bytes;
    STW_TRY(stw_risk_excess(s->plan, s->cost, choice, s->level, &out->excess_bytes, err));
out:
    return status;
}

static void keep(const solving *s, found *out) {
    stw_choice_copy(s->cost, &out->choice, &s->choice);
    stw_choice_copy(s->cost, &out->greedy, &s->greedy);
    out->greedy_fits = s->greedy_fits;
    out->greedy_evaluation = s->greedy_evaluation;
    out->ilp = s->ilp;
}

static void take_back(solving *s, const found *from) {
    stw_choice_copy(s->cost, &s->choice, &from->choice);
    stw_choice_copy(s->cost, &s->greedy, &from->greedy);
    s->greedy_fits = from->greedy_fits;
    s->greedy_evaluation = from->greedy_evaluation;
    s->ilp = from->ilp;
    s->limit_bytes = from->limit_bytes;
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
}

/* A limit was lowered by more than a choice needs: what is between it and the last one that was too
 * much? @param least known to be admitted @param most bytes of rows that are too many */
static stw_status raise_limit(solving *s, found *least, uint64_t most, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    keep(s, least);
    for (int i = 0; i < MOST_RAISES && !is_over(s); i++) {
        found now = *least;
        if (most - stw_min_u64(least->limit_bytes, most) < stw_scaled(most, WIDE)) break;
        s->limit_bytes = least->limit_bytes + (most - least->limit_bytes) / 2;
        STW_TRY(solve_and_judge(s, &now, err));
        if (!has_plan(s)) break;
        if (now.excess_bytes > 0) {
            most = now.gpu_bytes;
            continue;
        }
        keep(s, &now);
        *least = now;
    }
    take_back(s, least);
out:
    return status;
}

/* Blocks of two policies split an allocator's memory up more than those of one. */
static stw_status solve_keeping_none(solving *s, found *now, stw_error *err) {
    s->bars.acts |= 1u << STW_ACT_KEEP;
    s->limit_bytes = stw_risk_gpu_limit(s->plan, s->level);
    return solve_and_judge(s, now, err);
}

/* Fill the GPU as far as the level admits. Where what is reserved then is too much, so much less,
 * and where that leaves nothing, half as much less; where that leads nowhere, without blocks that
 * are kept. */
static stw_status solve_without_risk(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t most = stw_risk_gpu_limit(s->plan, s->level), least = 0; /* too much, too little */
    found now = {.choice = stw_choice_new(s->cost, s->cost->pool),
                 .greedy = stw_choice_new(s->cost, s->cost->pool)};
    if (now.choice.acts == NULL || now.greedy.acts == NULL) return no_memory(err);
    s->limit_bytes = most;
    for (int i = 0; i < MOST_LIMITS; i++) {
        STW_TRY(solve_and_judge(s, &now, err));
        if (has_plan(s)) {
            const bool raises = i > 0 && now.excess_bytes == 0 && !s->options->only_stage1;
            if (raises) STW_TRY(raise_limit(s, &now, most, err));
            if (now.excess_bytes == 0 || is_over(s)) return STW_STATUS_OK;
            most = stw_min_u64(most, now.gpu_bytes);
            s->limit_bytes = most + STW_COST_GUARD_BYTES;
            s->limit_bytes -= stw_min_u64(now.excess_bytes, s->limit_bytes);
        } else {
            if (i == 0 || is_over(s)) return STW_STATUS_OK;
            least = s->limit_bytes;
        }
        if (s->limit_bytes <= least) s->limit_bytes = least + (most - least) / 2;
        if (most - stw_min_u64(s->limit_bytes, most) < stw_scaled(most, SAME_LIMIT)) break;
    }
    STW_TRY(solve_keeping_none(s, &now, err));
    if (has_plan(s) && now.excess_bytes == 0) return STW_STATUS_OK;
    s->greedy_fits = false;
    s->ilp.outcome = STW_MILP_INFEASIBLE;
out:
    s->bars.acts = has_plan(s) ? s->bars.acts : 0;
    return status;
}

/* Fill the GPU to placement.gpu_fill; where that fits nothing, no further than it has to be, in
 * FILL_STEPS steps to its whole memory. */
static stw_status solve_filling(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t memory = s->plan->cluster.gpu.memory_bytes;
    double fill = s->plan->run.placement.gpu_fill;
    const int order[] = {0, FILL_STEPS, 1, 2, 3, FILL_STEPS};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        double share = fill + (1 - fill) * order[i] / FILL_STEPS;
        s->limit_bytes = order[i] < FILL_STEPS ? (uint64_t)((double)memory * share) : memory;
        STW_TRY(solve_once(s, err));
        if (i == 1 ? !has_plan(s) : has_plan(s)) break;
    }
out:
    return status;
}

/* One level of risk. State goes to a disk, which is slow and wears, only where there is no other
 * room for it, or on request. @param barred places that are no option */
static stw_status solve_level(solving *s, uint32_t barred, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = s->plan;
    bool asked =
        plan->run.placement.moments == STW_TIER_NVME || plan->run.placement.master == STW_TIER_NVME;
    const uint32_t bars[] = {barred | (asked ? 0 : places_on_nvme(s->cost)), barred};
    stw_risk_limit_nodes(plan, s->level, s->cost);
    for (size_t i = 0; i < sizeof bars / sizeof bars[0]; i++) {
        if (i > 0 && bars[i] == s->bars.places) continue;
        s->bars.places = bars[i];
        STW_TRY(s->level == STW_RISK_ANY ? solve_filling(s, err) : solve_without_risk(s, err));
        if (has_plan(s)) break;
    }
out:
    return status;
}

/* A plan at risk is taken where none fits, or on request; one whose update the framework lacks
 * where there is no other. */
static stw_status solve_calmly(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t streamed = places_streamed(s->plan, s->cost);
    for (int i = 0; i < (streamed != 0 ? 2 : 1); i++)
        for (s->level = stw_risk_first(&s->plan->run);; s->level++) {
            if (stw_risk_differs(s->plan, s->level))
                STW_TRY(solve_level(s, i == 0 ? streamed : 0, err));
            if (has_plan(s) || is_over(s)) return STW_STATUS_OK;
            if (s->level == STW_RISK_ANY) break;
        }
out:
    return status;
}

/* Rows are upper bounds: nothing fits only when what they overstate does not help either. */
static stw_status solve_in_spare(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_ilp_options over = {.time_limit_s = time_for(s, LATER_S)};
    const stw_ilp_options options = {
        .time_limit_s = left_s(s), .gap = gap_of(s->options), .bars = s->bars};
    stw_ilp_result result;
    stw_candidates all = candidates_of(s, &s->bars);
    STW_TRY(stw_ilp_solve_least_over(s->cost, &over, &s->choice, &result, err));
    if (result.outcome != STW_MILP_OPTIMAL && result.outcome != STW_MILP_FEASIBLE) goto out;
    STW_TRY(stw_candidates_fit_spare(&all, &options, &s->choice, &result, err));
    s->settled = result.outcome != STW_MILP_LIMIT;
    if (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE) s->ilp = result;
out:
    return status;
}

/* Do bounds say that the caller has no use for any choice? */
static bool is_sieved(const solving *s) {
    stw_planner_sieve *sieve = s->options->sieve;
    if (sieve == NULL) return false;
    sieve->too_slow = sieve->most_s > 0 && stw_cost_least_seconds(s->cost) > sieve->most_s;
    sieve->over_share = stw_cost_least_over_share(s->cost);
    sieve->too_big = !sieve->too_slow && sieve->over_share > sieve->most_share;
    sieve->too_much_state = sieve->too_big && stw_cost_has_too_much_state(s->cost);
    return sieve->too_slow || sieve->too_big;
}

stw_status stw_planner_solve_run(stw_plan *plan, const stw_planner_options *options,
                                 stw_planner_whole *whole, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    solving s = {.plan = plan, .options = options, .whole = whole, .start_s = stw_planner_now_s()};
    s.end_s = s.start_s + fmin(time_limit_of(options),
                               SEARCH_SHARE * fmax(stw_deadline_end_s() - s.start_s, 0));
    plan->n_alternatives = 0;
    plan->solver.simulated = 0;
    STW_TRY(pose(&s, plan->job, err));
    if (is_sieved(&s)) goto out;
    STW_TRY(solve_calmly(&s, err));
    bool timed_out = s.ilp.outcome == STW_MILP_LIMIT && is_over(&s);
    if (!has_plan(&s) && !timed_out) {
        STW_TRY(try_step(&s, solve_in_spare, err));
        timed_out = !has_plan(&s) && !s.settled && is_over(&s);
    }
    STW_TRY(report_solver(&s, err));
    if (s.ilp.outcome == STW_MILP_OPTIMAL || s.ilp.outcome == STW_MILP_FEASIBLE)
        STW_TRY(finish_fitting(&s, err));
    else if (s.greedy_fits || timed_out)
        STW_TRY(finish_greedy(&s, err));
    else
        STW_TRY(finish_infeasible(&s, err));
    plan->solver.seconds = stw_planner_now_s() - s.start_s;
out:
    stw_cost_free(s.cost);
    return status;
}
