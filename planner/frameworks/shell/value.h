/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of a launch script while it is read. Characters below 32 mark what only a running shell
 * knows and what may not be there; words that leave the reader have none. Pure; any thread may
 * call. */
#ifndef STW_PLANNER_SHELL_VALUE_H
#define STW_PLANNER_SHELL_VALUE_H

#include <stdbool.h>

#include "core/status.h"
#include "core/text.h"

enum {
    STW_MARK_OPEN = 1, /* around parts that may not be there, or have another value */
    STW_MARK_CLOSE = 2,
    STW_MARK_BARE = 3,   /* begins an expansion as written, such as $1 or $(date) */
    STW_MARK_QUOTED = 4, /* the same, and it stands in double quotes */
    STW_MARK_VALUE = 5,  /* in an expansion: what follows is its value if the environment and the
                            script's arguments set nothing */
    STW_MARK_END = 6,    /* ends an expansion */
};

/* What a text is made of. */
typedef struct stw_value_kind {
    bool unknown; /* an expansion without a value */
    bool assumed; /* one with a value */
    bool open;    /* parts between OPEN and CLOSE */
    bool literal; /* a character outside of both */
    bool values;  /* a character of an assumed value */
} stw_value_kind;

stw_value_kind stw_value_kind_of(const char *text);
/** Is the word nothing but expansions that give none where the environment and the script's
 * arguments set nothing, such as "$@" and ${EXTRA:-}? "$*" and "${EXTRA:-}" are words. */
bool stw_value_is_arguments(const char *text);
/** BAD_INPUT: a script that has such characters of its own. */
STW_MUST_USE stw_status stw_value_check(const char *path, const char *text, size_t length,
                                        stw_error *err);
/** The text as a shell that only knows the script has it; expansions without a value stay. */
void stw_value_remove(const char *text, stw_text *out);
/** The text without STW_MARK_OPEN and _CLOSE. */
void stw_value_close(const char *text, stw_text *out);
/** A word that a shell expands to the text wherever it runs: quotes where characters are none of
 * its own, expansions as they were written. */
void stw_value_source(const char *text, stw_text *out);
/** The length of the expansion that begins at a mark BARE or QUOTED, with its end. */
size_t stw_value_expansion(const char *at, const char *end);

#endif
