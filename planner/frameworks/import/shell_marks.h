/* SPDX-License-Identifier: Apache-2.0 */
/* Marks in the text of a word while a script is read: what hangs on an open test, what a shell does
 * not expand, what it expands only when it runs. Pure; any thread may call. */
#ifndef STW_PLANNER_IMPORT_SHELL_MARKS_H
#define STW_PLANNER_IMPORT_SHELL_MARKS_H

#include <stdbool.h>

#include "core/status.h"
#include "core/text.h"

enum {
    STW_MARK_OPEN = 1,      /* around parts that may not run */
    STW_MARK_CLOSE = 2,     /* */
    STW_MARK_LITERAL = 3,   /* the next $ or ` begins no expansion */
    STW_MARK_QUOTED = 4,    /* the expansion that follows stands in double quotes */
    STW_MARK_ARGUMENTS = 5, /* "$@" */
    STW_MARK_BARE = 6,      /* $@ without quotes */
    STW_MARK_DEFAULT = 14,  /* ${name:-value} as written, with its value: DEFAULT ... VALUE ... */
    STW_MARK_VALUE = 15,
};

/** Is the character a mark? */
bool stw_mark_is(char c);
/** BAD_INPUT: a script that has such characters of its own. */
STW_MUST_USE stw_status stw_marks_check(const char *path, const char *text, size_t length,
                                        stw_error *err);
/** Append ${name:-value} of a variable that the environment may set, if its value is plain.
 * @param in between the braces, n characters, with the default from `value` on */
bool stw_marks_default(const char *in, size_t n, const char *value, bool quoted, stw_text *out);
/** The text as a shell that only knows the script has it. */
void stw_marks_remove(const char *text, stw_text *out);
/** The text without STW_MARK_OPEN and _CLOSE. */
void stw_marks_close(const char *text, stw_text *out);
/** A word that a shell expands to the text wherever it runs: quotes where characters are none of
 * its own, expansions as they were written. */
void stw_marks_source(const char *text, stw_text *out);

#endif
