/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the commands of a script on what it has set. One thread at a time. */
#ifndef STW_PLANNER_SHELL_RUN_H
#define STW_PLANNER_SHELL_RUN_H

#include "planner/frameworks/shell/state.h"

struct stw_shell_loop {
    stw_shell_loop *parent;
    stw_shell_state broken, continued; /* dead: no way leads there */
};

struct stw_shell_call {
    stw_shell_state returned;
};

/** Run a list of commands. */
void stw_shell_run(stw_shell_reader *r, const stw_shell_node *list);
/** Run a command and its words. */
void stw_shell_run_simple(stw_shell_reader *r, const stw_shell_node *node);
/** Run a text, whose lines begin at `line`, up to its end or an exit.
 * @param one_line all of it counts as that line */
void stw_shell_run_text(stw_shell_reader *r, const char *text, size_t length, int line,
                        bool one_line);
/** The same of the file. @param places the text has its bytes, one by one */
void stw_shell_run_file(stw_shell_reader *r, const char *text, size_t length, bool places);
/** The same of the text of a word. */
void stw_shell_run_word(stw_shell_reader *r, const stw_shell_word *word, int line, bool one_line);
/** A command has ended, and the state has its status: `set -e` may end the script. */
void stw_shell_end_command(stw_shell_reader *r);
/** The same with a status of 0 or 1. */
void stw_shell_end_with(stw_shell_reader *r, stw_shell_truth status);
/** The script ends with the status that the state has. */
void stw_shell_exit(stw_shell_reader *r);
/** Run commands whose output is taken: what they set is lost but their status. */
void stw_shell_run_inner(stw_shell_reader *r, const stw_shell_node *list);

#endif
