/* SPDX-License-Identifier: Apache-2.0 */
/* What planning costs, in operations of the programs that it builds: engines that count stand in
 * for the built-in ones. Models of a trillion parameters that fit nowhere must not cost more than
 * others. */
#include "engines/built_in.h"
#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* Forward, backward and a step by groups take some ten operations a block each. */
#define OPERATIONS_PER_BLOCK 50
#define MOST_PROGRAMS 1400
#define WHOLE_PER_FIX 8 /* of a kind of rank: the search among plans, and the last one */

static struct {
    uint64_t operations, longest; /* of all programs, of one */
    uint64_t pieces;              /* that loads are cut into */
    uint32_t programs;
    uint64_t most;  /* operations of a program without its moves */
    uint32_t whole; /* programs with more */
} work;

static void count(const stw_program *program) {
    work.programs++;
    work.operations += program->n_ops;
    if (program->n_ops > work.longest) work.longest = program->n_ops;
    work.whole += program->n_ops > work.most;
    for (uint32_t m = 0; m < program->n_movements; m++)
        work.pieces += program->movements[m].transfer.n_pieces;
}

static stw_status build_fsdp2(const stw_job *job, const stw_decisions *decisions,
                              const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_status status = stw_engine_fsdp2.build(job, decisions, layout, program, err);
    count(program);
    return status;
}

static stw_status build_stowage(const stw_job *job, const stw_decisions *decisions,
                                const stw_layout *layout, stw_program *program, stw_error *err) {
    stw_status status = stw_engine_stowage.build(job, decisions, layout, program, err);
    count(program);
    return status;
}

/* Twins of the built-in engines, which keep their sections of keys to themselves. */
static stw_engine counted_fsdp2, counted_stowage;

static stw_status register_twins(stw_error *err) {
    counted_fsdp2 = stw_engine_fsdp2;
    counted_fsdp2.spec.name = "counted_fsdp2";
    counted_fsdp2.spec.section = NULL;
    counted_fsdp2.build = build_fsdp2;
    counted_stowage = stw_engine_stowage;
    counted_stowage.spec.name = "counted_stowage";
    counted_stowage.build = build_stowage;
    stw_status status = stw_engine_register(&counted_fsdp2, err);
    return status == STW_STATUS_OK ? stw_engine_register(&counted_stowage, err) : status;
}

static stw_plan *planned(const char *model, const char *const *settings) {
    const stw_planner_options options = {.time_limit_s = 60};
    stw_plan *plan = case_zoo(model, settings);
    memset(&work, 0, sizeof work);
    work.most = OPERATIONS_PER_BLOCK * (plan->model->n_blocks + 10);
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

/* Changes that are offered are planned to the end, the others by their bytes alone. */
static void check_length(const stw_plan *plan) {
    const uint32_t whole = WHOLE_PER_FIX * plan->n_fixes * plan->job->n_kinds;
    if (work.whole > whole || work.pieces > 100 * (uint64_t)work.programs)
        printf("  %u programs, %u whole of at most %u, %llu pieces\n", work.programs, work.whole,
               whole, (unsigned long long)work.pieces);
    CU_ASSERT(work.programs > 0 && work.whole <= whole);
    CU_ASSERT(work.pieces <= 100 * (uint64_t)work.programs);
}

/* Neither its load nor its step is read operation by operation where nothing fits. */
static void giants_have_short_programs(void) {
    const char *fsdp2[] = {"engine=counted_fsdp2", "node.gpus=1", NULL};
    const char *stowage[] = {"engine=counted_stowage", "node.gpus=1", NULL};
    const char *nvme[] = {"engine=counted_stowage", "node.gpus=1", "node.nvme.capacity=2000 GiB",
                          NULL};
    const char *const *cases[] = {fsdp2, stowage, nvme};
    for (int i = 0; i < 3; i++) {
        stw_plan *plan = planned("Kimi-K2", cases[i]);
        CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
        check_length(plan);
        /* of some forty changes and limits that are tried, and not one needs seconds */
        if (work.programs > MOST_PROGRAMS) printf("  %u programs\n", work.programs);
        CU_ASSERT(work.programs <= MOST_PROGRAMS);
        stw_plan_free(plan);
    }
}

/* Programs without moves have the peaks of those with all operations. */
static void short_programs_have_all_peaks(void) {
    const char *const engines[] = {"engine=fsdp2", "engine=stowage"};
    for (int e = 0; e < 2; e++) {
        const char *settings[] = {engines[e],
                                  "node.gpus=2",
                                  "node.gpu.memory=8 GiB",
                                  "node.nvme.capacity=50 GiB",
                                  "optimizer.implementation=streamed",
                                  NULL};
        stw_plan *plan = planned("Qwen3-32B", settings);
        CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
        uint32_t kinds = plan->job->n_kinds, n_ops = plan->programs[0]->n_ops;
        stw_peaks *before = calloc(kinds, sizeof *before);
        memcpy(before, plan->peaks, kinds * sizeof *before);
        CHECK_OK(stw_plan_derive(plan, err));
        CU_ASSERT(plan->programs[0]->n_ops > 2 * n_ops);
        CU_ASSERT_EQUAL(memcmp(before, plan->peaks, kinds * sizeof *before), 0);
        free(before);
        stw_plan_free(plan);
    }
}

/* GPU and host memory are both nearly full, and a quantum on NVMe costs as much as the gap: no
 * search may go through the fractions of quanta that fit into neither. */
static void fractions_of_quanta_are_not_searched(void) {
    const char *const models[] = {"Qwen2.5-72B", "Llama-4-Scout"};
    uint64_t nodes = 0;
    for (int m = 0; m < 2; m++)
        for (unsigned gib = 440; gib <= 490; gib += 10) {
            char limit[64];
            snprintf(limit, sizeof limit, "node.host.limit=%u GiB", gib);
            const char *settings[] = {"node.gpus=4", "node.gpu.memory=139.8 GiB", limit,
                                      "node.nvme.capacity=2000 GiB", NULL};
            stw_plan *plan = case_zoo(models[m], settings);
            stw_cost *cost = case_cost(plan);
            stw_choice choice = stw_choice_new(cost, cost->pool);
            const stw_ilp_options options = {.time_limit_s = 60, .gap = 1e-4};
            stw_ilp_result result;
            CHECK_OK(stw_ilp_solve(cost, &options, &choice, &result, err));
            CU_ASSERT_EQUAL(result.outcome, STW_MILP_OPTIMAL);
            nodes += result.nodes;
            stw_cost_free(cost);
            stw_plan_free(plan);
        }
    CU_ASSERT(nodes > 0 && nodes < 500);
}

int main(void) {
    static const stw_test tests[] = {
        {"giants have short programs", giants_have_short_programs},
        {"short programs have all peaks", short_programs_have_all_peaks},
        {"fractions of quanta are not searched", fractions_of_quanta_are_not_searched},
    };
    case_use_fixture();
    if (register_twins(NULL) != STW_STATUS_OK) return 2;
    return stw_test_run_all("planner work", tests, sizeof tests / sizeof tests[0]);
}
