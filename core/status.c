/* SPDX-License-Identifier: Apache-2.0 */
#include "core/status.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/printable.h"

static const struct {
    int exit_code;
    const char *text;
} table[] = {
#define X(name, code, words) {code, words},
    STW_STATUS_TABLE(X)
#undef X
};

static bool is_known(stw_status status) { return (size_t)status < sizeof table / sizeof table[0]; }

int stw_status_exit_code(stw_status status) {
    return is_known(status) ? table[status].exit_code : table[STW_STATUS_BUG].exit_code;
}

const char *stw_status_text(stw_status status) {
    return is_known(status) ? table[status].text : "an unknown status";
}

/* A path that is too long keeps its end, the more useful part. */
static void copy_where(char *out, size_t out_size, const char *where) {
    size_t length = where != NULL ? strlen(where) : 0;
    if (length < out_size) {
        memcpy(out, length > 0 ? where : "", length + 1);
        return;
    }
    const char *tail = where + (length - (out_size - 4));
    while (((unsigned char)*tail & 0xC0) == 0x80) tail++; /* not inside a UTF-8 character */
    snprintf(out, out_size, "...%s", tail);
}

/* A text that is cut off ends in "...". */
static void print_text(char *out, size_t out_size, const char *format, va_list args) {
    int length = vsnprintf(out, out_size, format, args);
    if (length < 0) {
        snprintf(out, out_size, "(the error text could not be formatted)");
    } else if ((size_t)length >= out_size) {
        size_t cut = out_size - 4;
        while (cut > 0 && ((unsigned char)out[cut] & 0xC0) == 0x80) cut--;
        memcpy(out + cut, "...", 4);
    }
}

typedef struct location {
    const char *where;
    int line, column;
} location;

static stw_status fill(stw_error *err, stw_status status, long native, location at,
                       const char *format, va_list args) {
    if (err == NULL || err->status != STW_STATUS_OK) return status;
    err->status = status;
    err->native = native;
    err->line = at.line;
    err->column = at.column;
    copy_where(err->where, sizeof err->where, at.where);
    print_text(err->text, sizeof err->text, format, args);
    return status;
}

stw_status stw_fail_at(stw_error *err, stw_status status, const char *where, int line, int column,
                       const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, 0, (location){where, line, column}, format, args);
    va_end(args);
    return status;
}

stw_status stw_fail(stw_error *err, stw_status status, const char *where, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, 0, (location){where, 0, 0}, format, args);
    va_end(args);
    return status;
}

stw_status stw_fail_native(stw_error *err, stw_status status, long native, const char *where,
                           const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, status, native, (location){where, 0, 0}, format, args);
    va_end(args);
    return status;
}

/* "where:line:column", as far as they are known. */
static void print_place(const stw_error *err, char *out, size_t out_size) {
    char place[32] = "";
    if (err->line > 0 && err->column > 0)
        snprintf(place, sizeof place, ":%d:%d", err->line, err->column);
    else if (err->line > 0)
        snprintf(place, sizeof place, ":%d", err->line);
    snprintf(out, out_size, "%s%s", err->where, place);
}

static void print_to(char *out, size_t out_size, const char *format, ...) STW_PRINTF(3, 4);
static void print_to(char *out, size_t out_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_text(out, out_size, format, args);
    va_end(args);
}

stw_status stw_error_in(stw_status status, const char *file, stw_error *err) {
    char name[sizeof err->where], place[sizeof err->where + 32], text[sizeof err->text];
    if (status == STW_STATUS_OK || err == NULL || err->status == STW_STATUS_OK) return status;
    copy_where(name, sizeof name, file);
    if (strncmp(err->where, name, strlen(name)) == 0) return status;
    print_place(err, place, sizeof place);
    memcpy(text, err->text, sizeof text);
    print_to(err->text, sizeof err->text, "%s%s%s", place, place[0] != '\0' ? ": " : "", text);
    memcpy(err->where, name, sizeof name);
    err->line = err->column = 0;
    return status;
}

void stw_error_format(const stw_error *err, char *out, size_t out_size) {
    char rank[32] = "", place[sizeof err->where + 32], line[1200];
    if (err->rank >= 0) snprintf(rank, sizeof rank, "rank %d: ", err->rank);
    print_place(err, place, sizeof place);
    const char *text = err->text[0] != '\0' ? err->text : stw_status_text(err->status);
    snprintf(line, sizeof line, "%s%s%s%s", rank, place, err->where[0] != '\0' ? ": " : "", text);
    if (out_size > 0) (void)stw_printable_copy(line, out, out_size);
}

void stw_failure_format(stw_status status, const stw_error *err, char *out, size_t out_size) {
    stw_error said = STW_ERROR_INIT;
    if (err != NULL) said = *err;
    (void)stw_fail(&said, status, NULL, "%s", stw_status_text(status));
    stw_error_format(&said, out, out_size);
}
