/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of a shell: * ? [...], where a backslash makes the next character stand for itself.
 * Pure; any thread may call. */
#ifndef STW_PLANNER_SHELL_PATTERN_H
#define STW_PLANNER_SHELL_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

enum { STW_PATTERN_MOST = 512 };

/** Does all of a text match? */
bool stw_pattern_matches(const char *pattern, const char *text, size_t length);
/** For each place of a text how long the shortest or longest part is that begins there and matches;
 * -1: none does. In as many steps as the product of both lengths.
 * @param at_end only parts that end with the text
 * @param out [length of the text + 1]
 * @return false: the text or the pattern is longer than STW_PATTERN_MOST bytes */
bool stw_pattern_lengths(const char *pattern, const char *text, bool longest, bool at_end,
                         int *out);
/** Has it brackets with a sign before them, as in +(a|b), or a class as in [[:digit:]]? Those are
 * not read. */
bool stw_pattern_is_extended(const char *pattern);

#endif
