/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of forward and backward where what is around a block depends on the policies of all blocks
 * (stw_engine.mixes): a framework that gathers parameters in the order of all uses, ahead of them,
 * and lets them go by the distance to the next use. Programs of one policy for all blocks do not
 * show what mixtures hold. Mixtures are walked here, and by what the largest of them exceeds its
 * rows these are raised: as soon as a group with a choice keeps any activations, or always by what
 * is above them where none does. */
#include <string.h>

#include "core/checked.h"
#include "planner/rows.h"

/* All mixtures of so many are walked; of more, those in which one group is mixed and every other
 * one has one policy. */
#define MOST_MIXTURES 96u
#define MOST_GROUPS 4u

/* Groups with a choice between recompute and keep. */
typedef struct mixtures {
    const stw_build *build;
    stw_choice choice;
    uint32_t n, keep[MOST_GROUPS], other[MOST_GROUPS]; /* options in cost->acts */
    uint64_t excess[STW_N_PHASES]; /* the largest so far; the first step counts as any */
} mixtures;

static void find_groups(mixtures *m) {
    const stw_cost *cost = m->build->cost;
    for (uint32_t a = 0; a + 1 < cost->n_acts; a++) {
        if (cost->acts[a].group != cost->acts[a + 1].group || m->n == MOST_GROUPS) continue;
        if (cost->acts[a + 1].act != STW_ACT_KEEP) continue;
        m->other[m->n] = a;
        m->keep[m->n++] = a + 1;
    }
}

static void keep(mixtures *m, uint32_t group, uint32_t blocks) {
    const uint32_t all = m->build->cost->acts[m->keep[group]].blocks;
    m->choice.acts[m->keep[group]] = blocks;
    m->choice.acts[m->other[group]] = all - blocks;
}

/* Every block keeps, but those of groups that have no such policy. */
static void begin(mixtures *m) {
    const stw_cost *cost = m->build->cost;
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        const bool last = a + 1 == cost->n_acts || cost->acts[a + 1].group != cost->acts[a].group;
        m->choice.acts[a] = last ? cost->acts[a].blocks : 0;
    }
    m->choice.units[0] = cost->n_units;
}

/* The largest row of the GPU in a phase. */
static uint64_t largest(const mixtures *m, stw_phase phase) {
    const stw_cost *cost = m->build->cost;
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU && cost->byte_rows[r].phase == phase)
            most = stw_max_u64(most, stw_cost_row_bytes(cost, &cost->byte_rows[r], &m->choice));
    return most;
}

static stw_status walk(mixtures *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = m->build->cost;
    stw_decisions decisions;
    stw_decided here;
    STW_TRY(stw_cost_decide(cost, &m->choice, m->build->pool, &decisions, err));
    STW_TRY(stw_read_decided(cost->job, &decisions, cost->job->largest, 0, NULL, &here, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_phase row = p == STW_PHASE_FIRST_OPTIMIZER_STEP ? STW_PHASE_OPTIMIZER_STEP : p;
        const uint64_t walked = here.peaks.has[p] ? here.peaks.phase[p][STW_TIER_GPU].total : 0;
        const uint64_t rows = largest(m, row);
        if (walked > rows) m->excess[row] = stw_max_u64(m->excess[row], walked - rows);
    }
out:
    return status;
}

static uint32_t blocks_of(const mixtures *m, uint32_t group) {
    return m->build->cost->acts[m->keep[group]].blocks;
}

/* Number `number` of all mixtures. */
static void set_mixture(mixtures *m, uint64_t number) {
    for (uint32_t g = 0; g < m->n; g++) {
        const uint64_t counts = blocks_of(m, g) + 1ull;
        keep(m, g, (uint32_t)(number % counts));
        number /= counts;
    }
}

/* Of all groups together. */
static uint64_t count(const mixtures *m) {
    uint64_t all = 1;
    for (uint32_t g = 0; g < m->n; g++) all = stw_times(all, blocks_of(m, g) + 1ull);
    return all;
}

static stw_status walk_all(mixtures *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t all = count(m);
    for (uint64_t i = 0; all <= MOST_MIXTURES && i < all; i++) {
        set_mixture(m, i);
        STW_TRY(walk(m, err));
    }
    for (uint32_t g = 0; all > MOST_MIXTURES && g < m->n; g++)
        for (uint32_t corner = 0; corner < 1u << m->n; corner++) {
            if ((corner & 1u << g) != 0) continue;
            for (uint32_t k = 0; k < m->n; k++)
                keep(m, k, (corner & 1u << k) != 0 ? blocks_of(m, k) : 0);
            for (uint32_t blocks = 0; blocks <= blocks_of(m, g); blocks++) {
                keep(m, g, blocks);
                STW_TRY(walk(m, err));
            }
        }
out:
    return status;
}

/* The same row once more. */
static stw_byte_row *copy_row(stw_cost *cost, uint32_t of, uint32_t group) {
    const stw_byte_row from = cost->byte_rows[of]; /* rows may move */
    stw_byte_row *row = stw_row_bytes(cost, from.phase, from.tier, from.resource, from.limit_bytes,
                                      "%s_mixed%u", from.name, group);
    if (row == NULL) return NULL;
    row->constant_bytes = from.constant_bytes;
    row->less_bytes = from.less_bytes;
    memcpy(row->unit_bytes, from.unit_bytes, cost->n_places * sizeof *row->unit_bytes);
    memcpy(row->ring_bytes, from.ring_bytes,
           (size_t)cost->n_uses * cost->n_rings * sizeof *row->ring_bytes);
    memcpy(row->act_bytes, from.act_bytes, cost->n_acts * sizeof *row->act_bytes);
    memcpy(row->act_once_bytes, from.act_once_bytes, cost->n_acts * sizeof *row->act_once_bytes);
    memcpy(row->load_bytes, from.load_bytes, cost->n_loads * sizeof *row->load_bytes);
    return row;
}

/* Of several groups each has rows of its own: where two keep activations, it counts once. */
static stw_status raise_rows(const mixtures *m, stw_error *err) {
    stw_cost *cost = m->build->cost;
    const uint32_t n = cost->n_byte_rows;
    for (uint32_t r = 0; r < n; r++) {
        const uint64_t excess = m->excess[cost->byte_rows[r].phase];
        if (cost->byte_rows[r].tier != STW_TIER_GPU || excess == 0) continue;
        for (uint32_t g = 1; g < m->n; g++) {
            stw_byte_row *row = copy_row(cost, r, g);
            if (row == NULL) return stw_planner_no_memory(err);
            row->act_once_bytes[m->keep[g]] += excess;
        }
        cost->byte_rows[r].act_once_bytes[m->keep[0]] += excess;
    }
    return STW_STATUS_OK;
}

/* What mixtures that are not walked may gather more. */
static uint64_t largest_block(const stw_job *job) {
    uint64_t most = 0;
    for (uint32_t b = 0; b < job->model->n_blocks; b++)
        if (job->model->groups[job->model->blocks[b].group].facts.transformer)
            most = stw_max_u64(most, stw_job_gathered_params(job, b));
    return stw_times(most, stw_job_element_bytes(job, STW_COMPONENT_PARAMS));
}

/* Where no group with a choice keeps anything; what has no choice does. */
static stw_status raise_least(mixtures *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = m->build->cost;
    for (uint32_t g = 0; g < m->n; g++) keep(m, g, 0);
    STW_TRY(walk(m, err));
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_GPU)
            cost->byte_rows[r].constant_bytes += m->excess[cost->byte_rows[r].phase];
    memset(m->excess, 0, sizeof m->excess);
out:
    return status;
}

stw_status stw_rows_add_mixed(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_engine *engine = b->cost->job->engine;
    if (engine->mixes == NULL || !engine->mixes(b->cost->job)) return status;
    mixtures m = {.build = b, .choice = stw_choice_new(b->cost, b->pool)};
    if (m.choice.acts == NULL) return stw_planner_no_memory(err);
    find_groups(&m);
    begin(&m);
    STW_TRY(raise_least(&m, err));
    STW_TRY(walk_all(&m, err));
    if (count(&m) > MOST_MIXTURES)
        m.excess[STW_PHASE_FORWARD_BACKWARD] =
            stw_plus(m.excess[STW_PHASE_FORWARD_BACKWARD], largest_block(b->cost->job));
    STW_TRY(raise_rows(&m, err));
out:
    return status;
}
