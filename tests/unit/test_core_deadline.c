/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of a thread: what is checked under one, and what a plan makes of it. */
#include "core/deadline.h"

#include <math.h>

#include "models/internal.h"
#include "plan/program/builder.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static void none_is_set_at_first(void) {
    case_use_fixture();
    CU_ASSERT(isinf(stw_deadline_end_s()));
    CHECK_OK(stw_deadline_check("waiting", err));
    double now_s = stw_now_s();
    CU_ASSERT(stw_now_s() >= now_s);
}

static void a_deadline_that_has_passed_is_an_error(void) {
    CU_ASSERT(isinf(stw_deadline_set(stw_now_s() + 60)));
    CHECK_OK(stw_deadline_check("waiting", err));
    double before = stw_deadline_set(stw_now_s() - 1);
    CU_ASSERT(isfinite(before));
    CHECK_FAILS(stw_deadline_check("waiting", err), STW_STATUS_TIME_LIMIT, "while waiting");
    CHECK_OK(stw_deadline_check_step(1, "waiting", err)); /* the clock is asked now and then */
    CHECK_FAILS(stw_deadline_check_step(1023, "waiting", err), STW_STATUS_TIME_LIMIT, "waiting");
    CU_ASSERT_EQUAL(stw_status_exit_code(STW_STATUS_TIME_LIMIT), 5);
    (void)stw_deadline_set((double)INFINITY);
}

static void reading_cutting_and_planning_end(void) {
    static const char *const settings[] = {"node.gpu.memory=60 GiB", NULL};
    stw_model *model = NULL;
    stw_plan *plan = case_zoo("Qwen3-4B", settings);
    stw_cluster cluster = plan->cluster;
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    stw_planner_options options = {.no_prices = true, .simulate = stw_sim_seconds};
    (void)stw_deadline_set(stw_now_s());
    CHECK_FAILS(stw_model_open("Qwen3-4B", STW_SOURCE_MODELS, &model, err), STW_STATUS_TIME_LIMIT,
                "reading the model");
    CHECK_FAILS(stw_planner_solve(plan, &options, err), STW_STATUS_TIME_LIMIT, "building programs");
    (void)stw_deadline_set((double)INFINITY);
    CHECK_OK(stw_model_open("Qwen3-4B", STW_SOURCE_MODELS, &model, err));
    (void)stw_deadline_set(stw_now_s());
    stw_plan *other = NULL;
    CHECK_FAILS(stw_plan_new(model, &cluster, &run, &other, err), STW_STATUS_TIME_LIMIT,
                "cutting the model");
    (void)stw_deadline_set((double)INFINITY);
    /* and nothing of it is left: the same plan is made in time */
    CHECK_OK(stw_planner_solve(plan, &options, err));
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_FITS);
    stw_run_spec_free(&run);
    stw_plan_free(plan);
}

/* A search that ends early keeps what it has: every limit gives the error or a whole plan. */
static void a_plan_in_hand_is_kept(void) {
    static const char *const settings[] = {"node.gpu.memory=40 GiB", "batch.seq_len=16384", NULL};
    uint32_t plans = 0, errors = 0;
    for (double limit_s = 0.002; limit_s < 3 && plans < 4; limit_s *= 1.4) {
        stw_plan *plan = case_zoo("Qwen3-4B", settings);
        stw_planner_options options = {.time_limit_s = limit_s / 2, .simulate = stw_sim_seconds};
        stw_error why = STW_ERROR_INIT;
        (void)stw_deadline_set(stw_now_s() + limit_s);
        stw_status status = stw_planner_solve(plan, &options, &why);
        (void)stw_deadline_set((double)INFINITY);
        CU_ASSERT(status == STW_STATUS_OK || status == STW_STATUS_TIME_LIMIT);
        if (status == STW_STATUS_OK) {
            plans++;
            CHECK_OK(stw_plan_check(plan, true, err));
            CU_ASSERT(plan->verdict != STW_VERDICT_DOES_NOT_FIT);
        } else {
            errors++;
            CU_ASSERT_STRING_NOT_EQUAL(why.text, "");
        }
        stw_plan_free(plan);
    }
    CU_ASSERT(plans > 0);
    CU_ASSERT(errors > 0);
}

/* ---- bounds ---- */

static void operations_are_bounded(void) {
    static const char *const none[] = {NULL};
    stw_plan *plan = case_zoo("Qwen3-0.6B", none);
    const stw_planner_options options = {.no_prices = true};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    stw_program program = {.pool = stw_pool_new()};
    stw_builder b;
    stw_error why = STW_ERROR_INIT;
    stw_builder_init(&b, plan->job, &plan->decisions, plan->layouts[0], &program, &why);
    program.n_ops = STW_MAX_OPS; /* as if so many had been appended */
    CU_ASSERT_EQUAL(stw_append(&b, stw_op_make(STW_OP_COMMIT, STW_STREAM_DISK, 0)), STW_OP_NONE);
    CU_ASSERT_EQUAL(stw_builder_finish(&b), STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(why.text, "4194304 operations"));
    stw_pool_free(program.pool);
    stw_plan_free(plan);
}

static void models_and_clusters_are_bounded(void) {
    static const char head[] = "name,shape,dtype\n";
    stw_model *model = NULL;
    stw_text csv = STW_TEXT_INIT;
    stw_text_printf(&csv, "%sa.weight,\"[1048576, 8388608]\",BF16\nb.weight,[1],BF16\n", head);
    CHECK_FAILS(stw_model_parse_csv("large.csv", csv.data, csv.length, &model, err),
                STW_STATUS_BAD_INPUT,
                "found 8796093022209 parameters (8796093022208 in a.weight), expected at most "
                "8796093022208");
    stw_text_free(&csv);
    stw_text_printf(&csv, "%sa.weight,\"[1048576, 8388608]\",BF16\n", head);
    CHECK_OK(stw_model_parse_csv("large.csv", csv.data, csv.length, &model, err));
    stw_text_free(&csv);

    stw_cluster cluster = fixture_cluster(8);
    cluster.gpus = 256;
    cluster.nodes = 1025;
    stw_run_spec run;
    stw_plan *plan = NULL;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_FAILS(stw_plan_new(model, &cluster, &run, &plan, err), STW_STATUS_BAD_INPUT,
                "nodes: found 1025 nodes of 256 GPUs, expected at most 262144 GPUs");
    stw_run_spec_free(&run);
}

STW_TEST_MAIN("core deadline", {"none is set at first", none_is_set_at_first},
              {"one that has passed is an error", a_deadline_that_has_passed_is_an_error},
              {"reading, cutting and planning end", reading_cutting_and_planning_end},
              {"a plan in hand is kept", a_plan_in_hand_is_kept},
              {"operations are bounded", operations_are_bounded},
              {"models and clusters are bounded", models_and_clusters_are_bounded})
