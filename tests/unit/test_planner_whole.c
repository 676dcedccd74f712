/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of seconds are lower bounds of the simulation, for engines whose units all share one place:
 * choices at random, of which few are among those that the rows were made of. */
#include <math.h>

#include "planner/reading.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* Shares: by how much rows may be above the simulation, and below it. */
static const double ABOVE = 1e-4;
#define BELOW 5e-3

#define CHOICES 6

/* Seconds of a phase of the slowest kind of rank whose seconds count. */
static double simulated(const stw_cost *cost, const stw_choice *choice, stw_phase phase) {
    stw_pool *pool = stw_pool_new();
    stw_decisions decisions;
    double most = 0;
    CHECK_OK(stw_cost_decide(cost, choice, pool, &decisions, err));
    for (uint32_t k = 0; k < cost->job->n_kinds; k++) {
        stw_layout *layout = NULL;
        stw_program *program = NULL;
        double seconds = 0;
        if (!stw_kind_is_timed(cost->job, k)) continue;
        CHECK_OK(stw_layout_new(cost->job, &decisions, k, &layout, err));
        CHECK_OK(stw_program_new_phases(cost->job, &decisions, layout, 1u << phase, &program, err));
        CHECK_OK(stw_read_seconds(cost->job, program, phase, stw_sim_seconds, &seconds, err));
        most = fmax(most, seconds);
        stw_layout_free(layout);
        stw_program_free(program);
    }
    stw_pool_free(pool);
    return most;
}

static void check_stretch(const char *what, double rows, double simulated_s, double below) {
    const bool holds = rows <= simulated_s * (1 + ABOVE) && rows >= simulated_s * (1 - below);
    CU_ASSERT(holds);
    if (!holds)
        fprintf(stderr, "%s: %.6g s by the rows, %.6g s simulated (%+.4f%%)\n", what, rows,
                simulated_s, 100 * (rows / simulated_s - 1));
}

static void check_case(const char *model, double below, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 20;
    CU_ASSERT(cost->whole);
    for (int i = 0; i < CHOICES; i++) {
        stw_evaluation e;
        char what[160];
        case_choice(cost, &seed, &choice);
        stw_cost_evaluate(cost, &choice, &e);
        snprintf(what, sizeof what, "%s, %s, choice %d: ", model, settings[0], i);
        const size_t n = strlen(what);
        snprintf(what + n, sizeof what - n, "step");
        check_stretch(what, e.stretch_s[STW_STRETCH_NORM] + e.stretch_s[STW_STRETCH_STEP],
                      simulated(cost, &choice, STW_PHASE_OPTIMIZER_STEP), below);
        snprintf(what + n, sizeof what - n, "forward and backward");
        check_stretch(what, e.stretch_s[STW_STRETCH_FORWARD] + e.stretch_s[STW_STRETCH_BACKWARD],
                      simulated(cost, &choice, STW_PHASE_FORWARD_BACKWARD), below);
    }
    stw_cost_free(cost);
    stw_plan_free(plan);
}

#define CASE(model, ...) check_case(model, BELOW, (const char *const[]){__VA_ARGS__, NULL})

static void fsdp2(void) {
    case_use_fixture();
    CASE("Qwen3-4B", "engine=fsdp2", "batch.seq_len=8192");
    CASE("Qwen3-4B", "engine=fsdp2", "parallel.tp=2", "batch.seq_len=4096");
    CASE("Qwen3-1.7B", "engine=fsdp2", "nodes=2", "parallel.cp=2", "batch.seq_len=16384");
    CASE("Gemma-3-1b", "engine=fsdp2", "batch.seq_len=4096");
    CASE("Qwen3-30B-A3B", "engine=fsdp2", "nodes=4", "batch.seq_len=4096");
    CASE("Qwen3-4B", "engine=fsdp2", "placement.activations=offload", "batch.seq_len=4096");
    CASE("Qwen3-1.7B", "engine=fsdp2", "optimizer.implementation=streamed",
         "placement.moments=host");
    CASE("Qwen3-1.7B", "engine=fsdp2", "fsdp.offload_policy=true");
    CASE("Qwen3-1.7B", "engine=fsdp2", "park.moments=host", "placement.moments=gpu");
}

static void deepspeed(void) {
    CASE("Qwen3-4B", "engine=deepspeed", "batch.seq_len=4096");
    CASE("Qwen3-1.7B", "engine=deepspeed", "deepspeed.offload_optimizer=cpu", "nodes=2");
    CASE("Qwen3-8B", "engine=deepspeed", "deepspeed.offload_optimizer=cpu",
         "deepspeed.sub_group_size=1e8", "batch.grad_accumulation=4");
    CASE("Gemma-2-2b", "engine=deepspeed", "deepspeed.zero_stage=2", "batch.seq_len=2048");
    CASE("Qwen2.5-VL-3B-Instruct", "engine=deepspeed", "batch.seq_len=4096");
}

static void pipelines(void) {
    CASE("Qwen3-4B", "engine=megatron", "parallel.pp=4", "batch.grad_accumulation=8");
    CASE("Qwen3-4B", "engine=megatron", "nodes=2", "parallel.pp=2", "parallel.vpp=2",
         "parallel.tp=2", "batch.grad_accumulation=8");
    /* unequal stages: seconds are no convex function of the counts */
    const char *unequal[] = {"engine=megatron",
                             "parallel.pp=4",
                             "batch.grad_accumulation=8",
                             "megatron.first_stage_layers=7",
                             "megatron.last_stage_layers=7",
                             NULL};
    check_case("Qwen3-8B", 0.02, unequal);
}

static void megatron(void) {
    CASE("Qwen3-4B", "engine=megatron", "parallel.tp=2", "parallel.sequence_parallel=true");
    CASE("Qwen3-0.6B", "engine=megatron", "megatron.optimizer_cpu_offload=true");
    CASE("gpt-oss-20b", "engine=megatron", "parallel.ep=8", "batch.seq_len=4096");
    CASE("Qwen3-30B-A3B", "engine=megatron", "parallel.ep=8", "batch.seq_len=4096");
    CASE("Qwen2.5-VL-3B-Instruct", "engine=megatron", "parallel.tp=2", "batch.seq_len=8192");
}

STW_TEST_MAIN("planner whole", {"fsdp2", fsdp2}, {"deepspeed", deepspeed}, {"megatron", megatron},
              {"pipelines", pipelines})
