/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/rows.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/checked.h"

/* ---- programs ---- */

stw_status stw_build_program(stw_build *b, uint32_t place, stw_act act, const stw_program **out,
                             stw_error *err) {
    const stw_cost *cost = b->cost;
    uint32_t p = 0;
    while (cost->places[p].params != cost->places[place].params ||
           cost->places[p].grads != cost->places[place].grads)
        p++;
    stw_status status = STW_STATUS_OK;
    stw_program **program = &b->programs[p * STW_N_ACTS + (uint32_t)act];
    if (*program == NULL) {
        const stw_simple simple = {.job = cost->job,
                                   .kind = cost->job->largest,
                                   .place = cost->places[p],
                                   .act = act,
                                   .load = STW_LOAD_SHARDED_READ,
                                   .by_group = cost->by_group,
                                   .depth = cost->rings[0].depth,
                                   .bucket_bytes = STW_UNCUT_BYTES,
                                   .phases = 1u << STW_PHASE_FORWARD_BACKWARD};
        stw_layout *layout = NULL;
        status = stw_simple_build(&simple, &layout, program, err);
        stw_layout_free(layout);
    }
    *out = *program;
    return status;
}

/* ---- rows ---- */

stw_byte_row *stw_row_bytes(stw_cost *cost, stw_phase phase, stw_tier tier, const char *resource,
                            uint64_t limit_bytes, const char *format, ...) {
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

stw_time_row *stw_row_seconds(stw_cost *cost, stw_stretch stretch, const char *format, ...) {
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
        .stretch = stretch,
        .hides = stretch == STW_STRETCH_STEP && stw_job_hides_step(cost->job),
        .unit_s = stw_pool_array(pool, (size_t)cost->n_places * cost->n_rings, sizeof(double)),
        .ring_s = stw_pool_array(pool, (size_t)cost->n_uses * cost->n_rings, sizeof(double)),
        .act_s = stw_pool_array(pool, cost->n_acts, sizeof(double))};
    if (row->name == NULL || row->unit_s == NULL || row->ring_s == NULL || row->act_s == NULL)
        return NULL;
    row->unless = STW_NO_ACT;
    cost->n_time_rows++;
    return row;
}

stw_rows_kept stw_proof_begin(stw_cost *cost) {
    const stw_rows_kept kept = {cost->time_rows, cost->n_time_rows, cost->time_row_room};
    cost->time_rows = cost->proof_rows;
    cost->n_time_rows = cost->n_proof_rows;
    cost->time_row_room = cost->n_proof_rows;
    return kept;
}

void stw_proof_end(stw_cost *cost, const stw_rows_kept *kept) {
    cost->proof_rows = cost->time_rows;
    cost->n_proof_rows = cost->n_time_rows;
    cost->time_rows = kept->rows;
    cost->n_time_rows = kept->n;
    cost->time_row_room = kept->room;
}

/* ---- bytes ---- */

uint64_t stw_build_staging(const stw_build *b, uint32_t kind, uint32_t load, stw_tier tier) {
    return b->staging_bytes[(kind * b->cost->n_loads + load) * STW_N_TIERS + (uint32_t)tier];
}

uint64_t stw_build_most_staging(const stw_build *b, uint32_t load, stw_tier tier) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < b->cost->job->n_kinds; k++)
        most = stw_max_u64(most, stw_build_staging(b, k, load, tier));
    return most;
}

/* The use that carries what a place needs once in a tier: a ring of its own there, any ring, or the
 * place's own use. */
static uint32_t use_of(const stw_cost *cost, uint32_t place, stw_tier tier) {
    for (uint32_t u = 0; u < STW_N_RINGS; u++)
        if ((cost->place_uses[place] & (1u << u)) && (u == STW_RING_GPU) == (tier == STW_TIER_GPU))
            return u;
    return STW_USE_OWN(place);
}

static uint64_t least_once(const stw_build *b, stw_instant at, uint32_t memory, uint32_t kind) {
    uint64_t least = UINT64_MAX;
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        for (uint32_t r = 0; r < b->cost->n_rings; r++)
            least = stw_min_u64(least, stw_build_bytes(b, kind, p, r)->once[at][memory]);
    return least;
}

/* What places need of a tier, as one part in `share` of it. What all of them need once is constant;
 * places that share a ring need the most of any of them. */
typedef struct place_terms {
    const stw_build *build;
    stw_instant at;
    uint32_t memory; /* a tier or STW_MEMORY_PAGE_LOCKED */
    uint32_t kind;
    uint64_t ranks, share;
} place_terms;

static uint64_t part_of(const place_terms *t, uint64_t bytes) {
    return t->ranks * stw_div_up_u64(bytes, t->share);
}

static void add_once(const place_terms *t, uint64_t least, uint32_t use, stw_byte_row *row) {
    stw_cost *cost = t->build->cost;
    const stw_tier tier = t->memory == STW_MEMORY_PAGE_LOCKED ? STW_TIER_HOST : (stw_tier)t->memory;
    for (uint32_t r = 0; r < cost->n_rings; r++) {
        uint64_t most = 0;
        for (uint32_t p = 0; p < cost->n_places; p++) {
            if (use_of(cost, p, tier) != use) continue;
            const stw_place_bytes *bytes = stw_build_bytes(t->build, t->kind, p, r);
            uint64_t more = bytes->once[t->at][t->memory] - least;
            if (more > 0) cost->place_uses[p] |= 1u << use;
            most = stw_max_u64(most, more);
        }
        row->ring_bytes[use * cost->n_rings + r] += part_of(t, most);
    }
}

static void add_terms(const place_terms *t, stw_byte_row *row) {
    const stw_cost *cost = t->build->cost;
    uint64_t least = least_once(t->build, t->at, t->memory, t->kind);
    row->constant_bytes += part_of(t, least);
    for (uint32_t p = 0; p < cost->n_places; p++)
        row->unit_bytes[p] +=
            part_of(t, stw_build_bytes(t->build, t->kind, p, 0)->unit[t->at][t->memory]);
    for (uint32_t u = 0; u < cost->n_uses; u++)
        if (u != STW_USE_HOST_PARAMS) add_once(t, least, u, row);
}

void stw_row_add_places(const stw_build *b, stw_instant at, uint32_t kind, uint64_t ranks,
                        stw_byte_row *row) {
    const place_terms terms = {
        b, at, row->page_locked ? STW_MEMORY_PAGE_LOCKED : (uint32_t)row->tier, kind, ranks, 1};
    add_terms(&terms, row);
}

/* The host arena is there from the start, with rings and the staging of the load. Every part is
 * rounded up; one step covers the rounding of their sum, a page that of its regions. */
static void add_page_tables(const stw_build *b, uint32_t kind, stw_byte_row *row) {
    const stw_cost *cost = b->cost;
    const place_terms arena = {b, STW_AT_STEP, STW_TIER_HOST, kind, 1, STW_PAGE_TABLE_SHARE};
    add_terms(&arena, row);
    row->constant_bytes += STW_PAGE_TABLE_STEP_BYTES + STW_ALIGN_BYTES;
    if (stw_engine_steps_inside(&cost->job->engine->spec)) return; /* nothing of the load */
    for (uint32_t l = 0; l < cost->n_loads; l++)
        row->load_bytes[l] +=
            stw_div_up_u64(stw_build_most_staging(b, l, STW_TIER_HOST), STW_PAGE_TABLE_SHARE);
}

stw_byte_row *stw_row_gpu_of(const stw_build *b, uint32_t kind, stw_phase phase, stw_instant at,
                             const char *name) {
    const stw_job *job = b->cost->job;
    stw_byte_row *row = stw_row_bytes(b->cost, phase, STW_TIER_GPU, "gpu memory",
                                      job->cluster->gpu.memory_bytes, "gpu_%s", name);
    if (row == NULL) return NULL;
    stw_row_add_places(b, at, kind, 1, row);
    if (job->kinds[kind].home != 0) return row;
    row->constant_bytes += b->context_bytes;
    if (b->page_tables) add_page_tables(b, kind, row);
    return row;
}

stw_byte_row *stw_row_gpu(const stw_build *b, stw_phase phase, stw_instant at, const char *name) {
    return stw_row_gpu_of(b, b->cost->job->largest, phase, at, name);
}
