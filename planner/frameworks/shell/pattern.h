/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of a shell: * ? [...], where a backslash makes the next character stand for itself.
 * Pure; any thread may call. */
#ifndef STW_PLANNER_SHELL_PATTERN_H
#define STW_PLANNER_SHELL_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

/** Does all of a text match? */
bool stw_pattern_matches(const char *pattern, const char *text, size_t length);
/** The length of the shortest or longest beginning (or end) that matches; SIZE_MAX: none does. */
size_t stw_pattern_end(const char *pattern, const char *text, bool at_end, bool longest);
/** Has it brackets with a sign before them, as in +(a|b), or a class as in [[:digit:]]? Those are
 * not read. */
bool stw_pattern_is_extended(const char *pattern);

#endif
