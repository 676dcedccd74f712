/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that engines list as turns: what the planner sets, and what it tells, is what a plan that is
 * forced with these keys has; nothing that is left out is faster when forced; verdicts do not get
 * worse; keys that a run gives stay. */
#include <math.h>

#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MOST_SETTINGS = 16 };

/* What rows may miss of a turn that is skipped by them, and of a plan within its slack. */
#define NEAR 6e-3

typedef struct instance {
    const char *model;
    const char *settings[MOST_SETTINGS];
} instance;

static const instance instances[] = {
    {"Qwen3-0.6B",
     {"engine=fsdp2", "batch.seq_len=4096", "batch.grad_accumulation=4",
      "node.gpu.memory=18.7GiB"}},
    {"Qwen3-1.7B", {"engine=fsdp2", "batch.seq_len=8192", "node.gpu.memory=34GiB"}},
    {"Qwen3-1.7B",
     {"engine=fsdp2", "batch.seq_len=8192", "node.gpu.memory=30GiB", "placement.accept=at_risk"}},
    {"Qwen3-4B",
     {"engine=megatron", "batch.seq_len=8192", "parallel.pp=4", "batch.grad_accumulation=8",
      "node.gpu.memory=30.8GiB", "allocator.expandable_segments=true"}},
    {"Qwen3-4B",
     {"engine=megatron", "batch.seq_len=8192", "parallel.pp=4", "batch.grad_accumulation=8",
      "node.gpu.memory=40GiB", "megatron.optimizer_cpu_offload=true"}},
    {"Qwen3-4B", {"engine=megatron", "batch.seq_len=6144", "node.gpu.memory=42.4GiB"}},
    {"Qwen3-4B", {"engine=deepspeed", "batch.seq_len=6144", "node.gpu.memory=40GiB"}},
    {"Qwen3-4B",
     {"engine=deepspeed", "batch.seq_len=6144", "node.gpu.memory=40GiB",
      "deepspeed.offload_optimizer=cpu"}},
};
enum { N_INSTANCES = sizeof instances / sizeof instances[0] };

static void check_near(double a, double b, double share) {
    CU_ASSERT(fabs(a - b) <= share * fabs(b));
}

static const stw_planner_options usual = {
    .no_fixes = true, .no_prices = true, .no_reasons = true, .simulate = stw_sim_seconds};

/* An instance's settings, then those in words. @return false: refused */
static bool plan_with(const instance *in, const char *more, const stw_planner_options *options,
                      stw_plan **out) {
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_error why = STW_ERROR_INIT;
    char words[512];
    stw_status status = STW_STATUS_OK;
    snprintf(words, sizeof words, "%s", more);
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_open(in->model, STW_SOURCE_MODELS, &model, err));
    for (size_t i = 0; i < MOST_SETTINGS && in->settings[i] != NULL; i++)
        CHECK_OK(stw_specs_set(&cluster, &run, in->settings[i], "test", err));
    for (char *at = words; *at != '\0' && status == STW_STATUS_OK;) {
        char *end = at + strcspn(at, " ");
        const bool last = *end == '\0';
        *end = '\0';
        status = stw_specs_set(&cluster, &run, at, "test", &why);
        at = last ? end : end + 1;
    }
    if (status == STW_STATUS_OK) status = stw_run_spec_check(&run, "test", &why);
    if (status != STW_STATUS_OK) {
        stw_model_free(model);
        stw_run_spec_free(&run);
        return false;
    }
    if (stw_plan_new(model, &cluster, &run, out, &why) != STW_STATUS_OK) return false;
    CHECK_OK(stw_planner_solve(*out, options, err));
    CHECK_OK(stw_sim_plan(*out, NULL, err));
    return true;
}

static stw_plan *must_plan(const instance *in, const char *more,
                           const stw_planner_options *options) {
    stw_plan *plan = NULL;
    if (!plan_with(in, more, options, &plan)) {
        fprintf(stderr, "%s: %s is refused\n", in->model, more);
        exit(2);
    }
    return plan;
}

/* The plan that settings force: nothing else is turned. */
static stw_plan *forced(const instance *in, const char *settings) {
    stw_planner_options options = usual;
    options.tells_turns = options.no_alternatives = true;
    stw_plan *plan = NULL;
    return plan_with(in, settings, &options, &plan) ? plan : NULL;
}

static bool is_usable(const stw_plan *plan) {
    return plan->verdict == STW_VERDICT_FITS || plan->verdict == STW_VERDICT_AT_RISK;
}

static bool is_worse(const stw_plan *plan, stw_verdict than) {
    return plan->verdict != STW_VERDICT_FITS && than == STW_VERDICT_FITS;
}

/* ---- what is set and told ---- */

static void test_taken(void) {
    uint32_t n = 0;
    for (size_t i = 0; i < N_INSTANCES; i++) {
        const instance *in = &instances[i];
        stw_plan *plan = must_plan(in, "", &usual);
        CU_ASSERT(is_usable(plan));
        if (plan->turned != NULL) {
            stw_plan *with = forced(in, plan->turned), *without = forced(in, "");
            n++;
            check_near(stw_plan_iteration_s(with), stw_plan_iteration_s(plan), 1e-9);
            CU_ASSERT_EQUAL(with->verdict, plan->verdict);
            check_near(stw_plan_iteration_s(without), plan->unturned_s, 1e-9);
            CU_ASSERT(!is_worse(plan, without->verdict));
            CU_ASSERT(stw_plan_iteration_s(plan) < plan->unturned_s);
            stw_plan_free(with);
            stw_plan_free(without);
        }
        stw_plan_free(plan);
    }
    CU_ASSERT(n >= 3);
}

/* "A=1 B=2", and what was set beside it */
static void join(const stw_plan *plan, const char *settings, char *out, size_t size) {
    snprintf(out, size, "%s%s%s", plan->turned != NULL ? plan->turned : "",
             plan->turned != NULL && settings[0] != '\0' ? " " : "", settings);
}

static void test_told(void) {
    uint32_t n = 0;
    for (size_t i = 0; i < N_INSTANCES; i++) {
        const instance *in = &instances[i];
        stw_plan *plan = must_plan(in, "", &usual);
        const double now_s = stw_plan_iteration_s(plan);
        uint32_t told = 0;
        for (uint32_t k = 0; k < plan->n_alternatives; k++) {
            const stw_alternative *other = &plan->alternatives[k];
            char all[512];
            if (strcmp(other->rule, "setting") != 0) continue;
            snprintf(all, sizeof all, "%s", other->needs);
            if (strncmp(all, "recompute.", 10) != 0) join(plan, other->needs, all, sizeof all);
            stw_plan *with = forced(in, all);
            told++;
            check_near(stw_plan_iteration_s(with), other->seconds, 1e-9);
            CU_ASSERT_EQUAL(with->verdict, other->verdict);
            CU_ASSERT(other->seconds < now_s * 0.99 + 1e-12);
            stw_plan_free(with);
        }
        CU_ASSERT(told <= 4);
        n += told;
        stw_plan_free(plan);
    }
    CU_ASSERT(n >= 4);
}

/* ---- what is left out ---- */

static bool is_told(const stw_plan *plan, const char *settings) {
    uint32_t told = 0;
    for (uint32_t k = 0; k < plan->n_alternatives; k++) {
        if (strcmp(plan->alternatives[k].rule, "setting") != 0) continue;
        told++;
        /* other values of the same keys are faster */
        if (strncmp(plan->alternatives[k].needs, settings, strcspn(settings, "=")) == 0)
            return true;
    }
    return told == 4; /* there is room for no more */
}

static void test_left_out(void) {
    for (size_t i = 0; i < N_INSTANCES; i++) {
        const instance *in = &instances[i];
        stw_plan *plan = must_plan(in, "", &usual);
        const double now_s = stw_plan_iteration_s(plan);
        const bool offloads = strstr(in->settings[0], "megatron") != NULL &&
                              in->settings[5] != NULL &&
                              strstr(in->settings[5], "cpu_offload") != NULL;
        for (const stw_engine_turn *turn = plan->job->engine->turns; turn->set != NULL; turn++) {
            char all[512];
            const bool decides = strncmp(turn->set, "recompute.", 10) == 0 ||
                                 strstr(turn->set, "offload_fraction") != NULL;
            if (turn->when != NULL && strstr(turn->when, "megatron") != NULL && !offloads) continue;
            snprintf(all, sizeof all, "%s", turn->set);
            if (!decides) join(plan, turn->set, all, sizeof all);
            stw_plan *with = forced(in, all);
            if (with == NULL) continue;
            const double limit = now_s * (decides ? 1 - NEAR : 0.99 - NEAR);
            if (is_usable(with) && !is_told(plan, turn->set) &&
                !(decides && is_worse(with, plan->verdict)) && stw_plan_iteration_s(with) < limit) {
                fprintf(stderr, "instance %zu: %s takes %g s instead of %g s\n", i, turn->set,
                        stw_plan_iteration_s(with), now_s);
                CU_ASSERT(false);
            }
            stw_plan_free(with);
        }
        stw_plan_free(plan);
    }
}

/* ---- what a run gives ---- */

static void test_given(void) {
    const instance *in = &instances[0];
    stw_plan *plan = must_plan(in, "recompute.granularity=none", &usual);
    CU_ASSERT_PTR_NULL(plan->turned);
    CU_ASSERT_EQUAL(plan->run.recompute.granularity, 0);
    stw_plan_free(plan);

    stw_planner_options tells = usual;
    tells.tells_turns = true;
    plan = must_plan(in, "", &tells);
    CU_ASSERT_PTR_NULL(plan->turned);
    CU_ASSERT_EQUAL(plan->run.recompute.granularity, STW_AUTO);
    CU_ASSERT(plan->n_alternatives > 0);
    stw_plan_free(plan);

    plan = must_plan(in, "fsdp.sync_each_micro_batch=false", &usual);
    for (uint32_t k = 0; k < plan->n_alternatives; k++)
        CU_ASSERT_PTR_NULL(strstr(plan->alternatives[k].needs, "sync_each_micro_batch"));
    stw_plan_free(plan);

    /* rows alone know no seconds to compare */
    plan = must_plan(in, "", &(stw_planner_options){.no_fixes = true, .no_prices = true});
    CU_ASSERT_PTR_NULL(plan->turned);
    stw_plan_free(plan);
}

/* What was set and told stands in the plan's file. */
static void test_file(void) {
    stw_plan *plan = must_plan(&instances[0], "", &usual), *read = NULL;
    stw_text text = STW_TEXT_INIT;
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan->turned);
    CHECK_OK(stw_plan_to_json(plan, &text, err));
    CHECK_OK(stw_plan_parse("test", text.data, text.length, &read, err));
    CU_ASSERT_STRING_EQUAL(read->turned, plan->turned);
    check_near(read->unturned_s, plan->unturned_s, 1e-9);
    CU_ASSERT_EQUAL_FATAL(read->n_alternatives, plan->n_alternatives);
    for (uint32_t k = 0; k < read->n_alternatives; k++) {
        CU_ASSERT_STRING_EQUAL(read->alternatives[k].needs, plan->alternatives[k].needs);
        CU_ASSERT_EQUAL(read->alternatives[k].verdict, plan->alternatives[k].verdict);
    }
    stw_text_free(&text);
    stw_plan_free(read);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner turns", {"what is set is what is forced", test_taken},
              {"what is told is what is forced", test_told},
              {"nothing that is left out is faster", test_left_out},
              {"keys that are given stay", test_given}, {"files", test_file})
