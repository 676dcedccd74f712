/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the members of a run file agree with each other. Part of its reader. */
#ifndef STW_PLAN_RUN_CHECK_H
#define STW_PLAN_RUN_CHECK_H

#include "core/tree.h"
#include "plan/files/run_file.h"

/** BAD_INPUT with file, line, found and expected if members contradict each other.
 * @param complete Stowage wrote it: it has every rank and node, and peaks that repeat their
 * values */
STW_MUST_USE stw_status stw_run_result_check(const stw_tree *tree, const stw_run_result *result,
                                             bool complete, stw_error *err);

#endif
