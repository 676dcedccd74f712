/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/printable.h"

/* Room for `more` bytes and a NUL. */
static bool reserve(stw_text *text, size_t more) {
    if (text->failed) return false;
    if (more >= SIZE_MAX / 4 - text->length) {
        text->failed = true;
        return false;
    }
    size_t need = text->length + more + 1;
    if (need <= text->capacity) return true;
    size_t capacity = text->capacity < 64 ? 64 : text->capacity;
    while (capacity < need) capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void stw_text_append(stw_text *text, const char *bytes, size_t length) {
    if (length == 0 || !reserve(text, length)) return;
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void stw_text_printf(stw_text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        text->failed = true;
    } else if (length > 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void stw_text_append_printable(stw_text *text, const char *string) {
    size_t length = stw_printable_copy(string, NULL, 0);
    if (length == 0 || !reserve(text, length)) return;
    (void)stw_printable_copy(string, text->data + text->length, length + 1);
    text->length += length;
}

stw_status stw_text_status(const stw_text *text, stw_error *err) {
    if (!text->failed) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a text of over %zu bytes",
                    text->length);
}

void stw_text_free(stw_text *text) {
    free(text->data);
    *text = (stw_text)STW_TEXT_INIT;
}

/* Escape one byte for an error message; returns the length. */
static size_t escape(unsigned char byte, char out[5]) {
    switch (byte) {
    case '\n':
        memcpy(out, "\\n", 3);
        return 2;
    case '\t':
        memcpy(out, "\\t", 3);
        return 2;
    case '\r':
        memcpy(out, "\\r", 3);
        return 2;
    case '"':
        memcpy(out, "\\\"", 3);
        return 2;
    case '\\':
        memcpy(out, "\\\\", 3);
        return 2;
    default:
        break;
    }
    if (byte >= 0x20 && byte != 0x7F) {
        out[0] = (char)byte;
        out[1] = '\0';
        return 1;
    }
    return (size_t)snprintf(out, 5, "\\x%02x", (unsigned)byte);
}

void stw_text_quote(const char *string, char *out, size_t out_size) {
    enum { CUT = 60, TAIL = sizeof "...\"" }; /* room that the end of the text needs */
    if (out_size <= TAIL) {
        if (out_size > 0) out[0] = '\0';
        return;
    }
    size_t used = 0;
    out[used++] = '"';
    const unsigned char *p = (const unsigned char *)string;
    for (; *p != '\0'; p++) {
        char escaped[5];
        size_t length = escape(*p, escaped);
        bool inside_character = (*p & 0xC0) == 0x80; /* cut only between UTF-8 characters */
        if (used + length + TAIL > out_size || (used > CUT && !inside_character)) break;
        memcpy(out + used, escaped, length);
        used += length;
    }
    memcpy(out + used, *p == '\0' ? "\"" : "...\"", *p == '\0' ? 2 : sizeof "...\"");
}

void stw_text_double(double value, char *out, size_t out_size) {
    /* 15 digits are always exact, %g omits trailing zeros; subnormals have fewer digits */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(out, out_size, "%.*g", digits, value);
        if (digits == 17 || strtod(out, NULL) == value) break;
    }
    for (char *p = out; *p != '\0'; p++)
        if (*p == ',') *p = '.';
}
