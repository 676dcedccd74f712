/* SPDX-License-Identifier: Apache-2.0 */
/* stowage.sweep/1. Rows state their combination and figures that follow from others, for people and
 * other programs; the reader takes the place in the list of combinations from `point`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "plan/files/checksums.h"
#include "plan/files/file_parts.h"
#include "plan/files/sweep.h"

enum { MOST_BYTES = 256 << 20 };

/* ---- writing ---- */

static void write_arguments(const stw_sweep *sweep, stw_json *json) {
    const stw_sweep_arguments *a = &sweep->arguments;
    stw_json_begin_object(json, "arguments");
    stw_json_string(json, "version", a->version);
    stw_json_string(json, "model", a->model);
    stw_json_string(json, "model_digest", a->model_digest);
    stw_json_string(json, "cluster", a->cluster);
    stw_json_string(json, "inputs", a->inputs);
    stw_json_begin_array(json, "set");
    for (uint32_t i = 0; i < a->n_settings; i++) stw_json_string(json, NULL, a->settings[i]);
    stw_json_end(json);
    stw_json_double(json, "time_limit_s", a->time_limit_s);
    stw_json_end(json);
}

static void write_axes(const stw_sweep *sweep, stw_json *json) {
    stw_json_begin_array(json, "vary");
    for (uint32_t a = 0; a < sweep->n_axes; a++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "key", sweep->axes[a].key);
        stw_json_begin_array(json, "values");
        for (uint32_t v = 0; v < sweep->axes[a].n; v++)
            stw_json_string(json, NULL, sweep->axes[a].values[v]);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_row(const stw_sweep *sweep, uint32_t i, stw_json *json) {
    const stw_sweep_row *row = &sweep->rows[i];
    stw_json_begin_object(json, NULL);
    stw_json_u64(json, "point", i);
    stw_json_begin_object(json, "settings");
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        stw_json_string(json, sweep->axes[a].key, stw_sweep_value(sweep, i, a));
    stw_json_end(json);
    stw_json_string(json, "verdict", stw_sweep_verdict_name(row->verdict));
    stw_json_u64(json, "gpus", row->gpus);
    stw_json_u64(json, "gpu_peak_bytes", row->gpu_peak_bytes);
    stw_json_u64(json, "host_peak_bytes", row->host_peak_bytes);
    stw_json_double(json, "iteration_s", row->iteration_s);
    stw_json_double(json, "tokens_per_s", row->tokens_per_s);
    stw_json_double(json, "tokens_per_s_per_gpu", stw_sweep_tokens_per_gpu(row));
    stw_json_double(json, "gpu_hours_per_1e9_tokens", stw_sweep_gpu_hours(row));
    if (row->usd_per_gpu_hour > 0) {
        stw_json_double(json, "price_per_gpu_hour", row->usd_per_gpu_hour);
        stw_json_double(json, "usd_per_1e9_tokens", stw_sweep_usd(row));
    }
    stw_json_string(json, "binds", row->binds);
    stw_json_string(json, "reason", row->reason);
    stw_json_bool(json, "front", row->front);
    stw_json_double(json, "planning_s", row->planning_s);
    stw_json_end(json);
}

stw_status stw_sweep_to_json(const stw_sweep *sweep, stw_text *out, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.sweep/1");
    write_arguments(sweep, json);
    write_axes(sweep, json);
    stw_json_begin_object(json, "front");
    stw_json_string(json, "fewer", "gpus");
    stw_json_string(json, "more", "tokens_per_s_per_gpu");
    stw_json_end(json);
    stw_json_u64(json, "points", sweep->n_points);
    stw_json_begin_array(json, "rows");
    for (uint32_t i = 0; i < sweep->n_points; i++)
        if (sweep->rows[i].verdict != STW_SWEEP_NOT_PLANNED) write_row(sweep, i, json);
    stw_json_end(json);
    stw_json_end(json);
    stw_status status = stw_json_finish(json, &text, err);
    if (status == STW_STATUS_OK) status = stw_checksums_append(&text, err);
    if (status == STW_STATUS_OK) {
        stw_text_append(out, text.data, text.length);
        status = stw_text_status(out, err);
    }
    stw_text_free(&text);
    return status;
}

/* ---- reading ---- */

static stw_status read_strings(const stw_tree *tree, const stw_node *parent, const char *key,
                               stw_pool *pool, const char ***out, uint32_t *n, stw_error *err) {
    const stw_node *list = NULL;
    stw_status status = stw_node_array(tree, parent, key, &list, err);
    if (status != STW_STATUS_OK) return status;
    const char **items = stw_pool_array(pool, list->n_items + 1, sizeof *items);
    for (size_t i = 0; items != NULL && i < list->n_items; i++) {
        if (list->items[i]->kind != STW_NODE_STRING)
            return stw_node_fail(tree, list->items[i], "a string", err);
        items[i] = stw_pool_string(pool, list->items[i]->text);
        if (items[i] == NULL) items = NULL;
    }
    if (items == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    *out = items;
    *n = (uint32_t)list->n_items;
    return STW_STATUS_OK;
}

static stw_status read_arguments(const stw_tree *tree, stw_sweep *sweep, stw_error *err) {
    stw_sweep_arguments *a = &sweep->arguments;
    const stw_node *node = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_node_object(tree, tree->root, "arguments", &node, err));
    const struct {
        const char *key, **out;
    } words[] = {{"version", &a->version},
                 {"model", &a->model},
                 {"model_digest", &a->model_digest},
                 {"cluster", &a->cluster},
                 {"inputs", &a->inputs}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        STW_TRY(stw_part_string(tree, node, words[i].key, false, sweep->pool, words[i].out, err));
    STW_TRY(read_strings(tree, node, "set", sweep->pool, &a->settings, &a->n_settings, err));
    STW_TRY(stw_part_seconds(tree, node, "time_limit_s", &a->time_limit_s, err));
out:
    return status;
}

static stw_status read_axes(const stw_tree *tree, stw_sweep *sweep, stw_error *err) {
    const stw_node *list = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_node_array(tree, tree->root, "vary", &list, err));
    if (list->n_items == 0 || list->n_items > STW_SWEEP_MOST_AXES)
        return stw_node_fail(tree, list, "1 to 8 keys", err);
    for (size_t i = 0; i < list->n_items; i++) {
        stw_sweep_axis *axis = &sweep->axes[i];
        const stw_node *item = list->items[i];
        STW_TRY(stw_part_string(tree, item, "key", false, sweep->pool, &axis->key, err));
        for (uint32_t a = 0; a < sweep->n_axes; a++)
            if (strcmp(sweep->axes[a].key, axis->key) == 0)
                return stw_node_fail(tree, item, "each key once", err);
        STW_TRY(read_strings(tree, item, "values", sweep->pool, &axis->values, &axis->n, err));
        if (axis->n == 0) return stw_node_fail(tree, item, "a value or more", err);
        sweep->n_axes++;
    }
    STW_TRY(stw_error_in(stw_sweep_make_rows(sweep, err), tree->file, err));
out:
    return status;
}

static stw_status check_settings(const stw_tree *tree, const stw_sweep *sweep, uint32_t point,
                                 const stw_node *item, stw_error *err) {
    const stw_node *settings = NULL;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_node_object(tree, item, "settings", &settings, err));
    if (settings->n_items != sweep->n_axes)
        return stw_node_fail(tree, settings, "all keys that vary", err);
    for (uint32_t a = 0; a < sweep->n_axes; a++) {
        const char *value = NULL, *expected = stw_sweep_value(sweep, point, a);
        STW_TRY(stw_node_string(tree, settings, sweep->axes[a].key, &value, err));
        if (strcmp(value, expected) != 0)
            return stw_node_fail(tree, stw_node_get(settings, sweep->axes[a].key),
                                 "the value of this point", err);
    }
out:
    return status;
}

static const char *verdict_word(unsigned i) { return stw_sweep_verdict_name((stw_sweep_verdict)i); }

static stw_status read_row(const stw_tree *tree, const stw_node *item, stw_sweep *sweep,
                           stw_error *err) {
    const char *verdict = NULL;
    uint64_t point = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_part_u64(tree, item, "point", sweep->n_points - 1, &point, err));
    stw_sweep_row *row = &sweep->rows[point];
    if (row->verdict != STW_SWEEP_NOT_PLANNED)
        return stw_node_fail(tree, item, "each point once", err);
    STW_TRY(check_settings(tree, sweep, (uint32_t)point, item, err));
    STW_TRY(stw_node_string(tree, item, "verdict", &verdict, err));
    unsigned which = stw_part_find(verdict, verdict_word, STW_SWEEP_N_VERDICTS);
    if (which == STW_SWEEP_NOT_PLANNED || which >= STW_SWEEP_N_VERDICTS)
        return stw_node_fail(tree, stw_node_get(item, "verdict"), "a verdict", err);
    STW_TRY(stw_node_u64(tree, item, "gpus", &row->gpus, err));
    STW_TRY(stw_node_u64(tree, item, "gpu_peak_bytes", &row->gpu_peak_bytes, err));
    STW_TRY(stw_node_u64(tree, item, "host_peak_bytes", &row->host_peak_bytes, err));
    STW_TRY(stw_part_seconds(tree, item, "iteration_s", &row->iteration_s, err));
    STW_TRY(stw_part_seconds(tree, item, "tokens_per_s", &row->tokens_per_s, err));
    if (stw_node_get(item, "price_per_gpu_hour") != NULL)
        STW_TRY(stw_part_seconds(tree, item, "price_per_gpu_hour", &row->usd_per_gpu_hour, err));
    STW_TRY(stw_part_string(tree, item, "binds", true, sweep->pool, &row->binds, err));
    STW_TRY(stw_part_string(tree, item, "reason", true, sweep->pool, &row->reason, err));
    STW_TRY(stw_part_seconds(tree, item, "planning_s", &row->planning_s, err));
    row->verdict = (stw_sweep_verdict)which;
out:
    return status;
}

static stw_status read_rows(const stw_tree *tree, stw_sweep *sweep, stw_error *err) {
    const stw_node *list = NULL;
    uint32_t points = 0;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_part_u32(tree, tree->root, "points", &points, err));
    if (points != sweep->n_points)
        return stw_node_fail(tree, stw_node_get(tree->root, "points"),
                             "the number of combinations of \"vary\"", err);
    STW_TRY(stw_node_array(tree, tree->root, "rows", &list, err));
    for (size_t i = 0; i < list->n_items; i++) STW_TRY(read_row(tree, list->items[i], sweep, err));
    stw_sweep_mark_front(sweep);
out:
    return status;
}

static stw_status parse(const char *file, const char *text, size_t length, bool edited,
                        stw_sweep **out, stw_error *err) {
    static const char *const known[] = {"arguments", "vary", "front", "points", "rows"};
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    stw_sweep *sweep = NULL;
    STW_TRY(stw_tree_parse_json(file, text, length, &tree, err));
    STW_TRY(stw_tree_schema(tree, "stowage.sweep", 1, err));
    if (!edited)
        STW_TRY(
            stw_checksums_check(tree, known, sizeof known / sizeof known[0], "sweep again", err));
    STW_TRY(stw_sweep_new(&sweep, err));
    STW_TRY(read_arguments(tree, sweep, err));
    STW_TRY(read_axes(tree, sweep, err));
    STW_TRY(read_rows(tree, sweep, err));
    *out = sweep;
    sweep = NULL;
out:
    stw_sweep_free(sweep);
    stw_tree_free(tree);
    return stw_error_in(status, file, err);
}

stw_status stw_sweep_parse(const char *file, const char *text, size_t length, stw_sweep **out,
                           stw_error *err) {
    return parse(file, text, length, false, out, err);
}

stw_status stw_sweep_parse_edited(const char *file, const char *text, size_t length,
                                  stw_sweep **out, stw_error *err) {
    return parse(file, text, length, true, out, err);
}

stw_status stw_sweep_read(const char *path, stw_sweep **out, stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, MOST_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK) status = stw_sweep_parse(path, text, (size_t)length, out, err);
    free(text);
    return status;
}
