/* SPDX-License-Identifier: Apache-2.0 */
/* Which commands of a script run: if, case, loops, && and ||. What the script does not decide may
 * run or not. One thread at a time. */
#ifndef STW_PLANNER_IMPORT_SHELL_FLOW_H
#define STW_PLANNER_IMPORT_SHELL_FLOW_H

#include "planner/frameworks/import/shell.h"

/* In this order min is "and", max is "or". */
typedef enum stw_shell_truth { STW_SHELL_NO, STW_SHELL_MAYBE, STW_SHELL_YES } stw_shell_truth;

enum { STW_SHELL_MOST_FRAMES = 32 };

typedef struct stw_shell_frame {
    char kind; /* i: if, l: loop, c: case, g: { } */
    char op;   /* before the next part of the condition: & or |; 0: none */
    bool in_condition, in_pattern, until, negated, first;
    stw_shell_truth any, now;  /* earlier branches, this branch */
    stw_shell_truth condition; /* so far */
    const char *subject;       /* of case */
} stw_shell_frame;

typedef struct stw_shell_flow {
    stw_shell_frame frames[STW_SHELL_MOST_FRAMES];
    size_t n, skipped;     /* frames; those beyond the most, whose commands may run */
    stw_shell_truth chain; /* && and || before this command */
    bool defines;          /* the next { begins a function's body */
    stw_shell_truth called;
} stw_shell_flow;

/** Is it a word that begins or ends a part of the flow, at the start of a command? Takes it. */
bool stw_shell_flow_keyword(stw_shell_flow *flow, const char *word);
/** `name ()` or `function name` has ended: the next { } is a body, which may run if the name stands
 * elsewhere, too, and else does not.
 * @param text of the script up to `last`; `at` is moved over the brackets */
void stw_shell_flow_define(stw_shell_flow *flow, const stw_shell_word *words, size_t n, char end,
                           const char *text, const char *last, const char **at);
/** A command has ended. @param end what ended it: \n ; & | ) and A for &&, O for ||, C for ;; */
void stw_shell_flow_end(stw_shell_flow *flow, const stw_shell_word *words, size_t n, char end);
/** Does the command that is read now run? */
stw_shell_truth stw_shell_flow_runs(const stw_shell_flow *flow);
/** Is it a word before assignments or a command: export, env, exec ...? */
bool stw_shell_is_prefix(const char *word);
/** [ ... ], [[ ... ]], test ...; MAYBE of other commands. */
stw_shell_truth stw_shell_test(const stw_shell_word *words, size_t n);

#endif
