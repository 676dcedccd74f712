/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/conditions.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/pattern.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

typedef stw_shell_truth truth;

static truth both(truth a, truth b) { return a < b ? a : b; }
static truth either(truth a, truth b) { return a > b ? a : b; }
static truth known(bool value) { return value ? STW_SHELL_YES : STW_SHELL_NO; }
truth stw_shell_not(truth a) { return (truth)(STW_SHELL_YES - (int)a); }

static const char *const orders[] = {"-lt", "-le", "-eq", "-ne", "-ge", "-gt"};

/* The index of an order; 6: it is none. */
static size_t order_of(const char *op) {
    size_t i = 0;
    while (i < 6 && strcmp(op, orders[i]) != 0) i++;
    return i;
}

static truth compare(size_t order, int64_t x, int64_t y) {
    const bool results[] = {x<y, x <= y, x == y, x != y, x >= y, x> y};
    return known(results[order]);
}

/* -z text, -v name, -f file ... */
static truth unary(stw_shell_reader *r, const char *op, const stw_shell_word *word) {
    const stw_value_kind kind = stw_value_kind_of(word->text);
    const bool full = (kind.literal || kind.values) && word->maybe == 0;
    const bool is_known = stw_shell_is_known(word);
    if (strcmp(op, "-n") == 0 || strcmp(op, "-z") == 0) {
        if (!is_known && !full) return STW_SHELL_MAYBE;
        const bool empty = !full && *stw_shell_plain(r, word->text) == '\0';
        return known(empty == (op[1] == 'z'));
    }
    if (strcmp(op, "-v") == 0 && is_known) {
        const char *name = stw_shell_plain(r, word->text);
        const stw_shell_variable *v = stw_shell_state_find(r->state, name, strlen(name));
        if (v != NULL && !v->odd && !v->array && (v->unset || v->words[0].maybe == 0))
            return known(!v->unset);
    }
    return STW_SHELL_MAYBE;
}

static bool is_unary(const char *op) {
    return op[0] == '-' && op[1] != '\0' && op[2] == '\0' &&
           strchr("abcdefghknoprstuvwxzGLNORS", op[1]) != NULL;
}

/* ---- [ ---- */

typedef struct test {
    stw_shell_reader *r;
    const stw_shell_word *words;
    size_t n, at;
    int depth;
    bool bad;
} test;

static const char *text_at(const test *t, size_t i) {
    return i < t->n && stw_shell_is_known(&t->words[i]) ? stw_shell_plain(t->r, t->words[i].text)
                                                        : "";
}

static bool integer(const char *text, int64_t *out) {
    char *end;
    *out = strtoll(text, &end, 10);
    while (isspace((unsigned char)*end)) end++;
    return *text != '\0' && end != text && *end == '\0';
}

static bool is_binary(const char *op) {
    static const char *const others[] = {"=", "==", "!=", "<", ">", "-nt", "-ot", "-ef"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(op, others[i]) == 0) return true;
    return order_of(op) < 6;
}

static truth binary(const test *t, const stw_shell_word *a, const char *op,
                    const stw_shell_word *b) {
    int64_t x = 0, y = 0;
    if (!stw_shell_is_known(a) || !stw_shell_is_known(b)) return STW_SHELL_MAYBE;
    const char *left = stw_shell_plain(t->r, a->text), *right = stw_shell_plain(t->r, b->text);
    if (strcmp(op, "=") == 0 || strcmp(op, "==") == 0) return known(strcmp(left, right) == 0);
    if (strcmp(op, "!=") == 0) return known(strcmp(left, right) != 0);
    if (order_of(op) < 6 && integer(left, &x) && integer(right, &y))
        return compare(order_of(op), x, y);
    return STW_SHELL_MAYBE;
}

static truth test_or(test *t);

static truth test_primary(test *t) {
    if (t->at >= t->n || t->depth > 32) t->bad = true;
    if (t->bad) return STW_SHELL_MAYBE;
    const size_t i = t->at, left = t->n - i;
    const char *text = text_at(t, i);
    if (left >= 3 && is_binary(text_at(t, i + 1))) {
        t->at += 3;
        return binary(t, &t->words[i], text_at(t, i + 1), &t->words[i + 2]);
    }
    if (strcmp(text, "!") == 0 && left > 1) {
        t->at++;
        t->depth++;
        const truth value = stw_shell_not(test_primary(t));
        t->depth--;
        return value;
    }
    if (strcmp(text, "(") == 0 && left > 1) {
        t->at++;
        t->depth++;
        const truth value = test_or(t);
        t->depth--;
        t->bad = t->bad || strcmp(text_at(t, t->at), ")") != 0;
        t->at++;
        return value;
    }
    if (is_unary(text) && left > 1) {
        t->at += 2;
        return unary(t->r, text, &t->words[i + 1]);
    }
    t->at++;
    return unary(t->r, "-n", &t->words[i]);
}

static truth test_and(test *t) {
    truth value = test_primary(t);
    while (!t->bad && strcmp(text_at(t, t->at), "-a") == 0) {
        t->at++;
        value = both(value, test_primary(t));
    }
    return value;
}

static truth test_or(test *t) {
    truth value = test_and(t);
    while (!t->bad && strcmp(text_at(t, t->at), "-o") == 0) {
        t->at++;
        value = either(value, test_and(t));
    }
    return value;
}

truth stw_shell_test(stw_shell_reader *r, const stw_shell_word *words, size_t n) {
    test t = {.r = r, .words = words, .n = n};
    if (n == 0) return STW_SHELL_NO;
    for (size_t i = 0; i < n; i++) { /* as many words as it seems? */
        const stw_value_kind kind = stw_value_kind_of(words[i].text);
        const bool bare = kind.unknown && !kind.literal && strchr(words[i].text, STW_MARK_BARE);
        if (bare || words[i].maybe > 0 || stw_value_is_arguments(words[i].text) ||
            (words[i].unknown && !kind.unknown))
            return STW_SHELL_MAYBE;
    }
    if (n == 1) return unary(r, "-n", &words[0]);
    if (n == 2 && strcmp(text_at(&t, 0), "!") == 0) return stw_shell_not(unary(r, "-n", &words[1]));
    const truth value = test_or(&t);
    return t.bad || t.at != n ? STW_SHELL_MAYBE : value;
}

/* ---- [[ ---- */

typedef struct condition {
    stw_shell_reader *r;
    const stw_shell_node *node;
    size_t at;
    int depth;
    bool bad;
} condition;

static bool is_raw(const condition *c, size_t i, const char *text) {
    return i < c->node->n && c->node->words[i].length == strlen(text) &&
           memcmp(c->node->words[i].text, text, strlen(text)) == 0;
}

static truth matches(condition *c, const stw_shell_word *word, stw_shell_raw raw) {
    const stw_shell_word pattern = stw_shell_expand(c->r, raw, STW_SHELL_MATCH);
    if (!stw_shell_is_known(word) || !stw_shell_is_known(&pattern)) return STW_SHELL_MAYBE;
    const char *text = stw_shell_plain(c->r, word->text);
    const char *plain = stw_shell_plain(c->r, pattern.text);
    if (stw_pattern_is_extended(plain) || strlen(text) > 4096 || strlen(plain) > 4096)
        return STW_SHELL_MAYBE;
    return known(stw_pattern_matches(plain, text, strlen(text)));
}

/* A regular expression of characters that stand for themselves, maybe with ^ and $. */
static truth finds(condition *c, const stw_shell_word *word, stw_shell_raw raw) {
    stw_shell_state_forget(c->r, "BASH_REMATCH", 12);
    const stw_shell_word pattern = stw_shell_expand(c->r, raw, STW_SHELL_MATCH);
    if (!stw_shell_is_known(word) || !stw_shell_is_known(&pattern)) return STW_SHELL_MAYBE;
    const char *text = stw_shell_plain(c->r, word->text);
    const char *plain = stw_shell_plain(c->r, pattern.text);
    char wanted[256];
    size_t n = 0;
    const bool begins = *plain == '^';
    bool ends = false;
    for (plain += begins; *plain != '\0'; plain++) {
        ends = *plain == '$' && plain[1] == '\0';
        if (ends) break;
        if (*plain == '\\' && plain[1] != '\0')
            plain++;
        else if (!isalnum((unsigned char)*plain) && strchr("_-/:,= ", *plain) == NULL)
            return STW_SHELL_MAYBE;
        if (n + 1 == sizeof wanted) return STW_SHELL_MAYBE;
        wanted[n++] = *plain;
    }
    wanted[n] = '\0';
    const size_t length = strlen(text);
    if (begins && ends) return known(strcmp(text, wanted) == 0);
    if (begins) return known(strncmp(text, wanted, n) == 0);
    if (ends) return known(length >= n && strcmp(text + length - n, wanted) == 0);
    return known(strstr(text, wanted) != NULL);
}

static truth numbers(condition *c, const char *op, const stw_shell_word *a,
                     const stw_shell_word *b) {
    if (!stw_shell_is_known(a) || !stw_shell_is_known(b)) return STW_SHELL_MAYBE;
    const stw_shell_sum x = stw_shell_calculate(c->r, stw_shell_plain(c->r, a->text));
    const stw_shell_sum y = stw_shell_calculate(c->r, stw_shell_plain(c->r, b->text));
    if (x.error || y.error) return STW_SHELL_NO;
    if (!x.known || !y.known || x.maybe > 0 || y.maybe > 0) return STW_SHELL_MAYBE;
    return compare(order_of(op), x.value, y.value);
}

static truth condition_or(condition *c);

static truth condition_primary(condition *c) {
    const stw_shell_node *node = c->node;
    if (c->at >= node->n || c->depth > 32) c->bad = true;
    if (c->bad) return STW_SHELL_MAYBE;
    if (is_raw(c, c->at, "!")) {
        c->at++;
        c->depth++;
        const truth value = stw_shell_not(condition_primary(c));
        c->depth--;
        return value;
    }
    if (is_raw(c, c->at, "(")) {
        c->at++;
        c->depth++;
        const truth value = condition_or(c);
        c->depth--;
        if (!is_raw(c, c->at++, ")")) c->bad = true;
        return value;
    }
    char op[8] = "";
    const stw_shell_raw *raw = &node->words[c->at], *next = c->at + 1 < node->n ? raw + 1 : NULL;
    const bool ends = next == NULL || is_raw(c, c->at + 1, "&&") || is_raw(c, c->at + 1, "||") ||
                      is_raw(c, c->at + 1, ")");
    if (raw->length < sizeof op) memcpy(op, raw->text, raw->length);
    if (!ends && is_unary(op)) {
        c->at += 2;
        const stw_shell_word word = stw_shell_expand(c->r, *next, STW_SHELL_VALUE);
        return unary(c->r, op, &word);
    }
    const stw_shell_word word = stw_shell_expand(c->r, *raw, STW_SHELL_VALUE);
    c->at++;
    if (ends) return unary(c->r, "-n", &word);
    memset(op, 0, sizeof op);
    if (next->length < sizeof op) memcpy(op, next->text, next->length);
    c->at++;
    if (c->at >= node->n) {
        c->bad = true;
        return STW_SHELL_MAYBE;
    }
    const stw_shell_raw right = node->words[c->at++];
    if (strcmp(op, "=") == 0 || strcmp(op, "==") == 0) return matches(c, &word, right);
    if (strcmp(op, "!=") == 0) return stw_shell_not(matches(c, &word, right));
    if (strcmp(op, "=~") == 0) return finds(c, &word, right);
    const stw_shell_word other = stw_shell_expand(c->r, right, STW_SHELL_VALUE);
    return order_of(op) < 6 ? numbers(c, op, &word, &other) : STW_SHELL_MAYBE;
}

static truth condition_and(condition *c) {
    truth value = condition_primary(c);
    while (!c->bad && is_raw(c, c->at, "&&")) {
        c->at++;
        value = both(value, condition_primary(c));
    }
    return value;
}

static truth condition_or(condition *c) {
    truth value = condition_and(c);
    while (!c->bad && is_raw(c, c->at, "||")) {
        c->at++;
        value = either(value, condition_and(c));
    }
    return value;
}

truth stw_shell_condition(stw_shell_reader *r, const stw_shell_node *node) {
    condition c = {.r = r, .node = node};
    const truth value = condition_or(&c);
    if (c.bad || c.at != node->n) stw_shell_poison(r, "[[ ]] with an operator that is not read");
    return c.bad || c.at != node->n ? STW_SHELL_MAYBE : value;
}
