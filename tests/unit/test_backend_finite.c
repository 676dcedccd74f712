/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient that is NaN or infinite, on the host backend: what torch's clip_grad_norm_ makes of
 * it, and the refusal of a step that has one. The same bits wherever the state lies is
 * unit.backend_executor's; several ranks are cli.nonfinite's. */
#define _DEFAULT_SOURCE
#include <math.h>

#include "backend/executor/session.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/lent.h"
#include "tests/unit/testing.h"

static const fixture_size size = {2, 64, 128, 512};
static const stw_place everywhere[] = {FIXTURE_RESIDENT, FIXTURE_STREAM,  FIXTURE_DIRECT,
                                       FIXTURE_CPU,      FIXTURE_CPU_ALL, FIXTURE_NVME};
#define N_PLACES (sizeof everywhere / sizeof everywhere[0])

static char logged[1024];
static void keep_log(stw_log_level level, const char *text, void *user) {
    (void)user;
    if (level == STW_LOG_WARN) snprintf(logged, sizeof logged, "%s", text);
}

static stw_plan *plan_in(const stw_place *place, const char *clip) {
    const char *const settings[] = {clip, "optimizer.groups=[{match: [1d], weight_decay: 0}]",
                                    NULL};
    const uint32_t all = UINT32_MAX;
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    fixture_state(plan, 1, place, &all);
    plan->decisions.prefetch.depth = 2;
    plan->decisions.prefetch.bucket_bytes = 1 << 20;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_executor_options options_of(void) {
    return (stw_executor_options){
        .backend = "host", .steps = 4, .seed = 11, .nvme_in_memory = true, .caller = lent_memory()};
}

/* Digest of a component whose every element is the one NaN. */
static uint64_t digest_of_nans(uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += stw_digest_element(i, STW_NAN_BITS);
    return sum;
}

/* One NaN: norm, factor and all that is updated are NaN, and stay so. */
static void a_nan_is_seen_everywhere(void) {
    stw_log_set(keep_log, NULL);
    for (size_t p = 0; p < N_PLACES; p++) {
        stw_plan *plan = plan_in(&everywhere[p], "optimizer.clip_norm=1");
        stw_executor_options options = options_of();
        stw_run_result *result = NULL;
        options.other_grad = (stw_other_grad){3, 777, (float)NAN};
        logged[0] = '\0';
        CHECK_OK(stw_execute(plan, &options, &result, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(result);
        const uint64_t nans = digest_of_nans(plan->model->params);
        for (int d = 0; d < 3; d++) CU_ASSERT_EQUAL(result->digest[d], nans);
        CU_ASSERT_EQUAL(result->mismatched, 0);
        CU_ASSERT_TRUE(result->clips && isfinite(result->grad_norm)); /* of step 4 */
        CU_ASSERT_EQUAL(result->nonfinite_steps, 1);
        CU_ASSERT_EQUAL(result->first_nonfinite_step, 3);
        CU_ASSERT_PTR_NOT_NULL(strstr(logged, "step 3: the gradient norm is NaN"));
        stw_run_result_free(result);
        stw_plan_free(plan);
    }
    stw_log_set(NULL, NULL);
}

/* In the last step: what the result says of the norm. */
static void the_last_norm_is_reported(void) {
    static const struct {
        float value;
        const char *norm, *factor;
    } cases[] = {{(float)NAN, "\"grad_norm\": \"NaN\"", "\"clip_factor\": \"NaN\""},
                 {(float)INFINITY, "\"grad_norm\": \"Infinity\"", "\"clip_factor\": 0.0"},
                 {-(float)INFINITY, "\"grad_norm\": \"Infinity\"", "\"clip_factor\": 0.0"}};
    stw_log_set(keep_log, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = plan_in(&everywhere[i], "optimizer.clip_norm=1");
        stw_executor_options options = options_of();
        stw_run_result *result = NULL, *back = NULL;
        stw_text text = STW_TEXT_INIT;
        options.other_grad = (stw_other_grad){4, 0, cases[i].value};
        CHECK_OK(stw_execute(plan, &options, &result, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(result);
        CU_ASSERT_EQUAL(isnan(result->grad_norm) != 0, i == 0);
        CU_ASSERT_EQUAL(isinf(result->grad_norm) != 0, i > 0);
        CHECK_OK(stw_run_result_to_json(result, &text, err));
        CU_ASSERT_PTR_NOT_NULL(strstr(text.data, cases[i].norm));
        CU_ASSERT_PTR_NOT_NULL(strstr(text.data, cases[i].factor));
        CHECK_OK(stw_run_result_parse("run.json", text.data, text.length, &back, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(back);
        CU_ASSERT_TRUE(back->clips);
        CU_ASSERT_EQUAL(memcmp(&back->first_nonfinite_step, &result->first_nonfinite_step, 8), 0);
        CU_ASSERT_EQUAL(isnan(back->grad_norm) != 0, i == 0);
        CU_ASSERT_EQUAL(isinf(back->grad_norm) != 0, i > 0);
        CU_ASSERT_EQUAL(isnan(back->clip_factor) != 0, i == 0);
        stw_run_result_free(back);
        stw_text_free(&text);
        stw_run_result_free(result);
        stw_plan_free(plan);
    }
    stw_log_set(NULL, NULL);
}

/* ---- a step that is refused ---- */

static void check_refusal(const stw_error *error, const stw_plan *plan, const char *what) {
    CU_ASSERT_EQUAL(error->status, STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(error->text, what));
    CU_ASSERT_PTR_NOT_NULL(strstr(error->text, "bucket "));
    if (strstr(error->text, what) == NULL) fprintf(stderr, "%s, not %s\n", error->text, what);
    (void)plan;
}

/* Every element of one parameter tensor is found, whichever it is, with clipping or not. */
static void the_first_one_is_named(void) {
    for (size_t p = 0; p < N_PLACES; p++) {
        stw_plan *plan =
            plan_in(&everywhere[p], p % 2 == 0 ? "optimizer.clip_norm=1" : "optimizer.clip_norm=0");
        const stw_model *model = plan->model;
        uint64_t first = 0;
        for (uint32_t t = 0; t < model->n_tensors; first += model->tensors[t++].numel) {
            if (t % 3 != p % 3) continue;
            const uint64_t in = t % 2 == 0 ? model->tensors[t].numel - 1 : t % 5;
            stw_executor_options options = options_of();
            stw_run_result *result = NULL;
            stw_error error = STW_ERROR_INIT;
            char what[300];
            options.error_if_nonfinite = true;
            options.other_grad =
                (stw_other_grad){2, first + in, t % 4 == 1 ? (float)INFINITY : (float)NAN};
            snprintf(
                what, sizeof what,
                "step 2: the gradient of element %llu of %s is %s (parameter group %u, bucket ",
                (unsigned long long)in, model->tensors[t].name, t % 4 == 1 ? "infinite" : "NaN",
                stw_job_param_group(plan->job, t));
            CU_ASSERT_NOT_EQUAL(stw_execute(plan, &options, &result, &error), STW_STATUS_OK);
            CU_ASSERT_PTR_NULL(result);
            check_refusal(&error, plan, what);
        }
        stw_plan_free(plan);
    }
}

/* Finite gradients, however large and small, are not refused, and nothing changes. */
static void finite_ones_are_taken(void) {
    for (size_t p = 0; p < N_PLACES; p++) {
        stw_plan *plan = plan_in(&everywhere[p], "optimizer.clip_norm=0.5");
        stw_run_result *plain = NULL, *looked = NULL;
        stw_executor_options options = options_of();
        options.other_grad = (stw_other_grad){2, 5, 3.4028234e38f};
        CHECK_OK(stw_execute(plan, &options, &plain, err));
        options.error_if_nonfinite = true;
        CHECK_OK(stw_execute(plan, &options, &looked, err));
        CU_ASSERT_TRUE_FATAL(plain != NULL && looked != NULL);
        CU_ASSERT_EQUAL(memcmp(plain->digest, looked->digest, sizeof plain->digest), 0);
        CU_ASSERT_EQUAL(plain->grad_norm, looked->grad_norm);
        CU_ASSERT_EQUAL(looked->nonfinite_steps, 0);
        stw_run_result_free(plain);
        stw_run_result_free(looked);
        stw_plan_free(plan);
    }
}

static void put_gradient(stw_session *session, float value) {
    const stw_rank_run *run = stw_session_run(session);
    for (uint32_t i = 0; i < run->layout->n_regions; i++) {
        const stw_region *region = &run->layout->regions[i];
        if (region->component != STW_COMPONENT_GRADS) continue;
        CHECK_OK(run->backend->put(run->device, stw_at(region->tier, region->offset_bytes + 400),
                                   &value, sizeof value, err));
        return;
    }
}

/* A refused step leaves state, counters and NVMe as they were; the session takes it again. */
static void a_session_goes_on(void) {
    for (size_t p = 0; p < N_PLACES; p++) {
        stw_plan *plan = plan_in(&everywhere[p], "optimizer.clip_norm=1");
        stw_executor_options options = options_of();
        stw_run_result *plain = NULL;
        stw_session *session = NULL;
        stw_session_sample sample;
        uint64_t before[STW_N_DIGESTS], after[STW_N_DIGESTS];
        CHECK_OK(stw_execute(plan, &options, &plain, err));
        options.error_if_nonfinite = true;
        CHECK_OK(stw_session_open(plan, &options, &session, err));
        CU_ASSERT_TRUE_FATAL(plain != NULL && session != NULL);
        CHECK_OK(stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, err));
        for (uint64_t step = 1; step <= 4; step++) {
            const stw_phase phase =
                step == 1 ? STW_PHASE_FIRST_OPTIMIZER_STEP : STW_PHASE_OPTIMIZER_STEP;
            CHECK_OK(stw_session_digest(session, before, err));
            CHECK_OK(stw_session_seed_grads(session, step, err));
            put_gradient(session, step % 2 == 0 ? (float)NAN : -(float)INFINITY);
            CHECK_FAILS(stw_session_issue(session, phase, step, &sample, err), STW_STATUS_BAD_INPUT,
                        "of element 100 of ");
            CHECK_OK(stw_session_digest(session, after, err));
            CU_ASSERT_EQUAL(memcmp(before, after, sizeof before), 0);
            CHECK_OK(stw_session_seed_grads(session, step, err));
            CHECK_OK(stw_session_issue(session, phase, step, &sample, err));
            CU_ASSERT_TRUE(sample.grad_norm > 0);
        }
        CHECK_OK(stw_session_digest(session, after, err));
        CU_ASSERT_EQUAL(memcmp(after, plain->digest, sizeof after), 0);
        stw_session_close(session);
        stw_run_result_free(plain);
        stw_plan_free(plan);
    }
}

/* Without the option the caller sees it in the sample. */
static void a_session_tells_the_norm(void) {
    stw_plan *plan = plan_in(&everywhere[0], "optimizer.clip_norm=1");
    const stw_executor_options options = options_of();
    stw_session *session = NULL;
    stw_session_sample sample;
    stw_log_set(keep_log, NULL);
    CHECK_OK(stw_session_open(plan, &options, &session, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(session);
    CHECK_OK(stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, err));
    CU_ASSERT_TRUE(isnan(sample.grad_norm) && sample.clip_factor == 1.0);
    CHECK_OK(stw_session_seed_grads(session, 1, err));
    put_gradient(session, (float)INFINITY);
    CHECK_OK(stw_session_issue(session, STW_PHASE_FIRST_OPTIMIZER_STEP, 1, &sample, err));
    CU_ASSERT_TRUE(isinf(sample.grad_norm) && sample.clip_factor == 0.0);
    put_gradient(session, (float)NAN);
    CHECK_OK(stw_session_issue(session, STW_PHASE_OPTIMIZER_STEP, 2, &sample, err));
    CU_ASSERT_TRUE(isnan(sample.grad_norm) && isnan(sample.clip_factor));
    stw_session_close(session);
    stw_log_set(NULL, NULL);
    stw_plan_free(plan);
}

static void another_gradient_must_exist(void) {
    stw_plan *plan = plan_in(&everywhere[0], "optimizer.clip_norm=1");
    stw_executor_options options = options_of();
    stw_run_result *result = NULL;
    options.other_grad = (stw_other_grad){5, 0, 1.0f};
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_USAGE,
                "step 5, the run has 4");
    options.other_grad = (stw_other_grad){1, plan->model->params, 1.0f};
    CHECK_FAILS(stw_execute(plan, &options, &result, err), STW_STATUS_USAGE, "the model has ");
    stw_plan_free(plan);
}

STW_TEST_MAIN("backend finite", {"a NaN is seen everywhere", a_nan_is_seen_everywhere},
              {"the last norm is reported", the_last_norm_is_reported},
              {"the first one is named", the_first_one_is_named},
              {"finite ones are taken", finite_ones_are_taken},
              {"a session goes on", a_session_goes_on},
              {"a session tells the norm", a_session_tells_the_norm},
              {"another gradient must exist", another_gradient_must_exist})
