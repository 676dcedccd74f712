/* SPDX-License-Identifier: Apache-2.0 */
/* Where an argument of a command stands in its script, by the places of the words that the command
 * gets (shell/places.h). Internal to the writers of settings; pure. */
#ifndef STW_PLANNER_EMIT_ARGUMENT_H
#define STW_PLANNER_EMIT_ARGUMENT_H

#include "planner/frameworks/emit/script_words.h"
#include "planner/frameworks/shell/shell.h"

/** A name as a framework's flags have it, and another spelling; - and _ are the same. */
typedef struct stw_argument_name {
    const char *name, *alias; /* alias NULL: none */
} stw_argument_name;

/** Is the word this argument: --name or --name=value; or name=value, maybe after + ? */
bool stw_argument_is(const char *word, const stw_argument_name *name, bool dashed);
/** The value in the same word; NULL: there is none. */
const char *stw_argument_value(const char *word, bool dashed);
/** The last word before `to` that is the argument, from `from` on. @return its index plus 1, or 0
 */
size_t stw_argument_find(const stw_shell *shell, const stw_argument_name *name, bool dashed,
                         size_t from, size_t to);
/** Bytes of its value in the file. @param one a value of one word, as a launcher's is
 * @return false: it has none, or none of its own */
bool stw_argument_value_place(const stw_script *script, const stw_shell *shell, size_t word,
                              bool dashed, bool one, size_t *begin, size_t *end);
/** Bytes of the argument with its value and quotes. @return false: they are not beside each other
 */
bool stw_argument_place(const stw_script *script, const stw_shell *shell, size_t word, bool dashed,
                        size_t *begin, size_t *end);

#endif
