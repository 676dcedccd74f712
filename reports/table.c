/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void stw_table_begin(stw_table *table, stw_pool *pool, const char *const *heads,
                     uint32_t n_columns) {
    memset(table, 0, sizeof *table);
    table->pool = pool;
    table->heads = heads;
    table->n_columns = n_columns;
}

void stw_table_cell(stw_table *table, const char *format, ...) {
    if (table->failed) return;
    if (table->n_cells == table->capacity) {
        void *grown = stw_pool_grow(table->pool, table->cells, table->n_cells, table->n_cells + 1,
                                    &table->capacity, sizeof *table->cells);
        if (grown != NULL) table->cells = grown;
        table->failed = grown == NULL;
    }
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    char *cell = NULL;
    if (length >= 0 && !table->failed) cell = stw_pool_alloc(table->pool, (size_t)length + 1);
    if (cell != NULL) vsnprintf(cell, (size_t)length + 1, format, again);
    va_end(again);
    if (cell == NULL)
        table->failed = true;
    else
        table->cells[table->n_cells++] = cell;
}

/* Display width: UTF-8 continuation bytes do not count. */
static size_t width_of(const char *text) {
    size_t width = 0;
    for (; *text != '\0'; text++)
        if (((unsigned char)*text & 0xC0) != 0x80) width++;
    return width;
}

static size_t rows_of(const stw_table *t) { return t->n_cells / t->n_columns; }
static const char *cell_of(const stw_table *t, size_t row, uint32_t column) {
    return t->cells[row * t->n_columns + column];
}
static bool is_right(const stw_table *t, uint32_t column) { return t->heads[column][0] == '>'; }
static const char *head_of(const stw_table *t, uint32_t column) {
    return t->heads[column] + (is_right(t, column) ? 1 : 0);
}

static size_t column_width(const stw_table *t, uint32_t column) { return t->widths[column]; }

/* Width of a column including its head; 0 if all its cells are empty. */
static size_t measure_column(const stw_table *t, uint32_t column) {
    size_t widest = 0;
    for (size_t r = 0; r < rows_of(t); r++) {
        size_t width = width_of(cell_of(t, r, column));
        if (width > widest) widest = width;
    }
    if (widest == 0) return 0;
    size_t head = width_of(head_of(t, column));
    return widest > head ? widest : head;
}

static void put(stw_text *out, const char *text) { stw_text_append(out, text, strlen(text)); }

static void put_many(stw_text *out, char c, size_t n) {
    for (size_t i = 0; i < n; i++) stw_text_append(out, &c, 1);
}

/* No space at the end of a line: the padding of a left-aligned cell waits for the next cell. */
static void put_padded(stw_text *out, const char *cell, size_t width, bool right, size_t *owed) {
    size_t missing = width - width_of(cell);
    put_many(out, ' ', *owed + (right ? missing : 0));
    put(out, cell);
    *owed = (right ? 0 : missing) + 2;
}

static void write_terminal(const stw_table *t, stw_text *out) {
    for (size_t line = 0; line < rows_of(t) + 2; line++) {
        size_t owed = 2;
        for (uint32_t c = 0; c < t->n_columns; c++) {
            size_t width = column_width(t, c);
            if (width == 0) continue;
            if (line == 1) {
                put_many(out, ' ', owed);
                put_many(out, '-', width);
                owed = 2;
                continue;
            }
            const char *cell = line == 0 ? head_of(t, c) : cell_of(t, line - 2, c);
            if (*cell == '\0')
                owed += width + 2;
            else
                put_padded(out, cell, width, is_right(t, c), &owed);
        }
        put(out, "\n");
    }
}

static void put_markdown_cell(stw_text *out, const char *cell) {
    put(out, " ");
    for (; *cell != '\0'; cell++) {
        if (*cell == '|') put(out, "\\");
        stw_text_append(out, *cell == '\n' ? " " : cell, 1);
    }
    put(out, " |");
}

static void write_markdown(const stw_table *t, stw_text *out) {
    for (size_t line = 0; line < rows_of(t) + 2; line++) {
        put(out, "|");
        for (uint32_t c = 0; c < t->n_columns; c++) {
            if (column_width(t, c) == 0) continue;
            if (line == 1)
                put(out, is_right(t, c) ? "---:|" : "---|");
            else
                put_markdown_cell(out, line == 0 ? head_of(t, c) : cell_of(t, line - 2, c));
        }
        put(out, "\n");
    }
}

static void put_csv_cell(stw_text *out, const char *cell) {
    if (strpbrk(cell, ",\"\r\n") == NULL) {
        put(out, cell);
        return;
    }
    put(out, "\"");
    for (; *cell != '\0'; cell++) {
        if (*cell == '"') put(out, "\"");
        stw_text_append(out, cell, 1);
    }
    put(out, "\"");
}

void stw_csv_row(stw_text *out, const char *const *cells, uint32_t n_cells) {
    for (uint32_t i = 0; i < n_cells; i++) {
        if (i > 0) put(out, ",");
        put_csv_cell(out, cells[i] != NULL ? cells[i] : "");
    }
    put(out, "\n");
}

static void write_csv(const stw_table *t, stw_text *out) {
    for (uint32_t c = 0; c < t->n_columns; c++) {
        if (c > 0) put(out, ",");
        put_csv_cell(out, head_of(t, c));
    }
    put(out, "\n");
    for (size_t r = 0; r < rows_of(t); r++)
        stw_csv_row(out, t->cells + r * t->n_columns, t->n_columns);
}

void stw_table_write(const stw_table *table, stw_format format, stw_text *out) {
    stw_table t = *table;
    t.widths = stw_pool_array(t.pool, t.n_columns, sizeof *t.widths);
    if (t.failed || t.widths == NULL || t.n_cells % t.n_columns != 0) {
        out->failed = true;
        return;
    }
    for (uint32_t c = 0; c < t.n_columns; c++) t.widths[c] = measure_column(&t, c);
    if (format == STW_FORMAT_CSV)
        write_csv(&t, out);
    else if (rows_of(&t) > 0 && format == STW_FORMAT_MARKDOWN)
        write_markdown(&t, out);
    else if (rows_of(&t) > 0)
        write_terminal(&t, out);
}
