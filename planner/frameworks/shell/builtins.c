/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/builtins.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frameworks/shell/conditions.h"
#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/places.h"
#include "planner/frameworks/shell/scan.h"
#include "planner/frameworks/shell/sums.h"

typedef stw_shell_reader reader;
typedef stw_shell_truth truth;

/* The text of a word that is known, else "". */
static const char *known_text(reader *r, const stw_shell_word *word) {
    return stw_shell_is_known(word) ? stw_shell_plain(r, word->text) : "";
}

static void forget(reader *r, const char *name) {
    const size_t n = strlen(name);
    const size_t length = stw_scan_name(name, name + n);
    if (length > 0) stw_shell_state_forget(r, name, length);
}

/* ---- set, shopt, shift ---- */

static void set_option(reader *r, const char *name, bool on) {
    static const char *const idle[] = {
        "x",       "v",          "b",        "B",         "h",         "H",
        "m",       "P",          "C",        "E",         "T",         "xtrace",
        "verbose", "monitor",    "errtrace", "functrace", "noclobber", "braceexpand",
        "hashall", "histexpand", "history",  "notify",    "physical"};
    stw_shell_state *s = r->state;
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        if (strcmp(name, idle[i]) != 0) continue;
        const bool braces = strcmp(name, "B") == 0 || strcmp(name, "braceexpand") == 0;
        if (braces && !on) stw_shell_poison(r, "set +B");
        return;
    }
    if (strcmp(name, "e") == 0 || strcmp(name, "errexit") == 0)
        s->errexit = on ? STW_SHELL_YES : STW_SHELL_NO;
    else if (strcmp(name, "u") == 0 || strcmp(name, "nounset") == 0)
        s->nounset = on ? STW_SHELL_YES : STW_SHELL_NO;
    else if (strcmp(name, "a") == 0 || strcmp(name, "allexport") == 0)
        s->allexport = on;
    else if (strcmp(name, "f") == 0 || strcmp(name, "noglob") == 0)
        s->noglob = on;
    else if (strcmp(name, "pipefail") == 0)
        s->pipefail = on ? STW_SHELL_YES : STW_SHELL_NO;
    else
        stw_shell_poison(r, "an option of set");
}

static void set_arguments(reader *r, const stw_shell_word *words, size_t n) {
    stw_shell_state *s = r->state;
    stw_shell_list list = {0};
    const bool same = n == 1 && stw_value_is_arguments(words[0].text);
    if (same) return; /* set -- "$@" */
    s->odd_arguments = false;
    for (size_t i = 0; i < n; i++) {
        stw_shell_list_add(r, &list, words[i]);
        s->odd_arguments = s->odd_arguments || stw_shell_is_several(&words[i]);
    }
    s->arguments = list.items;
    s->n_arguments = list.n;
    s->script_arguments = false;
}

static void set(reader *r, const stw_shell_word *words, size_t n) {
    size_t i = 1;
    for (; i < n; i++) {
        const char *text = known_text(r, &words[i]);
        if (strcmp(text, "--") == 0 || strcmp(text, "-") == 0) break;
        if ((*text != '-' && *text != '+') || text[1] == '\0') break;
        const bool on = *text == '-';
        for (const char *c = text + 1; *c != '\0'; c++) {
            const char letter[] = {*c, '\0'};
            if (*c == 'o' && i + 1 < n)
                set_option(r, known_text(r, &words[++i]), on);
            else if (*c != 'o')
                set_option(r, letter, on);
        }
    }
    if (i >= n) return;
    const bool one = strcmp(known_text(r, &words[i]), "-") == 0;
    const bool dashes = one || strcmp(known_text(r, &words[i]), "--") == 0;
    if (one && i + 1 == n) return; /* arguments stay */
    const stw_value_kind kind = stw_value_kind_of(words[i].text);
    if (!dashes && kind.unknown && !kind.literal)
        stw_shell_poison(r, "an option of set that is not known");
    set_arguments(r, words + i + dashes, n - i - dashes);
}

static truth shift(reader *r, const stw_shell_word *words, size_t n) {
    stw_shell_state *s = r->state;
    const char *text = n > 1 ? known_text(r, &words[1]) : "1";
    char *end;
    const unsigned long k = strtoul(text, &end, 10);
    if (*text == '\0' || *end != '\0' || k > 4096) {
        s->odd_arguments = true;
        return STW_SHELL_MAYBE;
    }
    if (s->script_arguments) {
        s->shifted += k;
        return k == 0 ? STW_SHELL_YES : r->arguments_unknown ? STW_SHELL_MAYBE : STW_SHELL_NO;
    }
    for (size_t i = 0; i < s->n_arguments && i < k; i++)
        s->odd_arguments = s->odd_arguments || stw_value_is_arguments(s->arguments[i].text);
    const bool odd = s->odd_arguments;
    if (k > s->n_arguments) return odd ? STW_SHELL_MAYBE : STW_SHELL_NO;
    s->arguments += k;
    s->n_arguments -= k;
    return odd ? STW_SHELL_MAYBE : STW_SHELL_YES;
}

static truth shopt(reader *r, const stw_shell_word *words, size_t n) {
    static const char *const idle[] = {"inherit_errexit", "checkwinsize", "histappend", "huponexit",
                                       "sourcepath",      "cmdhist",      "checkjobs"};
    bool sets = false, clears = false;
    for (size_t i = 1; i < n; i++) {
        const char *text = known_text(r, &words[i]);
        bool known = *text == '-';
        sets = sets || strcmp(text, "-s") == 0 || strcmp(text, "-o") == 0;
        clears = clears || strcmp(text, "-u") == 0;
        if ((sets || clears) && strcmp(text, "inherit_errexit") == 0) r->state->inherits = sets;
        for (size_t k = 0; k < sizeof idle / sizeof idle[0]; k++)
            known = known || strcmp(text, idle[k]) == 0;
        if (sets && !known) stw_shell_poison(r, "an option of shopt");
    }
    return STW_SHELL_MAYBE;
}

/* ---- variables ---- */

static truth unset(reader *r, const stw_shell_word *words, size_t n) {
    bool functions = false;
    truth status = STW_SHELL_YES;
    for (size_t i = 1; i < n; i++) {
        const char *text = known_text(r, &words[i]);
        const size_t length = stw_scan_name(text, text + strlen(text));
        if (strcmp(text, "-f") == 0) functions = true;
        if (*text == '-') continue;
        if (functions) {
            stw_shell_state_define(r, text, NULL);
        } else if (length == 0) {
            stw_shell_state_change_all(r, false);
        } else if (text[length] == '[') {
            forget(r, text);
        } else {
            if (stw_shell_state_function(r->state, text) != NULL &&
                stw_shell_state_find(r->state, text, length) == NULL)
                stw_shell_state_define(r, text, NULL);
            stw_shell_state_assign(r, text, length, (stw_shell_variable){.unset = true});
            stw_shell_variable *v = stw_shell_state_find(r->state, text, length);
            if (v != NULL && v->readonly) status = STW_SHELL_NO;
            if (v == NULL || v->readonly) continue;
            v->exported = v->typed = v->array = v->odd = false;
            v->unset = true;
        }
    }
    return status;
}

/* read, mapfile: every name among the words gets what only a running shell knows. */
static truth read_names(reader *r, const stw_shell_word *words, size_t n, const char *fallback) {
    for (size_t i = 1; i < n; i++) {
        const char *text = known_text(r, &words[i]);
        if (*text == '\0') stw_shell_state_change_all(r, true);
        if (*text != '-') forget(r, text);
    }
    forget(r, fallback);
    return STW_SHELL_MAYBE;
}

static truth getopts(reader *r, const stw_shell_word *words, size_t n) {
    const stw_shell_state *s = r->state;
    const bool none = n == 3 && !s->odd_arguments &&
                      (s->script_arguments ? !r->arguments_unknown : s->n_arguments == 0);
    if (n > 2) forget(r, known_text(r, &words[2]));
    forget(r, "OPTARG");
    if (none) return STW_SHELL_NO;
    forget(r, "OPTIND");
    return STW_SHELL_MAYBE;
}

/* %s, %d and text, with as many words as they take. @return NULL: not known */
static const char *format(reader *r, const stw_shell_word *words, size_t n) {
    const char *form = known_text(r, &words[0]);
    stw_text text = STW_TEXT_INIT;
    size_t used = 1;
    bool known = *form != '\0' && strchr(form, '\\') == NULL;
    for (const char *c = form; known && *c != '\0'; c++) {
        if (*c != '%') {
            stw_text_append(&text, c, 1);
            continue;
        }
        c++;
        if (*c == '%') {
            stw_text_append(&text, c, 1);
            continue;
        }
        known = used < n && (*c == 's' || *c == 'd') && stw_shell_is_known(&words[used]);
        const char *word = known ? stw_shell_plain(r, words[used++].text) : "";
        if (known && *c == 'd')
            known = *word != '\0' && *word != '0' && strspn(word, "0123456789") == strlen(word);
        stw_text_append(&text, word, strlen(word));
    }
    known = known && used == n;
    const char *out = known ? stw_pool_string(r->pool, text.data != NULL ? text.data : "") : NULL;
    stw_text_free(&text);
    return out;
}

static truth print(reader *r, const stw_shell_word *words, size_t n) {
    if (n < 3 || strcmp(known_text(r, &words[1]), "-v") != 0) return STW_SHELL_YES;
    const char *name = known_text(r, &words[2]);
    const char *text = n > 3 ? format(r, words + 3, n - 3) : NULL;
    if (text == NULL || stw_scan_name(name, name + strlen(name)) != strlen(name)) {
        if (*name == '\0') stw_shell_state_change_all(r, true);
        forget(r, name);
        return STW_SHELL_MAYBE;
    }
    stw_shell_list list = {0};
    stw_shell_list_add(r, &list, (stw_shell_word){.text = text, .line = r->line});
    stw_shell_state_assign(r, name, strlen(name),
                           (stw_shell_variable){.n = list.n, .words = list.items});
    return STW_SHELL_YES;
}

static truth let(reader *r, const stw_shell_word *words, size_t n) {
    truth status = STW_SHELL_NO;
    for (size_t i = 1; i < n; i++) {
        const stw_value_kind kind = stw_value_kind_of(words[i].text);
        const stw_shell_sum sum = stw_shell_calculate(r, stw_shell_plain(r, words[i].text));
        if (kind.unknown) stw_shell_state_change_all(r, true);
        status = sum.error                                                  ? STW_SHELL_NO
                 : !sum.known || sum.maybe > 0 || kind.unknown || kind.open ? STW_SHELL_MAYBE
                 : sum.value != 0                                           ? STW_SHELL_YES
                                                                            : STW_SHELL_NO;
    }
    return status;
}

/* ---- other texts ---- */

static void eval(reader *r, const stw_shell_word *words, size_t n) {
    const char *text = "";
    stw_shell_place_list places = {0};
    for (size_t i = 1; i < n && text != NULL; i++) {
        if (i > 1) stw_shell_places_add(r->pool, &places, (stw_shell_place){.n = 1});
        stw_shell_places_add_part(r->pool, &places, &words[i].at, 0, strlen(words[i].text));
        text = i == 1 ? words[i].text : stw_pool_printf(r->pool, "%s %s", text, words[i].text);
    }
    if (text == NULL) {
        stw_shell_fail_memory(r);
        return;
    }
    const char *first = text + strspn(text, " \t\n\x01");
    static const char hook[] = "$(conda shell."; /* functions of conda */
    if ((*first == STW_MARK_BARE || *first == STW_MARK_QUOTED) &&
        strncmp(first + 1, hook, sizeof hook - 1) == 0) {
        stw_shell_set_status(r->state, STW_SHELL_MAYBE);
        return;
    }
    if (*first == STW_MARK_BARE || *first == STW_MARK_QUOTED || strpbrk(text, "\x01\x02") != NULL) {
        stw_shell_state_change_all(r, true); /* it may be any command */
    }
    if (*first == '\0') stw_shell_set_status(r->state, STW_SHELL_YES);
    const stw_shell_word all = {.text = text, .at = {places.n, places.items}};
    r->execute(r, &all, r->line);
}

static void trap(reader *r, const stw_shell_word *words, size_t n) {
    for (size_t i = 2; i < n; i++) {
        const char *signal = known_text(r, &words[i]);
        const bool ends = strcmp(signal, "EXIT") == 0 || strcmp(signal, "0") == 0;
        if (strcmp(signal, "ERR") == 0 || strcmp(signal, "DEBUG") == 0 ||
            strcmp(signal, "RETURN") == 0)
            stw_shell_poison(r, "trap of ERR, DEBUG or RETURN");
        if (!ends || strcmp(known_text(r, &words[1]), "-") == 0) continue;
        stw_shell_state *state = r->state, copy;
        const stw_shell out = *r->out;
        stw_shell_state_copy(r, &copy, state);
        r->state = &copy;
        r->execute(r, &words[1], r->line);
        r->state = state;
        stw_shell_state_free(&copy);
        if (r->out->n_found != out.n_found) stw_shell_poison(r, "a command that trains in trap");
        const stw_shell now = *r->out;
        *r->out = out;
        r->out->commands = now.commands;
        r->out->n_commands = now.n_commands;
        r->out->commands_capacity = now.commands_capacity;
        r->out->n_logged = now.n_logged;
        r->out->cut = now.cut;
    }
}

/* Those that run a text end with its status. @return false: it is none */
static bool run_text(reader *r, const char *name, const stw_shell_word *words, size_t n) {
    if (strcmp(name, "eval") == 0)
        eval(r, words, n);
    else if (strcmp(name, "source") == 0 || strcmp(name, ".") == 0)
        stw_shell_source(r, words, n);
    else
        return false;
    return true;
}

static bool is_test(const char *name) {
    return strcmp(name, "test") == 0 || strcmp(name, "[") == 0;
}

/* @return false: it is no builtin */
static bool run(reader *r, const char *name, const stw_shell_word *words, size_t n, truth *status) {
    static const char *const fine[] = {":", "true", "echo", "alias"};
    static const char *const other[] = {
        "pwd",  "hash",   "umask", "wait",    "type",    "times",    "jobs",    "disown",
        "kill", "ulimit", "help",  "unalias", "compgen", "complete", "history", "bind",
        "fc",   "fg",     "bg",    "caller",  "suspend", "logout",   "dirs"};
    *status = STW_SHELL_MAYBE;
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        if (strcmp(name, fine[i]) == 0) {
            *status = STW_SHELL_YES;
            return true;
        }
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(name, other[i]) == 0) return true;
    if (strcmp(name, "false") == 0)
        *status = STW_SHELL_NO;
    else if (strcmp(name, "test") == 0)
        *status = stw_shell_test(r, words + 1, n - 1);
    else if (strcmp(name, "[") == 0 && n > 1)
        *status = stw_shell_test(r, words + 1, n - 2);
    else if (strcmp(name, "set") == 0)
        set(r, words, n), *status = STW_SHELL_YES;
    else if (strcmp(name, "shift") == 0)
        *status = shift(r, words, n);
    else if (strcmp(name, "shopt") == 0)
        *status = shopt(r, words, n);
    else if (strcmp(name, "unset") == 0)
        *status = unset(r, words, n);
    else if (strcmp(name, "read") == 0)
        *status = read_names(r, words, n, "REPLY");
    else if (strcmp(name, "mapfile") == 0 || strcmp(name, "readarray") == 0)
        *status = read_names(r, words, n, "MAPFILE");
    else if (strcmp(name, "getopts") == 0)
        *status = getopts(r, words, n);
    else if (strcmp(name, "printf") == 0)
        *status = print(r, words, n);
    else if (strcmp(name, "let") == 0)
        *status = let(r, words, n);
    else if (strcmp(name, "trap") == 0)
        trap(r, words, n), *status = STW_SHELL_YES;
    else if (strcmp(name, "cd") == 0 || strcmp(name, "pushd") == 0 || strcmp(name, "popd") == 0)
        forget(r, "PWD"), forget(r, "OLDPWD"), r->state->moved = true;
    else if (strcmp(name, "enable") == 0 || strcmp(name, "coproc") == 0)
        stw_shell_poison(r, name);
    else
        return false;
    return true;
}

bool stw_shell_builtin(reader *r, const stw_shell_word *words, size_t n) {
    const char *name = known_text(r, &words[0]);
    truth status;
    if (run_text(r, name, words, n)) return true;
    if (!run(r, name, words, n, &status)) return false;
    stw_shell_set_status(r->state, status);
    const bool doubts = is_test(name) || strcmp(name, "let") == 0 || strcmp(name, "shift") == 0;
    r->state->doubt = status == STW_SHELL_MAYBE && doubts;
    return true;
}
