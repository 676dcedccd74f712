/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are read off programs of a few buckets and pieces, against the sums over the whole
 * program of the same choice. */
#include <math.h>

#include "plan/program/demand.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static const stw_time_row *row_named(const stw_cost *cost, const char *name) {
    for (uint32_t r = 0; r < cost->n_time_rows; r++)
        if (strcmp(cost->time_rows[r].name, name) == 0) return &cost->time_rows[r];
    return NULL;
}

/* Seconds that a movement of the whole program asks of a resource. */
static double sum_of(const stw_plan *plan, stw_phase phase, stw_resource resource) {
    const stw_program *program = plan->programs[plan->job->largest];
    const stw_movement *movement = stw_program_movement(program, phase);
    double sum = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        stw_demand demand;
        stw_demand_op(plan->job, &program->ops[i], &demand);
        sum += demand.seconds[resource];
    }
    return sum;
}

static void check_resource(const stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                           stw_resource resource) {
    char step[64], norm[64];
    snprintf(step, sizeof step, "step_%s", stw_resource_name(resource));
    snprintf(norm, sizeof norm, "norm_%s", stw_resource_name(resource));
    double rows = 0, sum = sum_of(plan, STW_PHASE_OPTIMIZER_STEP, resource);
    const stw_time_row *parts[] = {row_named(cost, step), row_named(cost, norm)};
    for (int i = 0; i < 2; i++) { /* what a ring adds once is no sum */
        for (uint32_t p = 0; parts[i] != NULL && p < cost->n_places; p++)
            rows += choice->units[p] * parts[i]->unit_s[p * cost->n_rings + choice->ring];
    }
    bool near = fabs(rows - sum) <= 2e-3 * sum; /* the last unit is not full */
    CU_ASSERT(near);
    if (!near) fprintf(stderr, "%s: rows %.9g s, program %.9g s\n", step, rows, sum);
}

static void check_places(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    stw_cost *cost = case_cost(plan);
    for (uint32_t i = 0; i < cost->n_places * cost->n_rings; i++) {
        stw_choice choice = stw_choice_new(cost, cost->pool);
        choice.units[i / cost->n_rings] = cost->n_units;
        choice.ring = i % cost->n_rings;
        for (uint32_t a = 0; a < cost->n_acts; a++)
            if (cost->acts[a].act == STW_ACT_KEEP) choice.acts[a] = cost->acts[a].blocks;
        CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
        CHECK_OK(stw_plan_derive(plan, err));
        for (int r = 0; r < STW_N_RESOURCES; r++)
            if (r != STW_RESOURCE_DISK) /* its row shares the disk between both directions */
                check_resource(plan, cost, &choice, (stw_resource)r);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

/* No cache holds a ring: what a plan with several places would lose is lost in one place, too. */
static void steps_of_placements_in_parts(void) {
    case_use_fixture();
    const char *one[] = {"node.gpus=1", "update.direct=auto", "node.gpu.memory=24 GiB",
                         "node.host.cache=0", NULL};
    const char *master[] = {"node.gpus=2",          "precision.params=bf16",
                            "precision.grads=bf16", "precision.master=fp32",
                            "node.host.cache=0",    NULL};
    check_places("Qwen3-0.6B", one);
    check_places("Qwen3-1.7B", master);
}

STW_TEST_MAIN("planner reading", {"steps of placements in parts", steps_of_placements_in_parts})
