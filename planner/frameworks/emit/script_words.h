/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of a script are: quotes, comments, arrays, here-documents. It runs nothing.
 * Internal to the writers of settings; one thread at a time. */
#ifndef STW_PLANNER_EMIT_SCRIPT_WORDS_H
#define STW_PLANNER_EMIT_SCRIPT_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/pool.h"

enum { /* kinds of bytes */
       STW_SCRIPT_CODE = 'c',
       STW_SCRIPT_ARRAY = 'a',  /* between the brackets of NAME=( ) */
       STW_SCRIPT_SINGLE = 's', /* with the quotes */
       STW_SCRIPT_DOUBLE = 'd',
       STW_SCRIPT_COMMENT = '#',
       STW_SCRIPT_NESTED = 'n' /* $( ), ${ }, ` `, here-documents */
};

typedef struct stw_script {
    const char *text;
    size_t length;
    const char *kinds; /* of each byte; [length] */
} stw_script;

/** @return false: out of memory */
bool stw_script_read(const char *text, size_t length, stw_pool *pool, stw_script *out);
/** Bytes of an argument that is cut out, with blanks before it, and with its line where nothing
 * else is on it. @param from, to in and out */
void stw_script_widen(const stw_script *script, size_t *from, size_t *to);
/** The first line that is no comment: what is exported there is seen by all commands. */
size_t stw_script_top(const stw_script *script);

#endif
