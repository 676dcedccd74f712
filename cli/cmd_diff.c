/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "reports/reports.h"

static stw_status diff(const char *const paths[2], const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plans[2] = {NULL, NULL};
    stw_diff *found = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    STW_TRY(stw_stdin_once(paths, 2, err));
    STW_TRY(stw_page_format(general, false, &format, err));
    const stw_named_path output = {"-o", general->output};
    const stw_named_path inputs[] = {{"PLAN", paths[0]}, {"PLAN", paths[1]}};
    STW_TRY(stw_check_outputs(&output, 1, inputs, 2, err));
    for (int i = 0; i < 2; i++) STW_TRY(stw_plan_open(paths[i], &plans[i], err));
    STW_TRY(stw_diff_new(plans[0], plans[1], paths, &found, err));
    if (format == STW_FORMAT_HTML) {
        STW_TRY(stw_page_emit(general, &(stw_page_item){.name = "", .diff = found}, 1, err));
        goto out;
    }
    if (stw_is_summary(general, format))
        STW_TRY(stw_report_diff_summary(found, &text, err));
    else
        STW_TRY(stw_report_diff(found, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_diff_free(found);
    for (int i = 0; i < 2; i++) stw_plan_free(plans[i]);
    return status;
}

int stw_cmd_diff(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *files[2];
    size_t n = 0;
    const stw_option options[] = {STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "diff",
        "PLAN PLAN",
        "Say what changed from the first plan to the second: verdict, peak memory by phase, tier "
        "and component, seconds by phase, settings and decisions. Lines that are equal in both "
        "are left out. The figures are those of the plan files. - reads standard input. The "
        "suffix of -o FILE selects the format: .txt (or none), .md, .csv, .json, .html. Exit code "
        "0, "
        "whatever differs.",
        options,
        sizeof options / sizeof options[0],
        2,
        2,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, files, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    return stw_exit(diff(files, &general, &err), &err);
}
