/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/levels.h"

#include "core/checked.h"
#include "planner/problem.h"
#include "planner/resolve.h"

#define USUAL_GAP 1e-4

/* Work of comparing choices, in operations of programs that are built or simulated: a quarter of a
 * second or so. */
#define SEARCH_WORK 1400000

/* Of the solver where rows fit nothing, and limits that are tried then. */
static const double SPARE_TIME_S = 1;
#define MOST_SPARED 3

/* Limits between placement.gpu_fill and the whole GPU. */
#define FILL_STEPS 4

/* Of one attempt to find a plan without risk; limits that differ by less are the same. */
#define MOST_LIMITS 6
static const double SAME_LIMIT = 5e-4;

/* Where a limit that admits something is lower by more than this share than one that is too much,
 * limits between them are tried so often. */
#define MOST_RAISES 6
static const double WIDE = 0.005;

double stw_solving_gap(const stw_planner_options *options) {
    if (options->gap < 0 || (options->gap == 0 && !options->gap_is_set)) return USUAL_GAP;
    return options->gap;
}

double stw_solving_left_s(const stw_solving *s) {
    double left = s->end_s - stw_planner_now_s();
    return left > 0.001 ? left : 0.001;
}

bool stw_solving_is_over(const stw_solving *s) { return stw_planner_now_s() >= s->end_s; }

/* Time for a step that only adds information: what is left, at most `most_s`. */
double stw_solving_time_for(const stw_solving *s, double most_s) {
    double left = stw_solving_left_s(s);
    return left < most_s ? left : most_s;
}

stw_candidates stw_solving_candidates(const stw_solving *s, const stw_bars *bars) {
    return (stw_candidates){.cost = s->cost,
                            .bars = *bars,
                            .simulate = s->options->simulate,
                            .pool = s->cost->pool,
                            .work_left = SEARCH_WORK,
                            .end_s = s->end_s};
}

/* ---- attempts ---- */

/* Where the solver fails or its time is over: what descents on the rows find. */
static stw_status solve_by_descents(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_milp_result *stage = &s->ilp.stages[0];
    stw_ilp_result result;
    stw_evaluation e;
    const stw_ilp_options options = {
        .time_limit_s = stw_solving_left_s(s), .bars = s->bars, .no_solver = true};
    STW_TRY(stw_ilp_solve_least_over(s->cost, &options, &s->choice, &result, err));
    stw_cost_evaluate(s->cost, &s->choice, &e);
    if (result.outcome != STW_MILP_FEASIBLE || !e.fits) goto out;
    s->ilp.outcome = stage->outcome = STW_MILP_FEASIBLE;
    s->ilp.by_descents = true;
    stage->objective = e.objective_s;
    stage->gap = (e.objective_s - stage->bound) / e.objective_s;
out:
    return status;
}

/* One attempt: the integer program under the attempt's limit and bars. */
static stw_status solve_once(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
    stw_ilp_options ilp = {
        .time_limit_s = stw_solving_left_s(s), .gap = stw_solving_gap(s->options), .bars = s->bars};
    STW_TRY(stw_ilp_solve(s->cost, &ilp, &s->choice, &s->ilp, err));
    if (s->ilp.outcome == STW_MILP_LIMIT) STW_TRY(solve_by_descents(s, err));
out:
    return status;
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

/* What an attempt under a limit has found. */
typedef struct found {
    stw_choice choice;
    stw_ilp_result ilp;
    uint64_t limit_bytes, gpu_bytes; /* gpu_bytes: of its rows */
    uint64_t excess_bytes;
} found;

bool stw_solving_is_solved(const stw_solving *s) { return stw_milp_has_solution(s->ilp.outcome); }

/* The least seconds under the limit at hand are known: does that end the search? */
static bool is_too_slow(const stw_solving *s) {
    stw_planner_sieve *sieve = s->options->sieve;
    if (sieve != NULL && sieve->most_rows_s > 0 && stw_solving_is_solved(s))
        sieve->too_slow = s->ilp.stages[0].bound > sieve->most_rows_s;
    return sieve != NULL && sieve->too_slow;
}

/* Solve under s->limit_bytes, and judge what is found. */
static stw_status solve_and_judge(stw_solving *s, found *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_evaluation rows;
    STW_TRY(solve_once(s, err));
    if (!stw_solving_is_solved(s) || is_too_slow(s)) return STW_STATUS_OK;
    stw_cost_evaluate(s->cost, &s->choice, &rows);
    out->gpu_bytes = rows.gpu_bytes;
    out->limit_bytes = s->limit_bytes;
    STW_TRY(stw_risk_judge(s->plan, s->cost, &s->choice, s->level, &s->judged, err));
    out->excess_bytes = s->judged.excess_bytes;
out:
    return status;
}

static void keep(const stw_solving *s, found *out) {
    stw_choice_copy(s->cost, &out->choice, &s->choice);
    out->ilp = s->ilp;
}

static void take_back(stw_solving *s, const found *from) {
    stw_choice_copy(s->cost, &s->choice, &from->choice);
    s->ilp = from->ilp;
    s->limit_bytes = from->limit_bytes;
    stw_cost_limit_gpu(s->cost, s->limit_bytes);
}

/* A limit was lowered by more than a choice needs: what is between it and the last one that was too
 * much? @param least known to be admitted @param most bytes of rows that are too many */
static stw_status raise_limit(stw_solving *s, found *least, uint64_t most, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    keep(s, least);
    for (int i = 0; i < MOST_RAISES && !stw_solving_is_over(s); i++) {
        found now = *least;
        if (most - stw_min_u64(least->limit_bytes, most) < stw_scaled(most, WIDE)) break;
        s->limit_bytes = least->limit_bytes + (most - least->limit_bytes) / 2;
        STW_TRY(solve_and_judge(s, &now, err));
        if (!stw_solving_is_solved(s)) break;
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
static stw_status solve_keeping_none(stw_solving *s, found *now, stw_error *err) {
    s->bars.acts |= 1u << STW_ACT_KEEP;
    s->limit_bytes = stw_risk_gpu_limit(s->plan, s->level);
    return solve_and_judge(s, now, err);
}

/* Fill the GPU as far as the level admits. Where what is reserved then is too much, so much less,
 * and where that leaves nothing, half as much less; where that leads nowhere, without blocks that
 * are kept. */
static stw_status solve_without_risk(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t most = stw_risk_gpu_limit(s->plan, s->level), least = 0; /* too much, too little */
    found now = {.choice = stw_choice_new(s->cost, s->cost->pool)};
    if (now.choice.acts == NULL) return stw_planner_no_memory(err);
    s->limit_bytes = most;
    for (int i = 0; i < MOST_LIMITS; i++) {
        STW_TRY(solve_and_judge(s, &now, err));
        if (is_too_slow(s)) return STW_STATUS_OK;
        if (stw_solving_is_solved(s)) {
            s->rows_fit = true;
            const bool raises = i > 0 && now.excess_bytes == 0 && !s->options->only_stage1;
            if (raises) STW_TRY(raise_limit(s, &now, most, err));
            if (now.excess_bytes == 0 || stw_solving_is_over(s)) return STW_STATUS_OK;
            most = stw_min_u64(most, now.gpu_bytes);
            s->limit_bytes = most + STW_COST_GUARD_BYTES;
            s->limit_bytes -= stw_min_u64(now.excess_bytes, s->limit_bytes);
        } else {
            if (i == 0 || stw_solving_is_over(s)) return STW_STATUS_OK;
            least = s->limit_bytes;
        }
        if (s->limit_bytes <= least) s->limit_bytes = least + (most - least) / 2;
        if (most - stw_min_u64(s->limit_bytes, most) < stw_scaled(most, SAME_LIMIT)) break;
    }
    STW_TRY(solve_keeping_none(s, &now, err));
    if (is_too_slow(s)) return STW_STATUS_OK;
    if (stw_solving_is_solved(s) && now.excess_bytes == 0) return STW_STATUS_OK;
    s->ilp.outcome = STW_MILP_INFEASIBLE;
out:
    if (!stw_solving_is_solved(s)) s->bars.acts = 0;
    return status;
}

/* Fill the GPU to placement.gpu_fill; where that fits nothing, no further than it has to be, in
 * FILL_STEPS steps to its whole memory. */
static stw_status solve_filling(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t memory = s->plan->cluster.gpu.memory_bytes;
    double fill = s->plan->run.placement.gpu_fill;
    const int order[] = {0, FILL_STEPS, 1, 2, 3, FILL_STEPS};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        double share = fill + (1 - fill) * order[i] / FILL_STEPS;
        s->limit_bytes = order[i] < FILL_STEPS ? (uint64_t)((double)memory * share) : memory;
        STW_TRY(solve_once(s, err));
        if (i == 1 ? !stw_solving_is_solved(s) : stw_solving_is_solved(s)) break;
    }
out:
    return status;
}

/* One level of risk. State goes to a disk, which is slow and wears, only where there is no other
 * room for it, or on request. @param barred places that are no option */
static stw_status solve_level(stw_solving *s, uint32_t barred, stw_error *err) {
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
        if (stw_solving_is_solved(s)) break;
    }
out:
    return status;
}

/* ---- where rows fit nothing ---- */

/* What rows overstate, under the limits at hand. */
static stw_status solve_in_spare(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_ilp_options over = {.time_limit_s = stw_solving_time_for(s, SPARE_TIME_S)};
    const stw_ilp_options options = {
        .time_limit_s = stw_solving_left_s(s), .gap = stw_solving_gap(s->options), .bars = s->bars};
    stw_ilp_result result;
    stw_candidates all = stw_solving_candidates(s, &s->bars);
    s->ilp.outcome = STW_MILP_INFEASIBLE;
    STW_TRY(stw_ilp_solve_least_over(s->cost, &over, &s->choice, &result, err));
    if (!stw_milp_has_solution(result.outcome)) goto out;
    STW_TRY(stw_candidates_fit_spare(&all, &options, &s->choice, &result, err));
    s->settled = result.outcome != STW_MILP_LIMIT;
    if (stw_milp_has_solution(result.outcome)) s->ilp = result;
out:
    return status;
}

/* The same for what has no risk: the GPU's limit is lowered by what is reserved over it. */
static stw_status solve_in_spare_without_risk(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    s->level = STW_RISK_NONE;
    stw_risk_limit_nodes(s->plan, s->level, s->cost);
    s->limit_bytes = stw_risk_gpu_limit(s->plan, s->level);
    for (int i = 0; i < MOST_SPARED && !stw_solving_is_over(s); i++) {
        stw_cost_limit_gpu(s->cost, s->limit_bytes);
        STW_TRY(solve_in_spare(s, err));
        if (!stw_solving_is_solved(s)) return STW_STATUS_OK;
        STW_TRY(stw_risk_judge(s->plan, s->cost, &s->choice, s->level, &s->judged, err));
        if (s->judged.excess_bytes == 0) return STW_STATUS_OK;
        stw_cost_give_spare(s->cost, 0);
        s->limit_bytes -= stw_min_u64(s->judged.excess_bytes, s->limit_bytes);
    }
    s->ilp.outcome = STW_MILP_INFEASIBLE;
out:
    return status;
}

/* Back to the last level. @param limit_bytes of a GPU in it */
static void accept_risk(stw_solving *s, uint64_t limit_bytes) {
    s->level = STW_RISK_ANY;
    s->limit_bytes = limit_bytes;
    stw_risk_limit_nodes(s->plan, s->level, s->cost);
    stw_cost_limit_gpu(s->cost, limit_bytes);
}

stw_status stw_solving_search_spare(stw_solving *s, stw_error *err) {
    const uint64_t limit_bytes = s->limit_bytes;
    if (stw_risk_first(&s->plan->run) == STW_RISK_NONE) {
        stw_status status = solve_in_spare_without_risk(s, err);
        if (status != STW_STATUS_OK || stw_solving_is_solved(s)) return status;
        accept_risk(s, limit_bytes);
    }
    return solve_in_spare(s, err);
}

/* ---- levels ---- */

/* Rows fit nothing without risk, and something at risk was found: so is what they overstate more
 * than what is missing? */
static stw_status replace_risky(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t acts = s->bars.acts;
    const bool settled = s->settled;
    found risky = {.choice = stw_choice_new(s->cost, s->cost->pool), .limit_bytes = s->limit_bytes};
    if (risky.choice.acts == NULL) return stw_planner_no_memory(err);
    keep(s, &risky);
    s->bars.acts = 0;
    STW_TRY(solve_in_spare_without_risk(s, err));
    if (stw_solving_is_solved(s)) return STW_STATUS_OK;
    accept_risk(s, risky.limit_bytes);
    take_back(s, &risky);
    s->bars.acts = acts;
    s->settled = settled;
out:
    return status;
}

/* Levels from the best one on. @param barred places that are no option */
static stw_status solve_levels(stw_solving *s, uint32_t barred, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_planner_sieve *sieve = s->options->sieve;
    const bool rough = sieve != NULL && sieve->rough;
    const stw_risk_level first = s->plan->walk_alone ? STW_RISK_ANY : stw_risk_first(&s->plan->run);
    s->rows_fit = false;
    for (s->level = first; s->level <= STW_RISK_ANY; s->level++) {
        if (s->level == STW_RISK_AVOIDABLE && rough) continue;
        if (stw_risk_differs(s->plan, s->level)) STW_TRY(solve_level(s, barred, err));
        if (is_too_slow(s) || stw_solving_is_over(s)) return STW_STATUS_OK;
        if (stw_solving_is_solved(s)) break;
    }
    if (s->level > STW_RISK_ANY) s->level = STW_RISK_ANY;
    const bool missed = s->level == STW_RISK_ANY && first != STW_RISK_ANY && !s->rows_fit;
    if (missed && !rough && stw_solving_is_solved(s)) STW_TRY(replace_risky(s, err));
out:
    return status;
}

stw_status stw_solving_search(stw_solving *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t streamed = places_streamed(s->plan, s->cost);
    for (int i = 0; i < (streamed != 0 ? 2 : 1); i++) {
        STW_TRY(solve_levels(s, i == 0 ? streamed : 0, err));
        if (stw_solving_is_solved(s) || stw_solving_is_over(s)) break;
    }
out:
    return status;
}
