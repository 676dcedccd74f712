/* SPDX-License-Identifier: Apache-2.0 */
/* Does a run file agree with itself? Part of its reader. */
#ifndef STW_PLAN_RUN_CHECK_H
#define STW_PLAN_RUN_CHECK_H

#include "core/tree.h"
#include "plan/files/run_file.h"

/** BAD_INPUT with file, line, found and expected where members contradict each other.
 * @param complete written by Stowage: every rank and node is there, and peaks repeat what they say
 */
STW_MUST_USE stw_status stw_run_result_check(const stw_tree *tree, const stw_run_result *result,
                                             bool complete, stw_error *err);

#endif
