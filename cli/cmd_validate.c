/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/commands.h"
#include "cli/common_plan.h"
#include "plan/files/recording.h"
#include "reports/reports.h"

#define MOST_RUNS 64

typedef struct request {
    const char *plan, *memory, *time;
    const char *runs[MOST_RUNS]; /* the first is held against the plan */
    uint32_t n_runs;
} request;

/* What makes the runs wrong: verification first, then digests, then lines. */
static stw_status judge(const request *r, const stw_comparison *c, stw_error *err) {
    char what[300];
    for (uint32_t i = 0; i < c->n_runs; i++)
        if (c->runs[i].mismatched > 0)
            return stw_fail(err, STW_STATUS_DISAGREE, r->runs[i],
                            "verification failed: %llu of %llu checked elements differ",
                            (unsigned long long)c->runs[i].mismatched,
                            (unsigned long long)c->runs[i].checked);
    stw_comparison_first_difference(c, what, sizeof what);
    if (c->differing > 0)
        return stw_fail(
            err, STW_STATUS_DISAGREE, what,
            "the digest differs from that of the other run%s of the same model, settings, "
            "seed and steps",
            c->n_runs > 2 ? "s" : "");
    if (c->outside > 0)
        return stw_fail(err, STW_STATUS_DISAGREE, r->runs[0],
                        "%u of %u judged lines are outside tolerance", c->outside, c->judged);
    if (c->judged == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, r->runs[0],
                        "contains no value that the plan predicts");
    return STW_STATUS_OK;
}

/* A run file, or samples as CSV. */
static stw_status read_run(const char *path, stw_run_result **out, stw_error *err) {
    stw_recording *samples = NULL;
    if (strcmp(stw_path_suffix(path), ".csv") != 0) return stw_run_result_read(path, out, err);
    stw_status status = stw_recording_new(path, &samples, err);
    if (status == STW_STATUS_OK) status = stw_recording_read_csv(samples, path, err);
    if (status == STW_STATUS_OK) status = stw_recording_fold(samples, out, err);
    stw_recording_free(samples);
    return status;
}

static stw_status read_runs(const request *r, stw_run_result **runs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < r->n_runs && status == STW_STATUS_OK; i++)
        status = read_run(r->runs[i], &runs[i], err);
    return status;
}

static stw_status validate(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_run_result *runs[MOST_RUNS] = {NULL};
    stw_comparison *comparison = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_tolerance tolerance = STW_TOLERANCE_DEFAULT;
    stw_format format;
    const char *files[MOST_RUNS + 1] = {r->plan};
    memcpy(files + 1, r->runs, sizeof r->runs);
    STW_TRY(stw_stdin_once(files, r->n_runs + 1, err));
    STW_TRY(stw_report_format(general, &format, err));
    const stw_named_path output = {"-o", general->output};
    stw_named_path inputs[MOST_RUNS + 1];
    for (uint32_t i = 0; i <= r->n_runs; i++)
        inputs[i] = (stw_named_path){i == 0 ? "PLAN" : "RUN", files[i]};
    STW_TRY(stw_check_outputs(&output, 1, inputs, r->n_runs + 1, err));
    STW_TRY(stw_option_share("--memory-tolerance", r->memory, &tolerance.memory, err));
    STW_TRY(stw_option_share("--time-tolerance", r->time, &tolerance.time, err));
    STW_TRY(stw_plan_open(r->plan, &plan, err));
    STW_TRY(read_runs(r, runs, err));
    stw_warn_of_excess(plan, r->plan);
    STW_TRY(stw_compare(plan, runs[0], &tolerance, &comparison, err));
    STW_TRY(stw_compare_digests(comparison, (const stw_run_result *const *)runs, r->runs, r->n_runs,
                                err));
    if (general->json)
        STW_TRY(stw_comparison_to_json(comparison, &text, err));
    else
        STW_TRY(stw_report_comparison(comparison, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
    status = judge(r, comparison, err);
out:
    stw_text_free(&text);
    stw_comparison_free(comparison);
    for (uint32_t i = 0; i < r->n_runs; i++) stw_run_result_free(runs[i]);
    stw_plan_free(plan);
    return status;
}

int stw_cmd_validate(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    const char *files[MOST_RUNS + 1];
    size_t n = 0;
    const stw_option options[] = {
        {"--memory-tolerance", NULL, "SHARE",
         "tolerance of bytes, relative; default 0.02 or 2% (at least 2 MiB)", STW_OPTION_VALUE,
         &r.memory},
        {"--time-tolerance", NULL, "SHARE", "tolerance of seconds, relative; default 0.10 or 10%",
         STW_OPTION_VALUE, &r.time},
    };
    const stw_usage usage = {
        "stowage",
        "validate",
        "PLAN RUN [RUN...]",
        "Compare predicted and measured values by phase and component. RUN is a file of stowage "
        "run "
        "or stowage record, or a CSV with the columns time,rank,phase,metric,bytes. Time is judged "
        "only for "
        "runs on the cuda backend with a cluster.yaml that was calibrated on the same GPU model. "
        "Memory and time are those of the first run. Further runs may be of plans with other "
        "placements, backends or numbers of ranks: with "
        "the same model, settings, seed and steps their digests must be those of the first. "
        "Exit code 8: a line is outside tolerance, a run's verification failed, or digests differ.",
        options,
        sizeof options / sizeof options[0],
        2,
        MOST_RUNS + 1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, files, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    r.plan = files[0];
    r.n_runs = (uint32_t)n - 1;
    memcpy(r.runs, files + 1, (n - 1) * sizeof r.runs[0]);
    return stw_exit(validate(&r, &general, &err), &err);
}
