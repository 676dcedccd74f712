/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/cost.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "plan/program/demand.h"

/* Sizes that are tried where the spec leaves them to the planner: buckets below 4 MiB lose to the
 * start-up of copies, above 64 MiB nothing is gained (copies of 16 MiB already run at the link's
 * rate: measured on an H200, 2026-11-21). */
static const uint32_t DEPTHS[] = {1, 2, 3, 4};
static const uint32_t GROUP_DEPTHS[] = {1, 2, 4};
static const uint64_t BUCKETS[] = {4ull << 20, 8ull << 20, 16ull << 20, 32ull << 20, 64ull << 20};

/* More staging than this buys nothing: 3 slots of 32 MiB already run at the link's rate (the same
 * measurements). Buckets that a spec fixes may take three slots of any size. */
#define STAGING_BYTES (128ull << 20)

/* Buckets below 32 MiB, and rings of less than three, are for GPUs on which three such buckets are
 * more than a hundredth of the memory. Where several GPUs crowd the host's memory short copies lose
 * more than their start-up (two H200, moments of 4.0 G parameters: 397 ms with 3 x 4 or 3 x 16 MiB,
 * 379 ms with 3 x 32), and two slots leave no slack (one H200, a tenth on the CPU: 318 ms with 2 x
 * 32 MiB, 292 with 3 x 32; each on one machine, 2026-11-21). A ring of CPU buckets that the CPU's
 * caches hold is worth more than that. */
#define ROOMY_BUCKET (32ull << 20)
#define ROOMY_DEPTH 3u

#define COUNT_OF(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the problem");
}

/* ---- what can be chosen ---- */

static uint32_t uses_of(const stw_cost *cost, uint32_t p) {
    const stw_place *place = &cost->places[p];
    bool slots = stw_place_slot_element_bytes(cost->job, place) > 0;
    if (cost->engine->whole)
        return slots || place->params == STW_TIER_HOST ||
                       cost->engine->window_bytes(cost->job, place, 1, 0) > 0
                   ? 1u << p
                   : 0;
    uint32_t uses = place->params == STW_TIER_HOST ? 1u << STW_USE_HOST_PARAMS : 0;
    for (uint32_t r = 0; r < STW_N_RINGS; r++)
        if (stw_place_uses_ring(cost->job, place, (stw_ring_kind)r)) uses |= 1u << r;
    return uses;
}

static stw_status add_places(stw_cost *cost, stw_error *err) {
    cost->n_places = cost->engine->places(cost->job, cost->places, err);
    if (cost->n_places == 0) return STW_STATUS_BAD_INPUT; /* the engine said why */
    cost->n_uses = cost->engine->whole ? cost->n_places : (uint32_t)STW_N_USES;
    for (uint32_t p = 0; p < cost->n_places; p++) cost->place_uses[p] = uses_of(cost, p);
    return STW_STATUS_OK;
}

static bool is_roomy(const stw_cost *cost, uint64_t bucket_bytes) {
    return ROOMY_DEPTH * bucket_bytes <= cost->job->cluster->gpu.memory_bytes / 100;
}

/* The largest bucket of which caches hold the rings of all ranks; 0 where none or no place has one.
 */
static uint64_t cached_bucket(const stw_cost *cost) {
    for (uint32_t b = COUNT_OF(BUCKETS); b-- > 0;) {
        uint64_t ring = 0;
        for (uint32_t p = 0; p < cost->n_places; p++)
            ring = stw_max_u64(
                ring, stw_cpu_ring_bytes(cost->job, &cost->places[p], ROOMY_DEPTH, BUCKETS[b]));
        if (ring > 0 && stw_ring_missed(cost->job, ring) <= 0) return BUCKETS[b];
    }
    return 0;
}

/* @param out [COUNT_OF(BUCKETS)] @return how many */
static uint32_t bucket_sizes(const stw_cost *cost, uint64_t *out) {
    uint64_t cached = cached_bucket(cost);
    uint32_t n = 0;
    for (uint32_t b = 0; b < COUNT_OF(BUCKETS); b++) {
        bool too_small = BUCKETS[b] < ROOMY_BUCKET && is_roomy(cost, 2 * BUCKETS[b]);
        if (!too_small || BUCKETS[b] == cached) out[n++] = BUCKETS[b];
    }
    return n;
}

static stw_status add_rings(stw_cost *cost, stw_error *err) {
    const stw_run_spec *run = cost->job->run;
    bool by_group = cost->engine->prefetch_by_group, any = false;
    for (uint32_t p = 0; p < cost->n_places; p++) any = any || cost->place_uses[p] != 0;

    uint32_t fixed_depth = run->prefetch.depth;
    const uint32_t *depths = by_group ? GROUP_DEPTHS : DEPTHS;
    uint32_t n_depths = by_group ? COUNT_OF(GROUP_DEPTHS) : COUNT_OF(DEPTHS);
    if (fixed_depth != STW_AUTO || !any) {
        if (fixed_depth == STW_AUTO) fixed_depth = 1;
        depths = &fixed_depth;
        n_depths = 1;
    }
    uint64_t fixed_bucket = run->prefetch.bucket_bytes;
    while (depths != GROUP_DEPTHS && n_depths > 1 && depths[0] < ROOMY_DEPTH &&
           is_roomy(cost, ROOMY_BUCKET)) {
        depths++;
        n_depths--;
    }
    uint64_t sizes[COUNT_OF(BUCKETS)];
    const uint64_t *buckets = sizes;
    uint32_t n_buckets = bucket_sizes(cost, sizes);
    if (by_group || fixed_bucket != STW_AUTO_BYTES || !any) {
        if (by_group)
            fixed_bucket = 0;
        else if (fixed_bucket == STW_AUTO_BYTES)
            fixed_bucket = BUCKETS[0];
        buckets = &fixed_bucket;
        n_buckets = 1;
    }
    cost->rings = stw_pool_array(cost->pool, (size_t)n_depths * n_buckets, sizeof *cost->rings);
    if (cost->rings == NULL) return no_memory(err);
    for (uint32_t d = 0; d < n_depths; d++)
        for (uint32_t b = 0; b < n_buckets; b++) {
            uint64_t most = n_buckets == 1 ? 3 * buckets[b] : 0;
            if (most < STAGING_BYTES) most = STAGING_BYTES;
            if (n_depths > 1 && depths[d] * buckets[b] > most) continue;
            cost->rings[cost->n_rings++] = (stw_cost_ring){depths[d], buckets[b]};
        }
    return STW_STATUS_OK;
}

/* May blocks of a text model's transformer group take this policy? */
static bool act_admitted(const stw_job *job, stw_act act) {
    const stw_run_spec *run = job->run;
    if (!job->model->facts_known) return act == STW_ACT_KEEP; /* nothing is known to move */
    if (run->placement.activations != STW_AUTO) return run->placement.activations == (uint32_t)act;
    if (run->recompute.granularity == 1) return act == STW_ACT_RECOMPUTE;
    if (run->recompute.granularity != STW_AUTO) return act != STW_ACT_RECOMPUTE;
    return true;
}

static stw_status add_acts(stw_cost *cost, stw_error *err) {
    static const stw_act order[] = {STW_ACT_OFFLOAD, STW_ACT_RECOMPUTE, STW_ACT_KEEP};
    const stw_model *model = cost->job->model;
    cost->acts =
        stw_pool_array(cost->pool, (size_t)model->n_groups * STW_N_ACTS, sizeof *cost->acts);
    if (cost->acts == NULL) return no_memory(err);
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_group *group = &model->groups[g];
        if (!group->facts.transformer) continue;
        uint32_t before = cost->n_acts;
        bool saves = stw_activation_bytes(cost->job, g, STW_ACT_KEEP) > 0;
        for (uint32_t i = 0; i < COUNT_OF(order); i++)
            if (saves ? act_admitted(cost->job, order[i]) : order[i] == STW_ACT_KEEP)
                cost->acts[cost->n_acts++] = (stw_cost_act){g, order[i], group->count};
        if (cost->n_acts == before)
            return stw_fail(err, STW_STATUS_BAD_INPUT, "placement.activations",
                            "no policy is left for the blocks of %s", group->name);
    }
    return STW_STATUS_OK;
}

static void add_loads(stw_cost *cost) {
    uint32_t fixed = cost->job->run->load.method;
    for (uint32_t l = 0; l < STW_N_LOADS; l++)
        if (fixed == STW_AUTO || fixed == l) cost->loads[cost->n_loads++] = (stw_load)l;
}

static stw_status add_reference(stw_cost *cost, stw_error *err) {
    stw_status status = stw_cost_reference(cost, 0, STW_ACT_KEEP, &cost->reference, err);
    if (status != STW_STATUS_OK) return status;
    stw_live live = {0};
    for (uint32_t i = 0; i < cost->reference->n_ops; i++)
        stw_live_apply(&live, &cost->reference->ops[i]);
    uint64_t all = live.total[STW_TIER_GPU], known = stw_cost_known_gpu_bytes(cost, &live);
    cost->kept_gpu_bytes = all > known ? all - known : 0;
    return STW_STATUS_OK;
}

stw_status stw_cost_new(const stw_job *job, stw_cost **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_cost *cost = pool == NULL ? NULL : stw_pool_alloc(pool, sizeof *cost);
    if (cost == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    cost->pool = pool;
    cost->job = job;
    cost->n_units = job->n_units;
    cost->forward_backward_known = job->model->facts_known;
    cost->part_weight[STW_PART_NORM] = cost->part_weight[STW_PART_STEP] = 1;
    cost->part_weight[STW_PART_FORWARD] = cost->part_weight[STW_PART_BACKWARD] =
        (double)job->run->batch.grad_accumulation;
    cost->engine = stw_engine_find(job->run->engine);
    if (cost->engine == NULL) {
        status =
            stw_fail(err, STW_STATUS_NOT_BUILT_IN, "engine",
                     "found '%s', which this build cannot plan", stw_engine_name(job->run->engine));
        goto out;
    }
    for (int u = 0; u < STW_N_UPDATES; u++)
        cost->update_units[u] = stw_job_update_units(job, (stw_update)u);
    STW_TRY(add_places(cost, err));
    STW_TRY(add_rings(cost, err));
    STW_TRY(add_acts(cost, err));
    add_loads(cost);
    STW_TRY(add_reference(cost, err));
    STW_TRY(stw_cost_add_bytes(cost, err));
    STW_TRY(stw_cost_add_seconds(cost, err));
out:
    if (status == STW_STATUS_OK)
        *out = cost;
    else
        stw_cost_free(cost);
    return status;
}

void stw_cost_free(stw_cost *cost) {
    if (cost == NULL) return;
    stw_program_free(cost->reference);
    stw_pool_free(cost->pool);
}

/* ---- rows ---- */

stw_byte_row *stw_cost_byte_row(stw_cost *cost, stw_phase phase, stw_tier tier,
                                const char *resource, uint64_t limit_bytes, const char *format,
                                ...) {
    char name[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    stw_pool *pool = cost->pool;
    stw_byte_row *rows =
        stw_pool_grow(pool, cost->byte_rows, cost->n_byte_rows, (size_t)cost->n_byte_rows + 1,
                      &cost->byte_row_room, sizeof *rows);
    if (rows == NULL) return NULL;
    cost->byte_rows = rows;
    stw_byte_row *row = &rows[cost->n_byte_rows];
    *row = (stw_byte_row){
        .name = stw_pool_string(pool, name),
        .resource = resource,
        .phase = phase,
        .tier = tier,
        .limit_bytes = limit_bytes,
        .unit_bytes = stw_pool_array(pool, cost->n_places, sizeof(uint64_t)),
        .ring_bytes = stw_pool_array(pool, (size_t)cost->n_uses * cost->n_rings, sizeof(uint64_t)),
        .act_bytes = stw_pool_array(pool, cost->n_acts, sizeof(uint64_t)),
        .act_once_bytes = stw_pool_array(pool, cost->n_acts, sizeof(uint64_t)),
        .load_bytes = stw_pool_array(pool, cost->n_loads, sizeof(uint64_t))};
    if (row->name == NULL || row->unit_bytes == NULL || row->ring_bytes == NULL ||
        row->act_bytes == NULL || row->act_once_bytes == NULL || row->load_bytes == NULL)
        return NULL;
    cost->n_byte_rows++;
    return row;
}

const char *stw_part_name(stw_part part) {
    static const char *const names[STW_N_PARTS] = {"norm", "step", "forward", "backward"};
    return names[part];
}

stw_time_row *stw_cost_time_row(stw_cost *cost, stw_part part, const char *format, ...) {
    char name[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    stw_pool *pool = cost->pool;
    stw_time_row *rows =
        stw_pool_grow(pool, cost->time_rows, cost->n_time_rows, (size_t)cost->n_time_rows + 1,
                      &cost->time_row_room, sizeof *rows);
    if (rows == NULL) return NULL;
    cost->time_rows = rows;
    stw_time_row *row = &rows[cost->n_time_rows];
    *row = (stw_time_row){
        .name = stw_pool_string(pool, name),
        .part = part,
        .unit_s = stw_pool_array(pool, (size_t)cost->n_places * cost->n_rings, sizeof(double)),
        .ring_s = stw_pool_array(pool, (size_t)cost->n_uses * cost->n_rings, sizeof(double)),
        .act_s = stw_pool_array(pool, cost->n_acts, sizeof(double))};
    if (row->name == NULL || row->unit_s == NULL || row->ring_s == NULL || row->act_s == NULL)
        return NULL;
    cost->n_time_rows++;
    return row;
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

uint64_t stw_cost_row_bytes(const stw_cost *cost, const stw_byte_row *row,
                            const stw_choice *choice) {
    uint64_t bytes = row->constant_bytes + row->load_bytes[choice->load];
    for (uint32_t p = 0; p < cost->n_places; p++) bytes += choice->units[p] * row->unit_bytes[p];
    uint32_t uses = stw_choice_uses(cost, choice);
    for (uint32_t u = 0; u < cost->n_uses; u++)
        if (uses & (1u << u)) bytes += row->ring_bytes[u * cost->n_rings + choice->ring];
    for (uint32_t a = 0; a < cost->n_acts; a++) {
        bytes += choice->acts[a] * row->act_bytes[a];
        if (choice->acts[a] > 0) bytes += row->act_once_bytes[a];
    }
    return bytes;
}

double stw_cost_row_seconds(const stw_cost *cost, const stw_time_row *row,
                            const stw_choice *choice) {
    double seconds = row->constant_s;
    for (uint32_t p = 0; p < cost->n_places; p++)
        seconds += choice->units[p] * row->unit_s[p * cost->n_rings + choice->ring];
    uint32_t uses = stw_choice_uses(cost, choice);
    for (uint32_t u = 0; u < cost->n_uses; u++)
        if (uses & (1u << u)) seconds += row->ring_s[u * cost->n_rings + choice->ring];
    for (uint32_t a = 0; a < cost->n_acts; a++) seconds += choice->acts[a] * row->act_s[a];
    return seconds;
}

uint64_t stw_cost_row_limit(const stw_byte_row *row) {
    if (row->limit_bytes == UINT64_MAX) return UINT64_MAX;
    return row->limit_bytes > STW_COST_GUARD_BYTES ? row->limit_bytes - STW_COST_GUARD_BYTES : 0;
}

/* Over: the worst row of each resource, so that instants of one memory are not added up. Rows of a
 * resource are neighbours. */
static uint64_t over_bytes(const stw_cost *cost, const stw_choice *choice) {
    uint64_t over = 0, worst = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        const stw_byte_row *last = r == 0 ? row : &cost->byte_rows[r - 1];
        if (row->resource != last->resource || row->node_kind != last->node_kind) {
            over += worst;
            worst = 0;
        }
        uint64_t bytes = stw_cost_row_bytes(cost, row, choice), limit = stw_cost_row_limit(row);
        if (bytes > limit && bytes - limit > worst) worst = bytes - limit;
    }
    return over + worst;
}

void stw_cost_evaluate(const stw_cost *cost, const stw_choice *choice, stw_evaluation *out) {
    memset(out, 0, sizeof *out);
    for (uint32_t r = 0; r < cost->n_time_rows; r++) {
        const stw_time_row *row = &cost->time_rows[r];
        double seconds = stw_cost_row_seconds(cost, row, choice);
        if (seconds > out->part_s[row->part]) out->part_s[row->part] = seconds;
    }
    out->load_s = cost->load_s[choice->load];
    for (uint32_t p = 0; p < cost->n_places; p++)
        out->load_s += choice->units[p] * cost->load_unit_s[p];
    out->objective_s = out->load_s / STW_LOAD_SPREAD;
    for (uint32_t p = 0; p < STW_N_PARTS; p++)
        out->objective_s += cost->part_weight[p] * out->part_s[p];
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        uint64_t bytes = stw_cost_row_bytes(cost, row, choice);
        if (row->tier == STW_TIER_GPU && bytes > out->gpu_bytes) out->gpu_bytes = bytes;
        if (row->tier == STW_TIER_HOST && !row->page_locked && bytes > out->host_bytes)
            out->host_bytes = bytes;
    }
    out->over_bytes = over_bytes(cost, choice);
    out->fits = out->over_bytes == 0 && stw_choice_keeps_shares(cost, choice);
}

/* ---- decisions ---- */

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
    if (out->blocks == NULL) return no_memory(err);
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (choice->acts[a] > 0)
            out->blocks[out->n_blocks++] =
                (stw_block_decision){cost->acts[a].group, cost->acts[a].act, choice->acts[a]};
    out->prefetch.by_group = cost->engine->prefetch_by_group;
    out->prefetch.depth = cost->rings[choice->ring].depth;
    out->prefetch.bucket_bytes = cost->rings[choice->ring].bucket_bytes;
    out->load = cost->loads[choice->load];
    return STW_STATUS_OK;
}
