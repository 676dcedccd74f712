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

/* ---- brackets ---- */

/* Is this the word, with nothing of a word after it? */
static bool is_word(const char *at, const char *end, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(end - at) < n || memcmp(at, word, n) != 0) return false;
    return at + n == end || strchr(" \t\r\n;&|()<>", at[n]) != NULL;
}

/* May a command begin at `at`? @param begin of the text */
static bool begins_command(const char *begin, const char *at) {
    static const char *const before[] = {"then", "do", "else", "elif", "if", "while", "until"};
    const char *c = at;
    if (c > begin && strchr(" \t\n;&|(){!", c[-1]) == NULL) return false;
    while (c > begin && strchr(" \t\r", c[-1]) != NULL) c--;
    if (c == begin || strchr("\n;&|(){!", c[-1]) != NULL) return true;
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        const size_t n = strlen(before[i]);
        if ((size_t)(c - begin) >= n && memcmp(c - n, before[i], n) == 0) return true;
    }
    return false;
}

/* The word after <<, if a here-document begins there. @return its length; 0: none */
static size_t here_end(const char *at, const char *end, char *word, size_t size, bool *tabs) {
    size_t n = 0;
    if (at + 2 >= end || at[0] != '<' || at[1] != '<' || at[2] == '<' || at[-1] == '<') return 0;
    const char *c = at + 2;
    *tabs = *c == '-';
    for (c += *tabs; c < end && (*c == ' ' || *c == '\t'); c++) {
    }
    if (c >= end || !(stw_scan_is_name(*c) || strchr("'\"\\", *c) != NULL)) return 0;
    for (; c < end && strchr(" \t\r\n;&|()<>", *c) == NULL; c++)
        if (strchr("'\"\\", *c) == NULL && n + 1 < size) word[n++] = *c;
    return n;
}

/* Behind a here-document whose text begins at `at`; `at` if it does not end. */
static const char *behind_here(const char *at, const char *end, const char *word, size_t n,
                               bool tabs) {
    for (const char *line = at; line < end;) {
        const char *last = memchr(line, '\n', (size_t)(end - line)), *from = line;
        const char *to = last != NULL ? last : end;
        while (tabs && from < to && *from == '\t') from++;
        if (to > from && to[-1] == '\r') to--;
        if ((size_t)(to - from) == n && memcmp(from, word, n) == 0)
            return last != NULL ? last : end;
        line = last != NULL ? last + 1 : end;
    }
    return at;
}

typedef struct bracket {
    const char *begin;
    int cases; /* case commands that are open: their patterns end in ) */
    size_t here;
    char word[64]; /* of a here-document that begins at the next line */
    bool tabs;
} bracket;

/* What counts among commands: comments, case, here-documents. @return behind it; `at`: nothing */
static const char *in_commands(bracket *b, const char *at, const char *end) {
    if (*at == '#' && strchr(" \t\n;(", at[-1]) != NULL) {
        while (at < end && *at != '\n') at++;
        return at;
    }
    if (*at == 'c' && is_word(at, end, "case") && begins_command(b->begin, at)) {
        b->cases++;
        return at + 4;
    }
    if (*at == 'e' && b->cases > 0 && is_word(at, end, "esac") && begins_command(b->begin, at)) {
        b->cases--;
        return at + 4;
    }
    if (*at == ')' && b->cases > 0) return at + 1;
    if (*at == '<' && b->here == 0) b->here = here_end(at, end, b->word, sizeof b->word, &b->tabs);
    if (*at == '\n' && b->here > 0) {
        const char *next = behind_here(at + 1, end, b->word, b->here, b->tabs);
        b->here = 0;
        return next > at + 1 ? next : at;
    }
    return at;
}

static const char *brackets(const char *at, const char *end, int depth, bool sum) {
    bracket b = {.begin = at + 1};
    sum = sum || (at + 1 < end && at[1] == '(');
    if (depth > MAX_BRACKETS) return NULL;
    for (at++; at != NULL && at < end;) {
        const char *next = sum ? at : in_commands(&b, at, end);
        if (next != at) {
            at = next;
            continue;
        }
        if (*at == ')') break;
        at = *at == '(' ? brackets(at, end, depth + 1, sum)
                        : stw_scan_part(at, end, false, depth + 1);
    }
    return at != NULL && at < end ? at + 1 : NULL;
}

const char *stw_scan_brackets(const char *at, const char *end, int depth) {
    return brackets(at, end, depth, false);
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
