/* SPDX-License-Identifier: Apache-2.0 */
/* Single keys and values as every reader of YAML and JSON takes them: 1.1 and 1.2, safe loaders and
 * those of frameworks. Pure; any thread may call. */
#ifndef STW_CORE_TREE_WRITE_H
#define STW_CORE_TREE_WRITE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/text.h"

/** Is it a number, true, false or null where it stands without quotes? */
bool stw_tree_is_bare(const char *text);
/** Append a value as such a document has it. @param string in quotes, whatever it looks like */
void stw_tree_write_value(stw_text *out, const char *value, bool string, bool json);
/** Append the name of a key. */
void stw_tree_write_key(stw_text *out, const char *key, size_t length, bool json);

#endif
