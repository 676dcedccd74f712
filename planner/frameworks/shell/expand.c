/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/expand.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

typedef stw_shell_expander expander;

enum { MAX_WORD = 1 << 20, MAX_DEPTH = 48, MAX_BRACES = 4096, MAX_TRIES = 64 };

static const char marks[] = {STW_MARK_OPEN, STW_MARK_CLOSE};

bool stw_shell_is_known(const stw_shell_word *word) {
    const stw_value_kind kind = stw_value_kind_of(word->text);
    return word->maybe == 0 && !word->unknown && !kind.unknown && !kind.open;
}

bool stw_shell_is_several(const stw_shell_word *word) {
    const stw_value_kind kind = stw_value_kind_of(word->text);
    return word->maybe > 0 || (word->unknown && !kind.unknown) ||
           (kind.unknown && strchr(word->text, STW_MARK_BARE) != NULL);
}

void stw_shell_finish(stw_shell_reader *r, stw_shell_word *word) {
    word->unknown = word->unknown || stw_value_kind_of(word->text).unknown;
    word->source = stw_shell_changed(r, word->text, stw_value_source);
    word->at = stw_shell_places_plain(r->pool, word->text, &word->at);
    word->text = stw_shell_plain(r, word->text);
}

/* ---- what is appended ---- */

/* @param place of a byte, or of all as one expansion */
static void put(expander *x, const char *text, size_t length, stw_shell_place place) {
    place.n = (uint32_t)length;
    if (x->text.length + length > MAX_WORD) {
        stw_shell_fail(x->r, "", "found more than 1048576 bytes of a word");
    } else {
        stw_text_append(&x->text, text, length);
        stw_shell_places_add(x->r->pool, &x->places, place);
    }
}

static const stw_shell_place nowhere = {0};

/* The place of what is written from `at` to `end`. */
static stw_shell_place written(const expander *x, const char *at, const char *end) {
    return stw_shell_place_of(x->r->origin, at, end, end > at + 1);
}

/* A character that stands for itself. */
static void put_char(expander *x, char c, bool quoted, stw_shell_place place) {
    if (x->mode == STW_SHELL_MATCH && quoted && !isalnum((unsigned char)c) && c != '\0')
        put(x, "\\", 1, nowhere);
    const bool pattern = c == '*' || c == '?' || c == '[';
    if (x->mode == STW_SHELL_WORDS && !quoted && pattern && x->glob == 0)
        x->glob = 1 + x->text.length;
    put(x, &c, 1, place);
    x->any = true;
}

/* A pattern of files names what is there; we take it that no file is named as a list, a sum or a
 * pattern of layers is. */
static bool names_files(const expander *x, const char *text) {
    if (x->glob == 0 || x->r->state->noglob) return false;
    const char *first = text + x->glob - 1;
    if (*first == '[' && strchr(first, ']') == NULL && strpbrk(first, "*?") == NULL) return false;
    static const char *const others[] = {"--", "-*", "*-"}; /* layers of a model: M-M*-M */
    for (size_t i = 0; i < 3; i++)
        if (strstr(text, others[i]) != NULL) return false;
    return strpbrk(text, "=+:,(){}") == NULL;
}

void stw_shell_end_word(expander *x) {
    const char *text = x->text.data != NULL ? x->text.data : "";
    const bool open = strchr(text, STW_MARK_OPEN) != NULL;
    if (x->any || (*text != '\0' && stw_value_is_arguments(text))) {
        stw_shell_word word = {.text = stw_pool_string(x->r->pool, text),
                               .line = x->line,
                               .maybe = open ? x->maybe : 0,
                               .unknown = names_files(x, text),
                               .at = {x->places.n, x->places.items}};
        stw_shell_list_add(x->r, x->out, word);
        stw_shell_count(x->r, text);
    }
    stw_text_free(&x->text);
    x->text = (stw_text)STW_TEXT_INIT;
    x->places = (stw_shell_place_list){0};
    x->any = false;
    x->glob = 0;
}

const char *stw_shell_separators(stw_shell_reader *r) {
    const stw_shell_variable *v = stw_shell_state_find(r->state, "IFS", 3);
    if (v == NULL || v->unset) return " \t\n";
    if (v->odd || v->n != 1 || !stw_shell_is_known(&v->words[0]))
        stw_shell_poison(r, "IFS is not known");
    return v->n == 1 ? stw_shell_plain(r, v->words[0].text) : "";
}

/* @return does the character split? */
static bool split(expander *x, char c, const char *at, bool open) {
    if (c == '\0' || strchr(at, c) == NULL) return false;
    if (open) put(x, &marks[1], 1, nowhere);
    const bool white = c == ' ' || c == '\t' || c == '\n';
    const bool ended = x->any;
    if (!white && !ended && !x->spaced) x->any = true; /* an empty word */
    stw_shell_end_word(x);
    x->spaced = white && (ended || x->spaced);
    if (open) put(x, &marks[0], 1, nowhere);
    return true;
}

/* A value that gives one argument stands where the expansion does; arguments, such as --a 1, b=2 or
 * those of a list, where they are written. */
static bool is_one_value(const expander *x, const char *text) {
    return x->unit.end > 0 && *text != '-' && strpbrk(text, " \t\n=") == NULL;
}

void stw_shell_append(expander *x, const stw_shell_word *from, bool quoted) {
    const bool one = is_one_value(x, from->text);
    const char *text = from->text, *start = text, *end = text + strlen(text);
    const char *at = x->mode == STW_SHELL_WORDS && !quoted ? stw_shell_separators(x->r) : "";
    bool open = false;
    if (from->maybe > 0) x->maybe = from->maybe;
    if (from->maybe > 0 && strchr(text, STW_MARK_OPEN) == NULL && *text != '\0') {
        text = stw_shell_opened(x->r, text);
        end = text + strlen(text);
        start = NULL;
    }
    if (from->unknown && !stw_value_kind_of(text).unknown) { /* a pattern of files */
        stw_shell_append_unknown(x, text, (size_t)(end - text), quoted);
        return;
    }
    while (text < end && x->r->status == STW_STATUS_OK) {
        const bool expansion = *text == STW_MARK_BARE || *text == STW_MARK_QUOTED;
        const size_t n = expansion ? stw_value_expansion(text, end) : 1;
        const stw_shell_place place =
            one             ? x->unit
            : start != NULL ? stw_shell_places_at(&from->at, (size_t)(text - start) + expansion)
                            : nowhere;
        if (expansion) {
            const char mark = x->as_stored ? *text : quoted ? STW_MARK_QUOTED : STW_MARK_BARE;
            put(x, &mark, 1, place);
            put(x, text + 1, n - 1, place.unit ? place : nowhere);
            const char *value = memchr(text, STW_MARK_VALUE, n);
            x->any = x->any || value == NULL || value + 2 < text + n;
        } else if (*text == STW_MARK_OPEN || *text == STW_MARK_CLOSE) {
            open = *text == STW_MARK_OPEN;
            put(x, text, 1, nowhere);
        } else if (!split(x, *text, at, open)) {
            put_char(x, *text, quoted || x->as_stored, place);
            x->spaced = false;
        }
        text += n;
    }
}

/* A mark, and after it the expansion as it is written. @return false: out of memory, which is told
 */
static bool put_marked(expander *x, const char *text, size_t length, bool quoted) {
    const char begin = quoted ? STW_MARK_QUOTED : STW_MARK_BARE;
    const char *plain = stw_pool_printf(x->r->pool, "%.*s", (int)length, text);
    if (plain == NULL) {
        stw_shell_fail_memory(x->r);
        return false;
    }
    plain = stw_shell_plain(x->r, plain);
    put(x, &begin, 1, x->unit);
    put(x, plain, strlen(plain), x->unit);
    return true;
}

void stw_shell_append_unknown(expander *x, const char *text, size_t length, bool quoted) {
    const char end = STW_MARK_END;
    if (!put_marked(x, text, length, quoted)) return;
    put(x, &end, 1, x->unit);
    x->any = true;
}

void stw_shell_append_assumed(expander *x, stw_shell_raw source, const char *value, bool quoted) {
    const char middle = STW_MARK_VALUE, end = STW_MARK_END;
    if (!put_marked(x, source.text, source.length, quoted)) return;
    put(x, &middle, 1, x->unit);
    put(x, value, strlen(value), x->unit);
    put(x, &end, 1, x->unit);
    x->any = x->any || *value != '\0';
}

void stw_shell_append_odd(expander *x, const char *name, size_t length, bool quoted) {
    const stw_shell_variable *v = stw_shell_state_find(x->r->state, name, length);
    const char *text = stw_pool_printf(x->r->pool, "${%.*s:?set in line %d}", (int)length, name,
                                       v != NULL && v->line > 0 ? v->line : x->r->line);
    if (text == NULL)
        stw_shell_fail_memory(x->r);
    else
        stw_shell_append_unknown(x, text, strlen(text), quoted);
}

/* ---- dollar signs ---- */

static void append_sum(expander *x, const char *at, const char *in, size_t length, size_t all,
                       bool quoted) {
    const stw_shell_sum sum = stw_shell_sum_of(x->r, (stw_shell_raw){in, length, x->line});
    stw_shell_check_sum(x->r, &sum);
    if (!sum.known) {
        stw_shell_append_unknown(x, at, all, quoted);
        return;
    }
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)sum.value);
    const stw_shell_word word = {.text = digits, .maybe = sum.maybe};
    stw_shell_append(x, &word, quoted);
    x->any = true;
}

stw_shell_sum stw_shell_sum_of(stw_shell_reader *r, stw_shell_raw raw) {
    const stw_shell_word word = stw_shell_expand(r, raw, STW_SHELL_DOUBLE);
    if (stw_value_kind_of(word.text).unknown) {
        (void)stw_shell_calculate(r, word.text); /* forgets what it could assign */
        return (stw_shell_sum){0};
    }
    stw_shell_sum sum = stw_shell_calculate(r, stw_shell_plain(r, word.text));
    if (word.maybe > 0) sum.maybe = word.maybe;
    return sum;
}

void stw_shell_check_sum(stw_shell_reader *r, const stw_shell_sum *sum) {
    if (sum->error)
        stw_shell_poison(r, "arithmetic with a fraction, a wrong digit or a division by 0");
}

static void append_command(expander *x, const char *at, size_t length, bool quoted) {
    const bool old = *at == '`';
    int maybe = 0;
    const char *output = x->r->output(x->r, at + (old ? 1 : 2), length - (old ? 2 : 3), &maybe);
    x->r->substituted = true;
    if (output == NULL) {
        stw_shell_append_unknown(x, at, length, quoted);
        return;
    }
    const stw_shell_word word = {.text = output, .maybe = maybe};
    stw_shell_append(x, &word, quoted);
}

/* $'...' */
static void append_escaped(expander *x, const char *at, const char *end) {
    static const char codes[] = "abefnrtv", values[] = "\a\b\x1b\f\n\r\t\v";
    for (; at < end; at++) {
        const char *code =
            *at == '\\' && at + 1 < end && at[1] != '\0' ? strchr(codes, at[1]) : NULL;
        if (*at != '\\' || at + 1 >= end) {
            put_char(x, *at, true, written(x, at, at + 1));
            continue;
        }
        at++;
        const stw_shell_place both = written(x, at - 1, at + 1);
        if (code != NULL && values[code - codes] != 0)
            put_char(x, values[code - codes], true, both);
        else if (strchr("\\'\"?", *at) != NULL)
            put_char(x, *at, true, both);
        else
            stw_shell_poison(x->r, "an escape in $'...'");
    }
    x->any = true;
}

/* "$@", ${a[*]}: each of its words has a place of its own. */
static bool is_list(const char *at, const char *end) {
    const size_t n = (size_t)(end - at);
    if (n > 1 && (at[1] == '@' || at[1] == '*')) return true;
    if (n > 2 && at[1] == '{' && (at[2] == '@' || at[2] == '*')) return true;
    for (; at + 2 < end; at++)
        if (memcmp(at, "[@]", 3) == 0 || memcmp(at, "[*]", 3) == 0) return true;
    return false;
}

static const char *read_dollar(expander *x, const char *at, const char *last, const char *end,
                               bool quoted);

/* @return behind what a dollar sign or grave accent begins; `at`: nothing */
static const char *dollar(expander *x, const char *at, const char *end, bool quoted) {
    const stw_shell_place outer = x->unit;
    const char *last = stw_scan_part(at, end, quoted, x->depth);
    const size_t name = at + 1 < end ? stw_scan_name(at + 1, end) : 0;
    const bool braces =
        last != NULL && last > at + 1 && strchr("{([`", at[1 - (*at == '`')]) != NULL;
    const char *behind = braces ? last : at + 1 + (name > 0 ? name : 1);
    x->unit = behind <= end && !is_list(at, behind) ? written(x, at, behind) : nowhere;
    const char *out = read_dollar(x, at, last, end, quoted);
    x->unit = outer;
    return out;
}

static const char *read_dollar(expander *x, const char *at, const char *last, const char *end,
                               bool quoted) {
    const char next = at + 1 < end ? at[1] : '\0';
    if (last == NULL) { /* of a text that was made: it stands for itself */
        stw_shell_poison(x->r, "brackets or quotes that do not close");
        return at;
    }
    if (*at == '`') {
        append_command(x, at, (size_t)(last - at), quoted);
        return last;
    }
    if (next == '\'' && !quoted) {
        append_escaped(x, at + 2, last - 1);
        return last;
    }
    if (next == '"' && !quoted) return at + 1;
    const char *bracket = next == '[' ? memchr(at, ']', (size_t)(end - at)) : NULL;
    if (bracket != NULL) { /* an old form of $((...)) */
        const size_t n = (size_t)(bracket - at) + 1;
        append_sum(x, at, at + 2, n - 3, n, quoted);
        return at + n;
    }
    if (next == '{') {
        x->r->expand_parameter(x, at + 2, (size_t)(last - at) - 3, quoted);
        return last;
    }
    if (next == '(' && at + 2 < end && at[2] == '(' && last - at >= 5 && last[-2] == ')' &&
        stw_scan_brackets(at + 2, end, x->depth) == last - 1) {
        append_sum(x, at, at + 3, (size_t)(last - at) - 5, (size_t)(last - at), quoted);
        return last;
    }
    if (next == '(') {
        append_command(x, at, (size_t)(last - at), quoted);
        return last;
    }
    size_t n = stw_scan_name(at + 1, end);
    if (n == 0 && next != '\0' && strchr("0123456789@*#?$!-", next) != NULL) n = 1;
    if (n == 0) return at;
    x->r->expand_name(x, at + 1, n, quoted);
    return at + 1 + n;
}

/* ---- text ---- */

/* "$@" and "${name[@]}" alone are as many words as there are, which may be none. */
static bool is_only_list(const char *at, const char *end) {
    const size_t n = (size_t)(end - at);
    if (n == 2 && at[0] == '$' && at[1] == '@') return true;
    if (n < 4 || at[0] != '$' || at[1] != '{' || end[-1] != '}') return false;
    if (memchr(at + 1, '$', n - 1) != NULL) return false;
    const char *index = memchr(at, '[', n);
    return at[2] == '@' || (index != NULL && end - index > 3 && memcmp(index, "[@]", 3) == 0);
}

static void double_quotes(expander *x, const char *at, const char *end) {
    x->any = x->any || !is_only_list(at, end);
    stw_shell_expand_text(x, at, end, true);
}

static bool is_tilde(const expander *x, const char *at, const char *start, const char *end) {
    const bool begins = at == start || (x->mode == STW_SHELL_VALUE && (at[-1] == ':'));
    return *at == '~' && begins && (at + 1 == end || at[1] == '/' || at[1] == ':');
}

/* A character with its backslash. @return behind it */
static const char *backslash(expander *x, const char *at, const char *end, bool quoted) {
    const char next = at + 1 < end ? at[1] : '\0';
    if (at + 1 == end) {
        put_char(x, '\\', true, written(x, at, end));
        return end;
    }
    if (next == '\n') return at + 2;
    if (next == '\r' && at + 2 < end && at[2] == '\n') return at + 3;
    if (quoted && strchr(x->mode == STW_SHELL_INPUT ? "\\$`" : "\"\\$`", next) == NULL) {
        put_char(x, '\\', true, written(x, at, at + 1));
        return at + 1;
    }
    put_char(x, next, true, written(x, at, at + 2));
    return at + 2;
}

void stw_shell_expand_text(expander *x, const char *at, const char *end, bool quoted) {
    const char *start = at;
    if (++x->depth > MAX_DEPTH) {
        stw_shell_fail(x->r, "", "found more than 48 expansions in each other");
        end = at;
    }
    while (at < end && x->r->status == STW_STATUS_OK) {
        const char c = *at;
        if (c == STW_MARK_BARE || c == STW_MARK_QUOTED) { /* of a text that was made */
            const size_t n = stw_value_expansion(at, end);
            put(x, at, n, written(x, at, at + n));
            x->any = true;
            at += n;
        } else if (c == STW_MARK_OPEN || c == STW_MARK_CLOSE) {
            put(x, at++, 1, nowhere);
            x->maybe = x->line;
        } else if (c == '\\') {
            at = backslash(x, at, end, quoted);
        } else if (c == '\'' && !quoted) {
            const char *last = memchr(at + 1, '\'', (size_t)(end - at - 1));
            if (last == NULL) last = end;
            for (at++; at < last; at++) put_char(x, *at, true, written(x, at, at + 1));
            at += at < end;
            x->any = true;
        } else if (c == '"' && !quoted) {
            const char *last = stw_scan_part(at, end, false, 0);
            if (last == NULL) last = end;
            double_quotes(x, at + 1, last - (last > at + 1));
            at = last;
        } else if (c == '"' && x->mode != STW_SHELL_INPUT) { /* within ${name:-"..."} */
            at++;
            x->any = true;
        } else if (c == '$' || c == '`') {
            const char *last = dollar(x, at, end, quoted);
            if (last == at) put_char(x, *last++, quoted, written(x, at, at + 1));
            at = last;
        } else if (c == '<' && !quoted && at + 1 < end && at[1] != '(') { /* to be filled in */
            stw_shell_may_end(x->r); /* bash knows no such command */
            stw_shell_append_unknown(x, at, (size_t)(end - at), false);
            at = end;
        } else if ((c == '<' || c == '>') && at + 1 < end && at[1] == '(' && !quoted) {
            const char *last = stw_scan_part(at, end, false, 0);
            if (last == NULL) last = end;
            stw_shell_append_unknown(x, at, (size_t)(last - at), false);
            at = last;
        } else if (!quoted && is_tilde(x, at, start, end)) {
            stw_shell_append_unknown(x, "$HOME", 5, false);
            at++;
        } else {
            if (quoted || !x->splits || !split(x, c, stw_shell_separators(x->r), false))
                put_char(x, c, quoted, written(x, at, at + 1));
            at++;
        }
    }
    x->depth--;
}

void stw_shell_expand_inner(stw_shell_expander *x, const char *at, const char *end, bool quoted) {
    const bool before = x->splits;
    x->splits = x->mode == STW_SHELL_WORDS && !quoted;
    stw_shell_expand_text(x, at, end, quoted);
    x->splits = before;
}

stw_shell_word stw_shell_expand(stw_shell_reader *r, stw_shell_raw raw, stw_shell_mode mode) {
    expander x = {.r = r, .mode = mode, .text = STW_TEXT_INIT, .line = raw.line};
    stw_shell_expand_text(&x, raw.text, raw.text + raw.length,
                          mode == STW_SHELL_DOUBLE || mode == STW_SHELL_INPUT);
    const char *text = stw_pool_string(r->pool, x.text.data != NULL ? x.text.data : "");
    if (text == NULL || x.text.failed) stw_shell_fail_memory(r);
    stw_text_free(&x.text);
    if (text == NULL) text = "";
    const stw_value_kind kind = stw_value_kind_of(text);
    stw_shell_count(r, text);
    return (stw_shell_word){.text = text,
                            .line = raw.line,
                            .maybe = kind.open ? x.maybe : 0,
                            .unknown = kind.unknown,
                            .at = {x.places.n, x.places.items}};
}

/* ---- braces ---- */

typedef struct braces {
    const char *open, *close;
    bool range;
} braces;

/* The first { } with a comma or a range in it. */
static bool find_braces(const char *text, const char *end, braces *out) {
    int tries = 0;
    for (const char *c = text; c != NULL && c < end; c = stw_scan_part(c, end, false, 0)) {
        if (*c != '{' || ++tries > MAX_TRIES) continue;
        int depth = 0;
        bool comma = false, dots = false;
        const char *at = c;
        for (; at != NULL && at < end; at = stw_scan_part(at, end, false, 0)) {
            if (*at == '{') depth++;
            if (*at == '}' && --depth == 0) break;
            comma = comma || (*at == ',' && depth == 1);
            dots = dots || (at + 1 < end && at[0] == '.' && at[1] == '.');
        }
        *out = (braces){c, at, !comma};
        if (at != NULL && at < end && (comma || dots)) return true;
    }
    return false;
}

typedef struct brace_job {
    stw_shell_reader *r;
    stw_shell_list *out;
    int line, left; /* words that may still come */
} brace_job;

static void brace_words(brace_job *job, const char *text);

static void brace_part(brace_job *job, const char *text, const braces *b, const char *part,
                       size_t length) {
    const char *word = stw_pool_printf(job->r->pool, "%.*s%.*s%s", (int)(b->open - text), text,
                                       (int)length, part, b->close + 1);
    if (word == NULL)
        stw_shell_fail_memory(job->r);
    else
        brace_words(job, word);
}

/* {1..8}, {8..1}, {01..10}: those with zeros or letters are not read. @return is it a range? */
static bool brace_range(brace_job *job, const char *text, const braces *b) {
    char *end;
    const long first = strtol(b->open + 1, &end, 10);
    const char *second = end + 2;
    const bool starts = end > b->open + 1 && end[0] == '.' && end[1] == '.';
    const long last = starts ? strtol(second, &end, 10) : 0;
    const bool numbers = starts && end == b->close && end > second;
    const bool letters = b->close - b->open == 5 && isalpha((unsigned char)b->open[1]) &&
                         isalpha((unsigned char)b->open[4]);
    const bool zeros = numbers && ((b->open[1] == '0' && b->open[2] != '.') ||
                                   (second[0] == '0' && second + 1 < b->close));
    const bool stepped = starts && end > second && end[0] == '.' && end[1] == '.';
    if (letters || zeros || stepped) stw_shell_poison(job->r, "a range in { }");
    if (!numbers || zeros) return letters || zeros || stepped;
    for (long i = first; job->r->status == STW_STATUS_OK; i += first <= last ? 1 : -1) {
        char digits[32];
        const int n = snprintf(digits, sizeof digits, "%ld", i);
        brace_part(job, text, b, digits, (size_t)n);
        if (i == last) break;
    }
    return true;
}

/* The word with one of each part. */
static void brace_words(brace_job *job, const char *text) {
    const char *end = text + strlen(text);
    braces b;
    if (--job->left < 0) stw_shell_fail(job->r, "", "found more than 4096 words of { }");
    if (job->r->status != STW_STATUS_OK) return;
    const bool found = find_braces(text, end, &b);
    if (found && b.range && brace_range(job, text, &b)) return;
    if (!found || b.range) {
        expander x = {.r = job->r,
                      .mode = STW_SHELL_WORDS,
                      .out = job->out,
                      .text = STW_TEXT_INIT,
                      .line = job->line};
        stw_shell_expand_text(&x, text, end, false);
        if (x.text.failed) stw_shell_fail_memory(job->r);
        stw_shell_end_word(&x);
        return;
    }
    const char *part = b.open + 1;
    int depth = 0;
    for (const char *c = part; c != NULL && c <= b.close; c = stw_scan_part(c, end, false, 0)) {
        if ((*c == ',' && depth == 0) || c == b.close) {
            brace_part(job, text, &b, part, (size_t)(c - part));
            part = c + 1;
        }
        depth += (*c == '{') - (*c == '}');
    }
}

bool stw_shell_has_braces(stw_shell_raw raw) {
    const size_t n = stw_scan_assignment(raw.text, raw.text + raw.length);
    braces b;
    if (n < raw.length && raw.text[n] == '(') return false;
    return find_braces(raw.text, raw.text + raw.length, &b);
}

void stw_shell_expand_words(stw_shell_reader *r, stw_shell_raw raw, stw_shell_list *out) {
    const char *text = stw_pool_printf(r->pool, "%.*s", (int)raw.length, raw.text);
    brace_job job = {.r = r, .out = out, .line = raw.line, .left = MAX_BRACES};
    const struct stw_shell_origin copy = {
        .text = text, .length = raw.length, .copy_of = raw.text, .outer = r->origin};
    if (r->origin != NULL) r->origin = &copy;
    if (text == NULL)
        stw_shell_fail_memory(r);
    else
        brace_words(&job, text);
    r->origin = copy.outer;
}
