/* SPDX-License-Identifier: Apache-2.0 */
/* CSV (RFC 4180) as rows of strings with line numbers. Blank lines, and lines that begin with '#'
 * outside a quoted field, are skipped. A table is allocated in the caller's pool. Any thread may
 * call; a pool belongs to one thread at a time. */
#ifndef STW_MODELS_TABLE_H
#define STW_MODELS_TABLE_H

#include "core/pool.h"
#include "core/status.h"

typedef struct stw_table_row {
    int line; /* 1-based, of its first character */
    size_t n_fields;
    const char **fields;
} stw_table_row;

typedef struct stw_table {
    const char *file; /* for errors */
    size_t n_rows;
    stw_table_row *rows;
} stw_table;

/** Rows of a text (`length` bytes). Fields with NUL bytes and unbalanced quotes are BAD_INPUT.
 * @param file is copied */
STW_MUST_USE stw_status stw_table_parse(stw_pool *pool, const char *file, const char *text,
                                        size_t length, stw_table *out, stw_error *err);
/** The same from a file. */
STW_MUST_USE stw_status stw_table_read(stw_pool *pool, const char *path, stw_table *out,
                                       stw_error *err);
/** BAD_INPUT at a row. */
stw_status stw_table_fail(const stw_table *table, const stw_table_row *row, stw_error *err,
                          const char *format, ...) STW_PRINTF(4, 5);

#endif
