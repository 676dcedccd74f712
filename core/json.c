/* SPDX-License-Identifier: Apache-2.0 */
#include "core/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/printable.h"

enum { DEEPEST = 64 };

typedef struct level {
    bool is_object;
    bool has_items;
    bool broken; /* an item is on a separate line; the closing bracket then is, too */
} level;

struct stw_json {
    stw_text text;
    level levels[DEEPEST];
    size_t depth;
    const char *misuse; /* the first call that could not be right; NULL while there is none */
};

stw_json *stw_json_new(void) { return calloc(1, sizeof(stw_json)); }

static void put(stw_json *json, const char *bytes) {
    stw_text_append(&json->text, bytes, strlen(bytes));
}

static void new_line(stw_json *json) {
    put(json, "\n");
    for (size_t i = 0; i < json->depth; i++) put(json, "  ");
}

/* The length of the UTF-8 character at p, 0 if the bytes are not UTF-8 (RFC 3629). */
static size_t utf8_length(const unsigned char *p) {
    if (p[0] < 0x80) return 1;
    size_t n = p[0] >= 0xC2 && p[0] <= 0xDF   ? 2
               : p[0] >= 0xE0 && p[0] <= 0xEF ? 3
               : p[0] >= 0xF0 && p[0] <= 0xF4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80) return 0; /* the terminating NUL stops here, too */
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

/* \uXXXX of a character, two of them beyond the first 2^16: a terminal shows those. */
static void put_escaped(stw_json *json, const unsigned char *p, size_t n) {
    unsigned code = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) code = code << 6 | (p[i] & 0x3Fu);
    if (code >= 0x10000) {
        stw_text_printf(&json->text, "\\u%04x", 0xD800u + ((code - 0x10000) >> 10));
        code = 0xDC00u + ((code - 0x10000) & 0x3FFu);
    }
    stw_text_printf(&json->text, "\\u%04x", code);
}

/* Replace bytes that are not UTF-8, as in file names, with U+FFFD. The document stays valid. */
static void put_quoted(stw_json *json, const char *string) {
    put(json, "\"");
    for (const unsigned char *p = (const unsigned char *)string; *p != '\0';) {
        size_t n = utf8_length(p);
        if (n == 0)
            put(json, "\xEF\xBF\xBD");
        else if (*p == '"' || *p == '\\')
            stw_text_printf(&json->text, "\\%c", *p);
        else if (*p == '\n')
            put(json, "\\n");
        else if (*p == '\t')
            put(json, "\\t");
        else if (stw_printable_length((const char *)p) == 0)
            put_escaped(json, p, n);
        else
            stw_text_append(&json->text, (const char *)p, n);
        p += n > 0 ? n : 1;
    }
    put(json, "\"");
}

/* Write comma, line break and key before a value; false if no value is allowed here. Members, and
 * objects in arrays, begin a line. Numbers in arrays share a line. */
static bool before_value(stw_json *json, const char *key, bool is_container) {
    if (json == NULL || json->misuse != NULL) return false;
    if (json->depth == 0) {
        if (json->text.length > 0) json->misuse = "a second document";
        if (key != NULL) json->misuse = "a key outside an object";
        return json->misuse == NULL;
    }
    level *in = &json->levels[json->depth - 1];
    if (in->is_object != (key != NULL)) {
        json->misuse = key != NULL ? "a key inside an array" : "a member without a key";
        return false;
    }
    bool breaks = in->is_object || is_container;
    if (in->has_items) put(json, breaks ? "," : ", ");
    if (breaks) {
        new_line(json);
        in->broken = true;
    }
    in->has_items = true;
    if (key != NULL) {
        put_quoted(json, key);
        put(json, ": ");
    }
    return true;
}

static void begin(stw_json *json, const char *key, bool is_object) {
    if (!before_value(json, key, true)) return;
    if (json->depth == DEEPEST) {
        json->misuse = "nesting that is too deep";
        return;
    }
    put(json, is_object ? "{" : "[");
    json->levels[json->depth++] = (level){.is_object = is_object};
}

void stw_json_begin_object(stw_json *json, const char *key) { begin(json, key, true); }

void stw_json_begin_array(stw_json *json, const char *key) { begin(json, key, false); }

void stw_json_end(stw_json *json) {
    if (json == NULL || json->misuse != NULL) return;
    if (json->depth == 0) {
        json->misuse = "an end without a begin";
        return;
    }
    level ended = json->levels[--json->depth];
    if (ended.broken) new_line(json);
    put(json, ended.is_object ? "}" : "]");
}

void stw_json_string(stw_json *json, const char *key, const char *value) {
    if (!before_value(json, key, false)) return;
    if (value == NULL)
        put(json, "null");
    else
        put_quoted(json, value);
}

void stw_json_u64(stw_json *json, const char *key, uint64_t value) {
    if (!before_value(json, key, false)) return;
    if (value > (uint64_t)INT64_MAX)
        put(json, "\"unlimited\"");
    else
        stw_text_printf(&json->text, "%" PRIu64, value);
}

void stw_json_double(stw_json *json, const char *key, double value) {
    if (!before_value(json, key, false)) return;
    if (!isfinite(value)) {
        put(json, "null");
        return;
    }
    char digits[32];
    stw_text_double(value, digits, sizeof digits);
    put(json, digits);
    if (strpbrk(digits, ".e") == NULL) put(json, ".0"); /* a real stays a real when read back */
}

void stw_json_bool(stw_json *json, const char *key, bool value) {
    if (before_value(json, key, false)) put(json, value ? "true" : "false");
}

void stw_json_null(stw_json *json, const char *key) {
    if (before_value(json, key, false)) put(json, "null");
}

stw_status stw_json_finish(stw_json *json, stw_text *out, stw_error *err) {
    if (json == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a JSON document");
    stw_status status = STW_STATUS_OK;
    if (json->misuse == NULL && (json->depth > 0 || json->text.length == 0) && !json->text.failed)
        json->misuse = json->depth > 0 ? "a begin without an end" : "a document without a value";
    if (json->misuse != NULL) {
        status = stw_fail(err, STW_STATUS_BUG, NULL, "JSON writer: %s", json->misuse);
        goto out;
    }
    put(json, "\n");
    STW_TRY(stw_text_status(&json->text, err));
    stw_text_append(out, json->text.data, json->text.length);
    STW_TRY(stw_text_status(out, err));
out:
    stw_text_free(&json->text);
    free(json);
    return status;
}
