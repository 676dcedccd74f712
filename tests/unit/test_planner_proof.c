/* SPDX-License-Identifier: Apache-2.0 */
/* No choice is simulated faster than the rows of the proof say: choices at random, most of which
 * nobody would plan. */
#include "planner/reading.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* Share by which rounding may lift a row above the simulation. */
static const double ABOVE = 1e-6;

#define CHOICES 60

static double simulated(const stw_cost *cost, const stw_choice *choice, stw_phase phase) {
    stw_pool *pool = stw_pool_new();
    stw_decisions decisions;
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    double seconds = 0;
    CHECK_OK(stw_cost_decide(cost, choice, pool, &decisions, err));
    CHECK_OK(stw_layout_new(cost->job, &decisions, cost->job->largest, &layout, err));
    CHECK_OK(stw_program_new_phases(cost->job, &decisions, layout, 1u << phase, &program, err));
    CHECK_OK(stw_read_seconds(cost->job, program, phase, stw_sim_seconds, &seconds, err));
    stw_layout_free(layout);
    stw_program_free(program);
    stw_pool_free(pool);
    return seconds;
}

/* Of one row alone; 0 where it does not hold. */
static double row_seconds(const stw_cost *cost, const stw_time_row *row, const stw_choice *choice) {
    stw_cost alone = *cost;
    stw_time_row copy = *row;
    stw_evaluation e;
    alone.time_rows = &copy;
    alone.n_time_rows = 1;
    stw_cost_evaluate(&alone, choice, &e);
    return e.stretch_s[row->stretch];
}

/* No row of a stretch is above what was simulated. */
static void check_stretch(const stw_cost *cost, const stw_choice *choice, stw_stretch stretch,
                          const char *what, double simulated_s) {
    for (uint32_t r = 0; r < cost->n_proof_rows; r++) {
        const stw_time_row *row = &cost->proof_rows[r];
        if (row->stretch != stretch) continue;
        const double seconds = row_seconds(cost, row, choice);
        const bool holds = seconds <= simulated_s * (1 + ABOVE);
        CU_ASSERT(holds);
        if (holds) continue;
        fprintf(stderr, "%s: %s says %.6g s, simulated are %.6g s (%+.4f%%); ring %u; units", what,
                row->name, seconds, simulated_s, 100 * (seconds / simulated_s - 1), choice->ring);
        for (uint32_t p = 0; p < cost->n_places; p++) fprintf(stderr, " %u", choice->units[p]);
        fprintf(stderr, "; blocks");
        for (uint32_t a = 0; a < cost->n_acts; a++) fprintf(stderr, " %u", choice->acts[a]);
        fprintf(stderr, "\n");
    }
}

static void check_case(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 11;
    char what[160];
    snprintf(what, sizeof what, "%s, %s", model, settings[0] != NULL ? settings[0] : "");
    for (int i = 0; i < CHOICES; i++) {
        case_choice(cost, &seed, &choice);
        check_stretch(cost, &choice, STW_STRETCH_STEP, what,
                      simulated(cost, &choice, STW_PHASE_OPTIMIZER_STEP));
        check_stretch(cost, &choice, STW_STRETCH_FORWARD, what,
                      simulated(cost, &choice, STW_PHASE_FORWARD_BACKWARD));
    }
    CU_ASSERT(cost->n_proof_rows > 0);
    stw_cost_free(cost);
    stw_plan_free(plan);
}

#define CASE(model, ...) check_case(model, (const char *const[]){__VA_ARGS__, NULL})

static void dense(void) {
    case_use_fixture();
    CASE("Qwen3-4B", "batch.seq_len=8192");
    CASE("Qwen3-0.6B", "node.gpus=1", "batch.seq_len=2048");
    CASE("Qwen3-1.7B", "nodes=2", "batch.seq_len=32768");
    CASE("Qwen3-1.7B", "precision.params=bf16", "precision.grads=bf16", "precision.master=fp32");
    CASE("Qwen3-4B", "parallel.cp=2", "batch.seq_len=16384");
}

static void grouped(void) {
    CASE("Gemma-3-1b", "batch.seq_len=4096");
    CASE("gpt-oss-20b", "batch.seq_len=4096");
    CASE("Qwen2.5-VL-3B-Instruct", "batch.seq_len=4096");
    CASE("Qwen3-30B-A3B", "nodes=4", "batch.seq_len=4096");
}

static void disks(void) {
    CASE("Qwen3-1.7B", "batch.seq_len=2048");
    CASE("Qwen3-1.7B", "prefetch.depth=2", "prefetch.bucket=8MiB");
    CASE("Qwen3-0.6B", "prefetch.depth=1", "prefetch.bucket=256MiB", "batch.grad_accumulation=4");
}

STW_TEST_MAIN("planner proof", {"dense", dense}, {"grouped", grouped}, {"disks", disks})
