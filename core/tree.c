/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tree.h"

#include <string.h>

#include "core/tree_build.h"

void stw_tree_locate(const char *text, size_t offset, int *line, int *column) {
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            (*line)++;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xC0) != 0x80) {
            (*column)++;
        }
    }
}

stw_status stw_tree_begin(const char *file, const char *text, size_t length, stw_tree **out,
                          stw_error *err) {
    *out = NULL;
    if (length > STW_TREE_MOST_BYTES)
        return stw_fail(err, STW_STATUS_BAD_INPUT, file,
                        "found a document of %zu bytes, expected at most 256 MiB", length);
    const char *nul = length > 0 ? memchr(text, '\0', length) : NULL;
    if (nul != NULL) {
        int line, column;
        stw_tree_locate(text, (size_t)(nul - text), &line, &column);
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, file, line, column,
                           "found a NUL byte, expected text");
    }
    stw_pool *pool = stw_pool_new();
    stw_tree *tree = stw_pool_alloc(pool, sizeof *tree);
    const char *name = stw_pool_string(pool, file != NULL ? file : "(text)");
    if (tree == NULL || name == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory for a document");
    }
    *tree = (stw_tree){.pool = pool, .file = name, .root = NULL};
    *out = tree;
    return STW_STATUS_OK;
}

void stw_tree_free(stw_tree *tree) {
    if (tree != NULL) stw_pool_free(tree->pool); /* the tree is allocated in it */
}

stw_status stw_tree_no_memory(const stw_tree *tree, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory for the document");
}

stw_node *stw_tree_node(stw_tree *tree, stw_node_kind kind, int line, int column) {
    stw_node *node = stw_pool_alloc(tree->pool, sizeof *node);
    if (node != NULL) *node = (stw_node){.kind = kind, .line = line, .column = column};
    return node;
}

char *stw_tree_copy(stw_tree *tree, const char *bytes, size_t length) {
    char *copy = stw_pool_alloc(tree->pool, length + 1); /* zeroed, hence terminated */
    if (copy != NULL && length > 0) memcpy(copy, bytes, length);
    return copy;
}
