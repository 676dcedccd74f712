/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/shell/shell.h"

#include <string.h>

#include "planner/frameworks/shell/expand.h"
#include "planner/frameworks/shell/run.h"

const stw_shell_variable *stw_shell_variable_of(const stw_shell *shell, const char *name) {
    for (size_t i = 0; i < shell->n_variables; i++)
        if (strcmp(shell->variables[i].name, name) == 0) return &shell->variables[i];
    return NULL;
}

const char *stw_shell_value(const stw_shell *shell, const char *name) {
    const stw_shell_variable *v = stw_shell_variable_of(shell, name);
    return v != NULL && v->n > 0 && v->exported ? v->words[0].text : NULL;
}

static void execute(stw_shell_reader *r, const stw_shell_word *text, int line) {
    stw_shell_run_word(r, text, line, true);
}

static void keep_end(stw_shell_reader *r) {
    const stw_shell_state *s = r->state;
    stw_shell_variable *copy = stw_pool_array(r->pool, s->n_variables + 1, sizeof *copy);
    if (copy == NULL) stw_shell_fail_memory(r);
    r->out->variables = copy;
    r->out->n_variables = 0;
    for (size_t i = 0; copy != NULL && i < s->n_variables; i++) {
        const stw_shell_variable *v = &s->variables[i];
        if (*v->name == '\0' || v->unset || v->odd || v->n != 1) continue;
        stw_shell_word *word = stw_pool_alloc(r->pool, sizeof *word);
        if (word == NULL) {
            stw_shell_fail_memory(r);
            break;
        }
        *word = v->words[0];
        word->text = stw_shell_plain(r, word->text);
        copy[r->out->n_variables] = *v;
        copy[r->out->n_variables++].words = word;
    }
}

/* Does the first line have an option such as -e or -eu? */
static bool has_option(const char *text, char option) {
    const char *end = text + strcspn(text, "\n"), *at = memchr(text, ' ', (size_t)(end - text));
    for (; at != NULL && at + 1 < end && at[1] == '-';
         at = memchr(at + 1, ' ', (size_t)(end - at) - 1))
        for (const char *c = at + 2; c < end && *c != ' '; c++)
            if (*c == option) return true;
    return false;
}

/* @param places the text is that of the file, byte by byte */
static stw_status read_once(stw_shell_reader *r, const char *text, size_t length, bool places) {
    stw_shell_state state = {.script_arguments = true, .status = STW_SHELL_YES};
    /* its first line counts where the system starts it, and not where bash does */
    if (length > 2 && memcmp(text, "#!", 2) == 0 && has_option(text, 'e'))
        state.errexit = STW_SHELL_MAYBE;
    r->state = &state;
    r->out->n_commands = r->out->n_logged = 0;
    stw_shell_run_file(r, text, length, places);
    r->out->unread = r->torn;
    if (r->torn > 0 && r->out->n_found > 0) r->status = STW_STATUS_OK; /* what is before has run */
    if (r->status == STW_STATUS_OK && r->out->n_found == 0) keep_end(r);
    stw_shell_state_free(&state);
    return r->status;
}

stw_status stw_shell_find(const char *path, const char *text, size_t length,
                          bool (*wanted)(const stw_shell_word *words, size_t n), stw_pool *pool,
                          stw_shell *out, stw_error *err) {
    out->pool = pool;
    return stw_shell_find_at(path, text, length, 0, wanted, out, err);
}

stw_status stw_shell_find_at(const char *path, const char *text, size_t length, int line,
                             bool (*wanted)(const stw_shell_word *words, size_t n), stw_shell *out,
                             stw_error *err) {
    stw_pool *pool = out->pool;
    stw_error why = STW_ERROR_INIT;
    const stw_shell_reader first = {.pool = pool,
                                    .path = path,
                                    .err = &why,
                                    .line = 1,
                                    .only = line,
                                    .wanted = wanted,
                                    .execute = execute,
                                    .expand_name = stw_shell_expand_name,
                                    .expand_parameter = stw_shell_expand_parameter,
                                    .output = stw_shell_output,
                                    .run_simple = stw_shell_run_simple,
                                    .run_inner = stw_shell_run_inner,
                                    .out = out};
    stw_status status = stw_value_check(path, text, length, err);
    *out = (stw_shell){.pool = pool};
    if (status != STW_STATUS_OK) return status;
    char *copy = stw_pool_alloc(pool, length + 1); /* with an end */
    if (copy == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    size_t kept = 0;
    for (size_t i = 0; i < length; i++) /* bash reads no zero bytes */
        if (text[i] != '\0') copy[kept++] = text[i];
    copy[kept] = '\0';
    const bool places = kept == length;
    text = copy;
    length = kept;
    stw_shell_reader r = first;
    status = read_once(&r, text, length, places);
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    if (status != STW_STATUS_OK || out->n_found > 0) return status;
    /* it may end without arguments, and say how it is called */
    const stw_shell none = *out;
    r = first;
    r.arguments_unknown = true;
    status = read_once(&r, text, length, places);
    if (status != STW_STATUS_OK && err != NULL) *err = why;
    out->arguments = out->n_found > 0;
    if (status == STW_STATUS_OK && !out->arguments) *out = none;
    return status;
}
