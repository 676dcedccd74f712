/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of JSON and YAML share while they build a tree; for core/tree*.c alone. */
#ifndef STW_CORE_TREE_BUILD_H
#define STW_CORE_TREE_BUILD_H

#include "core/tree.h"

/** A tree without a root. Text with a NUL byte is refused here, as both readers must. */
STW_MUST_USE stw_status stw_tree_begin(const char *file, const char *text, size_t length,
                                       stw_tree **out, stw_error *err);
/** NO_MEMORY for the file of this tree. */
stw_status stw_tree_no_memory(const stw_tree *tree, stw_error *err);
/** A node in the pool of the tree; NULL when memory is out. */
stw_node *stw_tree_node(stw_tree *tree, stw_node_kind kind, int line, int column);
/** A copy of `length` bytes in the pool of the tree; NULL when memory is out. */
char *stw_tree_copy(stw_tree *tree, const char *bytes, size_t length);
/** Line and column (1-based, columns in characters) of a byte in a text. */
void stw_tree_locate(const char *text, size_t offset, int *line, int *column);

#endif
