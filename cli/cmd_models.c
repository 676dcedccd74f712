/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/commands.h"
#include "core/pattern.h"
#include "models/zoo.h"
#include "reports/reports.h"

static stw_status list(const char *pattern, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char data[4096];
    const char *const *names = NULL;
    size_t n = 0, n_names = 0;
    stw_model **models = NULL;
    const char **chosen = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    stw_pool *pool = stw_pool_new();
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(stw_data_folder(data, sizeof data, err));
    STW_TRY(stw_zoo_list(data, pool, &names, &n_names, err));
    chosen = stw_pool_array(pool, n_names, sizeof *chosen);
    models = stw_pool_array(pool, n_names, sizeof *models);
    if (models == NULL || chosen == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "models", "out of memory");
        goto out;
    }
    for (size_t i = 0; i < n_names; i++)
        if (stw_name_matches(names[i], pattern)) chosen[n++] = names[i];
    if (n == 0 && pattern != NULL) { /* a published name of one of them */
        stw_zoo_name found;
        STW_TRY(stw_zoo_find(data, pattern, pool, &found, err));
        if (found.model != NULL) STW_TRY(stw_zoo_open(data, pattern, &models[n++], err));
    }
    if (n == 0) {
        const char *near = pattern != NULL ? stw_nearest(pattern, names, n_names) : NULL;
        status = stw_fail(err, STW_STATUS_BAD_INPUT, pattern,
                          "matches none of the %zu models in %.200s/zoo%s%s%s", n_names, data,
                          near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                          near != NULL ? "\"?" : "");
        goto out;
    }
    if (n > STW_MOST_LISTED && stw_is_summary(general, format)) {
        STW_TRY(stw_report_model_names(chosen, n, pattern != NULL, &text, err));
    } else {
        for (size_t i = 0; i < n && chosen[i] != NULL; i++)
            STW_TRY(stw_model_open(chosen[i], data, &models[i], err));
        STW_TRY(stw_report_models((const stw_model *const *)models, n, format, &text, err));
    }
    STW_TRY(stw_emit(general, &text, err));
out:
    for (size_t i = 0; models != NULL && i < n_names; i++) stw_model_free(models[i]);
    stw_text_free(&text);
    stw_pool_free(pool);
    return status;
}

int stw_cmd_models(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *pattern[1] = {NULL};
    size_t n = 0;
    const stw_usage usage = {
        "stowage",
        "models",
        "[PATTERN]",
        "List the models of the zoo with parameters, parameters active per token, size and type of "
        "the published files, and context length; without PATTERN and -v their names alone. "
        "PATTERN "
        "is a part of the name, or a name with * and ?.",
        NULL,
        0,
        0,
        1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, pattern, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    return stw_exit(list(n > 0 ? pattern[0] : NULL, &general, &err), &err);
}
