/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "planner/frameworks/import/import.h"
#include "reports/reports.h"

/* The flags are of use without the model, too. */
static stw_status open_imported(stw_import *import, const char *data, const stw_general *general,
                                stw_model **out, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    const stw_status status = stw_import_model(import, NULL, data, out, err);
    if (status != STW_STATUS_OK) {
        stw_import_write(import, &text);
        (void)!stw_emit(general, &text, NULL);
    }
    stw_text_free(&text);
    return status;
}

static stw_status inspect(const char *what, const stw_general *general, const char *tensors,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char data[4096];
    stw_model *model = NULL;
    stw_import import = {.pool = NULL};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    const bool from = stw_import_is(what);
    STW_TRY(stw_report_format(general, &format, err));
    const stw_named_path outputs[] = {{"-o", general->output}, {"--tensors", tensors}};
    const stw_named_path input = {"MODEL", what};
    STW_TRY(stw_check_outputs(outputs, 2, &input, 1, err));
    STW_TRY(stw_data_folder(data, sizeof data, err));
    if (from) {
        STW_TRY(stw_import_read(what, &import, err));
        if (stw_import_has_model(&import))
            STW_TRY(open_imported(&import, data, general, &model, err));
        else if (tensors != NULL || format != STW_FORMAT_TERMINAL)
            STW_TRY(stw_fail(err, STW_STATUS_USAGE, what, "the file names no model to inspect"));
    } else {
        STW_TRY(stw_model_open(what, data, &model, err));
    }
    if (tensors != NULL) STW_TRY(stw_model_write_csv(model, tensors, err));
    if (model != NULL) STW_TRY(stw_report_model(model, format, &text, err));
    if (from && stw_is_summary(general, format))
        stw_import_write_short(&import, what, &text);
    else if (from && format == STW_FORMAT_TERMINAL)
        stw_import_write(&import, &text);
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_model_free(model);
    stw_import_free(&import);
    return status;
}

int stw_cmd_inspect(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *tensors = NULL, *what[1];
    size_t n = 0;
    const stw_option options[] = {
        {"--tensors", "-t", "FILE.csv", "also write a CSV tensor list (name,shape,dtype,group)",
         STW_OPTION_VALUE, &tensors},
    };
    const stw_usage usage = {
        "stowage",
        "inspect",
        "MODEL",
        "Print tensor groups, tensors and parameters of a model. MODEL is a zoo name "
        "(`stowage models` lists them), a config.json or its folder, a safetensors file, index or "
        "folder (only headers are read), a CSV tensor list, or FRAMEWORK:FILE as for --from of "
        "`stowage plan`: then its flags and what became of them follow, with -v all of them.",
        options,
        sizeof options / sizeof options[0],
        1,
        1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, what, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    return stw_exit(inspect(what[0], &general, tensors, &err), &err);
}
