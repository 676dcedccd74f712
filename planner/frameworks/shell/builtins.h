/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the shell itself that change what a script has set. One thread at a time. */
#ifndef STW_PLANNER_SHELL_BUILTINS_H
#define STW_PLANNER_SHELL_BUILTINS_H

#include "planner/frameworks/shell/state.h"

/* NAME=value, with the value as it is when the words of a command are expanded. */
typedef struct stw_shell_assignment {
    const char *name;
    size_t length;
    bool append, element, array, odd;
    size_t index;
    stw_shell_list words;
} stw_shell_assignment;

/** Is it a word that assigns, and what? */
bool stw_shell_read_assignment(stw_shell_reader *r, stw_shell_raw raw, stw_shell_assignment *out);
void stw_shell_assign(stw_shell_reader *r, const stw_shell_assignment *a, bool exported);

/** Is it a builtin whose arguments assign: export, local ...? */
bool stw_shell_declares(stw_shell_raw word);
void stw_shell_declare(stw_shell_reader *r, const stw_shell_list *words,
                       const stw_shell_assignment *assignments, size_t n);
/** source FILE ...; the state has its status then. */
void stw_shell_source(stw_shell_reader *r, const stw_shell_word *words, size_t n);
/** Run a builtin; the state has its status then. @return false: it is none */
bool stw_shell_builtin(stw_shell_reader *r, const stw_shell_word *words, size_t n);

#endif
