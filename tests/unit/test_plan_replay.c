/* SPDX-License-Identifier: Apache-2.0 */
/* What torch reserves: replays of programs written here, and of plans on GPUs that are nearly full.
 */
#include "plan/files/verdict.h"
#include "plan/program/replay.h"
#include "planner/planner.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)

static stw_op bytes_op(stw_op_kind kind, stw_component component, uint64_t offset, uint64_t mib) {
    stw_op op = stw_op_make(kind, STW_STREAM_COMPUTE, STW_OP_NONE);
    op.component = component;
    op.from = op.to = STW_TIER_GPU;
    op.offset_bytes = offset;
    op.bytes = mib * MIB;
    return op;
}

static stw_replayed replay(const stw_program *program, const stw_allocator_settings *settings) {
    const stw_job job = {0};
    const stw_layout layout = {0};
    stw_replayed out;
    CHECK_OK(stw_program_replay(&job, &layout, program, settings, &out, err));
    return out;
}

/* Backward leaves gradients; the first step has an alloc of its own for them, later ones do not. */
static void a_first_step_takes_over_gradients(void) {
    stw_op ops[] = {bytes_op(STW_OP_ALLOC, STW_COMPONENT_GRADS, 4096, 100),
                    bytes_op(STW_OP_FREE, STW_COMPONENT_GRADS, 4096, 100),
                    bytes_op(STW_OP_ALLOC, STW_COMPONENT_GRADS, 0, 100),
                    bytes_op(STW_OP_FREE, STW_COMPONENT_GRADS, 0, 100)};
    stw_movement movements[] = {
        {STW_PHASE_FIRST_OPTIMIZER_STEP, .repeat = STW_REPEAT_FIRST, .first_op = 0, .n_ops = 2},
        {STW_PHASE_FORWARD_BACKWARD, .repeat = STW_REPEAT_EVERY_ITERATION, .first_op = 2,
         .n_ops = 1},
        {STW_PHASE_OPTIMIZER_STEP, .repeat = STW_REPEAT_LATER, .first_op = 3, .n_ops = 1}};
    const stw_program program = {.n_ops = 4, .ops = ops, .n_movements = 3, .movements = movements};
    const stw_replayed out = replay(&program, &(stw_allocator_settings){0});
    static const stw_phase phases[] = {STW_PHASE_FIRST_OPTIMIZER_STEP, STW_PHASE_FORWARD_BACKWARD,
                                       STW_PHASE_OPTIMIZER_STEP};
    for (int p = 0; p < 3; p++) {
        CU_ASSERT(out.most[phases[p]].has);
        CU_ASSERT_EQUAL(out.most[phases[p]].reserved_bytes, 100 * MIB);
    }
    CU_ASSERT_FALSE(out.iteration[1][STW_PHASE_FIRST_OPTIMIZER_STEP].has);
    CU_ASSERT_TRUE(out.iteration[2][STW_PHASE_OPTIMIZER_STEP].has);
}

/* Tensors stand for the allocs of a range: two of them on another stream, whose segments the
 * operations after it cannot use. What no torch allocates is left out. */
static void tensors_stand_for_operations(void) {
    stw_op ops[] = {bytes_op(STW_OP_ALLOC, STW_COMPONENT_CONTEXT, STW_OFFSET_EXTERNAL, 500),
                    bytes_op(STW_OP_ALLOC, STW_COMPONENT_UNSHARD, 0, 60),
                    bytes_op(STW_OP_FREE, STW_COMPONENT_UNSHARD, 0, 60),
                    bytes_op(STW_OP_ALLOC, STW_COMPONENT_ACTIVATIONS, 0, 50),
                    bytes_op(STW_OP_FREE, STW_COMPONENT_ACTIVATIONS, 0, 50)};
    stw_movement movement = {STW_PHASE_FORWARD_BACKWARD, .repeat = STW_REPEAT_EVERY_ITERATION,
                             .n_ops = 5};
    stw_tensor_event events[] = {{STW_TENSOR_TAKE, 1, 0, 40 * MIB, 0},
                                 {STW_TENSOR_TAKE, 1, 1, 20 * MIB, 0},
                                 {STW_TENSOR_DROP, 0, 0, 0, 0},
                                 {STW_TENSOR_DROP, 0, 1, 0, 0},
                                 {STW_TENSOR_EMPTY_CACHE, 0, STW_NO_BLOCK, 0, 0}};
    stw_tensor_range range = {.first_op = 1, .end_op = 3, .n_events = 4};
    stw_program program = {.n_ops = 5,
                           .ops = ops,
                           .n_movements = 1,
                           .movements = &movement,
                           .n_tensors = 2,
                           .n_ranges = 1,
                           .n_events = 5,
                           .ranges = &range,
                           .events = events};
    stw_replayed out = replay(&program, &(stw_allocator_settings){0});
    CU_ASSERT_EQUAL(out.most[STW_PHASE_FORWARD_BACKWARD].reserved_bytes, 110 * MIB);
    CU_ASSERT_EQUAL(out.most[STW_PHASE_FORWARD_BACKWARD].allocated_bytes, 60 * MIB);
    range.n_events = 5; /* the segments of 40 and 20 go before 50 is taken */
    out = replay(&program, &(stw_allocator_settings){0});
    CU_ASSERT_EQUAL(out.iteration[0][STW_PHASE_FORWARD_BACKWARD].reserved_bytes, 60 * MIB);
    range.n_events = 4;
    out = replay(&program, &(stw_allocator_settings){.device_bytes = 70 * MIB});
    CU_ASSERT_FALSE(out.full); /* 50 after a retry */
    CU_ASSERT(out.retries > 0);
    out = replay(&program, &(stw_allocator_settings){.device_bytes = 55 * MIB});
    CU_ASSERT_TRUE(out.full);
    CU_ASSERT_EQUAL(out.full_at, STW_PHASE_FORWARD_BACKWARD);
    CU_ASSERT_EQUAL(out.full_bytes, 20 * MIB);
}

/* A movement of three micro batches: a sum begins in the first one, is added to in the second, and
 * is reduced in the last. What no range replaces is allocated once. */
static void micro_batches_are_passed_through(void) {
    stw_op ops[] = {bytes_op(STW_OP_ALLOC, STW_COMPONENT_STAGE, 0, 100),
                    bytes_op(STW_OP_ALLOC, STW_COMPONENT_GRADS, 0, 1),
                    bytes_op(STW_OP_FREE, STW_COMPONENT_STAGE, 0, 100)};
    stw_movement movement = {STW_PHASE_FORWARD_BACKWARD, .repeat = STW_REPEAT_EVERY_ITERATION,
                             .n_ops = 3, .micro_batches = 3};
    stw_tensor_event events[] = {
        {STW_TENSOR_TAKE, 0, 0, 20 * MIB, 0},
        {STW_TENSOR_TAKE, 0, 1, 40 * MIB, STW_TENSOR_NOT_LATER},
        {STW_TENSOR_DROP, 0, 0, 0, STW_TENSOR_NOT_LAST},
        {STW_TENSOR_TAKE, 0, 2, 80 * MIB, STW_TENSOR_NOT_FIRST | STW_TENSOR_NOT_LAST},
        {STW_TENSOR_TAKE, 0, 3, 160 * MIB, STW_TENSOR_NOT_EARLIER},
        {STW_TENSOR_DROP, 0, 0, 0, 0},
        {STW_TENSOR_DROP, 0, 1, 0, STW_TENSOR_NOT_EARLIER},
        {STW_TENSOR_DROP, 0, 2, 0, STW_TENSOR_NOT_EARLIER},
        {STW_TENSOR_DROP, 0, 3, 0, STW_TENSOR_NOT_EARLIER}};
    stw_tensor_range range = {.first_op = 1, .end_op = 2, .n_events = 9};
    stw_program program = {.n_ops = 3,
                           .ops = ops,
                           .n_movements = 1,
                           .movements = &movement,
                           .n_tensors = 4,
                           .n_ranges = 1,
                           .n_events = 9,
                           .ranges = &range,
                           .events = events};
    stw_replayed out = replay(&program, &(stw_allocator_settings){0});
    CU_ASSERT_EQUAL(out.iteration[0][STW_PHASE_FORWARD_BACKWARD].allocated_bytes, 400 * MIB);
    CU_ASSERT_EQUAL(out.iteration[1][STW_PHASE_FORWARD_BACKWARD].allocated_bytes, 400 * MIB);
    movement.micro_batches = 2; /* there is none between the first and the last */
    out = replay(&program, &(stw_allocator_settings){0});
    CU_ASSERT_EQUAL(out.most[STW_PHASE_FORWARD_BACKWARD].allocated_bytes, 320 * MIB);
    movement.micro_batches = 1;
    out = replay(&program, &(stw_allocator_settings){0});
    CU_ASSERT_EQUAL(out.most[STW_PHASE_FORWARD_BACKWARD].allocated_bytes, 320 * MIB);
}

static uint64_t most_reserved(const stw_plan *plan) {
    uint64_t most = 0;
    for (int p = 0; p < STW_N_PHASES; p++)
        most = stw_max_u64(most, plan->replayed[0].most[p].reserved_bytes);
    return most;
}

/* Derive and judge the plan anew on a GPU of another size. */
static void on_gpu_of(stw_plan *plan, uint64_t bytes) {
    plan->cluster.gpu.memory_bytes = bytes;
    CHECK_OK(stw_plan_derive(plan, err));
    stw_plan_judge(plan);
}

/* Where memory is plenty, plans show what is reserved. Where it is less, cached segments are given
 * back: at risk, since other orders of allocation may find no room. Where all bytes just fit, it is
 * torn. */
static void a_gpu_that_is_nearly_full(void) {
    static const char *const settings[] = {"engine=fsdp2",
                                           "optimizer.implementation=fused",
                                           "batch.seq_len=4096",
                                           "node.gpus=4",
                                           "recompute.granularity=full",
                                           "node.gpu.memory=141 GiB",
                                           NULL};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    CHECK_OK(stw_planner_solve(plan, &(stw_planner_options){.no_prices = true}, err));
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_FITS);
    CU_ASSERT_FALSE(stw_plan_is_torn(plan));
    uint64_t walked = 0, others = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *peak = &plan->peaks[0].phase[p][STW_TIER_GPU];
        const stw_peak *shown = &plan->shown[0].phase[p][STW_TIER_GPU];
        uint64_t sum = 0;
        for (int c = 0; c < STW_N_COMPONENTS; c++) sum += shown->components[c];
        CU_ASSERT_EQUAL(sum, shown->total);
        CU_ASSERT_EQUAL(stw_peak_allocated(shown), stw_peak_allocated(peak));
        if (plan->peaks[0].has[p])
            CU_ASSERT_EQUAL(
                stw_peak_reserved(shown),
                stw_max_u64(plan->replayed[0].most[p].reserved_bytes, stw_peak_allocated(peak)));
        others = stw_max_u64(others, peak->components[STW_COMPONENT_CONTEXT] +
                                         peak->components[STW_COMPONENT_COMM]);
        walked = stw_max_u64(walked, peak->total);
    }
    const uint64_t free_bytes = most_reserved(plan);
    CU_ASSERT(free_bytes + others > walked + walked / 5);
    on_gpu_of(plan, others + free_bytes - 4096 * MIB);
    CU_ASSERT_FALSE(stw_plan_is_torn(plan));
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_AT_RISK);
    CU_ASSERT_EQUAL(stw_plan_trial_verdict(plan), STW_VERDICT_FITS);
    stw_risk risks[STW_MAX_RISKS];
    CU_ASSERT_EQUAL(stw_plan_risks(plan, 0, risks), 1);
    CU_ASSERT_EQUAL(risks[0].kind, STW_RISK_RETRIES);
    CU_ASSERT(plan->replayed[0].retries > 0);
    CU_ASSERT(most_reserved(plan) < free_bytes);
    on_gpu_of(plan, walked + walked / 40);
    CU_ASSERT_TRUE(stw_plan_is_torn(plan));
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_AT_RISK);
    plan->run.allocator.expandable_segments = true;
    on_gpu_of(plan, 141ull << 30);
    CU_ASSERT(most_reserved(plan) < free_bytes);
    stw_plan_free(plan);
}

/* An engine with one arena has no caching allocator. */
static void an_arena_is_not_replayed(void) {
    static const char *const settings[] = {"engine=stowage", "node.gpus=4", NULL};
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    CHECK_OK(stw_planner_solve(plan, &(stw_planner_options){.no_prices = true}, err));
    CU_ASSERT_EQUAL(most_reserved(plan), 0);
    CU_ASSERT_EQUAL(memcmp(&plan->shown[0], &plan->peaks[0], sizeof plan->peaks[0]), 0);
    stw_plan_free(plan);
}

int main(void) {
    static const stw_test tests[] = {
        {"a first step takes over gradients", a_first_step_takes_over_gradients},
        {"tensors stand for operations", tensors_stand_for_operations},
        {"micro batches are passed through", micro_batches_are_passed_through},
        {"a GPU that is nearly full", a_gpu_that_is_nearly_full},
        {"an arena is not replayed", an_arena_is_not_replayed},
    };
    return stw_test_run_all("replay", tests, sizeof tests / sizeof tests[0]);
}
