/* SPDX-License-Identifier: Apache-2.0 */
/* Change single values of a YAML or JSON document and leave every other byte of it as it is:
 * comments, order, quotes and layout are the user's. Keys are named by their path, "a.b.c". For
 * documents that core/tree.h reads. One thread at a time uses a text. */
#ifndef STW_CORE_TREE_EDIT_H
#define STW_CORE_TREE_EDIT_H

#include <stdbool.h>

#include "core/status.h"
#include "core/text.h"

/** Does a document of settings begin as JSON does: {"name"? */
bool stw_tree_text_is_json(const char *text, size_t length);
/** Replace the value at a path, or add it to the innermost map of the path that exists.
 * @param file for errors
 * @param text in and out; unchanged on failure
 * @param value a number, true, false, null, a list "[a, b]", or a string without quotes. A value
 * that was in quotes stays in quotes. NULL: the key is removed, and a map that it leaves empty
 * stays as {}
 * @return BAD_INPUT where the document is no map, or the path leads through another kind of value
 */
STW_MUST_USE stw_status stw_tree_put(const char *file, stw_text *text, const char *path,
                                     const char *value, stw_error *err);
/** The same of YAML, with a value as it stands in a YAML list, quoted where it has to be.
 * @return BAD_INPUT also where it would replace a list or a map */
STW_MUST_USE stw_status stw_yaml_put(const char *file, stw_text *text, const char *path,
                                     const char *value, stw_error *err);
#endif
