/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "core/file.h"
#include "core/tree.h"
#include "reports/reports.h"
#include "reports/table.h"

enum { MOST_FILES = 16, MOST_BYTES = 256 << 20 };

typedef struct loaded {
    const char *name; /* of the file */
    stw_plan *plan;
    stw_run_result *run;
    stw_sweep *sweep;
} loaded;

static stw_status load(const char *path, loaded *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    const char *schema = NULL;
    char *text = NULL;
    uint64_t length = 0;
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    out->name = name;
    STW_TRY(stw_file_read(path, MOST_BYTES, &text, &length, err)); /* once: it may be a pipe */
    STW_TRY(stw_tree_parse_json(name, text, (size_t)length, &tree, err));
    STW_TRY(stw_node_string(tree, tree->root, "schema", &schema, err));
    if (strncmp(schema, "stowage.plan/", 13) == 0) {
        STW_TRY(stw_plan_parse(name, text, (size_t)length, &out->plan, err));
        STW_TRY(stw_plan_hold(out->plan, name, err));
    } else if (strncmp(schema, "stowage.run/", 12) == 0) {
        STW_TRY(stw_run_result_parse(name, text, (size_t)length, &out->run, err));
    } else if (strncmp(schema, "stowage.sweep/", 14) == 0) {
        STW_TRY(stw_sweep_parse(name, text, (size_t)length, &out->sweep, err));
    } else {
        status = stw_fail(err, STW_STATUS_BAD_INPUT, name,
                          "found schema \"%s\", expected stowage.plan/1, stowage.run/1 or "
                          "stowage.sweep/1",
                          schema);
    }
out:
    stw_tree_free(tree);
    free(text);
    return status;
}

/* A plan followed by its run gives one report with predicted and measured values: the number of
 * files that an item has. The caller frees its comparison. */
static stw_status make_item(const loaded *file, const loaded *next, stw_page_item *out,
                            stw_comparison **comparison, size_t *used, stw_error *err) {
    stw_tolerance tolerance = STW_TOLERANCE_DEFAULT;
    *out = (stw_page_item){
        .name = file->name, .plan = file->plan, .run = file->run, .sweep = file->sweep};
    *used = 1;
    if (file->plan == NULL || next == NULL || next->run == NULL) return STW_STATUS_OK;
    *used = 2;
    out->run = next->run;
    const stw_status status = stw_compare(file->plan, next->run, &tolerance, comparison, err);
    out->comparison = *comparison;
    return status;
}

/* @param all false: for a terminal, without the long tables */
static stw_status put_item(const stw_page_item *item, stw_format format, bool all, stw_text *text,
                           stw_error *err) {
    if (item->sweep != NULL) return stw_report_sweep(item->sweep, all, format, text, err);
    if (item->plan == NULL) return stw_report_run(item->run, format, text, err);
    if (!all) return stw_report_plan_short(item->plan, item->run, item->comparison, text, err);
    if (format == STW_FORMAT_CSV)
        return stw_report_plan_csv(item->plan, item->run, item->comparison, item->name,
                                   text->length == 0, text, err);
    return stw_report_plan(item->plan, item->run, item->comparison, format, text, err);
}

/* The plans among some items. @param plans, names [MOST_FILES] @return how many */
static size_t plans_of(const stw_page_item *items, size_t n, const stw_plan **plans,
                       const char **names) {
    size_t n_plans = 0;
    for (size_t i = 0; i < n; i++) {
        if (items[i].plan == NULL) continue;
        plans[n_plans] = items[i].plan;
        names[n_plans++] = items[i].name;
    }
    return n_plans;
}

static stw_status put_openmetrics(const stw_page_item *items, size_t n, stw_text *text,
                                  stw_error *err) {
    const stw_plan *plans[MOST_FILES];
    const char *names[MOST_FILES];
    for (size_t i = 0; i < n; i++)
        if (items[i].plan == NULL)
            return stw_fail(err, STW_STATUS_USAGE, items[i].name, "OpenMetrics requires plans");
    (void)plans_of(items, n, plans, names);
    return stw_report_plans_openmetrics(plans, names, n, text, err);
}

/* A plan in Markdown has pictures beside the file. @param number of the plan among several, or 0 */
static stw_status put_pictured(stw_page_item *item, const char *report, size_t number,
                               stw_text *text, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text link = STW_TEXT_INIT;
    STW_TRY(stw_pictures_write(item, report, number, &link, err));
    STW_TRY(stw_report_plan_pictured(item, link.data, text, err));
out:
    stw_text_free(&link);
    return status;
}

/* Several plans are compared first; on a terminal that is all of them, unless all is asked for. */
static stw_status put_items(stw_page_item *items, size_t n, const stw_general *general,
                            stw_format format, stw_text *text, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const bool all = !stw_is_summary(general, format), markdown = format == STW_FORMAT_MARKDOWN;
    const stw_plan *plans[MOST_FILES];
    const char *names[MOST_FILES];
    const size_t n_plans = plans_of(items, n, plans, names);
    const bool compares = n_plans > 1 && (format == STW_FORMAT_TERMINAL || markdown);
    if (compares) STW_TRY(stw_report_plans(plans, names, n_plans, format, text, err));
    for (size_t i = 0, number = n_plans > 1; i < n; i++) {
        if (compares && !all && items[i].plan != NULL) continue;
        if (text->length > 0 && format == STW_FORMAT_TERMINAL) stw_text_printf(text, "\n");
        if (markdown && items[i].plan != NULL)
            STW_TRY(put_pictured(&items[i], general->output, number, text, err));
        else
            STW_TRY(put_item(&items[i], format, all, text, err));
        number += n_plans > 1 && items[i].plan != NULL;
    }
out:
    return status;
}

static stw_status report(const char *const *paths, size_t n, const stw_general *general, bool open,
                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    loaded files[MOST_FILES] = {{0}};
    stw_page_item items[MOST_FILES];
    stw_comparison *comparisons[MOST_FILES] = {NULL};
    size_t n_items = 0;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    STW_TRY(stw_stdin_once(paths, n, err));
    STW_TRY(stw_page_format(general, true, &format, err));
    if (open && format != STW_FORMAT_HTML) {
        status = stw_fail(err, STW_STATUS_USAGE, "--open", "requires -o FILE.html");
        goto out;
    }
    const stw_named_path output = {"-o", general->output};
    for (size_t i = 0; i < n; i++) {
        const stw_named_path input = {"PLAN|RUN|SWEEP", paths[i]};
        STW_TRY(stw_check_outputs(&output, 1, &input, 1, err));
    }
    for (size_t i = 0; i < n; i++) STW_TRY(load(paths[i], &files[i], err));
    if (format == STW_FORMAT_JSON &&
        (n > 2 || (n == 2 && (files[0].plan == NULL || files[1].run == NULL)))) {
        status = stw_fail(err, STW_STATUS_USAGE, "report",
                          "a JSON report requires one plan, one run, one sweep, or a plan and its "
                          "run");
        goto out;
    }
    for (size_t i = 0, used; i < n; i += used, n_items++)
        STW_TRY(make_item(&files[i], i + 1 < n ? &files[i + 1] : NULL, &items[n_items],
                          &comparisons[n_items], &used, err));
    if (format == STW_FORMAT_HTML) {
        STW_TRY(stw_page_emit(general, items, n_items, err));
        if (open) stw_page_open(general->output);
        goto out;
    }
    if (format == STW_FORMAT_OPENMETRICS) {
        STW_TRY(put_openmetrics(items, n_items, &text, err));
        STW_TRY(stw_emit(general, &text, err));
        goto out;
    }
    STW_TRY(put_items(items, n_items, general, format, &text, err));
    if (stw_is_summary(general, format) && items[0].plan != NULL)
        stw_doc_line(&text, format,
                     "All tables: --full, or -o FILE.html, .md, .txt, .csv or .json");
    STW_TRY(stw_emit(general, &text, err));
out:
    for (size_t i = 0; i < n; i++) {
        stw_comparison_free(comparisons[i]);
        stw_plan_free(files[i].plan);
        stw_run_result_free(files[i].run);
        stw_sweep_free(files[i].sweep);
    }
    stw_text_free(&text);
    return status;
}

int stw_cmd_report(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *files[MOST_FILES];
    size_t n = 0;
    bool open = false;
    const stw_option options[] = {
        {"--open", NULL, NULL, "show the page in a browser", STW_OPTION_FLAG, &open},
        STW_FULL_OPTION(general)};
    const stw_usage usage = {
        "stowage",
        "report",
        "PLAN|RUN|SWEEP...",
        "Write a capacity report: the verdict with what stays free, peaks of every phase, bars, "
        "what it costs, what binds, what to change, where everything is. --full and files add all "
        "tables. A plan that does not fit is reported with exit code 0 (plan and simulate: 4 or "
        "9). A plan followed by its run gives one report with predicted and measured values; "
        "several plans are compared. A sweep over nodes begins with how many to book. - reads "
        "standard input. The suffix of -o FILE selects the format: .txt (or none), .md (with "
        "pictures beside it: FILE-memory.svg, FILE-tiers.svg), .csv, .json, .html: one page with "
        "charts that needs no network; .om or .prom: OpenMetrics of plans.",
        options,
        sizeof options / sizeof options[0],
        1,
        MOST_FILES,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, files, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    return stw_exit(report(files, n, &general, open, &err), &err);
}
