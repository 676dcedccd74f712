/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/script_words.h"

#include <string.h>

/* ---- what each byte is ---- */

typedef struct lexer {
    const char *text;
    size_t at, length;
    char *kinds;
    bool in_array;
    const char *here; /* the word that ends a here-document which begins on the next line; NULL */
    size_t here_length;
} lexer;

static char peek(const lexer *l, size_t more) {
    return l->at + more < l->length ? l->text[l->at + more] : '\0';
}

static void take(lexer *l, size_t n, char kind) {
    for (; n > 0 && l->at < l->length; n--) l->kinds[l->at++] = kind;
}

/* @param kind STW_SCRIPT_SINGLE of ' ' alone: a backslash is one of its characters, but in $' ' */
static void take_quoted(lexer *l, char quote, char kind) {
    const bool plain = quote == '\'' && !(l->at > 0 && l->text[l->at - 1] == '$');
    take(l, 1, kind);
    while (l->at < l->length && l->text[l->at] != quote)
        take(l, !plain && l->text[l->at] == '\\' ? 2 : 1, kind);
    take(l, 1, kind);
}

/* From $( or ${ to its end. */
static void take_expansion(lexer *l) {
    const char open = peek(l, 1), close = open == '(' ? ')' : '}';
    size_t depth = 0;
    take(l, 1, STW_SCRIPT_NESTED);
    do {
        const char c = peek(l, 0);
        if (c == '\'' || c == '"') {
            take_quoted(l, c, STW_SCRIPT_NESTED);
            continue;
        }
        if (c == '\\') take(l, 1, STW_SCRIPT_NESTED);
        depth += c == open;
        depth -= c == close;
        take(l, 1, STW_SCRIPT_NESTED);
    } while (l->at < l->length && depth > 0);
}

static bool take_special(lexer *l) {
    const char c = peek(l, 0);
    if (c == '$' && (peek(l, 1) == '(' || peek(l, 1) == '{')) {
        take_expansion(l);
        return true;
    }
    if (c == '`') take_quoted(l, '`', STW_SCRIPT_NESTED);
    return c == '`';
}

static void take_double(lexer *l) {
    take(l, 1, STW_SCRIPT_DOUBLE);
    while (l->at < l->length && peek(l, 0) != '"')
        if (!take_special(l)) take(l, peek(l, 0) == '\\' ? 2 : 1, STW_SCRIPT_DOUBLE);
    take(l, 1, STW_SCRIPT_DOUBLE);
}

static void note_here(lexer *l) {
    size_t n = 2;
    if (peek(l, n) == '<') return;
    if (peek(l, n) == '-') n++;
    while (strchr(" '\"\\", peek(l, n)) != NULL && peek(l, n) != '\0') n++;
    l->here = l->text + l->at + n;
    l->here_length = strcspn(l->here, " '\"\n;&|)");
}

static void take_here(lexer *l) {
    while (l->at < l->length) {
        const char *line = l->text + l->at;
        const size_t tabs = strspn(line, "\t"), n = strcspn(line, "\n");
        const bool ends =
            n - tabs == l->here_length && memcmp(line + tabs, l->here, l->here_length) == 0;
        take(l, n + 1, STW_SCRIPT_NESTED);
        if (ends) break;
    }
    l->here = NULL;
}

static void take_code(lexer *l) {
    const char c = peek(l, 0), before = l->at > 0 ? l->text[l->at - 1] : '\n';
    const char kind = l->in_array ? STW_SCRIPT_ARRAY : STW_SCRIPT_CODE;
    if (c == '\\') {
        take(l, 2, kind);
    } else if (c == '\'') {
        take_quoted(l, c, STW_SCRIPT_SINGLE);
    } else if (c == '"') {
        take_double(l);
    } else if (c == '#' && strchr(" \t\n;(&|", before) != NULL) {
        while (l->at < l->length && peek(l, 0) != '\n') take(l, 1, STW_SCRIPT_COMMENT);
    } else if (c == '\n' && l->here != NULL && !l->in_array) {
        take(l, 1, kind);
        take_here(l);
    } else if (!take_special(l)) {
        if (c == '(' && before == '=') l->in_array = true;
        if (c == '<' && peek(l, 1) == '<' && before != '<') note_here(l);
        if (c == ')') l->in_array = false;
        take(l, 1, kind);
    }
}

bool stw_script_read(const char *text, size_t length, stw_pool *pool, stw_script *out) {
    lexer l = {.text = text, .length = length, .kinds = stw_pool_alloc(pool, length + 1)};
    if (l.kinds == NULL) return false;
    while (l.at < l.length) take_code(&l);
    l.kinds[length] = STW_SCRIPT_CODE;
    *out = (stw_script){text, length, l.kinds};
    return true;
}

/* ---- places ---- */

void stw_script_widen(const stw_script *s, size_t *from, size_t *to) {
    const size_t start = *from;
    size_t begin = start, end = *to;
    while (begin > 0 && (s->text[begin - 1] == ' ' || s->text[begin - 1] == '\t')) begin--;
    const bool first = begin == 0 || s->text[begin - 1] == '\n';
    const size_t blanks = strspn(s->text + end, " \t");
    const char *after = s->text + end + blanks;
    if (first && begin > 1 && after[0] == '\\' && after[1] == '\n')
        end += blanks + 2; /* its line */
    else if (first && *after == '\n' && s->kinds[end + blanks] == STW_SCRIPT_ARRAY)
        end += blanks + 1;
    else if (first)
        begin = start;
    *from = begin;
    *to = end;
}

size_t stw_script_top(const stw_script *s) {
    size_t at = 0;
    while (at < s->length && s->text[at] == '#') {
        at += strcspn(s->text + at, "\n");
        if (at < s->length) at++;
    }
    return at;
}
