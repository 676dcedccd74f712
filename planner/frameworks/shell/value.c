/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/value.h"

#include <string.h>

static bool is_mark(char c) { return c >= STW_MARK_OPEN && c <= STW_MARK_END; }
static bool begins(char c) { return c == STW_MARK_BARE || c == STW_MARK_QUOTED; }

size_t stw_value_expansion(const char *at, const char *end) {
    const char *last = memchr(at, STW_MARK_END, (size_t)(end - at));
    return last != NULL ? (size_t)(last - at) + 1 : (size_t)(end - at);
}

stw_status stw_value_check(const char *path, const char *text, size_t length, stw_error *err) {
    int line = 1;
    for (size_t i = 0; i < length; i++) {
        line += text[i] == '\n';
        if (is_mark(text[i]))
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, path, line, 1,
                               "found control character %d, expected text", text[i]);
    }
    return STW_STATUS_OK;
}

stw_value_kind stw_value_kind_of(const char *text) {
    stw_value_kind kind = {0};
    const char *end = text + strlen(text);
    int depth = 0;
    while (text < end) {
        if (begins(*text)) {
            const size_t n = stw_value_expansion(text, end);
            const char *value = memchr(text, STW_MARK_VALUE, n);
            kind.unknown = kind.unknown || value == NULL;
            kind.assumed = kind.assumed || value != NULL;
            kind.values = kind.values || (value != NULL && value + 2 < text + n);
            text += n;
            continue;
        }
        kind.open = kind.open || *text == STW_MARK_OPEN;
        depth += (*text == STW_MARK_OPEN) - (*text == STW_MARK_CLOSE);
        kind.literal = kind.literal || (depth <= 0 && !is_mark(*text));
        text++;
    }
    return kind;
}

bool stw_value_is_arguments(const char *text) {
    const stw_value_kind kind = stw_value_kind_of(text);
    if (!kind.assumed || kind.unknown || kind.values || kind.literal || kind.open) return false;
    for (const char *c = strchr(text, STW_MARK_QUOTED); c != NULL;
         c = strchr(c + 1, STW_MARK_QUOTED)) {
        const char *name = c + 1 + (c[1] == '$') + (c[1] == '$' && c[2] == '{');
        const size_t n = strcspn(name, "\x05\x06"); /* to its value, or its end */
        bool list = *name == '@';
        for (size_t i = 0; i + 3 <= n; i++) list = list || memcmp(name + i, "[@]", 3) == 0;
        if (!list) return false;
    }
    return true;
}

void stw_value_remove(const char *text, stw_text *out) {
    for (const char *end = text + strlen(text); text < end;) {
        const size_t n = begins(*text) ? stw_value_expansion(text, end) : 1;
        const char *value = n > 1 ? memchr(text, STW_MARK_VALUE, n) : NULL;
        if (value != NULL)
            stw_text_append(out, value + 1, (size_t)(text + n - 1 - (value + 1)));
        else if (n > 1)
            stw_text_append(out, text + 1, n - 2);
        else if (!is_mark(*text))
            stw_text_append(out, text, 1);
        text += n;
    }
}

void stw_value_close(const char *text, stw_text *out) {
    for (; *text != '\0'; text++)
        if (*text != STW_MARK_OPEN && *text != STW_MARK_CLOSE) stw_text_append(out, text, 1);
}

/* ---- as a shell's word ---- */

/* A part of a word. */
typedef struct part {
    const char *text;
    size_t length;  /* of the text as it is written */
    size_t skipped; /* with its marks */
    bool expands, quoted;
} part;

static part next_part(const char *at, const char *end) {
    if (begins(*at)) {
        const size_t n = stw_value_expansion(at, end);
        const char *value = memchr(at, STW_MARK_VALUE, n);
        const size_t length = value != NULL ? (size_t)(value - at) - 1 : n > 1 ? n - 2 : 0;
        return (part){at + 1, length, n, true, *at == STW_MARK_QUOTED};
    }
    return (part){at, is_mark(*at) ? 0 : 1, 1, false, false};
}

static bool is_plain(const part *p) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,/:=+@%-";
    return p->length == 0 || strchr(plain, *p->text) != NULL;
}

/* Expansions without quotes between quoted parts. */
static void put_mixed(const char *text, stw_text *out) {
    for (const char *end = text + strlen(text); text < end;) {
        const part p = next_part(text, end);
        if (p.expands) {
            if (p.quoted) stw_text_append(out, "\"", 1);
            stw_text_append(out, p.text, p.length);
            if (p.quoted) stw_text_append(out, "\"", 1);
        } else if (p.length > 0) {
            if (!is_plain(&p)) stw_text_append(out, *p.text == '\n' ? "'" : "\\", 1);
            stw_text_append(out, p.text, p.length);
            if (*p.text == '\n') stw_text_append(out, "'", 1);
        }
        text += p.skipped;
    }
}

void stw_value_source(const char *text, stw_text *out) {
    bool bare = false, quoted = false, plain = true;
    const char *end = text + strlen(text);
    for (const char *at = text; at < end;) {
        const part p = next_part(at, end);
        bare = bare || (p.expands && !p.quoted);
        quoted = quoted || (p.expands && p.quoted);
        plain = plain && (p.expands || is_plain(&p));
        at += p.skipped;
    }
    if (bare || (plain && !quoted && *text != '\0')) {
        put_mixed(text, out);
        return;
    }
    const char *quote = quoted ? "\"" : "'";
    stw_text_append(out, quote, 1);
    for (const char *at = text; at < end;) {
        const part p = next_part(at, end);
        if (!p.expands && p.length > 0 && quoted && strchr("\"\\$`", *p.text) != NULL)
            stw_text_append(out, "\\", 1);
        if (!p.expands && p.length > 0 && !quoted && *p.text == '\'')
            stw_text_append(out, "'\\'", 3);
        stw_text_append(out, p.text, p.length);
        at += p.skipped;
    }
    stw_text_append(out, quote, 1);
}
