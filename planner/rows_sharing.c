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
#include <math.h>

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
    if (row == NULL) return stw_planner_no_memory(err);
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

/* ---- what no order of copies and updates can go below ---- */

/* While some flows go on and others do not: what each keeps of its speed. */
typedef struct mode {
    double rate[N_FLOWS];
} mode;

/* The best that any ring gives to a flow in each of the modes. */
static void add_modes(const stw_job *job, uint64_t ring_bytes, mode *modes) {
    const uint64_t some = 1ull << 30;
    stw_demand demands[N_FLOWS];
    stw_demand_copy(job, STW_TIER_HOST, STW_TIER_GPU, some, &demands[UP]);
    stw_demand_copy(job, STW_TIER_GPU, STW_TIER_HOST, some, &demands[DOWN]);
    stw_demand_update(job, STW_UPDATE_CPU, some, ring_bytes, &demands[CPU]);
    for (uint32_t m = 1; m < 1u << N_FLOWS; m++) {
        stw_share_user users[N_FLOWS] = {{.rate = 0}};
        uint32_t n = 0;
        for (uint32_t f = 0; f < N_FLOWS; f++)
            if (m & (1u << f)) flow_of(&demands[f], &users[n++]);
        stw_share_rates(users, n);
        n = 0;
        for (uint32_t f = 0; f < N_FLOWS; f++)
            if (m & (1u << f)) modes[m].rate[f] = fmax(modes[m].rate[f], users[n++].rate);
    }
}

/* The prices of a second of each flow's work with which three modes cost a second each: what is
 * bought with all of time. @return false where there is no such point, or a mode would cost more */
static bool prices_at(const mode *modes, const uint32_t at[N_FLOWS], double *price) {
    double a[N_FLOWS][N_FLOWS + 1];
    for (int i = 0; i < N_FLOWS; i++) {
        for (int f = 0; f < N_FLOWS; f++) a[i][f] = modes[at[i]].rate[f];
        a[i][N_FLOWS] = 1;
    }
    for (int i = 0; i < N_FLOWS; i++) {
        int pivot = i;
        for (int k = i + 1; k < N_FLOWS; k++)
            if (fabs(a[k][i]) > fabs(a[pivot][i])) pivot = k;
        if (fabs(a[pivot][i]) < 1e-9) return false;
        for (int f = 0; f <= N_FLOWS; f++) {
            const double swap = a[i][f];
            a[i][f] = a[pivot][f];
            a[pivot][f] = swap;
        }
        for (int k = 0; k < N_FLOWS; k++) {
            const double times = a[k][i] / a[i][i];
            for (int f = i; k != i && f <= N_FLOWS; f++) a[k][f] -= times * a[i][f];
        }
    }
    for (int f = 0; f < N_FLOWS; f++) {
        price[f] = a[f][N_FLOWS] / a[f][f];
        if (price[f] < 0) return false;
    }
    for (uint32_t m = 1; m < 1u << N_FLOWS; m++) {
        double cost = 0;
        for (int f = 0; f < N_FLOWS; f++) cost += price[f] * modes[m].rate[f];
        if (cost > 1 + 1e-9) return false;
    }
    return true;
}

static stw_status add_price_row(const stw_build *b, const double *price, uint32_t number,
                                stw_error *err) {
    const stw_cost *cost = b->cost;
    stw_time_row *row = stw_row_seconds(b->cost, STW_STRETCH_STEP, "step_shared_%u", number);
    if (row == NULL) return stw_planner_no_memory(err);
    for (uint32_t r = 0; r < cost->n_rings; r++)
        for (uint32_t p = 0; p < cost->n_places; p++) {
            const stw_flow *flow = &b->best_flows[p * cost->n_rings + r];
            const double up =
                flow->stream_s[STW_STREAM_H2D] - flow->stream_startup_s[STW_STREAM_H2D];
            const double down =
                flow->stream_s[STW_STREAM_D2H] - flow->stream_startup_s[STW_STREAM_D2H];
            const double cpu = flow->updates_on_cpu ? flow->update_s : 0;
            row->unit_s[p * cost->n_rings + r] =
                stw_flow_per_unit(cost, flow) *
                (price[UP] * up + price[DOWN] * down + price[CPU] * cpu);
        }
    return STW_STATUS_OK;
}

/* Time goes by in modes: so many seconds of each, in which work is done at the mode's speeds.
 * Prices with which no mode's second is worth more than 1 s say how long work takes at least
 * (duality of linear programs); each corner of these prices is a row. Start-ups are no work here.
 */
stw_status stw_rows_add_sharing_proof(const stw_build *b, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    mode modes[1u << N_FLOWS] = {{{0}}};
    uint32_t number = 0, at[N_FLOWS];
    bool updates = false;
    for (uint32_t p = 0; p < b->cost->n_places; p++)
        updates = updates || b->best_flows[p * b->cost->n_rings].updates_on_cpu;
    if (!updates) return STW_STATUS_OK;
    add_modes(b->cost->job, 0, modes);
    for (uint32_t r = 0; r < b->cost->n_rings; r++)
        if (cpu_ring_bytes(b, r) > 0) add_modes(b->cost->job, cpu_ring_bytes(b, r), modes);
    for (at[0] = 1; at[0] < 1u << N_FLOWS; at[0]++)
        for (at[1] = at[0] + 1; at[1] < 1u << N_FLOWS; at[1]++)
            for (at[2] = at[1] + 1; at[2] < 1u << N_FLOWS; at[2]++) {
                double price[N_FLOWS];
                if (prices_at(modes, at, price)) STW_TRY(add_price_row(b, price, number++, err));
            }
out:
    return status;
}
