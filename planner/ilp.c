/* SPDX-License-Identifier: Apache-2.0 */
/* The ILP: columns for what can be chosen, rows copied from the problem (cost.h). Bytes are in MiB;
 * times are in seconds and solved in microseconds, so that no tolerance is larger than either. */
#include <stdio.h>
#include <string.h>

#include "planner/solvers.h"

static const double MIB = 1024.0 * 1024.0, MICRO = 1e6;

/* Gap and time of each stage after the first: they order headroom, not speed, and what they have
 * found when their time is over is good enough. */
static const double LATER_GAP = 5e-4, LATER_S = 1;

/* What the solver's tolerances may make of an objective, relative. */
static const double TOLERANCE = 1e-5;

/* Of plans that do not fit: the bytes over, and then their seconds. */
static const double OVER_S = 5, OVER_GAP = 0.01, OVER_SECONDS_S = 2, OVER_SECONDS_GAP = 0.02;

typedef enum stw_ilp_goal { GOAL_SECONDS, GOAL_GPU, GOAL_HOST, GOAL_OVER } stw_ilp_goal;
static const char *const goal_names[] = {"seconds", "gpu_headroom_mib", "host_mib", "over_mib"};

/* What earlier stages reached and this one must keep; INFINITY where it is free. */
typedef struct stw_ilp_limits {
    double seconds, gpu_mib, over_mib;
    bool elastic; /* rows of bytes may be exceeded, at a price */
} stw_ilp_limits;

#define NO_COLUMN UINT32_MAX

/* Where the columns of a problem lie. */
typedef struct stw_ilp_map {
    uint32_t stretch_s;  /* [STW_N_STRETCHES] */
    uint32_t units;      /* [n_places] */
    uint32_t ring;       /* [n_rings] one-hot */
    uint32_t load;       /* [n_loads] one-hot */
    uint32_t acts;       /* [n_acts] */
    uint32_t acts_used;  /* [n_acts] is there any block with the policy? */
    uint32_t ring_units; /* [n_places][n_rings], NO_COLUMN: one option, the units themselves */
    uint32_t ring_used;  /* [n_uses][n_rings] */
    uint32_t over;       /* of the rows' resources, in the order in which they come */
    uint32_t level;      /* what GOAL_GPU and GOAL_HOST minimise */
} stw_ilp_map;

typedef struct stw_ilp {
    const stw_cost *cost;
    stw_milp *milp;
    stw_ilp_map at;
    stw_ilp_goal goal;
    stw_ilp_limits limits;
} stw_ilp;

/* ---- columns ---- */

static char tier_letter(stw_tier tier) { return "ghn"[tier]; }

/* "ggh_stream": a letter for the tiers of params, grads and moments, and the update. */
static void place_word(const stw_place *place, char *out, size_t out_size) {
    snprintf(out, out_size, "%c%c%c_%s", tier_letter(place->params), tier_letter(place->grads),
             tier_letter(place->moments), stw_update_name(place->update));
}

static void ring_word(const stw_cost_ring *ring, char *out, size_t out_size) {
    snprintf(out, out_size, "d%u_b%lluk", ring->depth,
             (unsigned long long)(ring->bucket_bytes >> 10));
}

static bool use_is_needed(const stw_cost *cost, uint32_t u) {
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->place_uses[p] & (1u << u)) return true;
    return false;
}

static double objective_of(const stw_ilp *ilp, stw_ilp_goal goal, double coefficient) {
    return ilp->goal == goal ? coefficient : 0;
}

static void add_choice_columns(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    char place[32], ring[32];
    for (uint32_t p = 0; p < cost->n_places; p++) {
        place_word(&cost->places[p], place, sizeof place);
        double share = objective_of(ilp, GOAL_SECONDS, cost->load_unit_s[p] / STW_LOAD_SPREAD);
        uint32_t c = stw_milp_column_add(milp, true, 0, cost->n_units, share, "n_%s", place);
        if (p == 0) ilp->at.units = c;
    }
    for (uint32_t r = 0; r < cost->n_rings; r++) {
        ring_word(&cost->rings[r], ring, sizeof ring);
        uint32_t c = stw_milp_column_add(milp, true, 0, 1, 0, "ring_%s", ring);
        if (r == 0) ilp->at.ring = c;
    }
    for (uint32_t l = 0; l < cost->n_loads; l++) {
        double share = objective_of(ilp, GOAL_SECONDS, cost->load_s[l] / STW_LOAD_SPREAD);
        uint32_t c =
            stw_milp_column_add(milp, true, 0, 1, share, "load_%s", stw_load_name(cost->loads[l]));
        if (l == 0) ilp->at.load = c;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        uint32_t c = stw_milp_column_add(milp, true, 0, act->blocks, 0, "blocks_g%u_%s", act->group,
                                         stw_act_name(act->act));
        if (a == 0) ilp->at.acts = c;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        uint32_t c = stw_milp_column_add(milp, true, 0, 1, 0, "any_g%u_%s", act->group,
                                         stw_act_name(act->act));
        if (a == 0) ilp->at.acts_used = c;
    }
}

/* Products of units, ring use and ring option, disaggregated: continuous, whole by their rows. */
static void add_ring_columns(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    char place[32], ring[32];
    ilp->at.ring_units = NO_COLUMN;
    for (uint32_t p = 0; cost->n_rings > 1 && p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            place_word(&cost->places[p], place, sizeof place);
            ring_word(&cost->rings[r], ring, sizeof ring);
            double most = cost->place_uses[p] != 0 ? cost->n_units : 0;
            uint32_t c = stw_milp_column_add(milp, false, 0, most, 0, "n_%s_%s", place, ring);
            if (ilp->at.ring_units == NO_COLUMN) ilp->at.ring_units = c;
        }
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            ring_word(&cost->rings[r], ring, sizeof ring);
            double most = use_is_needed(cost, u) ? 1 : 0;
            uint32_t c = stw_milp_column_add(milp, true, 0, most, 0, "use%u_%s", u, ring);
            if (u == 0 && r == 0) ilp->at.ring_used = c;
        }
}

static void add_columns(stw_ilp *ilp) {
    stw_milp *milp = ilp->milp;
    for (uint32_t p = 0; p < STW_N_STRETCHES; p++) {
        double weight = objective_of(ilp, GOAL_SECONDS, ilp->cost->stretch_weight[p]);
        uint32_t c = stw_milp_column_add(milp, false, 0, INFINITY, weight, "t_%s",
                                         stw_stretch_name((stw_stretch)p));
        stw_milp_column_scale(milp, c, 1 / MICRO);
        if (p == 0) ilp->at.stretch_s = c;
    }
    add_choice_columns(ilp);
    add_ring_columns(ilp);
    ilp->at.level =
        stw_milp_column_add(milp, false, 0, INFINITY,
                            ilp->goal == GOAL_GPU || ilp->goal == GOAL_HOST ? 1 : 0, "most_mib");
}

static uint32_t ring_units_at(const stw_ilp *ilp, uint32_t p, uint32_t r) {
    if (ilp->at.ring_units == NO_COLUMN) return ilp->at.units + p;
    return ilp->at.ring_units + p * ilp->cost->n_rings + r;
}

static uint32_t ring_used_at(const stw_ilp *ilp, uint32_t u, uint32_t r) {
    return ilp->at.ring_used + u * ilp->cost->n_rings + r;
}

/* ---- rows of choice ---- */

static void add_one_of(stw_ilp *ilp, uint32_t first, uint32_t n, const char *name) {
    stw_milp_row_add(ilp->milp, 1, 1, "%s", name);
    for (uint32_t i = 0; i < n; i++) stw_milp_term_add(ilp->milp, first + i, 1);
}

static bool updates(const stw_cost *cost, stw_update update) {
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == update) return true;
    return false;
}

static void add_counts(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    stw_milp_row_add(milp, cost->n_units, cost->n_units, "all_units");
    for (uint32_t p = 0; p < cost->n_places; p++) stw_milp_term_add(milp, ilp->at.units + p, 1);
    for (int u = 0; u < STW_N_UPDATES; u++) {
        uint32_t units = cost->update_units[u];
        if (units == STW_AUTO || !updates(cost, (stw_update)u)) continue;
        stw_milp_row_add(milp, units, units, "share_%s", stw_update_name((stw_update)u));
        for (uint32_t p = 0; p < cost->n_places; p++)
            if (cost->places[p].update == (stw_update)u)
                stw_milp_term_add(milp, ilp->at.units + p, 1);
    }
    for (uint32_t p = 0; cost->whole && p < cost->n_places; p++) {
        uint32_t all = stw_milp_column_add(milp, true, 0, 1, 0, "all_%u", p);
        stw_milp_row_add(milp, 0, 0, "all_or_none_%u", p);
        stw_milp_term_add(milp, ilp->at.units + p, 1);
        stw_milp_term_add(milp, all, -(double)cost->n_units);
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        if (a == 0 || cost->acts[a - 1].group != act->group)
            stw_milp_row_add(milp, act->blocks, act->blocks, "all_blocks_g%u", act->group);
        stw_milp_term_add(milp, ilp->at.acts + a, 1);
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        stw_milp_row_add(milp, -INFINITY, 0, "any_blocks_%u", a);
        stw_milp_term_add(milp, ilp->at.acts + a, 1);
        stw_milp_term_add(milp, ilp->at.acts_used + a, -(double)cost->acts[a].blocks);
    }
    add_one_of(ilp, ilp->at.ring, cost->n_rings, "one_ring");
    add_one_of(ilp, ilp->at.load, cost->n_loads, "one_load");
}

static void add_ring_rows(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    for (uint32_t p = 0; cost->n_rings > 1 && p < cost->n_places; p++) {
        if (cost->place_uses[p] == 0) continue;
        stw_milp_row_add(milp, 0, 0, "split_%u", p);
        stw_milp_term_add(milp, ilp->at.units + p, -1);
        for (uint32_t r = 0; r < cost->n_rings; r++)
            stw_milp_term_add(milp, ring_units_at(ilp, p, r), 1);
    }
    for (uint32_t u = 0; u < cost->n_uses; u++) {
        if (!use_is_needed(cost, u)) continue;
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            stw_milp_row_add(milp, -INFINITY, 0, "filled_%u_%u", u, r);
            for (uint32_t p = 0; p < cost->n_places; p++)
                if (cost->place_uses[p] & (1u << u))
                    stw_milp_term_add(milp, ring_units_at(ilp, p, r), 1);
            stw_milp_term_add(milp, ring_used_at(ilp, u, r), -(double)cost->n_units);
            stw_milp_row_add(milp, -INFINITY, 0, "chosen_%u_%u", u, r);
            stw_milp_term_add(milp, ring_used_at(ilp, u, r), 1);
            stw_milp_term_add(milp, ilp->at.ring + r, -1);
        }
    }
}

/* ---- rows of bytes and seconds ---- */

static void add_byte_terms(stw_ilp *ilp, const stw_byte_row *row) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    for (uint32_t p = 0; p < cost->n_places; p++)
        stw_milp_term_add(milp, ilp->at.units + p, (double)row->unit_bytes[p] / MIB);
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            stw_milp_term_add(milp, ring_used_at(ilp, u, r),
                              (double)row->ring_bytes[u * cost->n_rings + r] / MIB);
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        stw_milp_term_add(milp, ilp->at.acts + a, (double)row->act_bytes[a] / MIB);
        stw_milp_term_add(milp, ilp->at.acts_used + a, (double)row->act_once_bytes[a] / MIB);
    }
    for (uint32_t l = 0; l < cost->n_loads; l++)
        stw_milp_term_add(milp, ilp->at.load + l, (double)row->load_bytes[l] / MIB);
}

static bool row_levels(const stw_ilp *ilp, const stw_byte_row *row) {
    if (ilp->goal == GOAL_GPU) return row->tier == STW_TIER_GPU;
    return ilp->goal == GOAL_HOST && row->tier == STW_TIER_HOST && !row->page_locked;
}

static void add_byte_rows(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    uint32_t over = NO_COLUMN, n_over = 0;
    for (uint32_t i = 0; i < cost->n_byte_rows; i++) {
        const stw_byte_row *row = &cost->byte_rows[i];
        const stw_byte_row *last = i == 0 ? NULL : &cost->byte_rows[i - 1];
        if (ilp->limits.elastic &&
            (last == NULL || last->resource != row->resource || last->node_kind != row->node_kind))
            over = stw_milp_column_add(milp, false, 0, INFINITY, objective_of(ilp, GOAL_OVER, 1),
                                       "over_%u", n_over++);
        double constant = (double)row->constant_bytes / MIB;
        uint64_t limit_bytes = stw_cost_row_limit(row);
        double most = limit_bytes == UINT64_MAX ? INFINITY : (double)limit_bytes / MIB;
        if (row->tier == STW_TIER_GPU && ilp->limits.gpu_mib < most) most = ilp->limits.gpu_mib;
        if (most < INFINITY) {
            stw_milp_row_add(milp, -INFINITY, most - constant, "%s", row->name);
            add_byte_terms(ilp, row);
            if (ilp->limits.elastic) stw_milp_term_add(milp, over, -1);
        }
        if (row_levels(ilp, row)) {
            stw_milp_row_add(milp, -INFINITY, -constant, "most_%s", row->name);
            add_byte_terms(ilp, row);
            stw_milp_term_add(milp, ilp->at.level, -1);
        }
    }
    if (ilp->limits.over_mib < INFINITY) {
        stw_milp_row_add(milp, -INFINITY, ilp->limits.over_mib, "keep_over");
        for (uint32_t c = 0; c < milp->n_columns; c++)
            if (strncmp(milp->columns[c].name, "over_", 5) == 0) stw_milp_term_add(milp, c, 1);
    }
}

static bool same_for_all_rings(const double *values, uint32_t n_rings) {
    for (uint32_t r = 1; r < n_rings; r++)
        if (values[r] != values[0]) return false;
    return true;
}

static void add_time_row(stw_ilp *ilp, const stw_time_row *row) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    uint32_t n_rings = cost->n_rings;
    stw_milp_row_add(milp, row->constant_s, INFINITY, "%s", row->name);
    stw_milp_row_scale(milp, MICRO);
    stw_milp_term_add(milp, ilp->at.stretch_s + (uint32_t)row->stretch, 1);
    for (uint32_t p = 0; p < cost->n_places; p++) {
        const double *unit_s = &row->unit_s[p * n_rings];
        if (cost->place_uses[p] == 0 || same_for_all_rings(unit_s, n_rings)) {
            stw_milp_term_add(milp, ilp->at.units + p, -unit_s[0]);
            continue;
        }
        for (uint32_t r = 0; r < n_rings; r++)
            stw_milp_term_add(milp, ring_units_at(ilp, p, r), -unit_s[r]);
    }
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t r = 0; r < n_rings; r++)
            stw_milp_term_add(milp, ring_used_at(ilp, u, r), -row->ring_s[u * n_rings + r]);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        stw_milp_term_add(milp, ilp->at.acts + a, -row->act_s[a]);
}

static void add_kept_seconds(stw_ilp *ilp) {
    if (!(ilp->limits.seconds < INFINITY)) return;
    stw_milp_row_add(ilp->milp, -INFINITY, ilp->limits.seconds, "keep_seconds");
    stw_milp_row_scale(ilp->milp, MICRO);
    for (uint32_t p = 0; p < STW_N_STRETCHES; p++)
        stw_milp_term_add(ilp->milp, ilp->at.stretch_s + p, ilp->cost->stretch_weight[p]);
    for (uint32_t l = 0; l < ilp->cost->n_loads; l++)
        stw_milp_term_add(ilp->milp, ilp->at.load + l, ilp->cost->load_s[l] / STW_LOAD_SPREAD);
    for (uint32_t p = 0; p < ilp->cost->n_places; p++)
        stw_milp_term_add(ilp->milp, ilp->at.units + p,
                          ilp->cost->load_unit_s[p] / STW_LOAD_SPREAD);
}

static stw_status build(stw_ilp *ilp, const stw_cost *cost, stw_ilp_goal goal,
                        const stw_ilp_limits *limits, stw_error *err) {
    *ilp = (stw_ilp){.cost = cost, .goal = goal, .limits = *limits};
    ilp->milp = stw_milp_new("stowage");
    if (ilp->milp == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the ILP");
    if (goal == GOAL_SECONDS) ilp->milp->objective_scale = MICRO;
    add_columns(ilp);
    add_counts(ilp);
    add_ring_rows(ilp);
    add_byte_rows(ilp);
    for (uint32_t i = 0; i < cost->n_time_rows; i++) add_time_row(ilp, &cost->time_rows[i]);
    add_kept_seconds(ilp);
    return stw_milp_check(ilp->milp, err);
}

/* ---- solving ---- */

static void read_choice(const stw_ilp *ilp, const double *values, stw_choice *choice) {
    const stw_cost *cost = ilp->cost;
    choice->ring = choice->load = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        choice->units[p] = (uint32_t)values[ilp->at.units + p];
    for (uint32_t r = 0; r < cost->n_rings; r++)
        if (values[ilp->at.ring + r] > 0.5) choice->ring = r;
    for (uint32_t l = 0; l < cost->n_loads; l++)
        if (values[ilp->at.load + l] > 0.5) choice->load = l;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        choice->acts[a] = (uint32_t)values[ilp->at.acts + a];
}

static bool has_choice(const stw_milp_result *result) {
    return result->outcome == STW_MILP_OPTIMAL || result->outcome == STW_MILP_FEASIBLE;
}

/* The solver's objective is right within its tolerances, and above the choice's own where it
 * stopped within a gap with slack in the rows of seconds; the problem's own is exact. */
static stw_status settle_seconds(const stw_cost *cost, const stw_choice *choice,
                                 stw_milp_result *solved, stw_error *err) {
    stw_evaluation evaluation;
    stw_cost_evaluate(cost, choice, &evaluation);
    double exact = evaluation.objective_s;
    if (exact > solved->objective * (1 + TOLERANCE))
        return stw_fail(err, STW_STATUS_BUG, "planner",
                        "the solver says %.12g s for a plan that takes %.12g s", solved->objective,
                        exact);
    solved->objective = exact;
    if (solved->gap == 0 || solved->bound > exact) solved->bound = exact;
    solved->gap = exact > 0 ? (exact - solved->bound) / exact : 0;
    return STW_STATUS_OK;
}

/* One stage: build, solve, read the choice where there is one. */
static stw_status solve_stage(const stw_cost *cost, stw_ilp_goal goal, const stw_ilp_limits *limits,
                              const stw_milp_options *options, stw_choice *choice,
                              stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_ilp ilp = {0};
    STW_TRY(build(&ilp, cost, goal, limits, err));
    double *values = stw_pool_array(ilp.milp->pool, ilp.milp->n_columns, sizeof *values);
    if (values == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the ILP");
        goto out;
    }
    uint32_t stage = result->n_stages++;
    stw_milp_result *solved = &result->stages[stage];
    result->stage_names[stage] = goal_names[goal];
    STW_TRY(stw_milp_solve(ilp.milp, options, values, solved, err));
    if (has_choice(solved)) read_choice(&ilp, values, choice);
    if (goal == GOAL_SECONDS && !limits->elastic && has_choice(solved))
        STW_TRY(settle_seconds(cost, choice, solved, err));
    if (stage == 0) {
        result->outcome = solved->outcome;
        result->rows = ilp.milp->n_rows;
        result->columns = ilp.milp->n_columns;
    }
    result->seconds += solved->seconds;
out:
    stw_milp_free(ilp.milp);
    return status;
}

/* Seconds for a later stage: what is left, at most `most`. */
static double left_s(const stw_ilp_options *options, const stw_ilp_result *result, double most) {
    double left = options->time_limit_s - result->seconds;
    if (left > most) left = most;
    return left > 0.01 ? left : 0.01;
}

stw_status stw_ilp_solve(const stw_cost *cost, const stw_ilp_options *options, stw_choice *choice,
                         stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(result, 0, sizeof *result);
    stw_ilp_limits limits = {INFINITY, INFINITY, INFINITY, false};
    stw_milp_options first = {options->time_limit_s, options->gap, options->write_lp};
    STW_TRY(solve_stage(cost, GOAL_SECONDS, &limits, &first, choice, result, err));
    if (!has_choice(&result->stages[0]) || options->only_stage1) goto out;

    limits.seconds = result->stages[0].objective * (1 + stw_stage_slack(options->gap));
    stw_milp_options later = {left_s(options, result, LATER_S), LATER_GAP, NULL};
    STW_TRY(solve_stage(cost, GOAL_GPU, &limits, &later, choice, result, err));
    if (!has_choice(&result->stages[1])) goto out;

    limits.gpu_mib = result->stages[1].objective * (1 + STW_STAGE_SLACK);
    later.time_limit_s = left_s(options, result, LATER_S);
    STW_TRY(solve_stage(cost, GOAL_HOST, &limits, &later, choice, result, err));
out:
    return status;
}

stw_status stw_ilp_solve_least_over(const stw_cost *cost, const stw_ilp_options *options,
                                    stw_choice *choice, stw_ilp_result *result, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memset(result, 0, sizeof *result);
    stw_ilp_limits limits = {INFINITY, INFINITY, INFINITY, true};
    double limit = options->time_limit_s < OVER_S ? options->time_limit_s : OVER_S;
    stw_milp_options first = {limit, OVER_GAP, NULL};
    STW_TRY(solve_stage(cost, GOAL_OVER, &limits, &first, choice, result, err));
    if (!has_choice(&result->stages[0])) goto out;
    /* What does not fit need not be the fastest: a short search for a sensible rest. */
    limits.over_mib = result->stages[0].objective * (1 + STW_STAGE_SLACK) + 1;
    stw_milp_options later = {left_s(options, result, OVER_SECONDS_S), OVER_SECONDS_GAP, NULL};
    STW_TRY(solve_stage(cost, GOAL_SECONDS, &limits, &later, choice, result, err));
out:
    return status;
}
