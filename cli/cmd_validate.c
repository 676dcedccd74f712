/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "reports/reports.h"

typedef struct request {
    const char *plan, *run, *memory, *time;
} request;

static stw_status validate(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_run_result *run = NULL;
    stw_comparison *comparison = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_tolerance tolerance = STW_TOLERANCE_DEFAULT;
    stw_format format;
    STW_TRY(stw_stdin_once((const char *const[]){r->plan, r->run}, 2, err));
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(stw_option_share("--memory-tolerance", r->memory, &tolerance.memory, err));
    STW_TRY(stw_option_share("--time-tolerance", r->time, &tolerance.time, err));
    STW_TRY(stw_plan_open(r->plan, &plan, err));
    STW_TRY(stw_run_result_read(r->run, &run, err));
    STW_TRY(stw_compare(plan, run, &tolerance, &comparison, err));
    if (general->json)
        STW_TRY(stw_comparison_to_json(comparison, &text, err));
    else
        STW_TRY(stw_report_comparison(comparison, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
    if (run->mismatched > 0)
        status = stw_fail(err, STW_STATUS_DISAGREE, r->run,
                          "verification failed: %llu of %llu checked elements differ",
                          (unsigned long long)run->mismatched, (unsigned long long)run->checked);
    else if (comparison->outside > 0)
        status = stw_fail(err, STW_STATUS_DISAGREE, r->run,
                          "%u of %u judged lines are outside tolerance", comparison->outside,
                          comparison->judged);
    else if (comparison->judged == 0)
        status =
            stw_fail(err, STW_STATUS_BAD_INPUT, r->run, "contains no value that the plan predicts");
out:
    stw_text_free(&text);
    stw_comparison_free(comparison);
    stw_run_result_free(run);
    stw_plan_free(plan);
    return status;
}

int stw_cmd_validate(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    const char *files[2];
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
        "PLAN RUN",
        "Compare predicted and measured values by phase and component. Time is judged only for "
        "runs on the cuda backend with a cluster.yaml that was calibrated on the same GPU model. "
        "Exit code 8: at least one line is outside tolerance, or the run's verification failed.",
        options,
        sizeof options / sizeof options[0],
        2,
        2,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, files, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    r.plan = files[0];
    r.run = files[1];
    return stw_exit(validate(&r, &general, &err), &err);
}
