/* SPDX-License-Identifier: Apache-2.0 */
/* $name and ${...}. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/pattern.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

typedef stw_shell_expander expander;

/* What stands between braces, or after a dollar sign. */
typedef struct parameter {
    const char *in; /* between the braces */
    size_t n, name; /* characters of it; of the name */
    const char *op; /* behind name and index */
    const char *end;
    const stw_shell_word *words;
    size_t n_words;
    bool list, star;
    bool scalar; /* no array: "${name[@]}" is a word */
    bool absent; /* the environment or the script's arguments may have it */
    bool odd;
    bool braces, quoted;
} parameter;

static unsigned long number_of(const parameter *p) {
    unsigned long k = 0;
    for (size_t i = 0; i < p->name && k < 100000; i++) k = 10 * k + (unsigned long)(p->in[i] - '0');
    return k;
}

static bool is_number(const parameter *p) { return isdigit((unsigned char)p->in[0]); }

/* As it is written, with the number that an argument of the script has. */
static stw_shell_raw source_of(expander *x, const parameter *p, const char *rest, size_t n) {
    const stw_shell_state *s = x->r->state;
    const bool shifted = s->script_arguments && s->shifted > 0;
    const char *name = stw_pool_printf(x->r->pool, "%.*s", (int)p->name, p->in), *text = NULL;
    if (shifted && is_number(p) && name != NULL)
        name = stw_pool_printf(x->r->pool, "%lu", number_of(p) + s->shifted);
    if (name != NULL && shifted && (p->in[0] == '@' || p->in[0] == '*'))
        text = stw_pool_printf(x->r->pool, "${%s:%zu}", name, s->shifted + 1);
    else if (name != NULL)
        text = stw_pool_printf(
            x->r->pool, p->braces || name[0] == '\0' || strlen(name) > 1 ? "${%s%.*s}" : "$%s%.*s",
            name, (int)n, rest);
    if (text != NULL && !p->braces && !shifted) text = stw_pool_printf(x->r->pool, "$%s", name);
    if (text == NULL) stw_shell_fail_memory(x->r);
    return (stw_shell_raw){text != NULL ? text : "", text != NULL ? strlen(text) : 0, x->line};
}

static void append_unknown(expander *x, const parameter *p) {
    const char *rest = p->in + p->name;
    const size_t n = p->n - p->name;
    if (x->r->calls > 0 && n > 0 && memchr(rest, '$', n) != NULL) { /* of local variables */
        stw_shell_append_odd(x, p->in, p->name, p->quoted);
        return;
    }
    const stw_shell_raw raw = source_of(x, p, rest, n);
    stw_shell_append_unknown(x, raw.text, raw.length, p->quoted);
}

/* ---- which one it is ---- */

static void find_argument(expander *x, parameter *p) {
    const stw_shell_state *s = x->r->state;
    const unsigned long k = number_of(p);
    p->odd = s->odd_arguments && k > 0;
    p->absent = s->script_arguments || k == 0;
    if (p->absent || p->odd || k > s->n_arguments) return;
    for (size_t i = 0; i < k; i++) p->odd = p->odd || stw_value_is_arguments(s->arguments[i].text);
    p->words = &s->arguments[k - 1];
    p->n_words = 1;
}

/* A number between brackets, or @ or *. */
static void find_element(expander *x, parameter *p, const char *index, size_t n) {
    const bool all = n == 1 && (*index == '@' || *index == '*');
    p->list = all;
    p->star = all && *index == '*';
    if (all || p->absent || p->odd) return;
    const stw_shell_sum at = stw_shell_sum_of(x->r, (stw_shell_raw){index, n, x->line});
    stw_shell_check_sum(x->r, &at);
    const int64_t i = at.value < 0 ? at.value + (int64_t)p->n_words : at.value;
    p->odd = !at.known || at.maybe > 0 || i < 0;
    for (size_t k = 0; k < p->n_words; k++) /* places of words are known up to there */
        p->odd = p->odd || (at.value < 0 && p->words[k].maybe > 0) ||
                 ((int64_t)k <= i && (p->words[k].maybe > 0 || !stw_shell_is_known(&p->words[k])) &&
                  (int64_t)k < i);
    const bool is = !p->odd && (uint64_t)i < p->n_words;
    p->words = is ? p->words + i : NULL;
    p->n_words = is;
}

static bool find_name(expander *x, parameter *p) {
    const stw_shell_state *s = x->r->state;
    const char *c = p->in;
    p->name = stw_scan_name(c, c + p->n);
    if (p->name == 0 && p->n > 0 && isdigit((unsigned char)*c))
        while (p->name < p->n && isdigit((unsigned char)c[p->name])) p->name++;
    if (p->name == 0 && p->n > 0 && strchr("@*#?$!-", *c) != NULL) p->name = 1;
    p->end = p->in + p->n;
    p->op = p->in + p->name;
    if (p->name == 0) return false;
    if (is_number(p)) {
        find_argument(x, p);
    } else if (*c == '@' || *c == '*') {
        p->list = true;
        p->star = *c == '*';
        p->odd = s->odd_arguments;
        p->absent = s->script_arguments;
        p->words = s->arguments;
        p->n_words = s->n_arguments;
    } else if (stw_scan_is_name_start(*c)) {
        const stw_shell_variable *v = stw_shell_state_find(s, c, p->name);
        const bool own = p->name == 1 && *c == '_';
        p->absent = v == NULL || own;
        p->scalar = v != NULL && !v->array;
        p->odd = v != NULL && v->odd;
        if (v != NULL && !v->odd && !v->unset) p->words = v->words;
        if (v != NULL && !v->odd && !v->unset) p->n_words = v->n;
        const bool all = p->op + 2 < p->end && *p->op == '[' && strchr("@*", p->op[1]) != NULL;
        for (size_t i = 0; i < p->n_words && v->array && !all; i++) /* which place has a word? */
            p->odd = p->odd || stw_value_is_arguments(p->words[i].text);
        if (p->op < p->end && *p->op == '[') {
            const char *last = p->op;
            while (last != NULL && last < p->end && *last != ']')
                last = stw_scan_part(last, p->end, false, 0);
            if (last == NULL || last >= p->end) return false;
            find_element(x, p, p->op + 1, (size_t)(last - p->op) - 1);
            p->op = last + 1;
        } else if (p->n_words > 1) {
            p->n_words = 1; /* $array is its first word */
        }
    } else {
        p->absent = true;
    }
    return true;
}

/* ---- values ---- */

static void append_text(expander *x, const parameter *p, const char *text, int maybe) {
    const stw_shell_word word = {.text = text, .line = x->line, .maybe = maybe};
    stw_shell_append(x, &word, p->quoted);
}

/* $# and $? */
static void append_own(expander *x, const parameter *p) {
    const stw_shell_state *s = x->r->state;
    size_t n = 0;
    for (size_t i = 0; i < s->n_arguments; i++) n += !stw_value_is_arguments(s->arguments[i].text);
    char digits[32];
    snprintf(digits, sizeof digits, "%zu", n);
    const bool count =
        p->in[0] == '#' && !s->odd_arguments && !(s->script_arguments && x->r->arguments_unknown);
    const bool status = p->in[0] == '?' && s->code >= 0;
    if (status) snprintf(digits, sizeof digits, "%d", s->code);
    if (count || status)
        append_text(x, p, digits, 0);
    else
        append_unknown(x, p);
}

/* The words of a list, or the one word. */
static void append_words(expander *x, const parameter *p, const stw_shell_word *words, size_t n) {
    const bool apart = p->list && x->mode == STW_SHELL_WORDS && !(p->star && p->quoted);
    const stw_shell_variable *ifs = stw_shell_state_find(x->r->state, "IFS", 3);
    if (p->star && !apart && ifs != NULL && !ifs->unset && n > 1)
        stw_shell_poison(x->r, "a list that IFS joins");
    bool any = false;
    for (size_t i = 0; i < n && x->r->status == STW_STATUS_OK; i++) {
        if (!apart && p->list && !p->scalar && stw_value_is_arguments(words[i].text)) continue;
        if (i > 0 && apart) stw_shell_end_word(x);
        if (any && !apart) append_text(x, &(parameter){.quoted = true}, " ", 0);
        any = true;
        x->as_stored = p->quoted && p->list && apart && !p->scalar;
        stw_shell_append(x, &words[i], p->quoted);
        x->as_stored = false;
        x->any = x->any || (p->quoted && (p->scalar || !stw_value_is_arguments(words[i].text)));
    }
}

/* $@ of the script; as a value it is one text, as $* is. */
static void append_arguments(expander *x, const parameter *p) {
    parameter all = *p;
    if (x->mode == STW_SHELL_VALUE) all.in = "*";
    const stw_shell_raw source = source_of(x, &all, p->op, (size_t)(p->end - p->op));
    stw_shell_append_assumed(x, source, "", p->quoted);
}

static void append_plain(expander *x, const parameter *p) {
    const bool own = p->name == 1 && strchr("#?", p->in[0]) != NULL;
    const bool missing = !own && !p->odd && !p->absent && !p->list && p->n_words == 0;
    if (missing && x->r->state->nounset != STW_SHELL_NO)
        stw_shell_poison(x->r, "a variable without a value under set -u");
    if (own)
        append_own(x, p);
    else if (p->odd)
        stw_shell_append_odd(x, p->in, p->name, p->quoted);
    else if (p->absent && p->list && (p->in[0] == '@' || p->in[0] == '*'))
        append_arguments(x, p);
    else if (p->absent)
        append_unknown(x, p);
    else
        append_words(x, p, p->words, p->n_words);
}

void stw_shell_expand_name(expander *x, const char *name, size_t n, bool quoted) {
    parameter p = {.in = name, .n = n, .quoted = quoted};
    if (find_name(x, &p)) append_plain(x, &p);
}

/* ---- defaults ---- */

/* Has it a value that is not empty? */
static stw_shell_truth is_set(const parameter *p, bool colon) {
    stw_shell_truth any = STW_SHELL_NO;
    if (p->odd) return STW_SHELL_MAYBE;
    if (!colon && !p->list) return p->n_words > 0 ? STW_SHELL_YES : STW_SHELL_NO;
    for (size_t i = 0; i < p->n_words; i++) {
        const stw_value_kind kind = stw_value_kind_of(p->words[i].text);
        const bool full = kind.literal || kind.values;
        const stw_shell_truth one = p->words[i].maybe == 0 && full ? STW_SHELL_YES
                                    : kind.open || kind.unknown || (full && p->words[i].maybe)
                                        ? STW_SHELL_MAYBE
                                        : STW_SHELL_NO;
        if (one > any) any = one;
    }
    return any;
}

/* The value is one expansion of a name or an argument, such as $1. */
static bool is_single(const parameter *p) {
    const char *text = p->n_words == 1 ? p->words[0].text : "";
    const size_t n = strlen(text);
    if (n < 4 || (text[0] != STW_MARK_BARE && text[0] != STW_MARK_QUOTED) || text[1] != '$' ||
        stw_value_expansion(text, text + n) != n)
        return false;
    for (size_t i = 2; i + 1 < n; i++)
        if (!stw_scan_is_name(text[i])) return false;
    return true;
}

/* Is it empty unless the environment or the script's arguments set something? */
static bool is_hook(const parameter *p) {
    const stw_value_kind kind = stw_value_kind_of(p->n_words == 1 ? p->words[0].text : "");
    return !p->list && kind.assumed && !kind.unknown && !kind.values && !kind.literal && !kind.open;
}

/* A default of what nothing sets: what the environment has goes before it. */
static void append_default(expander *x, const parameter *p, const char *rest, const char *name,
                           size_t name_n) {
    const stw_shell_raw raw = {rest, (size_t)(p->end - rest), x->line};
    const stw_shell_word word =
        stw_shell_expand(x->r, raw, p->quoted ? STW_SHELL_DOUBLE : STW_SHELL_VALUE);
    const int changed = x->r->state->changed;
    const char *text = stw_shell_plain(x->r, word.text);
    const bool local = x->r->calls > 0 && memchr(raw.text, '$', raw.length) != NULL;
    const bool splits = x->mode == STW_SHELL_WORDS && !p->quoted &&
                        strpbrk(text, stw_shell_separators(x->r)) != NULL;
    const bool plain = stw_shell_is_known(&word) && !splits &&
                       strpbrk(text, " \t\n*?[\\'\"") == NULL && !local &&
                       x->mode != STW_SHELL_MATCH;
    if (changed > 0) {
        append_text(x, p, stw_shell_opened(x->r, word.text), changed);
    } else if (plain) {
        const parameter named = {.in = name, .n = name_n, .name = name_n, .braces = true};
        const stw_shell_raw source = source_of(x, &named, p->op, (size_t)(p->end - p->op));
        stw_shell_append_assumed(x, source, text, p->quoted);
    } else {
        stw_shell_expand_inner(x, rest, p->end, p->quoted);
    }
}

static void assign_default(expander *x, const parameter *p, const char *rest) {
    const stw_shell_raw raw = {rest, (size_t)(p->end - rest), x->line};
    stw_shell_list list = {0};
    stw_shell_word word = stw_shell_expand(x->r, raw, STW_SHELL_VALUE);
    if (p->list || !stw_scan_is_name_start(p->in[0])) {
        stw_shell_poison(x->r, "a default that is assigned to no name");
        return;
    }
    if (p->absent) {
        expander inner = {
            .r = x->r, .mode = STW_SHELL_VALUE, .text = STW_TEXT_INIT, .line = x->line};
        append_default(&inner, p, rest, p->in, p->name);
        word.text = stw_pool_string(x->r->pool, inner.text.data != NULL ? inner.text.data : "");
        word.maybe = inner.maybe;
        stw_text_free(&inner.text);
    }
    stw_shell_list_add(x->r, &list, word);
    stw_shell_state_assign(x->r, p->in, p->name,
                           (stw_shell_variable){.n = list.n, .words = list.items});
    if (list.n > 0) stw_shell_append(x, &list.items[0], p->quoted);
}

/* What bash has a value for, whatever the environment has. */
static bool is_bash(const parameter *p) {
    static const char *const names[] = {
        "PATH",        "HOME",         "PWD",           "IFS",
        "OPTIND",      "OPTERR",       "PS4",           "PPID",
        "UID",         "EUID",         "GROUPS",        "RANDOM",
        "SRANDOM",     "SECONDS",      "LINENO",        "EPOCHREALTIME",
        "HOSTNAME",    "BASH",         "EPOCHSECONDS",  "BASHOPTS",
        "BASHPID",     "BASH_VERSION", "BASH_SOURCE",   "HOSTTYPE",
        "BASH_LINENO", "BASH_ARGV0",   "BASH_SUBSHELL", "DIRSTACK",
        "FUNCNAME",    "MACHTYPE",     "OSTYPE",        "PIPESTATUS",
        "SHELL",       "SHELLOPTS",    "SHLVL",         "TERM",
        "_",           "BASH_COMMAND"};
    if (p->name == 1 && strchr("0#?$!-", p->in[0]) != NULL) return true;
    for (size_t i = 0; p->absent && i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == p->name && memcmp(names[i], p->in, p->name) == 0) return true;
    return false;
}

/* ${name:-text}, = and + and ? in place of -, with or without a colon. */
static void expand_default(expander *x, parameter *p) {
    const bool colon = *p->op == ':';
    const char op = p->op[colon], *rest = p->op + colon + 1;
    const stw_shell_truth set = is_set(p, colon);
    const bool single = set == STW_SHELL_MAYBE && !p->odd && is_single(p);
    if (is_bash(p)) {
        append_unknown(x, p);
        return;
    }
    if (p->absent && op != '+' && op != '?') {
        if (op == '=')
            assign_default(x, p, rest);
        else if (p->list && p->in[0] != '@' && p->in[0] != '*' && p->name == 0)
            append_unknown(x, p);
        else
            append_default(x, p, rest, p->in, p->list ? (size_t)(p->op - p->in) : p->name);
    } else if (p->absent || p->odd) {
        if (op == '?') stw_shell_may_end(x->r);
        if (p->odd)
            stw_shell_append_odd(x, p->in, p->name, p->quoted);
        else
            append_unknown(x, p);
    } else if (op == '+') {
        if (set == STW_SHELL_YES) stw_shell_expand_inner(x, rest, p->end, p->quoted);
        if (set == STW_SHELL_MAYBE) append_unknown(x, p);
        if (set == STW_SHELL_NO && is_hook(p))
            stw_shell_append_assumed(x, source_of(x, p, p->op, (size_t)(p->end - p->op)), "",
                                     p->quoted);
    } else if (set == STW_SHELL_YES || (op == '?' && set == STW_SHELL_MAYBE)) {
        append_words(x, p, p->words, p->n_words);
    } else if (op == '?') {
        stw_shell_may_end(x->r);
        append_unknown(x, p);
    } else if (single && op == '-') { /* of $1: ${1:-text} */
        const char *name = p->words[0].text + 2;
        append_default(x, p, rest, name, strlen(name) - 1);
    } else if (set == STW_SHELL_NO && op == '-' && is_hook(p)) {
        append_default(x, p, rest, p->in, p->name);
    } else if (set == STW_SHELL_NO && op == '-') {
        stw_shell_expand_inner(x, rest, p->end, p->quoted);
    } else if (set == STW_SHELL_NO) {
        assign_default(x, p, rest);
    } else {
        if (op == '=') stw_shell_state_forget(x->r, p->in, p->name);
        append_unknown(x, p);
    }
}

/* ---- parts and changes of a value ---- */

/* @return is `at` where the next part of ${name:offset:length} or ${name/pattern/text} begins? */
static const char *find_separator(const char *at, const char *end, char separator) {
    while (at != NULL && at < end && *at != separator) at = stw_scan_part(at, end, false, 0);
    return at != NULL && at < end ? at : end;
}

/* Offset and length of n. @return false: not known */
static bool find_range(expander *x, const parameter *p, size_t n, size_t *from, size_t *count) {
    const char *rest = p->op + 1, *colon = find_separator(rest, p->end, ':');
    const stw_shell_sum offset =
        stw_shell_sum_of(x->r, (stw_shell_raw){rest, (size_t)(colon - rest), x->line});
    stw_shell_sum length = {.known = true, .value = INT64_MAX};
    if (memchr(rest, '?', (size_t)(p->end - rest)) != NULL) return false;
    if (colon < p->end)
        length = stw_shell_sum_of(
            x->r, (stw_shell_raw){colon + 1, (size_t)(p->end - colon) - 1, x->line});
    stw_shell_check_sum(x->r, &offset);
    stw_shell_check_sum(x->r, &length);
    if (!offset.known || !length.known || offset.maybe > 0 || length.maybe > 0) return false;
    const int64_t all = (int64_t)n, first = offset.value < 0 ? offset.value + all : offset.value;
    *from = *count = 0;
    if (first < 0 || first > all) return true;
    int64_t last = length.value < 0 ? all + length.value : all;
    if (length.value >= 0 && length.value < all - first) last = first + length.value;
    if (last < first) return false; /* bash says that it is wrong */
    *from = (size_t)first;
    *count = (size_t)(last - first);
    return true;
}

/* @param longest of the part at each place that matches, to the end if `how` is % */
static void replace(const char *text, const int *longest, const char *with, char how,
                    stw_text *out) {
    const size_t n = strlen(text);
    bool done = false;
    if (n == 0) { /* a pattern may match nothing */
        if (longest[0] == 0) stw_text_append(out, with, strlen(with));
        return;
    }
    for (size_t i = 0; i <= n;) {
        size_t taken = SIZE_MAX;
        const bool anchored = (how == '#' && i > 0);
        if (!done && !anchored && longest[i] + (how == '#' || how == '%') > 0)
            taken = (size_t)longest[i];
        if (taken == SIZE_MAX) {
            if (i < n) stw_text_append(out, text + i, 1);
            i++;
            continue;
        }
        stw_text_append(out, with, strlen(with));
        done = how != '/';
        i += taken;
        if (taken == 0 || (done && i >= n)) {
            stw_text_append(out, text + i, n - i);
            return;
        }
    }
}

/* A pattern, or a text in place of it. @return NULL: not known */
static const char *operand(expander *x, const char *at, const char *end, stw_shell_mode mode) {
    const stw_shell_raw raw = {at, (size_t)(end - at), x->line};
    const stw_shell_word word = stw_shell_expand(x->r, raw, mode);
    if (!stw_shell_is_known(&word)) return NULL;
    const char *text = stw_shell_plain(x->r, word.text);
    return mode == STW_SHELL_MATCH && stw_pattern_is_extended(text) ? NULL : text;
}

/* @return does it know what becomes of the text? */
static bool change(expander *x, const parameter *p, const char *text, stw_text *out) {
    const char op = *p->op;
    const bool twice = p->op + 1 < p->end && p->op[1] == op;
    int lengths[STW_PATTERN_MOST + 1];
    const char *rest = p->op + 1 + twice;
    if (strlen(text) > STW_PATTERN_MOST) return false;
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c > 127) return false; /* the locale counts */
    if (op == '#' || op == '%') {
        const char *pattern = operand(x, rest, p->end, STW_SHELL_MATCH);
        if (pattern == NULL) return false;
        const size_t n = strlen(text);
        if (!stw_pattern_lengths(pattern, text, twice, op == '%', lengths)) return false;
        size_t taken = op == '#' && lengths[0] > 0 ? (size_t)lengths[0] : 0;
        for (size_t i = 0; op == '%' && i <= n; i++) /* those that end the text */
            if (lengths[i] >= 0 && (!twice || n - i > taken)) taken = n - i;
        stw_text_append(out, op == '#' ? text + taken : text, n - taken);
        return true;
    }
    if (op == '/') {
        const bool anchored = !twice && rest < p->end && (*rest == '#' || *rest == '%');
        const char how = twice ? '/' : anchored ? *rest++ : '1';
        const bool begins = twice && rest < p->end && *rest == '/'; /* it is of the pattern */
        const char *slash = find_separator(rest + begins, p->end, '/');
        const char *pattern = operand(x, rest, slash, STW_SHELL_MATCH);
        const char *with = slash < p->end ? operand(x, slash + 1, p->end, STW_SHELL_VALUE) : "";
        if (pattern == NULL || with == NULL || strchr(with, '&') != NULL) return false;
        for (const char *c = slash; p->quoted && c < p->end; c++)
            if (*c == '\'' || *c == '~') return false;
        if (*pattern == '\0') {
            if (how == '#') stw_text_append(out, with, strlen(with));
            stw_text_append(out, text, strlen(text));
            if (how == '%') stw_text_append(out, with, strlen(with));
        } else if (stw_pattern_lengths(pattern, text, true, how == '%', lengths)) {
            replace(text, lengths, with, how, out);
        } else {
            return false;
        }
        return true;
    }
    if ((op != '^' && op != ',') || rest != p->end) return false;
    for (const char *c = text; *c != '\0'; c++) {
        const int changed = op == '^' ? toupper((unsigned char)*c) : tolower((unsigned char)*c);
        const char written = twice || c == text ? (char)changed : *c;
        stw_text_append(out, &written, 1);
    }
    return true;
}

static bool change_word(expander *x, const parameter *p, const stw_shell_word *word,
                        stw_shell_list *out) {
    stw_text text = STW_TEXT_INIT;
    const stw_value_kind kind = stw_value_kind_of(word->text);
    const char *plain = stw_shell_plain(x->r, word->text);
    size_t from = 0, count = 0;
    bool known = !kind.unknown && !word->unknown;
    if (known && *p->op == ':') {
        for (const char *c = plain; *c != '\0'; c++) known = known && (unsigned char)*c < 128;
        known = known && find_range(x, p, strlen(plain), &from, &count);
        if (known) stw_text_append(&text, plain + from, count);
    } else if (known) {
        known = change(x, p, plain, &text);
    }
    const char *changed = stw_pool_string(x->r->pool, text.data != NULL ? text.data : "");
    if (changed == NULL || text.failed) stw_shell_fail_memory(x->r);
    stw_text_free(&text);
    if (known && changed != NULL) {
        if (kind.open) changed = stw_shell_opened(x->r, changed);
        stw_shell_list_add(x->r, out,
                           (stw_shell_word){.text = changed, word->line, .maybe = word->maybe});
    }
    return known;
}

static void expand_change(expander *x, parameter *p) {
    stw_shell_list list = {0};
    bool known = !p->odd && !p->absent;
    if (p->list && p->scalar && p->quoted && *p->op == ':')
        stw_shell_poison(x->r, "a part of a variable that is no list, as one");
    p->list = p->list && !p->scalar;
    if (p->absent && p->list && (p->in[0] == '@' || p->in[0] == '*')) {
        append_plain(x, p); /* ${@:2} of no arguments */
        return;
    }
    if (known && p->list && *p->op == ':') {
        size_t from = 0, count = 0;
        for (size_t i = 0; i < p->n_words; i++)
            known = known && p->words[i].maybe == 0 && !stw_value_is_arguments(p->words[i].text);
        const bool positional = p->in[0] == '@' || p->in[0] == '*';
        known = known && find_range(x, p, p->n_words + positional, &from, &count);
        if (known && positional && from == 0) known = false; /* $0 */
        if (known && positional) from--;
        if (known) append_words(x, p, p->words + from, count);
    } else if (known) {
        for (size_t i = 0; i < p->n_words && known; i++)
            known = change_word(x, p, &p->words[i], &list);
        if (known) append_words(x, p, list.items, list.n);
    }
    if (known) return;
    if (p->odd)
        stw_shell_append_odd(x, p->in, p->name, p->quoted);
    else
        append_unknown(x, p);
}

/* ---- the rest ---- */

/* ${#name}, ${#name[@]} */
static void expand_length(expander *x, const char *in, size_t n, bool quoted) {
    parameter p = {.in = in + 1, .n = n - 1, .quoted = quoted};
    parameter whole = {.in = in, .n = n, .quoted = quoted, .braces = true};
    const bool is = find_name(x, &p) && p.op == p.end;
    int maybe = 0;
    size_t length = 0;
    bool known = is && !p.odd && !p.absent;
    if (is && p.absent && p.list && (in[1] == '@' || in[1] == '*'))
        known = !x->r->arguments_unknown;
    for (size_t i = 0; known && i < p.n_words; i++) {
        const char *text = stw_shell_plain(x->r, p.words[i].text);
        if (p.words[i].maybe > 0) maybe = p.words[i].maybe;
        if (!p.list && !stw_shell_is_known(&p.words[i]) && p.words[i].maybe == 0) known = false;
        for (const char *c = text; *c != '\0' && !p.list; c++)
            known = known && (unsigned char)*c < 128;
        const stw_value_kind kind = stw_value_kind_of(p.words[i].text);
        if (p.list && kind.unknown && strchr(p.words[i].text, STW_MARK_BARE) != NULL) known = false;
        length += !p.list ? strlen(text) : !stw_value_is_arguments(p.words[i].text);
    }
    char digits[32];
    snprintf(digits, sizeof digits, "%zu", length);
    if (known)
        append_text(x, &p, digits, maybe);
    else
        append_unknown(x, &whole);
    x->any = true;
}

/* ${!name}, ${!name[@]} */
static void expand_indirect(expander *x, const char *in, size_t n, bool quoted) {
    parameter p = {.in = in + 1, .n = n - 1, .quoted = quoted};
    const parameter whole = {.in = in, .n = n, .quoted = quoted, .braces = true};
    const bool is = find_name(x, &p) && p.op == p.end && !p.absent && !p.odd;
    if (is && p.list) {
        stw_shell_list list = {0};
        bool known = true;
        for (size_t i = 0; i < p.n_words; i++) {
            const char *text = stw_pool_printf(x->r->pool, "%zu", i);
            known = known && p.words[i].maybe == 0;
            stw_shell_list_add(x->r, &list, (stw_shell_word){.text = text, .line = x->line});
        }
        if (known) {
            append_words(x, &p, list.items, list.n);
            return;
        }
    } else if (is && p.n_words == 1 && stw_shell_is_known(&p.words[0])) {
        const char *name = stw_shell_plain(x->r, p.words[0].text);
        const size_t length = strlen(name);
        if (length > 0 && stw_scan_name(name, name + length) == length) {
            stw_shell_expand_name(x, name, length, quoted);
            return;
        }
        if (length == 0 || strpbrk(name, " \t\n/-+.,:=") != NULL)
            stw_shell_poison(x->r, "${!name} of a variable that names none");
    } else if (is && p.n_words == 0) {
        stw_shell_poison(x->r, "${!name} of a variable that is not set");
    } else if (p.absent && !p.list) {
        stw_shell_may_end(x->r);
    }
    if (x->r->calls > 0)
        stw_shell_append_odd(x, in + 1, n - 1, quoted);
    else
        append_unknown(x, &whole);
}

void stw_shell_expand_parameter(expander *x, const char *in, size_t n, bool quoted) {
    parameter p = {.in = in, .n = n, .quoted = quoted, .braces = true};
    const parameter whole = p;
    if (n > 1 && *in == '#' && strchr(":-?+=%#/", in[1]) == NULL) {
        expand_length(x, in, n, quoted);
        return;
    }
    if (n > 1 && *in == '!' && stw_scan_is_name(in[1])) {
        expand_indirect(x, in, n, quoted);
        return;
    }
    if (!find_name(x, &p)) {
        stw_shell_poison(x->r, "an expansion in ${ }");
        append_unknown(x, &whole);
        return;
    }
    const char op = p.op < p.end ? *p.op : '\0', next = p.op + 1 < p.end ? p.op[1] : '\0';
    if (op == '\0')
        append_plain(x, &p);
    else if (strchr("-=+?", op) != NULL ||
             (op == ':' && next != '\0' && strchr("-=+?", next) != NULL))
        expand_default(x, &p);
    else if (strchr(":#%/^,", op) != NULL)
        expand_change(x, &p);
    else if (p.odd)
        stw_shell_append_odd(x, in, p.name, quoted);
    else
        append_unknown(x, &p);
}
