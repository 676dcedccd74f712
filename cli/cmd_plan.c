/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "reports/reports.h"

static stw_status make_plan(const stw_inputs *in, const stw_general *general, int *code,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_text json = STW_TEXT_INIT, summary = STW_TEXT_INIT;
    stw_format format;
    STW_TRY(stw_check_suffix(general->output, "a plan", ".json", err));
    STW_TRY(stw_report_format(&(stw_general){0}, &format, err)); /* of the summary */
    const stw_named_path outputs[] = {{"-o", general->output}, {"--write-lp", in->write_lp}};
    const stw_named_path inputs[] = {STW_INPUT_PATHS(*in)};
    STW_TRY(stw_check_outputs(outputs, 2, inputs, sizeof inputs / sizeof inputs[0], err));
    STW_TRY(stw_inputs_plan(in, &plan, err));
    *code = stw_plan_exit_code(plan);
    STW_TRY(stw_plan_to_json(plan, &json, err));
    STW_TRY(stw_text_status(&json, err));
    if (general->output != NULL)
        STW_TRY(stw_file_write(general->output, json.data, json.length, err));
    if (general->json) {
        if (general->output == NULL) STW_TRY(stw_file_write("-", json.data, json.length, err));
        goto out;
    }
    if (general->output != NULL && (general->quiet || strcmp(general->output, "-") == 0)) goto out;
    STW_TRY(stw_report_plan_summary(plan, &summary, err));
    STW_TRY(stw_emit(&(stw_general){0}, &summary, err));
out:
    stw_text_free(&json);
    stw_text_free(&summary);
    stw_plan_free(plan);
    return status;
}

int stw_cmd_plan(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    stw_inputs in = {0};
    size_t n = 0;
    int code = 0;
    const char *none[1];
    const stw_option options[] = {STW_INPUT_OPTIONS(in)};
    const stw_usage usage = {
        "stowage",
        "plan",
        "--model MODEL",
        "Decide placement, prefetch depth and load method; predict bytes and seconds. The plan is "
        "written to -o FILE, a summary to stdout. Exit code 4: nothing fits. The plan with the "
        "smallest excess (the sum of what exceeds each limit, as shares of the limits) is still "
        "written. It lists the limits that cannot be kept together and "
        "changes that make the plan fit. Keys for --set: examples/default.yaml in the data folder "
        "lists those of a run, `stowage clusters --show NAME` those of a cluster.",
        options,
        sizeof options / sizeof options[0],
        0,
        0,
        stw_inputs_hint};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, none, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    status = make_plan(&in, &general, &code, &err);
    return status != STW_STATUS_OK ? stw_exit(status, &err) : code;
}
