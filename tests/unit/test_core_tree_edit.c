/* SPDX-License-Identifier: Apache-2.0 */
/* Values of YAML and JSON documents are changed, added and removed in place. */
#include "core/tree.h"
#include "core/tree_edit.h"
#include "core/tree_write.h"
#include "tests/unit/testing.h"

typedef struct edit_case {
    const char *text, *path, *value, *expected;
} edit_case;

static const edit_case cases[] = {
    /* replaced; comments, order and quotes stay */
    {"a: 1 # one\nb:  'x'\n", "a", "2", "a: 2 # one\nb:  'x'\n"},
    {"a: \"1\"\n", "a", "2", "a: \"2\"\n"},
    {"a: '1'\n", "a", "x y", "a: \"x y\"\n"},
    {"a: \"auto\"\n", "a", "2", "a: 2\n"},
    {"a: 1", "a", "true", "a: true"},
    {"a: 1\n", "a", "1e-05", "a: 1.0e-05\n"},
    {"a: 1\n", "a", "2.5e8", "a: 2.5e+8\n"},
    {"{\"a\": 1}", "a", "1e-05", "{\"a\": 1e-05}"},
    {"a: 1\n", "a", "yes", "a: \"yes\"\n"},
    {"a: 1\n", "a", "0123", "a: \"0123\"\n"},
    {"a: 1\n", "a", "x\n\"y\" \\\t\xC2\x85z", "a: \"x\\n\\\"y\\\" \\\\\\t\\u0085z\"\n"},
    {"a:\nb: 1\n", "a", "2", "a: 2\nb: 1\n"},
    {"a: |\n  x\n  y\n\nb: 1\n", "a", "2", "a: 2\n\nb: 1\n"},
    {"a:\n  - x\n  - y # z\nb: 1\n", "a", "[p, q]", "a: [\"p\", \"q\"] # z\nb: 1\n"},
    {"a: [x, y]\n", "a", "[1, p]", "a: [1, \"p\"]\n"},
    {"a: {x: 1}\r\nb: 2\r\n", "b", "3", "a: {x: 1}\r\nb: 3\r\n"},
    {"\xC3\xA4: \xE2\x82\xAC # \xC3\xA4\nb: {c: 1}\n", "b.c", "2",
     "\xC3\xA4: \xE2\x82\xAC # \xC3\xA4\nb: {c: 2}\n"},
    {"\xEF\xBB\xBF"
     "a: 1\nb: 2\n",
     "b", "3",
     "\xEF\xBB\xBF"
     "a: 1\nb: 3\n"},
    {"\xEF\xBB\xBF{\"a\": {\"b\": 1}}", "a.c", "x",
     "\xEF\xBB\xBF{\"a\": {\"b\": 1, \"c\": \"x\"}}"},
    {"\xEF\xBB\xBF\n{\"a\": 1}", "a", "2", "\xEF\xBB\xBF\n{\"a\": 2}"},
    /* keys with dots */
    {"a.b: 1\na: {b.c: 2}\n", "a.b", "3", "a.b: 3\na: {b.c: 2}\n"},
    {"a.b: 1\na: {b.c: 2}\n", "a.b.c", "3", "a.b: 1\na: {b.c: 3}\n"},
    {"{\"a\\u0041\\\"\": 1}", "aA\"", "3", "{\"a\\u0041\\\"\": 3}"},
    /* added */
    {"a:\n   b: 1 # c\nd: 2\n", "a.x", "3", "a:\n   b: 1 # c\n   x: 3\nd: 2\n"},
    {"a: 1", "b.c", "3", "a: 1\nb:\n  c: 3\n"},
    {"a: 1\r\n", "b", "3", "a: 1\r\nb: 3\r\n"},
    {"# x\na: 1\r\n", "b.c", "3", "# x\na: 1\r\nb:\r\n  c: 3\r\n"},
    {"# x\r\na:\n  b: 1\nd: 2\r\n", "a.c", "3", "# x\r\na:\n  b: 1\n  c: 3\nd: 2\r\n"},
    {"a: 1\r\nb: 2", "c", "3", "a: 1\r\nb: 2\r\nc: 3\r\n"},
    {"{\r\n\t\"a\": 1\r\n}\r\n", "b", "x", "{\r\n\t\"a\": 1,\r\n\t\"b\": \"x\"\r\n}\r\n"},
    {"a: 1\n", "on", "3", "a: 1\n\"on\": 3\n"},
    {"a: {}\n", "a.b", "3", "a: {b: 3}\n"},
    {"a:\nb: 1\n", "a.x", "3", "a: {x: 3}\nb: 1\n"},
    {"a: {b: 1, }\n", "a.c", "x", "a: {b: 1, c: \"x\", }\n"},
    {"a: |\n  x\n", "b", "3", "a: |\n  x\nb: 3\n"},
    {"{\"a\": {\"b\": 1}}", "a.c.d", "2", "{\"a\": {\"b\": 1, \"c\": {\"d\": 2}}}"},
    {"{\n\t\"a\": 1\n}\n", "b", "x", "{\n\t\"a\": 1,\n\t\"b\": \"x\"\n}\n"},
    {"{}", "a", "1", "{\"a\": 1}"},
    /* removed */
    {"a: 1\nb: 2 # two\nc: 3\n", "b", NULL, "a: 1\nc: 3\n"},
    {"a:\n  b:\n    c: 1 # x\n# y\nd: 2\n", "a.b.c", NULL, "a:\n  b: {}\n# y\nd: 2\n"},
    {"a: {b: 1, c: 2, d: 3}\n", "a.b", NULL, "a: {c: 2, d: 3}\n"},
    {"a: {b: 1, c: 2, d: 3}\n", "a.c", NULL, "a: {b: 1, d: 3}\n"},
    {"a: {b: 1, c: 2, d: 3}\n", "a.d", NULL, "a: {b: 1, c: 2}\n"},
    {"a: {b: 1}\n", "a.b", NULL, "a: {}\n"},
    {"{\n  \"a\": 1,\n  \"b\": {\"x\": [1, \",\"]}\n}\n", "b", NULL, "{\n  \"a\": 1\n}\n"},
    {"{\n  \"a\": \",\",\n  \"b\": 2\n}\n", "b", NULL, "{\n  \"a\": \",\"\n}\n"},
    {"{\n  \"a\": 1,\n  \"b\": 2\n}\n", "a", NULL, "{\n  \"b\": 2\n}\n"},
    {"a: 1\n", "b", NULL, "a: 1\n"},
};

static void changes(void) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const edit_case *c = &cases[i];
        stw_text text = STW_TEXT_INIT;
        stw_text_append(&text, c->text, strlen(c->text));
        CHECK_OK(stw_tree_put("file", &text, c->path, c->value, err));
        CU_ASSERT_STRING_EQUAL(text.data, c->expected);
        if (strcmp(text.data, c->expected) != 0)
            fprintf(stderr, "case %zu, %s of\n%s\nfound\n%s\nexpected\n%s\n", i, c->path, c->text,
                    text.data, c->expected);
        stw_text_free(&text);
    }
}

static void refusals(void) {
    static const char *const texts[][2] = {{"a: 1\n", "a.b"},
                                           {"a: [1]\n", "a.b"},
                                           {"- 1\n", "a"},
                                           {"a: &x 1\n", "a"},
                                           {"a: {\n", "a"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        stw_text text = STW_TEXT_INIT;
        stw_text_append(&text, texts[i][0], strlen(texts[i][0]));
        CHECK_FAILS(stw_tree_put("file", &text, texts[i][1], "1", err), STW_STATUS_BAD_INPUT, "");
        CU_ASSERT_STRING_EQUAL(text.data, texts[i][0]);
        stw_text_free(&text);
    }
    /* {"b": =} is YAML, and taken for JSON, which it is not; {"b": 1} is both */
    stw_text text = STW_TEXT_INIT;
    stw_text_printf(&text, "{a: 1, \"b\": =}\n");
    CHECK_FAILS(stw_tree_put("file", &text, "a", NULL, err), STW_STATUS_BAD_INPUT, "in place");
    CU_ASSERT_STRING_EQUAL(text.data, "{a: 1, \"b\": =}\n");
    CHECK_OK(stw_tree_put("file", &text, "b", "1", err));
    CHECK_OK(stw_tree_put("file", &text, "a", NULL, err));
    CU_ASSERT_STRING_EQUAL(text.data, "{\"b\": 1}\n");
    stw_text_free(&text);
}

/* A string is the same string for both readers, whatever it looks like. */
static void strings(void) {
    static const char *const all[] = {
        "",     "1e5", "~",      "no",  "2020-01-01",   "0o17", "a: b",
        "# x",  "\\n", "\n a\n", "\t",  "\x01\x7F",     "'\"",  "null",
        " a  ", "[a]", "{a: b}", "- a", "\xE2\x80\xA8", "%",    "@x"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int json = 0; json < 2; json++) {
            stw_text text = STW_TEXT_INIT;
            stw_tree *tree = NULL;
            stw_text_printf(&text, "{");
            stw_tree_write_key(&text, all[i], strlen(all[i]), json != 0);
            stw_text_printf(&text, ": ");
            stw_tree_write_value(&text, all[i], true, json != 0);
            stw_text_printf(&text, "}");
            CHECK_OK(json ? stw_tree_parse_json("file", text.data, text.length, &tree, err)
                          : stw_tree_parse_yaml("file", text.data, text.length, &tree, err));
            CU_ASSERT_STRING_EQUAL(tree->root->items[0]->text, all[i]);
            CU_ASSERT_STRING_EQUAL(tree->root->items[0]->key, all[i]);
            CU_ASSERT_EQUAL(tree->root->items[0]->kind, STW_NODE_STRING);
            stw_tree_free(tree);
            stw_text_free(&text);
        }
}

STW_TEST_MAIN("core tree edit", {"changes", changes}, {"refusals", refusals}, {"strings", strings})
