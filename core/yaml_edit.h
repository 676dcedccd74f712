/* SPDX-License-Identifier: Apache-2.0 */
/* Set single values in a YAML document and leave every other byte of it as it is: comments, order
 * and layout are the user's. For documents that core/tree.h reads. One thread at a time uses a
 * text. */
#ifndef STW_CORE_YAML_EDIT_H
#define STW_CORE_YAML_EDIT_H

#include "core/status.h"
#include "core/text.h"

/** Replace the scalar at a dotted path, or add it to the innermost map of the path that exists.
 * @param file for errors
 * @param text in and out; unchanged on failure
 * @param value as it stands in a YAML list, quoted where it has to be
 * @return BAD_INPUT where the document is no map, or the path leads through or to another kind of
 * value */
STW_MUST_USE stw_status stw_yaml_put(const char *file, stw_text *text, const char *path,
                                     const char *value, stw_error *err);

#endif
