/* SPDX-License-Identifier: Apache-2.0 */
/* Functions with which the JSON and YAML parsers build a tree. Private to core/tree*.c. */
#ifndef STW_CORE_TREE_BUILD_H
#define STW_CORE_TREE_BUILD_H

#include "core/tree.h"

#define STW_TREE_MOST_BYTES ((size_t)256 * 1024 * 1024)

/** A tree without a root. BAD_INPUT if the text contains a NUL byte or is too long. */
STW_MUST_USE stw_status stw_tree_begin(const char *file, const char *text, size_t length,
                                       stw_tree **out, stw_error *err);
/** NO_MEMORY for the file of this tree. */
stw_status stw_tree_no_memory(const stw_tree *tree, stw_error *err);
/** A node in the pool of the tree; NULL if out of memory. */
stw_node *stw_tree_node(stw_tree *tree, stw_node_kind kind, int line, int column);
/** A copy of `length` bytes in the pool of the tree; NULL if out of memory. */
char *stw_tree_copy(stw_tree *tree, const char *bytes, size_t length);
/** Line and column (1-based, columns in characters) of a byte in a text. */
void stw_tree_locate(const char *text, size_t offset, int *line, int *column);

#endif
