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
 * Copies to and from a ring of CPU buckets are another matter: they stay in the CPU's caches, so
 * that they do not slow updates down, and updates that they feed, which read half of their operands
 * there, slow copies down half as much (fitted). Measured on one H200 with 16 cores, 2026-11-21:
 * streaming 1.7 G parameters takes 280 ms; with 10, 25 and 50% of them on the CPU 278, 274 and 298
 * ms; all on the CPU 266 to 270 ms. */
#include "plan/share.h"
#include "planner/cost.h"

enum { UP, DOWN, CPU, N_FLOWS };

static const double OF_FED = 0.5; /* how much updates fed through a ring slow down copies */

static void flow_of(const stw_demand *demand, stw_share_user *flow) {
    double alone = stw_demand_alone_s(demand) - demand->startup_s;
    for (int r = 0; r < STW_N_RESOURCES; r++)
        flow->weight[r] = alone > 0 ? demand->seconds[r] / alone : 0;
    flow->priority = demand->priority;
}

/* Copies' speed alone together, and both shares while the CPU updates too. */
static void shares(const stw_job *job, double *copies, double *q, double *c) {
    stw_share_user flows[N_FLOWS] = {{.rate = 0}};
    stw_demand demand;
    const uint64_t some = 1ull << 30; /* any amount: speeds do not depend on it */
    stw_demand_copy(job, STW_TIER_HOST, STW_TIER_GPU, some, &demand);
    flow_of(&demand, &flows[UP]);
    stw_demand_copy(job, STW_TIER_GPU, STW_TIER_HOST, some, &demand);
    flow_of(&demand, &flows[DOWN]);
    stw_demand_update(job, STW_UPDATE_CPU, some, &demand);
    flow_of(&demand, &flows[CPU]);
    stw_share_rates(flows, CPU); /* without the last, the CPU */
    double before = flows[UP].rate + flows[DOWN].rate;
    stw_share_rates(flows, N_FLOWS);
    *copies = before / 2;
    *q = before > 0 ? (flows[UP].rate + flows[DOWN].rate) / before : 1;
    *c = flows[CPU].rate;
}

/* Start-ups that the other direction cannot hide: it runs faster meanwhile, alone on the link. */
static double startups_s(const stw_bucket_flow *flow, double copies) {
    double hidden = copies > 0 && copies < 1 ? 1 / copies - 1 : 0;
    return flow->startup_s / 2 * (hidden < 1 ? 1 - hidden : 0);
}

/* Share of a place's copies and updates that meet in memory, not in the caches that hold its ring.
 */
static double met_in_memory(const stw_cost *cost, const stw_place *place,
                            const stw_cost_ring *ring) {
    if (!stw_place_uses_ring(cost->job, place, STW_RING_HOST_CPU)) return 1;
    uint64_t params = stw_place_bucket_params(cost->job, place, ring->bucket_bytes);
    return stw_ring_missed(cost->job,
                           params * stw_job_element_bytes(cost->job, STW_COMPONENT_PARAMS));
}

static stw_status add_row(stw_cost *cost, stw_resource resource, bool copies_last, double copies,
                          double q, double c, stw_error *err) {
    stw_time_row *row =
        stw_cost_time_row(cost, STW_PART_STEP, "step_shared_%s_%s", stw_resource_name(resource),
                          copies_last ? "copies" : "updates");
    if (row == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for the rows");
    double of_copies = copies_last ? 1 : (1 - c) / q, of_updates = copies_last ? (1 - q) / c : 1;
    for (uint32_t p = 0; p < cost->n_places; p++)
        for (uint32_t r = 0; r < cost->n_rings; r++) {
            stw_bucket_flow flow;
            stw_bucket_flow_of(cost, &cost->places[p], &cost->rings[r], &flow);
            bool cpu = stw_place_update_tier(&cost->places[p]) == STW_TIER_HOST;
            double met = met_in_memory(cost, &cost->places[p], &cost->rings[r]);
            double copies_s = flow.resource_s[resource];
            if (resource == STW_RESOURCE_PCIE) copies_s += startups_s(&flow, copies);
            if (!copies_last) copies_s *= met;
            double slowed = copies_last ? OF_FED + (1 - OF_FED) * met : 1;
            double seconds = of_copies * copies_s;
            if (cpu) seconds += of_updates * flow.update_s * slowed;
            row->unit_s[p * cost->n_rings + r] = flow.per_unit * seconds;
        }
    return STW_STATUS_OK;
}

double stw_cost_copy_speed(const stw_job *job) {
    double copies, q, c;
    shares(job, &copies, &q, &c);
    return copies > 0 ? copies : 1;
}

stw_status stw_cost_add_contention(stw_cost *cost, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double copies, q, c;
    shares(cost->job, &copies, &q, &c);
    if (q <= 0 || c <= 0) return STW_STATUS_OK; /* no link or no CPU at all */
    static const stw_resource resources[] = {STW_RESOURCE_PCIE, STW_RESOURCE_DMA};
    for (int i = 0; i < 2; i++) {
        STW_TRY(add_row(cost, resources[i], true, copies, q, c, err));
        STW_TRY(add_row(cost, resources[i], false, copies, q, c, err));
    }
out:
    return status;
}
