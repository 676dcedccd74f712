/* SPDX-License-Identifier: Apache-2.0 */
/* libcsv splits the text. It has no line numbers; it is therefore fed one line at a time. */
#include <csv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "models/table.h"

enum { MAX_CSV_BYTES = 1 << 30 };

typedef struct reader {
    stw_pool *pool;
    stw_table *table;
    size_t rows_capacity;
    const char **fields; /* of the row being read */
    size_t n_fields, fields_capacity;
    int line, row_line; /* current line; first line of the current row */
    bool inside;        /* a row goes on over the end of a line */
    bool failed, has_nul;
} reader;

static void take_field(void *data, size_t length, void *user) {
    reader *r = user;
    const char **grown = stw_pool_grow(r->pool, r->fields, r->n_fields, r->n_fields + 1,
                                       &r->fields_capacity, sizeof *grown);
    char *copy = stw_pool_alloc(r->pool, length + 1);
    if (grown == NULL || copy == NULL) {
        r->failed = true;
        return;
    }
    if (length > 0) memcpy(copy, data, length);
    if (memchr(copy, '\0', length) != NULL) r->has_nul = true;
    r->fields = grown;
    r->fields[r->n_fields++] = copy;
}

static void take_row(int end, void *user) {
    (void)end;
    reader *r = user;
    stw_table *table = r->table;
    const char **fields = stw_pool_array(r->pool, r->n_fields, sizeof *fields);
    stw_table_row *grown = stw_pool_grow(r->pool, table->rows, table->n_rows, table->n_rows + 1,
                                         &r->rows_capacity, sizeof *grown);
    if (fields == NULL || grown == NULL) {
        r->failed = true;
        return;
    }
    if (r->n_fields > 0) memcpy(fields, r->fields, r->n_fields * sizeof *fields);
    table->rows = grown;
    table->rows[table->n_rows++] =
        (stw_table_row){.line = r->row_line, .n_fields = r->n_fields, .fields = fields};
    r->n_fields = 0;
    r->inside = false;
}

static bool is_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == '\0') return false;
    return true;
}

static stw_status feed(reader *r, struct csv_parser *parser, const char *text, size_t length,
                       stw_error *err) {
    for (size_t at = 0; at < length;) {
        const char *newline = memchr(text + at, '\n', length - at);
        size_t n = newline != NULL ? (size_t)(newline - text) - at + 1 : length - at;
        r->line++;
        if (!r->inside && (text[at] == '#' || is_blank(text + at, n))) {
            at += n;
            continue;
        }
        if (!r->inside) r->row_line = r->line;
        r->inside = true; /* until take_row is called */
        size_t taken = csv_parse(parser, text + at, n, take_field, take_row, r);
        if (taken != n || r->has_nul) {
            int code = csv_error(parser);
            bool memory = code == CSV_ENOMEM || code == CSV_ETOOBIG;
            return stw_fail_at(err, memory ? STW_STATUS_NO_MEMORY : STW_STATUS_BAD_INPUT,
                               r->table->file, r->line, 0, "is not CSV: %s",
                               memory               ? "out of memory"
                               : r->has_nul         ? "found a NUL byte"
                               : code == CSV_EPARSE ? "found a stray quotation mark"
                                                    : "the parser failed");
        }
        at += n;
    }
    return STW_STATUS_OK;
}

stw_status stw_table_parse(stw_pool *pool, const char *file, const char *text, size_t length,
                           stw_table *out, stw_error *err) {
    struct csv_parser parser;
    *out = (stw_table){.file = stw_pool_string(pool, file)};
    reader r = {.pool = pool, .table = out};
    if (out->file == NULL || csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        text += 3;
        length -= 3;
    }
    stw_status status = feed(&r, &parser, text, length, err);
    if (status == STW_STATUS_OK && csv_fini(&parser, take_field, take_row, &r) != 0)
        status = stw_fail_at(err, STW_STATUS_BAD_INPUT, file, r.row_line, 0,
                             "is not CSV: a quoted field that begins in this row has no end");
    csv_free(&parser);
    if (status == STW_STATUS_OK && r.has_nul)
        status =
            stw_fail_at(err, STW_STATUS_BAD_INPUT, file, r.line, 0, "is not CSV: found a NUL byte");
    if (status == STW_STATUS_OK && r.failed)
        status = stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    return status;
}

stw_status stw_table_read(stw_pool *pool, const char *path, stw_table *out, stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, MAX_CSV_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK)
        status = stw_table_parse(pool, path, text, (size_t)length, out, err);
    free(text);
    return status;
}

stw_status stw_table_fail(const stw_table *table, const stw_table_row *row, stw_error *err,
                          const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, table->file, row->line, 0, "%s", text);
}
