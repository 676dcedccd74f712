/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/shell_flow.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static stw_shell_truth both(stw_shell_truth a, stw_shell_truth b) { return a < b ? a : b; }
static stw_shell_truth either(stw_shell_truth a, stw_shell_truth b) { return a > b ? a : b; }
static stw_shell_truth negate(stw_shell_truth a) {
    return (stw_shell_truth)(STW_SHELL_YES - (int)a);
}
static stw_shell_truth known(bool value) { return value ? STW_SHELL_YES : STW_SHELL_NO; }

static bool is(const stw_shell_word *word, const char *text) {
    return strcmp(word->text, text) == 0;
}

/* ---- tests ---- */

/* Without what only a running shell knows, or what a condition left open. */
static bool is_plain(const stw_shell_word *word) {
    return word->maybe == 0 && strpbrk(word->text, "$`") == NULL;
}

static bool number(const stw_shell_word *word, long long *out) {
    char *end;
    *out = strtoll(word->text, &end, 10);
    return is_plain(word) && end != word->text && *end == '\0';
}

static stw_shell_truth compare(const stw_shell_word *a, const char *op, const stw_shell_word *b) {
    static const char *const orders[] = {"-lt", "-le", "-eq", "-ne", "-ge", "-gt"};
    long long x = 0, y = 0;
    if (!is_plain(a) || !is_plain(b)) return STW_SHELL_MAYBE;
    const bool equal = strcmp(a->text, b->text) == 0;
    const bool pattern = strpbrk(b->text, "*?[") != NULL;
    if ((strcmp(op, "=") == 0 || strcmp(op, "==") == 0) && !pattern) return known(equal);
    if (strcmp(op, "!=") == 0 && !pattern) return known(!equal);
    if (!number(a, &x) || !number(b, &y)) return STW_SHELL_MAYBE;
    const bool results[] = {x<y, x <= y, x == y, x != y, x >= y, x> y};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++)
        if (strcmp(op, orders[i]) == 0) return known(results[i]);
    return STW_SHELL_MAYBE;
}

static stw_shell_truth one(const stw_shell_word *words, size_t n) {
    if (n > 0 && is(&words[0], "!")) return negate(one(words + 1, n - 1));
    if (n == 1 && is_plain(&words[0])) return known(words[0].text[0] != '\0');
    if (n == 2 && is_plain(&words[1]) && is(&words[0], "-n"))
        return known(words[1].text[0] != '\0');
    if (n == 2 && is_plain(&words[1]) && is(&words[0], "-z"))
        return known(words[1].text[0] == '\0');
    return n == 3 ? compare(&words[0], words[1].text, &words[2]) : STW_SHELL_MAYBE;
}

/* Parts between ||, and between && in these; brackets are not read. */
static stw_shell_truth expression(const stw_shell_word *words, size_t n) {
    stw_shell_truth any = STW_SHELL_NO, all = STW_SHELL_YES;
    size_t start = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && (is(&words[i], "(") || is(&words[i], ")"))) return STW_SHELL_MAYBE;
        const bool or = i == n || is(&words[i], "||");
        if (! or &&!is(&words[i], "&&")) continue;
        all = both(all, one(words + start, i - start));
        start = i + 1;
        if (! or) continue;
        any = either(any, all);
        all = STW_SHELL_YES;
    }
    return any;
}

stw_shell_truth stw_shell_test(const stw_shell_word *words, size_t n) {
    if (n == 0) return STW_SHELL_MAYBE;
    if (is(&words[0], "test")) return expression(words + 1, n - 1);
    const bool single = is(&words[0], "["), two = is(&words[0], "[[");
    if (n >= 2 && ((single && is(&words[n - 1], "]")) || (two && is(&words[n - 1], "]]"))))
        return expression(words + 1, n - 2);
    if (n == 1 && is(&words[0], "true")) return STW_SHELL_YES;
    return n == 1 && is(&words[0], "false") ? STW_SHELL_NO : STW_SHELL_MAYBE;
}

/* ---- frames ---- */

static stw_shell_frame *top(stw_shell_flow *flow) {
    return flow->n > 0 && flow->skipped == 0 ? &flow->frames[flow->n - 1] : NULL;
}

static void push(stw_shell_flow *flow, stw_shell_frame frame) {
    frame.now = STW_SHELL_MAYBE;
    frame.first = true;
    if (flow->skipped > 0 || flow->n == STW_SHELL_MOST_FRAMES)
        flow->skipped++;
    else
        flow->frames[flow->n++] = frame;
}

static void pop(stw_shell_flow *flow) {
    if (flow->skipped > 0)
        flow->skipped--;
    else if (flow->n > 0)
        flow->n--;
}

static void begin_branch(stw_shell_frame *f, stw_shell_truth condition) {
    f->in_condition = f->in_pattern = false;
    f->now = both(negate(f->any), condition);
    f->any = either(f->any, condition);
}

static void begin_condition(stw_shell_frame *f) {
    f->in_condition = f->first = true;
    f->negated = false;
    f->op = 0;
    f->condition = STW_SHELL_MAYBE;
}

bool stw_shell_flow_keyword(stw_shell_flow *flow, const char *word) {
    static const char *const begins[] = {"if", "while", "until", "for", "select"};
    static const char *const ends[] = {"fi", "done", "esac"};
    stw_shell_frame *f = top(flow);
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(word, begins[i]) != 0) continue;
        push(flow, (stw_shell_frame){.kind = i == 0 ? 'i' : 'l', .until = i == 2});
        if (i < 3 && top(flow) != NULL) begin_condition(top(flow));
        return true;
    }
    for (size_t i = 0; i < 3; i++)
        if (strcmp(word, ends[i]) == 0) return pop(flow), true;
    if (strcmp(word, "then") == 0) {
        if (f != NULL && f->in_condition) begin_branch(f, f->condition);
    } else if (strcmp(word, "elif") == 0) {
        if (f != NULL) begin_condition(f);
    } else if (strcmp(word, "else") == 0) {
        if (f != NULL) begin_branch(f, STW_SHELL_YES);
    } else if (strcmp(word, "do") == 0) {
        const bool never =
            f != NULL && f->in_condition &&
            (f->until ? f->condition == STW_SHELL_YES : f->condition == STW_SHELL_NO);
        if (f != NULL) f->in_condition = false;
        if (f != NULL) f->now = never ? STW_SHELL_NO : STW_SHELL_MAYBE;
    } else if (strcmp(word, "!") == 0) {
        if (f != NULL && f->in_condition) f->negated = true;
    } else if (strcmp(word, "{") == 0) {
        push(flow, (stw_shell_frame){.kind = 'g'});
        if (top(flow) != NULL) top(flow)->now = flow->defines ? flow->called : STW_SHELL_YES;
        flow->defines = false;
    } else if (strcmp(word, "}") == 0) {
        if (flow->skipped > 0 || (f != NULL && f->kind == 'g')) pop(flow);
    } else {
        return false;
    }
    return true;
}

/* Is there a name beside the one that a definition has? */
static bool is_called(const char *name, const char *text, const char *end) {
    const size_t n = strlen(name);
    size_t found = 0;
    for (const char *at = text; (size_t)(end - at) >= n; at++) {
        const bool starts = at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');
        const bool ends = at + n == end || (!isalnum((unsigned char)at[n]) && at[n] != '_');
        found += starts && ends && memcmp(at, name, n) == 0;
    }
    return found > 1;
}

void stw_shell_flow_define(stw_shell_flow *flow, const stw_shell_word *words, size_t n, char end,
                           const char *text, const char *last, const char **at) {
    const bool word = n > 0 && is(&words[0], "function");
    if (!word && (end != '(' || n != 1)) return;
    const char *c = *at;
    while (c < last && (*c == ' ' || *c == '\t')) c++;
    if (end == '(' && (c >= last || *c != ')')) return;
    if (end == '(') *at = c + 1;
    flow->defines = true;
    flow->called =
        is_called(words[word && n > 1].text, text, last) ? STW_SHELL_MAYBE : STW_SHELL_NO;
    if (n > 2 && is(&words[2], "{")) stw_shell_flow_keyword(flow, "{");
}

static void add_condition(stw_shell_frame *f, stw_shell_truth truth, char end) {
    if (f->negated) truth = negate(truth);
    if (end == '|') truth = STW_SHELL_MAYBE; /* of a pipeline */
    f->condition = f->first || f->op == 0 ? truth
                   : f->op == 'A'         ? both(f->condition, truth)
                                          : either(f->condition, truth);
    f->first = f->negated = false;
    f->op = end == 'A' || end == 'O' ? end : 0;
}

/* A pattern of case: words, * or what else is not known. */
static void add_pattern(stw_shell_frame *f, const stw_shell_word *words, size_t n, char end) {
    stw_shell_truth match = STW_SHELL_MAYBE;
    if (n == 1 && is(&words[0], "*"))
        match = STW_SHELL_YES;
    else if (n == 1 && f->subject != NULL && is_plain(&words[0]) &&
             strpbrk(words[0].text, "*?[") == NULL)
        match = known(strcmp(words[0].text, f->subject) == 0);
    f->condition = f->first ? match : either(f->condition, match);
    f->first = false;
    if (end == ')') begin_branch(f, f->condition);
}

void stw_shell_flow_end(stw_shell_flow *flow, const stw_shell_word *words, size_t n, char end) {
    stw_shell_frame *f = top(flow);
    if (n == 3 && is(&words[0], "case") && is(&words[2], "in")) {
        push(flow, (stw_shell_frame){.kind = 'c',
                                     .in_pattern = true,
                                     .subject = is_plain(&words[1]) ? words[1].text : NULL});
        return;
    }
    if (f != NULL && f->in_pattern) {
        if (n > 0) add_pattern(f, words, n, end);
        return;
    }
    if (f != NULL && f->kind == 'c' && end == 'C') {
        f->in_pattern = f->first = true;
        f->now = STW_SHELL_NO;
    }
    if (n > 0 && f != NULL && f->in_condition) {
        add_condition(f, stw_shell_test(words, n), end);
        return;
    }
    const bool tests = n > 0 && (is(&words[0], "[") || is(&words[0], "[[") ||
                                 is(&words[0], "test") || is(&words[0], "false"));
    const stw_shell_truth truth = tests ? stw_shell_test(words, n) : STW_SHELL_YES;
    if (end == 'A')
        flow->chain = both(flow->chain, truth);
    else if (end == 'O')
        flow->chain = tests && flow->chain == STW_SHELL_YES ? negate(truth) : STW_SHELL_MAYBE;
    else
        flow->chain = STW_SHELL_YES;
}

stw_shell_truth stw_shell_flow_runs(const stw_shell_flow *flow) {
    stw_shell_truth truth = flow->skipped > 0 ? both(flow->chain, STW_SHELL_MAYBE) : flow->chain;
    for (size_t i = 0; i < flow->n; i++)
        if (!flow->frames[i].in_condition) truth = both(truth, flow->frames[i].now);
    return truth;
}

bool stw_shell_is_prefix(const char *word) {
    static const char *const prefixes[] = {"export", "local", "readonly", "declare", "env",
                                           "nohup",  "exec",  "time",     "set"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strcmp(prefixes[i], word) == 0) return true;
    return false;
}
