/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and gradients on the host come from all blocks alike, so that copies of one block can
 * hide behind the computation of another; fsdp2, which streams by group, keeps the model's order.
 */
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* A share of the quanta on the host in params and grads, all else on the GPU. */
static void decide_host_share(stw_plan *plan, const stw_cost *cost, double share) {
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint32_t host = (uint32_t)(share * cost->n_units);
    for (uint32_t p = 0; p < cost->n_places && host > 0; p++)
        if (cost->places[p].params == STW_TIER_HOST) {
            choice.units[p] = host;
            choice.units[0] = cost->n_units - host;
            host = 0;
        }
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (cost->acts[a].act == STW_ACT_KEEP) choice.acts[a] = cost->acts[a].blocks;
    CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
    CHECK_OK(stw_plan_derive(plan, err));
}

/* The least and the most bytes of one component that any transformer block copies in forward and
 * backward. */
static void range_of_copies(const stw_plan *plan, stw_component component, double *least,
                            double *most) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    double *bytes = calloc(plan->model->n_blocks, sizeof *bytes);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == STW_OP_COPY_BLOCK && program->ops[i].component == component)
            bytes[program->ops[i].unit] += (double)program->ops[i].bytes;
    *least = 1e30;
    *most = 0;
    for (uint32_t b = 0; b < plan->model->n_blocks; b++) {
        if (!plan->model->groups[plan->model->blocks[b].group].facts.transformer) continue;
        if (bytes[b] < *least) *least = bytes[b];
        if (bytes[b] > *most) *most = bytes[b];
    }
    free(bytes);
}

static void check_model(const char *name, const char *const *settings) {
    stw_plan *plan = case_zoo(name, settings);
    stw_cost *cost = case_cost(plan);
    for (double share = 0.2; share < 1; share += 0.3) {
        double least, most;
        decide_host_share(plan, cost, share);
        range_of_copies(plan, STW_COMPONENT_PARAMS, &least, &most);
        CU_ASSERT_TRUE(least > 0 && most < 1.5 * least);
        range_of_copies(plan, STW_COMPONENT_GRADS, &least, &most);
        CU_ASSERT_TRUE(least > 0 && most < 1.5 * least);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static void blocks_share_alike(void) {
    const char *one[] = {"node.gpus=1", NULL}, *eight[] = {"node.gpus=8", NULL};
    check_model("Qwen3-4B", one);
    check_model("Qwen3-4B", eight);
    check_model("Qwen3-30B-A3B", eight);
}

/* Bytes move in full: what is copied for all blocks is what lies on the host. */
static void nothing_is_lost(void) {
    const char *settings[] = {"node.gpus=2", NULL};
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    stw_cost *cost = case_cost(plan);
    decide_host_share(plan, cost, 0.37);
    uint64_t copied = 0, there = 0;
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == STW_OP_COPY_BLOCK &&
            program->ops[i].component == STW_COMPONENT_GRADS)
            copied += program->ops[i].bytes;
    for (uint32_t i = 0; i < plan->layouts[0]->n_regions; i++) {
        const stw_region *r = &plan->layouts[0]->regions[i];
        if (r->component == STW_COMPONENT_GRADS && r->tier == STW_TIER_HOST) there += r->bytes;
    }
    CU_ASSERT_TRUE(there > 0);
    CU_ASSERT_EQUAL(copied, there);
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static bool ascends(const stw_space *space) {
    for (uint32_t i = 1; i < space->n_segments; i++)
        if (space->segments[i].global_first < space->segments[i - 1].global_first) return false;
    return true;
}

static void groups_keep_their_order(void) {
    const char *fsdp2[] = {"engine=fsdp2", NULL}, *stowage[] = {NULL};
    stw_plan *plan = case_zoo("Qwen3-4B", fsdp2);
    CU_ASSERT_TRUE(ascends(&plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER]));
    stw_plan_free(plan);
    plan = case_zoo("Qwen3-4B", stowage);
    const stw_space *space = &plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER];
    CU_ASSERT_FALSE(ascends(space));
    CU_ASSERT_TRUE(space->n_segments <=
                   plan->model->n_tensors + STW_SPREADS_PER_UNIT * (STW_MAX_UNITS + 1));
    stw_space again;
    CHECK_OK(stw_job_space(plan->job, STW_SPACE_GRADS, 0, plan->pool, &again, err));
    CU_ASSERT_EQUAL_FATAL(again.n_segments, space->n_segments);
    CU_ASSERT_EQUAL(
        memcmp(again.segments, space->segments, space->n_segments * sizeof(stw_segment)), 0);
    stw_plan_free(plan);
}

STW_TEST_MAIN("engine spread", {"blocks share alike", blocks_share_alike},
              {"nothing is lost", nothing_is_lost},
              {"groups keep their order", groups_keep_their_order})
