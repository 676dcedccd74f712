/* SPDX-License-Identifier: Apache-2.0 */
/* The rows' seconds of forward and backward against the simulator's, for placements at random:
 * shares of params and grads on the host, blocks that recompute or offload, on one GPU and on many.
 * The rows know sums, ends of passes and what few kept blocks make offloaded ones wait; the
 * simulator knows the order. */
#include <math.h>

#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define PLACEMENTS 8

typedef struct errors {
    uint32_t n;
    double of[1024];
} errors;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The error that this share of all errors does not exceed. */
static double quantile(errors *e, double share) {
    qsort(e->of, e->n, sizeof e->of[0], ascending);
    return e->n > 0 ? e->of[(uint32_t)(share * (e->n - 1))] : 1;
}

/* Of every group two blocks keep their activations, the others recompute or offload them. */
static void mix_acts(const stw_cost *cost, uint64_t *seed, stw_choice *choice) {
    for (uint32_t a = 0; a + 2 < cost->n_acts; a++) {
        if (cost->acts[a + 2].group != cost->acts[a].group || cost->acts[a].blocks < 3) continue;
        choice->acts[a] = case_random(seed, cost->acts[a].blocks - 1);
        choice->acts[a + 1] = cost->acts[a].blocks - 2 - choice->acts[a];
        choice->acts[a + 2] = 2;
    }
}

/* Blocks of every group keep their activations or take one other policy, where they have it;
 * STW_N_ACTS: all policies. */
static void choose_acts(const stw_cost *cost, uint64_t *seed, stw_act other, stw_choice *choice) {
    if (other == STW_N_ACTS) {
        mix_acts(cost, seed, choice);
        return;
    }
    for (uint32_t a = 0; a < cost->n_acts; a++)
        choice->acts[a] = cost->acts[a].act == STW_ACT_KEEP ? cost->acts[a].blocks : 0;
    for (uint32_t a = 0; a < cost->n_acts && other != STW_ACT_KEEP; a++)
        for (uint32_t k = a; cost->acts[a].act == other && k < cost->n_acts; k++)
            if (cost->acts[k].group == cost->acts[a].group && cost->acts[k].act == STW_ACT_KEEP) {
                choice->acts[a] = case_random(seed, cost->acts[a].blocks + 1);
                choice->acts[k] -= choice->acts[a];
            }
}

static double forward_backward(stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                               double *simulated) {
    stw_evaluation e;
    stw_sim *sim = NULL;
    stw_cost_evaluate(cost, choice, &e);
    CHECK_OK(stw_cost_decide(cost, choice, plan->pool, &plan->decisions, err));
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_sim_run(plan->job, plan->programs[plan->job->largest], &sim, err));
    *simulated = sim == NULL ? 0 : stw_sim_phase_seconds(sim, STW_PHASE_FORWARD_BACKWARD);
    stw_sim_free(sim);
    return e.stretch_s[STW_STRETCH_FORWARD] + e.stretch_s[STW_STRETCH_BACKWARD];
}

static void compare(const char *name, const char *const *settings, stw_act other, errors *out) {
    stw_plan *plan = case_zoo(name, settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 7;
    for (uint32_t i = 0; i < PLACEMENTS; i++) {
        double simulated;
        case_choice(cost, &seed, &choice);
        if (i % 2 == 0) { /* one place beside the first */
            uint32_t p = 1 + case_random(&seed, cost->n_places - 1);
            memset(choice.units, 0, sizeof choice.units);
            choice.units[p] = case_random(&seed, cost->n_units);
            choice.units[0] = cost->n_units - choice.units[p];
        }
        choose_acts(cost, &seed, other, &choice);
        double rows = forward_backward(plan, cost, &choice, &simulated);
        out->of[out->n++] = fabs(rows / simulated - 1);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static const char *const models[] = {"Qwen3-0.6B", "Qwen3-4B", "Qwen3-30B-A3B", "Gemma-3-27b"};

static void compare_all(stw_act other, errors *out) {
    static const char *const clusters[][6] = {
        {"node.gpus=1", "node.nvme.capacity=0", NULL},
        {"node.gpus=2", "precision.params=bf16", "precision.grads=bf16", "precision.master=fp32",
         NULL},
        {"node.gpus=4", "node.nvme.capacity=0", "batch.grad_accumulation=4", NULL},
        {"node.gpus=8", "nodes=2", "parallel.dp_replicate=2", "node.nvme.capacity=0", NULL}};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t c = 0; c < sizeof clusters / sizeof clusters[0]; c++)
            compare(models[m], clusters[c], other, out);
}

static void check_errors(const char *what, errors *e, double median, double most) {
    double middle = quantile(e, 0.5), high = quantile(e, 0.95);
    printf("%s: %u placements, error %.2f%% in the median, %.2f%% at 95%%, %.2f%% at most\n", what,
           e->n, 100 * middle, 100 * high, 100 * quantile(e, 1));
    CU_ASSERT_TRUE(middle <= median);
    CU_ASSERT_TRUE(high <= most);
}

static void states_on_the_host(void) {
    errors e = {.n = 0};
    case_use_fixture();
    compare_all(STW_ACT_KEEP, &e);
    check_errors("kept", &e, 0.003, 0.025);
}

static void recomputed_blocks(void) {
    errors e = {.n = 0};
    compare_all(STW_ACT_RECOMPUTE, &e);
    check_errors("recomputed", &e, 0.003, 0.025);
}

static void offloaded_blocks(void) {
    errors e = {.n = 0};
    compare_all(STW_ACT_OFFLOAD, &e);
    check_errors("offloaded", &e, 0.03, 0.16);
}

static void offloaded_beside_recomputed_blocks(void) {
    errors e = {.n = 0};
    compare_all(STW_N_ACTS, &e);
    check_errors("mixed", &e, 0.05, 0.2);
}

STW_TEST_MAIN("planner rows forward", {"states on the host", states_on_the_host},
              {"recomputed blocks", recomputed_blocks}, {"offloaded blocks", offloaded_blocks},
              {"offloaded beside recomputed blocks", offloaded_beside_recomputed_blocks})
