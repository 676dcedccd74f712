/* SPDX-License-Identifier: Apache-2.0 */
/* One command of a launch script, as bash runs it without arguments and with nothing in the
 * environment that the script asks for. Every construct is evaluated as bash does, or what it gives
 * is marked: a word with an expansion that only a running shell knows is `unknown` and keeps the
 * expansion as written; a word that hangs on a test which the script does not decide has `maybe`.
 * Files are unknown, but those that it sources and that lie beside it are read, and none is named
 * as a list, a sum or a pattern of layers is (`a=['b']`, `[0]*3+[1]`, `M-M*-M`). Programs change no
 * variable, and end. What is read by none of this is refused with its line. Everything lies in the
 * caller's pool; one thread at a time. */
#ifndef STW_PLANNER_SHELL_SHELL_H
#define STW_PLANNER_SHELL_SHELL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/pool.h"
#include "core/status.h"

/* Where `n` bytes of a text stand in the file: byte by byte from `begin` on, or as one expansion
 * (places.h). */
typedef struct stw_shell_place {
    uint32_t n, begin, end; /* end 0: nobody knows */
    bool unit;              /* an expansion */
} stw_shell_place;

typedef struct stw_shell_places {
    size_t n; /* bytes after the last one have no place */
    const stw_shell_place *items;
} stw_shell_places;

typedef struct stw_shell_word {
    const char *text;
    int line;
    int maybe;          /* the line of a command that gives it and may not run; 0: none */
    bool unknown;       /* `text` has an expansion, or a pattern of files */
    const char *source; /* a word that a shell expands to it, whatever its arguments and environment
                           are: "$1/logs" where the script has DIR=$1 */
    stw_shell_places at; /* of each byte of `text` */
    size_t behind; /* the end of the word of the command that gives it, in the file; 0: unknown */
} stw_shell_word;

/* A command that ran, or may have. */
typedef struct stw_shell_command {
    int line;
    size_t begin; /* where its first word stands in the file, plus 1; 0: unknown */
    size_t n;
    const stw_shell_word *words; /* with expansions that give none, and its here-document */
} stw_shell_command;

typedef struct stw_shell_variable {
    const char *name;
    size_t n; /* 1 unless it is an array */
    const stw_shell_word *words;
    bool exported; /* commands see it */
    bool array;
    bool unset;    /* while a script is read: it has no value, whatever the environment has */
    bool odd;      /* while a script is read: its value is not known */
    bool typed;    /* while a script is read: an integer, a map ...; it stays odd */
    bool readonly; /* while a script is read */
    int line;      /* of its last assignment */
} stw_shell_variable;

/* What `source` names. */
typedef struct stw_shell_source_file {
    const char *path; /* where it was read, or as the script has it */
    int line;
    bool read; /* it lies beside the script; otherwise it is an environment's, and sets nothing that
                  a launch takes */
} stw_shell_source_file;

/* A command that was wanted. */
typedef struct stw_shell_found {
    int line;
    const void *node; /* which one it is */
    size_t n;
    const stw_shell_word *words;
} stw_shell_found;

typedef struct stw_shell {
    stw_pool *pool;
    size_t n_words;
    stw_shell_word *words; /* of the command that was found */
    const char *rest;      /* "$@" where the command passes the script's arguments on, and other
                              words that are none if the environment sets nothing; or NULL */
    int between;           /* the line of such a word that others stand behind; 0: none */
    size_t begin;          /* of the command, as in stw_shell_command */
    size_t insert;         /* in the file, behind its last word before `rest`; 0: unknown */
    size_t n_commands, commands_capacity;
    size_t n_logged;             /* words of them */
    bool cut;                    /* there were more commands than are kept */
    bool made;                   /* the command stands in a text that another runs: bash -c, eval */
    stw_shell_command *commands; /* all, in their order; of loops and functions each time */
    size_t n_found;              /* commands that were wanted; the last one counts */
    int unsure;                  /* a line on which it hangs whether that runs; 0: it runs */
    int ambiguous;  /* the line of the last one, where another may be the last; 0: none */
    bool arguments; /* it runs if the script has arguments; without them it ends before */
    int unread;     /* the line from which on the text is no script; bash ends there, too. Also
                       of a reading that failed because of it */
    size_t n_several, several_capacity;
    stw_shell_found *several; /* of them, those with different words; not of loops */
    size_t n_sources, sources_capacity;
    stw_shell_source_file *sources;
    size_t n_variables;
    stw_shell_variable *variables; /* as they stood at that command; at the end if n_found is 0 */
} stw_shell;

/** Read a script and keep the last command that `wanted` accepts.
 * @param path of the script, beside which files are that it sources
 * @param out found nothing: n_found is 0 */
STW_MUST_USE stw_status stw_shell_find(const char *path, const char *text, size_t length,
                                       bool (*wanted)(const stw_shell_word *words, size_t n),
                                       stw_pool *pool, stw_shell *out, stw_error *err);
/** The same of commands that have a word in a line of the file. @param line 0: any
 * @param out with the pool */
STW_MUST_USE stw_status stw_shell_find_at(const char *path, const char *text, size_t length,
                                          int line,
                                          bool (*wanted)(const stw_shell_word *words, size_t n),
                                          stw_shell *out, stw_error *err);
/** A variable that has a value, or NULL. */
const stw_shell_variable *stw_shell_variable_of(const stw_shell *shell, const char *name);
/** The value of a variable that commands see, or NULL. */
const char *stw_shell_value(const stw_shell *shell, const char *name);

#endif
