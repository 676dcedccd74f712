/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/commands.h"

#include <ctype.h>
#include <string.h>

/* ---- words ---- */

/* Lines in "${X:?set in line 5}" move. */
static const char *skip_line(const char *text) {
    static const char mark[] = ":?set in line ";
    if (strncmp(text, mark, sizeof mark - 1) != 0) return text;
    text += sizeof mark - 1;
    while (isdigit((unsigned char)*text)) text++;
    return text;
}

static bool same_text(const char *a, const char *b) {
    for (;; a++, b++) {
        if (*a == ':' && *b == ':') a = skip_line(a), b = skip_line(b);
        if (*a != *b) return false;
        if (*a == '\0') return true;
    }
}

static bool same_word(const stw_shell_word *a, const stw_shell_word *b) {
    return same_text(a->source, b->source);
}

/* Words of a command that are compared. */
typedef struct row {
    const stw_shell_word *words;
    size_t n, at;
} row;

static const stw_shell_word *word_of(const row *r, size_t more) {
    return r->at + more < r->n ? &r->words[r->at + more] : NULL;
}

/* How many words have this value, from `more` on; 0: they have another one. */
static size_t words_of_value(const row *r, size_t more, const char *value) {
    size_t n = 0;
    for (; word_of(r, more + n) != NULL; n++) {
        const char *text = word_of(r, more + n)->text;
        const size_t length = strlen(text);
        if (strncmp(value, text, length) != 0) return 0;
        value += length;
        if (*value == '\0') return n + 1;
        if (*value++ != ' ') return 0;
    }
    return 0;
}

/* What follows a literal value in its word, such as $HOOK; "": nothing. */
static const char *tail(const stw_shell_word *word, const char *value) {
    const size_t n = strlen(value);
    const char *from = strncmp(word->source, value, n) == 0 ? word->source + n : "";
    return strcmp(word->text, value) == 0 ? from : "";
}

/* ---- changes ---- */

static const stw_commands_change *change_of(const stw_commands *of, const stw_shell_word *word) {
    for (size_t i = 0; word != NULL && i < of->n; i++)
        if (stw_argument_is(word->text, &of->changes[i].name, of->dashed)) return &of->changes[i];
    return NULL;
}

/* --name old, and --name new. */
static bool step_value(const stw_commands *of, row *a, row *b) {
    const stw_commands_change *c = change_of(of, word_of(a, 0));
    if (c == NULL || c->before == NULL || c->after == NULL || !of->dashed) return false;
    if (change_of(of, word_of(b, 0)) != c ||
        stw_argument_value(word_of(a, 0)->text, true) != NULL ||
        stw_argument_value(word_of(b, 0)->text, true) != NULL)
        return false;
    const size_t n = words_of_value(a, 1, c->before), m = words_of_value(b, 1, c->after);
    if (n == 0 || m == 0) return false;
    const char *old = tail(word_of(a, n), c->before);
    if (*old != '\0' && n == 1 && strcmp(old, tail(word_of(b, 1), c->after)) != 0) return false;
    a->at += 1 + n;
    b->at += 1 + m;
    return true;
}

/* What stands behind a value in the same word, where the value is written out. */
static bool same_end(const char *a, const char *before, const char *b, const char *after) {
    const char *x = strchr(a, '='), *y = strchr(b, '=');
    const size_t n = strlen(before), m = strlen(after);
    if (x == NULL || y == NULL) return false;
    if (strncmp(x + 1, before, n) != 0 || strncmp(y + 1, after, m) != 0) return true;
    return strcmp(x + 1 + n, y + 1 + m) == 0;
}

/* name=old, and name=new. */
static bool step_joined(const stw_commands *of, row *a, row *b) {
    const stw_shell_word *x = word_of(a, 0), *y = word_of(b, 0);
    const stw_commands_change *c = change_of(of, x);
    if (c == NULL || c->before == NULL || c->after == NULL || change_of(of, y) != c) return false;
    const char *old = stw_argument_value(x->text, of->dashed);
    const char *now = stw_argument_value(y->text, of->dashed);
    if (old == NULL || now == NULL || strcmp(old, c->before) != 0 || strcmp(now, c->after) != 0 ||
        !same_end(x->source, c->before, y->source, c->after))
        return false;
    a->at++;
    b->at++;
    return true;
}

/* An argument that only one of both has. */
static bool step_alone(const stw_commands *of, row *r, bool removed) {
    const stw_commands_change *c = change_of(of, word_of(r, 0));
    if (c == NULL || (removed ? c->after : c->before) != NULL) return false;
    const char *value = removed ? c->before : c->after;
    const char *own = stw_argument_value(word_of(r, 0)->text, of->dashed);
    size_t n = 0;
    if (own != NULL ? strcmp(own, value) != 0 : !of->dashed) return false;
    if (own == NULL && *value != '\0') {
        n = words_of_value(r, 1, value);
        if (n == 0) return false;
    }
    r->at += 1 + n;
    return true;
}

enum { MOST_PARTS = 1024 };

static bool same_rows(const stw_commands *of, row *a, row *b, bool adds);

/* Words of a text, such as that of bash -c or of an echo. @return how many; 0: too many */
static size_t split(const char *text, stw_pool *pool, stw_shell_word *out) {
    size_t n = 0;
    for (text += strspn(text, " \t\n"); *text != '\0'; text += strspn(text, " \t\n")) {
        const size_t length = strcspn(text, " \t\n");
        const char *part = stw_pool_printf(pool, "%.*s", (int)length, text);
        if (n == MOST_PARTS || part == NULL) return 0;
        out[n++] = (stw_shell_word){.text = part, .source = part};
        text += length;
    }
    return n;
}

static bool step_text(const stw_commands *of, row *a, row *b, bool adds) {
    const stw_shell_word *x = word_of(a, 0), *y = word_of(b, 0);
    if (x == NULL || y == NULL || strpbrk(x->text, " \t\n") == NULL ||
        strpbrk(y->text, " \t\n") == NULL)
        return false;
    stw_pool *pool = stw_pool_new();
    stw_shell_word *words =
        pool != NULL ? stw_pool_array(pool, 2 * (size_t)MOST_PARTS, sizeof *words) : NULL;
    bool same = false;
    if (words != NULL) {
        row first = {words, split(x->text, pool, words), 0};
        row second = {words + MOST_PARTS, split(y->text, pool, words + MOST_PARTS), 0};
        same = first.n > 1 && second.n > 0 && same_rows(of, &first, &second, adds);
    }
    stw_pool_free(pool);
    if (same) a->at++, b->at++;
    return same;
}

static bool same_rows(const stw_commands *of, row *a, row *b, bool adds) {
    while (a->at < a->n || b->at < b->n) {
        const stw_shell_word *x = word_of(a, 0), *y = word_of(b, 0);
        if (step_value(of, a, b) || step_joined(of, a, b)) continue;
        if (x != NULL && y != NULL && same_word(x, y)) {
            a->at++;
            b->at++;
            continue;
        }
        if (step_alone(of, a, true) || (adds && step_alone(of, b, false))) continue;
        if (!step_text(of, a, b, adds)) return false;
    }
    return true;
}

/* ---- commands ---- */

static bool is_equal(const stw_shell_command *a, const stw_shell_command *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_word(&a->words[i], &b->words[i])) return false;
    return true;
}

static void note_other(const stw_shell_command *c, stw_text *others) {
    stw_text_printf(others, "Line %d", c->line);
    for (size_t i = 0; i < c->n && i < 3 && (i == 0 || strncmp(c->words[i].text, "--", 2) != 0);
         i++) {
        stw_text_printf(others, i == 0 ? " (" : " ");
        stw_text_append_printable(others, c->words[i].text);
    }
    stw_text_printf(others, ") has the changed arguments, too\n");
}

static bool is_launch(const stw_shell *shell, const stw_shell_command *c) {
    return shell->begin > 0 && c->begin == shell->begin;
}

/* Is the launch in its text, such as that of bash -c? */
static bool encloses(const stw_shell *shell, const stw_shell_command *c) {
    return c->begin > 0 && c->begin <= shell->insert && c->words[c->n - 1].behind > shell->insert;
}

bool stw_commands_same(const stw_commands *of, stw_text *others, int *line) {
    const stw_shell *before = of->before, *now = of->now;
    *line = 0;
    if (before->n_commands == 0 || before->n_commands != now->n_commands) return false;
    if (before->cut || now->cut) return false;
    int noted = 0; /* of a loop each time */
    for (size_t i = 0; i < before->n_commands; i++) {
        const stw_shell_command *a = &before->commands[i], *b = &now->commands[i];
        const bool adds = before->made || is_launch(before, a);
        row first = {a->words, a->n, 0}, second = {b->words, b->n, 0};
        if (is_equal(a, b)) continue;
        *line = a->line;
        if (!same_rows(of, &first, &second, adds)) return false;
        if (!is_launch(before, a) && !encloses(before, a) && a->line != noted)
            note_other(a, others);
        noted = a->line;
    }
    return true;
}
