/* SPDX-License-Identifier: Apache-2.0 */
/* Where arguments stand in the text of a script: for changes in place, which are read back before
 * anything is written. It knows quotes, comments, arrays and here-documents, and runs nothing.
 * Internal to the writers of settings; one thread at a time. */
#ifndef STW_PLANNER_EMIT_SCRIPT_WORDS_H
#define STW_PLANNER_EMIT_SCRIPT_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"

typedef struct stw_script {
    const char *text;
    size_t length;
    const char *kinds; /* of each byte; [length] */
} stw_script;

typedef struct stw_script_site {
    size_t begin, end;             /* of the argument with its value */
    size_t value_begin, value_end; /* equal: it has none */
    bool equals;                   /* name=value in one word */
    bool in_quotes;                /* of a text that is split into words later */
} stw_script_site;

/** @return false: out of memory */
bool stw_script_read(const char *text, size_t length, stw_pool *pool, stw_script *out);
/** Where an argument is given: "--name" with - or _, or "name" with one or more + before it.
 * @param dashed with "--", and words after it as its value; else name=value alone
 * @param last the last place that has it; else the first
 * @return is there one? */
bool stw_script_find(const stw_script *script, const char *name, bool dashed, bool last,
                     stw_script_site *out);
/** Cut the argument out, with its line where nothing else is on it. @param from, to out */
void stw_script_without(const stw_script *script, const stw_script_site *site, size_t *from,
                        size_t *to);
/** The first line that is no comment: what is exported there is seen by all commands. */
size_t stw_script_top(const stw_script *script);

#endif
