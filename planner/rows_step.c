/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds of the optimizer step: every resource's and every stream's sum, and the ring
 * rows. A slot is taken from the moment its bucket begins to move in until it has moved out, so a
 * ring of `slots` passes no more than that many buckets per bucket's way through:
 * T >= sum of ways / slots, and the last bucket still has the rest of its way to go when the first
 * of its stages is done. Without these rows depth 1 would always win. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "planner/rows.h"

/* Reads and writes share the disk alike, so that the shorter ones end first and what is left of the
 * others has the disk alone: not all of it is done at the rate of both. */
static double disk_s(const stw_flow *flow) {
    if (flow->read_s <= 0 || flow->write_s <= 0) return flow->resource_s[STW_RESOURCE_DISK];
    /* the share of its speed alone that each keeps while the other runs */
    double used = flow->read_disk_s / flow->read_s + flow->write_disk_s / flow->write_s;
    bool reads_less = flow->read_s < flow->write_s;
    double less = reads_less ? flow->read_s : flow->write_s;
    double more = reads_less ? flow->write_s : flow->read_s;
    return less * (used > 1 ? used : 1) + more - less;
}

/* ---- fill and drain ---- */

static double idle(const double *side_resource_s, double side_s, stw_resource resource) {
    double used = side_resource_s[resource];
    return used > 0 && side_s > used ? side_s - used : 0;
}

/* Seconds that a resource has nothing of a ring to do: while the first bucket moves in, and while
 * the last is updated and moves out. Places with other work for it hide that, hence only for what
 * rings alone use. */
static double resource_fill(const stw_flow *flow, uint32_t use, stw_resource resource) {
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

/* One bucket's way through a ring: what keeps its slot busy. With more than one slot other buckets
 * move the other way meanwhile, and copies take longer. */
static double way_s(const stw_flow *flow, bool disk, double copy_speed) {
    double way = (flow->in_s + flow->out_s) / copy_speed + flow->update_s;
    return disk ? way + flow->read_s + flow->write_s : way;
}

/* The rest of a bucket's way. */
static double stream_fill(const stw_flow *flow, uint32_t use, stw_stream stream) {
    bool disk = stream == STW_STREAM_DISK || stream == STW_STREAM_DISK_OUT;
    if (stream == STW_STREAM_COMPUTE) return 0; /* other updates hide it */
    if (disk && use != STW_RING_HOST_DISK) return 0;
    return way_s(flow, disk, 1) - flow->stream_s[stream];
}

/* Charge something to a use of a place: places share a ring, the slowest of them is charged. */
static void charge(const stw_cost *cost, stw_time_row *row, uint32_t use, uint32_t r,
                   double seconds) {
    double *ring_s = &row->ring_s[use * cost->n_rings + r];
    if (seconds > *ring_s) *ring_s = seconds;
}

/* Do buckets of a place pass through the ring or window of this use? */
static bool passes(const stw_cost *cost, uint32_t p, uint32_t use) {
    return use != STW_USE_HOST_PARAMS && (cost->place_uses[p] & (1u << use)) != 0;
}

/* ---- rows ---- */

static bool any_asks(const stw_build *b, stw_resource resource) {
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        if (stw_build_flow(b, p, 0)->resource_s[resource] > 0) return true;
    return false;
}

static stw_status add_resource_row(const stw_build *b, stw_resource resource, stw_error *err) {
    const stw_cost *cost = b->cost;
    if (!any_asks(b, resource)) return STW_STATUS_OK;
    stw_time_row *row =
        stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_%s", stw_resource_name(resource));
    if (row == NULL) return stw_planner_no_memory(err);
    if (resource == STW_RESOURCE_HBM) row->hides = false; /* the GPU's own work */
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = stw_build_flow(b, p, r);
            double seconds =
                resource == STW_RESOURCE_DISK ? disk_s(flow) : flow->resource_s[resource];
            row->unit_s[p * cost->n_rings + r] = stw_flow_per_unit(cost, flow) * seconds;
            for (uint32_t u = 0; u < cost->n_uses; u++)
                if (passes(cost, p, u)) charge(cost, row, u, r, resource_fill(flow, u, resource));
        }
    return STW_STATUS_OK;
}

/* Copies of both directions slow each other down while both are busy. */
static stw_status add_stream_row(const stw_build *b, stw_stream stream, stw_error *err) {
    const stw_cost *cost = b->cost;
    double slowed = stw_stream_opposite(stream) == stream ? 0 : stw_copies_slowed(cost->job);
    stw_time_row *row =
        stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_stream_%s", stw_stream_name(stream));
    if (row == NULL) return stw_planner_no_memory(err);
    if (stream == STW_STREAM_COMPUTE) row->hides = false;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = stw_build_flow(b, p, r);
            row->unit_s[p * cost->n_rings + r] =
                stw_flow_per_unit(cost, flow) *
                (flow->stream_s[stream] + slowed * flow->stream_s[stw_stream_opposite(stream)]);
            for (uint32_t u = 0; u < cost->n_uses; u++)
                if (passes(cost, p, u) && flow->stream_s[stream] > 0)
                    charge(cost, row, u, r, stream_fill(flow, u, stream));
        }
    return STW_STATUS_OK;
}

static bool any_waits(const stw_build *b, uint32_t ring) {
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        if (stw_build_flow(b, p, 0)->slots[ring] > 0) return true;
    return false;
}

static stw_status add_ring_row(const stw_build *b, stw_ring_kind ring, stw_error *err) {
    const stw_cost *cost = b->cost;
    if (!any_waits(b, ring)) return STW_STATUS_OK;
    stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_ring_%d", (int)ring);
    if (row == NULL) return stw_planner_no_memory(err);
    double shared = stw_shared_copy_speed(cost->job);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = stw_build_flow(b, p, r);
            double slots = flow->slots[ring];
            if (slots <= 0) continue;
            double way = way_s(flow, ring == STW_RING_HOST_DISK, slots > 1 ? shared : 1);
            row->unit_s[p * cost->n_rings + r] = stw_flow_per_unit(cost, flow) * way / slots;
            uint32_t use = passes(cost, p, ring) ? (uint32_t)ring : STW_USE_OWN(p);
            if (passes(cost, p, use)) charge(cost, row, use, r, way * (1 - 1 / slots));
        }
    return STW_STATUS_OK;
}

/* The norm of all gradients comes before the first update. Its sum over ranks is the least that any
 * place has. */
static stw_status add_norm(const stw_build *b, stw_resource resource, stw_error *err) {
    const stw_cost *cost = b->cost;
    double any_s = 0, sum_s = stw_build_flow(b, 0, 0)->norm_sum_s;
    for (uint32_t p = 0; p < cost->n_places; p++) {
        const stw_flow *flow = stw_build_flow(b, p, 0);
        any_s += flow->norm_s[resource];
        if (flow->norm_sum_s < sum_s) sum_s = flow->norm_sum_s;
    }
    if (any_s <= 0) return STW_STATUS_OK;
    stw_time_row *row =
        stw_row_seconds(b->cost, STW_STRETCH_NORM, "norm_%s", stw_resource_name(resource));
    if (row == NULL) return stw_planner_no_memory(err);
    row->constant_s = sum_s;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = stw_build_flow(b, p, r);
            if (flow->params == 0) continue;
            row->unit_s[p * cost->n_rings + r] =
                flow->norm_s[resource] * (double)cost->job->unit_params / (double)flow->params;
        }
    return STW_STATUS_OK;
}

/* ---- what no order of operations can go below ---- */

static const stw_flow *best_flow(const stw_build *b, uint32_t p, uint32_t r) {
    return &b->best_flows[p * b->cost->n_rings + r];
}

/* What is left of the way of the last bucket that a stream moves towards updates, or was there
 * before the first one that it moves away: the least of the places that pass through a ring. Where
 * others have work for the stream, too, theirs may be the last. */
static void add_rest(const stw_build *b, stw_stream stream, uint32_t use, stw_time_row *row) {
    const stw_cost *cost = b->cost;
    const double slowed = stw_stream_opposite(stream) == stream ? 0 : stw_copies_slowed(cost->job);
    for (uint32_t r = 0; r < cost->n_rings; r++) {
        double rest = (double)INFINITY;
        for (uint32_t p = 0; p < cost->n_places; p++) {
            const stw_flow *flow = best_flow(b, p, r);
            if (!passes(cost, p, use) || flow->stream_s[stream] <= 0) continue;
            const double other = flow->stream_s[stw_stream_opposite(stream)];
            const double way = flow->in_s + flow->update_s + flow->out_s;
            rest = fmin(rest, way - flow->stream_s[stream] - slowed * (other + flow->update_s));
        }
        if (!isfinite(rest) || rest <= 0) continue;
        row->ring_s[use * cost->n_rings + r] += rest;
        for (uint32_t p = 0; p < cost->n_places; p++)
            if (!passes(cost, p, use) && best_flow(b, p, r)->stream_s[stream] > 0)
                row->unit_s[p * cost->n_rings + r] -= rest;
    }
}

static stw_status add_stream_proof(const stw_build *b, stw_stream stream, stw_error *err) {
    const stw_cost *cost = b->cost;
    const stw_stream other = stw_stream_opposite(stream);
    const double slowed = other == stream ? 0 : stw_copies_slowed(cost->job);
    const bool copies = stream == STW_STREAM_H2D || stream == STW_STREAM_D2H;
    for (uint32_t use = 0; use < (copies ? (uint32_t)STW_N_RINGS : 1); use++) {
        stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_stream_%s_%u",
                                            stw_stream_name(stream), use);
        if (row == NULL) return stw_planner_no_memory(err);
        if (stream == STW_STREAM_COMPUTE) row->hides = false;
        for (uint32_t p = 0; p < cost->n_places; p++)
            for (uint32_t r = 0; r < cost->n_rings; r++) {
                const stw_flow *flow = best_flow(b, p, r);
                const double beside = flow->stream_s[other] - flow->stream_startup_s[other] -
                                      flow->stream_startup_s[stream];
                row->unit_s[p * cost->n_rings + r] =
                    stw_flow_per_unit(cost, flow) * (flow->stream_s[stream] + slowed * beside);
            }
        if (copies) add_rest(b, stream, use, row);
    }
    return STW_STATUS_OK;
}

/* A resource's work, and that of a ring's slots, one bucket's way alone after the other. */
static stw_status add_work_proof(const stw_build *b, stw_resource resource, int ring,
                                 stw_error *err) {
    const stw_cost *cost = b->cost;
    stw_time_row *row = ring < 0 ? stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_%s",
                                                   stw_resource_name(resource))
                                 : stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_ring_%d", ring);
    if (row == NULL) return stw_planner_no_memory(err);
    if (ring < 0 && resource == STW_RESOURCE_HBM) row->hides = false;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = best_flow(b, p, r);
            double seconds = flow->resource_s[resource];
            if (ring >= 0)
                seconds = flow->slots[ring] > 0
                              ? way_s(flow, ring == STW_RING_HOST_DISK, 1) / flow->slots[ring]
                              : 0;
            row->unit_s[p * cost->n_rings + r] = stw_flow_per_unit(cost, flow) * seconds;
        }
    return STW_STATUS_OK;
}

/* The row once more, after the norm's seconds of a resource: no update begins before it. What has
 * been fetched by then are so many buckets as a ring has slots. */
static stw_status add_after_norm(const stw_build *b, uint32_t index, stw_resource resource,
                                 stw_error *err) {
    const stw_cost *cost = b->cost;
    stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_STEP, "%s_after_norm_%s",
                                        cost->time_rows[index].name, stw_resource_name(resource));
    if (row == NULL) return stw_planner_no_memory(err);
    const stw_time_row *from = &cost->time_rows[index];
    double sum_s = (double)INFINITY;
    row->hides = from->hides;
    memcpy(row->ring_s, from->ring_s, (size_t)cost->n_uses * cost->n_rings * sizeof *row->ring_s);
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            const stw_flow *flow = best_flow(b, p, r);
            const double per_unit = stw_flow_per_unit(cost, flow),
                         unit_s = from->unit_s[p * cost->n_rings + r];
            row->unit_s[p * cost->n_rings + r] = unit_s;
            sum_s = fmin(sum_s, flow->norm_sum_s);
            if (flow->params == 0) continue;
            row->unit_s[p * cost->n_rings + r] +=
                flow->norm_s[resource] * (double)cost->job->unit_params / (double)flow->params;
            for (uint32_t u = 0; u < (uint32_t)STW_N_RINGS && unit_s > 0; u++) {
                if (!passes(cost, p, u)) continue;
                const double slots = flow->slots[u] > 0 ? flow->slots[u] : flow->buckets;
                const double ahead =
                    from->ring_s[u * cost->n_rings + r] - slots * unit_s / per_unit;
                row->ring_s[u * cost->n_rings + r] =
                    fmin(row->ring_s[u * cost->n_rings + r], ahead);
            }
        }
    row->constant_s = isfinite(sum_s) ? sum_s : 0;
    return STW_STATUS_OK;
}

/* The last unit may be partly empty, wherever it lies. */
static void leave_out_missing(const stw_build *b, uint32_t first) {
    const stw_job *job = b->cost->job;
    const uint64_t params = job->kinds[job->largest].params;
    const uint64_t units = stw_times(b->cost->n_units, job->unit_params);
    const double missing = units > params ? (double)(units - params) / (double)job->unit_params : 0;
    for (uint32_t i = first; i < b->cost->n_time_rows; i++) {
        stw_time_row *row = &b->cost->time_rows[i];
        double most = 0;
        for (uint32_t p = 0; p < b->cost->n_places * b->cost->n_rings; p++)
            most = fmax(most, row->unit_s[p]);
        row->constant_s -= missing * most;
    }
}

static bool any_norm(const stw_build *b, stw_resource resource) {
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        if (best_flow(b, p, 0)->norm_s[resource] > 0) return true;
    return false;
}

static stw_status add_step_proof(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t first = b->cost->n_time_rows;
    for (int s = 0; s < STW_N_STREAMS; s++) STW_TRY(add_stream_proof(b, (stw_stream)s, err));
    for (int r = 0; r < STW_N_RESOURCES; r++)
        if (any_asks(b, (stw_resource)r)) STW_TRY(add_work_proof(b, (stw_resource)r, -1, err));
    for (int r = 0; r < STW_N_RINGS; r++)
        if (any_waits(b, (uint32_t)r)) STW_TRY(add_work_proof(b, 0, r, err));
    STW_TRY(stw_rows_add_sharing_proof(b, err));
    const uint32_t end = b->cost->n_time_rows;
    for (int r = 0; r < STW_N_RESOURCES; r++)
        for (uint32_t i = first; i < end && any_norm(b, (stw_resource)r); i++)
            STW_TRY(add_after_norm(b, i, (stw_resource)r, err));
    leave_out_missing(b, first);
out:
    return status;
}

stw_status stw_rows_add_step_proof(const stw_build *b, stw_error *err) {
    const stw_rows_kept kept = stw_proof_begin(b->cost);
    const stw_status status = add_step_proof(b, err);
    stw_proof_end(b->cost, &kept);
    return status;
}

stw_status stw_rows_add_step(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_cost *cost = b->cost;
    static const stw_stream streams[] = {STW_STREAM_H2D,      STW_STREAM_D2H,  STW_STREAM_TO_CPU,
                                         STW_STREAM_FROM_CPU, STW_STREAM_DISK, STW_STREAM_DISK_OUT};
    for (int r = 0; r < STW_N_RESOURCES; r++) STW_TRY(add_resource_row(b, (stw_resource)r, err));
    for (unsigned i = 0; i < sizeof streams / sizeof streams[0]; i++)
        STW_TRY(add_stream_row(b, streams[i], err));
    /* Updates of one kind take turns by what bounds them; direct ones hold up the others as well.
     */
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (cost->places[p].update == STW_UPDATE_DIRECT) {
            STW_TRY(add_stream_row(b, STW_STREAM_COMPUTE, err));
            break;
        }
    for (int r = 0; r < STW_N_RINGS; r++) STW_TRY(add_ring_row(b, (stw_ring_kind)r, err));
    for (int r = 0; r < STW_N_RESOURCES; r++) STW_TRY(add_norm(b, (stw_resource)r, err));
out:
    return status;
}
