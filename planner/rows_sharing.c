/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds for what sums cannot say: copies up, copies down and the CPU's updates share
 * links and the host's memory max-min fairly, and a share that nobody used while it was there is
 * lost.
 *
 * Let S be the seconds of all copies (both directions at once, nobody else), A those of all CPU
 * updates alone. While both go on copies keep a share q of their speed and updates a share c of
 * theirs. If copies are last to end, they lost (1 - q) for as long as updates took, A / c:
 * T = S + A (1 - q) / c. If updates are last, T = A + S (1 - c) / q. As q + c >= 1, the larger of
 * the two is right in either case, which makes them two rows.
 *
 * Updates that a ring feeds read half of their operands in the CPU's caches and leave links more of
 * the memory; the copies of such a ring, in turn, do not slow updates down. */
#include "plan/program/share.h"
#include "planner/rows.h"

enum { UP, DOWN, CPU, N_FLOWS };

/* While copies and updates go on: copies' speed alone together, and what each keeps of its speed.
 */
typedef struct meeting {
    double copies, q, c;
} meeting;

static void flow_of(const stw_demand *demand, stw_share_user *flow) {
    double alone = stw_demand_alone_s(demand) - demand->startup_s;
    for (int r = 0; r < STW_N_RESOURCES; r++)
        flow->weight[r] = alone > 0 ? demand->seconds[r] / alone : 0;
    flow->priority = demand->priority;
}

/* @param ring_bytes of the updates; 0: their operands lie in memory */
static meeting meet(const stw_job *job, uint64_t ring_bytes) {
    stw_share_user flows[N_FLOWS] = {{.rate = 0}};
    stw_demand demand;
    const uint64_t some = 1ull << 30; /* any amount: speeds do not depend on it */
    stw_demand_copy(job, STW_TIER_HOST, STW_TIER_GPU, some, &demand);
    flow_of(&demand, &flows[UP]);
    stw_demand_copy(job, STW_TIER_GPU, STW_TIER_HOST, some, &demand);
    flow_of(&demand, &flows[DOWN]);
    stw_demand_update(job, STW_UPDATE_CPU, some, ring_bytes, &demand);
    flow_of(&demand, &flows[CPU]);
    stw_share_rates(flows, CPU); /* without the last, the CPU */
    double before = flows[UP].rate + flows[DOWN].rate;
    stw_share_rates(flows, N_FLOWS);
    double during = flows[UP].rate + flows[DOWN].rate;
    return (meeting){before / 2, before > 0 ? during / before : 1, flows[CPU].rate};
}

/* Start-ups that the other direction cannot hide: it runs faster meanwhile, alone on the link. */
static double startups_s(const stw_flow *flow, double copies) {
    double hidden = copies > 0 && copies < 1 ? 1 / copies - 1 : 0;
    return flow->startup_s / 2 * (hidden < 1 ? 1 - hidden : 0);
}

/* Bytes of the ring that updates on the CPU go through under a ring option; 0: none or no ring. */
static uint64_t cpu_ring_bytes(const stw_build *b, uint32_t r) {
    uint64_t most = 0;
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        if (stw_build_flow(b, p, r)->cpu_ring_bytes > most)
            most = stw_build_flow(b, p, r)->cpu_ring_bytes;
    return most;
}

/* Of one bucket. */
static double bucket_seconds(const stw_job *job, const stw_flow *flow, const meeting *m,
                             stw_resource resource, bool copies_last) {
    if (m->q <= 0 || m->c <= 0) return 0; /* no link or no CPU at all */
    double copies_s = flow->resource_s[resource];
    double cpu_s = flow->updates_on_cpu ? flow->update_s : 0;
    if (resource == STW_RESOURCE_PCIE) copies_s += startups_s(flow, m->copies);
    if (copies_last) return copies_s + cpu_s * (1 - m->q) / m->c;
    if (flow->cpu_ring_bytes > 0) copies_s *= stw_ring_missed(job, flow->cpu_ring_bytes);
    return copies_s * (1 - m->c) / m->q + cpu_s;
}

static stw_status add_row(const stw_build *b, stw_resource resource, bool copies_last,
                          stw_error *err) {
    const stw_cost *cost = b->cost;
    stw_time_row *row =
        stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_shared_%s_%s", stw_resource_name(resource),
                        copies_last ? "copies" : "updates");
    if (row == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
    for (uint32_t r = 0; r < cost->n_rings; r++) {
        const meeting m = meet(cost->job, cpu_ring_bytes(b, r));
        for (uint32_t p = 0; p < cost->n_places; p++) {
            const stw_flow *flow = stw_build_flow(b, p, r);
            row->unit_s[p * cost->n_rings + r] =
                stw_flow_per_unit(cost, flow) *
                bucket_seconds(cost->job, flow, &m, resource, copies_last);
        }
    }
    return STW_STATUS_OK;
}

double stw_shared_copy_speed(const stw_job *job) {
    const meeting m = meet(job, 0);
    return m.copies > 0 ? m.copies : 1;
}

double stw_copies_slowed(const stw_job *job) {
    double slowed = 1 / stw_shared_copy_speed(job) - 1;
    return slowed > 1e-9 ? slowed : 0;
}

stw_status stw_rows_add_sharing(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    static const stw_resource resources[] = {STW_RESOURCE_PCIE, STW_RESOURCE_DMA};
    for (int i = 0; i < 2; i++) {
        STW_TRY(add_row(b, resources[i], true, err));
        STW_TRY(add_row(b, resources[i], false, err));
    }
out:
    return status;
}
