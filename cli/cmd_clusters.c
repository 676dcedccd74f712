/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "core/file.h"
#include "core/pattern.h"
#include "reports/reports.h"

static stw_status list(const char *pattern, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char data[4096];
    stw_presets presets = {0};
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    size_t n = 0;
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(stw_data_folder(data, sizeof data, err));
    STW_TRY(stw_presets_read(data, &presets, err));
    for (size_t i = 0; i < presets.n; i++)
        if (stw_name_matches(presets.items[i].name, pattern) ||
            stw_name_matches(presets.items[i].cluster->gpu.name, pattern))
            presets.items[n++] = presets.items[i];
    if (n == 0)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, pattern, "matches none of the %zu clusters",
                         presets.n));
    if (n > STW_MOST_LISTED && stw_is_summary(general, format))
        STW_TRY(stw_report_cluster_names(presets.items, n, pattern != NULL, &text, err));
    else
        STW_TRY(stw_report_clusters(presets.items, n, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_presets_free(&presets);
    return status;
}

static stw_status show(const char *name, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster;
    stw_text text = STW_TEXT_INIT;
    STW_TRY(stw_check_suffix(general->output, "a cluster", general->json ? ".json" : ".yaml .yml",
                             err));
    STW_TRY(stw_inputs_cluster(name, &cluster, err));
    if (general->json) {
        stw_json *json = stw_json_new();
        stw_cluster_write_json(&cluster, json, NULL);
        STW_TRY(stw_json_finish(json, &text, err));
    } else {
        stw_cluster_write_yaml(&cluster, &text);
    }
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    return status;
}

int stw_cmd_clusters(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *pattern[1] = {NULL}, *shown = NULL;
    size_t n = 0;
    const stw_option options[] = {
        {"--show", "-s", "NAME", "write cluster.yaml of one of them, with units and comments",
         STW_OPTION_VALUE, &shown},
    };
    const stw_usage usage = {
        "stowage",
        "clusters",
        "[PATTERN]",
        "List the clusters that --cluster takes by name: \"h100-80g-x8\" is one node, \"4 x "
        "h100-80g-x8\" are four. Most rates are from data sheets; `stowage calibrate` measures "
        "yours. Without PATTERN and -v their names alone, by GPU. PATTERN is a part of a cluster's "
        "or a GPU's name, or a name with * and ?.",
        options,
        sizeof options / sizeof options[0],
        0,
        1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, pattern, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    if (shown != NULL) return stw_exit(show(shown, &general, &err), &err);
    return stw_exit(list(n > 0 ? pattern[0] : NULL, &general, &err), &err);
}
