/* SPDX-License-Identifier: Apache-2.0 */
/* Building blocks of reports: headings, sentences, tables and formatted values, for the terminal
 * and Markdown; tables also as CSV. If memory runs out, the output text is marked as failed
 * (stw_text_status). The caller owns pool and text; one thread at a time uses them. */
#ifndef STW_REPORTS_TABLE_H
#define STW_REPORTS_TABLE_H

#include <stdint.h>

#include "core/pool.h"
#include "core/text.h"
#include "reports/reports.h"

typedef struct stw_table {
    stw_pool *pool;
    const char *const *heads; /* a leading '>' aligns the column to the right */
    uint32_t n_columns;
    size_t n_cells, capacity;
    const char **cells; /* row by row */
    size_t *widths;     /* of columns, while the table is written */
    bool failed;
    /* On a terminal: columns at the end that are left out before cells are wrapped. With any,
     * columns that have no room at all are left out, too. */
    uint32_t spare;
} stw_table;

/** An empty table; its cells are allocated in `pool`. @param heads [n_columns], must outlive the
 * table */
void stw_table_begin(stw_table *table, stw_pool *pool, const char *const *heads,
                     uint32_t n_columns);
/** Append one cell; rows fill from left to right. */
void stw_table_cell(stw_table *table, const char *format, ...) STW_PRINTF(2, 3);
/** Terminal: aligned columns with underlined heads. In a table that is wider than the terminal,
 * words are wrapped inside their columns; columns that still do not fit follow below, behind a copy
 * of the first one, or are left out (`spare`). Figures are never cut. Markdown: a pipe table. CSV:
 * RFC 4180. A column that is empty in every row is omitted, except in CSV. */
void stw_table_write(const stw_table *table, stw_format format, stw_text *out);

/** Width set by stw_report_width_set, 0 for no limit. */
size_t stw_report_width(void);
/** Bytes of the line of `text` that fits into `width` columns: up to a space, or a longer word
 * whole.
 */
size_t stw_line_length(const char *text, size_t width);
/** Display width: UTF-8 continuation bytes do not count. */
size_t stw_text_width(const char *text);

/** Append text for people: words of more than `most` bytes are shortened with "...", and in
 * Markdown markup is escaped. */
void stw_text_append_shown(stw_text *out, stw_format format, const char *text, size_t most);
/** Markdown: end a paragraph, list or table with an empty line, if it is not ended. */
void stw_doc_gap(stw_text *out, stw_format format);
void stw_doc_title(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
void stw_doc_heading(stw_text *out, stw_format format, const char *heading);
/** What follows belongs to a part of a page; nothing in other formats. */
void stw_doc_part(stw_text *out, stw_format format, const char *part);
/** One line of text (a paragraph in Markdown). */
void stw_doc_line(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
void stw_doc_item(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
/** One CSV row of n cells; cells are quoted if required. */
void stw_csv_row(stw_text *out, const char *const *cells, uint32_t n_cells);

/* Values as text, returned in a struct by value. */
typedef struct stw_word {
    char text[48];
} stw_word;
stw_word stw_word_gib(uint64_t bytes);                /* "61.03 GiB", always GiB */
stw_word stw_word_size(uint64_t bytes);               /* "32.00 MiB", unit by size */
stw_word stw_word_seconds(double seconds);            /* "12.3 ms"; "unknown" for NaN */
stw_word stw_word_count(uint64_t count);              /* "4,022,468,096" */
stw_word stw_word_number(double value);               /* three digits: "2,290", "0.0354" */
stw_word stw_word_dtype(stw_dtype dtype);             /* "bf16", "fp32", as in run.yaml */
stw_word stw_word_share(double part, double whole);   /* "43.7%"; "" if whole is 0 */
stw_word stw_word_bar(uint64_t part, uint64_t whole); /* "[########............]" */
stw_word stw_word_plain_double(double value);         /* shortest; "" for NaN: CSV */

#endif
