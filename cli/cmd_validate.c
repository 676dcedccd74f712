/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/common_plan.h"
#include "core/log.h"
#include "plan/measured/learn.h"
#include "plan/measured/recording.h"
#include "plan/measured/run_join.h"
#include "plan/spec/cluster_edit.h"
#include "reports/reports.h"

#define MOST_RUNS 64

typedef struct request {
    const char *plan, *memory, *time, *learn;
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
    if (c->judged == 0 && c->lessons == NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, r->runs[0], "%s",
                        c->shown > 0 ? "contains no value that can be judged"
                                     : "contains no value that the plan predicts");
    return STW_STATUS_OK;
}

static stw_status read_runs(const request *r, stw_run_result **runs, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t i = 0; i < r->n_runs && status == STW_STATUS_OK; i++)
        status = stw_measured_read(r->runs[i], &runs[i], err);
    return status;
}

/* Recordings of several nodes or ranks are joined into the first run. @param n in: files, out: runs
 */
static stw_status join_recordings(const stw_plan *plan, stw_run_result **runs, uint32_t *n,
                                  stw_error *err) {
    stw_run_result *joined = NULL;
    for (uint32_t i = 0; i < *n; i++)
        if (*n == 1 || strcmp(runs[i]->source, "external") != 0) return STW_STATUS_OK;
    stw_status status = stw_run_results_join((const stw_run_result *const *)runs, *n,
                                             plan->job->ranks_per_node, &joined, err);
    if (status != STW_STATUS_OK) return status;
    for (uint32_t i = 0; i < *n; i++) {
        stw_run_result_free(runs[i]);
        runs[i] = NULL;
    }
    runs[0] = joined;
    *n = 1;
    return STW_STATUS_OK;
}

/* ---- learning ---- */

/* The day on which a file was written last, UTC; "" where there is no such file. */
static void date_of_file(const char *path, char *out, size_t out_size) {
    struct stat info;
    struct tm parts;
    out[0] = '\0';
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && gmtime_r(&info.st_mtime, &parts) != NULL)
        (void)strftime(out, out_size, "%Y-%m-%d", &parts);
}

/* "run.json", or "run.a.json and 3 more" of files that were joined. */
static void name_source(const request *r, bool joined, char *out, size_t out_size) {
    const char *slash = strrchr(r->runs[0], '/');
    const char *name = slash != NULL ? slash + 1 : r->runs[0];
    if (joined && r->n_runs > 1)
        snprintf(out, out_size, "%.40s and %u more", name, r->n_runs - 1);
    else
        snprintf(out, out_size, "%.250s", name);
}

/* Learn from the run, and write what was learned. */
static stw_status learn(const request *r, const stw_plan *plan, const stw_run_result *run,
                        bool joined, stw_lessons *lessons, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster_file file = STW_CLUSTER_FILE_INIT;
    stw_cluster wanted;
    char date[16], name[256];
    const stw_learn_source source = {name, date};
    name_source(r, joined, name, sizeof name);
    date_of_file(r->runs[0], date, sizeof date);
    STW_TRY(stw_cluster_file_open(r->learn, &file, err));
    wanted = file.exists ? file.cluster : plan->cluster;
    STW_TRY(stw_learn(plan, run, &source, &wanted, lessons, err));
    lessons->path = r->learn;
    if (lessons->n_learned == 0) {
        for (unsigned w = 0; w < STW_N_LEARNABLE; w++)
            stw_log(STW_LOG_WARN, "%s is not learned: %s", stw_learned_key((stw_learnable)w),
                    lessons->items[w].why);
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, r->runs[0],
                         "nothing can be learned from it; %s is not written", r->learn));
    }
    stw_lessons_apply(lessons, &wanted);
    STW_TRY(stw_cluster_check(&wanted, r->learn, err));
    STW_TRY(stw_cluster_file_update(&file, &wanted, &lessons->changed, err));
out:
    stw_cluster_file_close(&file);
    return status;
}

/* ---- the command ---- */

static stw_status write_comparison(const stw_comparison *comparison, const stw_general *general,
                                   stw_format format, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_status status = general->json ? stw_comparison_to_json(comparison, &text, err)
                        : stw_is_summary(general, format)
                            ? stw_report_comparison_summary(comparison, &text, err)
                            : stw_report_comparison(comparison, format, &text, err);
    if (status == STW_STATUS_OK) status = stw_emit(general, &text, err);
    stw_text_free(&text);
    return status;
}

static stw_status check_files(const request *r, const stw_general *general, stw_error *err) {
    const stw_named_path outputs[] = {{"-o", general->output}, {"--learn", r->learn}};
    stw_named_path inputs[MOST_RUNS + 1];
    const char *files[MOST_RUNS + 1] = {r->plan};
    memcpy(files + 1, r->runs, sizeof r->runs);
    stw_status status = stw_stdin_once(files, r->n_runs + 1, err);
    for (uint32_t i = 0; i <= r->n_runs; i++)
        inputs[i] = (stw_named_path){i == 0 ? "PLAN" : "RUN", files[i]};
    if (status == STW_STATUS_OK) status = stw_check_outputs(outputs, 2, inputs, r->n_runs + 1, err);
    if (status == STW_STATUS_OK && r->learn != NULL)
        status = stw_check_suffix(r->learn, "a cluster", ".yaml .yml", err);
    if (status == STW_STATUS_OK && r->learn != NULL && strcmp(r->learn, "-") == 0)
        status = stw_fail(err, STW_STATUS_USAGE, "--learn", "found -, expected a file to update");
    return status;
}

static stw_status validate(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK, learned = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_run_result *runs[MOST_RUNS] = {NULL};
    uint32_t n_runs = r->n_runs;
    stw_comparison *comparison = NULL;
    stw_tolerance tolerance = STW_TOLERANCE_DEFAULT;
    stw_lessons lessons = {0};
    stw_format format;
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(check_files(r, general, err));
    STW_TRY(stw_option_share("--memory-tolerance", r->memory, &tolerance.memory, err));
    STW_TRY(stw_option_share("--time-tolerance", r->time, &tolerance.time, err));
    STW_TRY(stw_plan_open(r->plan, &plan, err));
    STW_TRY(read_runs(r, runs, err));
    STW_TRY(join_recordings(plan, runs, &n_runs, err));
    stw_warn_of_excess(plan, r->plan);
    STW_TRY(stw_compare(plan, runs[0], &tolerance, &comparison, err));
    STW_TRY(
        stw_compare_digests(comparison, (const stw_run_result *const *)runs, r->runs, n_runs, err));
    if (r->learn != NULL) learned = learn(r, plan, runs[0], n_runs < r->n_runs, &lessons, err);
    if (r->learn != NULL && learned == STW_STATUS_OK) comparison->lessons = &lessons;
    STW_TRY(write_comparison(comparison, general, format, err)); /* also where nothing is learned */
    status = learned != STW_STATUS_OK ? learned : judge(r, comparison, err);
out:
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
        {"--learn", NULL, "FILE.yaml",
         "write what the recording shows of the machine into this cluster file: all of it stays, "
         "but for the base of a rank's process (node.torch.process), the launcher "
         "(node.torch.launcher), the CUDA context (node.gpu.context) and how fast forward and "
         "backward are, relative to the rates of the GPU (node.gpu.efficiency); where there is no "
         "such file, the plan's cluster is written",
         STW_OPTION_ONCE, &r.learn},
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "validate",
        "PLAN RUN [RUN...]",
        "Compare predicted and measured values by phase and component. RUN is a file of stowage "
        "run or stowage record, a CSV with the columns time,rank,phase,metric,bytes, a log "
        "with the memory lines of a framework, or a memory snapshot of torch (docs/validate.md); "
        "what it is follows from what it "
        "contains. Time is judged "
        "only for "
        "runs on the cuda backend with a cluster.yaml that was calibrated on the same GPU model. "
        "Several recordings of one job, of other nodes or ranks each, are joined. Otherwise memory "
        "and time are those of the first run, and further runs may be of plans with other "
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
