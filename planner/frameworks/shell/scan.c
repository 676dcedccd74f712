/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/scan.h"

#include <ctype.h>
#include <string.h>

#include "planner/frameworks/shell/value.h"

enum { MAX_BRACKETS = 64 };

bool stw_scan_is_name_start(char c) { return isalpha((unsigned char)c) || c == '_'; }
bool stw_scan_is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

size_t stw_scan_name(const char *at, const char *end) {
    size_t n = 0;
    if (at < end && stw_scan_is_name_start(*at))
        while (at + n < end && stw_scan_is_name(at[n])) n++;
    return n;
}

size_t stw_scan_assignment(const char *at, const char *end) {
    const size_t name = stw_scan_name(at, end);
    const char *c = at + name;
    if (name == 0) return 0;
    if (c < end && *c == '[') {
        while (c < end && *c != ']') {
            c = stw_scan_part(c, end, false, 0);
            if (c == NULL) return 0;
        }
        c += c < end;
    }
    if (c < end && *c == '+') c++;
    return c < end && *c == '=' ? (size_t)(c - at) + 1 : 0;
}

const char *stw_scan_placeholder(const char *start, const char *at, const char *end) {
    if (at == start || *at != '<' || at + 1 >= end || !isalpha((unsigned char)at[1])) return NULL;
    if (stw_scan_assignment(start, at) == 0) return NULL;
    const char *line = memchr(at, '\n', (size_t)(end - at));
    if (line == NULL) line = end;
    while (line > at && (line[-1] == '\r' || line[-1] == ' ')) line--;
    return memchr(at, '>', (size_t)(line - at)) != NULL ? line : NULL;
}

/* Behind the next `close`; a backslash takes the character after it along. */
static const char *escaped(const char *at, const char *end, char close) {
    while (at < end && *at != close) at += *at == '\\' && at + 1 < end ? 2 : 1;
    return at < end ? at + 1 : NULL;
}

static const char *parts(const char *at, const char *end, char close, bool quoted, int depth) {
    while (at != NULL && at < end && *at != close) at = stw_scan_part(at, end, quoted, depth + 1);
    return at != NULL && at < end ? at + 1 : NULL;
}

const char *stw_scan_brackets(const char *at, const char *end, int depth) {
    const bool sum = at + 1 < end && at[1] == '(';
    if (depth > MAX_BRACKETS) return NULL;
    for (at++; at != NULL && at < end && *at != ')';) {
        const bool comment = *at == '#' && !sum && strchr(" \t\n;(", at[-1]) != NULL;
        if (comment)
            while (at < end && *at != '\n') at++;
        else
            at = *at == '(' ? stw_scan_brackets(at, end, depth + 1)
                            : stw_scan_part(at, end, false, depth + 1);
    }
    return at != NULL && at < end ? at + 1 : NULL;
}

const char *stw_scan_part(const char *at, const char *end, bool quoted, int depth) {
    const char c = *at, next = at + 1 < end ? at[1] : '\0';
    if (depth > MAX_BRACKETS) return NULL;
    if (c == STW_MARK_BARE || c == STW_MARK_QUOTED) return at + stw_value_expansion(at, end);
    if (c == '\\') return at + 1 < end ? at + 2 : end;
    if (c == '\'' && !quoted) {
        const char *last = memchr(at + 1, '\'', (size_t)(end - at - 1));
        return last != NULL ? last + 1 : NULL;
    }
    if (c == '"' && !quoted) return parts(at + 1, end, '"', true, depth);
    if (c == '`') return escaped(at + 1, end, '`');
    if (c == '$' && next == '\'' && !quoted) return escaped(at + 2, end, '\'');
    if (c == '$' && next == '(') return stw_scan_brackets(at + 1, end, depth + 1);
    if (c == '$' && next == '{') return parts(at + 2, end, '}', quoted, depth + 1);
    if ((c == '<' || c == '>') && next == '(' && !quoted)
        return stw_scan_brackets(at + 1, end, depth + 1);
    return at + 1;
}
