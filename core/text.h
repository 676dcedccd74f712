/* SPDX-License-Identifier: Apache-2.0 */
/* A growing string, and formatting of strings and doubles. A failed append marks the text as
 * failed; check once at the end with stw_text_status. The caller owns the text; one thread at a
 * time uses it. */
#ifndef STW_CORE_TEXT_H
#define STW_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct stw_text {
    char *data; /* NUL-terminated; NULL while empty */
    size_t length, capacity;
    bool failed;
} stw_text;

#define STW_TEXT_INIT                                                                              \
    { NULL, 0, 0, false }

void stw_text_append(stw_text *text, const char *bytes, size_t length);
void stw_text_printf(stw_text *text, const char *format, ...) STW_PRINTF(2, 3);
/** Append a string as one line for a terminal (core/printable.h). */
void stw_text_append_printable(stw_text *text, const char *string);
/** NO_MEMORY if any append failed. */
STW_MUST_USE stw_status stw_text_status(const stw_text *text, stw_error *err);
/** Free the bytes. The text is then empty. */
void stw_text_free(stw_text *text);

/** Quote a string for an error message: control characters escaped, cut with "..." after about 60
 * characters. 160 bytes of `out` always suffice. */
void stw_text_quote(const char *string, char *out, size_t out_size);
/** The shortest decimal text that reads back as the same finite double ("0.1", "5e-324", "3"), with
 * a decimal point in every locale. 32 bytes of `out` always suffice. */
void stw_text_double(double value, char *out, size_t out_size);

#endif
