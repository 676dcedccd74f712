/* SPDX-License-Identifier: Apache-2.0 */
/* Edits of YAML documents: the value that is put is read back, and every other byte stays. */
#include <stdlib.h>

#include "core/tree.h"
#include "core/tree_edit.h"
#include "tests/unit/testing.h"

typedef struct edit_case {
    const char *before, *path, *value, *after;
} edit_case;

static void put(const edit_case *c) {
    stw_text text = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    stw_text_append(&text, c->before, strlen(c->before));
    CHECK_OK(stw_yaml_put("file.yaml", &text, c->path, c->value, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    if (strcmp(text.data, c->after) != 0) fprintf(stderr, "found:\n%s\n", text.data);
    CU_ASSERT_STRING_EQUAL(text.data, c->after);
    CHECK_OK(stw_tree_parse_yaml("after", text.data, text.length, &tree, err));
    const stw_node *node = tree != NULL ? stw_node_path(tree->root, c->path) : NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(node);
    CU_ASSERT_STRING_EQUAL(node->text, c->value);
    stw_tree_free(tree);
    stw_text_free(&text);
}

static void values_are_replaced(void) {
    static const edit_case cases[] = {
        {"a: 1 GiB  # ours\nb: 2\n", "a", "3 MiB", "a: 3 MiB  # ours\nb: 2\n"},
        {"# h\xC3\xB6 \xE2\x82\xAC\na: {b: 1, c: \"x # y\"}", "a.c", "z",
         "# h\xC3\xB6 \xE2\x82\xAC\na: {b: 1, c: z}"},
        {"\xEF\xBB\xBF"
         "a: 1\n",
         "a", "2",
         "\xEF\xBB\xBF"
         "a: 2\n"},
        {"a:\r\n  b: 'one'   # text\r\n", "a.b", "two", "a:\r\n  b: two   # text\r\n"},
        {"a:\nb: 1\n", "a", "2", "a: 2\nb: 1\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) put(&cases[i]);
}

static void keys_are_added(void) {
    static const edit_case cases[] = {
        {"a: 1\n", "b", "2", "a: 1\nb: 2\n"},
        {"a: 1", "b.c", "2", "a: 1\nb:\n  c: 2\n"},
        {"a:\n    x: 1  # one\n    # of a\n\n# of b\nb: 2\n", "a.w", "3",
         "a:\n    x: 1  # one\n    w: 3\n    # of a\n\n# of b\nb: 2\n"},
        {"a: {x: 1}\nb: 2\n", "a.w.z", "3", "a: {x: 1, w: {z: 3}}\nb: 2\n"},
        {"a: {}\n", "a.w", "3", "a: {w: 3}\n"},
        {"a: {x: }\n", "a.w", "3", "a: {x:  , w: 3}\n"},
        {"a:\n", "a.w", "3", "a: {w: 3}\n"},
        {"a:\r\n  x: 1\r\n", "a.w", "3", "a:\r\n  x: 1\r\n  w: 3\r\n"},
        {"a:\n  x:\n  - {p: 1,\n     q: 2}  # end\nb: 1\n", "a.w", "3",
         "a:\n  x:\n  - {p: 1,\n     q: 2}  # end\n  w: 3\nb: 1\n"},
        {"a: |\n  text\n  more\n", "b", "3", "a: |\n  text\n  more\nb: 3\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) put(&cases[i]);
}

static void refused(const char *before, const char *path, const char *word) {
    stw_text text = STW_TEXT_INIT;
    stw_text_append(&text, before, strlen(before));
    CHECK_FAILS(stw_yaml_put("file.yaml", &text, path, "1", err), STW_STATUS_BAD_INPUT, word);
    CU_ASSERT_EQUAL(text.length, strlen(before));
    if (text.length > 0) CU_ASSERT_STRING_EQUAL(text.data, before);
    stw_text_free(&text);
}

static void other_documents_are_refused(void) {
    refused("", "a", "no map");
    refused("[1, 2]\n", "a", "no map");
    refused("a: [1]\n", "a", "file.yaml:1:4: found a list or a map");
    refused("a: 1\n", "a.b", "file.yaml:1:4: expected a map");
    refused("a: {x: 1\n", "a.b", "not valid YAML");
}

int main(void) {
    static const stw_test tests[] = {
        {"values are replaced in place", values_are_replaced},
        {"missing keys are added to the innermost map", keys_are_added},
        {"other documents are refused and unchanged", other_documents_are_refused},
    };
    return stw_test_run_all("core yaml put", tests, sizeof tests / sizeof tests[0]);
}
