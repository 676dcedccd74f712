/* SPDX-License-Identifier: Apache-2.0 */
/* Least seconds by integer programming, one ring option at a time. Units are first taken for
 * fractions: what remains to branch on are blocks and what is used at all. Rounded, such a solution
 * is within the gap most of the time; only where it is not, whole units are asked for. */
#include <math.h>
#include <string.h>

#include "core/file.h"
#include "planner/clock.h"
#include "planner/formulation.h"

/* What the solver's tolerances may make of an objective, relative. */
static const double TOLERANCE = 1e-5;

/* Nodes after which a search may end with a gap that is enough. */
#define SPLIT_NODES 60
#define WHOLE_NODES 150
static const double ENOUGH = 9.5e-4;

/* Units moved at a time when a fractional solution has been rounded. */
#define ROUNDING_UNITS 8

typedef struct search {
    const stw_cost *cost;
    const stw_ilp_options *options;
    stw_ilp_result *result;
    stw_error *err;
    stw_pool *pool;
    double end_s;
    stw_choice *best, now;
    bool found;
    double best_s;  /* what is known, or the most that is of interest; INFINITY: nothing */
    double *bounds; /* [n_rings] of the relaxations */
} search;

static double left_s(const search *s) {
    double left = s->end_s - stw_planner_now_s();
    return left > 0.005 ? left : 0.005;
}

static void offer(search *s, const stw_evaluation *e) {
    if (!e->fits || !(e->objective_s < s->best_s)) return;
    s->best_s = e->objective_s;
    s->found = true;
    stw_choice_copy(s->cost, s->best, &s->now);
}

/* ---- problems of one ring option ---- */

/* The relaxation; fractions of units; whole units. */
typedef enum effort { RELAX, SPLIT, WHOLE } effort;

static stw_milp_options options_of(const search *s, effort how) {
    const double gap = s->options->gap;
    stw_milp_options options = {
        .time_limit_s = left_s(s), .gap = gap, .most_nodes = s->options->most_nodes};
    options.relaxed = how == RELAX;
    if (how == SPLIT) {
        options.max_nodes = SPLIT_NODES;
        options.enough = INFINITY;
        if (isfinite(s->best_s)) options.most_nodes = SPLIT_NODES;
    } else if (how == WHOLE && gap > 0) {
        options.max_nodes = WHOLE_NODES;
        options.enough = fmax(gap, ENOUGH);
    }
    return options;
}

/* Repair a rounded choice. Whole ones are what the solver says they are. */
static stw_status take(search *s, effort how, const stw_milp_result *solved) {
    stw_evaluation e;
    if (how == WHOLE)
        stw_cost_evaluate(s->cost, &s->now, &e);
    else
        stw_choice_descend(s->cost, &s->options->bars, ROUNDING_UNITS, &s->now, &e);
    if (how == WHOLE && e.objective_s > solved->objective * (1 + TOLERANCE))
        return stw_fail(s->err, STW_STATUS_BUG, "planner",
                        "the solver says %.12g s for a plan that takes %.12g s", solved->objective,
                        e.objective_s);
    offer(s, &e);
    return STW_STATUS_OK;
}

/* @param bound in and out: no choice with this ring option takes less */
static stw_status solve_ring(search *s, uint32_t ring, effort how, double *bound) {
    stw_status status = STW_STATUS_OK;
    const double gap = s->options->gap > 0 && how == WHOLE ? ENOUGH : s->options->gap;
    const stw_ilp_shape shape = {.first_ring = ring,
                                 .n_rings = 1,
                                 .bars = s->options->bars,
                                 .units_split = how != WHOLE,
                                 .most_s = how != RELAX ? s->best_s * (1 - gap) : 0};
    const stw_milp_options options = options_of(s, how);
    stw_milp_result solved;
    STW_TRY(stw_ilp_solve_shape(s->cost, &shape, &options, &s->now, &solved, s->err));
    s->result->rows = solved.rows;
    s->result->columns = solved.columns;
    s->result->nodes += solved.nodes;
    if (solved.outcome == STW_MILP_INFEASIBLE)
        *bound = fmax(*bound, isfinite(s->best_s) && how != RELAX ? shape.most_s : INFINITY);
    else if (solved.bound > *bound)
        *bound = solved.bound;
    if (stw_milp_has_solution(solved.outcome)) STW_TRY(take(s, how, &solved));
out:
    return status;
}

/* Is everything that a bound leaves within the gap of what is known? */
static bool is_settled(const search *s, double bound) {
    return isinf(bound) || bound >= s->best_s * (1 - s->options->gap);
}

static stw_status settle_ring(search *s, uint32_t ring) {
    stw_status status = STW_STATUS_OK;
    double *bound = &s->bounds[ring];
    effort most = s->options->quick ? SPLIT : WHOLE;
    for (effort how = SPLIT; how <= most; how++) {
        if (is_settled(s, *bound) || stw_planner_now_s() > s->end_s) break;
        /* a gap that is enough is not worth whole units */
        if (how == WHOLE && s->options->gap > 0 && *bound >= s->best_s * (1 - ENOUGH)) break;
        STW_TRY(solve_ring(s, ring, how, bound));
    }
out:
    return status;
}

/* ---- all of them ---- */

static uint32_t most_promising(const search *s, const bool *done) {
    uint32_t best = s->cost->n_rings;
    for (uint32_t r = 0; r < s->cost->n_rings; r++)
        if (!done[r] && (best == s->cost->n_rings || s->bounds[r] < s->bounds[best])) best = r;
    return best;
}

static stw_status settle_rings(search *s) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = s->cost->n_rings;
    bool *done = stw_pool_array(s->pool, n, sizeof *done);
    if (done == NULL) return stw_planner_no_memory(s->err);
    for (uint32_t r = 0; r < n; r++) {
        s->bounds[r] = -INFINITY;
        STW_TRY(solve_ring(s, r, RELAX, &s->bounds[r]));
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = most_promising(s, done);
        done[r] = true;
        STW_TRY(settle_ring(s, r));
    }
out:
    return status;
}

static void judge(search *s, double start_s) {
    stw_ilp_result *result = s->result;
    stw_milp_result *stage = &result->stages[0];
    double bound = INFINITY, gap = s->options->gap;
    for (uint32_t r = 0; r < s->cost->n_rings; r++) bound = fmin(bound, s->bounds[r]);
    result->n_stages = 1;
    result->stage_names[0] = "seconds";
    result->seconds = stage->seconds = stw_planner_now_s() - start_s;
    *stage = (stw_milp_result){.outcome = STW_MILP_LIMIT,
                               .objective = NAN,
                               .bound = NAN,
                               .gap = NAN,
                               .seconds = stage->seconds};
    if (bound > -INFINITY && bound < INFINITY) stage->bound = fmin(bound, s->best_s);
    if (s->found) {
        stage->objective = s->best_s;
        stage->bound = bound > s->best_s * (1 - 1e-9) ? s->best_s : bound;
        stage->gap = s->best_s > 0 ? (s->best_s - stage->bound) / s->best_s : 0;
        double asked = gap > 0 && gap < 1e-3 ? 1e-3 : gap + 1e-9;
        stage->outcome = stage->gap <= asked ? STW_MILP_OPTIMAL : STW_MILP_FEASIBLE;
    } else if (bound == INFINITY) {
        stage->outcome = STW_MILP_INFEASIBLE;
    } else if (isfinite(s->best_s) && is_settled(s, bound)) {
        stage->outcome = STW_MILP_CUT_OFF;
    }
    result->outcome = stage->outcome;
}

static stw_status fill_lp(const char *path, void *milp, stw_error *err) {
    return stw_milp_write_lp(milp, path, err);
}

stw_status stw_ilp_write(const stw_cost *cost, const stw_bars *bars, const char *path,
                         stw_error *err) {
    const stw_ilp_shape shape = {.n_rings = cost->n_rings, .bars = *bars, .in_seconds = true};
    stw_ilp ilp = {0};
    stw_status status = stw_ilp_build(cost, &shape, &ilp, err);
    if (status == STW_STATUS_OK) status = stw_file_make(path, fill_lp, ilp.milp, err);
    stw_milp_free(ilp.milp);
    return status;
}

static stw_status begin(search *s) {
    const stw_cost *cost = s->cost;
    s->pool = stw_pool_new();
    if (s->pool != NULL) {
        s->now = stw_choice_new(cost, s->pool);
        s->bounds = stw_pool_array(s->pool, cost->n_rings, sizeof *s->bounds);
    }
    if (s->pool == NULL || s->now.acts == NULL || s->bounds == NULL)
        return stw_planner_no_memory(s->err);
    return STW_STATUS_OK;
}

stw_status stw_ilp_solve(const stw_cost *cost, const stw_ilp_options *options, stw_choice *choice,
                         stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double start_s = stw_planner_now_s();
    memset(result, 0, sizeof *result);
    search s = {.cost = cost,
                .options = options,
                .result = result,
                .err = err,
                .end_s = start_s + options->time_limit_s,
                .best = choice,
                .best_s = options->most_s > 0 ? options->most_s : INFINITY};
    STW_TRY(begin(&s));
    STW_TRY(settle_rings(&s));
    judge(&s, start_s);
out:
    stw_pool_free(s.pool);
    return status;
}
