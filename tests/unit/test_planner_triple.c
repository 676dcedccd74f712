/* SPDX-License-Identifier: Apache-2.0 */
/* Global batch, micro batch and accumulation of DeepSpeed's configs. */
#include <inttypes.h>

#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* The run of a config with these settings beside it. */
static stw_status run_of(const char *batch, uint32_t nodes, const char *const *sets,
                         stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_import import = {.pool = NULL};
    stw_cluster cluster = fixture_cluster(8);
    char text[256];
    snprintf(text, sizeof text,
             "{%s \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}}", batch);
    cluster.nodes = nodes;
    STW_TRY(stw_run_spec_init(run, err));
    STW_TRY(stw_import_parse("deepspeed", "ds.json", text, strlen(text), &import, err));
    STW_TRY(stw_import_run(&import, run, err));
    for (size_t i = 0; i < 2 && sets[i] != NULL; i++) {
        char key[64];
        const size_t n = strcspn(sets[i], "=");
        snprintf(key, sizeof key, "%.*s", (int)n, sets[i]);
        STW_TRY(stw_run_spec_set(run, key, sets[i] + n + 1, "--set", err));
    }
    status = stw_import_batch(&import, &cluster, run, err);
out:
    stw_import_free(&import);
    return status;
}

#define WHOLE "\"train_batch_size\": "
#define MICRO "\"train_micro_batch_size_per_gpu\": "
#define STEPS "\"gradient_accumulation_steps\": "
#define OTHER_MICRO "batch.micro_batch="
#define OTHER_STEPS "batch.grad_accumulation="

/* runtime/config.py, _set_batch_related_parameters, on 8 GPUs a node. */
static void what_is_left_out_follows(void) {
    static const struct {
        const char *batch;
        const char *sets[2];
        uint32_t nodes;
        uint64_t micro, steps;
    } cases[] = {
        {WHOLE "64, " STEPS "4,", {NULL}, 1, 2, 4},
        {WHOLE "16,", {NULL}, 1, 2, 1},
        {WHOLE "16,", {NULL}, 2, 1, 1},
        {WHOLE "64, " MICRO "4,", {NULL}, 1, 4, 2},
        {WHOLE "64, " MICRO "1,", {NULL}, 2, 1, 4},
        {WHOLE "64, " MICRO "2, " STEPS "4,", {NULL}, 1, 2, 4},
        {WHOLE "64, " MICRO "\"auto\", " STEPS "\"auto\",", {NULL}, 1, 8, 1},
        {WHOLE "64, " MICRO "\"auto\", " STEPS "2,", {NULL}, 1, 4, 2},
        {WHOLE "\"auto\", " MICRO "\"auto\", " STEPS "\"auto\",", {NULL}, 1, 8, 1},
        {MICRO "4,", {NULL}, 2, 4, 1},
        {MICRO "4, " STEPS "2,", {NULL}, 2, 4, 2},
        /* a micro batch beside the file keeps the step, an accumulation gives another one */
        {WHOLE "64, " MICRO "2, " STEPS "4,", {OTHER_MICRO "1"}, 1, 1, 8},
        {WHOLE "64, " STEPS "4,", {OTHER_MICRO "8"}, 1, 8, 1},
        {WHOLE "64,", {OTHER_MICRO "4"}, 1, 4, 2},
        {WHOLE "64, " MICRO "4,", {OTHER_STEPS "8"}, 1, 4, 8},
        {WHOLE "64, " MICRO "2, " STEPS "4,", {OTHER_STEPS "3"}, 2, 2, 3},
        {WHOLE "64,", {OTHER_STEPS "4"}, 1, 2, 4},
        {WHOLE "64, " MICRO "2, " STEPS "4,", {OTHER_MICRO "1", OTHER_STEPS "3"}, 1, 1, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_spec run = {0};
        CHECK_OK(run_of(cases[i].batch, cases[i].nodes, cases[i].sets, &run, err));
        CU_ASSERT_EQUAL(run.batch.micro_batch, cases[i].micro);
        CU_ASSERT_EQUAL(run.batch.grad_accumulation, cases[i].steps);
        if (run.batch.micro_batch != cases[i].micro ||
            run.batch.grad_accumulation != cases[i].steps)
            fprintf(stderr, "%s: %" PRIu64 " x %" PRIu64 "\n", cases[i].batch,
                    run.batch.micro_batch, run.batch.grad_accumulation);
        stw_run_spec_free(&run);
    }
}

/* _batch_assertion */
static void what_does_not_agree_is_refused(void) {
    static const struct {
        const char *batch;
        uint32_t nodes;
        const char *text;
    } cases[] = {
        {WHOLE "63, " MICRO "2, " STEPS "4,", 1,
         "train_batch_size 63 is not train_micro_batch_size_per_gpu 2 x "
         "gradient_accumulation_steps 4 x 8 data-parallel ranks"},
        {WHOLE "256, " MICRO "2, " STEPS "16,", 2, "or --set batch.grad_accumulation=8"},
        {WHOLE "63, " STEPS "4,", 1, "_per_gpu 1 x gradient_accumulation_steps 4"},
        {WHOLE "65,", 1, "_per_gpu 8 x gradient_accumulation_steps 1"},
        {WHOLE "4,", 1, "_per_gpu 0 x"},
        {WHOLE "64, " MICRO "16,", 1, "gradient_accumulation_steps 0"},
        {WHOLE "0,", 1, "a number above 0"},
        {WHOLE "many,", 1, "not valid JSON"},
    };
    static const char *const none[] = {NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_spec run = {0};
        CHECK_FAILS(run_of(cases[i].batch, cases[i].nodes, none, &run, err), STW_STATUS_BAD_INPUT,
                    cases[i].text);
        stw_run_spec_free(&run);
    }
}

STW_TEST_MAIN("planner triple", {"what is left out follows", what_is_left_out_follows},
              {"what does not agree is refused", what_does_not_agree_is_refused})
