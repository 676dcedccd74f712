/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds of the optimizer step: every resource's and every copy stream's sum, and the ring
 * rows. A slot is taken from the moment its bucket begins to move in until it has moved out, so a
 * ring of `depth` slots passes no more than depth buckets per bucket's way through:
 * T >= sum of ways / depth, and the last bucket still has the rest of its way to go when the first
 * of its stages is done. Without these rows depth 1 would always win. */
#include <string.h>

#include "core/checked.h"
#include "plan/program/demand.h"
#include "planner/cost.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
}

static uint64_t bucket_params(const stw_cost *cost, const stw_place *place,
                              const stw_cost_ring *ring) {
    const stw_job *job = cost->job;
    if (!cost->engine->prefetch_by_group)
        return stw_place_bucket_params(job, place, ring->bucket_bytes);
    return stw_div_up_u64(job->kinds[job->largest].params, stw_prefetch_groups(job));
}

/* Buckets that are in flight at once: the window of an engine that prefetches by group holds the
 * group at work, `depth` ahead, and one that is on its way out. */
static uint32_t in_flight(const stw_cost *cost, const stw_cost_ring *ring) {
    return cost->engine->prefetch_by_group ? ring->depth + 2 : ring->depth;
}

/* @param cpu between the GPU and a CPU bucket's slot */
static stw_stream stream_of(stw_tier from, stw_tier to, bool cpu) {
    if (from == STW_TIER_NVME) return STW_STREAM_DISK;
    if (to == STW_TIER_NVME) return STW_STREAM_DISK_OUT;
    if (to == STW_TIER_GPU) return cpu ? STW_STREAM_FROM_CPU : STW_STREAM_H2D;
    return cpu ? STW_STREAM_TO_CPU : STW_STREAM_D2H;
}

/* @param ring_bytes of the ring of CPU buckets that it goes to or comes from; 0: none */
static double add_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t ring_bytes,
                       uint64_t bytes, stw_bucket_flow *flow, double *side_resource_s) {
    stw_demand demand;
    if (ring_bytes > 0)
        stw_demand_cached_copy(job, from, to, bytes, ring_bytes, &demand);
    else
        stw_demand_copy(job, from, to, bytes, &demand);
    double alone = stw_demand_alone_s(&demand);
    stw_stream stream = stream_of(from, to, ring_bytes > 0);
    flow->stream_s[stream] += alone;
    flow->startup_s += demand.startup_s;
    for (int r = 0; r < STW_N_RESOURCES; r++) {
        flow->resource_s[r] += demand.seconds[r];
        if (side_resource_s != NULL) side_resource_s[r] += demand.seconds[r];
    }
    return alone;
}

/* A component on its way into the update's tier (or out of it), through the host from NVMe. */
static void add_component(const stw_job *job, const stw_place *place, stw_component component,
                          uint64_t bytes, uint64_t ring_bytes, stw_bucket_flow *flow) {
    stw_tier work = stw_place_update_tier(place), home = stw_place_tier(place, component);
    bool disk = home == STW_TIER_NVME;
    if (disk) home = STW_TIER_HOST;
    if (stw_place_moves_up(job, place, component)) {
        if (disk) flow->read_s += add_copy(job, STW_TIER_NVME, home, 0, bytes, flow, NULL);
        if (home != work)
            flow->in_s += add_copy(job, home, work, ring_bytes, bytes, flow, flow->in_resource_s);
    }
    if (stw_place_moves_down(job, place, component)) {
        if (home != work)
            flow->out_s += add_copy(job, work, home, ring_bytes, bytes, flow, flow->out_resource_s);
        if (disk) flow->write_s += add_copy(job, home, STW_TIER_NVME, 0, bytes, flow, NULL);
    }
}

/* Share of its speed alone that a read keeps while a write runs too, and the other way round. */
static double disk_level(const stw_job *job) {
    double used = 0;
    for (int write = 0; write < 2; write++) {
        stw_demand demand;
        const uint64_t some = 1ull << 30; /* speeds do not depend on it */
        stw_demand_copy(job, write ? STW_TIER_HOST : STW_TIER_NVME,
                        write ? STW_TIER_NVME : STW_TIER_HOST, some, &demand);
        double alone = stw_demand_alone_s(&demand);
        if (alone > 0) used += demand.seconds[STW_RESOURCE_DISK] / alone;
    }
    return used > 1 ? 1 / used : 1;
}

/* Reads and writes share the disk alike, so that the shorter ones end first and what is left of the
 * others has the disk alone: not all of it is done at the rate of both. */
static void share_disk(const stw_job *job, stw_bucket_flow *flow) {
    if (flow->read_s <= 0 || flow->write_s <= 0) return;
    bool reads_less = flow->read_s < flow->write_s;
    double less = reads_less ? flow->read_s : flow->write_s;
    double more = reads_less ? flow->write_s : flow->read_s;
    flow->resource_s[STW_RESOURCE_DISK] = less / disk_level(job) + more - less;
}

/* Without a ring: state of CPU buckets that all lies on the host. */
static bool updates_elsewhere(const stw_cost *cost) {
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == STW_UPDATE_CPU &&
            !stw_place_uses_ring(cost->job, &cost->places[p], STW_RING_HOST_CPU))
            return true;
    return false;
}

uint64_t stw_cost_ring_bytes(const stw_cost *cost, const stw_place *place,
                             const stw_cost_ring *ring) {
    uint64_t bytes = stw_cpu_ring_bytes(cost->job, place, ring->depth, ring->bucket_bytes);
    return bytes > 0 && updates_elsewhere(cost) ? UINT64_MAX : bytes;
}

void stw_bucket_flow_of(const stw_cost *cost, const stw_place *place, const stw_cost_ring *ring,
                        stw_bucket_flow *flow) {
    const stw_job *job = cost->job;
    memset(flow, 0, sizeof *flow);
    uint64_t params = bucket_params(cost, place, ring);
    flow->per_unit = (double)job->unit_params / (double)params;
    uint64_t ring_bytes = stw_cost_ring_bytes(cost, place, ring);
    for (int c = 0; c < STW_N_STATE; c++) {
        uint64_t bytes = params * stw_job_element_bytes(job, (stw_component)c);
        if (bytes > 0) add_component(job, place, (stw_component)c, bytes, ring_bytes, flow);
    }
    share_disk(job, flow);
    stw_demand demand;
    stw_demand_update(job, place->update, params, ring_bytes, &demand);
    flow->update_s = stw_demand_alone_s(&demand);
    flow->stream_s[place->update == STW_UPDATE_CPU ? STW_STREAM_CPU : STW_STREAM_COMPUTE] +=
        flow->update_s;
    for (int r = 0; r < STW_N_RESOURCES; r++) flow->resource_s[r] += demand.seconds[r];
}

/* ---- fill and drain ---- */

static double idle(const double *side_resource_s, double side_s, stw_resource resource) {
    double used = side_resource_s[resource];
    return used > 0 && side_s > used ? side_s - used : 0;
}

/* Seconds that a resource has nothing of a ring to do: while the first bucket moves in, and while
 * the last is updated and moves out. Places with other work for it hide that, hence only for what
 * rings alone use. */
static double resource_fill(const stw_bucket_flow *flow, uint32_t use, stw_resource resource) {
    bool out = flow->out_resource_s[resource] > 0, in = flow->in_resource_s[resource] > 0;
    double inside = flow->in_s + flow->update_s + flow->out_s;
    switch (resource) {
    case STW_RESOURCE_PCIE_UP:
    case STW_RESOURCE_PCIE_DOWN:
    case STW_RESOURCE_DMA_UP:
    case STW_RESOURCE_DMA_DOWN:
        if (in && !out) return flow->update_s + flow->out_s;
        return out && !in ? flow->in_s + flow->update_s : 0;
    case STW_RESOURCE_PCIE:
    case STW_RESOURCE_DMA:
        return idle(flow->in_resource_s, flow->in_s, resource) +
               idle(flow->out_resource_s, flow->out_s, resource);
    case STW_RESOURCE_CPU:
        return use == STW_RING_HOST_CPU ? flow->in_s + flow->out_s : 0;
    case STW_RESOURCE_DISK:
        return use == STW_RING_HOST_DISK ? inside : 0;
    case STW_RESOURCE_DISK_READ:
        return use == STW_RING_HOST_DISK ? inside + flow->write_s : 0;
    case STW_RESOURCE_DISK_WRITE:
        return use == STW_RING_HOST_DISK ? flow->read_s + inside : 0;
    default:
        return 0;
    }
}

static double stream_fill(const stw_cost *cost, const stw_bucket_flow *flow, const stw_place *place,
                          uint32_t use, stw_stream stream) {
    stw_stream in =
        stw_place_update_tier(place) == STW_TIER_GPU ? STW_STREAM_H2D : STW_STREAM_TO_CPU;
    if (stream == STW_STREAM_COMPUTE) return 0; /* other updates hide it */
    if (stream == STW_STREAM_DISK || stream == STW_STREAM_DISK_OUT) {
        if (use != STW_RING_HOST_DISK || cost->engine->whole) return 0;
        double last = stream == STW_STREAM_DISK ? flow->write_s : flow->read_s;
        return flow->in_s + flow->update_s + flow->out_s + last;
    }
    return stream == in ? flow->update_s + flow->out_s : flow->in_s + flow->update_s;
}

/* A value of the ring use of a place: places share a ring, the slowest of them is charged. */
static void charge_ring(const stw_cost *cost, stw_time_row *row, uint32_t use, uint32_t r,
                        double seconds) {
    double *ring_s = &row->ring_s[use * cost->n_rings + r];
    if (seconds > *ring_s) *ring_s = seconds;
}

static bool uses(const stw_cost *cost, uint32_t p, uint32_t use) {
    if (!cost->engine->whole && use >= STW_N_RINGS) return false;
    return (cost->place_uses[p] & (1u << use)) != 0;
}

/* ---- rows ---- */

static bool any_asks(const stw_cost *cost, stw_resource resource) {
    stw_bucket_flow flow;
    for (uint32_t p = 0; p < cost->n_places; p++) {
        stw_bucket_flow_of(cost, &cost->places[p], &cost->rings[0], &flow);
        if (flow.resource_s[resource] > 0) return true;
    }
    return false;
}

static stw_status add_resource_row(stw_cost *cost, stw_resource resource, stw_error *err) {
    if (!any_asks(cost, resource)) return STW_STATUS_OK;
    stw_time_row *row =
        stw_cost_time_row(cost, STW_PART_STEP, "step_%s", stw_resource_name(resource));
    if (row == NULL) return no_memory(err);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            stw_bucket_flow flow;
            stw_bucket_flow_of(cost, &cost->places[p], &cost->rings[r], &flow);
            row->unit_s[p * cost->n_rings + r] = flow.per_unit * flow.resource_s[resource];
            for (uint32_t u = 0; u < cost->n_uses; u++)
                if (uses(cost, p, u))
                    charge_ring(cost, row, u, r, resource_fill(&flow, u, resource));
        }
    return STW_STATUS_OK;
}

static stw_status add_stream_row(stw_cost *cost, stw_stream stream, stw_error *err) {
    stw_time_row *row =
        stw_cost_time_row(cost, STW_PART_STEP, "step_stream_%s", stw_stream_name(stream));
    if (row == NULL) return no_memory(err);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            stw_bucket_flow flow;
            stw_bucket_flow_of(cost, &cost->places[p], &cost->rings[r], &flow);
            row->unit_s[p * cost->n_rings + r] = flow.per_unit * flow.stream_s[stream];
            for (uint32_t u = 0; u < cost->n_uses; u++)
                if (uses(cost, p, u) && flow.stream_s[stream] > 0)
                    charge_ring(cost, row, u, r,
                                stream_fill(cost, &flow, &cost->places[p], u, stream));
        }
    return STW_STATUS_OK;
}

/* One bucket's way through a ring: what keeps its slot busy. With more than one slot other buckets
 * move the other way meanwhile, and copies take longer. */
static double way_s(const stw_bucket_flow *flow, bool disk, double copy_speed) {
    double way = (flow->in_s + flow->out_s) / copy_speed + flow->update_s;
    return disk ? way + flow->read_s + flow->write_s : way;
}

static stw_status add_ring_row(stw_cost *cost, uint32_t use, stw_error *err) {
    stw_time_row *row = stw_cost_time_row(cost, STW_PART_STEP, "step_ring_%u", use);
    if (row == NULL) return no_memory(err);
    row->ring = true;
    bool disk = !cost->engine->whole && use == STW_RING_HOST_DISK;
    double shared = stw_cost_copy_speed(cost->job);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            if (!uses(cost, p, use)) continue;
            stw_bucket_flow flow;
            stw_bucket_flow_of(cost, &cost->places[p], &cost->rings[r], &flow);
            double slots = in_flight(cost, &cost->rings[r]);
            double way = way_s(&flow, disk, slots > 1 ? shared : 1);
            row->unit_s[p * cost->n_rings + r] = flow.per_unit * way / slots;
            charge_ring(cost, row, use, r, way * (1 - 1 / slots));
        }
    return STW_STATUS_OK;
}

/* Clipping needs the norm of all gradients before the first update. */
static stw_status add_norm(stw_cost *cost, stw_error *err) {
    const stw_job *job = cost->job;
    static const stw_resource resources[] = {STW_RESOURCE_HBM, STW_RESOURCE_HOST_MEMORY,
                                             STW_RESOURCE_CPU};
    stw_demand demand;
    stw_op op = {.kind = STW_OP_COLLECTIVE, .work = STW_WORK_NORM_SUM, .to = STW_TIER_HOST};
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update != STW_UPDATE_CPU) op.to = STW_TIER_GPU;
    stw_demand_op(job, &op, &demand);
    double sum_s = stw_demand_alone_s(&demand);
    for (unsigned i = 0; i < sizeof resources / sizeof resources[0]; i++) {
        stw_time_row *row =
            stw_cost_time_row(cost, STW_PART_NORM, "norm_%s", stw_resource_name(resources[i]));
        if (row == NULL) return no_memory(err);
        row->constant_s = sum_s;
        for (uint32_t p = 0; p < cost->n_places; p++) {
            op = (stw_op){.kind = STW_OP_COMPUTE,
                          .work = STW_WORK_NORM,
                          .to = cost->places[p].grads,
                          .params = job->unit_params};
            stw_demand_op(job, &op, &demand);
            for (uint32_t r = 0; r < cost->n_rings; r++)
                row->unit_s[p * cost->n_rings + r] = demand.seconds[resources[i]];
        }
    }
    return STW_STATUS_OK;
}

/* Moments parked between steps come up whole, one after the other with the update. */
static stw_status add_parking(stw_cost *cost, stw_error *err) {
    const stw_job *job = cost->job;
    stw_time_row *row = stw_cost_time_row(cost, STW_PART_STEP, "step_parked");
    if (row == NULL) return no_memory(err);
    uint64_t bytes = job->unit_params * (stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG) +
                                         stw_job_element_bytes(job, STW_COMPONENT_EXP_AVG_SQ));
    stw_demand up, update, down;
    stw_demand_copy(job, STW_TIER_HOST, STW_TIER_GPU, bytes, &up);
    stw_demand_copy(job, STW_TIER_GPU, STW_TIER_HOST, bytes, &down);
    stw_demand_update(job, STW_UPDATE_RESIDENT, job->unit_params, 0, &update);
    up.startup_s = down.startup_s = 0; /* one copy of all */
    double seconds =
        stw_demand_alone_s(&up) + stw_demand_alone_s(&update) + stw_demand_alone_s(&down);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++)
            if (cost->places[p].update == STW_UPDATE_RESIDENT)
                row->unit_s[p * cost->n_rings + r] = seconds;
    return STW_STATUS_OK;
}

stw_status stw_cost_add_step(stw_cost *cost, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const stw_resource resources[] = {
        STW_RESOURCE_HBM,       STW_RESOURCE_PCIE_UP,    STW_RESOURCE_PCIE_DOWN,
        STW_RESOURCE_PCIE,      STW_RESOURCE_DMA,        STW_RESOURCE_DMA_UP,
        STW_RESOURCE_DMA_DOWN,  STW_RESOURCE_CPU,        STW_RESOURCE_DISK,
        STW_RESOURCE_DISK_READ, STW_RESOURCE_DISK_WRITE, STW_RESOURCE_HOST_MEMORY,
    };
    static const stw_stream streams[] = {STW_STREAM_H2D,      STW_STREAM_D2H,  STW_STREAM_TO_CPU,
                                         STW_STREAM_FROM_CPU, STW_STREAM_DISK, STW_STREAM_DISK_OUT};
    for (unsigned i = 0; i < sizeof resources / sizeof resources[0]; i++)
        STW_TRY(add_resource_row(cost, resources[i], err));
    for (unsigned i = 0; i < sizeof streams / sizeof streams[0]; i++)
        STW_TRY(add_stream_row(cost, streams[i], err));
    /* Updates of one kind take turns by what bounds them; direct ones hold up the others as well.
     */
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == STW_UPDATE_DIRECT) {
            STW_TRY(add_stream_row(cost, STW_STREAM_COMPUTE, err));
            break;
        }
    for (uint32_t u = 0; u < cost->n_uses; u++)
        for (uint32_t p = 0; p < cost->n_places; p++)
            if (uses(cost, p, u)) {
                STW_TRY(add_ring_row(cost, u, err));
                break;
            }
    if (cost->engine->spec.executes && cost->job->run->optimizer.clip_norm > 0)
        STW_TRY(add_norm(cost, err));
    if (cost->engine->lazy_state && cost->job->run->park.moments) STW_TRY(add_parking(cost, err));
    STW_TRY(stw_cost_add_contention(cost, err));
out:
    return status;
}
