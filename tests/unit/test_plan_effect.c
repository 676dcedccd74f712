/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* Which keys have no effect on a job, and what their errors say: against tests/golden/keys.csv for
 * small jobs of every engine. unit.plan_keys_* demand of whole plans that the others have one. */
#include "plan/job/effect.h"

#include "plan/spec/registry.h"
#include "plan/spec/spec_keys.h"
#include "tests/unit/golden_case.h"

/* ---- needs ---- */

/* The words of an error between "has no effect: " and what to do instead. */
static const char *reason_of(const stw_error *err, char *out, size_t out_size) {
    static const char before[] = "has no effect: ";
    const char *at = strstr(err->text, before);
    if (at == NULL) return NULL;
    at += strlen(before);
    snprintf(out, out_size, "%.*s", (int)strcspn(at, ";"), at);
    return out;
}

#define MOST_REASONS 64
typedef struct reasons {
    uint32_t n;
    char why[MOST_REASONS][200];
    stw_text keys; /* the first of each reason */
    unsigned refused, tried;
} reasons;

static void note(reasons *r, const char *key, stw_status status, const stw_error *err) {
    char why[200];
    r->tried++;
    if (status == STW_STATUS_OK) return;
    CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL_FATAL(reason_of(err, why, sizeof why));
    if (strncmp(err->text, key, strlen(key)) != 0) return; /* another key needs the former value */
    r->refused++;
    for (uint32_t i = 0; i < r->n; i++)
        if (strcmp(r->why[i], why) == 0) return;
    if (r->n == MOST_REASONS) return;
    snprintf(r->why[r->n++], sizeof why, "%s", why);
    stw_text_printf(&r->keys, "%s%s", r->n > 1 ? " " : "", key);
}

/* Another value of a key of the run than the present one. */
static bool set_other(stw_plan *plan, const stw_spec_row *row, const stw_text *now) {
    static const char *const values[] = {"true", "false", "2", "0.5", "1 MiB", "1 GB/s", "[]"};
    const size_t n = sizeof values / sizeof values[0];
    const stw_spec_word *word = row->words;
    for (size_t i = 0; i < n; i += word == NULL || word->word == NULL) {
        const bool is_word = word != NULL && word->word != NULL;
        stw_text after = STW_TEXT_INIT;
        stw_status status =
            stw_run_spec_set(&plan->run, row->key, is_word ? word->word : values[i], "case", NULL);
        if (is_word) word++;
        stw_spec_write_value(row, &plan->run, &after);
        const bool changed = status == STW_STATUS_OK && strcmp(after.data, now->data) != 0;
        stw_text_free(&after);
        if (changed) return true;
    }
    return false;
}

static void run_keys(stw_plan *plan, reasons *r) {
    const stw_spec_table *table = stw_run_spec_table();
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        stw_error error = STW_ERROR_INIT;
        stw_text now = STW_TEXT_INIT;
        if (row->needs == 0 || row->kind == STW_SPEC_ITEMS || row->kind == STW_SPEC_MAP) continue;
        stw_spec_write_value(row, &plan->run, &now);
        if (now.data != NULL && set_other(plan, row, &now)) {
            note(r, row->key, stw_job_check_effect(plan->job, "case", &error), &error);
            CHECK_OK(stw_run_spec_set(&plan->run, row->key, now.data, "case", err));
        }
        stw_text_free(&now);
    }
    CHECK_OK(stw_job_check_effect(plan->job, "case", err));
}

static void cluster_keys(const stw_plan *plan, reasons *r) {
    const stw_spec_table *table = stw_cluster_table();
    for (size_t i = 0; i < table->n_rows; i++) {
        stw_error error = STW_ERROR_INIT;
        char setting[128];
        snprintf(setting, sizeof setting, "%s=1", table->rows[i].key);
        note(r, table->rows[i].key, stw_job_check_setting(plan->job, setting, "case", &error),
             &error);
    }
}

static void needs_are_those_of_the_table(void) {
    stw_text found = STW_TEXT_INIT;
    stw_text_printf(&found, "case,keys,tried,refused,first key of each reason\n");
    for (size_t i = 0; i < sizeof golden_jobs / sizeof golden_jobs[0]; i++) {
        stw_plan *plan = golden_plan(&golden_jobs[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        for (int which = 0; which < 2; which++) {
            static reasons r;
            r = (reasons){.keys = STW_TEXT_INIT};
            if (which == 0)
                run_keys(plan, &r);
            else
                cluster_keys(plan, &r);
            stw_text_printf(&found, "%s,%s,%u,%u,%s\n", golden_jobs[i].name,
                            which == 0 ? "run" : "cluster", r.tried, r.refused,
                            r.keys.data != NULL ? r.keys.data : "");
            stw_text_free(&r.keys);
        }
        stw_plan_free(plan);
    }
    golden_check(STW_SOURCE_DIR "/tests/golden/keys.csv", &found);
    stw_text_free(&found);
}

/* ---- what errors say ---- */

static stw_status open_plan(const char *model, const char *const *settings, stw_plan **out,
                            stw_error *err) {
    stw_cluster cluster = fixture_cluster(2);
    stw_status status = STW_STATUS_OK;
    stw_run_spec run;
    stw_model *zoo = NULL;
    size_t n = 0;
    *out = NULL;
    while (settings[n] != NULL) n++;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, settings, n, "case", err));
    STW_TRY(stw_model_open(model, STW_SOURCE_MODELS, &zoo, err));
    STW_TRY(stw_plan_new(zoo, &cluster, &run, out, err));
out:
    return status;
}

static void check_text(const char *model, const char *setting, const char *text) {
    const char *const settings[] = {"engine=fsdp2", setting, NULL};
    stw_error error = STW_ERROR_INIT;
    stw_plan *plan = NULL;
    CU_ASSERT_EQUAL(open_plan(model, settings, &plan, &error), STW_STATUS_BAD_INPUT);
    CU_ASSERT_STRING_EQUAL(error.text, text);
    if (strcmp(error.text, text) != 0) fprintf(stderr, "%s\n", error.text);
    stw_plan_free(plan);
}

static void errors_say_what_was_found(void) {
    check_text("Qwen3-0.6B", "loss.chunk=512",
               "loss.chunk: found 512, which has no effect: the loss is of all tokens at once; "
               "leave it at 0, or use loss.fused: true");
    check_text("GPT-2", "batch.seq_len=2048",
               "batch.seq_len: found 2048, expected at most 1024: GPT-2 has that many learned "
               "positions");
    check_text("Qwen3-0.6B",
               "optimizer.groups=[{match: ['*norm*'], lr: 1e-4}, {match: ['*.x'], lr: "
               "1e-5}]",
               "optimizer.groups.1: found no tensor that its patterns match, expected a pattern of "
               "a tensor that no earlier group matches (`stowage inspect --tensors` lists the "
               "names)");
    check_text(
        "Qwen3-0.6B", "optimizer.groups=[{match: ['*norm*']}]",
        "optimizer.groups.0: found lr and weight_decay the same, expected a rate of its own");
}

static void settings_say_what_was_found(void) {
    static const char *const settings[] = {"engine=fsdp2", "node.gpus=1", NULL};
    stw_error error = STW_ERROR_INIT;
    stw_plan *plan = NULL;
    CHECK_OK(open_plan("Qwen3-0.6B", settings, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    CU_ASSERT_EQUAL(stw_job_check_setting(plan->job, "node.nvlink=5 GB/s", "--set", &error),
                    STW_STATUS_BAD_INPUT);
    CU_ASSERT_STRING_EQUAL(error.text, "node.nvlink: found 5 GB/s, which has no effect: a node has "
                                       "one GPU; leave it out, or use node.gpus: 2 or more");
    CU_ASSERT_STRING_EQUAL(error.where, "--set");
    CHECK_OK(stw_job_check_setting(plan->job, "node.nvlink", "--set", err));    /* no value */
    CHECK_OK(stw_job_check_setting(plan->job, "loss.chunk=512", "--set", err)); /* of the run */
    CHECK_OK(stw_job_check_setting(plan->job, "node.gpu.memory=2 GiB", "--set", err));
    stw_plan_free(plan);
}

/* ---- positions ---- */

static void positions_are_those_of_the_model(void) {
    static const char *const longer[] = {"engine=fsdp2", "batch.seq_len=40961", NULL};
    static const char *const most[] = {"engine=fsdp2", "batch.seq_len=40960", NULL};
    static const char *const learned[] = {"engine=fsdp2", "batch.seq_len=1024", NULL};
    static const char *const open[] = {"engine=fsdp2", NULL};
    const struct {
        const char *model;
        const char *const *settings;
        bool exceeds;
        uint64_t usual;
    } positions[] = {{"Qwen3-0.6B", longer, true, 4096},
                     {"Qwen3-0.6B", most, false, 4096},
                     {"GPT-2", learned, false, 1024},
                     {"GPT-2", open, false, 1024}};
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        stw_plan *plan = NULL;
        CHECK_OK(open_plan(positions[i].model, positions[i].settings, &plan, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        CU_ASSERT_EQUAL(stw_job_exceeds_positions(plan->job), positions[i].exceeds);
        CU_ASSERT_EQUAL(stw_default_seq_len(plan->model), positions[i].usual);
        stw_plan_free(plan);
    }
    stw_model unknown = {.max_positions = 0}, long_one = {.max_positions = 4096};
    CU_ASSERT_EQUAL(stw_default_seq_len(&unknown), 4096);
    CU_ASSERT_EQUAL(stw_default_seq_len(&long_one), 4096);
    long_one.max_positions = 4095;
    CU_ASSERT_EQUAL(stw_default_seq_len(&long_one), 4095);
}

STW_TEST_MAIN("plan_effect", {"needs are those of the table", needs_are_those_of_the_table},
              {"errors say what was found", errors_say_what_was_found},
              {"settings say what was found", settings_say_what_was_found},
              {"positions are those of the model", positions_are_those_of_the_model})
