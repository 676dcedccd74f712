/* SPDX-License-Identifier: Apache-2.0 */
/* Every command of a script before and after its settings were changed: words, one by one. Internal
 * to the writers of settings; one thread at a time. */
#ifndef STW_PLANNER_EMIT_COMMANDS_H
#define STW_PLANNER_EMIT_COMMANDS_H

#include "core/text.h"
#include "planner/frameworks/emit/argument.h"

/** What is to change. */
typedef struct stw_commands_change {
    stw_argument_name name;
    const char *before, *after; /* NULL: the argument is not there; "" with `named`: --name alone */
} stw_commands_change;

typedef struct stw_commands {
    const stw_shell *before, *now;
    bool dashed;
    size_t n;
    const stw_commands_change *changes;
} stw_commands;

/** Do all commands get what they got, but for the changes? Arguments are added to the command that
 * was found alone; other commands that get a changed value are lines of `others`.
 * @param line out: of a command that gets something else; 0: another number of commands */
bool stw_commands_same(const stw_commands *of, stw_text *others, int *line);

#endif
