/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "core/progress.h"
#include "planner/planner.h"
#include "planner/sweep.h"
#include "reports/reports.h"
#include "stw_config.h"

/* Seconds between two writes of the file, at least. */
#define SAVE_EVERY_S 1.0

typedef struct request {
    stw_inputs in;
    stw_values vary;
    const char *jobs;
    bool keeps; /* -o is a file with rows, to go on from */
} request;

static bool has_suffix(const char *path, const char *suffix) {
    return path != NULL && strcmp(stw_path_suffix(path), suffix) == 0;
}

/* A key that varies is not set as well, and each of its values can be set. */
static stw_status check_axis(const stw_opened *opened, const stw_inputs *in,
                             const stw_sweep_axis *axis, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_spec run = {0};
    size_t length = strlen(axis->key);
    char setting[1024], origin[200];
    for (size_t i = 0; i < in->set.n; i++)
        if (strncmp(in->set.items[i], axis->key, length) == 0 && in->set.items[i][length] == '=')
            return stw_fail(err, STW_STATUS_USAGE, "--vary", "%s is also given by --set",
                            axis->key);
    STW_TRY(stw_run_spec_init(&run, err));
    for (uint32_t v = 0; v < axis->n; v++) {
        stw_cluster cluster = opened->cluster;
        snprintf(setting, sizeof setting, "%s=%s", axis->key, axis->values[v]);
        snprintf(origin, sizeof origin, "--vary %.180s", setting);
        STW_TRY(stw_specs_set(&cluster, &run, setting, origin, err));
    }
out:
    stw_run_spec_free(&run);
    return status;
}

static stw_status state_arguments(const request *r, const stw_opened *opened, stw_sweep *sweep,
                                  stw_error *err) {
    stw_sweep_arguments *a = &sweep->arguments;
    a->version = STW_VERSION;
    a->model = stw_pool_string(sweep->pool, opened->model->name);
    a->model_digest = stw_pool_string(sweep->pool, opened->model->digest);
    a->cluster = stw_pool_string(sweep->pool, opened->cluster.name);
    a->n_settings = (uint32_t)r->in.set.n;
    a->settings = stw_pool_array(sweep->pool, r->in.set.n + 1, sizeof *a->settings);
    if (a->model == NULL || a->model_digest == NULL || a->cluster == NULL || a->settings == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "sweep", "out of memory");
    memcpy(a->settings, r->in.set.items, r->in.set.n * sizeof a->settings[0]);
    a->time_limit_s = STW_PLANNER_TIME_LIMIT_S;
    stw_status status = stw_option_double("--time-limit", r->in.time_limit, &a->time_limit_s, err);
    if (status != STW_STATUS_OK) return status;
    if (!(a->time_limit_s > 0)) a->time_limit_s = STW_PLANNER_TIME_LIMIT_S;
    return stw_point_inputs_hash(&opened->base, sweep->pool, &a->inputs, err);
}

/* Rows that an earlier sweep with the same arguments has finished. */
static stw_status take_rows(stw_sweep *sweep, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_sweep *earlier = NULL;
    if (!stw_file_exists(path)) return STW_STATUS_OK;
    STW_TRY(stw_sweep_read(path, &earlier, err));
    STW_TRY(stw_sweep_check_same(sweep, earlier, path, err));
    for (uint32_t i = 0; i < sweep->n_points; i++) {
        stw_sweep_row *row = &sweep->rows[i];
        *row = earlier->rows[i];
        row->binds = stw_pool_string(sweep->pool, row->binds);
        row->reason = stw_pool_string(sweep->pool, row->reason);
    }
out:
    stw_sweep_free(earlier);
    return status;
}

static stw_status save(const stw_sweep *sweep, void *path, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_status status = stw_sweep_to_json(sweep, &text, err);
    if (status == STW_STATUS_OK) status = stw_file_write(path, text.data, text.length, err);
    stw_text_free(&text);
    return status;
}

static stw_status prepare(const request *r, const stw_general *general, const stw_opened *opened,
                          stw_sweep *sweep, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < r->vary.n; i++)
        STW_TRY(stw_sweep_add_axis(sweep, r->vary.items[i], "--vary", err));
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        STW_TRY(check_axis(opened, &r->in, &sweep->axes[a], err));
    STW_TRY(stw_sweep_make_rows(sweep, err));
    STW_TRY(state_arguments(r, opened, sweep, err));
    if (r->keeps) STW_TRY(take_rows(sweep, general->output, err));
out:
    return status;
}

static stw_status run(const request *r, const stw_general *general, const stw_opened *opened,
                      stw_sweep *sweep, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t jobs = 0;
    stw_sweep_options options = {.save_every_s = SAVE_EVERY_S, .count = stw_progress_add};
    STW_TRY(stw_option_u64("--jobs", r->jobs, 1, &jobs, err));
    options.jobs = jobs < 1000 ? (uint32_t)jobs : 1000;
    if (r->keeps) {
        options.save = save;
        options.user = (void *)(uintptr_t)general->output;
    }
    stw_progress_phase("sweep", STW_PROGRESS_SHARE, stw_sweep_count(sweep, STW_SWEEP_NOT_PLANNED));
    status = stw_sweep_run(sweep, &opened->base, &options, err);
    stw_progress_end();
out:
    return status;
}

static stw_status sweep(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_opened opened = {0};
    stw_sweep *swept = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    if (r->vary.n == 0)
        return stw_fail(err, STW_STATUS_USAGE, "--vary", "required: KEY=FIRST:LAST or KEY=A,B,C");
    STW_TRY(stw_page_format(general, false, &format, err));
    const stw_named_path output = {"-o", general->output};
    const stw_named_path inputs[] = {STW_INPUT_PATHS(r->in)};
    STW_TRY(stw_check_outputs(&output, 1, inputs, sizeof inputs / sizeof inputs[0], err));
    STW_TRY(stw_inputs_open(&r->in, &opened, err));
    STW_TRY(stw_sweep_new(&swept, err));
    STW_TRY(prepare(r, general, &opened, swept, err));
    STW_TRY(run(r, general, &opened, swept, err));
    if (format == STW_FORMAT_HTML) {
        STW_TRY(stw_page_emit(general, &(stw_page_item){.name = "", .sweep = swept}, 1, err));
    } else {
        STW_TRY(stw_report_sweep(swept, !stw_is_summary(general, format), format, &text, err));
        STW_TRY(stw_emit(general, &text, err));
    }
    if (!stw_has_summary(general)) goto out;
    stw_text_free(&text);
    STW_TRY(stw_report_format(&(stw_general){0}, &format, err));
    STW_TRY(stw_report_sweep(swept, false, format, &text, err));
    STW_TRY(stw_emit(&(stw_general){0}, &text, err));
out:
    stw_text_free(&text);
    stw_sweep_free(swept);
    stw_opened_free(&opened);
    return status;
}

int stw_cmd_sweep(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {.keeps = false};
    size_t n = 0;
    const char *none[1];
    const stw_option options[] = {
        {"--vary", NULL, "KEY=VALUES",
         "FIRST:LAST (doubled: 1:16 is 1, 2, 4, 8, 16), FIRST:LAST:+STEP, or A,B,C; repeatable",
         STW_OPTION_LIST, &r.vary},
        {"--jobs", "-j", "N", "points to plan at once; default: as many as cores", STW_OPTION_VALUE,
         &r.jobs},
        {"--time-limit", NULL, "SECONDS", "limit of each point; default 30", STW_OPTION_VALUE,
         &r.in.time_limit},
        STW_ACCEPT_OPTION(r.in),
        STW_SPEC_OPTIONS(r.in),
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "sweep",
        "--model MODEL --vary KEY=VALUES...",
        "Plan all combinations of the values of some keys: one row each with verdict, peaks, "
        "seconds, throughput, GPU-hours per 10^9 tokens and what binds. Rows that no other row "
        "beats in both GPUs (fewer) and tokens per second and GPU (more) are marked as the "
        "Pareto front. -o FILE.json keeps the finished rows: the same command goes on where it "
        "was stopped, and a file of other arguments is refused. Other suffixes (.csv, .md, .txt, "
        ".html) "
        "write a report at the end. Combinations that the planner refuses are rows with the "
        "reason. Exit code 0, whatever fits.",
        options,
        sizeof options / sizeof options[0],
        0,
        0,
        stw_inputs_hint};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, none, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    status = stw_inputs_accept(&r.in, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    r.keeps = has_suffix(general.output, ".json");
    return stw_exit(sweep(&r, &general, &err), &err);
}
