/* SPDX-License-Identifier: Apache-2.0 */
/* A document as reports write it: headings, sentences and tables, for a terminal or as Markdown,
 * and the few ways in which figures become words for people. Tables are also written as CSV. A
 * failure of memory marks the text that is written to (stw_text_status). One thread at a time. */
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
    bool failed;
} stw_table;

/** An empty table whose cells lie in `pool`. @param heads [n_columns], must outlive the table */
void stw_table_begin(stw_table *table, stw_pool *pool, const char *const *heads,
                     uint32_t n_columns);
/** Append one cell; rows fill from left to right. */
void stw_table_cell(stw_table *table, const char *format, ...) STW_PRINTF(2, 3);
/** Terminal: aligned columns under underlined heads. Markdown: a pipe table. CSV: RFC 4180. Columns
 * that are empty in every row are left out, except in CSV. */
void stw_table_write(const stw_table *table, stw_format format, stw_text *out);

void stw_doc_title(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
void stw_doc_heading(stw_text *out, stw_format format, const char *heading);
/** A sentence or more on a line of its own (a paragraph of Markdown). */
void stw_doc_line(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
void stw_doc_item(stw_text *out, stw_format format, const char *format_text, ...) STW_PRINTF(3, 4);
/** One row of CSV: n cells, quoted where they must be. */
void stw_csv_row(stw_text *out, const char *const *cells, uint32_t n_cells);

/* Figures as words. Each returns text in one of a few static-size buffers that the caller gives. */
typedef struct stw_word {
    char text[48];
} stw_word;
stw_word stw_word_gib(uint64_t bytes);                /* "61.03 GiB", always GiB */
stw_word stw_word_size(uint64_t bytes);               /* "32.00 MiB", the unit that suits */
stw_word stw_word_seconds(double seconds);            /* "12.3 ms"; "unknown" for NaN */
stw_word stw_word_count(uint64_t count);              /* "4,022,468,096" */
stw_word stw_word_share(double part, double whole);   /* "43.7%"; "" where whole is 0 */
stw_word stw_word_bar(uint64_t part, uint64_t whole); /* "[########............]" */
stw_word stw_word_plain_double(double value);         /* shortest; "" for NaN: CSV */

#endif
