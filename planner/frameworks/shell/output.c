/* SPDX-License-Identifier: Apache-2.0 */
/* Output of commands that need no running shell: echo, expr, seq, cat of a here-document. */
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

enum { MAX_LINES = 4096 };

/* All commands, as a list. @return false: they are not read */
static bool commands_of(stw_shell_reader *r, const char *text, size_t length,
                        stw_shell_node **out) {
    stw_error err = STW_ERROR_INIT;
    stw_shell_node **last = out;
    stw_shell_parser p = {.pool = r->pool,
                          .path = r->path,
                          .at = text,
                          .end = text + length,
                          .line = r->line,
                          .one_line = true,
                          .err = &err};
    *out = NULL;
    while (p.at < p.end) {
        if (stw_shell_parse(&p, last) != STW_STATUS_OK) return false;
        while (*last != NULL) last = &(*last)->next;
    }
    return true;
}

/* Is it one command alone whose output is known? */
static bool is_known(stw_shell_reader *r, const stw_shell_node *node) {
    static const char *const names[] = {"echo", "expr", "seq", "cat"};
    if (node == NULL || node->next != NULL || node->kind != STW_SHELL_SIMPLE || node->n == 0)
        return false;
    const stw_shell_raw *first = &node->words[0];
    for (size_t i = 0; i < 4; i++)
        if (first->length == strlen(names[i]) && memcmp(first->text, names[i], first->length) == 0)
            return stw_shell_state_function(r->state, names[i]) == NULL &&
                   (i == 3 ? node->has_input && node->n == 1 && node->alone : !node->redirected);
    return false;
}

static bool is_integer(const char *text) {
    const char *digits = text + (*text == '-');
    const size_t n = strlen(digits);
    return n > 0 && n < 18 && strspn(digits, "0123456789") == n && (digits[0] != '0' || n == 1);
}

/* Numbers and operators in turn. */
static const char *expr(stw_shell_reader *r, const char *const *words, size_t n, const char *all) {
    for (size_t i = 0; i < n; i++)
        if (i % 2 == 0 ? !is_integer(words[i])
                       : strlen(words[i]) != 1 || strchr("+-*/%", *words[i]) == NULL)
            return NULL;
    const stw_shell_sum sum = stw_shell_calculate(r, all);
    return n % 2 == 1 && sum.known ? stw_pool_printf(r->pool, "%lld", (long long)sum.value) : NULL;
}

static const char *seq(stw_shell_reader *r, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_integer(words[i])) return NULL;
    if (n < 1 || n > 3) return NULL;
    const long long first = n > 1 ? strtoll(words[0], NULL, 10) : 1;
    const long long step = n == 3 ? strtoll(words[1], NULL, 10) : 1;
    const long long last = strtoll(words[n - 1], NULL, 10);
    stw_text text = STW_TEXT_INIT;
    if (step == 0 || (last - first) / step > MAX_LINES) return NULL;
    for (long long i = first; step > 0 ? i <= last : i >= last; i += step)
        stw_text_printf(&text, i == first ? "%lld" : "\n%lld", i);
    const char *out = stw_pool_string(r->pool, text.data != NULL ? text.data : "");
    stw_text_free(&text);
    return out;
}

/* cat <<END */
static const char *input_of(stw_shell_reader *r, const stw_shell_node *node, int *maybe) {
    const stw_shell_raw *in = &node->input;
    const stw_shell_word word = stw_shell_expand(r, *in, STW_SHELL_INPUT);
    const char *text = word.text;
    if (node->literal) text = stw_pool_printf(r->pool, "%.*s", (int)in->length, in->text);
    if (text == NULL) stw_shell_fail_memory(r);
    if (text == NULL || node->tabs) return NULL;
    if (!node->literal) *maybe = word.maybe;
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n') n--;
    return stw_pool_printf(r->pool, "%.*s", (int)n, text);
}

static const char *output_of(stw_shell_reader *r, const stw_shell_node *node, int *maybe) {
    stw_shell_list list = {0};
    if (node->has_input) return input_of(r, node, maybe);
    for (size_t i = 0; i < node->n; i++) stw_shell_expand_words(r, node->words[i], &list);
    if (r->status != STW_STATUS_OK || list.n == 0) return NULL;
    const char **words = stw_pool_array(r->pool, list.n, sizeof *words), *all = "";
    for (size_t i = 0; i < list.n && words != NULL; i++) {
        const stw_shell_word *word = &list.items[i];
        if (word->unknown || stw_value_kind_of(word->text).unknown) return NULL;
        if (stw_value_is_arguments(word->text)) return NULL;
        if (word->maybe > 0) *maybe = word->maybe;
        words[i] = stw_shell_plain(r, word->text);
        if (i > 0) all = stw_pool_printf(r->pool, i == 1 ? "%s%s" : "%s %s", all, words[i]);
        if (all == NULL) break;
    }
    if (words == NULL || all == NULL) {
        stw_shell_fail_memory(r);
        return NULL;
    }
    const char *const *rest = words + 1;
    if (strcmp(words[0], "expr") == 0) return expr(r, rest, list.n - 1, all);
    if (strcmp(words[0], "seq") == 0) return seq(r, rest, list.n - 1);
    if (list.n > 1 && words[1][0] == '-') return NULL;
    size_t n = strlen(all);
    while (n > 0 && all[n - 1] == '\n') n--;
    return stw_pool_printf(r->pool, "%.*s", (int)n, all);
}

/* expr fails where its result is 0 or nothing. */
static stw_shell_truth status_of(const stw_shell_node *node, const char *output) {
    if (node->words[0].text[0] != 'e' || node->words[0].text[1] != 'x') return STW_SHELL_YES;
    return *output == '\0' || strcmp(output, "0") == 0 ? STW_SHELL_NO : STW_SHELL_YES;
}

const char *stw_shell_output(stw_shell_reader *r, const char *text, size_t length, int *maybe) {
    stw_shell_node *node = NULL;
    stw_shell_set_status(r->state, STW_SHELL_MAYBE);
    if ((memchr(text, '\\', length) != NULL && text[-1] == '`') || r->nested > 8 ||
        !commands_of(r, text, length, &node))
        return NULL;
    if (!is_known(r, node)) {
        r->run_inner(r, node);
        return NULL;
    }
    stw_shell_state *state = r->state, copy;
    stw_shell_state_copy(r, &copy, state); /* what it assigns is lost */
    r->state = &copy;
    r->nested++;
    const char *out = output_of(r, node, maybe);
    r->nested--;
    r->state = state;
    if (state->poison == 0) state->poison = copy.poison;
    if (state->poison_text == NULL) state->poison_text = copy.poison_text;
    stw_shell_state_free(&copy);
    if (out != NULL && *maybe == 0) stw_shell_set_status(state, status_of(node, out));
    return out;
}
