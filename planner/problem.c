/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/problem.h"

#include <string.h>

#include "core/checked.h"
#include "plan/program/shortened.h"
#include "plan/program/staging.h"
#include "planner/rows.h"

/* Measured constants of this file: bench/results/constants.md. */

/* More staging than this buys nothing: 3 slots of 32 MiB already run at the link's rate. Buckets
 * that a spec fixes may take three slots of any size. */
#define STAGING_BYTES (128ull << 20)

/* 2^62: what rows overstate and the limits that they are compared with fit beside it. */
static const double MOST_BYTES = 4611686018427387904.0;

/* Buckets below 32 MiB, and rings of less than three, are for GPUs and hosts on which three such
 * buckets (of each rank) are more than a hundredth of the memory: short copies lose more than their
 * start-up where several GPUs crowd the host's memory, and two slots leave no slack. A ring of CPU
 * buckets that the CPU's caches hold is worth more than that. */
#define ROOMY_BUCKET (32ull << 20)
#define ROOMY_DEPTH 3u

/* Sizes that are tried where spec and engine leave them open: buckets below 4 MiB lose to the
 * start-up of copies, and copies of 16 MiB already run at the link's rate. */
static const uint32_t DEPTHS[] = {1, 2, 3, 4, 0};
static const uint64_t BUCKETS[] = {4ull << 20, 8ull << 20, 16ull << 20, 32ull << 20, 64ull << 20};
#define N_BUCKETS (sizeof BUCKETS / sizeof BUCKETS[0])
#define MAX_DEPTHS 8

/* Large rings fetch ahead while the norm is taken, in memory that activations have left. A ring may
 * take one part in AHEAD_PART of a GPU. Engine stowage alone: a framework's memory is full then. */
static const stw_cost_ring AHEAD[] = {
    {8, 64ull << 20}, {8, 256ull << 20}, {16, 256ull << 20}, {16, 512ull << 20}};
#define N_AHEAD (sizeof AHEAD / sizeof AHEAD[0])
#define AHEAD_PART 2

/* ---- what can be chosen ---- */

static stw_status add_places(stw_cost *cost, const stw_engine *engine, stw_error *err) {
    cost->n_places = engine->places(cost->job, cost->places, err);
    if (cost->n_places == 0) return STW_STATUS_BAD_INPUT; /* the engine said why */
    cost->n_uses = STW_USE_OWN(cost->n_places);
    return STW_STATUS_OK;
}

static bool is_roomy(const stw_cost *cost, uint64_t bucket_bytes) {
    const stw_job *job = cost->job;
    uint64_t ring = stw_times(ROOMY_DEPTH, bucket_bytes);
    return ring <= job->cluster->gpu.memory_bytes / 100 &&
           ring <= stw_cluster_host_capacity(job->cluster) / job->ranks_per_node / 100;
}

/* The largest bucket of which caches hold the rings of all ranks, with the place that asks least of
 * them; 0 where none or no place has one. */
static uint64_t cached_bucket(const stw_cost *cost) {
    for (size_t b = N_BUCKETS; b-- > 0;) {
        uint64_t ring = 0;
        for (uint32_t p = 0; p < cost->n_places; p++) {
            uint64_t bytes =
                stw_cpu_ring_bytes(cost->job, &cost->places[p], ROOMY_DEPTH, BUCKETS[b]);
            if (bytes > 0 && (ring == 0 || bytes < ring)) ring = bytes;
        }
        if (ring > 0 && stw_ring_missed(cost->job, ring) <= 0) return BUCKETS[b];
    }
    return 0;
}

/* @param out [N_BUCKETS] @return how many; one of 0 where depth counts groups */
static uint32_t bucket_sizes(const stw_cost *cost, bool streams, uint64_t *out) {
    uint64_t fixed = cost->job->run->prefetch.bucket_bytes;
    uint32_t n = 0;
    if (cost->by_group || fixed != STW_AUTO_BYTES || !streams) {
        out[0] = cost->by_group ? 0 : fixed != STW_AUTO_BYTES ? fixed : BUCKETS[0];
        return 1;
    }
    uint64_t cached = cached_bucket(cost);
    for (size_t b = 0; b < N_BUCKETS; b++) {
        bool too_small = BUCKETS[b] < ROOMY_BUCKET && is_roomy(cost, 2 * BUCKETS[b]);
        if (!too_small || BUCKETS[b] == cached) out[n++] = BUCKETS[b];
    }
    return n;
}

/* @param tried ends with 0 @param out [MAX_DEPTHS] @return how many */
static uint32_t depths(const stw_cost *cost, const uint32_t *tried, bool streams, uint32_t *out) {
    uint32_t fixed = cost->job->run->prefetch.depth, n = 0;
    if (fixed != STW_AUTO || !streams) {
        out[0] = fixed != STW_AUTO ? fixed : 1;
        return 1;
    }
    bool roomy = !cost->by_group && is_roomy(cost, ROOMY_BUCKET);
    for (const uint32_t *depth = tried; *depth != 0 && n < MAX_DEPTHS; depth++)
        if (!roomy || *depth >= ROOMY_DEPTH || depth[1] == 0) out[n++] = *depth;
    return n;
}

static stw_status add_rings(stw_cost *cost, const stw_engine *engine, bool seconds,
                            stw_error *err) {
    bool streams = false;
    for (uint32_t p = 0; p < cost->n_places; p++)
        streams = streams || stw_place_slot_element_bytes(cost->job, &cost->places[p]) > 0;
    uint64_t sizes[N_BUCKETS];
    uint32_t counts[MAX_DEPTHS];
    uint32_t n_sizes = bucket_sizes(cost, streams, sizes);
    uint32_t n_depths =
        depths(cost, engine->depths != NULL ? engine->depths : DEPTHS, streams, counts);
    cost->rings =
        stw_pool_array(cost->pool, (size_t)n_depths * n_sizes + N_AHEAD, sizeof *cost->rings);
    if (cost->rings == NULL) return stw_planner_no_memory(err);
    for (uint32_t d = 0; d < n_depths; d++)
        for (uint32_t b = 0; b < n_sizes; b++) {
            uint64_t most = n_sizes == 1 ? 3 * sizes[b] : 0;
            if (most < STAGING_BYTES) most = STAGING_BYTES;
            if (n_depths > 1 && counts[d] * sizes[b] > most) continue;
            cost->rings[cost->n_rings++] = (stw_cost_ring){counts[d], sizes[b]};
        }
    const bool large = seconds && engine->spec.own_process && n_depths > 1 && n_sizes > 1;
    for (size_t i = 0; i < N_AHEAD && large; i++)
        if (stw_times(AHEAD[i].depth, AHEAD[i].bucket_bytes) <=
            cost->job->cluster->gpu.memory_bytes / AHEAD_PART)
            cost->rings[cost->n_rings++] = AHEAD[i];
    return STW_STATUS_OK;
}

/* Does the engine refuse this policy? */
static bool act_refused(const stw_job *job, stw_act act) {
    const stw_engine_refusal *r = job->engine->spec.refuses;
    for (; r != NULL && r->key != NULL; r++)
        if (strcmp(r->key, "placement.activations") == 0 && strcmp(r->word, stw_act_name(act)) == 0)
            return true;
    return false;
}

/* May blocks of a text model's transformer group take this policy? What a run says of recomputation
 * it says of activations: none and selective keep them, full recomputes them. Where it leaves both
 * to the planner, they are offloaded by Stowage's own engine alone: of a framework that would be
 * code that the user has to add, and so has to ask for. */
static bool act_admitted(const stw_job *job, stw_act act) {
    const stw_run_spec *run = job->run;
    if (act_refused(job, act)) return false;
    if (!job->model->facts_known) return act == STW_ACT_KEEP; /* nothing is known to move */
    if (job->engine->acts != 0 && (job->engine->acts & 1u << act) == 0) return false;
    if (run->placement.activations != STW_AUTO) return run->placement.activations == (uint32_t)act;
    if (run->recompute.granularity == 1) return act == STW_ACT_RECOMPUTE;
    if (run->recompute.granularity != STW_AUTO) return act == STW_ACT_KEEP;
    return act != STW_ACT_OFFLOAD || job->engine->spec.own_process;
}

/* Blocks that keep nothing have nothing to choose. The first stage need not have all groups. */
static bool saves(const stw_build *b, uint32_t group) {
    const stw_saved_acts *kept = &b->saved[STW_ACT_KEEP];
    if (b->cost->job->engine->stage != NULL) return true;
    for (uint32_t i = 0; i < kept->n; i++)
        if (b->cost->job->model->blocks[kept->blocks[i]].group == group && kept->gpu[i] > 0)
            return true;
    return false;
}

/* Every chunk of a pipeline recomputes as many blocks of a group, where that can be. */
static uint32_t blocks_together(const stw_job *job, uint32_t blocks) {
    const uint32_t chunks = job->run->parallel.pp * job->run->parallel.vpp;
    return job->engine->stage != NULL && chunks > 1 && blocks % chunks == 0 ? chunks : 1;
}

static stw_status add_acts(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const stw_act order[] = {STW_ACT_OFFLOAD, STW_ACT_RECOMPUTE, STW_ACT_KEEP};
    stw_cost *cost = b->cost;
    const stw_model *model = cost->job->model;
    const stw_program *program = NULL;
    cost->acts =
        stw_pool_array(cost->pool, (size_t)model->n_groups * STW_N_ACTS, sizeof *cost->acts);
    if (cost->acts == NULL) return stw_planner_no_memory(err);
    STW_TRY(stw_build_program(b, 0, STW_ACT_KEEP, &program, err));
    STW_TRY(stw_read_saved(cost->job, program, b->pool, &b->saved[STW_ACT_KEEP], err));
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_group *group = &model->groups[g];
        if (!group->facts.transformer) continue;
        const uint32_t before = cost->n_acts, each = blocks_together(cost->job, group->count);
        bool any = saves(b, g);
        for (uint32_t i = 0; i < sizeof order / sizeof order[0]; i++)
            if (any ? act_admitted(cost->job, order[i]) : order[i] == STW_ACT_KEEP)
                cost->acts[cost->n_acts++] = (stw_cost_act){g, order[i], group->count / each, each};
        if (cost->n_acts == before) {
            status = stw_fail(err, STW_STATUS_BAD_INPUT, "placement.activations",
                              "no policy is left for the blocks of %s", group->name);
            goto out;
        }
    }
    b->stash_bytes = stw_pool_array(b->pool, cost->n_acts, sizeof *b->stash_bytes);
    if (b->stash_bytes == NULL) return stw_planner_no_memory(err);
out:
    return status;
}

static void add_loads(stw_cost *cost) {
    const stw_engine *engine = cost->job->engine;
    uint32_t fixed = cost->job->run->load.method;
    if (fixed == STW_AUTO && engine->usual_load != NULL)
        fixed = (uint32_t)engine->usual_load(cost->job->run);
    for (uint32_t l = 0; l < STW_N_LOADS; l++)
        if (fixed == l || (fixed == STW_AUTO && l != STW_LOAD_ALL_RANKS_GPU))
            cost->loads[cost->n_loads++] = (stw_load)l;
}

static stw_status measure_staging(stw_build *b, stw_error *err) {
    const stw_cost *cost = b->cost;
    uint32_t n = cost->job->n_kinds * cost->n_loads, at = 0;
    uint64_t whole_bytes = 0;
    b->staging_bytes = stw_pool_array(b->pool, (size_t)n * STW_N_TIERS, sizeof *b->staging_bytes);
    if (b->staging_bytes == NULL) return stw_planner_no_memory(err);
    for (uint32_t k = 0; k < cost->job->n_kinds; k++)
        for (uint32_t l = 0; l < cost->n_loads; l++)
            for (int t = 0; t < STW_N_TIERS; t++, at++)
                if (cost->job->kinds[k].home == 0)
                    b->staging_bytes[at] = stw_load_method_staging_bytes(
                        cost->job, cost->loads[l], k, (stw_tier)t, &whole_bytes);
    return STW_STATUS_OK;
}

/* ---- what programs show ---- */

/* Is a place read in the whole space? Where it takes all units, and where an optimizer works in a
 * framework's process: that has bytes of its own in a step, which a shortened model does not show.
 */
static bool reads_whole(const stw_build *b) {
    return b->cost->whole || stw_engine_steps_inside(&b->cost->job->engine->spec);
}

/* The program of all units in one place. Of a place that is read in the whole space the state grows
 * with units, and all else is there once. Others are read at two lengths, one twice
 * the other, with buckets enough for one to wait for another's slot. */
typedef struct place_search {
    stw_build *build;
    uint32_t kind, place, ring;
    bool crowded;
} place_search;

static stw_status read_act(const place_search *s, const stw_job *job, stw_act act,
                           stw_byte_reading *bytes, stw_flow *flow, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = s->build->cost;
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    const stw_simple simple = {.job = job,
                               .kind = s->kind,
                               .place = cost->places[s->place],
                               .act = act,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = cost->by_group,
                               .depth = cost->rings[s->ring].depth,
                               .bucket_bytes = cost->rings[s->ring].bucket_bytes,
                               .phases =
                                   s->build->seconds ? ~(1u << STW_PHASE_LOAD) : STW_NO_PHASES};
    STW_TRY(stw_simple_build(&simple, &layout, &program, err));
    stw_read_bytes(job, layout, program, bytes);
    if (!stw_build_simulates(s->build)) {
        stw_read_flow(job, program, s->crowded, flow);
    } else if (stw_kind_is_timed(job, s->kind)) {
        double seconds, *step_s = &s->build->step_s[s->place * cost->n_rings + s->ring];
        STW_TRY(stw_read_seconds(job, program, STW_PHASE_OPTIMIZER_STEP, s->build->simulate,
                                 &seconds, err));
        if (seconds > *step_s) *step_s = seconds;
    }
out:
    stw_layout_free(layout);
    stw_program_free(program);
    return status;
}

/* What a backward leaves gathered for the step depends on whether blocks ran forward again in it.
 */
static stw_status read_program(const place_search *s, const stw_job *job, stw_byte_reading *bytes,
                               stw_flow *flow, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_byte_reading again;
    stw_flow unused;
    bool recomputes = false;
    STW_TRY(read_act(s, job, STW_ACT_KEEP, bytes, flow, err));
    for (uint32_t a = 0; a < s->build->cost->n_acts; a++)
        recomputes = recomputes || s->build->cost->acts[a].act == STW_ACT_RECOMPUTE;
    if (!recomputes || !reads_whole(s->build)) return STW_STATUS_OK;
    STW_TRY(read_act(s, job, STW_ACT_RECOMPUTE, &again, &unused, err));
    for (int t = 0; t < STW_N_MEMORIES; t++)
        bytes->all[STW_AT_STEP][t] =
            stw_max_u64(bytes->all[STW_AT_STEP][t], again.all[STW_AT_STEP][t]);
out:
    return status;
}

static stw_status read_shortened(const place_search *s, uint64_t params, stw_byte_reading *bytes,
                                 stw_flow *flow, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_average_piece piece = {1, STW_DTYPE_F32, 1};
    stw_job *job = NULL;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_planner_no_memory(err);
    STW_TRY(stw_job_shortened(s->build->cost->job, params, 1, &piece, pool, &job, err));
    STW_TRY(read_program(s, job, bytes, flow, err));
out:
    stw_pool_free(pool);
    return status;
}

/* @param params by which the second length is the longer one */
static void split(const place_search *s, const stw_byte_reading *near, const stw_byte_reading *far,
                  uint64_t params, stw_place_bytes *out) {
    const stw_build *b = s->build;
    const uint64_t unit_params = b->cost->job->unit_params;
    const uint64_t placed = stw_max_u64(stw_job_placed_params(b->cost->job, s->kind), 1);
    for (int at = 0; at < STW_N_INSTANTS; at++)
        for (int t = 0; t < STW_N_MEMORIES; t++) {
            uint64_t all = far->all[at][t], state = far->state[at][t];
            uint64_t growth = all > near->all[at][t] ? all - near->all[at][t] : 0;
            out->unit[at][t] = b->cost->whole   ? stw_div_up_u64(state, b->cost->n_units)
                               : reads_whole(b) ? stw_ratio_up(state, unit_params, placed)
                                                : stw_ratio_up(growth, unit_params, params);
            uint64_t grown = reads_whole(b) ? state : 2 * growth;
            out->once[at][t] = all > grown ? all - grown : 0;
        }
}

/* What passes through no ring is the same under every ring option, where it is read whole. */
static void copy_reading(const place_search *s) {
    stw_build *b = s->build;
    uint32_t first = s->place * b->cost->n_rings;
    stw_place_bytes *bytes = &b->bytes[s->kind * b->cost->n_places * b->cost->n_rings];
    bytes[first + s->ring] = bytes[first];
    b->flows[first + s->ring] = b->flows[first];
    b->step_s[first + s->ring] = b->step_s[first];
}

static stw_status read_place(const place_search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_build *b = s->build;
    stw_cost *cost = b->cost;
    const stw_cost_ring *ring = &cost->rings[s->ring];
    const stw_place *place = &cost->places[s->place];
    uint32_t at = s->place * cost->n_rings + s->ring;
    if (reads_whole(b) && s->ring > 0 && stw_place_slot_element_bytes(cost->job, place) == 0) {
        copy_reading(s);
        return STW_STATUS_OK;
    }
    uint64_t params =
        stw_times(ring->depth + 2, stw_place_bucket_params(cost->job, place, ring->bucket_bytes));
    stw_byte_reading near, far;
    stw_flow flow = {0};
    if (reads_whole(b)) {
        STW_TRY(read_program(s, cost->job, &far, &flow, err));
        near = far;
    } else {
        STW_TRY(read_shortened(s, params, &near, &flow, err));
        STW_TRY(read_shortened(s, stw_times(2, params), &far, &flow, err));
    }
    split(s, &near, &far, params, &b->bytes[s->kind * cost->n_places * cost->n_rings + at]);
    if (s->kind == cost->job->largest) b->flows[at] = flow;
    b->context_bytes = far.context_bytes;
    b->process_bytes = far.process_bytes;
    b->page_tables = b->page_tables || far.page_tables;
    b->instants[s->kind] |= far.instants;
    cost->place_uses[s->place] |= far.rings;
    /* what streams without a ring of the layout depends on the ring option all the same */
    if (far.rings == 0 && cost->n_rings > 1 && stw_place_slot_element_bytes(cost->job, place) > 0)
        cost->place_uses[s->place] |= 1u << STW_USE_OWN(s->place);
out:
    return status;
}

/* A role with nodes of its own holds the same whatever is decided. */
static stw_status read_role(const place_search *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_build *b = s->build;
    const size_t per_kind = (size_t)b->cost->n_places * b->cost->n_rings;
    stw_place_bytes *bytes = &b->bytes[s->kind * per_kind];
    stw_byte_reading reading;
    stw_flow flow;
    STW_TRY(read_program(s, b->cost->job, &reading, &flow, err));
    memcpy(bytes->once, reading.all, sizeof reading.all);
    for (int at = 0; at < STW_N_INSTANTS; at++)
        bytes->once[at][STW_TIER_HOST] =
            stw_plus(bytes->once[at][STW_TIER_HOST], reading.process_bytes);
    for (size_t i = 1; i < per_kind; i++) bytes[i] = bytes[0];
    b->instants[s->kind] = reading.instants;
out:
    return status;
}

/* Does a plan that uses several places update on the CPU both in the ring and outside it? */
static bool is_crowded(const stw_build *b) {
    bool outside = false;
    for (uint32_t p = 0; p < b->cost->n_places; p++) {
        const stw_flow *flow = stw_build_flow(b, p, 0);
        outside = outside || (flow->updates_on_cpu && flow->cpu_ring_bytes == 0);
    }
    return outside && !b->cost->whole;
}

/* Shorter ranks hold no more than the largest per unit; only what takes all units differs. */
static stw_status read_places(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    uint32_t kinds = cost->job->n_kinds;
    size_t per_kind = (size_t)cost->n_places * cost->n_rings;
    b->bytes = stw_pool_array(b->pool, kinds * per_kind, sizeof *b->bytes);
    b->flows = stw_pool_array(b->pool, per_kind, sizeof *b->flows);
    b->step_s = stw_pool_array(b->pool, per_kind, sizeof *b->step_s);
    b->instants = stw_pool_array(b->pool, kinds, sizeof *b->instants);
    b->best_flows = stw_pool_array(b->pool, per_kind, sizeof *b->flows);
    if (b->bytes == NULL || b->flows == NULL || b->best_flows == NULL || b->step_s == NULL ||
        b->instants == NULL)
        return stw_planner_no_memory(err);
    place_search s = {.build = b};
    for (s.kind = 0; s.kind < kinds; s.kind++)
        if (cost->job->kinds[s.kind].home != 0) STW_TRY(read_role(&s, err));
    for (int turn = 0; turn < 2; turn++) {
        for (s.kind = 0; s.kind < kinds; s.kind++)
            for (s.place = 0; s.place < cost->n_places; s.place++)
                for (s.ring = 0; s.ring < cost->n_rings; s.ring++)
                    if (s.kind == cost->job->largest ||
                        (cost->whole && cost->job->kinds[s.kind].home == 0))
                        STW_TRY(read_place(&s, err));
        if (turn == 0) memcpy(b->best_flows, b->flows, per_kind * sizeof *b->flows);
        s.crowded = b->seconds && is_crowded(b);
        if (!s.crowded) break;
    }
    for (uint32_t k = 0; !cost->whole && k < kinds; k++)
        if (k != cost->job->largest && cost->job->kinds[k].home == 0) {
            b->instants[k] = b->instants[cost->job->largest];
            memcpy(&b->bytes[k * per_kind], &b->bytes[cost->job->largest * per_kind],
                   per_kind * sizeof *b->bytes);
        }
out:
    return status;
}

/* ---- the problem ---- */

static stw_status add_options(stw_build *b, const stw_engine *engine, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = b->cost;
    STW_TRY(add_places(cost, engine, err));
    STW_TRY(add_rings(cost, engine, b->seconds, err));
    add_loads(cost);
    STW_TRY(measure_staging(b, err));
    b->programs = stw_pool_array(b->pool, (size_t)cost->n_places * STW_N_ACTS, sizeof *b->programs);
    if (b->programs == NULL) return stw_planner_no_memory(err);
    STW_TRY(add_acts(b, err));
out:
    return status;
}

static stw_status add_rows(stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool forward = b->cost->forward_backward_known;
    STW_TRY(read_places(b, err));
    STW_TRY(stw_rows_add_gpu(b, err));
    if (forward && b->cost->job->engine->stage != NULL)
        STW_TRY(stw_rows_add_stages(b, err));
    else if (forward)
        STW_TRY(stw_rows_add_forward_bytes(b, err));
    if (forward) STW_TRY(stw_rows_add_mixed(b, err));
    STW_TRY(stw_rows_add_nodes(b, err));
    if (!b->seconds) goto out;
    if (stw_build_simulates(b)) {
        STW_TRY(stw_rows_add_whole(b, err));
    } else {
        STW_TRY(stw_rows_add_step(b, err));
        STW_TRY(stw_rows_add_sharing(b, err));
        STW_TRY(stw_rows_add_step_proof(b, err));
        if (forward) STW_TRY(stw_rows_add_forward_seconds(b, err));
    }
    STW_TRY(stw_rows_add_loads(b, err));
out:
    return status;
}

/* The most that any choice could make of a row, in doubles, which do not overflow. */
static double most_bytes(const stw_cost *cost, const stw_byte_row *row) {
    double bytes = (double)row->constant_bytes, most = 0;
    for (uint32_t p = 0; p < cost->n_places; p++)
        if ((double)row->unit_bytes[p] > most) most = (double)row->unit_bytes[p];
    bytes += most * (double)cost->n_units;
    for (uint32_t i = 0; i < cost->n_uses * cost->n_rings; i++) bytes += (double)row->ring_bytes[i];
    for (uint32_t a = 0; a < cost->n_acts; a++)
        bytes += (double)row->act_bytes[a] * cost->acts[a].blocks + (double)row->act_once_bytes[a];
    for (uint32_t l = 0; l < cost->n_loads; l++) bytes += (double)row->load_bytes[l];
    return bytes;
}

/* Rows are summed without a check: none may come near what 64 bits hold. */
static stw_status check_sizes(const stw_cost *cost, stw_error *err) {
    const stw_run_spec *run = cost->job->run;
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (most_bytes(cost, row) < MOST_BYTES) continue;
        return stw_fail(err, STW_STATUS_BAD_INPUT, stw_phase_name(row->phase),
                        "found more than 2^62 bytes of %s, expected less: reduce "
                        "batch.micro_batch (%llu), batch.seq_len (%llu) or the model (%llu "
                        "parameters)",
                        row->resource, (unsigned long long)run->batch.micro_batch,
                        (unsigned long long)run->batch.seq_len,
                        (unsigned long long)cost->job->model->params);
    }
    return STW_STATUS_OK;
}

static void end_build(stw_build *b) {
    for (uint32_t i = 0; b->programs != NULL && i < b->cost->n_places * STW_N_ACTS; i++)
        stw_program_free(b->programs[i]);
    stw_pool_free(b->pool);
}

static void fill_job(stw_cost *cost, const stw_job *job, const stw_engine *engine) {
    cost->job = job;
    cost->n_units = job->n_units;
    cost->whole = engine->whole;
    cost->by_group = engine->prefetch_by_group;
    cost->forward_backward_known = job->model->facts_known;
    cost->stretch_weight[STW_STRETCH_NORM] = cost->stretch_weight[STW_STRETCH_STEP] =
        (double)stw_job_passes(job, STW_PHASE_OPTIMIZER_STEP);
    cost->stretch_weight[STW_STRETCH_FORWARD] = cost->stretch_weight[STW_STRETCH_BACKWARD] =
        (double)stw_job_passes(job, STW_PHASE_FORWARD_BACKWARD);
    for (int u = 0; u < STW_N_UPDATES; u++)
        cost->update_units[u] = stw_job_update_units(job, (stw_update)u);
}

/* What of a problem is asked for. */
typedef enum part { OPTIONS, BYTES, ROUGH, ALL } part;

static stw_status build_problem(const stw_job *job, part asked, stw_planner_simulate simulate,
                                stw_cost **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_build b = {.pool = stw_pool_new(),
                   .seconds = asked >= ROUGH,
                   .rough = asked == ROUGH,
                   .simulate = simulate};
    stw_pool *pool = stw_pool_new();
    if (pool != NULL) b.cost = stw_pool_alloc(pool, sizeof *b.cost);
    if (b.cost == NULL || b.pool == NULL) {
        stw_pool_free(pool);
        stw_pool_free(b.pool);
        return stw_planner_no_memory(err);
    }
    b.cost->pool = pool;
    const stw_engine *engine = stw_engine_of(job->run);
    if (engine == NULL) {
        status = stw_fail(err, STW_STATUS_NOT_BUILT_IN, "engine",
                          "found '%s', which this build cannot plan",
                          stw_run_spec_engine(job->run)->name);
        goto out;
    }
    fill_job(b.cost, job, engine);
    STW_TRY(add_options(&b, engine, err));
    if (asked != OPTIONS) STW_TRY(add_rows(&b, err));
    STW_TRY(check_sizes(b.cost, err));
out:
    end_build(&b);
    if (status == STW_STATUS_OK)
        *out = b.cost;
    else
        stw_cost_free(b.cost);
    return status;
}

stw_status stw_cost_new(const stw_job *job, stw_planner_simulate simulate, stw_cost **out,
                        stw_error *err) {
    return build_problem(job, ALL, simulate, out, err);
}

stw_status stw_cost_new_rough(const stw_job *job, stw_planner_simulate simulate, stw_cost **out,
                              stw_error *err) {
    return build_problem(job, ROUGH, simulate, out, err);
}

stw_status stw_cost_new_bytes(const stw_job *job, stw_cost **out, stw_error *err) {
    return build_problem(job, BYTES, NULL, out, err);
}

stw_status stw_cost_new_options(const stw_job *job, stw_cost **out, stw_error *err) {
    return build_problem(job, OPTIONS, NULL, out, err);
}
