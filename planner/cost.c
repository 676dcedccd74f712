/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/cost.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/blocks.h"

void stw_cost_free(stw_cost *cost) {
    if (cost != NULL) stw_pool_free(cost->pool);
}

const char *stw_stretch_name(stw_stretch stretch) {
    static const char *const names[STW_N_STRETCHES] = {"norm", "step", "forward", "backward"};
    return names[stretch];
}

/* ---- evaluation ---- */

stw_choice stw_choice_new(const stw_cost *cost, stw_pool *pool) {
    stw_choice choice = {{0}, 0, 0, stw_pool_array(pool, cost->n_acts, sizeof(uint32_t))};
    return choice;
}

void stw_choice_copy(const stw_cost *cost, stw_choice *to, const stw_choice *from) {
    uint32_t *acts = to->acts;
    *to = *from;
    to->acts = acts;
    memcpy(acts, from->acts, cost->n_acts * sizeof *acts);
}

bool stw_choice_is_same(const stw_cost *cost, const stw_choice *a, const stw_choice *b) {
    bool same_ring = a->ring == b->ring || stw_choice_uses(cost, a) == 0;
    return same_ring && a->load == b->load &&
           memcmp(a->units, b->units, cost->n_places * sizeof *a->units) == 0 &&
           memcmp(a->acts, b->acts, cost->n_acts * sizeof *a->acts) == 0;
}

uint32_t stw_choice_update_units(const stw_cost *cost, const stw_choice *choice,
                                 stw_update update) {
    uint32_t units = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == update) units += choice->units[p];
    return units;
}

bool stw_choice_keeps_shares(const stw_cost *cost, const stw_choice *choice) {
    for (int u = 0; u < STW_N_UPDATES; u++)
        if (cost->update_units[u] != STW_AUTO &&
            stw_choice_update_units(cost, choice, (stw_update)u) != cost->update_units[u])
            return false;
    return true;
}

uint32_t stw_choice_uses(const stw_cost *cost, const stw_choice *choice) {
    uint32_t uses = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (choice->units[p] > 0) uses |= cost->place_uses[p];
    return uses;
}

static uint64_t row_bytes(const stw_cost *cost, const stw_byte_row *row, const stw_choice *choice,
                          uint32_t uses) {
    uint64_t bytes = row->constant_bytes + row->load_bytes[choice->load];
    for (uint32_t p = 0; p < cost->n_places; p++)
        bytes = stw_plus(bytes, stw_times(choice->units[p], row->unit_bytes[p]));
    for (uint32_t u = 0; uses >> u != 0; u++)
        if (uses & (1u << u)) bytes += row->ring_bytes[u * cost->n_rings + choice->ring];
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        bytes = stw_plus(bytes, stw_times(choice->acts[a], row->act_bytes[a]));
        if (choice->acts[a] > 0) bytes += row->act_once_bytes[a];
    }
    return bytes - stw_min_u64(row->less_bytes, bytes);
}

uint64_t stw_cost_row_bytes(const stw_cost *cost, const stw_byte_row *row,
                            const stw_choice *choice) {
    return row_bytes(cost, row, choice, stw_choice_uses(cost, choice));
}

static double row_seconds(const stw_cost *cost, const stw_time_row *row, const stw_choice *choice,
                          uint32_t uses) {
    double seconds = row->constant_s;
    if (row->unless != STW_NO_ACT && choice->acts[row->unless] >= STW_LAST_BLOCKS) return 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (choice->units[p] > 0)
            seconds += choice->units[p] * row->unit_s[p * cost->n_rings + choice->ring];
    for (uint32_t u = 0; uses >> u != 0; u++)
        if (uses & (1u << u)) seconds += row->ring_s[u * cost->n_rings + choice->ring];
    for (uint32_t a = 0; a < cost->n_acts; a++) seconds += choice->acts[a] * row->act_s[a];
    return seconds;
}

uint64_t stw_cost_row_limit(const stw_byte_row *row) {
    if (row->limit_bytes == UINT64_MAX) return UINT64_MAX;
    uint64_t bytes = row->limit_bytes + row->spare_bytes;
    return bytes > STW_COST_GUARD_BYTES ? bytes - STW_COST_GUARD_BYTES : 0;
}

double stw_cost_over_unit(const stw_byte_row *row) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    return (double)row->limit_bytes > gib ? (double)row->limit_bytes : gib;
}

/* Does any choice move bytes of the row while the trainer moves? */
static bool is_trainers(const stw_cost *cost, const stw_byte_row *row) {
    bool moves = false;
    if (row->phase == STW_PHASE_ROLLOUT || row->phase == STW_PHASE_WEIGHT_SYNC) return false;
    for (uint32_t p = 0; p < cost->n_places; p++) moves = moves || row->unit_bytes[p] > 0;
    for (uint32_t a = 0; a < cost->n_acts; a++) moves = moves || row->act_bytes[a] > 0;
    return moves;
}

void stw_cost_limit_gpu(stw_cost *cost, uint64_t limit_bytes) {
    const double filled =
        (double)cost->job->cluster->gpu.memory_bytes * cost->job->run->placement.gpu_fill;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier != STW_TIER_GPU) continue;
        row->limit_bytes =
            is_trainers(cost, row) ? limit_bytes : stw_max_u64(limit_bytes, (uint64_t)filled);
    }
}

void stw_cost_limit_alike(stw_cost *cost, const stw_cost *other) {
    for (uint32_t r = 0; r < cost->n_byte_rows && r < other->n_byte_rows; r++)
        cost->byte_rows[r].limit_bytes = other->byte_rows[r].limit_bytes;
}

/* Take up to so many bytes from what shards on the host cost a row once, of all that it had. */
static void take_from_host(const stw_cost *cost, stw_byte_row *row, uint64_t bytes) {
    uint64_t *once = &row->ring_bytes[STW_USE_HOST_PARAMS * cost->n_rings];
    uint64_t has = once[0] + row->spare_host_bytes;
    row->spare_host_bytes = stw_min_u64(bytes, has);
    for (uint32_t r = 0; r < cost->n_rings; r++) once[r] = has - row->spare_host_bytes;
}

uint64_t stw_cost_spare(const stw_cost *cost) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        most = stw_max_u64(most, row->spare_host_bytes + row->spare_bytes);
    }
    return most;
}

void stw_cost_give_spare(stw_cost *cost, uint64_t bytes) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier != STW_TIER_GPU || row->phase != STW_PHASE_FORWARD_BACKWARD) continue;
        take_from_host(cost, row, bytes);
        row->spare_bytes = bytes - row->spare_host_bytes;
    }
}

/* Of a row with nothing spared. */
static uint64_t whole_row_bytes(const stw_cost *cost, const stw_byte_row *row,
                                const stw_choice *choice, uint32_t uses) {
    bool staged = (uses & (1u << STW_USE_HOST_PARAMS)) != 0;
    return row_bytes(cost, row, choice, uses) + (staged ? row->spare_host_bytes : 0);
}

uint64_t stw_cost_forward_bytes(const stw_cost *cost, const stw_choice *choice) {
    uint32_t uses = stw_choice_uses(cost, choice);
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier == STW_TIER_GPU && row->phase == STW_PHASE_FORWARD_BACKWARD)
            most = stw_max_u64(most, whole_row_bytes(cost, row, choice, uses));
    }
    return most;
}

bool stw_act_barred(const stw_cost *cost, uint32_t a, const stw_bars *bars) {
    const stw_cost_act *act = &cost->acts[a];
    if (!(bars->acts & (1u << act->act))) return false;
    for (uint32_t i = 0; i < cost->n_acts; i++)
        if (cost->acts[i].group == act->group && !(bars->acts & (1u << cost->acts[i].act)))
            return true;
    return false;
}

bool stw_choice_keeps_bars(const stw_cost *cost, const stw_choice *choice, const stw_bars *bars) {
    uint32_t frozen = 0;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (bars->frozen & (1u << cost->acts[a].act)) frozen += choice->acts[a];
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (choice->units[p] > 0 && (bars->places & (1u << p))) return false;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (choice->acts[a] > 0 && stw_act_barred(cost, a, bars)) return false;
    return bars->frozen == 0 || frozen == bars->frozen_blocks;
}

/* Over: the worst row of each resource, so that instants of one memory are not added up. Rows of a
 * resource are neighbours. */
static void measure_bytes(const stw_cost *cost, const stw_choice *choice, uint32_t uses,
                          stw_evaluation *out) {
    uint64_t worst = 0, most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        uint64_t bytes = row_bytes(cost, row, choice, uses), limit = stw_cost_row_limit(row);
        const uint64_t alike = row->tier == STW_TIER_GPU ? cost->job->ranks_per_node : 1;
        if (!row->page_locked) most = stw_max_u64(most, stw_times(bytes, alike));
        if (row->tier == STW_TIER_GPU && bytes > out->gpu_bytes + row->spare_bytes)
            out->gpu_bytes = bytes - row->spare_bytes;
        if (row->tier == STW_TIER_HOST && !row->page_locked && bytes > out->host_bytes)
            out->host_bytes = bytes;
        if (bytes > limit && bytes - limit > worst) worst = bytes - limit;
        bool last = r + 1 == cost->n_byte_rows || row->resource != row[1].resource ||
                    row->node_kind != row[1].node_kind;
        if (!last) continue;
        out->over_bytes += worst;
        out->over_share += (double)worst / stw_cost_over_unit(row);
        out->held_bytes = stw_plus(out->held_bytes, most);
        worst = most = 0;
    }
}

/* All units share one place, where the engine cannot divide them. */
static bool keeps_whole(const stw_cost *cost, const stw_choice *choice) {
    uint32_t used = 0;
    for (uint32_t p = 0; p < cost->n_places; p++) used += choice->units[p] > 0;
    return !cost->whole || used <= 1;
}

void stw_cost_evaluate(const stw_cost *cost, const stw_choice *choice, stw_evaluation *out) {
    uint32_t uses = stw_choice_uses(cost, choice);
    memset(out, 0, sizeof *out);
    for (int hidden = 0; hidden < 2; hidden++) /* what is hidden behind others comes last */
        for (uint32_t r = 0; r < cost->n_time_rows; r++) {
            const stw_time_row *row = &cost->time_rows[r];
            if (row->hides != (hidden != 0)) continue;
            double seconds = row_seconds(cost, row, choice, uses);
            if (row->hides) seconds -= out->stretch_s[STW_STRETCH_FORWARD];
            if (seconds > out->stretch_s[row->stretch]) out->stretch_s[row->stretch] = seconds;
        }
    out->load_s = cost->load_s[choice->load];
    for (uint32_t p = 0; p < cost->n_places; p++)
        out->load_s += choice->units[p] * cost->load_unit_s[p];
    out->objective_s = out->load_s / STW_LOAD_SPREAD;
    for (uint32_t p = 0; p < STW_N_STRETCHES; p++)
        out->objective_s += cost->stretch_weight[p] * out->stretch_s[p];
    measure_bytes(cost, choice, uses, out);
    out->fits =
        out->over_bytes == 0 && stw_choice_keeps_shares(cost, choice) && keeps_whole(cost, choice);
}

/* What a row needs at least: the fastest place for all units and, of each group, the fastest policy
 * for all blocks. */
static double least_of_row(const stw_cost *cost, const stw_time_row *row) {
    double seconds = row->constant_s, unit = (double)INFINITY;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            unit = fmin(unit, row->unit_s[p * cost->n_rings + r]);
    if (isfinite(unit)) seconds += unit * cost->n_units;
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        double least = (double)INFINITY;
        for (uint32_t i = first; i < a; i++) least = fmin(least, row->act_s[i]);
        if (a > first && isfinite(least)) seconds += least * cost->acts[first].blocks;
        first = a;
    }
    return seconds;
}

double stw_cost_least_seconds(const stw_cost *cost) {
    double stretches[STW_N_STRETCHES] = {0}, all = 0;
    for (uint32_t r = 0; r < cost->n_time_rows; r++) {
        const stw_time_row *row = &cost->time_rows[r];
        if (row->unless != STW_NO_ACT || row->hides) continue;
        stretches[row->stretch] = fmax(stretches[row->stretch], least_of_row(cost, row));
    }
    for (int p = 0; p < STW_N_STRETCHES; p++) all += cost->stretch_weight[p] * stretches[p];
    return all;
}

double stw_cost_compute_seconds(const stw_cost *cost) {
    double all = 0;
    for (uint32_t r = 0; r < cost->n_time_rows; r++) {
        const stw_time_row *row = &cost->time_rows[r];
        if (strcmp(row->name, "forward_compute") == 0 || strcmp(row->name, "backward_compute") == 0)
            all += cost->stretch_weight[row->stretch] * least_of_row(cost, row);
    }
    return all;
}

/* Bytes of a row at least with all units in a place; STW_MAX_PLACES: in the best one. */
static double least_bytes(const stw_cost *cost, const stw_byte_row *row, uint32_t place) {
    double bytes = stw_cost_row_constant(row), unit = (double)INFINITY, load = (double)INFINITY;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (p == place || place == STW_MAX_PLACES) unit = fmin(unit, (double)row->unit_bytes[p]);
    for (uint32_t l = 0; l < cost->n_loads; l++) load = fmin(load, (double)row->load_bytes[l]);
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        double least = (double)INFINITY;
        for (uint32_t i = first; i < a; i++) least = fmin(least, (double)row->act_bytes[i]);
        if (a > first) bytes += least * cost->acts[first].blocks;
        first = a;
    }
    return bytes + unit * (double)cost->n_units + (isfinite(load) ? load : 0);
}

/* Copies of files on the host and state that grows beside them are added up, though one goes as the
 * other comes: a row of the load can be twice what it holds. */
static bool is_loose(const stw_byte_row *row) {
    return row->tier == STW_TIER_HOST && row->phase == STW_PHASE_LOAD;
}

static double over_in_place(const stw_cost *cost, uint32_t place) {
    double most = -(double)INFINITY;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->limit_bytes == UINT64_MAX || is_loose(row)) continue;
        most = fmax(most, least_bytes(cost, row, place) - (double)row->limit_bytes);
    }
    return most / (double)stw_max_u64(cost->job->cluster->gpu.memory_bytes, 1);
}

/* Rows of one instant of a node: `ranks` times that of a GPU, its host, its disks (may be NULL). */
typedef struct node_rows {
    const stw_byte_row *gpu, *host, *nvme;
    uint32_t ranks;
} node_rows;

/* What is on no GPU is on the host or on NVMe. */
static double least_state(const stw_cost *cost, const node_rows *rows) {
    double unit = (double)INFINITY;
    for (uint32_t p = 0; p < cost->n_places; p++)
        unit = fmin(unit, rows->ranks * (double)rows->gpu->unit_bytes[p] +
                              (double)rows->host->unit_bytes[p] +
                              (rows->nvme != NULL ? (double)rows->nvme->unit_bytes[p] : 0));
    return isfinite(unit) ? unit * cost->n_units : 0;
}

static double limits_of(const node_rows *rows) {
    return rows->ranks * (double)rows->gpu->limit_bytes + (double)rows->host->limit_bytes +
           (rows->nvme != NULL ? (double)rows->nvme->limit_bytes : 0);
}

static double over_together(const stw_cost *cost, const node_rows *rows) {
    double bytes =
        rows->ranks * stw_cost_row_constant(rows->gpu) + stw_cost_row_constant(rows->host);
    if (rows->nvme != NULL) bytes += stw_cost_row_constant(rows->nvme);
    for (uint32_t first = 0, a = 0; a <= cost->n_acts; a++) {
        if (a < cost->n_acts && cost->acts[a].group == cost->acts[first].group) continue;
        double least = (double)INFINITY;
        for (uint32_t i = first; i < a; i++)
            least = fmin(least, rows->ranks * (double)rows->gpu->act_bytes[i] +
                                    (double)rows->host->act_bytes[i]);
        if (a > first) bytes += least * cost->acts[first].blocks;
        first = a;
    }
    return bytes + least_state(cost, rows) - limits_of(rows);
}

static const stw_byte_row *nvme_row(const stw_cost *cost, uint32_t node_kind) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++)
        if (cost->byte_rows[r].tier == STW_TIER_NVME && cost->byte_rows[r].node_kind == node_kind)
            return &cost->byte_rows[r];
    return NULL;
}

/* The rows of every node and phase, as a share of the memory of a node's GPUs. */
static double over_on_nodes(const stw_cost *cost) {
    double most_over = -(double)INFINITY;
    const double memory = (double)stw_max_u64(cost->job->cluster->gpu.memory_bytes, 1);
    for (uint32_t h = 0; h < cost->n_byte_rows; h++) {
        const stw_byte_row *host = &cost->byte_rows[h];
        if (host->tier != STW_TIER_HOST || host->page_locked || host->limit_bytes == UINT64_MAX ||
            is_loose(host))
            continue;
        const stw_host_kind *node = &cost->job->node_kinds[host->node_kind];
        node_rows rows = {.host = host, .nvme = nvme_row(cost, host->node_kind)};
        for (uint32_t k = 0; k < cost->job->n_kinds; k++) rows.ranks += node->kind_ranks[k];
        if (rows.ranks == 0 || (rows.nvme != NULL && rows.nvme->limit_bytes == UINT64_MAX))
            continue;
        for (uint32_t g = 0; g < cost->n_byte_rows; g++) {
            rows.gpu = &cost->byte_rows[g];
            if (rows.gpu->tier != STW_TIER_GPU || rows.gpu->phase != host->phase ||
                rows.gpu->limit_bytes == UINT64_MAX)
                continue;
            most_over = fmax(most_over, over_together(cost, &rows) / rows.ranks / memory);
        }
    }
    return most_over;
}

double stw_cost_least_over_share(const stw_cost *cost) {
    double least = (double)INFINITY;
    if (!cost->whole) return fmax(over_in_place(cost, STW_MAX_PLACES), over_on_nodes(cost));
    for (uint32_t p = 0; p < cost->n_places; p++) least = fmin(least, over_in_place(cost, p));
    return fmax(least, over_on_nodes(cost));
}

/* Bytes of parameters, gradients, master and moments of a kind of rank in the first `n_tiers`
 * tiers, in the place that has the least there. @param kind NULL: of the whole model */
static double least_state_of(const stw_job *job, const stw_rank_kind *kind, const stw_place *places,
                             uint32_t n_places, int n_tiers) {
    double least = (double)INFINITY;
    for (uint32_t p = 0; p < n_places; p++) {
        double bytes = 0;
        for (int c = 0; c < STW_N_STATE; c++)
            if ((int)stw_place_tier(&places[p], (stw_component)c) < n_tiers)
                bytes +=
                    (double)stw_job_element_bytes(job, (stw_component)c) *
                    (double)(kind != NULL ? kind->spaces[stw_component_space((stw_component)c)].n
                                          : job->files.n);
        least = fmin(least, bytes);
    }
    return n_places > 0 ? least : 0;
}

double stw_cost_state_over_share(const stw_job *job, bool *in_every_layout) {
    const stw_cluster *c = job->cluster;
    const double memory = (double)c->gpu.memory_bytes;
    const double gpus = memory * job->ranks_per_node * c->nodes;
    const double others =
        ((double)stw_cluster_host_capacity(c) + (double)c->nvme.capacity_bytes) * c->nodes;
    stw_place places[STW_MAX_PLACES];
    double over = -(double)INFINITY;
    *in_every_layout = false;
    if (job->n_roles > 1 || c->gpus == 0 || job->run->park.params || job->run->park.grads ||
        job->run->park.moments)
        return over;
    stw_error why = STW_ERROR_INIT;
    const uint32_t n = job->engine->places(job, places, &why);
    for (uint32_t k = 0; k < job->n_kinds; k++)
        over = fmax(over, least_state_of(job, &job->kinds[k], places, n, 1) - memory);
    *in_every_layout =
        job->frozen == NULL && (least_state_of(job, NULL, places, n, 1) > gpus ||
                                least_state_of(job, NULL, places, n, STW_N_TIERS) > gpus + others);
    return over / memory;
}

/* ---- decisions ---- */

/* As many blocks as there are from one offloaded block of a group to the next: so long the link has
 * for each. */
static uint32_t fetch_ahead(const stw_cost *cost, const stw_choice *choice) {
    uint32_t most = 1;
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].act == STW_ACT_OFFLOAD && choice->acts[a] > 0)
            most =
                (uint32_t)stw_max_u64(most, stw_div_up_u64(cost->acts[a].blocks, choice->acts[a]));
    return (uint32_t)stw_min_u64(most, STW_MAX_FETCH_AHEAD);
}

stw_status stw_cost_decide(const stw_cost *cost, const stw_choice *choice, stw_pool *pool,
                           stw_decisions *out, stw_error *err) {
    memset(out, 0, sizeof *out);
    for (uint32_t p = 0; p < cost->n_places; p++) {
        if (choice->units[p] == 0) continue;
        uint32_t at = out->n_state++;
        while (at > 0 &&
               stw_place_order(&out->state[at - 1].place) > stw_place_order(&cost->places[p])) {
            out->state[at] = out->state[at - 1];
            at--;
        }
        out->state[at] = (stw_state_decision){cost->places[p], choice->units[p]};
    }
    out->blocks = stw_pool_array(pool, cost->n_acts, sizeof *out->blocks);
    if (out->blocks == NULL) return stw_planner_no_memory(err);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (choice->acts[a] > 0)
            out->blocks[out->n_blocks++] = (stw_block_decision){
                cost->acts[a].group, cost->acts[a].act, choice->acts[a] * cost->acts[a].each};
    out->prefetch.by_group = cost->by_group;
    out->prefetch.depth = cost->rings[choice->ring].depth;
    out->prefetch.bucket_bytes = cost->rings[choice->ring].bucket_bytes;
    out->load = cost->loads[choice->load];
    out->fetch_ahead = fetch_ahead(cost, choice);
    return STW_STATUS_OK;
}

/* ---- rows against the walk: every plan is held to what rows promise ---- */

/* Rows name the steady step; the first one is held to the same row. */
static bool same_phase(stw_phase row, stw_phase walked) {
    return row == (walked == STW_PHASE_FIRST_OPTIMIZER_STEP ? STW_PHASE_OPTIMIZER_STEP : walked);
}

/* The largest row of a resource in a phase; false where the problem has none. */
static bool largest_row(const stw_cost *cost, const stw_choice *choice, uint32_t memory,
                        uint32_t node_kind, stw_phase phase, uint64_t *bytes) {
    const bool page_locked = memory == STW_MEMORY_PAGE_LOCKED;
    const stw_tier tier = page_locked ? STW_TIER_HOST : (stw_tier)memory;
    bool found = false;
    *bytes = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier != tier || row->page_locked != page_locked) continue;
        /* what lies on NVMe lies there in every phase */
        if (tier != STW_TIER_NVME && !same_phase(row->phase, phase)) continue;
        if (tier != STW_TIER_GPU && row->node_kind != node_kind) continue;
        found = true;
        *bytes =
            stw_max_u64(*bytes, whole_row_bytes(cost, row, choice, stw_choice_uses(cost, choice)));
    }
    return found;
}

static stw_status compare(const stw_cost *cost, const stw_choice *choice, uint32_t memory,
                          uint32_t node_kind, stw_phase phase, uint64_t walked, stw_error *err) {
    uint64_t bytes;
    if (walked == 0) return STW_STATUS_OK;
    if (largest_row(cost, choice, memory, node_kind, phase, &bytes) && bytes >= walked)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "planner",
                    "the walk reaches %llu bytes of %s in %s, the planner's rows only %llu",
                    (unsigned long long)walked,
                    memory == STW_MEMORY_PAGE_LOCKED ? "page-locked memory"
                                                     : stw_tier_name((stw_tier)memory),
                    stw_phase_name(phase), (unsigned long long)bytes);
}

stw_status stw_cost_check_walk(const stw_cost *cost, const stw_choice *choice,
                               const stw_peaks *peaks, const stw_peaks *node_peaks,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int p = 0; p < STW_N_PHASES; p++) {
        for (uint32_t k = 0; k < cost->job->n_kinds; k++)
            if (peaks[k].has[p])
                STW_TRY(compare(cost, choice, STW_TIER_GPU, 0, (stw_phase)p,
                                peaks[k].phase[p][STW_TIER_GPU].total, err));
        for (uint32_t n = 0; n < cost->job->n_node_kinds; n++) {
            const stw_peak *node = node_peaks[n].phase[p];
            for (int t = STW_TIER_HOST; t < STW_N_TIERS && node_peaks[n].has[p]; t++)
                STW_TRY(compare(cost, choice, (uint32_t)t, n, (stw_phase)p, node[t].total, err));
            if (node_peaks[n].has[p] &&
                cost->job->cluster->host.page_lock_limit_bytes != STW_UNLIMITED)
                STW_TRY(compare(cost, choice, STW_MEMORY_PAGE_LOCKED, n, (stw_phase)p,
                                node[STW_TIER_HOST].page_locked, err));
        }
    }
out:
    return status;
}
