/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "plan/measured/failure.h"
#include "planner/explain/explain.h"
#include "reports/reports.h"
#include "reports/table.h"
#include "sim/sim.h"

typedef struct request {
    const char *file, *plan, *from, *time_limit;
} request;

static stw_status explain(const request *r, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_failures *found = NULL;
    stw_plan *plan = NULL;
    stw_explanation *explanation = NULL;
    stw_import import = {.pool = NULL};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    char data[4096];
    stw_explain_options options = {.from = r->from, .simulate = stw_sim_seconds};
    const char *paths[] = {r->file, r->plan != NULL ? r->plan : ""};
    const stw_named_path output = {"-o", general->output};
    const stw_named_path inputs[] = {
        {"FILE", r->file}, {"PLAN", r->plan}, {"--from", stw_import_path(r->from)}};
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(stw_stdin_once(paths, 2, err));
    STW_TRY(stw_check_outputs(&output, 1, inputs, 3, err));
    STW_TRY(stw_option_double("--time-limit", r->time_limit, &options.time_limit_s, err));
    if (r->from != NULL && r->plan == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_USAGE, "--from",
                         "needs the PLAN that was made from it, as a second argument"));
    STW_TRY(stw_data_folder(data, sizeof data, err));
    options.data_folder = data;
    STW_TRY(stw_failures_read(r->file, &found, err));
    if (r->plan != NULL) STW_TRY(stw_plan_open(r->plan, &plan, err));
    if (r->from != NULL) {
        STW_TRY(stw_import_read(r->from, &import, err));
        options.import = &import;
    }
    STW_TRY(stw_explain(found, plan, &options, &explanation, err));
    STW_TRY(
        stw_report_explanation(explanation, !stw_is_summary(general, format), format, &text, err));
    if (stw_is_summary(general, format)) stw_doc_line(&text, format, "More: --full, or --json.");
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_explanation_free(explanation);
    stw_import_free(&import);
    stw_plan_free(plan);
    stw_failures_free(found);
    return status;
}

int stw_cmd_explain(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    request r = {0};
    const char *files[2] = {NULL, NULL};
    size_t n = 0;
    const stw_option options[] = {
        {"--from", NULL, "FRAMEWORK:FILE",
         "the settings that PLAN was made from: changes are said in their keys", STW_OPTION_ONCE,
         &r.from},
        {"--time-limit", NULL, "SECONDS", "limit of planning changes anew; default 30",
         STW_OPTION_VALUE, &r.time_limit},
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "explain",
        "FILE [PLAN]",
        "Say why a job ran out of memory, and what to change. FILE is a memory snapshot of torch, "
        "or a "
        "log: with an out-of-memory error of torch, CUDA, NCCL or an inference engine and the "
        "stack before it, with a process that a kernel, a cgroup, Ray or SLURM killed, or the "
        "output of nvidia-smi or dcgmi dmon (docs/explain.md); what it is follows from what it "
        "contains. PLAN, of stowage plan, adds what was planned for that moment, and changes "
        "that are planned anew within what the run had. What the file does not say is named as "
        "unknown.",
        options,
        sizeof options / sizeof options[0],
        1,
        2,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, files, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    r.file = files[0];
    r.plan = n > 1 ? files[1] : NULL;
    return stw_exit(explain(&r, &general, &err), &err);
}
