/* SPDX-License-Identifier: Apache-2.0 */
/* A command and its words: what is found, functions, texts that other shells get. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/builtins.h"
#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/places.h"
#include "planner/frameworks/shell/run.h"
#include "planner/frameworks/shell/scan.h"

typedef stw_shell_reader reader;
typedef stw_shell_node node;
typedef stw_shell_truth truth;

enum { MAX_CALLS = 32, MAX_LOGGED = 1 << 16 };

static const char *known_text(reader *r, const stw_shell_word *word) {
    return stw_shell_is_known(word) ? stw_shell_plain(r, word->text) : "";
}

static bool is(reader *r, const stw_shell_word *word, const char *text) {
    return strcmp(known_text(r, word), text) == 0;
}

/* ---- what is found ---- */

/* The same command ran before with other words: which run is meant? */
static void refuse_several(reader *r, const stw_shell_word *raw, const stw_shell_list *now) {
    const stw_shell *out = r->out;
    for (size_t i = 0; i < now->n && i < out->n_words; i++) {
        if (strcmp(now->items[i].text, out->words[i].text) == 0) continue;
        r->line = now->items[i].line;
        const char *text = stw_pool_printf(
            r->pool,
            "%.60s has several values (\"%.30s\", \"%.30s\"), because this command runs "
            "several times; set it once",
            raw[i].source != NULL ? raw[i].source : "a word", out->words[i].text,
            now->items[i].text);
        stw_shell_fail(r, "", text != NULL ? text : "");
        return;
    }
}

/* A copy, because later assignments change the list. */
static void keep_variables(reader *r) {
    const stw_shell_state *s = r->state;
    stw_shell *out = r->out;
    stw_shell_variable *copy = stw_pool_array(r->pool, s->n_variables + 1, sizeof *copy);
    out->n_variables = 0;
    out->variables = copy;
    if (copy == NULL) stw_shell_fail_memory(r);
    for (size_t i = 0; r->status == STW_STATUS_OK && i < s->n_variables; i++) {
        stw_shell_variable v = s->variables[i];
        stw_shell_list list = {0};
        if (*v.name == '\0' || v.unset) continue;
        if (v.odd) {
            const char *text = stw_pool_printf(r->pool, "%c${%s:?set in line %d}%c",
                                               STW_MARK_QUOTED, v.name, v.line, STW_MARK_END);
            stw_shell_list_add(r, &list, (stw_shell_word){.text = text, .line = v.line});
        }
        for (size_t k = 0; !v.odd && k < v.n; k++) stw_shell_list_add(r, &list, v.words[k]);
        for (size_t k = 0; k < list.n; k++) stw_shell_finish(r, &list.items[k]);
        v.words = list.items;
        v.n = list.n;
        copy[out->n_variables++] = v;
    }
}

/* Where a word of a command begins in the file, plus 1; 0: unknown. */
static size_t begin_of(const reader *r, const stw_shell_raw *raw) {
    const stw_shell_place first = stw_shell_place_of(r->origin, raw->text, raw->text + 1, false);
    return first.end > 0 ? (size_t)first.begin + 1 : 0;
}

/* Where it ends. */
static size_t behind(const reader *r, const stw_shell_raw *raw) {
    const char *last = raw->text + raw->length - (raw->length > 0);
    return stw_shell_place_of(r->origin, last, last + 1, false).end;
}

/* Has the script set PATH to a text of its own? Nobody knows what lies there. */
static int path_line(const reader *r) {
    const stw_shell_variable *v = stw_shell_state_find(r->state, "PATH", 4);
    if (v == NULL || v->odd) return 0;
    return v->unset || (v->n == 1 && stw_shell_is_known(&v->words[0])) ? v->line : 0;
}

static bool is_in_line(const node *n, const stw_shell_list *list, int line) {
    int last = n->line;
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].line > last) last = list->items[i].line;
    return line == 0 || (line >= n->line && line <= last);
}

/* One of several: the same words are not counted twice. */
static void add_found(reader *r, const node *n, const stw_shell_list *list) {
    stw_shell *out = r->out;
    for (size_t i = 0; i < out->n_several; i++) {
        const stw_shell_found *one = &out->several[i];
        bool same = one->node == n || one->n == list->n;
        for (size_t k = 0; k < list->n && same && one->node != n; k++)
            same = strcmp(one->words[k].text, list->items[k].text) == 0;
        if (same) return;
    }
    stw_shell_found *grown =
        stw_pool_grow(r->pool, out->several, out->n_several, out->n_several + 1,
                      &out->several_capacity, sizeof *grown);
    if (grown == NULL) {
        stw_shell_fail_memory(r);
        return;
    }
    out->several = grown;
    grown[out->n_several++] = (stw_shell_found){n->line, n, list->n, list->items};
}

static void keep(reader *r, const node *n, const stw_shell_word *words, size_t n_words) {
    stw_shell_list list = {0};
    stw_shell *out = r->out;
    const char *rest = NULL;
    int line = 0, between = 0; /* of the first word of `rest` */
    stw_shell_word *raw = stw_pool_array(r->pool, n_words + 1, sizeof *raw);
    for (size_t i = 0; raw != NULL && i < n_words; i++) {
        stw_shell_word word = words[i];
        const bool arguments = stw_value_is_arguments(word.text);
        raw[list.n] = word;
        stw_shell_finish(r, &word);
        if (arguments) {
            rest =
                rest == NULL ? word.source : stw_pool_printf(r->pool, "%s %s", rest, word.source);
            if (line == 0) line = word.line;
        } else {
            if (between == 0) between = line;
            stw_shell_list_add(r, &list, word);
        }
    }
    if (raw == NULL) stw_shell_fail_memory(r);
    if (r->status != STW_STATUS_OK || r->inner > 0 || !r->wanted(list.items, list.n)) return;
    if (!is_in_line(n, &list, r->only)) return;
    if (r->state->poison > 0) {
        r->line = r->state->poison;
        stw_shell_fail(r, r->state->poison_text, "not read; write the command without it");
        return;
    }
    if (r->last_node == n && r->unsure == 0) refuse_several(r, raw, &list);
    r->last_node = n;
    out->words = list.items;
    out->n_words = list.n;
    out->rest = rest;
    out->between = between;
    out->made = r->nested > 1;
    out->begin = begin_of(r, &n->words[0]);
    out->insert = list.n > 0 ? list.items[list.n - 1].behind : 0;
    add_found(r, n, &list);
    out->n_found++;
    out->unsure = r->unsure > 0 ? n->line : r->early > 0 ? r->early : 0;
    if (out->unsure == 0 && strchr(list.items[0].text, '/') == NULL) out->unsure = path_line(r);
    out->ambiguous = out->n_found > 1 && (r->unsure > 0 || r->left > 0) ? n->line : 0;
    keep_variables(r);
}

/* ---- functions and loops ---- */

static void call(reader *r, const stw_shell_function *f, const stw_shell_word *words, size_t n) {
    stw_shell_state *s = r->state;
    stw_shell_call own = {.returned.dead = true}, *outer = r->call;
    stw_shell_loop *loop = r->loop;
    const stw_shell_state before = *s; /* its arguments */
    if (f->body == NULL) stw_shell_poison(r, "a function that only a branch defines");
    if (f->body == NULL) return;
    if (r->calls >= MAX_CALLS) stw_shell_fail(r, "", "found more than 32 calls in each other");
    if (r->status != STW_STATUS_OK) return;
    stw_shell_list list = {0};
    const bool same = n == 2 && stw_value_is_arguments(words[1].text) && s->script_arguments;
    for (size_t i = 1; i < n; i++) {
        stw_shell_list_add(r, &list, words[i]);
        s->odd_arguments = (s->odd_arguments && i > 1) || stw_shell_is_several(&words[i]);
    }
    if (n == 1) s->odd_arguments = false;
    if (!same) {
        s->arguments = list.items;
        s->n_arguments = list.n;
        s->script_arguments = false;
    }
    r->calls++;
    r->call = &own;
    r->loop = NULL;
    stw_shell_run(r, f->body);
    stw_shell_state_join(r, r->state, &own.returned);
    stw_shell_state_free(&own.returned);
    r->calls--;
    r->call = outer;
    r->loop = loop;
    if (r->status == STW_STATUS_OK && !s->dead) stw_shell_state_restore(r, before.n_saved);
    s->arguments = before.arguments;
    s->n_arguments = before.n_arguments;
    s->script_arguments = before.script_arguments;
    s->shifted = before.shifted;
    s->odd_arguments = before.odd_arguments;
}

/* break, continue, return, exit. @return is it one of them? */
static bool leave(reader *r, const stw_shell_word *words, size_t n) {
    static const char *const names[] = {"break", "continue", "return", "exit"};
    size_t which = 0;
    while (which < 4 && !is(r, &words[0], names[which])) which++;
    if (which == 4) return false;
    const char *text = n > 1 ? known_text(r, &words[1]) : NULL;
    char *end = NULL;
    const long k = text != NULL ? strtol(text, &end, 10) : 0;
    const bool number = text == NULL || (*text != '\0' && *end == '\0');
    if (which > 1 && text != NULL) {
        stw_shell_set_status(r->state, !number          ? STW_SHELL_MAYBE
                                       : (k & 255) == 0 ? STW_SHELL_YES
                                                        : STW_SHELL_NO);
        if (number) r->state->code = (int)(k & 255);
        r->state->doubt = !number;
    }
    if (which == 3) {
        stw_shell_exit(r);
    } else if (which == 2) {
        if (r->call == NULL) { /* bash says that it is wrong */
            stw_shell_set_status(r->state, STW_SHELL_NO);
            r->state->code = -1;
            stw_shell_end_command(r);
            return true;
        }
        stw_shell_state_join(r, &r->call->returned, r->state);
        r->state->dead = true;
    } else {
        stw_shell_loop *loop = r->loop;
        for (long i = 1; i < k && loop != NULL && loop->parent != NULL; i++) loop = loop->parent;
        if (loop == NULL || !number || (text != NULL && k < 1)) {
            stw_shell_poison(r, names[which]);
            return true;
        }
        stw_shell_set_status(r->state, STW_SHELL_YES);
        stw_shell_state_join(r, which == 0 ? &loop->broken : &loop->continued, r->state);
        r->state->dead = true;
    }
    return true;
}

/* ---- other shells ---- */

static const char *base_of(const char *text) {
    const char *slash = strrchr(text, '/');
    return slash != NULL ? slash + 1 : text;
}

static bool is_shell(reader *r, const stw_shell_word *word) {
    const char *base = base_of(known_text(r, word));
    return strcmp(base, "sh") == 0 || strcmp(base, "bash") == 0 || strcmp(base, "dash") == 0;
}

/* A text that a shell of its own runs: it sees what is exported. */
static void run_apart(reader *r, const stw_shell_word *text, int line, bool one_line,
                      const stw_shell_list *arguments) {
    stw_shell_state *state = r->state, copy;
    stw_shell_loop *loop = r->loop;
    stw_shell_call *outer = r->call;
    const int early = r->early;
    const bool checked = r->checked;
    stw_shell_state_copy(r, &copy, state);
    if (r->status != STW_STATUS_OK) return;
    for (size_t i = 0; i < copy.n_variables; i++)
        if (!copy.variables[i].exported) copy.variables[i] = (stw_shell_variable){.name = ""};
    copy.n_functions = 0;
    copy.n_saved = 0;
    copy.arguments = arguments->items;
    copy.n_arguments = arguments->n;
    copy.script_arguments = copy.odd_arguments = false;
    for (size_t i = 0; i < arguments->n; i++)
        if (!stw_shell_is_known(&arguments->items[i])) copy.odd_arguments = true;
    copy.errexit = copy.pipefail = copy.nounset = STW_SHELL_NO;
    copy.allexport = copy.noglob = copy.inherits = false;
    stw_shell_set_status(&copy, STW_SHELL_YES);
    r->state = &copy;
    r->loop = NULL;
    r->call = NULL;
    r->checked = false;
    stw_shell_run_word(r, text, line, one_line);
    r->state = state;
    r->loop = loop;
    r->call = outer;
    r->early = early;
    r->checked = checked;
    stw_shell_state_free(&copy);
}

/* bash -c "text", srun sh -c "text", sbatch <<END. */
static void run_texts(reader *r, const node *n, const stw_shell_word *words, size_t n_words) {
    stw_shell_list rest = {0};
    for (size_t i = 0; i < n_words; i++) {
        if (!is_shell(r, &words[i])) continue;
        bool text = false;
        size_t k = i + 1;
        for (; k < n_words && known_text(r, &words[k])[0] == '-'; k++) {
            const char *flag = known_text(r, &words[k]);
            text = flag[1] != '-' && strchr(flag, 'c') != NULL;
            if (text) break;
        }
        for (size_t a = k + 3; text && a < n_words; a++) stw_shell_list_add(r, &rest, words[a]);
        if (text && k + 1 < n_words) run_apart(r, &words[k + 1], words[k + 1].line, true, &rest);
        if (text) return;
        if (k < n_words) return; /* a file */
        if (n->has_input) break;
    }
    const bool batch = strcmp(base_of(known_text(r, &words[0])), "sbatch") == 0;
    if (!n->has_input || !(batch || is_shell(r, &words[n_words - 1]) || is_shell(r, &words[0])))
        return;
    const char *text = n->literal
                           ? stw_pool_printf(r->pool, "%.*s", (int)n->input.length, n->input.text)
                           : stw_shell_expand(r, n->input, STW_SHELL_INPUT).text;
    if (text == NULL)
        stw_shell_fail_memory(r);
    else
        run_apart(r, &(stw_shell_word){.text = text}, n->input.line, false, &rest);
}

/* ---- commands ---- */

/* Programs that end with 1 to say no. */
static bool answers(const char *name) {
    static const char *const names[] = {"grep", "egrep", "fgrep", "pgrep",
                                        "diff", "cmp",   "which", "pidof"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* env NAME=value ... command. @return how many words are before the command */
static size_t read_env(reader *r, const stw_shell_word *words, size_t n) {
    size_t i = 1;
    for (; i < n; i++) {
        const char *text = words[i].text, *end = text + strlen(text);
        const size_t length = stw_scan_name(text, end);
        if (*text == '-' && is(r, &words[i], "--")) continue;
        if (is(r, &words[i], "-u") && i + 1 < n) {
            const char *name = known_text(r, &words[++i]);
            stw_shell_state_save(r, name, strlen(name));
            stw_shell_variable *v = stw_shell_state_find(r->state, name, strlen(name));
            if (v != NULL) v->unset = true;
            continue;
        }
        if (*text == '-') stw_shell_poison(r, "an option of env");
        if (*text == '-') continue;
        if (length == 0 || text[length] != '=') break;
        stw_shell_list list = {0};
        stw_shell_word value = words[i];
        value.text = text + length + 1;
        stw_shell_list_add(r, &list, value);
        stw_shell_state_save(r, text, length);
        stw_shell_state_assign(
            r, text, length,
            (stw_shell_variable){.n = list.n, .words = list.items, .exported = true});
    }
    return i;
}

static void run_words(reader *r, const node *n, const stw_shell_word *words, size_t n_words) {
    bool functions = true, builtins = true, replaces = false;
    while (n_words > 0) { /* words before a command */
        size_t skip = 0;
        const bool own =
            functions && stw_shell_state_function(r->state, known_text(r, &words[0])) != NULL;
        if (own) break;
        if (builtins && (is(r, &words[0], "command") || is(r, &words[0], "builtin"))) {
            if (n_words > 1 && known_text(r, &words[1])[0] == '-') break;
            functions = false;
            skip = 1;
        } else if (builtins && is(r, &words[0], "exec")) {
            if (n_words > 1 && known_text(r, &words[1])[0] == '-')
                stw_shell_poison(r, "an option of exec");
            replaces = n_words > 1;
            functions = builtins = false;
            skip = 1;
        } else if (is(r, &words[0], "env")) {
            functions = builtins = false;
            skip = read_env(r, words, n_words);
        } else if (is(r, &words[0], "nohup") || is(r, &words[0], "time")) {
            functions = builtins = false;
            skip = 1;
        }
        if (skip == 0) break;
        words += skip;
        n_words -= skip;
    }
    if (n_words == 0) {
        if (!r->substituted) stw_shell_set_status(r->state, STW_SHELL_YES);
        stw_shell_end_command(r);
        return;
    }
    const stw_shell_function *f =
        functions ? stw_shell_state_function(r->state, known_text(r, &words[0])) : NULL;
    if (f != NULL) {
        const stw_shell_function own = *f; /* the list may move */
        call(r, &own, words, n_words);
        stw_shell_end_command(r);
        return;
    }
    if (builtins && leave(r, words, n_words)) return;
    if (!builtins || !stw_shell_builtin(r, words, n_words)) {
        stw_shell_set_status(r->state, STW_SHELL_MAYBE);
        r->state->doubt = answers(base_of(known_text(r, &words[0])));
        const size_t found = r->out->n_found;
        keep(r, n, words, n_words);
        if (r->out->n_found == found && r->status == STW_STATUS_OK) run_texts(r, n, words, n_words);
    }
    if (replaces)
        stw_shell_exit(r);
    else
        stw_shell_end_command(r);
}

/* NAME=value alone. */
static void run_assignments(reader *r, const node *n) {
    r->substituted = false;
    for (size_t i = 0; i < n->n && r->status == STW_STATUS_OK; i++) {
        stw_shell_assignment a;
        if (stw_shell_read_assignment(r, n->words[i], &a)) stw_shell_assign(r, &a, false);
    }
    if (!r->substituted) stw_shell_set_status(r->state, STW_SHELL_YES);
    stw_shell_end_command(r);
}

/* Text of a here-document; what it would end or assign is not asked. */
static const char *input_of(reader *r, const node *n) {
    const char *text = stw_pool_printf(r->pool, "%.*s", (int)n->input.length, n->input.text);
    const bool plain = n->literal || text == NULL || strpbrk(text, "`?=") != NULL ||
                       strstr(text, "$(") != NULL || strchr(text, '$') == NULL;
    return plain ? text : stw_shell_expand(r, n->input, STW_SHELL_INPUT).text;
}

/* What it was given, to see what a change of the file changes. */
static void log_command(reader *r, const node *n, const stw_shell_list *words) {
    stw_shell *out = r->out;
    stw_shell_list list = {0};
    if (r->status != STW_STATUS_OK || words->n == 0 || r->inner > 0) return;
    out->cut = out->cut || out->n_logged + words->n > MAX_LOGGED;
    if (out->cut) return;
    stw_shell_command *grown =
        stw_pool_grow(r->pool, out->commands, out->n_commands, out->n_commands + 1,
                      &out->commands_capacity, sizeof *grown);
    if (grown == NULL) {
        stw_shell_fail_memory(r);
        return;
    }
    out->commands = grown;
    for (size_t i = 0; i < words->n; i++) stw_shell_list_add(r, &list, words->items[i]);
    if (n->has_input)
        stw_shell_list_add(r, &list, (stw_shell_word){.text = input_of(r, n), .line = n->line});
    for (size_t i = 0; i < list.n; i++) stw_shell_finish(r, &list.items[i]);
    out->n_logged += list.n;
    grown[out->n_commands++] =
        (stw_shell_command){n->line, begin_of(r, &n->words[0]), list.n, list.items};
}

void stw_shell_run_simple(reader *r, const node *n) {
    size_t first = 0, n_values = 0;
    while (first < n->n &&
           stw_scan_assignment(n->words[first].text, n->words[first].text + n->words[first].length))
        first++;
    if (first == n->n) {
        run_assignments(r, n);
        return;
    }
    stw_shell_list words = {0};
    const bool declares = stw_shell_declares(n->words[first]);
    stw_shell_assignment *values = stw_pool_array(r->pool, n->n, sizeof *values);
    if (values == NULL) stw_shell_fail_memory(r);
    if (declares && first > 0) stw_shell_poison(r, "assignments before export, local or declare");
    r->substituted = false;
    for (size_t i = first; i < n->n && r->status == STW_STATUS_OK; i++) {
        const stw_shell_raw *raw = &n->words[i];
        const size_t before = words.n;
        if (declares && i > first && stw_shell_has_braces(*raw))
            stw_shell_poison(r, "{ } in an assignment of export, local or declare");
        if (declares && i > first && stw_shell_read_assignment(r, *raw, &values[n_values])) {
            n_values++;
            continue;
        }
        stw_shell_expand_words(r, *raw, &words);
        for (size_t k = before; k < words.n; k++) {
            words.items[k].source = stw_pool_printf(r->pool, "%.*s", (int)raw->length, raw->text);
            words.items[k].behind = behind(r, raw);
        }
    }
    if (!declares) log_command(r, n, &words);
    const size_t n_saved = r->state->n_saved;
    for (size_t i = 0; i < first && r->status == STW_STATUS_OK; i++) {
        stw_shell_assignment a;
        if (!stw_shell_read_assignment(r, n->words[i], &a)) continue;
        if (words.n > 0) stw_shell_state_save(r, a.name, a.length);
        stw_shell_assign(r, &a, words.n > 0);
    }
    if (r->status != STW_STATUS_OK) return;
    if (declares && r->calls == 0 && is(r, &words.items[0], "local")) {
        stw_shell_end_with(r, STW_SHELL_NO); /* bash says that it is wrong */
    } else if (declares) {
        stw_shell_declare(r, &words, values, n_values);
        stw_shell_end_with(r, STW_SHELL_YES);
    } else {
        run_words(r, n, words.items, words.n);
    }
    if (r->status == STW_STATUS_OK && !r->state->dead && !declares)
        stw_shell_state_restore(r, n_saved);
}
