/* SPDX-License-Identifier: Apache-2.0 */
/* Where parts of a script end: quotes, expansions, brackets. Pure; any thread may call. */
#ifndef STW_PLANNER_SHELL_SCAN_H
#define STW_PLANNER_SHELL_SCAN_H

#include <stdbool.h>
#include <stddef.h>

/** Behind the part that begins at `at` < `end`: a character, an escaped one, quotes, an expansion.
 * @param quoted it stands in double quotes
 * @param depth brackets around it
 * @return NULL: it does not end, or brackets stand too deep in each other */
const char *stw_scan_part(const char *at, const char *end, bool quoted, int depth);
/** Behind the bracket that closes the one at `at`; NULL as above. */
const char *stw_scan_brackets(const char *at, const char *end, int depth);

bool stw_scan_is_name_start(char c);
bool stw_scan_is_name(char c);
/** NAME=<path of the data> (e.g. x): what people are to fill in. @param at the < in the word that
 * begins at `start` @return its end, which is that of the line; NULL: it is none */
const char *stw_scan_placeholder(const char *start, const char *at, const char *end);
/** The length of a name; 0: there is none. */
size_t stw_scan_name(const char *at, const char *end);
/** The length of NAME=, NAME+= or NAME[...]= at the beginning of a word; 0: it is no assignment. */
size_t stw_scan_assignment(const char *at, const char *end);

#endif
