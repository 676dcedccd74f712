/* SPDX-License-Identifier: Apache-2.0 */
/* Whichever CUDA call fails, it ends in an error that names it, and everything is given back. Exit
 * 77 without a GPU. */
#include "tests/gpu/scenario.h"

#include "backend/executor/run.h"
#include "tests/faults/faults.h"
#include "tests/unit/fixture.h"

/* Is this the error of the call that was made to fail, and does it name the call? */
static bool told(stw_status status, const stw_error *error) {
    return status == STW_STATUS_DEVICE && error->native == (long)cudaErrorUnknown &&
           (strncmp(error->where, "cuda", 4) == 0 || strncmp(error->where, "stw_cuda", 8) == 0) &&
           strstr(error->text, "cudaErrorUnknown") != NULL;
}

static void every_call_may_fail(void) {
    static const stw_element_types types = {STW_ELEMENT_BF16, STW_ELEMENT_BF16, STW_ELEMENT_F32,
                                            STW_ELEMENT_F32, STW_ELEMENT_F32};
    outcome out;
    stw_fault_set(NULL, 0);
    CHECK_OK(run_scenario(cuda, &types, 1, &out, err));
    uint64_t calls = stw_fault_count(""), silent = 0;
    CU_ASSERT_TRUE(calls > 100);
    for (uint64_t k = 1; k <= calls; k += k < 150 ? 1 : 5) {
        stw_error error = STW_ERROR_INIT;
        stw_fault_set("*", k);
        stw_status status = run_scenario(cuda, &types, 1, &out, &error);
        if (!told(status, &error) && silent++ < 5)
            fprintf(stderr, "call %llu: status %d, %s: %s\n", (unsigned long long)k, (int)status,
                    error.where, error.text);
        empty_folder();
    }
    CU_ASSERT_EQUAL(silent, 0);
    stw_fault_set(NULL, 0);
    CHECK_OK(run_scenario(cuda, &types, 1, &out, err));
}

static stw_plan *small_plan(void) {
    static const char *const settings[] = {"optimizer.clip_norm=0.5", NULL};
    static const fixture_size size = {2, 64, 128, 512};
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
    static const uint32_t units[] = {10, 12, 12, 0};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 4, places, units);
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static uint64_t used_bytes(void) {
    size_t unused = 0, total = 0;
    CU_ASSERT_EQUAL(cudaMemGetInfo(&unused, &total), cudaSuccess);
    return total - unused;
}

/* Every `stride`-th call from the first on; how many there were in a good run. */
static uint64_t fail_calls_of_a_run(const stw_plan *plan, const stw_executor_options *options,
                                    uint64_t first, uint64_t stride) {
    stw_run_result *result = NULL;
    stw_fault_set(NULL, 0);
    CHECK_OK(stw_execute_with(plan, options, cuda, &result, err));
    uint64_t calls = stw_fault_count(""), wrong = 0;
    if (result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    uint64_t used = used_bytes();
    CU_ASSERT_TRUE(calls > 200);
    for (uint64_t k = first; k <= calls; k += stride) {
        stw_error error = STW_ERROR_INIT;
        stw_fault_set("*", k);
        stw_status status = stw_execute_with(plan, options, cuda, &result, &error);
        /* Threads may need a call less than before; then none was made to fail. */
        bool reached = stw_fault_count("") >= k;
        bool right = reached ? told(status, &error) && result == NULL : status == STW_STATUS_OK;
        if (!right && wrong++ < 5)
            fprintf(stderr, "call %llu of %llu: status %d, %s: %s\n", (unsigned long long)k,
                    (unsigned long long)stw_fault_count(""), (int)status, error.where, error.text);
        stw_run_result_free(result);
        empty_folder();
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(used_bytes() <= used + 2 * MIB); /* failed runs give everything back */
    stw_fault_set(NULL, 0);
    CHECK_OK(stw_execute_with(plan, options, cuda, &result, err));
    if (result != NULL) CU_ASSERT_EQUAL(result->mismatched, 0);
    stw_run_result_free(result);
    return calls;
}

/* What the GPU says of when it worked: in the order of streams and of what waits for what. */
static void check_times(const stw_program *program, const stw_timeline *t) {
    unsigned wrong = 0;
    double free_from_s[STW_N_STREAMS] = {0};
    CU_ASSERT_EQUAL_FATAL(t->n_ops, program->n_ops);
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const bool ran =
            movement->repeat == STW_REPEAT_ONCE || movement->repeat == STW_REPEAT_FIRST;
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            if (op->kind == STW_OP_ALLOC || op->kind == STW_OP_FREE) continue;
            wrong += isnan(t->start_s[i]) == ran;
            if (isnan(t->start_s[i])) continue;
            wrong += t->end_s[i] < t->start_s[i] || t->start_s[i] < free_from_s[op->stream] - 5e-5;
            free_from_s[op->stream] = t->end_s[i];
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* What a benchmark does between steps. */
static stw_status measure_link(void *state, stw_rank_run *run, uint32_t iteration, stw_error *err) {
    const stw_link_shape shape = {MIB, 1, 4};
    double seconds = 0;
    (void)state;
    (void)iteration;
    return run->backend->link_seconds(run->device, &shape, 64 * MIB, &seconds, err);
}

/* The whole executor: loads and a step with all engines, every single call; then what comes on top,
 * which is much of the same: digests and a replay of single elements, and the link beside. */
static void every_call_of_a_run_may_fail(void) {
    stw_plan *plan = small_plan();
    stw_executor_options options = {.backend = "cuda",
                                    .steps = 1,
                                    .seed = 11,
                                    .nvme_folder = folder,
                                    .nvme_in_memory = true,
                                    .no_digest = true};
    alarm(450); /* a hang must not look like patience */
    uint64_t calls = fail_calls_of_a_run(plan, &options, 1, 1);
    options.no_digest = false;
    (void)fail_calls_of_a_run(plan, &options, calls - 20, 61);
    options.no_digest = true;
    options.after_iteration = measure_link;
    (void)fail_calls_of_a_run(plan, &options, calls / 2, 7);
    stw_timeline timeline = {0};
    options.after_iteration = NULL;
    options.timeline = &timeline;
    (void)fail_calls_of_a_run(plan, &options, calls / 2, 31);
    check_times(plan->programs[0], &timeline);
    stw_timeline_free(&timeline);
    alarm(0);
    stw_plan_free(plan);
}

int main(void) {
    static const stw_test tests[] = {
        {"every failing CUDA call ends in an error", every_call_may_fail},
        {"every failing CUDA call of a run ends it", every_call_of_a_run_may_fail},
    };
    return run_tests_on_gpu("cuda failures", tests, sizeof tests / sizeof tests[0]);
}
