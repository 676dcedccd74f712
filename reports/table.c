/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/table.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"
#include "reports/blocks.h"
#include "reports/quote.h"

/* Bytes of a word in a table that is as wide as it likes. */
enum { LONGEST_WORD = 120 };

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
    char small[256], *raw = small, *cell = NULL;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (length >= (int)sizeof small) {
        raw = stw_pool_alloc(table->pool, (size_t)length + 1);
        if (raw != NULL) vsnprintf(raw, (size_t)length + 1, format, again);
    }
    va_end(again);
    if (length >= 0 && raw != NULL && !table->failed) {
        size_t size = stw_printable_copy(raw, NULL, 0) + 1;
        cell = stw_pool_alloc(table->pool, size);
        if (cell != NULL) (void)stw_printable_copy(raw, cell, size);
    }
    if (cell == NULL)
        table->failed = true;
    else
        table->cells[table->n_cells++] = cell;
}

static size_t terminal_columns; /* 0: no limit */

void stw_report_width_set(unsigned columns) { terminal_columns = columns; }
size_t stw_report_width(void) { return terminal_columns; }

static bool starts_character(char c) { return ((unsigned char)c & 0xC0) != 0x80; }

size_t stw_text_width(const char *text) {
    size_t width = 0;
    for (; *text != '\0'; text++) width += starts_character(*text);
    return width;
}

size_t stw_line_length(const char *text, size_t width) {
    size_t used = 0, fitting = 0, torn = 0, at = 0; /* torn: would part a figure and its unit */
    for (; text[at] != '\0'; at++) {
        if (text[at] == ' ') {
            bool tears = at > 0 && isdigit((unsigned char)text[at - 1]) &&
                         isalpha((unsigned char)text[at + 1]);
            *(tears ? &torn : &fitting) = at;
            if (used >= width) break;
        }
        used += starts_character(text[at]);
        if (used > width && fitting + torn > 0) break;
    }
    return text[at] == '\0' ? at : fitting > 0 ? fitting : torn;
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
        size_t width = stw_text_width(cell_of(t, r, column));
        if (width > widest) widest = width;
    }
    if (widest == 0) return 0;
    size_t head = stw_text_width(head_of(t, column));
    return widest > head ? widest : head;
}

static void put(stw_text *out, const char *text) { stw_text_append(out, text, strlen(text)); }

static void put_many(stw_text *out, char c, size_t n) {
    for (size_t i = 0; i < n; i++) stw_text_append(out, &c, 1);
}

/* Columns that stand side by side, with their widths. */
typedef struct strip {
    uint32_t n, *columns;
    size_t *widths;
} strip;

/* Width without breaking a word or a figure. */
static size_t least_width(const stw_table *t, uint32_t column) {
    size_t widest = 0;
    for (size_t r = 0; r < rows_of(t) + 1; r++) {
        const char *cell = r == 0 ? head_of(t, column) : cell_of(t, r - 1, column);
        bool figure = r > 0 && is_right(t, column);
        while (*cell != '\0') {
            size_t n = figure ? strlen(cell) : strcspn(cell, " ");
            char word[256];
            snprintf(word, sizeof word, "%.*s", (int)n, cell);
            size_t width = stw_text_width(word);
            if (width > widest) widest = width;
            cell += n + strspn(cell + n, " ");
        }
    }
    return widest;
}

static size_t total_width(const strip *s) {
    size_t total = 0;
    for (uint32_t i = 0; i < s->n; i++) total += 2 + s->widths[i];
    return total;
}

/* Narrow the columns with the most room until the strip fits; false if it cannot. */
static bool narrow(const stw_table *t, strip *s) {
    while (total_width(s) > terminal_columns) {
        uint32_t best = s->n;
        size_t most = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            size_t least = least_width(t, s->columns[i]);
            size_t room = s->widths[i] > least ? s->widths[i] - least : 0;
            if (room > most || (room == most && room > 0 && s->widths[i] > s->widths[best])) {
                most = room;
                best = i;
            }
        }
        if (best == s->n) return false;
        s->widths[best]--;
    }
    return true;
}

/* Number of columns of `all`, behind the first one and from `next` on, that one strip can hold. */
static uint32_t fill_strip(const stw_table *t, const strip *all, uint32_t next, strip *out) {
    uint32_t taken = all->n - next;
    for (;; taken--) {
        out->n = 0;
        for (uint32_t i = 0; i < all->n; i++) {
            if (i != 0 && (i < next || i >= next + taken)) continue;
            out->columns[out->n] = all->columns[i];
            out->widths[out->n++] = all->widths[i];
        }
        if (terminal_columns == 0 || narrow(t, out) || taken <= 1) return taken;
    }
}

/* One line of one cell. The padding of a left-aligned cell waits for the next cell: no space stands
 * at the end of a line. */
static void put_padded(stw_text *out, const char *text, size_t width, bool right, size_t *owed) {
    size_t used = stw_text_width(text), missing = width > used ? width - used : 0;
    if (used == 0) {
        *owed += width + 2;
        return;
    }
    put_many(out, ' ', *owed + (right ? missing : 0));
    put(out, text);
    *owed = (right ? 0 : missing) + 2;
}

static size_t lines_of(const char *cell, size_t width) {
    size_t lines = 0;
    for (; *cell != '\0'; lines++) {
        cell += stw_line_length(cell, width);
        cell += strspn(cell, " ");
    }
    return lines;
}

/* Line `wanted` of a wrapped cell, in the pool; "" behind its end. */
static const char *line_of(const stw_table *t, const char *cell, size_t width, size_t wanted) {
    for (size_t i = 0; *cell != '\0'; i++) {
        size_t n = stw_line_length(cell, width);
        if (i == wanted)
            return n == strlen(cell) ? cell : stw_pool_printf(t->pool, "%.*s", (int)n, cell);
        cell += n;
        cell += strspn(cell, " ");
    }
    return "";
}

/* Heads (row 0) end on one line, cells begin on one. */
static void put_row(const stw_table *t, const strip *s, size_t row, stw_text *out) {
    size_t height = 1;
    for (uint32_t i = 0; i < s->n; i++) {
        const char *cell =
            row == 0 ? head_of(t, s->columns[i]) : cell_of(t, row - 1, s->columns[i]);
        size_t lines = lines_of(cell, s->widths[i]);
        if (lines > height) height = lines;
    }
    for (size_t line = 0; line < height; line++) {
        size_t owed = 2;
        for (uint32_t i = 0; i < s->n; i++) {
            uint32_t c = s->columns[i];
            const char *cell = row == 0 ? head_of(t, c) : cell_of(t, row - 1, c);
            size_t above = row == 0 ? height - lines_of(cell, s->widths[i]) : 0;
            const char *text = line < above ? "" : line_of(t, cell, s->widths[i], line - above);
            if (text == NULL)
                out->failed = true;
            else
                put_padded(out, text, s->widths[i], is_right(t, c), &owed);
        }
        put(out, "\n");
    }
}

static void put_strip(const stw_table *t, const strip *s, stw_text *out) {
    put_row(t, s, 0, out);
    for (uint32_t i = 0; i < s->n; i++) {
        put(out, "  ");
        put_many(out, '-', s->widths[i]);
    }
    put(out, "\n");
    for (size_t r = 0; r < rows_of(t); r++) put_row(t, s, r + 1, out);
}

static void write_terminal(const stw_table *t, stw_text *out) {
    strip all = {0, stw_pool_array(t->pool, t->n_columns, sizeof *all.columns),
                 stw_pool_array(t->pool, t->n_columns, sizeof *all.widths)};
    strip one = {0, stw_pool_array(t->pool, t->n_columns, sizeof *one.columns),
                 stw_pool_array(t->pool, t->n_columns, sizeof *one.widths)};
    if (all.columns == NULL || all.widths == NULL || one.columns == NULL || one.widths == NULL) {
        out->failed = true;
        return;
    }
    for (uint32_t c = 0; c < t->n_columns; c++) {
        size_t width = column_width(t, c);
        if (width == 0) continue;
        all.columns[all.n] = c;
        all.widths[all.n++] = width;
    }
    /* A last column without a head is a drawing of the others: it is the first to go. */
    if (terminal_columns > 0 && total_width(&all) > terminal_columns && all.n > 1 &&
        head_of(t, all.columns[all.n - 1])[0] == '\0')
        all.n--;
    for (uint32_t i = 0; i < t->spare && terminal_columns > 0 && all.n > 1; i++)
        if (total_width(&all) > terminal_columns) all.n--;
    if (all.n == 1) {
        (void)fill_strip(t, &all, 0, &one);
        put_strip(t, &one, out);
    }
    for (uint32_t next = 1; next < all.n;) {
        if (next > 1 && t->spare > 0) break;
        if (next > 1) put(out, "\n");
        next += fill_strip(t, &all, next, &one);
        put_strip(t, &one, out);
    }
}

static void put_markdown_cell(stw_text *out, const char *cell) {
    put(out, " ");
    stw_text_append_shown(out, STW_FORMAT_MARKDOWN, cell, LONGEST_WORD);
    put(out, " |");
}

void stw_doc_gap(stw_text *out, stw_format format) {
    const size_t n = out->length;
    if (format != STW_FORMAT_MARKDOWN || n == 0 || out->data == NULL) return;
    if (n < 2 || out->data[n - 1] != '\n' || out->data[n - 2] != '\n') stw_text_printf(out, "\n");
}

static void write_markdown(const stw_table *t, stw_text *out) {
    stw_doc_gap(out, STW_FORMAT_MARKDOWN);
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

/* Would a spreadsheet compute it? A figure is what it is. */
static bool is_formula(const char *cell) {
    const bool sign = *cell == '-' || *cell == '+';
    if (sign) return cell[1] != '\0' && !isdigit((unsigned char)cell[1]);
    return *cell == '=' || *cell == '@';
}

/* Printable text has no line breaks: only commas and quotation marks need quotes. */
static void put_csv_cell(stw_text *out, const char *cell) {
    stw_text text = STW_TEXT_INIT;
    if (is_formula(cell)) put(&text, "'");
    stw_text_append_printable(&text, cell);
    if (text.failed) out->failed = true;
    if (text.length > 0 && strpbrk(text.data, ",\"") != NULL)
        stw_csv_quote(text.data, out);
    else if (text.length > 0)
        stw_text_append(out, text.data, text.length);
    stw_text_free(&text);
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

static void write_block_row(const stw_table *t, size_t line, stw_text *out) {
    const char *comma = "";
    put(out, "[");
    for (uint32_t c = 0; c < t->n_columns; c++) {
        if (column_width(t, c) == 0) continue;
        put(out, comma);
        stw_block_quote(out, line == 0 ? t->heads[c] : cell_of(t, line - 1, c));
        comma = ", ";
    }
    put(out, "]");
}

static void write_block(const stw_table *t, stw_text *out) {
    put(out, "[\"table\", ");
    write_block_row(t, 0, out);
    put(out, ", [");
    for (size_t r = 0; r < rows_of(t); r++) {
        put(out, r > 0 ? ",\n" : "\n");
        write_block_row(t, r + 1, out);
    }
    put(out, "]],\n");
}

/* A name of 10,000 characters would be a column as wide: words that take more than half of the
 * terminal are shortened. */
static bool shorten(stw_table *t) {
    const size_t half = terminal_columns / 2,
                 most = half > 0 && half < LONGEST_WORD ? half : LONGEST_WORD;
    const char **cells = stw_pool_array(t->pool, t->n_cells, sizeof *cells);
    stw_text shown = STW_TEXT_INIT;
    for (size_t i = 0; cells != NULL && i < t->n_cells; i++) {
        cells[i] = t->cells[i];
        if (strlen(cells[i]) <= most) continue;
        shown.length = 0;
        stw_text_append_shown(&shown, STW_FORMAT_TERMINAL, t->cells[i], most);
        cells[i] = shown.failed ? NULL : stw_pool_string(t->pool, shown.data);
        if (cells[i] == NULL) cells = NULL;
    }
    stw_text_free(&shown);
    if (cells != NULL) t->cells = cells;
    return cells != NULL || t->n_cells == 0;
}

void stw_table_write(const stw_table *table, stw_format format, stw_text *out) {
    stw_table t = *table;
    t.widths = stw_pool_array(t.pool, t.n_columns, sizeof *t.widths);
    if (t.failed || t.widths == NULL || t.n_cells % t.n_columns != 0) {
        out->failed = true;
        return;
    }
    if (format == STW_FORMAT_TERMINAL && !shorten(&t)) {
        out->failed = true;
        return;
    }
    for (uint32_t c = 0; c < t.n_columns; c++) t.widths[c] = measure_column(&t, c);
    if (format == STW_FORMAT_CSV)
        write_csv(&t, out);
    else if (rows_of(&t) > 0 && format == STW_FORMAT_MARKDOWN)
        write_markdown(&t, out);
    else if (rows_of(&t) > 0 && format == STW_FORMAT_BLOCKS)
        write_block(&t, out);
    else if (rows_of(&t) > 0)
        write_terminal(&t, out);
}
