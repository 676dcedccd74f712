/* SPDX-License-Identifier: Apache-2.0 */
/* Assignments, and the builtins that make them. */
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/builtins.h"
#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/places.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

/* The words of (...). */
static void read_list(stw_shell_reader *r, stw_shell_raw raw, stw_shell_assignment *out) {
    const char *at = raw.text + 1, *end = raw.text + raw.length - 1;
    int line = raw.line;
    while (at < end && r->status == STW_STATUS_OK) {
        if (*at == '#') {
            while (at < end && *at != '\n') at++;
            continue;
        }
        const bool continued = *at == '\\' && at + 1 < end && (at[1] == '\n' || at[1] == '\r');
        if (continued || strchr(" \t\r\n", *at) != NULL) {
            line += *at == '\n' || (continued && at[1] == '\n');
            at += continued ? 2 : 1;
            continue;
        }
        const char *start = at;
        const int first = line;
        while (at < end && strchr(" \t\r\n", *at) == NULL) {
            const char *next = stw_scan_part(at, end, false, 0);
            if (next == NULL) next = end;
            for (; at < next; at++) line += *at == '\n';
        }
        const stw_shell_raw word = {start, (size_t)(at - start), first};
        if (*start == '[' && stw_scan_name(start, at) == 0 && memchr(start, '=', word.length))
            out->odd = true;
        stw_shell_expand_words(r, word, &out->words);
    }
}

bool stw_shell_read_assignment(stw_shell_reader *r, stw_shell_raw raw, stw_shell_assignment *out) {
    const size_t n = stw_scan_assignment(raw.text, raw.text + raw.length);
    if (n == 0) return false;
    *out = (stw_shell_assignment){.name = raw.text};
    out->length = stw_scan_name(raw.text, raw.text + n);
    out->append = raw.text[n - 2] == '+';
    out->element = raw.text[out->length] == '[';
    if (out->element) {
        const char *index = raw.text + out->length + 1;
        const size_t length = n - out->length - 3 - out->append;
        const stw_shell_sum sum = stw_shell_sum_of(r, (stw_shell_raw){index, length, raw.line});
        out->odd = !sum.known || sum.maybe > 0 || sum.value < 0 || sum.value > 4096;
        out->index = out->odd ? 0 : (size_t)sum.value;
    }
    const stw_shell_raw rest = {raw.text + n, raw.length - n, raw.line};
    out->array = rest.length > 1 && *rest.text == '(';
    if (out->array)
        read_list(r, rest, out);
    else
        stw_shell_list_add(r, &out->words, stw_shell_expand(r, rest, STW_SHELL_VALUE));
    if (out->array && out->element) out->odd = true;
    return true;
}

/* Text after another. */
static stw_shell_word joined(stw_shell_reader *r, const stw_shell_word *a,
                             const stw_shell_word *b) {
    stw_shell_word word = *b;
    const char *x =
        a->maybe > 0 && !stw_value_kind_of(a->text).open ? stw_shell_opened(r, a->text) : a->text;
    word.text = stw_pool_printf(r->pool, "%s%s", x, b->text);
    stw_shell_place_list places = {0};
    const stw_shell_places none = {0};
    stw_shell_places_add_part(r->pool, &places, x == a->text ? &a->at : &none, 0, strlen(x));
    stw_shell_places_add_part(r->pool, &places, &b->at, 0, strlen(b->text));
    word.at = (stw_shell_places){places.n, places.items};
    if (word.maybe == 0) word.maybe = a->maybe;
    word.unknown = word.unknown || a->unknown;
    if (word.text == NULL) {
        stw_shell_fail_memory(r);
        word.text = "";
    }
    return word;
}

void stw_shell_assign(stw_shell_reader *r, const stw_shell_assignment *a, bool exported) {
    if (r->status != STW_STATUS_OK) return;
    const stw_shell_variable *v = stw_shell_state_find(r->state, a->name, a->length);
    const bool first = v != NULL && v->array && !v->unset && !a->array && !a->append && !a->element;
    const bool more = a->append || a->element || first; /* first: an array's first word */
    const bool kept = more && v != NULL && !v->unset;
    stw_shell_variable value = {.exported = exported,
                                .odd = a->odd || (more && v != NULL && v->odd)};
    stw_shell_list list = {0};
    value.array = a->array || a->element || (kept && v->array);
    if (more && v == NULL && r->state->changed > 0) value.odd = true;
    for (size_t i = 0; kept && i < v->n; i++) stw_shell_list_add(r, &list, v->words[i]);
    const size_t at = a->element ? a->index : 0;
    if (a->append && v == NULL && !a->array && !a->element) { /* to what the environment has */
        const char *text = stw_pool_printf(r->pool, "%c${%.*s}%c", STW_MARK_QUOTED, (int)a->length,
                                           a->name, STW_MARK_END);
        stw_shell_list_add(r, &list, (stw_shell_word){.text = text, .line = r->line});
    }
    for (size_t i = 0; i < list.n && i <= at; i++) /* places of words are known up to there */
        value.odd = value.odd || ((a->element || first) && list.items[i].maybe > 0);
    if (a->array) {
        for (size_t i = 0; i < a->words.n; i++) stw_shell_list_add(r, &list, a->words.items[i]);
    } else if (at > list.n) {
        value.odd = true;
    } else if (at == list.n) {
        stw_shell_list_add(r, &list, a->words.items[0]);
    } else if (a->words.n > 0) {
        list.items[at] =
            a->append ? joined(r, &list.items[at], &a->words.items[0]) : a->words.items[0];
    }
    value.words = list.items;
    value.n = list.n;
    if (r->status == STW_STATUS_OK) stw_shell_state_assign(r, a->name, a->length, value);
}

/* ---- export, local, declare, readonly ---- */

static const char *const names[] = {"export", "local", "declare", "typeset", "readonly"};

bool stw_shell_declares(stw_shell_raw word) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (word.length == strlen(names[i]) && memcmp(word.text, names[i], word.length) == 0)
            return true;
    return false;
}

typedef struct declaration {
    bool local, exported, hidden, readonly, array, odd, nothing;
} declaration;

static void one_option(stw_shell_reader *r, declaration *d, const char *command, char letter,
                       bool on) {
    const bool exports = strcmp(command, "export") == 0;
    if (letter == 'x') {
        d->exported = on;
        d->hidden = !on;
    } else if (letter == 'n' && exports) {
        d->exported = false;
        d->hidden = true;
    } else if (letter == 'g') {
        d->local = false;
    } else if (letter == 'r') {
        d->readonly = on;
    } else if (letter == 'a') {
        d->array = true;
    } else if (strchr("fFp", letter) != NULL) {
        d->nothing = true;
    } else if (strchr("Ainlu", letter) != NULL) {
        d->odd = d->odd || on;
        d->array = d->array || letter == 'A';
    } else {
        stw_shell_poison(r, "an option of declare");
    }
}

/* Is the name local to this call already? */
static bool is_local(const stw_shell_reader *r, const char *name, size_t length) {
    const stw_shell_state *s = r->state;
    const stw_shell_variable *v = stw_shell_state_find(s, name, length);
    for (size_t i = 0; v != NULL && i < s->n_saved; i++)
        if (s->saved[i].depth == r->calls && s->saved[i].index == (size_t)(v - s->variables))
            return true;
    return false;
}

static void declare_one(stw_shell_reader *r, const declaration *d, const char *name, size_t length,
                        const stw_shell_assignment *value) {
    if (d->local && !is_local(r, name, length)) {
        stw_shell_state_save(r, name, length);
        stw_shell_variable *v = stw_shell_state_find(r->state, name, length);
        if (v != NULL && v->readonly) stw_shell_poison(r, "a local variable that is readonly");
        if (v != NULL) *v = (stw_shell_variable){.name = v->name, .unset = true, .line = r->line};
    }
    if (value != NULL && !d->odd) {
        stw_shell_assignment a = *value;
        a.array = a.array || (d->array && !a.element && !a.append);
        stw_shell_assign(r, &a, d->exported);
    } else if (d->odd) {
        stw_shell_state_assign(r, name, length,
                               (stw_shell_variable){.typed = true, .array = d->array});
    }
    stw_shell_variable *v = stw_shell_state_find(r->state, name, length);
    if (v == NULL) return;
    if (d->array && v->unset) {
        v->array = true;
        v->unset = false;
        v->n = 0;
    }
    v->exported = (v->exported || d->exported) && !d->hidden;
    v->readonly = v->readonly || d->readonly;
}

void stw_shell_declare(stw_shell_reader *r, const stw_shell_list *words,
                       const stw_shell_assignment *assignments, size_t n) {
    const char *command = stw_shell_plain(r, words->items[0].text);
    declaration d = {.exported = strcmp(command, "export") == 0,
                     .readonly = strcmp(command, "readonly") == 0};
    d.local = r->calls > 0 && !d.exported && !d.readonly;
    size_t i = 1;
    for (; i < words->n; i++) {
        const char *text = stw_shell_plain(r, words->items[i].text);
        if ((*text != '-' && *text != '+') || text[1] == '\0') break;
        if (strcmp(text, "--") == 0) continue;
        for (const char *c = text + 1; *c != '\0'; c++)
            one_option(r, &d, command, *c, *text == '-');
    }
    if (d.nothing) return;
    for (; i < words->n; i++) { /* names, and words that became assignments */
        const stw_shell_word *word = &words->items[i];
        const char *text = word->text, *end = text + strlen(text);
        const size_t length = stw_scan_name(text, end);
        const char *rest = text + length;
        if (length == 0 || (*rest != '\0' && *rest != '=')) {
            if (!stw_value_is_arguments(text)) stw_shell_state_change_all(r, true);
            continue;
        }
        stw_shell_assignment a = {.name = text, .length = length};
        stw_shell_word value = *word;
        value.text = rest + (*rest == '=');
        value.at = (stw_shell_places){0};
        stw_shell_list_add(r, &a.words, value);
        declare_one(r, &d, text, length, *rest == '=' ? &a : NULL);
    }
    for (size_t k = 0; k < n; k++)
        declare_one(r, &d, assignments[k].name, assignments[k].length, &assignments[k]);
}
