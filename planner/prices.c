/* SPDX-License-Identifier: Apache-2.0 */
/* Prices: the change of the objective of a re-solve, not a dual value (the problem is integer). */
#include <math.h>

#include "planner/problem.h"
#include "planner/resolve.h"

static const double GIB = 1024.0 * 1024.0 * 1024.0;

typedef enum priced {
    PRICED_GPU_MEMORY,
    PRICED_HOST_MEMORY,
    PRICED_PCIE,
    PRICED_HOST_BANDWIDTH,
    N_PRICED
} priced;

static const struct {
    const char *resource, *unit;
} resources[N_PRICED] = {
    {"gpu memory", "GiB"},
    {"host memory", "GiB"},
    {"pcie", "GB/s"},           /* h2d, d2h, both and direct by one each */
    {"host bandwidth", "GB/s"}, /* dma with it: the one bounds the other */
};

static void add_one(priced what, stw_cluster *cluster) {
    switch (what) {
    case PRICED_GPU_MEMORY:
        cluster->gpu.memory_bytes += (uint64_t)GIB;
        break;
    case PRICED_HOST_MEMORY:
        cluster->host.memory_bytes += (uint64_t)GIB;
        cluster->host.limit_bytes += (uint64_t)GIB;
        break;
    case PRICED_PCIE:
        cluster->pcie.h2d_bps += 1e9;
        cluster->pcie.d2h_bps += 1e9;
        cluster->pcie.both_bps += 1e9;
        if (cluster->pcie.direct_bps > 0) cluster->pcie.direct_bps += 1e9;
        break;
    default:
        cluster->host.bandwidth_bps += 1e9;
        cluster->host.dma_bps += 1e9;
        if (cluster->host.dma_up_bps > 0) cluster->host.dma_up_bps += 1e9;
        if (cluster->host.dma_down_bps > 0) cluster->host.dma_down_bps += 1e9;
        break;
    }
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

/* The objective with one unit more; NaN where the time was over first. */
static stw_status objective_with(const stw_job *base, priced what, double gap, double time_limit_s,
                                 double *objective, double *seconds, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cost *cost = NULL;
    stw_cluster cluster = *base->cluster;
    add_one(what, &cluster);
    stw_job job = *base; /* capacities and rates do not change how it is cut */
    job.cluster = &cluster;
    *objective = NAN;
    STW_TRY(stw_cost_new(&job, &cost, err));
    stw_choice choice = stw_choice_new(cost, cost->pool);
    if (choice.acts == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for prices");
        goto out;
    }
    stw_ilp_options options = {.time_limit_s = time_limit_s, .gap = gap, .only_stage1 = true};
    stw_ilp_result result;
    STW_TRY(stw_ilp_solve(cost, &options, &choice, &result, err));
    *seconds += result.seconds;
    if (result.outcome == STW_MILP_OPTIMAL) *objective = result.stages[0].objective;
out:
    stw_cost_free(cost);
    return status;
}

stw_status stw_planner_price(stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                             double gap, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double used_s = 0;
    plan->n_prices = 0;
    plan->prices = stw_pool_array(plan->pool, N_PRICED, sizeof *plan->prices);
    if (plan->prices == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for prices");
    for (int i = 0; i < N_PRICED && used_s < time_limit_s; i++) {
        double objective;
        STW_TRY(objective_with(cost->job, (priced)i, gap, time_limit_s - used_s, &objective,
                               &used_s, err));
        if (isnan(objective)) continue;
        /* The plan as it is stays possible with more of anything; what is within the gap is not
         * known to differ. */
        double change = objective - plan->solver.objective;
        if (change > -gap * plan->solver.objective) change = 0;
        plan->prices[plan->n_prices++] = (stw_price){
            resources[i].resource, phase_of(cost, choice, (priced)i), change, resources[i].unit};
    }
out:
    return status;
}
