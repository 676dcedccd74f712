/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of the members of a file, so that a reader notices an edit of what cannot be derived
 * again: inputs, and what the planner said of its own work. They are of values (XXH3-64), not of
 * text: spaces, line breaks, the order of keys and the spelling of numbers do not count. One more,
 * "whole", is of all members together, so that none comes from another file. Private to plan/files.
 * Any thread may call. */
#ifndef STW_PLAN_CHECKSUMS_H
#define STW_PLAN_CHECKSUMS_H

#include "core/text.h"
#include "core/tree.h"

/** Append the member "checksums" to `text`, a whole JSON object that has none. Its last member. */
STW_MUST_USE stw_status stw_checksums_append(stw_text *text, stw_error *err);
/** BAD_INPUT names the first member whose value differs from its checksum, or that has none, and
 * members that are not all of one file.
 * @param known [n_known] members that must have one
 * @param again what makes the file anew, for the error: "plan again" */
STW_MUST_USE stw_status stw_checksums_check(const stw_tree *tree, const char *const *known,
                                            size_t n_known, const char *again, stw_error *err);

#endif
