/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/formulation.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/blocks.h"

static const double MIB = 1024.0 * 1024.0, MICRO = 1e6;

/* What times are counted in. */
static double per_second(const stw_ilp *ilp) { return ilp->shape.in_seconds ? 1 : MICRO; }

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

static const stw_cost_ring *ring_at(const stw_ilp *ilp, uint32_t r) {
    return &ilp->cost->rings[ilp->shape.first_ring + r];
}

static double objective_of(const stw_ilp *ilp, double seconds) {
    return ilp->shape.goal == STW_GOAL_SECONDS ? seconds : 0;
}

/* What all units, or a load method, add to the objective. */
static double load_share(const stw_ilp *ilp, double load_s) {
    return objective_of(ilp, load_s / STW_LOAD_SPREAD * per_second(ilp));
}

static void add_choice_columns(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    char place[32], ring[32];
    for (uint32_t p = 0; p < cost->n_places; p++) {
        place_word(&cost->places[p], place, sizeof place);
        double share = load_share(ilp, cost->load_unit_s[p]);
        double most = ilp->shape.bars.places & (1u << p) ? 0 : cost->n_units;
        uint32_t c =
            stw_milp_column_add(milp, !ilp->shape.units_split, 0, most, share, "n_%s", place);
        if (p == 0) ilp->at.units = c;
    }
    for (uint32_t r = 0; r < ilp->shape.n_rings; r++) {
        ring_word(ring_at(ilp, r), ring, sizeof ring);
        uint32_t c = stw_milp_column_add(milp, ilp->shape.n_rings > 1,
                                         ilp->shape.n_rings > 1 ? 0 : 1, 1, 0, "ring_%s", ring);
        if (r == 0) ilp->at.ring = c;
    }
    for (uint32_t l = 0; l < cost->n_loads; l++) {
        double share = load_share(ilp, cost->load_s[l]);
        uint32_t c =
            stw_milp_column_add(milp, true, 0, 1, share, "load_%s", stw_load_name(cost->loads[l]));
        if (l == 0) ilp->at.load = c;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        double most = stw_act_barred(cost, a, &ilp->shape.bars) ? 0 : act->blocks;
        uint32_t c = stw_milp_column_add(milp, true, 0, most, 0, "blocks_g%u_%s", act->group,
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

/* Does a row of seconds ask whether enough blocks have option `a`? */
static bool is_asked_for(const stw_cost *cost, uint32_t a) {
    for (uint32_t r = 0; r < cost->n_time_rows; r++)
        if (cost->time_rows[r].unless == a) return true;
    return false;
}

static void add_last_columns(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    ilp->at.acts_last = STW_NO_COLUMN;
    bool any = false;
    for (uint32_t a = 0; a < cost->n_acts; a++) any = any || is_asked_for(cost, a);
    for (uint32_t a = 0; any && a < cost->n_acts; a++) {
        const stw_cost_act *act = &cost->acts[a];
        bool asked = is_asked_for(cost, a) && !stw_act_barred(cost, a, &ilp->shape.bars);
        uint32_t c = stw_milp_column_add(ilp->milp, asked, 0, asked ? 1 : 0, 0, "last_g%u_%s",
                                         act->group, stw_act_name(act->act));
        if (a == 0) ilp->at.acts_last = c;
    }
}

/* Products of units, ring use and ring option, disaggregated: continuous, whole by their rows. */
static void add_ring_columns(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    char place[32], ring[32];
    ilp->at.ring_units = STW_NO_COLUMN;
    for (uint32_t p = 0; ilp->shape.n_rings > 1 && p < cost->n_places; p++)
        for (uint32_t r = 0; r < ilp->shape.n_rings; r++) {
            place_word(&cost->places[p], place, sizeof place);
            ring_word(ring_at(ilp, r), ring, sizeof ring);
            double most = cost->place_uses[p] != 0 ? cost->n_units : 0;
            uint32_t c = stw_milp_column_add(milp, false, 0, most, 0, "n_%s_%s", place, ring);
            if (ilp->at.ring_units == STW_NO_COLUMN) ilp->at.ring_units = c;
        }
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t r = 0; r < ilp->shape.n_rings; r++) {
            ring_word(ring_at(ilp, r), ring, sizeof ring);
            bool counts = use_is_needed(cost, u);
            uint32_t c =
                stw_milp_column_add(milp, counts, 0, counts ? 1 : 0, 0, "use%u_%s", u, ring);
            if (u == 0 && r == 0) ilp->at.ring_used = c;
        }
}

static void add_columns(stw_ilp *ilp) {
    stw_milp *milp = ilp->milp;
    for (uint32_t p = 0; p < STW_N_STRETCHES; p++) {
        double weight = objective_of(ilp, ilp->cost->stretch_weight[p]);
        uint32_t c = stw_milp_column_add(milp, false, 0, INFINITY, weight, "t_%s",
                                         stw_stretch_name((stw_stretch)p));
        if (p == 0) ilp->at.stretch_s = c;
    }
    add_choice_columns(ilp);
    add_last_columns(ilp);
    add_ring_columns(ilp);
}

static uint32_t ring_units_at(const stw_ilp *ilp, uint32_t p, uint32_t r) {
    if (ilp->at.ring_units == STW_NO_COLUMN) return ilp->at.units + p;
    return ilp->at.ring_units + p * ilp->shape.n_rings + r;
}

static uint32_t ring_used_at(const stw_ilp *ilp, uint32_t u, uint32_t r) {
    return ilp->at.ring_used + u * ilp->shape.n_rings + r;
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

static bool moments_on_nvme(const stw_place *place) { return place->moments == STW_TIER_NVME; }
static bool moments_on_gpu(const stw_place *place) { return place->moments == STW_TIER_GPU; }
static bool on_cpu(const stw_place *place) { return place->update == STW_UPDATE_CPU; }
static bool grads_on_host(const stw_place *place) { return place->grads == STW_TIER_HOST; }
static bool params_on_host(const stw_place *place) { return place->params == STW_TIER_HOST; }

/* The greatest common divisor of the bytes of an element of all components; 0: none has any. */
static uint64_t common_bytes(const stw_job *job) {
    uint64_t common = 0;
    for (int c = 0; c < STW_N_STATE; c++)
        for (uint64_t bytes = stw_job_element_bytes(job, (stw_component)c); bytes > 0;) {
            uint64_t rest = common % bytes;
            common = bytes;
            bytes = rest;
        }
    return common;
}

/* Bytes of an element's components that a place puts on the GPU. */
static uint64_t gpu_bytes(const stw_job *job, const stw_place *place) {
    uint64_t bytes = 0;
    for (int c = 0; c < STW_N_STATE; c++)
        if (stw_place_tier(place, (stw_component)c) == STW_TIER_GPU)
            bytes += stw_job_element_bytes(job, (stw_component)c);
    return bytes;
}

/* So is the state on the GPU, counted in the largest part of which all components of a unit are
 * multiples. Where GPU and host are both nearly full, a fraction of such a part has no room on
 * either: branching on this sum shows it at once. */
static void add_gpu_sum(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    uint64_t part = common_bytes(cost->job), most = 0;
    if (part == 0 || cost->whole) return;
    for (uint32_t p = 0; p < cost->n_places; p++)
        most = stw_max_u64(most, gpu_bytes(cost->job, &cost->places[p]) / part);
    if (most == 0) return;
    uint32_t sum =
        stw_milp_column_add(ilp->milp, true, 0, (double)most * cost->n_units, 0, "parts_all_gpu");
    stw_milp_row_add(ilp->milp, 0, 0, "sum_gpu_parts");
    stw_milp_term_add(ilp->milp, sum, -1);
    for (uint32_t p = 0; p < cost->n_places; p++)
        stw_milp_term_add(ilp->milp, ilp->at.units + p,
                          (double)(gpu_bytes(cost->job, &cost->places[p]) / part));
}

/* Units that places have in common are whole numbers too, also where those of each place may be
 * fractions. What a disk moves depends on such a sum alone, and branching on it settles at once
 * what branching on one place after the other does not. */
static void add_sums(stw_ilp *ilp) {
    static const struct {
        const char *name;
        bool (*is)(const stw_place *place);
    } sums[] = {{"nvme", moments_on_nvme},
                {"resident", moments_on_gpu},
                {"cpu", on_cpu},
                {"grads", grads_on_host},
                {"params", params_on_host}};
    const stw_cost *cost = ilp->cost;
    for (unsigned i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        uint32_t n = 0;
        for (uint32_t p = 0; p < cost->n_places; p++) n += sums[i].is(&cost->places[p]);
        if (n == 0 || n == cost->n_places) continue;
        uint32_t sum =
            stw_milp_column_add(ilp->milp, true, 0, cost->n_units, 0, "n_all_%s", sums[i].name);
        stw_milp_row_add(ilp->milp, 0, 0, "sum_%s", sums[i].name);
        stw_milp_term_add(ilp->milp, sum, -1);
        for (uint32_t p = 0; p < cost->n_places; p++)
            if (sums[i].is(&cost->places[p])) stw_milp_term_add(ilp->milp, ilp->at.units + p, 1);
    }
    add_gpu_sum(ilp);
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
    if (ilp->shape.bars.frozen != 0) {
        const double blocks = ilp->shape.bars.frozen_blocks;
        stw_milp_row_add(milp, blocks, blocks, "frozen_blocks");
        for (uint32_t a = 0; a < cost->n_acts; a++)
            if (ilp->shape.bars.frozen & (1u << cost->acts[a].act))
                stw_milp_term_add(milp, ilp->at.acts + a, 1);
    }
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        if (!is_asked_for(cost, a)) continue;
        stw_milp_row_add(milp, 0, INFINITY, "last_blocks_%u", a);
        stw_milp_term_add(milp, ilp->at.acts + a, 1);
        stw_milp_term_add(milp, ilp->at.acts_last + a, -STW_LAST_BLOCKS);
    }
    if (ilp->shape.n_rings > 1) add_one_of(ilp, ilp->at.ring, ilp->shape.n_rings, "one_ring");
    add_one_of(ilp, ilp->at.load, cost->n_loads, "one_load");
}

/* Would a row be smaller if a ring were in use? */
static bool is_worth_using(const stw_cost *cost, uint32_t u) {
    for (uint32_t i = 0; i < cost->n_time_rows; i++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            if (cost->time_rows[i].ring_s[u * cost->n_rings + r] < 0) return true;
    return false;
}

static void add_ring_rows(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    for (uint32_t p = 0; ilp->shape.n_rings > 1 && p < cost->n_places; p++) {
        if (cost->place_uses[p] == 0) continue;
        stw_milp_row_add(milp, 0, 0, "split_%u", p);
        stw_milp_term_add(milp, ilp->at.units + p, -1);
        for (uint32_t r = 0; r < ilp->shape.n_rings; r++)
            stw_milp_term_add(milp, ring_units_at(ilp, p, r), 1);
    }
    for (uint32_t u = 0; u < cost->n_uses; u++) {
        if (!use_is_needed(cost, u)) continue;
        for (uint32_t r = 0; r < ilp->shape.n_rings; r++) {
            stw_milp_row_add(milp, -INFINITY, 0, "filled_%u_%u", u, r);
            for (uint32_t p = 0; p < cost->n_places; p++)
                if (cost->place_uses[p] & (1u << u))
                    stw_milp_term_add(milp, ring_units_at(ilp, p, r), 1);
            stw_milp_term_add(milp, ring_used_at(ilp, u, r), -(double)cost->n_units);
            if (is_worth_using(cost, u)) {
                stw_milp_row_add(milp, 0, INFINITY, "used_%u_%u", u, r);
                for (uint32_t p = 0; p < cost->n_places; p++)
                    if (cost->place_uses[p] & (1u << u))
                        stw_milp_term_add(milp, ring_units_at(ilp, p, r), 1);
                stw_milp_term_add(milp, ring_used_at(ilp, u, r), -1);
            }
            if (ilp->shape.n_rings == 1) continue;
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
        for (uint32_t r = 0; r < ilp->shape.n_rings; r++)
            stw_milp_term_add(
                milp, ring_used_at(ilp, u, r),
                (double)row->ring_bytes[u * cost->n_rings + ilp->shape.first_ring + r] / MIB);
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        stw_milp_term_add(milp, ilp->at.acts + a, (double)row->act_bytes[a] / MIB);
        stw_milp_term_add(milp, ilp->at.acts_used + a, (double)row->act_once_bytes[a] / MIB);
    }
    for (uint32_t l = 0; l < cost->n_loads; l++)
        stw_milp_term_add(milp, ilp->at.load + l, (double)row->load_bytes[l] / MIB);
}

/* A row belongs to the resource of the row before it, or begins another one. */
static bool begins_resource(const stw_cost *cost, uint32_t i) {
    const stw_byte_row *row = &cost->byte_rows[i], *last = i == 0 ? NULL : row - 1;
    return last == NULL || last->resource != row->resource || last->node_kind != row->node_kind;
}

static void add_byte_rows(stw_ilp *ilp) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    uint32_t over = STW_NO_COLUMN, first_over = milp->n_columns, n_over = 0;
    for (uint32_t i = 0; i < cost->n_byte_rows; i++) {
        const stw_byte_row *row = &cost->byte_rows[i];
        uint64_t limit_bytes = stw_cost_row_limit(row);
        if (limit_bytes == UINT64_MAX) continue;
        double constant = stw_cost_row_constant(row) / MIB, most = (double)limit_bytes / MIB;
        if (ilp->shape.elastic && begins_resource(cost, i))
            over = stw_milp_column_add(milp, false, 0, INFINITY, 1 - objective_of(ilp, 1),
                                       "over_%u", n_over++);
        stw_milp_row_add(milp, -INFINITY, most - constant, "%s", row->name);
        add_byte_terms(ilp, row);
        if (ilp->shape.elastic) stw_milp_term_add(milp, over, -stw_cost_over_unit(row) / MIB);
    }
    if (!(ilp->shape.elastic && ilp->shape.most_over < INFINITY)) return;
    stw_milp_row_add(milp, -INFINITY, ilp->shape.most_over, "keep_over");
    for (uint32_t i = 0; i < n_over; i++) stw_milp_term_add(milp, first_over + i, 1);
}

static bool same_for_all_rings(const double *values, uint32_t n_rings) {
    for (uint32_t r = 1; r < n_rings; r++)
        if (values[r] != values[0]) return false;
    return true;
}

/* What blocks can add to a row: without it the row asks nothing that others do not. */
static double most_of_blocks(const stw_cost *cost, const stw_time_row *row) {
    double most = 0;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (row->act_s[a] > 0) most += row->act_s[a] * cost->acts[a].blocks;
    return most;
}

static void add_time_row(stw_ilp *ilp, const stw_time_row *row) {
    const stw_cost *cost = ilp->cost;
    stw_milp *milp = ilp->milp;
    uint32_t n_rings = ilp->shape.n_rings, first = ilp->shape.first_ring;
    const double unit = per_second(ilp);
    stw_milp_row_add(milp, row->constant_s * unit, INFINITY, "%s", row->name);
    stw_milp_term_add(milp, ilp->at.stretch_s + (uint32_t)row->stretch, 1);
    if (row->hides) stw_milp_term_add(milp, ilp->at.stretch_s + STW_STRETCH_FORWARD, 1);
    for (uint32_t p = 0; p < cost->n_places; p++) {
        const double *unit_s = &row->unit_s[p * cost->n_rings + first];
        if (cost->place_uses[p] == 0 || same_for_all_rings(unit_s, n_rings)) {
            stw_milp_term_add(milp, ilp->at.units + p, -unit_s[0] * unit);
            continue;
        }
        for (uint32_t r = 0; r < n_rings; r++)
            stw_milp_term_add(milp, ring_units_at(ilp, p, r), -unit_s[r] * unit);
    }
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t r = 0; r < n_rings; r++)
            stw_milp_term_add(milp, ring_used_at(ilp, u, r),
                              -row->ring_s[u * cost->n_rings + first + r] * unit);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        stw_milp_term_add(milp, ilp->at.acts + a, -row->act_s[a] * unit);
    if (row->unless != STW_NO_ACT)
        stw_milp_term_add(milp, ilp->at.acts_last + row->unless, most_of_blocks(cost, row) * unit);
}

/* Of the objective. */
static void add_most_seconds(stw_ilp *ilp) {
    stw_milp *milp = ilp->milp;
    stw_milp_row_add(milp, -INFINITY, ilp->shape.most_s * per_second(ilp), "keep_seconds");
    for (uint32_t c = 0; c < milp->n_columns; c++)
        stw_milp_term_add(milp, c, milp->columns[c].objective);
}

stw_status stw_ilp_build(const stw_cost *cost, const stw_ilp_shape *shape, stw_ilp *ilp,
                         stw_error *err) {
    *ilp = (stw_ilp){.cost = cost, .shape = *shape};
    ilp->milp = stw_milp_new("stowage");
    if (ilp->milp == NULL) return stw_planner_no_memory(err);
    add_columns(ilp);
    add_counts(ilp);
    add_sums(ilp);
    add_ring_rows(ilp);
    add_byte_rows(ilp);
    for (uint32_t i = 0; i < cost->n_time_rows; i++) add_time_row(ilp, &cost->time_rows[i]);
    if (shape->most_s > 0 && isfinite(shape->most_s)) add_most_seconds(ilp);
    return stw_milp_check(ilp->milp, err);
}

/* ---- answers ---- */

/* Units and blocks are rounded. */
static void read_choice(const stw_ilp *ilp, const double *values, stw_choice *choice) {
    choice->ring = ilp->shape.first_ring;
    choice->load = 0;
    stw_choice_round(ilp->cost, &values[ilp->at.units], &values[ilp->at.acts], choice);
    for (uint32_t l = 0; l < ilp->cost->n_loads; l++)
        if (values[ilp->at.load + l] > 0.5) choice->load = l;
}

stw_status stw_ilp_solve_shape(const stw_cost *cost, const stw_ilp_shape *shape,
                               const stw_milp_options *options, stw_choice *choice,
                               stw_milp_result *solved, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double unit = shape->goal == STW_GOAL_SECONDS ? MICRO : 1;
    stw_error why = STW_ERROR_INIT;
    stw_ilp ilp = {0};
    STW_TRY(stw_ilp_build(cost, shape, &ilp, err));
    double *values = stw_pool_array(ilp.milp->pool, ilp.milp->n_columns, sizeof *values);
    if (values == NULL) STW_TRY(stw_planner_no_memory(err));
    status = stw_milp_solve(ilp.milp, options, values, solved, &why);
    if (status == STW_STATUS_SOLVER) {
        solved->outcome = STW_MILP_LIMIT;
        solved->objective = solved->bound = solved->gap = NAN;
        status = STW_STATUS_OK;
    }
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK) goto out;
    solved->objective /= unit;
    solved->bound /= unit;
    solved->rows = ilp.milp->n_rows;
    solved->columns = ilp.milp->n_columns;
    if (stw_milp_has_solution(solved->outcome)) read_choice(&ilp, values, choice);
out:
    stw_milp_free(ilp.milp);
    return status;
}
