/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "planner/frameworks/emit/emit.h"
#include "reports/reports.h"
#include "sim/sim.h"

/* --emit FRAMEWORK:FILE. @return the file, or NULL */
static const char *emit_path(const char *emit) {
    const char *colon = emit != NULL ? strchr(emit, ':') : NULL;
    return colon != NULL && colon[1] != '\0' ? colon + 1 : NULL;
}

/* What --emit writes once it is known that the settings realise the plan. */
typedef struct emitted {
    const char *what, *from; /* FRAMEWORK:FILE of --from, or NULL */
    stw_text settings, notes;
} emitted;

static stw_status make_settings(const stw_inputs *in, const stw_plan *plan, emitted *out,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_import import = {.pool = NULL};
    char data[4096];
    STW_TRY(stw_data_folder(data, sizeof data, err));
    if (in->from != NULL) STW_TRY(stw_import_read(in->from, &import, err));
    const stw_emit_options options = {.from = in->from,
                                      .import = in->from != NULL ? &import : NULL,
                                      .data_folder = data,
                                      .simulate = stw_sim_seconds};
    STW_TRY(stw_emit_plan(out->what, plan, &options, &out->settings, &out->notes, err));
    STW_TRY(stw_text_status(&out->settings, err));
    STW_TRY(stw_text_status(&out->notes, err));
out:
    stw_import_free(&import);
    return status;
}

/* Settings go to their file, or to stdout; the plan's verdict and what is said of them to the other
 * stream. */
static stw_status write_settings(const stw_plan *plan, bool quiet, const emitted *e,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *path = emit_path(e->what);
    const size_t n = strcspn(e->what, ":");
    const bool same = e->from != NULL && strncmp(e->from, e->what, n) == 0 && e->from[n] == ':';
    stw_text said = STW_TEXT_INIT;
    if (!quiet) STW_TRY(stw_report_plan_verdict(plan, &said, err));
    if (e->notes.length > 0) stw_text_append(&said, e->notes.data, e->notes.length);
    STW_TRY(stw_text_status(&said, err));
    STW_TRY(stw_file_write_like(path != NULL ? path : "-", same ? e->from + n + 1 : NULL,
                                e->settings.data, e->settings.length, err));
    if (path != NULL)
        STW_TRY(stw_emit(&(stw_general){0}, &said, err));
    else if (said.length > 0)
        fprintf(stderr, "%s", said.data);
out:
    stw_text_free(&said);
    return status;
}

/* Settings are written to another file than they are read from. */
static stw_status check_new(const char *from, const char *emit, stw_error *err) {
    const char *path = emit_path(emit), *colon = from != NULL ? strchr(from, ':') : NULL;
    const stw_named_path output = {"--emit", path},
                         input = {"--from", colon != NULL ? colon + 1 : NULL};
    if (path == NULL || stw_check_outputs(&output, 1, &input, 1, NULL) == STW_STATUS_OK)
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, path,
                    "--emit would replace the file of --from; name another file, and move it when "
                    "you have compared both");
}

static stw_status make_plan(const stw_inputs *in, const stw_general *general, const char *emit,
                            int *code, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = NULL;
    stw_text json = STW_TEXT_INIT, summary = STW_TEXT_INIT;
    emitted settings = {emit, in->from, STW_TEXT_INIT, STW_TEXT_INIT};
    stw_format format;
    STW_TRY(stw_check_suffix(general->output, "a plan", ".json", err));
    STW_TRY(stw_report_format(&(stw_general){0}, &format, err)); /* of the summary */
    if (emit != NULL && !stw_emit_is(emit))
        STW_TRY(stw_emit_plan(emit, NULL, NULL, NULL, NULL, err));
    const stw_named_path outputs[] = {
        {"-o", general->output}, {"--write-lp", in->write_lp}, {"--emit", emit_path(emit)}};
    const stw_named_path inputs[] = {STW_INPUT_PATHS(*in)};
    STW_TRY(check_new(in->from, emit, err));
    STW_TRY(stw_check_outputs(outputs, 3, inputs, sizeof inputs / sizeof inputs[0], err));
    STW_TRY(stw_inputs_plan(in, &plan, err));
    *code = stw_plan_exit_code(plan);
    STW_TRY(stw_plan_to_json(plan, &json, err));
    STW_TRY(stw_text_status(&json, err));
    if (emit != NULL) STW_TRY(make_settings(in, plan, &settings, err));
    if (general->output != NULL)
        STW_TRY(stw_file_write(general->output, json.data, json.length, err));
    if (emit != NULL) {
        STW_TRY(write_settings(plan, general->quiet, &settings, err));
        goto out;
    }
    if (general->json) {
        if (general->output == NULL || !stw_file_is_stdout(general->output))
            STW_TRY(stw_file_write("-", json.data, json.length, err));
        goto out;
    }
    if (general->output != NULL && (general->quiet || strcmp(general->output, "-") == 0)) goto out;
    if (stw_wants_all(general))
        STW_TRY(stw_report_plan(plan, NULL, NULL, STW_FORMAT_TERMINAL, &summary, err));
    else
        STW_TRY(stw_report_plan_summary(plan, stw_summary_lines(in->from != NULL), &summary, err));
    if (in->from != NULL) stw_import_tell(in->from, &summary);
    if (!stw_wants_all(general)) stw_tell_details(general->output, &summary);
    STW_TRY(stw_emit(&(stw_general){0}, &summary, err));
out:
    stw_text_free(&json);
    stw_text_free(&summary);
    stw_text_free(&settings.settings);
    stw_text_free(&settings.notes);
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
    const char *emit = NULL;
    const stw_option options[] = {
        STW_INPUT_OPTIONS(in),
        {"--emit", NULL, "FRAMEWORK[:FILE]",
         "print a framework's settings that realise the plan, what they do not say, and changes "
         "against --from",
         STW_OPTION_VALUE, &emit},
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "plan",
        "--model MODEL",
        "Decide placement, prefetch depth and load method; predict bytes and seconds. The plan is "
        "written to -o FILE, a summary to stdout. Exit code 9: the plan is at risk (a run may be "
        "over a limit that it keeps), "
        "or a part is unknown. Exit code 5: the time limit ended the search before anything that "
        "fits "
        "was found. Exit code 4: nothing fits. The plan with the "
        "smallest excess (the sum of what exceeds each limit, as shares of the limits) is still "
        "written. It lists the limits that cannot be kept together and "
        "changes that make the plan fit. --set parallel=auto searches the layout of ranks and the "
        "micro batch, too. Keys for --set: examples/default.yaml in the data folder "
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
    status = stw_inputs_accept(&in, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    in.tells_turns = emit != NULL && !stw_emit_says_modules(emit);
    status = make_plan(&in, &general, emit, &code, &err);
    return status != STW_STATUS_OK ? stw_exit(status, &err) : code;
}
