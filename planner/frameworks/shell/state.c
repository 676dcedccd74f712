/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/state.h"

#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "planner/frameworks/shell/places.h"

enum { MAX_WORDS = 4096, MAX_TEXT = 1 << 22, MAX_LISTED = 1 << 22 };

void stw_shell_fail_memory(stw_shell_reader *r) {
    if (r->status == STW_STATUS_OK)
        r->status = stw_fail(r->err, STW_STATUS_NO_MEMORY, r->path, "out of memory");
}

void stw_shell_fail(stw_shell_reader *r, const char *text, const char *what) {
    if (r->status == STW_STATUS_OK)
        r->status = stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->path, r->line, 1, "%.60s%s%s",
                                text, *text != '\0' ? ": " : "", what);
}

void stw_shell_poison(stw_shell_reader *r, const char *text) {
    if (r->state->poison != 0) return;
    r->state->poison = r->line;
    r->state->poison_text = stw_pool_string(r->pool, text);
    if (r->state->poison_text == NULL) stw_shell_fail_memory(r);
}

void stw_shell_set_status(stw_shell_state *s, stw_shell_truth status) {
    s->status = status;
    s->code = status == STW_SHELL_YES ? 0 : status == STW_SHELL_NO ? 1 : -1;
    s->doubt = false;
}

void stw_shell_copy_status(stw_shell_state *to, const stw_shell_state *from) {
    to->status = from->status;
    to->code = from->code;
    to->doubt = from->doubt;
}

void stw_shell_check_time(stw_shell_reader *r) {
    if (r->status == STW_STATUS_OK) r->status = stw_deadline_check("reading a script", r->err);
}

void stw_shell_may_end(stw_shell_reader *r) {
    r->early = r->line;
    if (r->out->n_found > 0) r->left = r->line;
}

void stw_shell_count(stw_shell_reader *r, const char *text) {
    r->read += strlen(text);
    if (r->read > MAX_TEXT) stw_shell_fail(r, "", "found more than 4194304 bytes of words");
    if ((++r->counted & 255) == 0) stw_shell_check_time(r);
}

void stw_shell_list_add(stw_shell_reader *r, stw_shell_list *list, stw_shell_word word) {
    if (list->n >= MAX_WORDS) stw_shell_fail(r, "", "found more than 4096 words of a command");
    if (r->status != STW_STATUS_OK) return;
    stw_shell_word *grown =
        stw_pool_grow(r->pool, list->items, list->n, list->n + 1, &list->capacity, sizeof *grown);
    if (grown == NULL || word.text == NULL) {
        stw_shell_fail_memory(r);
        return;
    }
    list->items = grown;
    grown[list->n++] = word;
    if (++r->words > MAX_LISTED) stw_shell_fail(r, "", "found more than 4194304 words");
}

const char *stw_shell_changed(stw_shell_reader *r, const char *text,
                              void (*change)(const char *, stw_text *)) {
    stw_text out = STW_TEXT_INIT;
    change(text, &out);
    const char *copy = stw_pool_string(r->pool, out.data != NULL ? out.data : "");
    if (copy == NULL || out.failed) stw_shell_fail_memory(r);
    stw_text_free(&out);
    return copy != NULL ? copy : "";
}

const char *stw_shell_plain(stw_shell_reader *r, const char *text) {
    const stw_value_kind kind = stw_value_kind_of(text);
    const bool marks = kind.unknown || kind.assumed || kind.open;
    return marks ? stw_shell_changed(r, text, stw_value_remove) : text;
}

const char *stw_shell_opened(stw_shell_reader *r, const char *text) {
    text = stw_shell_changed(r, text, stw_value_close);
    const char *opened = stw_pool_printf(r->pool, "%c%s%c", STW_MARK_OPEN, text, STW_MARK_CLOSE);
    if (opened == NULL) stw_shell_fail_memory(r);
    return opened != NULL ? opened : text;
}

/* ---- variables ---- */

stw_shell_variable *stw_shell_state_find(const stw_shell_state *s, const char *name,
                                         size_t length) {
    for (size_t i = 0; i < s->n_variables; i++)
        if (strncmp(s->variables[i].name, name, length) == 0 &&
            s->variables[i].name[length] == '\0')
            return &s->variables[i];
    return NULL;
}

/* Room for one more of a list of the state. */
static void *grow(stw_shell_reader *r, void *list, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity) return list;
    const size_t more = *capacity == 0 ? 16 : 2 * *capacity;
    void *grown = realloc(list, more * size);
    if (grown == NULL)
        stw_shell_fail_memory(r);
    else
        *capacity = more;
    return grown;
}

/* The variable, made if there is none; NULL: a failure. */
static stw_shell_variable *named(stw_shell_reader *r, const char *name, size_t length) {
    stw_shell_state *s = r->state;
    stw_shell_variable *v = stw_shell_state_find(s, name, length);
    if (v != NULL) return v;
    if (s->n_variables >= STW_SHELL_MAX_VARIABLES)
        stw_shell_fail(r, "", "found more than 512 variables");
    const char *copy = stw_pool_printf(r->pool, "%.*s", (int)length, name);
    if (copy == NULL) stw_shell_fail_memory(r);
    if (r->status != STW_STATUS_OK) return NULL;
    for (size_t i = 0; i < s->n_variables; i++)
        if (*s->variables[i].name == '\0') { /* of a local variable that is gone */
            s->variables[i] = (stw_shell_variable){.name = copy, .unset = true};
            return &s->variables[i];
        }
    stw_shell_variable *grown =
        grow(r, s->variables, s->n_variables, &s->variables_capacity, sizeof *grown);
    if (grown == NULL) return NULL;
    s->variables = grown;
    grown[s->n_variables] = (stw_shell_variable){.name = copy, .unset = true};
    return &grown[s->n_variables++];
}

void stw_shell_state_assign(stw_shell_reader *r, const char *name, size_t length,
                            stw_shell_variable value) {
    static const char *const fixed[] = {"UID",      "EUID",      "PPID",
                                        "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"};
    static const char *const own[] = {"RANDOM",   "SECONDS",    "LINENO",
                                      "SRANDOM",  "BASHPID",    "EPOCHSECONDS",
                                      "FUNCNAME", "PIPESTATUS", "BASH_REMATCH"};
    stw_shell_variable *v = named(r, name, length);
    if (v == NULL) return;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        v->readonly = v->readonly || strcmp(v->name, fixed[i]) == 0;
    if (v->readonly) {
        stw_shell_poison(r, "an assignment to a variable that is readonly");
        return;
    }
    value.name = v->name;
    if (v->array && !v->unset && !value.array && !value.unset) { /* its first word */
        value.array = true;
        value.odd = value.odd || v->odd || v->n > 1;
    }
    value.exported = v->exported || value.exported || r->state->allexport;
    value.line = r->line;
    value.typed = value.typed || v->typed;
    value.odd = value.odd || value.typed;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(v->name, own[i]) == 0) value.odd = true; /* bash sets it */
    *v = value;
}

void stw_shell_state_forget(stw_shell_reader *r, const char *name, size_t length) {
    if (length > 0) stw_shell_state_assign(r, name, length, (stw_shell_variable){.odd = true});
}

/* Marks the words of a list from `begin` on as those of a branch. */
static void open_words(stw_shell_reader *r, stw_shell_list *list, const stw_shell_word *words,
                       size_t n, int line) {
    for (size_t i = 0; i < n; i++) {
        stw_shell_word word = words[i];
        word.text = stw_shell_opened(r, word.text);
        word.at = (stw_shell_places){0};
        if (word.maybe == 0) word.maybe = line;
        stw_shell_list_add(r, list, word);
    }
}

void stw_shell_state_change_all(stw_shell_reader *r, bool sets) {
    stw_shell_state *s = r->state;
    if (sets) s->changed = r->line;
    for (size_t i = 0; i < s->n_variables; i++) {
        stw_shell_variable *v = &s->variables[i];
        stw_shell_list list = {0};
        if (v->readonly || *v->name == '\0') continue;
        open_words(r, &list, v->words, v->unset || v->odd ? 0 : v->n, r->line);
        if (v->unset || list.n == 0) v->odd = true;
        v->words = list.items;
        v->n = list.n;
        v->unset = false;
    }
}

void stw_shell_state_save(stw_shell_reader *r, const char *name, size_t length) {
    stw_shell_state *s = r->state;
    const bool is = stw_shell_state_find(s, name, length) != NULL;
    const stw_shell_variable *v = named(r, name, length);
    if (v == NULL) return;
    if (s->n_saved == STW_SHELL_MAX_SAVED) {
        stw_shell_fail(r, "", "found more than 64 local variables");
        return;
    }
    s->saved[s->n_saved] = (stw_shell_saved){r->calls, *v, (size_t)(v - s->variables)};
    if (!is) s->saved[s->n_saved].before.name = NULL;
    s->n_saved++;
}

void stw_shell_state_restore(stw_shell_reader *r, size_t n_saved) {
    stw_shell_state *s = r->state;
    while (s->n_saved > n_saved) {
        const stw_shell_saved *saved = &s->saved[--s->n_saved];
        stw_shell_variable *v = &s->variables[saved->index];
        const char *name = v->name;
        if (saved->before.name != NULL)
            *v = saved->before;
        else
            *v = (stw_shell_variable){.name = ""}; /* nobody finds it */
        if (saved->before.name != NULL) v->name = name;
    }
}

void stw_shell_state_define(stw_shell_reader *r, const char *name, const stw_shell_node *body) {
    stw_shell_state *s = r->state;
    for (size_t i = 0; i < s->n_functions; i++) {
        if (strcmp(s->functions[i].name, name) != 0) continue;
        s->functions[i].body = body;
        return;
    }
    if (s->n_functions >= STW_SHELL_MAX_FUNCTIONS)
        stw_shell_fail(r, "", "found more than 256 functions");
    if (r->status != STW_STATUS_OK) return;
    stw_shell_function *grown =
        grow(r, s->functions, s->n_functions, &s->functions_capacity, sizeof *grown);
    if (grown == NULL) return;
    s->functions = grown;
    grown[s->n_functions++] = (stw_shell_function){name, body};
}

const stw_shell_function *stw_shell_state_function(const stw_shell_state *s, const char *name) {
    for (size_t i = 0; i < s->n_functions; i++)
        if (strcmp(s->functions[i].name, name) == 0) return &s->functions[i];
    return NULL;
}

/* ---- copies and joins ---- */

void stw_shell_state_free(stw_shell_state *s) {
    free(s->variables);
    free(s->functions);
    *s = (stw_shell_state){.dead = true};
}

void stw_shell_state_copy(stw_shell_reader *r, stw_shell_state *to, const stw_shell_state *from) {
    *to = (stw_shell_state){.dead = true};
    if (r->status != STW_STATUS_OK) return; /* nobody frees it then */
    *to = *from;
    to->variables = malloc((from->n_variables + 1) * sizeof *to->variables);
    to->functions = malloc((from->n_functions + 1) * sizeof *to->functions);
    to->variables_capacity = from->n_variables + 1;
    to->functions_capacity = from->n_functions + 1;
    if (to->variables == NULL || to->functions == NULL) {
        stw_shell_state_free(to);
        stw_shell_fail_memory(r);
        return;
    }
    for (size_t i = 0; i < from->n_variables; i++) to->variables[i] = from->variables[i];
    for (size_t i = 0; i < from->n_functions; i++) to->functions[i] = from->functions[i];
}

static bool same_word(const stw_shell_word *a, const stw_shell_word *b) {
    return (a->text == b->text || strcmp(a->text, b->text) == 0) &&
           (a->maybe > 0) == (b->maybe > 0) && a->unknown == b->unknown;
}

static size_t common(const stw_shell_variable *a, const stw_shell_variable *b) {
    size_t n = 0;
    while (n < a->n && n < b->n && same_word(&a->words[n], &b->words[n])) n++;
    return n;
}

static bool same(const stw_shell_variable *a, const stw_shell_variable *b) {
    return a->n == b->n && a->array == b->array && a->unset == b->unset && a->odd == b->odd &&
           a->exported == b->exported && a->readonly == b->readonly && common(a, b) == a->n;
}

/* May a shell make several words of it, or arguments of another name? */
static bool is_list(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if (strchr(" \t\n=-", *c) != NULL) return true;
    return false;
}

/* One word or the other. */
static stw_shell_word either(stw_shell_reader *r, const stw_shell_word *a, const stw_shell_word *b,
                             int line) {
    const char *x = a != NULL ? a->text : "", *y = b != NULL ? b->text : "";
    stw_shell_word word = b != NULL ? *b : *a;
    const size_t n = strlen(x), m = strlen(y), least = n < m ? n : m;
    word.maybe = line;
    word.at = (stw_shell_places){0};
    if (n > 0 && m > 0 && strncmp(x, y, least) == 0) { /* text was added */
        const char *rest = stw_shell_opened(r, n < m ? y + n : x + m);
        stw_shell_place_list places = {0};
        stw_shell_places_add_part(r->pool, &places, &a->at, 0, least);
        word.at = (stw_shell_places){places.n, places.items};
        word.text = stw_pool_printf(r->pool, "%.*s%s", (int)least, x, rest);
    } else if (n > 0 && m > 0 && (is_list(x) || is_list(y))) {
        const char *first = stw_shell_opened(r, x), *second = stw_shell_opened(r, y);
        word.text = stw_pool_printf(r->pool, "%s %s", first, second);
    } else {
        word.text = stw_shell_opened(r, m > 0 ? y : x);
    }
    if (word.text == NULL) {
        stw_shell_fail_memory(r);
        word.text = "";
    }
    word.unknown = stw_value_kind_of(word.text).unknown;
    return word;
}

static void join_variable(stw_shell_reader *r, stw_shell_variable *into,
                          const stw_shell_variable *from) {
    stw_shell_list list = {0};
    const int line = into->line > from->line ? into->line : from->line;
    if (same(into, from)) return;
    into->exported = into->exported || from->exported;
    into->readonly = into->readonly || from->readonly;
    into->odd = into->odd || from->odd;
    into->line = line;
    if (into->odd) return;
    const size_t n = into->array == from->array ? common(into, from) : 0;
    for (size_t i = 0; i < n && (into->array || n == into->n); i++)
        stw_shell_list_add(r, &list, into->words[i]);
    if (into->array || from->array) {
        open_words(r, &list, into->words + n, into->n - n, line);
        open_words(r, &list, from->words + n, from->n - n, line);
        into->array = true;
    } else {
        list.n = 0; /* also where only `exported` differs */
        stw_shell_list_add(
            r, &list,
            either(r, into->n > 0 ? into->words : NULL, from->n > 0 ? from->words : NULL, line));
    }
    into->words = list.items;
    into->n = list.n;
    into->unset = false;
}

/* A variable that only one side has named: the other has what the environment has. */
static void open_variable(stw_shell_reader *r, stw_shell_variable *v) {
    stw_shell_list list = {0};
    if (v->odd) return;
    open_words(r, &list, v->words, v->n, v->line);
    v->odd = list.n == 0;
    v->unset = false;
    v->words = list.items;
    v->n = list.n;
}

static void join_functions(stw_shell_reader *r, stw_shell_state *into,
                           const stw_shell_state *from) {
    stw_shell_state *now = r->state;
    for (size_t i = 0; i < into->n_functions; i++) {
        const stw_shell_function *f = stw_shell_state_function(from, into->functions[i].name);
        if (f == NULL || f->body != into->functions[i].body) into->functions[i].body = NULL;
    }
    r->state = into;
    for (size_t i = 0; i < from->n_functions; i++)
        if (stw_shell_state_function(into, from->functions[i].name) == NULL)
            stw_shell_state_define(r, from->functions[i].name, NULL);
    r->state = now;
}

static stw_shell_truth same_or_maybe(stw_shell_truth a, stw_shell_truth b) {
    return a == b ? a : STW_SHELL_MAYBE;
}

/* Everything but variables and functions. */
static void join_rest(stw_shell_reader *r, stw_shell_state *into, const stw_shell_state *from) {
    if (into->n_arguments != from->n_arguments || into->arguments != from->arguments ||
        into->script_arguments != from->script_arguments || into->shifted != from->shifted)
        into->odd_arguments = true;
    into->odd_arguments = into->odd_arguments || from->odd_arguments;
    into->doubt = into->doubt || from->doubt || into->status != from->status;
    if (into->code != from->code) into->code = -1;
    into->status = same_or_maybe(into->status, from->status);
    into->errexit = same_or_maybe(into->errexit, from->errexit);
    into->pipefail = same_or_maybe(into->pipefail, from->pipefail);
    into->nounset = same_or_maybe(into->nounset, from->nounset);
    into->allexport = into->allexport || from->allexport;
    into->moved = into->moved || from->moved;
    if (into->poison == 0 && (into->noglob != from->noglob || into->inherits != from->inherits)) {
        into->poison = r->line;
        into->poison_text = "an option of set in a branch that may not run";
    }
    if (from->changed > into->changed) into->changed = from->changed;
    if (into->poison == 0) into->poison = from->poison;
    if (into->poison_text == NULL) into->poison_text = from->poison_text;
    bool locals = into->n_saved == from->n_saved;
    for (size_t i = 0; locals && i < into->n_saved; i++)
        locals = into->saved[i].index == from->saved[i].index;
    if (!locals && into->poison == 0) {
        into->poison = r->line;
        into->poison_text = "a local variable in a branch that may not run";
    }
}

/* The variable of another state; mostly it has the same place. */
static stw_shell_variable *other_of(const stw_shell_state *s, size_t place, const char *name) {
    if (place < s->n_variables && s->variables[place].name == name) return &s->variables[place];
    return stw_shell_state_find(s, name, strlen(name));
}

void stw_shell_state_join(stw_shell_reader *r, stw_shell_state *into, const stw_shell_state *from) {
    if (from->dead || r->status != STW_STATUS_OK) return;
    if (into->dead) {
        stw_shell_state_free(into);
        stw_shell_state_copy(r, into, from);
        return;
    }
    for (size_t i = 0; i < into->n_variables; i++) {
        stw_shell_variable *v = &into->variables[i];
        const stw_shell_variable *w = other_of(from, i, v->name);
        if (*v->name == '\0') continue;
        if (w != NULL)
            join_variable(r, v, w);
        else
            open_variable(r, v);
    }
    stw_shell_state *now = r->state;
    r->state = into;
    for (size_t i = 0; i < from->n_variables; i++) {
        const stw_shell_variable *w = &from->variables[i];
        if (*w->name == '\0' || other_of(into, i, w->name) != NULL) continue;
        stw_shell_variable *v = named(r, w->name, strlen(w->name));
        if (v == NULL) break;
        *v = *w;
        open_variable(r, v);
    }
    r->state = now;
    join_functions(r, into, from);
    join_rest(r, into, from);
}

/* Words that no branch hangs on. */
static size_t sure_words(const stw_shell_variable *v) {
    size_t n = 0;
    while (n < v->n && v->words[n].maybe == 0) n++;
    return v->odd ? 0 : n;
}

bool stw_shell_state_same(const stw_shell_state *a, const stw_shell_state *b) {
    if (a->dead != b->dead || a->n_variables != b->n_variables ||
        a->odd_arguments != b->odd_arguments || a->n_arguments != b->n_arguments ||
        a->shifted != b->shifted || a->poison != b->poison || a->status != b->status ||
        a->code != b->code || a->errexit != b->errexit || a->nounset != b->nounset)
        return false;
    for (size_t i = 0; i < a->n_variables; i++) {
        const stw_shell_variable *v = &a->variables[i], *w = &b->variables[i];
        const size_t n = sure_words(v);
        if (strcmp(v->name, w->name) != 0) return false;
        if (same(v, w)) continue;
        if (v->array != w->array || n != sure_words(w) || common(v, w) < n) return false;
        if (n == v->n && !v->odd) return false;
        if (n == w->n && !w->odd) return false;
    }
    return true;
}
