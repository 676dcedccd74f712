/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/script_words.h"

#include <ctype.h>
#include <string.h>

enum {
    CODE = 'c',
    ARRAY = 'a',  /* between the brackets of NAME=( ) */
    SINGLE = 's', /* with the quotes */
    DOUBLE = 'd',
    COMMENT = '#',
    NESTED = 'n' /* $( ), ${ }, ` `, here-documents */
};

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

/* @param kind SINGLE of ' ' alone: a backslash is one of its characters, but in $' ' */
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
    take(l, 1, NESTED);
    do {
        const char c = peek(l, 0);
        if (c == '\'' || c == '"') {
            take_quoted(l, c, NESTED);
            continue;
        }
        if (c == '\\') take(l, 1, NESTED);
        depth += c == open;
        depth -= c == close;
        take(l, 1, NESTED);
    } while (l->at < l->length && depth > 0);
}

static bool take_special(lexer *l) {
    const char c = peek(l, 0);
    if (c == '$' && (peek(l, 1) == '(' || peek(l, 1) == '{')) {
        take_expansion(l);
        return true;
    }
    if (c == '`') take_quoted(l, '`', NESTED);
    return c == '`';
}

static void take_double(lexer *l) {
    take(l, 1, DOUBLE);
    while (l->at < l->length && peek(l, 0) != '"')
        if (!take_special(l)) take(l, peek(l, 0) == '\\' ? 2 : 1, DOUBLE);
    take(l, 1, DOUBLE);
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
        take(l, n + 1, NESTED);
        if (ends) break;
    }
    l->here = NULL;
}

static void take_code(lexer *l) {
    const char c = peek(l, 0), before = l->at > 0 ? l->text[l->at - 1] : '\n';
    const char kind = l->in_array ? ARRAY : CODE;
    if (c == '\\') {
        take(l, 2, kind);
    } else if (c == '\'') {
        take_quoted(l, c, SINGLE);
    } else if (c == '"') {
        take_double(l);
    } else if (c == '#' && strchr(" \t\n;(&|", before) != NULL) {
        while (l->at < l->length && peek(l, 0) != '\n') take(l, 1, COMMENT);
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
    l.kinds[length] = CODE;
    *out = (stw_script){text, length, l.kinds};
    return true;
}

/* ---- arguments ---- */

static bool is_text(char kind) { return kind == SINGLE || kind == DOUBLE; }

/* Blanks and line ends between the words of one command. */
static size_t skip_between(const stw_script *s, size_t at, char kind) {
    for (; at < s->length && s->kinds[at] == kind; at++) {
        const char c = s->text[at];
        if (c == '\\' && s->text[at + 1] == '\n')
            at++;
        else if (c == '\n' ? kind == CODE : c != ' ' && c != '\t')
            break;
    }
    return at;
}

/* @param kind CODE or ARRAY: of a word with its quotes and expansions; else within a text */
static size_t word_end(const stw_script *s, size_t at, char kind) {
    while (at < s->length) {
        const char c = s->text[at], of = s->kinds[at];
        const bool same = of == kind, own = same || (!is_text(kind) && of != COMMENT);
        if (!own && of != NESTED) break;
        if (same && strchr(" \t\n", c) != NULL) break;
        if (same && !is_text(kind) && strchr(";&|<>()", c) != NULL) break;
        if (same && is_text(kind) && c == (kind == SINGLE ? '\'' : '"')) break;
        at += same && c == '\\' && at + 1 < s->length ? 2 : 1;
    }
    return at < s->length ? at : s->length;
}

/* Does a word of this kind begin here? No redirection such as 2>&1. */
static bool is_word_at(const stw_script *s, size_t at, char kind) {
    const size_t digits = strspn(s->text + at, "0123456789");
    const char after = s->text[at + digits];
    if (!is_text(kind) && (after == '<' || after == '>')) return false;
    return at < s->length && word_end(s, at, kind) > at &&
           !(s->text[at] == '\\' && s->text[at + 1] == '\n');
}

static bool matches(const char *at, const char *name) {
    for (; *name != '\0'; at++, name++)
        if (*at != *name && !(*at == '_' && *name == '-') && !(*at == '-' && *name == '_'))
            return false;
    return true;
}

/* The argument whose name ends at `end`. */
static stw_script_site site_of(const stw_script *s, size_t begin, size_t end, char kind) {
    stw_script_site site = {.begin = begin, .in_quotes = is_text(kind)};
    site.equals = s->text[end] == '=';
    site.end = site.value_begin = site.value_end = end;
    if (site.equals) {
        site.value_begin = end + 1;
        site.end = site.value_end = word_end(s, end + 1, kind);
        return site;
    }
    for (size_t at = skip_between(s, end, kind); is_word_at(s, at, kind);
         at = skip_between(s, site.value_end, kind)) {
        if (s->text[at] == '-' && s->text[at + 1] == '-' && isalpha((unsigned char)s->text[at + 2]))
            break;
        if (at == end) break; /* the name goes on */
        if (site.value_end == end) site.value_begin = at;
        site.end = site.value_end = word_end(s, at, kind);
    }
    return site;
}

/* One word in quotes, 'a.b=c': its quotes are no place where texts are split. */
static bool is_whole_word(const stw_script *s, size_t begin, const stw_script_site *site) {
    return begin > 0 && is_text(s->kinds[begin]) && strchr("'\"", s->text[begin - 1]) != NULL &&
           (begin < 2 || strchr(" \t\n(", s->text[begin - 2]) != NULL) &&
           s->text[site->end] == s->text[begin - 1];
}

bool stw_script_find(const stw_script *s, const char *name, bool dashed, bool last,
                     stw_script_site *out) {
    const size_t n = strlen(name);
    bool found = false;
    for (size_t at = 0; at + n <= s->length && (last || !found); at++) {
        const char kind = s->kinds[at];
        if (kind == COMMENT || kind == NESTED || !matches(s->text + at, name)) continue;
        size_t begin = at;
        while (!dashed && begin > 0 && s->text[begin - 1] == '+') begin--;
        if (dashed && (at < 2 || memcmp(s->text + at - 2, "--", 2) != 0)) continue;
        if (dashed) begin = at - 2;
        if (begin > 0 && strchr(" \t\n('\"", s->text[begin - 1]) == NULL) continue;
        const char after = s->text[at + n];
        if (!dashed ? after != '=' : after != '\0' && strchr(" \t\n=\\)\"'", after) == NULL)
            continue;
        *out = site_of(s, begin, at + n, kind);
        if (is_whole_word(s, begin, out)) out->begin--, out->end++;
        found = true;
    }
    return found;
}

void stw_script_without(const stw_script *s, const stw_script_site *site, size_t *from,
                        size_t *to) {
    size_t begin = site->begin, end = site->end;
    while (begin > 0 && (s->text[begin - 1] == ' ' || s->text[begin - 1] == '\t')) begin--;
    const bool first = begin == 0 || s->text[begin - 1] == '\n';
    const size_t blanks = strspn(s->text + end, " \t");
    const char *after = s->text + end + blanks;
    if (first && begin > 1 && after[0] == '\\' && after[1] == '\n')
        end += blanks + 2; /* its line */
    else if (first && s->kinds[site->begin] == ARRAY && *after == '\n')
        end += blanks + 1;
    else if (first)
        begin = site->begin;
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
