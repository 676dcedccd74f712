/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of the members of a file. They reveal edits of members that a reader cannot derive
 * again: inputs, and the planner's evidence. A checksum covers values (XXH3-64), not text: spaces,
 * line breaks, the order of keys and the spelling of numbers do not count. The checksum "whole"
 * covers all members together, so that no member can come from another file. Private to plan/files.
 * Any thread may call. */
#ifndef STW_PLAN_CHECKSUMS_H
#define STW_PLAN_CHECKSUMS_H

#include "core/text.h"
#include "core/tree.h"

/** Append the member "checksums" at the end of `text`, a whole JSON object without it. */
STW_MUST_USE stw_status stw_checksums_append(stw_text *text, stw_error *err);
/** BAD_INPUT names the first member that has no checksum or differs from it, or says that the
 * members are not all from one file.
 * @param known [n_known] members that must have one
 * @param again how to make a new file, for the error: "plan again" */
STW_MUST_USE stw_status stw_checksums_check(const stw_tree *tree, const char *const *known,
                                            size_t n_known, const char *again, stw_error *err);

#endif
