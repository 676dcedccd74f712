/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/planner.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "planner/problem.h"
#include "planner/resolve.h"
#include "planner/solvers.h"

#define USUAL_TIME_LIMIT_S 30.0
#define USUAL_GAP 1e-4
#define OPTIMAL_GAP                                                                                \
    1e-3 /* what `optimal` may mean at most; a looser gap asked for is `feasible`                  \
          */
#define PRICE_TIME_S 10.0
#define CONFLICT_TIME_S 5.0
#define FIX_TIME_S 20.0

/* State leaves the GPU to make room, not for a fraction of a millisecond: where all of it can stay
 * and an iteration takes at most this share longer, it stays. What is left of the host's bandwidth
 * and cores belongs to the data loader, and a plan with one place is one that a person understands.
 */
static const double LEAST_GAIN_OFF_GPU = 0.01;

typedef struct solving {
    stw_plan *plan;
    stw_cluster calm_cluster; /* the cluster with a margin left on its GPUs, and the job on it */
    stw_job calm_job;
    stw_run_spec resident_run; /* the run with everything held on the GPU, and the job with it */
    stw_job resident_job;
    const stw_planner_options *options;
    stw_cost *cost;
    stw_choice choice, greedy;
    bool greedy_fits;
    stw_evaluation greedy_evaluation;
    stw_ilp_result ilp;
    double start_s;
} solving;

static double now_s(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the plan");
}

static double gap_of(const stw_planner_options *options) {
    if (options->gap < 0 || (options->gap == 0 && !options->gap_is_set)) return USUAL_GAP;
    return options->gap;
}

static double time_limit_of(const stw_planner_options *options) {
    return options->time_limit_s > 0 ? options->time_limit_s : USUAL_TIME_LIMIT_S;
}

/* ---- from a choice to a plan ---- */

static stw_status take_choice(solving *s, const stw_choice *choice, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    STW_TRY(stw_cost_decide(s->cost, choice, plan->pool, &plan->decisions, err));
    STW_TRY(stw_plan_derive(plan, err));
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

static stw_status report_solver(solving *s, stw_error *err) {
    stw_solver_report *report = &s->plan->solver;
    const stw_ilp_result *ilp = &s->ilp;
    report->name = "glpk";
    report->version = stw_pool_string(s->plan->pool, stw_milp_solver_version());
    report->rows = ilp->rows;
    report->columns = ilp->columns;
    report->objective = ilp->stages[0].objective;
    report->bound = ilp->stages[0].bound;
    report->gap = ilp->stages[0].gap;
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
        if (bytes > row->limit_bytes)
            return stw_fail(err, STW_STATUS_BUG, row->name,
                            "the solver's plan takes %llu bytes of %s, the limit is %llu",
                            (unsigned long long)bytes, row->resource,
                            (unsigned long long)row->limit_bytes);
    }
    return STW_STATUS_OK;
}

/* ---- outcomes ---- */

static stw_status finish_fitting(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    double slack = stw_stage_slack(gap_of(s->options));
    if (!s->options->only_stage1)
        stw_choice_tidy(s->cost, s->ilp.stages[0].objective * (1 + slack), &s->choice);
    STW_TRY(check_limits(s, err));
    STW_TRY(take_choice(s, &s->choice, err));
    plan->outcome = s->ilp.outcome != STW_MILP_OPTIMAL    ? STW_OUTCOME_LIMIT
                    : s->ilp.stages[0].gap <= OPTIMAL_GAP ? STW_OUTCOME_OPTIMAL
                                                          : STW_OUTCOME_FEASIBLE;
    double worst = plan->solver.objective * (1 + STW_STAGE_SLACK) * (1 + 1e-6);
    if (plan->objective_s > worst) {
        status = stw_fail(err, STW_STATUS_BUG, "planner",
                          "the plan takes %.9g s, the solver said %.9g s", plan->objective_s,
                          plan->solver.objective);
        goto out;
    }
    if (!s->options->no_prices && plan->outcome != STW_OUTCOME_LIMIT)
        STW_TRY(
            stw_planner_price(plan, s->cost, &s->choice, gap_of(s->options), PRICE_TIME_S, err));
out:
    return status;
}

/* Nothing fits: the least-over plan, what binds, and what would help. Rows are upper bounds, so the
 * walk of that plan may turn out to fit after all. */
static stw_status finish_infeasible(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = s->plan;
    const stw_ilp_result first = s->ilp;
    double left = time_limit_of(s->options) - s->ilp.seconds;
    stw_ilp_options options = {.time_limit_s = left > 1 ? left : 1};
    STW_TRY(stw_ilp_solve_least_over(s->cost, &options, &s->choice, &s->ilp, err));
    if (s->ilp.outcome != STW_MILP_OPTIMAL && s->ilp.outcome != STW_MILP_FEASIBLE) {
        status = stw_fail(err, STW_STATUS_TIME_LIMIT, "planner",
                          "nothing fits, and the time was over before the least-over plan was "
                          "found; raise --time-limit");
        goto out;
    }
    STW_TRY(take_choice(s, &s->choice, err));
    STW_TRY(report_solver(s, err));
    plan->solver.rows = first.rows;
    plan->solver.columns = first.columns;
    plan->solver.objective = plan->solver.bound = plan->solver.gap = NAN; /* of the true stage 1 */
    if (plan->verdict != STW_VERDICT_DOES_NOT_FIT) {
        plan->outcome = STW_OUTCOME_FEASIBLE;
        goto out;
    }
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    STW_TRY(stw_planner_conflict(plan, s->cost, CONFLICT_TIME_S, err));
    if (!s->options->no_fixes) STW_TRY(stw_planner_fix(plan, FIX_TIME_S, err));
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
    return take_choice(s, &s->greedy, err);
}

/* The problem of a job, with room for the answers. */
static stw_status pose(solving *s, const stw_job *job, stw_error *err) {
    stw_status status = stw_cost_new(job, &s->cost, err);
    if (status != STW_STATUS_OK) return status;
    s->choice = stw_choice_new(s->cost, s->cost->pool);
    s->greedy = stw_choice_new(s->cost, s->cost->pool);
    return s->choice.acts == NULL || s->greedy.acts == NULL ? no_memory(err) : STW_STATUS_OK;
}

/* Stage 1 of the problem posed, as a look ahead: its seconds, INFINITY where nothing fits. */
static stw_status least_seconds(solving *s, double *seconds, stw_error *err) {
    stw_ilp_options options = {
        .time_limit_s = time_limit_of(s->options), .gap = gap_of(s->options), .only_stage1 = true};
    stw_ilp_result result;
    *seconds = INFINITY;
    stw_status status = stw_ilp_solve(s->cost, &options, &s->choice, &result, err);
    if (status == STW_STATUS_OK && result.outcome == STW_MILP_OPTIMAL)
        *seconds = result.stages[0].objective;
    return status;
}

/* May the planner choose freely, unit by unit? */
static bool is_free(const stw_cost *cost, const stw_run_spec *run) {
    return !cost->whole && run->placement.params == STW_AUTO && run->placement.grads == STW_AUTO &&
           run->placement.moments == STW_AUTO && run->placement.master == STW_AUTO &&
           run->optimizer.implementation == STW_OPTIMIZER_AUTO &&
           run->update.resident >= STW_AUTO_NUMBER && run->update.stream >= STW_AUTO_NUMBER &&
           run->update.cpu >= STW_AUTO_NUMBER &&
           (run->update.direct <= 0 || run->update.direct >= STW_AUTO_NUMBER);
}

/* Pose the problem to solve: with everything resident where that costs next to nothing. */
static stw_status pose_simplest(solving *s, const stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double any_s, resident_s;
    STW_TRY(pose(s, job, err));
    if (!is_free(s->cost, &s->plan->run)) return STW_STATUS_OK;
    STW_TRY(least_seconds(s, &any_s, err));
    stw_cost_free(s->cost);
    s->cost = NULL;
    s->resident_run = s->plan->run;
    s->resident_run.placement.params = s->resident_run.placement.grads =
        s->resident_run.placement.moments = STW_TIER_GPU;
    s->resident_job = *job;
    s->resident_job.run = &s->resident_run;
    STW_TRY(pose(s, &s->resident_job, err));
    STW_TRY(least_seconds(s, &resident_s, err));
    if (isfinite(resident_s) && resident_s <= any_s * (1 + LEAST_GAIN_OFF_GPU))
        return STW_STATUS_OK;
    stw_cost_free(s->cost);
    s->cost = NULL;
    STW_TRY(pose(s, job, err));
out:
    return status;
}

/* All stages on one job. */
static stw_status solve_on(solving *s, const stw_job *job, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp_options ilp = {.time_limit_s = time_limit_of(s->options),
                           .gap = gap_of(s->options),
                           .write_lp = s->options->write_lp,
                           .only_stage1 = s->options->only_stage1};
    stw_cost_free(s->cost);
    s->cost = NULL;
    STW_TRY(pose_simplest(s, job, err));
    s->greedy_fits = stw_greedy_solve(s->cost, &s->greedy, &s->greedy_evaluation);
    STW_TRY(stw_ilp_solve(s->cost, &ilp, &s->choice, &s->ilp, err));
out:
    return status;
}

/* Each attempt where the ones before fit nothing. A GPU filled to the last MiB runs out of memory
 * for reasons that no plan sees: plan below the share from which a plan is called at risk. And
 * state goes to a disk, which is slow and wears, only where there is no other room for it, or on
 * request. */
static stw_status solve_calmly(solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = s->plan;
    bool asked =
        plan->run.placement.moments == STW_TIER_NVME || plan->run.placement.master == STW_TIER_NVME;
    bool disk = plan->cluster.nvme.capacity_bytes > 0;
    for (int attempt = disk && !asked ? 0 : 2; attempt < 4; attempt++) {
        s->calm_cluster = plan->cluster;
        s->calm_job = *plan->job;
        s->calm_job.cluster = &s->calm_cluster;
        if (attempt < 2) s->calm_cluster.nvme.capacity_bytes = 0;
        if (attempt % 2 == 0)
            s->calm_cluster.gpu.memory_bytes =
                (uint64_t)((double)plan->cluster.gpu.memory_bytes * STW_RISK_SHARE);
        STW_TRY(solve_on(s, attempt == 3 ? plan->job : &s->calm_job, err));
        if (s->ilp.outcome != STW_MILP_INFEASIBLE) break;
    }
out:
    return status;
}

stw_status stw_planner_solve(stw_plan *plan, const stw_planner_options *options, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    solving s = {.plan = plan, .options = options, .start_s = now_s()};
    STW_TRY(solve_calmly(&s, err));
    STW_TRY(report_solver(&s, err));
    switch (s.ilp.outcome) {
    case STW_MILP_INFEASIBLE:
        STW_TRY(finish_infeasible(&s, err));
        break;
    case STW_MILP_LIMIT:
        STW_TRY(finish_greedy(&s, err));
        break;
    default:
        STW_TRY(finish_fitting(&s, err));
        break;
    }
    plan->solver.seconds = now_s() - s.start_s;
out:
    stw_cost_free(s.cost);
    return status;
}
