/* SPDX-License-Identifier: Apache-2.0 */
/* The HTML page: data, style, chart library and script in one file. The script draws; what it draws
 * is here: each item's document as --json prints it, what its report says (reports/blocks.h), and
 * figures for charts. */
#include <string.h>

#include "core/build.h"
#include "reports/blocks.h"
#include "reports/page.h"
#include "reports/plan_files.h"
#include "stw_config.h"

/* Files of reports/html/, as arrays (cmake/StwPage.cmake). */
#include "reports/page_files.inc"

/* Buckets of a movement, over all plans of a page. */
enum { MOST_BUCKETS = 96, LEAST_BUCKETS = 16, PLANS_WITH_MOST = 2, SLICES_OF_BUCKET = 4 };

static void put(stw_text *out, const char *text) { stw_text_append(out, text, strlen(text)); }

static stw_status put_document(const stw_page_item *item, stw_format format, stw_text *out,
                               stw_error *err) {
    if (item->plan != NULL)
        return stw_report_plan(item->plan, item->run, item->comparison, format, out, err);
    if (item->run != NULL) return stw_report_run(item->run, format, out, err);
    if (item->sweep != NULL) return stw_report_sweep(item->sweep, true, format, out, err);
    if (item->diff != NULL) return stw_report_diff(item->diff, format, out, err);
    return stw_report_sizes(item->sizes, item->n_sizes, format, out, err);
}

static const char *kind_of(const stw_page_item *item) {
    return item->plan != NULL    ? "plan"
           : item->run != NULL   ? "run"
           : item->sweep != NULL ? "sweep"
           : item->diff != NULL  ? "diff"
                                 : "size";
}

/* What a plan's charts need beside its file. */
static stw_status put_charts(const stw_page_item *item, uint32_t buckets, stw_text *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_plan_facts facts;
    stw_plan_facts_get(item->plan, &facts);
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_page_figures(item->plan, &facts, json);
    status = stw_page_memory(item, buckets, json, err);
    stw_page_streams(item, SLICES_OF_BUCKET * buckets, json);
    stw_json_end(json);
    const stw_status finished = stw_json_finish(json, &text, status == STW_STATUS_OK ? err : NULL);
    if (status == STW_STATUS_OK) status = finished;
    if (status == STW_STATUS_OK) {
        put(out, ",\n\"charts\": ");
        stw_block_document(out, &text);
    }
    stw_text_free(&text);
    return status;
}

static stw_status put_item(const stw_page_item *item, uint32_t buckets, stw_text *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT, csv = STW_TEXT_INIT;
    stw_text_printf(out, "{\"kind\": \"%s\",\n\"name\": ", kind_of(item));
    stw_block_quote(out, item->name);
    put(out, ",\n\"document\": ");
    STW_TRY(put_document(item, STW_FORMAT_JSON, &text, err));
    stw_block_document(out, &text);
    stw_text_free(&text);
    put(out, ",\n\"blocks\": ");
    STW_TRY(put_document(item, STW_FORMAT_BLOCKS, &text, err));
    stw_block_array(out, &text);
    STW_TRY(put_document(item, STW_FORMAT_CSV, &csv, err));
    put(out, ",\n\"csv\": ");
    stw_block_quote(out, csv.data != NULL ? csv.data : "");
    if (item->plan != NULL) STW_TRY(put_charts(item, buckets, out, err));
    put(out, "}");
out:
    stw_text_free(&text);
    stw_text_free(&csv);
    return status;
}

static uint32_t buckets_for(const stw_page_item *items, size_t n) {
    uint32_t plans = 0;
    for (size_t i = 0; i < n; i++) plans += items[i].plan != NULL;
    if (plans <= PLANS_WITH_MOST) return MOST_BUCKETS;
    const uint32_t buckets = MOST_BUCKETS * PLANS_WITH_MOST / plans;
    return buckets > LEAST_BUCKETS ? buckets : LEAST_BUCKETS;
}

stw_status stw_report_page(const stw_page_item *items, size_t n, const char *command, stw_text *out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    put(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
             "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
             "<title>Stowage report</title>\n<!-- This page contains " STW_PAGE_LIBRARY "\n");
    stw_text_append(out, page_licence, sizeof page_licence);
    put(out, "-->\n<style>\n");
    stw_text_append(out, page_library_css, sizeof page_library_css);
    stw_text_append(out, page_css, sizeof page_css);
    put(out, "</style>\n</head>\n<body>\n<noscript>This report is drawn by a script. Its figures "
             "are in the JSON document in the source of this page.</noscript>\n"
             "<script type=\"application/json\" id=\"data\">\n"
             "{\"schema\": \"stowage.page/1\",\n\"program\": \"stowage " STW_VERSION " (");
    stw_text_printf(out, "%s)\",\n\"library\": \"%s\",\n\"command\": ", stw_build_identity(),
                    STW_PAGE_LIBRARY);
    stw_block_quote(out, command);
    put(out, ",\n\"items\": [\n");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) put(out, ",\n");
        STW_TRY(put_item(&items[i], buckets_for(items, n), out, err));
    }
    put(out, "]}\n</script>\n<script>\n");
    stw_text_append(out, page_library_js, sizeof page_library_js);
    put(out, "</script>\n<script>\n");
    stw_text_append(out, page_charts, sizeof page_charts);
    stw_text_append(out, page_js, sizeof page_js);
    put(out, "</script>\n</body>\n</html>\n");
    status = stw_text_status(out, err);
out:
    return status;
}
