/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a document, behind a line that names a key: "a.b=value", or "a.b" to remove it. An
 * edit is refused and changes nothing, or the result is a document with at most one value more or
 * less. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/tree.h"
#include "core/tree_edit.h"
#include "tests/fuzz/tree_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static stw_status parse(const char *text, size_t length, stw_tree **out) {
    return stw_tree_text_is_json(text, length)
               ? stw_tree_parse_json("input", text, length, out, NULL)
               : stw_tree_parse_yaml("input", text, length, out, NULL);
}

/* Values of maps; a list is one, and so is null. */
static size_t leaves(const stw_node *node) {
    size_t n = 0;
    if (node->kind != STW_NODE_OBJECT) return 1;
    for (size_t i = 0; i < node->n_items; i++) n += leaves(node->items[i]);
    return n;
}

static void edit(const char *path, const char *value, const char *text, size_t length) {
    stw_tree *before = NULL, *after = NULL;
    stw_text edited = STW_TEXT_INIT;
    if (parse(text, length, &before) == STW_STATUS_OK) {
        stw_text_append(&edited, text, length);
        const stw_status status = stw_tree_put("input", &edited, path, value, NULL);
        const char *now = edited.data != NULL ? edited.data : "";
        FUZZ_CHECK(status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT);
        if (status == STW_STATUS_OK) {
            FUZZ_CHECK(parse(now, edited.length, &after) == STW_STATUS_OK);
            const size_t n = leaves(before->root), m = leaves(after->root);
            /* one that is removed or replaced may have been a map */
            FUZZ_CHECK(m <= n + 1 && (value == NULL || m + n > 0));
        } else {
            FUZZ_CHECK(edited.length == length && memcmp(now, text, length) == 0);
        }
    }
    stw_tree_free(before);
    stw_tree_free(after);
    stw_text_free(&edited);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *line = size > 0 ? memchr(text, '\n', size) : NULL;
    const size_t n = line != NULL ? (size_t)(line - text) : 0;
    char path[64];
    if (n == 0 || n >= sizeof path || memchr(text, '\0', n) != NULL) return 0;
    memcpy(path, text, n);
    path[n] = '\0';
    char *equals = strchr(path, '=');
    if (equals != NULL) *equals++ = '\0';
    if (*path != '\0') edit(path, equals, line + 1, size - n - 1);
    return 0;
}
