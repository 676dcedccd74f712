/* SPDX-License-Identifier: Apache-2.0 */
/* Prices: seconds of the fastest plan that a short search finds with a tenth more of a resource,
 * less those of the fastest plan that is known without. Neither is an estimate: both are simulated.
 */
#include <math.h>

#include "planner/candidates.h"
#include "planner/problem.h"
#include "planner/resolve.h"

static const double GIB = 1024.0 * 1024.0 * 1024.0, GB = 1e9;

/* So much more. */
static const double MORE = 0.1;

/* Work of one search. */
#define PRICE_WORK 120000

typedef enum priced {
    PRICED_GPU_MEMORY,
    PRICED_HOST_MEMORY,
    PRICED_PCIE,
    PRICED_HOST_BANDWIDTH,
    PRICED_NVME,
    PRICED_NETWORK,
    N_PRICED
} priced;

static const struct {
    const char *resource, *unit;
} resources[N_PRICED] = {
    {"gpu memory", "GiB"},      {"host memory", "GiB"},
    {"pcie", "GB/s"},           /* all rates of the link, by the same share */
    {"host bandwidth", "GB/s"}, /* dma with it: the one bounds the other */
    {"nvme", "GB/s"},           /* of reads; writes by the same share */
    {"network", "GB/s"},
};

/* How much more is asked about: whole GiB, a share of a rate; 0: the plan does not use it. */
static double amount_of(const stw_price_search *search, priced what) {
    const stw_cost *cost = search->cost;
    const stw_cluster *cluster = cost->job->cluster;
    bool nvme = false;
    for (uint32_t p = 0; p < cost->n_places; p++)
        nvme = nvme || (search->choice->units[p] > 0 && cost->places[p].moments == STW_TIER_NVME);
    switch (what) {
    case PRICED_GPU_MEMORY:
        return fmax(1, rint(MORE * (double)cluster->gpu.memory_bytes / GIB));
    case PRICED_HOST_MEMORY:
        return fmax(1, rint(MORE * (double)stw_cluster_host_capacity(cluster) / GIB));
    case PRICED_PCIE:
        return MORE * cluster->pcie.h2d_bps / GB;
    case PRICED_HOST_BANDWIDTH:
        return MORE * cluster->host.bandwidth_bps / GB;
    case PRICED_NVME:
        return nvme ? MORE * cluster->nvme.read_bps / GB : 0;
    default:
        return cluster->nodes > 1 ? MORE * cluster->nic_bps / GB : 0;
    }
}

static void add_to_rates(priced what, stw_cluster *cluster) {
    double *const rates[N_PRICED][5] = {
        [PRICED_PCIE] = {&cluster->pcie.h2d_bps, &cluster->pcie.d2h_bps, &cluster->pcie.both_bps,
                         &cluster->pcie.direct_bps},
        [PRICED_HOST_BANDWIDTH] = {&cluster->host.bandwidth_bps, &cluster->host.dma_bps,
                                   &cluster->host.dma_up_bps, &cluster->host.dma_down_bps},
        [PRICED_NVME] = {&cluster->nvme.read_bps, &cluster->nvme.write_bps,
                         &cluster->nvme.both_bps},
        [PRICED_NETWORK] = {&cluster->nic_bps}};
    for (int i = 0; rates[what][i] != NULL; i++) *rates[what][i] *= 1 + MORE;
}

/* The phase in which a tier is fullest; rates count in the step. */
static const char *phase_of(const stw_cost *cost, const stw_choice *choice, priced what) {
    stw_phase phase = STW_PHASE_OPTIMIZER_STEP;
    stw_tier tier = what == PRICED_GPU_MEMORY ? STW_TIER_GPU : STW_TIER_HOST;
    uint64_t most = 0;
    for (uint32_t r = 0; r < cost->n_byte_rows && what <= PRICED_HOST_MEMORY; r++) {
        const stw_byte_row *row = &cost->byte_rows[r];
        if (row->tier != tier || row->page_locked) continue;
        uint64_t bytes = stw_cost_row_bytes(cost, row, choice);
        if (bytes <= most) continue;
        most = bytes;
        phase = row->phase;
    }
    return stw_phase_name(phase);
}

static void add_to_limits(stw_cost *cost, priced what, int64_t bytes) {
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) {
        stw_byte_row *row = &cost->byte_rows[r];
        bool gpu = row->tier == STW_TIER_GPU && what == PRICED_GPU_MEMORY;
        bool host = row->tier == STW_TIER_HOST && !row->page_locked && what == PRICED_HOST_MEMORY;
        if ((gpu || host) && row->limit_bytes != UINT64_MAX)
            row->limit_bytes = (uint64_t)((int64_t)row->limit_bytes + bytes);
    }
}

/* @param iteration_s of the fastest plan that is found; NaN: none was */
static stw_status search_again(const stw_price_search *search, stw_cost *cost, uint64_t work,
                               double end_s, double *iteration_s, stw_error *err) {
    stw_candidates all = {.cost = cost,
                          .bars = search->bars,
                          .simulate = search->simulate,
                          .pool = cost->pool,
                          .work_left = work,
                          .end_s = end_s};
    stw_status status = stw_candidates_search_briefly(&all, search->choice, 0, err);
    *iteration_s = NAN;
    if (status != STW_STATUS_OK || all.n == 0) return status;
    const stw_candidate *fastest = &all.list[all.fastest];
    *iteration_s = fastest->seconds - fastest->rows.load_s / STW_LOAD_SPREAD;
    return STW_STATUS_OK;
}

/* Rows stay as they are: their limits change. */
static stw_status seconds_with_memory(const stw_price_search *search, priced what, double amount,
                                      double end_s, double *iteration_s, stw_error *err) {
    const int64_t bytes = (int64_t)(amount * GIB);
    add_to_limits(search->cost, what, bytes);
    stw_status status = search_again(search, search->cost, 2 * PRICE_WORK, end_s, iteration_s, err);
    add_to_limits(search->cost, what, -bytes);
    return status;
}

static stw_status seconds_with_rates(const stw_price_search *search, priced what, double end_s,
                                     double *iteration_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    stw_cluster cluster = *search->cost->job->cluster;
    stw_job job = *search->cost->job; /* rates do not change how it is cut */
    job.cluster = &cluster;
    add_to_rates(what, &cluster);
    STW_TRY(stw_cost_new(&job, search->simulate, &cost, err));
    stw_cost_limit_alike(cost, search->cost);
    stw_cost_give_spare(cost, stw_cost_spare(search->cost));
    STW_TRY(search_again(search, cost, PRICE_WORK, end_s, iteration_s, err));
out:
    stw_cost_free(cost);
    return status;
}

stw_status stw_planner_price(stw_plan *plan, const stw_price_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double end_s = stw_planner_now_s() + search->time_limit_s;
    plan->n_prices = 0;
    plan->prices = stw_pool_array(plan->pool, N_PRICED, sizeof *plan->prices);
    if (plan->prices == NULL) return stw_planner_no_memory(err);
    for (int i = 0; i < N_PRICED; i++) {
        double iteration_s, amount = amount_of(search, (priced)i);
        if (amount <= 0 || stw_planner_now_s() >= end_s) continue;
        if (i <= PRICED_HOST_MEMORY)
            STW_TRY(seconds_with_memory(search, (priced)i, amount, end_s, &iteration_s, err));
        else
            STW_TRY(seconds_with_rates(search, (priced)i, end_s, &iteration_s, err));
        if (isnan(iteration_s)) continue;
        double change = iteration_s - search->fastest_s;
        if (change > -STW_LEAST_GAIN * search->fastest_s) change = 0;
        plan->prices[plan->n_prices++] =
            (stw_price){resources[i].resource, phase_of(search->cost, search->choice, (priced)i),
                        amount, resources[i].unit, change};
    }
out:
    return status;
}
