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

/* Seconds of an iteration without the load's share: a faster load is no faster iteration. */
static double without_load(const stw_cost *cost, const stw_choice *choice, double objective_s) {
    stw_evaluation e;
    stw_cost_evaluate(cost, choice, &e);
    return objective_s - e.load_s / STW_LOAD_SPREAD;
}

/* Stage 1 of a problem; NaN where the time was over first. What was chosen stays possible. */
static stw_status solve_again(const stw_price_search *search, stw_cost *cost, double end_s,
                              double *iteration_s, stw_error *err) {
    stw_choice choice = stw_choice_new(cost, cost->pool);
    double left_s = end_s - stw_planner_now_s();
    if (choice.acts == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for prices");
    if (left_s <= 0) return STW_STATUS_OK;
    stw_ilp_options options = {.time_limit_s = left_s,
                               .gap = search->gap,
                               .quick = search->gap > 0,
                               .bars = search->bars,
                               .start = search->choice};
    stw_ilp_result result;
    stw_status status = stw_ilp_solve(cost, &options, &choice, &result, err);
    /* what a short search finds is saved at least */
    if (status == STW_STATUS_OK &&
        (result.outcome == STW_MILP_OPTIMAL || result.outcome == STW_MILP_FEASIBLE))
        *iteration_s = without_load(cost, &choice, result.stages[0].objective);
    return status;
}

/* Limits alone change: the rows stay as they are. */
static void add_to_limits(const stw_price_search *search, priced what, int64_t bytes) {
    for (uint32_t r = 0; r < search->cost->n_byte_rows; r++) {
        stw_byte_row *row = &search->cost->byte_rows[r];
        bool gpu = row->tier == STW_TIER_GPU && what == PRICED_GPU_MEMORY;
        bool host = row->tier == STW_TIER_HOST && !row->page_locked && what == PRICED_HOST_MEMORY;
        if ((gpu || host) && row->limit_bytes != UINT64_MAX)
            row->limit_bytes = (uint64_t)((int64_t)row->limit_bytes + bytes);
    }
}

/* The planner's seconds of an iteration with one unit more. */
static stw_status seconds_with(const stw_price_search *search, priced what, double end_s,
                               double *iteration_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *iteration_s = NAN;
    if (what == PRICED_GPU_MEMORY || what == PRICED_HOST_MEMORY) {
        add_to_limits(search, what, (int64_t)GIB);
        status = solve_again(search, search->cost, end_s, iteration_s, err);
        add_to_limits(search, what, -(int64_t)GIB);
        return status;
    }
    stw_cost *cost = NULL;
    stw_cluster cluster = *search->cost->job->cluster;
    add_one(what, &cluster);
    stw_job job = *search->cost->job; /* rates do not change how it is cut */
    job.cluster = &cluster;
    STW_TRY(stw_cost_new(&job, &cost, err));
    stw_cost_limit_gpu(cost, search->limit_bytes);
    STW_TRY(solve_again(search, cost, end_s, iteration_s, err));
out:
    stw_cost_free(cost);
    return status;
}

stw_status stw_planner_price(stw_plan *plan, const stw_price_search *search, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    double end_s = stw_planner_now_s() + search->time_limit_s;
    plan->n_prices = 0;
    plan->prices = stw_pool_array(plan->pool, N_PRICED, sizeof *plan->prices);
    if (plan->prices == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for prices");
    const double now_s = without_load(search->cost, search->choice, plan->solver.objective);
    for (int i = 0; i < N_PRICED; i++) {
        double iteration_s;
        STW_TRY(seconds_with(search, (priced)i, end_s, &iteration_s, err));
        if (isnan(iteration_s)) continue;
        /* The plan as it is stays possible with more of anything; what is within the gap is not
         * known to differ. */
        double change = iteration_s - now_s;
        if (change > -search->gap * plan->solver.objective) change = 0;
        plan->prices[plan->n_prices++] =
            (stw_price){resources[i].resource, phase_of(search->cost, search->choice, (priced)i),
                        change, resources[i].unit};
    }
out:
    return status;
}
