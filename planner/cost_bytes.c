/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of bytes, one per tier, phase and instant at which the walk of a program can peak. GPU rows
 * stand for the largest kind of rank, whose shards hold every other kind's; host rows for a kind of
 * node, all of whose ranks peak together. Forward and backward on the GPU: cost_backward.c. */
#include "core/checked.h"
#include "plan/engines/bytes.h"
#include "planner/cost.h"

#define EVERY_STATE ((1u << STW_N_STATE) - 1)
#define MOMENTS                                                                                    \
    ((1u << STW_COMPONENT_MASTER) | (1u << STW_COMPONENT_EXP_AVG) |                                \
     (1u << STW_COMPONENT_EXP_AVG_SQ))

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
}

/* ---- state ---- */

/* An engine that parks moments has them on the GPU during steps only, and on the host always. */
static bool parks(const stw_cost *cost, const stw_place *place) {
    return cost->engine->lazy_state && cost->job->run->park.moments &&
           place->update == STW_UPDATE_RESIDENT;
}

/* Bytes per parameter of the components in `mask` that a place keeps in a tier in a phase. */
static uint64_t element_bytes(const stw_cost *cost, const stw_place *place, stw_tier tier,
                              stw_phase phase, unsigned mask) {
    bool step = phase == STW_PHASE_OPTIMIZER_STEP || phase == STW_PHASE_FIRST_OPTIMIZER_STEP;
    uint64_t bytes = 0;
    for (unsigned c = 0; c < STW_N_STATE; c++) {
        stw_component component = (stw_component)c;
        if (!(mask & (1u << c))) continue;
        bool parked = parks(cost, place) && (MOMENTS & (1u << c));
        bool here = stw_place_tier(place, component) == tier;
        if (parked) here = tier == STW_TIER_GPU ? step : tier == STW_TIER_HOST;
        if (here) bytes += stw_job_element_bytes(cost->job, component);
    }
    return bytes;
}

/* One unit's bytes on a rank of a kind. A place that takes all units takes what the kind has. */
static uint64_t unit_bytes(const stw_cost *cost, uint32_t kind, uint64_t element) {
    const stw_job *job = cost->job;
    if (cost->engine->whole) return stw_div_up_u64(element * job->kinds[kind].params, job->n_units);
    return element * job->unit_params;
}

/* Which components exist in a phase: an engine with lazy state has only parameters at load. */
static unsigned state_mask(const stw_cost *cost, stw_phase phase) {
    if (!cost->engine->lazy_state || phase != STW_PHASE_LOAD) return EVERY_STATE;
    return 1u << STW_COMPONENT_PARAMS;
}

/* Every region may end in a page that is partly empty. */
static uint64_t alignment_bytes(const stw_cost *cost) {
    return (uint64_t)cost->n_places * STW_N_STATE * STW_ALIGN_BYTES;
}

/* ---- GPU ---- */

static uint64_t tables(uint64_t bytes) { return stw_div_up_u64(bytes, STW_PAGE_TABLE_SHARE); }

static uint64_t host_ring_bytes(const stw_cost *cost, const stw_place *place, uint32_t use,
                                uint32_t r) {
    const stw_cost_ring *ring = &cost->rings[r];
    return ring->depth *
           stw_ring_slot_bytes(cost->job, place, (stw_ring_kind)use, ring->bucket_bytes);
}

/* Of all kinds of rank. */
static uint64_t most_staging(const stw_cost *cost, stw_load load, stw_tier tier) {
    stw_decisions decisions = {.load = load};
    uint64_t most = 0;
    for (uint32_t k = 0; k < cost->job->n_kinds; k++)
        most = stw_max_u64(most, stw_load_staging_bytes(cost->job, &decisions, k, tier));
    return most;
}

/* Page tables of the host arena, which is there from the start: its parts one by one, each rounded
 * up, and one step more for the rounding of their sum. */
static void add_page_tables(const stw_cost *cost, stw_byte_row *row) {
    const stw_job *job = cost->job;
    if (!cost->engine->spec.executes || job->cluster->gpus == 0) return;
    row->constant_bytes += STW_PAGE_TABLE_STEP_BYTES + tables(alignment_bytes(cost));
    for (uint32_t p = 0; p < cost->n_places; p++) {
        const stw_place *place = &cost->places[p];
        uint64_t element = element_bytes(cost, place, STW_TIER_HOST, row->phase, EVERY_STATE);
        row->unit_bytes[p] += tables(unit_bytes(cost, job->largest, element));
        for (uint32_t u = STW_RING_HOST_DISK; u <= STW_RING_HOST_CPU; u++)
            for (uint32_t r = 0; (cost->place_uses[p] & (1u << u)) && r < cost->n_rings; r++) {
                uint64_t *ring = &row->ring_bytes[u * cost->n_rings + r];
                *ring = stw_max_u64(*ring, tables(host_ring_bytes(cost, place, u, r)));
            }
    }
    for (uint32_t l = 0; l < cost->n_loads; l++)
        row->load_bytes[l] += tables(most_staging(cost, cost->loads[l], STW_TIER_HOST));
}

stw_byte_row *stw_cost_gpu_row(stw_cost *cost, stw_phase phase, bool grads, const char *name) {
    const stw_job *job = cost->job;
    unsigned mask = state_mask(cost, phase) & ~(grads ? 0u : 1u << STW_COMPONENT_GRADS);
    stw_byte_row *row = stw_cost_byte_row(cost, phase, STW_TIER_GPU, "gpu memory",
                                          job->cluster->gpu.memory_bytes, "gpu_%s", name);
    if (row == NULL) return NULL;
    row->constant_bytes = job->cluster->gpu.context_bytes + alignment_bytes(cost);
    if (phase != STW_PHASE_LOAD) row->constant_bytes += cost->kept_gpu_bytes;
    if (job->world > 1)
        row->constant_bytes += job->cluster->gpu.comm_bytes + STW_COMM_SCRATCH_BYTES;
    for (uint32_t p = 0; p < cost->n_places; p++)
        row->unit_bytes[p] = unit_bytes(
            cost, job->largest, element_bytes(cost, &cost->places[p], STW_TIER_GPU, phase, mask));
    add_page_tables(cost, row);
    return row;
}

static stw_status add_gpu_load(stw_cost *cost, stw_error *err) {
    stw_byte_row *row = stw_cost_gpu_row(cost, STW_PHASE_LOAD, true, "load");
    if (row == NULL) return no_memory(err);
    for (uint32_t l = 0; l < cost->n_loads; l++)
        row->load_bytes[l] += most_staging(cost, cost->loads[l], STW_TIER_GPU);
    return STW_STATUS_OK;
}

static stw_status add_gpu_step(stw_cost *cost, stw_error *err) {
    stw_byte_row *row = stw_cost_gpu_row(cost, STW_PHASE_OPTIMIZER_STEP, true, "step");
    if (row == NULL) return no_memory(err);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            uint64_t bytes = cost->engine->window_bytes(
                cost->job, &cost->places[p], cost->rings[r].depth, cost->rings[r].bucket_bytes);
            uint32_t use = cost->engine->whole ? p : (uint32_t)STW_RING_GPU;
            uint64_t *ring = &row->ring_bytes[use * cost->n_rings + r];
            if (cost->place_uses[p] & (1u << use)) *ring = stw_max_u64(*ring, bytes);
        }
    return STW_STATUS_OK;
}

/* ---- nodes ---- */

/* Rings on the host, of all ranks of a node; places share them. */
static void add_host_rings(const stw_cost *cost, uint64_t ranks, stw_byte_row *row) {
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t u = STW_RING_HOST_DISK; u <= STW_RING_HOST_CPU; u++) {
            if (!(cost->place_uses[p] & (1u << u))) continue;
            for (uint32_t r = 0; r < cost->n_rings; r++) {
                uint64_t *ring = &row->ring_bytes[u * cost->n_rings + r];
                uint64_t bytes = host_ring_bytes(cost, &cost->places[p], u, r);
                *ring = stw_max_u64(*ring, ranks * bytes);
            }
        }
}

/* Rounding of page-locked tensors: of the places of an engine that streams by group. */
static stw_status add_rounding(const stw_cost *cost, uint32_t kind, uint64_t ranks,
                               stw_byte_row *row, stw_error *err) {
    uint64_t rounding = 0;
    stw_status status = stw_moments_rounding_bytes(cost->job, kind, &rounding, err);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            if (cost->places[p].update == STW_UPDATE_STREAM)
                row->ring_bytes[p * cost->n_rings + r] += ranks * rounding;
    return status;
}

/* What one kind of rank adds to its node in a phase. */
static void add_rank(const stw_cost *cost, uint32_t kind, uint64_t ranks, stw_byte_row *row) {
    const stw_job *job = cost->job;
    unsigned mask = state_mask(cost, row->phase);
    for (uint32_t p = 0; p < cost->n_places; p++) {
        const stw_place *place = &cost->places[p];
        uint64_t element = element_bytes(cost, place, row->tier, row->phase, mask);
        if (row->tier == STW_TIER_NVME) element *= stw_nvme_copies(job);
        row->unit_bytes[p] += ranks * unit_bytes(cost, kind, element);
    }
    if (row->tier == STW_TIER_NVME) return;
    if (!row->page_locked) row->constant_bytes += ranks * job->cluster->host.process_bytes;
    row->constant_bytes += ranks * alignment_bytes(cost);
    if (row->phase == STW_PHASE_LOAD)
        for (uint32_t l = 0; l < cost->n_loads; l++) {
            stw_decisions decisions = {.load = cost->loads[l]};
            row->load_bytes[l] +=
                ranks * stw_load_staging_bytes(job, &decisions, kind, STW_TIER_HOST);
        }
    if (row->phase == STW_PHASE_FORWARD_BACKWARD)
        for (uint32_t a = 0; a < cost->n_acts; a++)
            if (cost->acts[a].act == STW_ACT_OFFLOAD)
                row->act_bytes[a] +=
                    ranks * stw_activation_bytes(job, cost->acts[a].group, STW_ACT_KEEP);
}

static stw_status add_node_row(stw_cost *cost, uint32_t node_kind, stw_tier tier, stw_phase phase,
                               bool page_locked, uint64_t limit_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = cost->job;
    const char *resource = tier == STW_TIER_NVME ? "nvme"
                           : page_locked         ? "page-locked memory"
                                                 : "host memory";
    stw_byte_row *row = stw_cost_byte_row(cost, phase, tier, resource, limit_bytes, "%s_%s_n%u",
                                          tier == STW_TIER_NVME ? "nvme"
                                          : page_locked         ? "locked"
                                                                : "host",
                                          stw_phase_name(phase), node_kind);
    if (row == NULL) return no_memory(err);
    row->page_locked = page_locked;
    row->node_kind = node_kind;
    uint64_t all_ranks = 0;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        uint64_t ranks = job->node_kinds[node_kind].kind_ranks[k];
        if (ranks == 0) continue;
        all_ranks += ranks;
        add_rank(cost, k, ranks, row);
        if (tier == STW_TIER_HOST && cost->engine->whole && phase != STW_PHASE_LOAD)
            STW_TRY(add_rounding(cost, k, ranks, row, err));
    }
    if (tier == STW_TIER_HOST && !cost->engine->whole && phase == STW_PHASE_OPTIMIZER_STEP)
        add_host_rings(cost, all_ranks, row);
out:
    return status;
}

static stw_status add_node(stw_cost *cost, uint32_t node_kind, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cluster *cluster = cost->job->cluster;
    static const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FORWARD_BACKWARD,
                                       STW_PHASE_OPTIMIZER_STEP};
    for (int locked = 0; locked < 2; locked++)
        for (uint32_t i = 0; i < 3; i++) {
            if (phases[i] == STW_PHASE_FORWARD_BACKWARD && !cost->forward_backward_known) continue;
            uint64_t limit =
                locked ? cluster->host.page_lock_limit_bytes : stw_cluster_host_capacity(cluster);
            if (locked && limit == UINT64_MAX) continue;
            STW_TRY(add_node_row(cost, node_kind, STW_TIER_HOST, phases[i], locked, limit, err));
        }
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (stw_place_disk_element_bytes(cost->job, &cost->places[p]) > 0) {
            STW_TRY(add_node_row(cost, node_kind, STW_TIER_NVME, STW_PHASE_OPTIMIZER_STEP, false,
                                 cluster->nvme.capacity_bytes, err));
            break;
        }
out:
    return status;
}

stw_status stw_cost_add_bytes(stw_cost *cost, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(add_gpu_load(cost, err));
    STW_TRY(add_gpu_step(cost, err));
    if (cost->forward_backward_known) STW_TRY(stw_cost_add_backward(cost, err));
    for (uint32_t n = 0; n < cost->job->n_node_kinds; n++) STW_TRY(add_node(cost, n, err));
out:
    return status;
}
