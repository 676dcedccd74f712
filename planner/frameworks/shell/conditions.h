/* SPDX-License-Identifier: Apache-2.0 */
/* [ ... ] and [[ ... ]]. What they ask of files, and what hangs on unknown words, is MAYBE. One
 * thread at a time. */
#ifndef STW_PLANNER_SHELL_CONDITIONS_H
#define STW_PLANNER_SHELL_CONDITIONS_H

#include "planner/frameworks/shell/state.h"

/** Of the words of `test`, or those between [ and ]. */
stw_shell_truth stw_shell_test(stw_shell_reader *r, const stw_shell_word *words, size_t n);
/** Of a node [[ ... ]]. */
stw_shell_truth stw_shell_condition(stw_shell_reader *r, const stw_shell_node *node);

stw_shell_truth stw_shell_not(stw_shell_truth a);

#endif
