/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/shell.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/text.h"
#include "planner/frameworks/import/shell_flow.h"
#include "planner/frameworks/import/shell_marks.h"

enum { MAX_WORDS = 4096, MAX_VARIABLES = 512, MAX_DEPTH = 16, MAX_TEXT = 1 << 20, MAX_SAVED = 16 };
enum { MAX_HERE = 8, MAX_SEARCHED = 64 * MAX_TEXT }; /* brackets in brackets are searched again */

/* A here-document whose text begins at the next line. */
typedef struct here {
    const char *end; /* the line that ends it */
    bool tabs;       /* <<-: tabs in front of lines do not count */
} here;

/* A variable before `NAME=value command`, which sets it for that command. */
typedef struct saved {
    size_t index;
    stw_shell_variable before;
} saved;

typedef struct reader {
    stw_pool *pool;
    stw_shell_flow flow;
    saved saved[MAX_SAVED];
    size_t n_saved;
    bool exporting; /* the command begins with export */
    stw_shell now;  /* variables so far, words of the command that is read */
    const char *at, *end;
    int line, depth;
    size_t read;     /* bytes of words so far */
    size_t searched; /* bytes of searches for closing brackets so far */
    here here[MAX_HERE];
    int n_here;
    stw_status status;
    const char *path;
    stw_error *err;
} reader;

static void fail_memory(reader *r) {
    if (r->status == STW_STATUS_OK)
        r->status = stw_fail(r->err, STW_STATUS_NO_MEMORY, r->path, "out of memory");
}

static void fail_many(reader *r, const char *what, int most) {
    if (r->status == STW_STATUS_OK)
        r->status = stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->path, r->line, 1,
                                "found more than %d %s", most, what);
}

static bool is_name_start(char c) { return isalpha((unsigned char)c) || c == '_'; }
static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }
static bool is_quote(char c) { return c == '"' || c == '\''; }
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
static bool ends_command(char c) {
    return c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')';
}

/* Around parts of a text that come from commands that may not run; without them all of a text
 * whose word has `maybe` does. Words that leave this file have none. */
enum { OPEN = STW_MARK_OPEN, CLOSE = STW_MARK_CLOSE };
static const char LITERAL[] = {STW_MARK_LITERAL}, QUOTED[] = {STW_MARK_QUOTED};

static const char *marked(reader *r, const stw_shell_word *word) {
    if (word->maybe == 0 || strchr(word->text, OPEN) != NULL) return word->text;
    const char *text = stw_pool_printf(r->pool, "%c%s%c", OPEN, word->text, CLOSE);
    if (text == NULL) fail_memory(r);
    return text != NULL ? text : word->text;
}

/* One of the functions of shell_marks.h, into the pool. */
static const char *without(reader *r, const char *text, void (*change)(const char *, stw_text *)) {
    stw_text out = STW_TEXT_INIT;
    change(text, &out);
    const char *copy = stw_pool_string(r->pool, out.data != NULL ? out.data : "");
    if (copy == NULL || out.failed) fail_memory(r);
    stw_text_free(&out);
    return copy != NULL ? copy : "";
}

static const char *unmarked(reader *r, const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if (stw_mark_is(*c)) return without(r, text, stw_marks_remove);
    return text;
}

static void finish(reader *r, stw_shell_word *word) {
    word->source = without(r, word->text, stw_marks_source);
    word->text = unmarked(r, word->text);
}

static bool is_arguments(reader *r, const char *text) {
    return (strchr(text, STW_MARK_ARGUMENTS) != NULL || strchr(text, STW_MARK_BARE) != NULL) &&
           unmarked(r, text)[0] == '\0';
}

/* ---- variables ---- */

static stw_shell_variable *find(const stw_shell *shell, const char *name, size_t length) {
    for (size_t i = 0; i < shell->n_variables; i++)
        if (strlen(shell->variables[i].name) == length &&
            memcmp(shell->variables[i].name, name, length) == 0)
            return &shell->variables[i];
    return NULL;
}

const stw_shell_variable *stw_shell_variable_of(const stw_shell *shell, const char *name) {
    return find(shell, name, strlen(name));
}

const char *stw_shell_value(const stw_shell *shell, const char *name) {
    const stw_shell_variable *v = find(shell, name, strlen(name));
    return v != NULL && v->n > 0 ? v->words[0].text : NULL;
}

static void add_word(reader *r, stw_shell_variable *to, stw_shell_word word) {
    stw_shell_word **words = &to->words;
    size_t *n = &to->n, *capacity = &to->capacity;
    if (*n >= MAX_WORDS) {
        fail_many(r, "words of a command", MAX_WORDS);
        return;
    }
    stw_shell_word *grown = stw_pool_grow(r->pool, *words, *n, *n + 1, capacity, sizeof *grown);
    if (grown == NULL || word.text == NULL) {
        fail_memory(r);
        return;
    }
    *words = grown;
    grown[(*n)++] = word;
    r->read += strlen(word.text);
    if (r->read > MAX_TEXT) fail_many(r, "bytes of words", MAX_TEXT);
}

/* Give a variable a new value. */
static void assign(reader *r, const char *name, size_t length, stw_shell_variable value) {
    stw_shell_variable before = {.name = ""};
    stw_shell *shell = &r->now;
    stw_shell_variable *v = find(shell, name, length);
    if (v == NULL && shell->n_variables >= MAX_VARIABLES) {
        fail_many(r, "variables", MAX_VARIABLES);
        return;
    }
    if (v == NULL) {
        stw_shell_variable *grown =
            stw_pool_grow(r->pool, shell->variables, shell->n_variables, shell->n_variables + 1,
                          &shell->variables_capacity, sizeof *grown);
        if (grown == NULL) {
            fail_memory(r);
            return;
        }
        shell->variables = grown;
        v = &grown[shell->n_variables++];
        *v = (stw_shell_variable){.name = ""};
    }
    before = *v;
    *v = value;
    v->exported = before.exported || r->exporting;
    if (r->n_saved < MAX_SAVED)
        r->saved[r->n_saved++] = (saved){(size_t)(v - shell->variables), before};
    v->name = stw_pool_printf(r->pool, "%.*s", (int)length, name);
    if (v->name == NULL) fail_memory(r);
    if (v->name == NULL) v->name = "";
}

/* ---- arithmetic ---- */

typedef struct sum {
    reader *r;
    const char *at, *end;
    int depth;
    int maybe; /* of its variables */
    bool bad;
} sum;

static long long added(sum *s);

/* Products and sums of two that are not fit in 64 bits. */
static bool is_large(long long value) { return value > 1ll << 30 || value < -(1ll << 30); }

static void skip(sum *s) {
    while (s->at < s->end && (isspace((unsigned char)*s->at) || *s->at == '\\')) s->at++;
}

static long long atom(sum *s) {
    long long value = 0;
    skip(s);
    if (s->at < s->end && *s->at == '(' && s->depth < MAX_DEPTH) {
        s->at++, s->depth++;
        value = added(s);
        skip(s);
        s->depth--;
        if (s->at < s->end && *s->at == ')')
            s->at++;
        else
            s->bad = true;
        return value;
    }
    while (s->at < s->end && (*s->at == '$' || *s->at == '{' || *s->at == '}')) s->at++;
    const char *word = s->at;
    while (s->at < s->end && is_name(*s->at)) s->at++;
    const size_t n = (size_t)(s->at - word);
    if (s->at < s->end && *s->at == '}') s->at++;
    char *end = NULL;
    const char *text = word;
    if (n > 0 && is_name_start(*word)) {
        const stw_shell_variable *v = find(&s->r->now, word, n);
        text = v != NULL && v->n > 0 ? unmarked(s->r, v->words[0].text) : "";
        if (v != NULL && v->n > 0 && v->words[0].maybe > 0) s->maybe = v->words[0].maybe;
        value = strtoll(text, &end, 10);
        s->bad = s->bad || end == text || *end != '\0';
    } else {
        value = strtoll(text, &end, 10);
        s->bad = s->bad || n == 0 || end != word + n;
    }
    s->bad = s->bad || is_large(value);
    return value;
}

static long long multiplied(sum *s) {
    long long value = atom(s);
    for (skip(s); s->at < s->end && strchr("*/%", *s->at) != NULL && *s->at != '\0'; skip(s)) {
        const char op = *s->at++;
        const long long by = atom(s);
        if (s->bad || (op != '*' && by == 0)) {
            s->bad = true;
            return 0;
        }
        value = op == '*' ? value * by : op == '/' ? value / by : value % by;
        s->bad = is_large(value);
    }
    return value;
}

static long long added(sum *s) {
    long long value = multiplied(s);
    for (skip(s); s->at < s->end && (*s->at == '+' || *s->at == '-') && !s->bad; skip(s)) {
        value = *s->at++ == '+' ? value + multiplied(s) : value - multiplied(s);
        s->bad = s->bad || is_large(value);
    }
    return value;
}

static bool calculate(reader *r, const char *text, size_t length, long long *out, int *maybe) {
    sum s = {.r = r, .at = text, .end = text + length};
    const long long value = added(&s);
    skip(&s);
    if (s.bad || s.at != s.end) return false;
    *maybe = s.maybe;
    *out = value;
    return true;
}

/* ---- words ---- */

/* Text that is read into a word; unquoted values are split into words of `split`. */
typedef struct word {
    stw_text text;
    bool any;       /* also "" */
    bool as_stored; /* words of an array in quotes are expanded where it was set */
    int maybe;      /* the last line of its open parts */
    stw_shell_variable *split;
} word;

static void end_word(reader *r, word *w, int line) {
    const char *text = w->text.data != NULL ? w->text.data : "";
    const int maybe = strchr(text, OPEN) != NULL ? w->maybe : 0;
    if (w->any || is_arguments(r, text))
        add_word(r, w->split,
                 (stw_shell_word){.text = stw_pool_string(r->pool, text), line, maybe});
    stw_text_free(&w->text);
    w->text = (stw_text)STW_TEXT_INIT;
    w->any = false;
}

/* The length of text up to a bracket that closes; 0 if none does. */
static size_t closing(reader *r, const char *at, const char *end, char open, char close) {
    int depth = 0;
    for (const char *c = at; c < end && r->status == STW_STATUS_OK; c++) {
        if (*c == open) depth++;
        if (*c == close && --depth == 0) return (size_t)(c - at);
        if (++r->searched > MAX_SEARCHED)
            fail_many(r, "bytes in brackets that stand in each other or do not close",
                      MAX_SEARCHED);
    }
    return 0;
}

/* The length of $(command) or `command`, whose output is not known; 0: there is none. */
static size_t command_length(reader *r, const char *at, const char *end) {
    size_t n = 0;
    if (at + 1 < end && at[0] == '$' && at[1] == '(') n = closing(r, at + 1, end, '(', ')');
    if (n > 0) return n + 2;
    const char *last = *at == '`' ? memchr(at + 1, '`', (size_t)(end - at - 1)) : NULL;
    return last != NULL ? (size_t)(last - at) + 1 : 0;
}

static void append(reader *r, word *w, const stw_shell_word *from, bool quoted, bool whole) {
    static const char marks[] = {OPEN, CLOSE};
    const char *text = marked(r, from), *end = text + strlen(text);
    bool open = false;
    if (from->maybe > 0) w->maybe = from->maybe;
    if (w->text.length > MAX_TEXT) fail_many(r, "bytes of a word", MAX_TEXT);
    for (; *text != '\0' && r->status == STW_STATUS_OK; text++) {
        const char *value = *text == STW_MARK_DEFAULT ? strchr(text, STW_MARK_VALUE) : NULL;
        const size_t n = value != NULL ? (size_t)(value - text) : command_length(r, text, end);
        const bool literal = *text == LITERAL[0] && text[1] != '\0';
        if (*text == QUOTED[0] && !w->as_stored) continue;
        if (quoted && !w->as_stored && (n > 0 || *text == '$'))
            stw_text_append(&w->text, QUOTED, 1);
        if (literal) {
            stw_text_append(&w->text, text++, 2);
            w->any = true;
        } else if (n > 0) { /* stays one word */
            stw_text_append(&w->text, text, n);
            w->any = true;
            text += n - 1;
        } else if (!quoted && !whole && isspace((unsigned char)*text)) {
            if (open) stw_text_append(&w->text, &marks[1], 1);
            end_word(r, w, r->line);
            if (open) stw_text_append(&w->text, &marks[0], 1);
        } else {
            if (*text == OPEN || *text == CLOSE)
                open = *text == OPEN;
            else if (*text != STW_MARK_ARGUMENTS && *text != STW_MARK_BARE)
                w->any = true;
            stw_text_append(&w->text, text, 1);
        }
    }
}

static void append_variable(reader *r, word *w, const stw_shell_variable *v, bool quoted,
                            bool whole) {
    w->as_stored = quoted && v->array && !whole;
    for (size_t i = 0; i < v->n && r->status == STW_STATUS_OK; i++) {
        if (i > 0 && whole) stw_text_append(&w->text, " ", 1);
        if (i > 0 && !whole) end_word(r, w, r->line);
        append(r, w, &v->words[i], quoted, whole);
        if (quoted && !is_arguments(r, v->words[i].text)) w->any = true;
    }
    w->as_stored = false;
}

static void read_text(reader *r, word *w, const char *text, size_t length, bool quoted, bool whole);

/* Quotes around the whole text go. */
static void read_default(reader *r, word *w, const char *text, size_t n, bool quoted, bool whole) {
    if (n >= 2 && is_quote(text[0]) && text[n - 1] == text[0]) text++, n -= 2, whole = true;
    r->depth++;
    read_text(r, w, text, n, quoted, whole);
    r->depth--;
}

static void append_number(word *w, long long value, bool open) {
    if (open)
        stw_text_printf(&w->text, "%c%lld%c", OPEN, value, CLOSE);
    else
        stw_text_printf(&w->text, "%lld", value);
    w->any = true;
}

/* ${#name[@]}, ${#name} */
static bool read_length(reader *r, word *w, const char *in, size_t n) {
    size_t name = 0;
    while (name < n && is_name(in[name])) name++;
    const stw_shell_variable *v = find(&r->now, in, name);
    const bool list = n == name + 3 && in[name] == '[' && in[name + 2] == ']';
    int open = 0;
    if (v == NULL || (n != name && !list)) return false;
    size_t n_words = v->n;
    for (size_t i = 0; i < v->n; i++) n_words -= is_arguments(r, v->words[i].text);
    const size_t length = list       ? n_words
                          : v->n > 0 ? strlen(unmarked(r, v->words[0].text))
                                     : (size_t)0;
    for (size_t i = 0; i < v->n; i++)
        if (v->words[i].maybe > 0) w->maybe = open = v->words[i].maybe;
    append_number(w, (long long)length, open > 0);
    return true;
}

/* ${name}, ${name:-default}, ${name:+other}, ${name[@]}, ${1:-default}; arguments of the script are
 * not set. */
static bool read_braces(reader *r, word *w, const char *in, size_t n, bool quoted, bool whole) {
    size_t name = 0;
    if (n > 1 && *in == '#') return read_length(r, w, in + 1, n - 1);
    while (name < n && is_name(in[name])) name++;
    const stw_shell_variable *v = find(&r->now, in, name);
    const char *rest = in + name;
    size_t left = n - name;
    if (name == 0) return false;
    if (left >= 3 && rest[0] == '[' && (rest[1] == '@' || rest[1] == '*') && rest[2] == ']')
        rest += 3, left -= 3;
    if (left > 0 && *rest == ':') rest++, left--;
    const bool fallback = left > 0 && (*rest == '-' || *rest == '=');
    const bool has = v != NULL && v->n > 0 && unmarked(r, v->words[0].text)[0] != '\0';
    if (left > 0 && *rest == '+' && v != NULL && r->depth < MAX_DEPTH) {
        if (has) read_default(r, w, rest + 1, left - 1, quoted, whole);
        return true;
    }
    if (left > 0 && !fallback) return false;
    if (v != NULL && (!fallback || has))
        append_variable(r, w, v, quoted, whole);
    else if (fallback && v == NULL && stw_marks_default(in, n, rest + 1, quoted, &w->text))
        w->any = true;
    else if (fallback && r->depth < MAX_DEPTH)
        read_default(r, w, rest + 1, left - 1, quoted, whole);
    else
        return false;
    return true;
}

/* What a dollar sign begins. @return how many characters it takes; 0: it stays as it is */
static size_t read_dollar(reader *r, word *w, const char *at, const char *end, bool quoted,
                          bool whole) {
    const size_t left = (size_t)(end - at);
    if (left < 2) return 0;
    if (is_name_start(at[1])) {
        size_t n = 1;
        while (at + n < end && is_name(at[n])) n++;
        const stw_shell_variable *v = find(&r->now, at + 1, n - 1);
        if (v == NULL) return 0;
        append_variable(r, w, v, quoted, whole);
        return n;
    }
    const char arguments[] = {quoted ? STW_MARK_ARGUMENTS : STW_MARK_BARE};
    if (at[1] == '@' || at[1] == '*') { /* arguments of the script: none */
        stw_text_append(&w->text, arguments, 1);
        return 2;
    }
    if (at[1] == '#') {
        stw_text_append(&w->text, "0", 1);
        w->any = true;
        return 2;
    }
    if (at[1] == '{') {
        const size_t n = closing(r, at + 1, end, '{', '}');
        const bool all = n > 0 && (at[2] == '@' || at[2] == '*');
        if (all) stw_text_append(&w->text, arguments, 1);
        if (all) return n + 2;
        return n > 0 && read_braces(r, w, at + 2, n - 1, quoted, whole) ? n + 2 : 0;
    }
    if (at[1] != '(') return 0;
    const size_t n = closing(r, at + 1, end, '(', ')');
    if (n == 0) return 0;
    const char *in = at + 2;
    size_t length = n - 1;
    if (length > 5 && memcmp(in, "expr ", 5) == 0)
        in += 5, length -= 5;
    else if (length < 2 || *in != '(')
        length = 0;
    long long result = 0;
    int open = 0;
    if (length == 0 || !calculate(r, in, length, &result, &open)) {
        if (quoted) stw_text_append(&w->text, QUOTED, 1);
        stw_text_append(&w->text, at, n + 2); /* as written */
    } else
        append_number(w, result, open > 0);
    if (open > 0) w->maybe = open;
    w->any = true;
    return n + 2;
}

/* Text within double quotes or of a default. */
static void read_text(reader *r, word *w, const char *text, size_t length, bool quoted,
                      bool whole) {
    const char *end = text + length;
    while (text < end && r->status == STW_STATUS_OK) {
        size_t n = *text == '$' ? read_dollar(r, w, text, end, quoted, whole) : 0;
        if (n == 0) {
            const bool escaped =
                *text == '\\' && text + 1 < end && strchr("\"\\$`\n", text[1]) != NULL;
            if (escaped) text++;
            if (*text == '$' || *text == '`')
                stw_text_append(&w->text, escaped ? LITERAL : QUOTED, escaped || quoted ? 1 : 0);
            if (*text != '\n' || text[-1] != '\\') stw_text_append(&w->text, text, 1);
            w->any = true;
            n = 1;
        }
        text += n;
    }
}

/* "$@" and "${name[@]}" are as many words as there are, which may be none. */
static bool is_list(const char *text, size_t n) {
    if (n >= 2 && text[0] == '$' && text[1] == '@') return n == 2;
    if (n < 4 || text[0] != '$' || text[1] != '{') return false;
    return text[2] == '@' || (n > 5 && memcmp(text + n - 4, "[@]}", 4) == 0);
}

static void read_quoted(reader *r, word *w, bool whole) {
    const char quote = *r->at++, *start = r->at;
    for (; r->at < r->end && *r->at != quote && r->status == STW_STATUS_OK; r->at++) {
        const size_t command = quote == '"' ? command_length(r, r->at, r->end) : 0;
        for (size_t i = 1; i < command; i++) /* with quotes of its own */
            if (*r->at++ == '\n') r->line++;
        if (*r->at == '\n') r->line++;
        if (quote == '"' && *r->at == '\\' && r->at + 1 < r->end) {
            r->at++;
            if (*r->at == '\n') r->line++;
        }
    }
    w->any = w->any || quote != '"' || !is_list(start, (size_t)(r->at - start));
    if (quote == '"')
        read_text(r, w, start, (size_t)(r->at - start), true, whole);
    else
        for (const char *c = start; c < r->at; c++) {
            if (*c == '$' || *c == '`') stw_text_append(&w->text, LITERAL, 1);
            stw_text_append(&w->text, c, 1);
        }
    if (r->at < r->end) r->at++;
}

/* One word of the shell becomes none, one or several of `into`. */
static void read_word(reader *r, stw_shell_variable *into, bool whole) {
    word w = {.text = STW_TEXT_INIT, .split = into};
    const int line = r->line;
    while (r->at < r->end && r->status == STW_STATUS_OK) {
        const char c = *r->at;
        if (is_blank(c) || ends_command(c) || c == '<' || c == '>') break;
        if (c == '\\' && r->at + 1 < r->end) {
            r->at++;
            if (*r->at == '\n') {
                r->line++;
            } else {
                if (*r->at == '$' || *r->at == '`') stw_text_append(&w.text, LITERAL, 1);
                stw_text_append(&w.text, r->at, 1);
                w.any = true;
            }
            r->at++;
        } else if (c == '"' || c == '\'') {
            read_quoted(r, &w, whole);
        } else {
            size_t n = c == '$' ? read_dollar(r, &w, r->at, r->end, false, whole) : 0;
            if (n == 0) {
                n = c == '`' ? stw_max_u64(command_length(r, r->at, r->end), 1) : 1;
                stw_text_append(&w.text, r->at, n);
                w.any = true;
            }
            r->at += n;
        }
    }
    if (stw_text_status(&w.text, NULL) != STW_STATUS_OK) fail_memory(r);
    end_word(r, &w, line);
}

/* ---- commands ---- */

/* Blanks, continued lines and comments. */
static void skip_blanks(reader *r, bool lines) {
    while (r->at < r->end) {
        if (is_blank(*r->at) || (lines && *r->at == '\n')) {
            if (*r->at == '\n') r->line++;
            r->at++;
        } else if (*r->at == '\\' && r->at + 1 < r->end && (r->at[1] == '\n' || r->at[1] == '\r')) {
            r->at++;
            if (*r->at == '\r' && r->at + 1 < r->end) r->at++;
            if (*r->at == '\n') r->line++;
            r->at++;
        } else if (*r->at == '#') {
            while (r->at < r->end && *r->at != '\n') r->at++;
        } else {
            return;
        }
    }
}

/* The words of (...). */
static void read_list(reader *r, stw_shell_variable *value) {
    r->at++;
    for (skip_blanks(r, true); r->at < r->end && *r->at != ')' && r->status == STW_STATUS_OK;
         skip_blanks(r, true)) {
        const char *before = r->at;
        read_word(r, value, false);
        if (r->at == before) r->at++; /* an operator in a list */
    }
    if (r->at < r->end) r->at++;
}

/* NAME=value, NAME+=value, NAME=(...) at the start of a command. */
static bool read_assignment(reader *r) {
    const char *name = r->at, *c = name;
    if (c >= r->end || !is_name_start(*c)) return false;
    while (c < r->end && is_name(*c)) c++;
    const size_t length = (size_t)(c - name);
    const bool append = c + 1 < r->end && c[0] == '+' && c[1] == '=';
    if (append) c++;
    if (c >= r->end || *c != '=') return false;
    r->at = c + 1;
    const int line = r->line;
    const bool array = r->at < r->end && *r->at == '(';
    const stw_shell_truth runs = stw_shell_flow_runs(&r->flow);
    const stw_shell_variable *old = append ? find(&r->now, name, length) : NULL;
    stw_shell_variable value = {.name = ""};
    for (size_t i = 0; old != NULL && i < old->n; i++) add_word(r, &value, old->words[i]);
    const size_t before = value.n;
    if (!array)
        read_word(r, &value, true);
    else
        read_list(r, &value);
    for (size_t i = before; runs == STW_SHELL_MAYBE && i < value.n; i++)
        value.words[i] =
            (stw_shell_word){.text = without(r, value.words[i].text, stw_marks_close), line, line};
    if (!array && value.n == 2 && before == 1) { /* text that is appended */
        value.words[0].text = stw_pool_printf(r->pool, "%s%s", marked(r, &value.words[0]),
                                              marked(r, &value.words[1]));
        if (value.words[1].maybe > 0) value.words[0].maybe = value.words[1].maybe;
        value.n = 1;
        if (value.words[0].text == NULL) fail_memory(r);
    }
    value.array = array;
    if (runs != STW_SHELL_NO) assign(r, name, length, value);
    return true;
}

/* <file, >file, 2>&1, and <<end, whose text is skipped at the end of the line. */
static bool read_redirection(reader *r) {
    const char *at = r->at;
    stw_shell_variable file = {.name = ""};
    while (at < r->end && isdigit((unsigned char)*at)) at++;
    if (at == r->end || (*at != '<' && *at != '>')) return false;
    const char *sign = at;
    while (at < r->end && strchr("<>&", *at) != NULL && *at != '\0') at++;
    const bool text = at - sign == 2 && sign[0] == '<' && sign[1] == '<';
    const bool tabs = text && at < r->end && *at == '-';
    r->at = at + tabs;
    skip_blanks(r, false);
    read_word(r, &file, false);
    if (text && file.n > 0 && r->n_here < MAX_HERE)
        r->here[r->n_here++] = (here){file.words[0].text, tabs};
    return true;
}

/* At the beginning of a line: texts of here-documents go by. */
static void skip_here(reader *r) {
    for (int i = 0; i < r->n_here; i++) {
        const size_t n = strlen(r->here[i].end);
        bool ended = false;
        while (r->at < r->end && !ended) {
            const char *line = r->at, *end = memchr(line, '\n', (size_t)(r->end - line));
            r->at = end != NULL ? end + 1 : r->end;
            if (end != NULL) r->line++;
            const char *last = end != NULL ? end : r->end;
            while (r->here[i].tabs && line < last && *line == '\t') line++;
            if (last > line && last[-1] == '\r') last--;
            ended = (size_t)(last - line) == n && memcmp(line, r->here[i].end, n) == 0;
        }
    }
    r->n_here = 0;
}

/* && and the like within [[ ]] are words. */
static bool read_operator(reader *r, stw_shell_variable *words) {
    const char c = *r->at;
    const bool tests = words->n > 0 && strcmp(words->words[0].text, "[[") == 0 &&
                       strcmp(words->words[words->n - 1].text, "]]") != 0;
    if (!tests || c == '\n' || (!ends_command(c) && c != '<' && c != '>')) return false;
    const bool two = (c == '&' || c == '|') && r->at + 1 < r->end && r->at[1] == c;
    add_word(
        r, words,
        (stw_shell_word){.text = stw_pool_printf(r->pool, "%.*s", two ? 2 : 1, r->at), r->line, 0});
    r->at += two ? 2 : 1;
    return true;
}

/* Words at the start of a command that are no part of it: `if`, `export`, -x of these. */
static bool is_before_command(reader *r, const char *text, bool after_prefix) {
    if (stw_shell_flow_keyword(&r->flow, text)) return true;
    if (strcmp(text, "export") == 0 || (after_prefix && strcmp(text, "-x") == 0))
        r->exporting = true;
    return stw_shell_is_prefix(text) || (after_prefix && text[0] == '-');
}

/* Words up to the end of a command. */
static void read_command(reader *r) {
    stw_shell_variable words = {.name = ""};
    bool first = true, prefix = false;
    r->n_saved = 0;
    r->exporting = false;
    for (skip_blanks(r, false); r->at < r->end && r->status == STW_STATUS_OK;
         skip_blanks(r, false)) {
        if (read_operator(r, &words)) continue;
        if (ends_command(*r->at)) break;
        if (read_redirection(r)) continue;
        if (first && read_assignment(r)) continue;
        const size_t before = words.n;
        const char *at = r->at;
        read_word(r, &words, false);
        if (r->at == at) r->at++;
        if (words.n > before && first) {
            first = prefix = is_before_command(r, words.words[before].text, prefix);
            if (first) words.n = before;
        }
    }
    r->now.words = words.words;
    r->now.n_words = 0;
    r->now.rest = NULL;
    for (size_t i = 0; i < words.n; i++) {
        stw_shell_word done = words.words[i];
        const bool arguments = is_arguments(r, done.text);
        finish(r, &done);
        if (arguments)
            r->now.rest = done.source;
        else
            words.words[r->now.n_words++] = done;
    }
}

/* `export NAME`, `unset NAME`, and what NAME=value before a command means for it. */
static void change_variables(reader *r) {
    stw_shell *shell = &r->now;
    const bool unset = shell->n_words > 0 && strcmp(shell->words[0].text, "unset") == 0;
    if (stw_shell_flow_runs(&r->flow) == STW_SHELL_NO) return;
    for (size_t i = 0; (unset || r->exporting) && i < shell->n_words; i++) {
        stw_shell_variable *v = find(shell, shell->words[i].text, strlen(shell->words[i].text));
        if (v != NULL && unset) v->n = 0;
        if (v != NULL && !unset) v->exported = true;
    }
    for (size_t i = 0; shell->n_words > 0 && i < r->n_saved; i++)
        shell->variables[r->saved[i].index].exported = true;
}

static void restore_variables(reader *r) {
    if (r->now.n_words == 0 || r->exporting) return;
    for (size_t i = r->n_saved; i > 0; i--) {
        stw_shell_variable *v = &r->now.variables[r->saved[i - 1].index];
        const char *name = v->name;
        *v = r->saved[i - 1].before;
        v->name = v->n > 0 || v->name[0] != '\0' ? name : "";
    }
}

/* A copy, because later assignments change the list. */
static void keep(reader *r, stw_shell *out) {
    const size_t found = out->n_found + 1;
    stw_shell_variable *copy = stw_pool_array(r->pool, r->now.n_variables + 1, sizeof *copy);
    if (copy == NULL) {
        fail_memory(r);
        return;
    }
    for (size_t i = 0; i < r->now.n_variables; i++) {
        stw_shell_variable *v = &copy[i];
        *v = r->now.variables[i];
        stw_shell_word *words = stw_pool_array(r->pool, v->n + 1, sizeof *words);
        for (size_t k = 0; words != NULL && k < v->n; k++) {
            words[k] = v->words[k];
            finish(r, &words[k]);
        }
        if (words == NULL) fail_memory(r);
        if (words != NULL) v->words = words;
    }
    *out = r->now;
    out->variables = copy;
    out->n_found = found;
}

/* What ends a command, taken. @return as stw_shell_flow_end has it */
static char end_command(reader *r) {
    if (r->at >= r->end || !ends_command(*r->at)) return '\n';
    const char end = *r->at++;
    if (end == '\n') r->line++;
    if (r->at >= r->end || *r->at != end || strchr("&|;", end) == NULL) return end;
    r->at++;
    return end == '&' ? 'A' : end == '|' ? 'O' : 'C';
}

stw_status stw_shell_find(const char *path, const char *text, size_t length,
                          bool (*wanted)(const stw_shell_word *words, size_t n), stw_pool *pool,
                          stw_shell *out, stw_error *err) {
    reader r = {.pool = pool,
                .now = {.pool = pool},
                .at = text,
                .end = text + length,
                .flow.chain = STW_SHELL_YES,
                .line = 1,
                .status = stw_marks_check(path, text, length, err),
                .path = path,
                .err = err};
    *out = (stw_shell){.pool = pool};
    while (r.at < r.end && r.status == STW_STATUS_OK) {
        skip_blanks(&r, true);
        read_command(&r);
        if (r.status != STW_STATUS_OK) break;
        change_variables(&r);
        if (stw_shell_flow_runs(&r.flow) != STW_SHELL_NO && wanted(r.now.words, r.now.n_words))
            keep(&r, out);
        restore_variables(&r);
        const char end = end_command(&r);
        stw_shell_flow_end(&r.flow, r.now.words, r.now.n_words, end);
        stw_shell_flow_define(&r.flow, r.now.words, r.now.n_words, end, text, r.end, &r.at);
        skip_blanks(&r, r.flow.defines);
        if (end == '\n') skip_here(&r);
    }
    return r.status;
}
