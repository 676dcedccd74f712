/* SPDX-License-Identifier: Apache-2.0 */
/* Prices against problems that are solved anew with as much more of the resource: no price promises
 * more than their bound, and what is asked of stays as it was. By the rows, without a simulator. */
#include <math.h>

#include "planner/resolve.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

typedef struct priced {
    stw_plan *plan;
    stw_cost *cost;
    stw_choice choice;
    stw_evaluation here;
    stw_price_search search;
} priced;

static const char *const tight[] = {"node.gpus=1", "node.gpu.memory=40 GiB",
                                    "node.host.limit=48 GiB", "node.nvme.capacity=0 GiB", NULL};

static double iteration_s(const stw_evaluation *e) {
    return e->objective_s - e->load_s / STW_LOAD_SPREAD;
}

static void begin(priced *p, const char *const *settings) {
    const stw_ilp_options options = {.time_limit_s = 60, .gap = 1e-6};
    stw_ilp_result result;
    p->plan = case_zoo("Qwen3-4B", settings);
    p->cost = case_cost(p->plan);
    p->choice = stw_choice_new(p->cost, p->cost->pool);
    CHECK_OK(stw_ilp_solve(p->cost, &options, &p->choice, &result, err));
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
    stw_cost_evaluate(p->cost, &p->choice, &p->here);
    p->search = (stw_price_search){.cost = p->cost,
                                   .choice = &p->choice,
                                   .fastest_s = iteration_s(&p->here),
                                   .time_limit_s = 60};
}

static void end(priced *p) {
    stw_cost_free(p->cost);
    stw_plan_free(p->plan);
}

static const stw_price *price_of(const stw_plan *plan, const char *resource) {
    for (uint32_t i = 0; i < plan->n_prices; i++)
        if (strcmp(plan->prices[i].resource, resource) == 0) return &plan->prices[i];
    return NULL;
}

/* Least seconds of an iteration, at least, with so much more memory of a tier. */
static double bound_with(priced *p, stw_tier tier, uint64_t more_bytes) {
    const stw_ilp_options options = {.time_limit_s = 60, .gap = 1e-6};
    stw_choice choice = stw_choice_new(p->cost, p->cost->pool);
    stw_ilp_result result;
    stw_evaluation e;
    for (uint32_t r = 0; r < p->cost->n_byte_rows; r++)
        if (p->cost->byte_rows[r].tier == tier && !p->cost->byte_rows[r].page_locked)
            p->cost->byte_rows[r].limit_bytes += more_bytes;
    CHECK_OK(stw_ilp_solve(p->cost, &options, &choice, &result, err));
    for (uint32_t r = 0; r < p->cost->n_byte_rows; r++)
        if (p->cost->byte_rows[r].tier == tier && !p->cost->byte_rows[r].page_locked)
            p->cost->byte_rows[r].limit_bytes -= more_bytes;
    CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
    stw_cost_evaluate(p->cost, &choice, &e);
    return iteration_s(&e) * (1 - 1e-3);
}

static void no_price_promises_more_than_the_bound(void) {
    priced p;
    begin(&p, tight);
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    const stw_price *gpu = price_of(p.plan, "gpu memory"), *host = price_of(p.plan, "host memory");
    CU_ASSERT_PTR_NOT_NULL_FATAL(gpu);
    CU_ASSERT_PTR_NOT_NULL_FATAL(host);
    CU_ASSERT_EQUAL(gpu->amount, 4);
    CU_ASSERT_EQUAL(host->amount, 5);
    CU_ASSERT_STRING_EQUAL(gpu->unit, "GiB");
    double least_gpu = bound_with(&p, STW_TIER_GPU, 4ull << 30);
    double least_host = bound_with(&p, STW_TIER_HOST, 5ull << 30);
    CU_ASSERT(p.search.fastest_s + gpu->seconds >= least_gpu);
    CU_ASSERT(p.search.fastest_s + host->seconds >= least_host);
    /* on a GPU that is short of memory more of it saves what is there to save, to a half at least
     */
    CU_ASSERT(gpu->seconds < 0);
    CU_ASSERT(gpu->seconds <= (least_gpu - p.search.fastest_s) / 2);
    end(&p);
}

static void prices_are_savings_that_count(void) {
    priced p;
    begin(&p, tight);
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    for (uint32_t i = 0; i < p.plan->n_prices; i++) {
        const stw_price *price = &p.plan->prices[i];
        CU_ASSERT(price->amount > 0);
        CU_ASSERT(price->seconds == 0 || price->seconds <= -STW_LEAST_GAIN * p.search.fastest_s);
        CU_ASSERT(price->seconds > -p.search.fastest_s);
    }
    /* faster links make a step that streams faster */
    CU_ASSERT_PTR_NOT_NULL_FATAL(price_of(p.plan, "pcie"));
    CU_ASSERT(price_of(p.plan, "pcie")->seconds < 0);
    CU_ASSERT(fabs(price_of(p.plan, "pcie")->amount * 1e10 / p.plan->cluster.pcie.h2d_bps - 1) <
              1e-9);
    CU_ASSERT_PTR_NULL(price_of(p.plan, "nvme"));
    CU_ASSERT_PTR_NULL(price_of(p.plan, "network"));
    end(&p);
}

static void only_what_is_used_has_a_price(void) {
    const char *const nodes[] = {"node.gpus=8", "nodes=2", NULL};
    const char *const nvme[] = {"node.gpus=1",
                                "node.gpu.memory=40 GiB",
                                "node.host.limit=30 GiB",
                                "node.nvme.capacity=2000 GiB",
                                "placement.moments=nvme",
                                NULL};
    priced p;
    begin(&p, nodes);
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    CU_ASSERT_PTR_NOT_NULL(price_of(p.plan, "network"));
    CU_ASSERT_PTR_NULL(price_of(p.plan, "nvme"));
    end(&p);
    begin(&p, nvme);
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(price_of(p.plan, "nvme"));
    CU_ASSERT(price_of(p.plan, "nvme")->seconds < 0);
    end(&p);
}

static void the_problem_stays_as_it_was(void) {
    priced p;
    begin(&p, tight);
    const uint64_t spare = 1ull << 30;
    stw_cost_give_spare(p.cost, spare);
    uint64_t limits[64], spares[64];
    CU_ASSERT_FATAL(p.cost->n_byte_rows <= 64);
    for (uint32_t r = 0; r < p.cost->n_byte_rows; r++) {
        limits[r] = p.cost->byte_rows[r].limit_bytes;
        spares[r] = p.cost->byte_rows[r].spare_bytes;
    }
    stw_evaluation before, after;
    stw_cost_evaluate(p.cost, &p.choice, &before);
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    stw_cost_evaluate(p.cost, &p.choice, &after);
    CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof before), 0);
    CU_ASSERT_EQUAL(stw_cost_spare(p.cost), spare);
    for (uint32_t r = 0; r < p.cost->n_byte_rows; r++) {
        CU_ASSERT_EQUAL(p.cost->byte_rows[r].limit_bytes, limits[r]);
        CU_ASSERT_EQUAL(p.cost->byte_rows[r].spare_bytes, spares[r]);
    }
    end(&p);
}

static void without_time_there_are_none(void) {
    priced p;
    begin(&p, tight);
    p.search.time_limit_s = 0;
    CHECK_OK(stw_planner_price(p.plan, &p.search, err));
    CU_ASSERT_EQUAL(p.plan->n_prices, 0);
    end(&p);
}

STW_TEST_MAIN("planner prices",
              {"no price promises more than the bound", no_price_promises_more_than_the_bound},
              {"prices are savings that count", prices_are_savings_that_count},
              {"only what is used has a price", only_what_is_used_has_a_price},
              {"the problem stays as it was", the_problem_stays_as_it_was},
              {"without time there are none", without_time_there_are_none})
