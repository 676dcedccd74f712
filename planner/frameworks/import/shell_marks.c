/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/shell_marks.h"

#include <ctype.h>
#include <string.h>

bool stw_mark_is(char c) {
    return (c >= STW_MARK_OPEN && c <= STW_MARK_BARE) || c == STW_MARK_DEFAULT ||
           c == STW_MARK_VALUE;
}

stw_status stw_marks_check(const char *path, const char *text, size_t length, stw_error *err) {
    int line = 1;
    for (size_t i = 0; i < length; i++) {
        line += text[i] == '\n';
        if (stw_mark_is(text[i]))
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, path, line, 1,
                               "found control character %d, expected text", text[i]);
    }
    return STW_STATUS_OK;
}

bool stw_marks_default(const char *in, size_t n, const char *value, bool quoted, stw_text *out) {
    const size_t length = n - (size_t)(value - in);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)value[i]) &&
            (value[i] == '\0' || strchr("_-+.:/,@%", value[i]) == NULL))
            return false;
    if (length == 0) return false;
    if (quoted) stw_text_printf(out, "%c", STW_MARK_QUOTED);
    stw_text_printf(out, "%c${%.*s}%c%.*s%c", STW_MARK_DEFAULT, (int)n, in, STW_MARK_VALUE,
                    (int)length, value, STW_MARK_VALUE);
    return true;
}

void stw_marks_remove(const char *text, stw_text *out) {
    for (; *text != '\0'; text++) {
        const char *value = *text == STW_MARK_DEFAULT ? strchr(text, STW_MARK_VALUE) : NULL;
        if (value != NULL) text = value;
        if (!stw_mark_is(*text)) stw_text_append(out, text, 1);
    }
}

void stw_marks_close(const char *text, stw_text *out) {
    for (; *text != '\0'; text++)
        if (*text != STW_MARK_OPEN && *text != STW_MARK_CLOSE) stw_text_append(out, text, 1);
}

/* ---- as a shell's word ---- */

/* The length of the expansion at a dollar sign or grave accent; 0: there is none. */
static size_t expansion(const char *at) {
    if (*at == '`') {
        const char *end = strchr(at + 1, '`');
        return end != NULL ? (size_t)(end - at) + 1 : 0;
    }
    if (*at != '$') return 0;
    if (at[1] == '{' || at[1] == '(') {
        const char open = at[1], close = open == '{' ? '}' : ')';
        int depth = 0;
        for (const char *c = at + 1; *c != '\0'; c++) {
            if (*c == open) depth++;
            if (*c == close && --depth == 0) return (size_t)(c - at) + 1;
        }
        return 0;
    }
    if (at[1] != '\0' && strchr("0123456789@*#?$!-", at[1]) != NULL) return 2;
    size_t n = 1;
    while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
    return n > 1 ? n : 0;
}

/* A part of a word. */
typedef struct part {
    const char *text; /* with marks inside */
    size_t length;    /* of the text as it is written */
    size_t skipped;   /* of marks and of a default's value */
    bool expands, quoted;
} part;

static part next_part(const char *at) {
    part p = {.text = at, .length = 1};
    if (*at == STW_MARK_QUOTED) {
        p = next_part(at + 1);
        p.quoted = true;
        p.skipped++;
        return p;
    }
    if (*at == STW_MARK_ARGUMENTS || *at == STW_MARK_BARE)
        return (part){"$@", 2, 1, true, *at == STW_MARK_ARGUMENTS};
    if (*at == STW_MARK_LITERAL && at[1] != '\0') return (part){at + 1, 1, 2, false, false};
    const char *value = *at == STW_MARK_DEFAULT ? strchr(at, STW_MARK_VALUE) : NULL;
    if (value != NULL) {
        const char *end = value + 1 + strcspn(value + 1, "\x0f");
        return (part){at + 1, (size_t)(value - at - 1), (size_t)(end - at) + (*end != '\0'), true,
                      false};
    }
    if (stw_mark_is(*at)) return (part){at, 0, 1, false, false};
    const size_t n = expansion(at);
    p.expands = n > 0;
    p.length = p.skipped = n > 0 ? n : 1;
    return p;
}

static bool is_plain(const part *p) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,/:=+@%-";
    return p->length == 0 || strchr(plain, *p->text) != NULL;
}

static void put(const part *p, stw_text *out) {
    for (size_t i = 0; i < p->length; i++)
        if (!stw_mark_is(p->text[i])) stw_text_append(out, &p->text[i], 1);
}

/* Expansions without quotes between quoted parts. */
static void put_mixed(const char *text, stw_text *out) {
    while (*text != '\0') {
        const part p = next_part(text);
        if (p.expands) {
            if (p.quoted) stw_text_append(out, "\"", 1);
            put(&p, out);
            if (p.quoted) stw_text_append(out, "\"", 1);
        } else if (p.length > 0) {
            if (!is_plain(&p)) stw_text_append(out, *p.text == '\n' ? "'" : "\\", 1);
            put(&p, out);
            if (*p.text == '\n') stw_text_append(out, "'", 1);
        }
        text += p.skipped;
    }
}

void stw_marks_source(const char *text, stw_text *out) {
    bool bare = false, quoted = false, plain = true;
    for (const char *at = text; *at != '\0';) {
        const part p = next_part(at);
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
    for (const char *at = text; *at != '\0';) {
        const part p = next_part(at);
        if (!p.expands && p.length > 0 && quoted && strchr("\"\\$`", *p.text) != NULL)
            stw_text_append(out, "\\", 1);
        if (!p.expands && p.length > 0 && !quoted && *p.text == '\'')
            stw_text_append(out, "'\\'", 3);
        put(&p, out);
        at += p.skipped;
    }
    stw_text_append(out, quote, 1);
}
