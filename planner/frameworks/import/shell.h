/* SPDX-License-Identifier: Apache-2.0 */
/* One command of a launch script, as a shell would see it where that stands plainly: quotes, line
 * continuations, comments, variables and arrays set before, ${name:-default}, $((...)) and
 * $(expr ...), branches whose tests the script itself decides. What only a running shell knows
 * stays as written; a word that hangs on an open test is marked. Everything lies in the caller's
 * pool; one thread at a time. */
#ifndef STW_PLANNER_IMPORT_SHELL_H
#define STW_PLANNER_IMPORT_SHELL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"
#include "core/status.h"

typedef struct stw_shell_word {
    const char *text;
    int line;
    int maybe;          /* the line of a command that gives it and may not run; 0: none */
    const char *source; /* a word that a shell expands to it, whatever its arguments and environment
                           are: "$1/logs" where the script has DIR=$1 */
} stw_shell_word;

typedef struct stw_shell_variable {
    const char *name;
    size_t n, capacity; /* 1 unless it is an array */
    stw_shell_word *words;
    bool exported; /* commands see it */
    bool array;
} stw_shell_variable;

typedef struct stw_shell {
    stw_pool *pool;
    size_t n_words, words_capacity;
    stw_shell_word *words; /* of the command that was found */
    const char *rest;      /* "$@" where the command passes the script's arguments on, or NULL */
    size_t n_found;        /* commands that were wanted; the last one counts */
    size_t n_variables, variables_capacity;
    stw_shell_variable *variables; /* as they stood at that command */
} stw_shell;

/** Read a script and keep the last command that `wanted` accepts.
 * @param out found nothing: n_found is 0 */
STW_MUST_USE stw_status stw_shell_find(const char *path, const char *text, size_t length,
                                       bool (*wanted)(const stw_shell_word *words, size_t n),
                                       stw_pool *pool, stw_shell *out, stw_error *err);
/** The value of a variable, or NULL; of an array, its first word. */
const stw_shell_variable *stw_shell_variable_of(const stw_shell *shell, const char *name);
const char *stw_shell_value(const stw_shell *shell, const char *name);

#endif
