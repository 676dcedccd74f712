/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys and values of a YAML or JSON document begin and end in its text. For editing in
 * place (core/tree_edit.h); pure, any thread may call. */
#ifndef STW_CORE_TREE_SPANS_H
#define STW_CORE_TREE_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"
#include "core/status.h"

typedef enum stw_span_kind { STW_SPAN_SCALAR, STW_SPAN_LIST, STW_SPAN_MAP } stw_span_kind;

typedef struct stw_span {
    stw_span_kind kind;
    bool flow;         /* of lists and maps: in brackets */
    bool quoted;       /* of scalars */
    size_t begin, end; /* of the value, in bytes of the text; equal where there is none. Without the
                          line ends after a block of text */
    const char *key;   /* of a member of a map, else NULL */
    size_t key_begin, key_end; /* with quotes */
    size_t column;             /* of the key in its line, 0-based */
    size_t n, capacity;
    struct stw_span *items; /* of a map */
} stw_span;

/** @param pool of what it points to
 * @return BAD_INPUT where the text is no such document */
STW_MUST_USE stw_status stw_spans_read(const char *file, const char *text, size_t length, bool json,
                                       stw_pool *pool, stw_span *root, stw_error *err);

#endif
