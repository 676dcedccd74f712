/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "core/pattern.h"
#include "plan/spec/registry.h"
#include "reports/reports.h"

typedef struct key_list {
    const char *pattern;
    stw_pool *pool;
    stw_listed_key *items;
    size_t n, capacity, n_all;
    const char **names; /* [n_all], for hints */
    size_t name_capacity;
} key_list;

static stw_status add(key_list *list, const char *file, const char *key, const stw_spec_row *row,
                      stw_error *err) {
    const char **names = stw_pool_grow(list->pool, list->names, list->n_all, list->n_all + 1,
                                       &list->name_capacity, sizeof *names);
    stw_listed_key *grown = stw_pool_grow(list->pool, list->items, list->n, list->n + 1,
                                          &list->capacity, sizeof *grown);
    if (names == NULL || grown == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "keys", "out of memory");
    list->names = names;
    list->items = grown;
    list->names[list->n_all++] = key;
    if (stw_name_matches(key, list->pattern))
        list->items[list->n++] = (stw_listed_key){.file = file, .key = key, .row = row};
    return STW_STATUS_OK;
}

/* Keys of a list's items follow the list's key, as "roles.N.kind". What Stowage alone writes, the
 * provenance of a calibration, is left out. */
static stw_status add_table(key_list *list, const char *file, const char *prefix,
                            const stw_spec_table *table, stw_error *err) {
    static const char *const written[] = {"assumed", "learned.", "calibration."};
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        bool own = false;
        for (size_t w = 0; w < sizeof written / sizeof written[0]; w++)
            own |= strncmp(row->key, written[w], strlen(written[w])) == 0;
        const char *key = stw_pool_printf(list->pool, "%s%s", prefix, row->key);
        if (key == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "keys", "out of memory");
        if (own) continue;
        STW_TRY(add(list, file, key, row, err));
        if (row->kind != STW_SPEC_ITEMS) continue;
        const char *below = stw_pool_printf(list->pool, "%s.N.", key);
        if (below == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "keys", "out of memory");
        STW_TRY(add_table(list, file, below, row->items->table, err));
    }
out:
    return status;
}

static stw_status list_keys(const char *pattern, const stw_general *general, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_format format;
    key_list list = {.pattern = pattern, .pool = stw_pool_new()};
    if (list.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "keys", "out of memory");
    STW_TRY(stw_report_format(general, &format, err));
    STW_TRY(add_table(&list, "run.yaml", "", stw_run_spec_table(), err));
    STW_TRY(add_table(&list, "cluster.yaml", "", stw_cluster_table(), err));
    if (list.n == 0) {
        const char *near = stw_nearest(pattern, list.names, list.n_all);
        status = stw_fail(err, STW_STATUS_BAD_INPUT, pattern, "matches none of the %zu keys%s%s%s",
                          list.n_all, near != NULL ? "; did you mean \"" : "",
                          near != NULL ? near : "", near != NULL ? "\"?" : "");
        goto out;
    }
    STW_TRY(stw_report_keys(list.items, list.n, format, &text, err));
    STW_TRY(stw_emit(general, &text, err));
out:
    stw_text_free(&text);
    stw_pool_free(list.pool);
    return status;
}

int stw_cmd_keys(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_general general = {0};
    const char *pattern[1] = {NULL};
    size_t n = 0;
    const stw_usage usage = {
        "stowage",
        "keys",
        "[PATTERN]",
        "List the keys that run.yaml, cluster.yaml and --set take, with values, defaults and "
        "meaning. PATTERN is a part of the name, or a name with * and ?. Up to twelve keys are "
        "listed in full; -o FILE.md, FILE.csv and --json list all in full.",
        NULL,
        0,
        0,
        1,
        NULL};
    stw_status status = stw_options_parse(argc, argv, &usage, &general, pattern, &n, &err);
    if (status != STW_STATUS_OK) return stw_exit(status, &err);
    if (general.help) return stw_usage_print(&usage), 0;
    stw_general_apply(&general);
    return stw_exit(list_keys(n > 0 ? pattern[0] : NULL, &general, &err), &err);
}
