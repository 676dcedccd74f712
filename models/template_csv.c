/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "models/table.h"
#include "models/template.h"

enum { N_COLUMNS = 6, MAX_INCLUDES = 16 };

static const char *const columns[N_COLUMNS] = {"row",   "group",  "name",
                                               "value", "repeat", "condition"};
static const char *const kinds[] = {"text",  "let",    "key",    "model",  "block",
                                    "extra", "tensor", "expert", "buffer", "fact",
                                    "dtype", "scale",  "include"};

typedef struct loader {
    stw_pool *pool;
    const char *data_folder;
    stw_template *out;
    size_t capacity;
    unsigned parts;
    stw_error *err;
} loader;

static stw_status check_header(const stw_table *table, stw_error *err) {
    static const stw_table_row none = {.line = 1};
    const stw_table_row *row = table->n_rows > 0 ? &table->rows[0] : &none;
    bool right = row->n_fields == N_COLUMNS;
    for (size_t c = 0; right && c < N_COLUMNS; c++) right = strcmp(row->fields[c], columns[c]) == 0;
    if (right) return STW_STATUS_OK;
    return stw_table_fail(table, row, err,
                          "expected the header row,group,name,value,repeat,condition");
}

static stw_status read_row(const stw_table *table, const stw_table_row *from, stw_template_row *row,
                           stw_error *err) {
    size_t n_kinds = sizeof kinds / sizeof kinds[0], kind = 0;
    if (from->n_fields != N_COLUMNS)
        return stw_table_fail(table, from, err, "found %zu columns, expected %d", from->n_fields,
                              N_COLUMNS);
    while (kind < n_kinds && strcmp(from->fields[0], kinds[kind]) != 0) kind++;
    if (kind == n_kinds) {
        const char *near = stw_nearest(from->fields[0], kinds, n_kinds);
        return stw_table_fail(table, from, err, "unknown kind of row \"%.40s\"%s%s%s",
                              from->fields[0], near != NULL ? "; did you mean \"" : "",
                              near != NULL ? near : "", near != NULL ? "\"?" : "");
    }
    row->kind = (stw_row_kind)kind;
    row->line = from->line;
    row->group = from->fields[1];
    row->name = from->fields[2];
    row->value = from->fields[3];
    row->repeat = from->fields[4];
    row->condition = from->fields[5];
    return STW_STATUS_OK;
}

static stw_status load(loader *l, const char *name, const char *scope) {
    stw_status status = STW_STATUS_OK;
    stw_table table;
    const char *path = stw_pool_printf(l->pool, "%s/arch/%s.csv", l->data_folder, name);
    if (path == NULL) return stw_fail(l->err, STW_STATUS_NO_MEMORY, name, "out of memory");
    if (l->parts == MAX_INCLUDES)
        return stw_fail(l->err, STW_STATUS_BAD_INPUT, path, "more than %d files are included",
                        MAX_INCLUDES);
    unsigned part = l->parts++;
    STW_TRY(stw_table_read(l->pool, path, &table, l->err));
    STW_TRY(check_header(&table, l->err));
    for (size_t r = 1; r < table.n_rows; r++) {
        stw_template_row row = {.part = part, .file = path, .scope = scope};
        STW_TRY(read_row(&table, &table.rows[r], &row, l->err));
        if (row.kind == STW_ROW_INCLUDE) {
            STW_TRY(load(l, row.name, row.value[0] != '\0' ? row.value : scope));
            continue;
        }
        stw_template *out = l->out;
        stw_template_row *grown = stw_pool_grow(l->pool, out->rows, out->n_rows, out->n_rows + 1,
                                                &l->capacity, sizeof *grown);
        if (grown == NULL) return stw_fail(l->err, STW_STATUS_NO_MEMORY, path, "out of memory");
        out->rows = grown;
        out->rows[out->n_rows++] = row;
    }
out:
    return status;
}

stw_status stw_template_load(stw_pool *pool, const char *data_folder, const char *model_type,
                             stw_template *out, stw_error *err) {
    loader l = {.pool = pool, .data_folder = data_folder, .out = out, .err = err};
    *out = (stw_template){.n_rows = 0};
    return load(&l, model_type, "");
}
