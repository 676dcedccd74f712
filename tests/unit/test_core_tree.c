/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
#include "core/tree.h"
#include "tests/unit/testing.h"

static stw_tree *json_of(const char *text) {
    stw_tree *tree = NULL;
    CHECK_OK(stw_tree_parse_json("t.json", text, strlen(text), &tree, err));
    return tree;
}

static stw_tree *yaml_of(const char *text) {
    stw_tree *tree = NULL;
    CHECK_OK(stw_tree_parse_yaml("t.yaml", text, strlen(text), &tree, err));
    return tree;
}

static stw_status json_status(const char *text, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json("t.json", text, strlen(text), &tree, err);
    CU_ASSERT_TRUE((status == STW_STATUS_OK) == (tree != NULL));
    stw_tree_free(tree);
    return status;
}

static stw_status yaml_status(const char *text, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_yaml("t.yaml", text, strlen(text), &tree, err);
    CU_ASSERT_TRUE((status == STW_STATUS_OK) == (tree != NULL));
    stw_tree_free(tree);
    return status;
}

static bool stands_at(const stw_node *node, int line, int column) {
    if (node == NULL) return false;
    if (node->line != line || node->column != column)
        fprintf(stderr, "stands at %d:%d, not %d:%d\n", node->line, node->column, line, column);
    return node->line == line && node->column == column;
}

static bool is_kind(const stw_node *node, stw_node_kind kind, const char *text) {
    return node != NULL && node->kind == kind && node->text != NULL &&
           strcmp(node->text, text) == 0;
}

static void json_has_values_and_places(void) {
    stw_tree *tree = json_of("{\"a\": [1, -2.5e3, \"x\\u00e9 \\\" ]y\", {\"b\": null}, []],\n"
                             " \"\xc3\xbc\xc3\xbc\": true,\r\n"
                             "\t\"c\" :\n   \"z\" , \"d\": {}}\n");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    const stw_node *root = tree->root, *a = stw_node_get(root, "a");
    CU_ASSERT_STRING_EQUAL(tree->file, "t.json");
    CU_ASSERT_EQUAL(root->kind, STW_NODE_OBJECT);
    CU_ASSERT_EQUAL(root->n_items, 4);
    CU_ASSERT_TRUE(stands_at(root, 1, 1));
    CU_ASSERT_TRUE(stands_at(a, 1, 7));
    CU_ASSERT_TRUE(a != NULL && a->key_line == 1 && a->key_column == 2);
    CU_ASSERT_TRUE_FATAL(a != NULL && a->n_items == 5);
    CU_ASSERT_TRUE(is_kind(a->items[0], STW_NODE_INT, "1"));
    CU_ASSERT_EQUAL(a->items[0]->integer, 1);
    CU_ASSERT_EQUAL(a->items[0]->real, 1.0);
    CU_ASSERT_PTR_NULL(a->items[0]->key);
    CU_ASSERT_TRUE(is_kind(a->items[1], STW_NODE_REAL, "-2.5e3"));
    CU_ASSERT_EQUAL(a->items[1]->real, -2500.0);
    CU_ASSERT_TRUE(is_kind(a->items[2], STW_NODE_STRING, "x\xc3\xa9 \" ]y"));
    CU_ASSERT_TRUE(stands_at(a->items[2], 1, 19));
    CU_ASSERT_TRUE(stands_at(a->items[3], 1, 36));
    CU_ASSERT_TRUE(stands_at(stw_node_get(a->items[3], "b"), 1, 42));
    CU_ASSERT_EQUAL(stw_node_get(a->items[3], "b")->kind, STW_NODE_NULL);
    CU_ASSERT_TRUE(a->items[4]->kind == STW_NODE_ARRAY && a->items[4]->n_items == 0);
    const stw_node *u = stw_node_get(root, "\xc3\xbc\xc3\xbc");
    CU_ASSERT_TRUE(stands_at(u, 2, 8)); /* columns are characters, not bytes */
    CU_ASSERT_TRUE(is_kind(u, STW_NODE_BOOL, "true") && u->boolean);
    CU_ASSERT_TRUE(stands_at(stw_node_get(root, "c"), 4, 4));
    CU_ASSERT_EQUAL(stw_node_get(root, "c")->key_line, 3);
    CU_ASSERT_TRUE(stands_at(stw_node_get(root, "d"), 4, 15));
    stw_tree_free(tree);
}

static void json_numbers(void) {
    stw_tree *tree = json_of("[9223372036854775807, -9223372036854775808, 0.1, 1e-05, -0]");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    stw_node **items = tree->root->items;
    CU_ASSERT_EQUAL(items[0]->integer, INT64_MAX);
    CU_ASSERT_EQUAL(items[1]->integer, INT64_MIN);
    CU_ASSERT_EQUAL(items[2]->real, 0.1);
    CU_ASSERT_EQUAL(items[3]->real, 1e-5);
    CU_ASSERT_TRUE(is_kind(items[3], STW_NODE_REAL, "1e-05"));
    stw_tree_free(tree);
    tree = json_of("\xef\xbb\xbf{\"a\": 1}"); /* a byte order mark */
    CU_ASSERT_TRUE(tree != NULL && stands_at(stw_node_get(tree->root, "a"), 1, 7));
    stw_tree_free(tree);
    tree = json_of(" 7 "); /* any top level: its reader says what it expected */
    CU_ASSERT_TRUE(tree != NULL && is_kind(tree->root, STW_NODE_INT, "7"));
    if (tree != NULL) {
        CHECK_FAILS(stw_tree_schema(tree, "stowage.plan", 1, err), STW_STATUS_BAD_INPUT,
                    "t.json:1:2: found the number 7, expected an object");
    }
    stw_tree_free(tree);
}

static void json_errors_have_places(void) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "t.json:1:1: found an empty document"},
        {" \n ", "empty document"},
        {"{\"a\": [1,\n  tru]}", "t.json:2:3: not valid JSON: invalid token near 'tru'"},
        {"{\"a\": 1,\n \"a\": 2}",
         "t.json:2:2: found \"a\" as a key a second time, expected each key once"},
        {"{\"a\": 99999999999999999999}", "t.json:1:7: found 99999999999999999999, expected"},
        {"{\"a\": \"x\\u0000\"}", ", expected text without the character \\u0000"},
        {"{\"a\": 1e999}", "t.json:1:7: found 1e999, expected a number that fits"},
        {"{\"a\": [1,2", "cut short"},
        {"{\"a\": \"b", "t.json:1:"},
        {"{\"a\" 1}", "t.json:1:6: not valid JSON: ':' expected near '1'"},
        {"{\"a\": 1} x", "t.json:1:10: not valid JSON: end of file expected near 'x'"},
        {"{\"a\": }", "t.json:1:7: not valid JSON: unexpected token near '}', expected a value"},
        {"[1, 2,]", "t.json:1:7: not valid JSON: unexpected token near ']', expected a value"},
        {"{\"\xc3\xbc\": x}", "t.json:1:7: not valid JSON"},
        {"{\"a\": \"\xff\"}", "UTF-8"},
        {"{\"a\": \"\\u0000\"}", "t.json:1:"},
        {"{\"a\": NaN}", "t.json:1:7"},
        {"{'a': 1}", "t.json:1:2"},
        {"[1 2]", "']' expected near '2'"},
        {"\xef\xbb\xbf{", "t.json:1:2"},
        {"\xef\xbb\xbf \xef\xbb\xbf{}", "t.json:1:2"}, /* only the first is a byte order mark */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_FAILS(json_status(cases[i].text, err), STW_STATUS_BAD_INPUT, cases[i].error);
    stw_tree *tree = (stw_tree *)1;
    CHECK_FAILS(stw_tree_parse_json("n.json", "{\n \"a\": \"\0\"}", 13, &tree, err),
                STW_STATUS_BAD_INPUT, "n.json:2:8: found a NUL byte");
    CU_ASSERT_PTR_NULL(tree);
    CHECK_OK(stw_tree_parse_json("n.json", "[1]garbage", 3, &tree, err)); /* not terminated */
    stw_tree_free(tree);
}

/* n opening brackets, and as many closing ones if `closed`. */
static char *nested(size_t n, const char *open, const char *close, bool closed) {
    stw_text text = STW_TEXT_INIT;
    for (size_t i = 0; i < n; i++) stw_text_append(&text, open, strlen(open));
    for (size_t i = 0; closed && i < n; i++) stw_text_append(&text, close, strlen(close));
    CU_ASSERT_FALSE_FATAL(text.failed);
    return text.data;
}

static void depth_is_limited(void) {
    char *deep = nested(2000, "[", "]", true), *deeper = nested(100000, "[", "]", true);
    char *open = nested(100000, "{\"a\":", "}", false);
    CHECK_OK(json_status(deep, err));
    CHECK_FAILS(json_status(deeper, err), STW_STATUS_BAD_INPUT, "depth");
    CHECK_FAILS(json_status(open, err), STW_STATUS_BAD_INPUT, "depth");
    free(deep);
    free(deeper);
    free(open);
    deep = nested(200, "[", "]", true);
    deeper = nested(201, "[", "]", true);
    open = nested(900, "{a: ", "}", false);
    CHECK_OK(yaml_status(deep, err));
    CHECK_FAILS(yaml_status(deeper, err), STW_STATUS_BAD_INPUT,
                "t.yaml:1:201: nested more than 200");
    CHECK_FAILS(yaml_status(open, err), STW_STATUS_BAD_INPUT, "nested more than 200");
    free(deep);
    free(deeper);
    free(open);
}

static void yaml_has_values_and_places(void) {
    stw_tree *tree = yaml_of("# a spec\n"
                             "engine: stowage\n"
                             "parallel: {dp_shard: auto, tp: 1}\n"
                             "\xc3\xbc\xc3\xbc: [1,\n"
                             "  80 GiB, ~]\n"
                             "gpu:\n"
                             "  memory: 139.8 GiB\n"
                             "  name: \"NVIDIA \\\"H200\\\"\"\n"
                             "empty:\n"
                             "text: |\n"
                             "  two\n"
                             "  lines\n");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    const stw_node *root = tree->root;
    CU_ASSERT_EQUAL(root->n_items, 6);
    CU_ASSERT_TRUE(stands_at(root, 2, 1));
    CU_ASSERT_TRUE(is_kind(stw_node_get(root, "engine"), STW_NODE_STRING, "stowage"));
    CU_ASSERT_TRUE(stands_at(stw_node_get(root, "engine"), 2, 9));
    CU_ASSERT_TRUE(stands_at(stw_node_path(root, "parallel.tp"), 3, 32));
    CU_ASSERT_EQUAL(stw_node_path(root, "parallel.tp")->integer, 1);
    CU_ASSERT_EQUAL(stw_node_path(root, "parallel.tp")->key_column, 28);
    const stw_node *list = stw_node_get(root, "\xc3\xbc\xc3\xbc");
    CU_ASSERT_TRUE_FATAL(list != NULL && list->n_items == 3);
    CU_ASSERT_TRUE(stands_at(list, 4, 5));
    CU_ASSERT_TRUE(stands_at(list->items[1], 5, 3));
    CU_ASSERT_TRUE(is_kind(list->items[1], STW_NODE_STRING, "80 GiB"));
    CU_ASSERT_TRUE(is_kind(list->items[2], STW_NODE_NULL, "~"));
    CU_ASSERT_TRUE(stands_at(stw_node_get(root, "gpu"), 7, 3));
    CU_ASSERT_EQUAL(stw_node_get(root, "gpu")->key_line, 6);
    CU_ASSERT_TRUE(is_kind(stw_node_path(root, "gpu.name"), STW_NODE_STRING, "NVIDIA \"H200\""));
    CU_ASSERT_TRUE(is_kind(stw_node_get(root, "empty"), STW_NODE_NULL, ""));
    CU_ASSERT_TRUE(is_kind(stw_node_get(root, "text"), STW_NODE_STRING, "two\nlines\n"));
    stw_tree_free(tree);
}

static void yaml_scalars(void) {
    static const struct {
        const char *text;
        stw_node_kind kind;
        double real;
    } cases[] = {
        {"1", STW_NODE_INT, 1},
        {"-17", STW_NODE_INT, -17},
        {"+5", STW_NODE_INT, 5},
        {"010", STW_NODE_INT, 10},
        {"0x1F", STW_NODE_INT, 31},
        {"0o17", STW_NODE_INT, 15},
        {"1e9", STW_NODE_REAL, 1e9},
        {"5e7", STW_NODE_REAL, 5e7},
        {"-1.5E-3", STW_NODE_REAL, -1.5e-3},
        {".5", STW_NODE_REAL, 0.5},
        {"1.", STW_NODE_REAL, 1},
        {"9223372036854775807", STW_NODE_INT, 0x1p63},
        {"true", STW_NODE_BOOL, 0},
        {"false", STW_NODE_BOOL, 0},
        {"null", STW_NODE_NULL, 0},
        {"~", STW_NODE_NULL, 0},
        {"yes", STW_NODE_STRING, 0},
        {"True", STW_NODE_STRING, 0},
        {"none", STW_NODE_STRING, 0},
        {"auto", STW_NODE_STRING, 0},
        {"1_000", STW_NODE_STRING, 0},
        {"1.2.3", STW_NODE_STRING, 0},
        {"1e", STW_NODE_STRING, 0},
        {"e9", STW_NODE_STRING, 0},
        {".", STW_NODE_STRING, 0},
        {"-", STW_NODE_STRING, 0},
        {"0x", STW_NODE_STRING, 0},
        {"0xG", STW_NODE_STRING, 0},
        {"12:30", STW_NODE_STRING, 0},
        {"2024-02-29", STW_NODE_STRING, 0},
        {"80 GiB", STW_NODE_STRING, 0},
        {"Nan", STW_NODE_STRING, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100];
        bool dash = strcmp(cases[i].text, "-") == 0; /* alone it would begin a sequence */
        snprintf(text, sizeof text, dash ? "k: [ \"%s\" ]" : "k: [ %s ]", cases[i].text);
        stw_tree *tree = yaml_of(text);
        const stw_node *list = tree != NULL ? stw_node_get(tree->root, "k") : NULL;
        CU_ASSERT_TRUE(list != NULL && is_kind(list->items[0], cases[i].kind, cases[i].text));
        CU_ASSERT_TRUE(list != NULL && list->items[0]->real == cases[i].real);
        stw_tree_free(tree);
    }
    stw_tree *tree = yaml_of("[\"1\", '~', \"\", 'true']"); /* quoted is a string, always */
    for (size_t i = 0; tree != NULL && i < tree->root->n_items; i++)
        CU_ASSERT_EQUAL(tree->root->items[i]->kind, STW_NODE_STRING);
    stw_tree_free(tree);
}

static void yaml_errors_have_places(void) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"a: 1\nb: &x 2\n", "t.yaml:2:4: found an anchor"},
        {"a: &x [1]\n", "t.yaml:1:4: found an anchor"},
        {"a: *x\n", "t.yaml:1:4: found an alias"},
        {"a: !!str 1\n", "t.yaml:1:4: found a tag"},
        {"a: !!map {}\n", "t.yaml:1:4: found a tag"},
        {"!x a: 1\n", "t.yaml:1:1: found a tag"},
        {"a: 1\nb: 3\na:\n  c: 2\n", "t.yaml:3:1: found the key \"a\" again (first in line 1), "
                                     "expected each key once: a reader that "
                                     "takes the last one would hide the other"},
        {"a: {b: 1, \"b\": 2}", "t.yaml:1:11: found the key \"b\" again"},
        {"a: [1\nb: 2\n", "t.yaml:2:2: not valid YAML: did not find expected ',' or ']'"},
        {"a: b: c", "t.yaml:1:5: not valid YAML"},
        {"a:\n\t- 1\n", "t.yaml:2:1: not valid YAML"},
        {"a: 1\nb: \xff\n", "t.yaml:2:4: not valid YAML"},
        {"a: \"\\0\"\n", "t.yaml:1:4: found a NUL character"},
        {"a: 1\n---\nb: 2\n", "t.yaml:2:1: found a second document"},
        {"? [a]\n: 1\n", "t.yaml:1:3: found a key that is no scalar"},
        {"? {a: 1}\n: 1\n", "t.yaml:1:3: found a key that is no scalar"},
        {"a: .inf", "t.yaml:1:4: found an infinite"},
        {"a: -.INF", "t.yaml:1:4: found an infinite"},
        {"a: .nan", "t.yaml:1:4: found an infinite or undefined"},
        {"a: 1e999", "t.yaml:1:4: found a number that is too large"},
        {"a: 9223372036854775808", "t.yaml:1:4: found a whole number that does not fit"},
        {"a: \"open\n", "not valid YAML"},
        {"%YAML 9.9\n---\na: 1\n", "not valid YAML"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_FAILS(yaml_status(cases[i].text, err), STW_STATUS_BAD_INPUT, cases[i].error);
    stw_tree *tree = NULL;
    CHECK_FAILS(stw_tree_parse_yaml("n.yaml", "a: 1\0", 5, &tree, err), STW_STATUS_BAD_INPUT,
                "n.yaml:1:5: found a NUL byte");
}

static void empty_yaml_is_null(void) {
    static const char *const texts[] = {"", "\n", "# nothing\n", "---\n", "~\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        stw_tree *tree = yaml_of(texts[i]);
        CU_ASSERT_TRUE(tree != NULL && tree->root != NULL && tree->root->kind == STW_NODE_NULL);
        if (tree != NULL) CHECK_OK(stw_node_known(tree, tree->root, NULL, 0, err));
        stw_tree_free(tree);
    }
}

static void typed_reads(void) {
    stw_tree *tree =
        json_of("{\"o\": {\"n\": null}, \"a\": [], \"s\": \"x\", \"i\": 7, \"r\": 2.5,\n"
                " \"w\": 1e9, \"b\": true, \"m\": -1, \"f\": 1e17}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    const stw_node *root = tree->root, *node = NULL;
    const char *text = NULL;
    uint64_t whole = 0;
    double real = 0;
    bool yes = false;
    CHECK_OK(stw_node_object(tree, root, "o", &node, err));
    CU_ASSERT_PTR_EQUAL(node, stw_node_get(root, "o"));
    CHECK_OK(stw_node_array(tree, root, "a", &node, err));
    CHECK_OK(stw_node_string(tree, root, "s", &text, err));
    CU_ASSERT_STRING_EQUAL(text, "x");
    CHECK_OK(stw_node_u64(tree, root, "i", &whole, err));
    CU_ASSERT_EQUAL(whole, 7);
    CHECK_OK(stw_node_u64(tree, root, "w", &whole, err));
    CU_ASSERT_EQUAL(whole, 1000000000);
    CHECK_OK(stw_node_double(tree, root, "r", &real, err));
    CU_ASSERT_EQUAL(real, 2.5);
    CHECK_OK(stw_node_double(tree, root, "i", &real, err));
    CU_ASSERT_EQUAL(real, 7);
    CHECK_OK(stw_node_bool(tree, root, "b", &yes, err));
    CU_ASSERT_TRUE(yes);

    CHECK_FAILS(stw_node_object(tree, root, "a", &node, err), STW_STATUS_BAD_INPUT,
                "t.json:1:25: \"a\": found an array, expected an object");
    CHECK_FAILS(stw_node_array(tree, root, "o", &node, err), STW_STATUS_BAD_INPUT,
                "found an object, expected an array");
    CHECK_FAILS(stw_node_string(tree, root, "i", &text, err), STW_STATUS_BAD_INPUT,
                "found the number 7, expected a string");
    CHECK_FAILS(stw_node_u64(tree, root, "m", &whole, err), STW_STATUS_BAD_INPUT,
                "found the number -1, expected a whole number");
    CHECK_FAILS(stw_node_u64(tree, root, "r", &whole, err), STW_STATUS_BAD_INPUT, "2.5");
    CHECK_FAILS(stw_node_u64(tree, root, "f", &whole, err), STW_STATUS_BAD_INPUT, "1e17");
    CHECK_FAILS(stw_node_u64(tree, root, "s", &whole, err), STW_STATUS_BAD_INPUT,
                "the string \"x\"");
    CHECK_FAILS(stw_node_double(tree, root, "b", &real, err), STW_STATUS_BAD_INPUT, "found true");
    CHECK_FAILS(stw_node_bool(tree, root, "i", &yes, err), STW_STATUS_BAD_INPUT, "true or false");
    CHECK_FAILS(stw_node_u64(tree, root, "absent", &whole, err), STW_STATUS_BAD_INPUT,
                "t.json:1:1: the key \"absent\" is missing, expected a whole number");
    CHECK_FAILS(stw_node_string(tree, stw_node_get(root, "o"), "n", &text, err),
                STW_STATUS_BAD_INPUT, "\"n\": found null, expected a string");
    CHECK_FAILS(stw_node_string(tree, stw_node_get(root, "o"), "q", &text, err),
                STW_STATUS_BAD_INPUT, "t.json:1:7: the key \"q\" is missing in \"o\"");
    CHECK_FAILS(stw_node_bool(tree, stw_node_get(root, "i"), "q", &yes, err), STW_STATUS_BAD_INPUT,
                "found the number 7, expected an object with the key \"q\"");
    CHECK_FAILS(stw_node_bool(tree, NULL, "q", &yes, err), STW_STATUS_BAD_INPUT, "missing");
    stw_tree_free(tree);
}

static void paths_are_followed(void) {
    stw_tree *tree = json_of("{\"a\": {\"b\": {\"c\": 1, \"n\": null}, \"bb\": 2}, \"x\": 3}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    const stw_node *root = tree->root;
    CU_ASSERT_PTR_NOT_NULL(stw_node_path(root, "a.b.c"));
    CU_ASSERT_PTR_NOT_NULL(stw_node_path(root, "a.bb"));
    CU_ASSERT_PTR_NULL(stw_node_path(root, "a.b.n")); /* null counts as absent */
    CU_ASSERT_PTR_NULL(stw_node_path(root, "a.b.n.x"));
    CU_ASSERT_PTR_NULL(stw_node_path(root, "a.b.c.d"));
    CU_ASSERT_PTR_NULL(stw_node_path(root, "a."));
    CU_ASSERT_PTR_NULL(stw_node_path(root, ""));
    CU_ASSERT_PTR_NULL(stw_node_path(root, "x.a"));
    CU_ASSERT_PTR_NULL(stw_node_path(NULL, "a"));
    CU_ASSERT_PTR_NULL(stw_node_get(NULL, "a"));
    CU_ASSERT_PTR_NULL(stw_node_get(stw_node_get(root, "x"), "a"));
    stw_tree_free(tree);
}

static void unknown_keys_are_refused(void) {
    static const char *const known[] = {"dp_shard", "dp_replicate", "tp", "pp",
                                        "sequence_parallel"};
    const size_t n = sizeof known / sizeof known[0];
    stw_tree *tree = yaml_of("good: {tp: 1, dp_shard: 2}\nnear:\n  dp_shards:\n    x: 2\n"
                             "far: {zeppelin: 1}\nnumber: 5\nnothing:\n");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    const stw_node *root = tree->root;
    CHECK_OK(stw_node_known(tree, stw_node_get(root, "good"), known, n, err));
    CHECK_OK(stw_node_known(tree, stw_node_get(root, "nothing"), known, n, err));
    CHECK_OK(stw_node_known(tree, NULL, known, n, err));
    CHECK_FAILS(stw_node_known(tree, stw_node_get(root, "near"), known, n, err),
                STW_STATUS_BAD_INPUT,
                "t.yaml:3:3: found the unknown key \"dp_shards\", did you mean \"dp_shard\"?");
    CHECK_FAILS(stw_node_known(tree, stw_node_get(root, "far"), known, n, err),
                STW_STATUS_BAD_INPUT, "expected one of dp_shard, dp_replicate, tp");
    CHECK_FAILS(stw_node_known(tree, stw_node_get(root, "number"), known, n, err),
                STW_STATUS_BAD_INPUT, "found the number 5, expected an object");
    CHECK_FAILS(stw_node_known(tree, stw_node_get(root, "good"), NULL, 0, err),
                STW_STATUS_BAD_INPUT, "expected no key");
    stw_tree_free(tree);
}

static void nearest_is_near(void) {
    static const char *const words[] = {"memory", "master", "moments", "tp", "ep"};
    CU_ASSERT_STRING_EQUAL(stw_nearest("memroy", words, 5), "memory");
    CU_ASSERT_STRING_EQUAL(stw_nearest("MASTER", words, 5), "master");
    CU_ASSERT_STRING_EQUAL(stw_nearest("moment", words, 5), "moments");
    CU_ASSERT_STRING_EQUAL(stw_nearest("xp", words, 5), "tp");      /* the first of equals */
    CU_ASSERT_STRING_EQUAL(stw_nearest("mem", words, 5), "memory"); /* the only one it begins */
    CU_ASSERT_PTR_NULL(stw_nearest("mo", words, 1));                /* too short for that */
    CU_ASSERT_PTR_NULL(stw_nearest("ab", words, 5));                /* shares no letter with any */
    CU_ASSERT_PTR_NULL(stw_nearest("activations", words, 5));
    CU_ASSERT_PTR_NULL(stw_nearest("", words, 5));
    CU_ASSERT_PTR_NULL(stw_nearest("memory", words, 0));
    char longer[200];
    memset(longer, 'm', sizeof longer);
    longer[199] = '\0';
    CU_ASSERT_PTR_NULL(stw_nearest(longer, words, 5));
}

static void descriptions(void) {
    stw_tree *tree = json_of("[\"a\\n\\u0001b\", 12, 0.50, true, null, [], {}, \"" /* 80 of x */
                             "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                             "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"]");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
    static const char *const expected[] = {"the string \"a\\n\\x01b\"",
                                           "the number 12",
                                           "the number 0.50",
                                           "true",
                                           "null",
                                           "an array",
                                           "an object"};
    char text[200];
    for (size_t i = 0; i < 7; i++) {
        stw_node_describe(tree->root->items[i], text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, expected[i]);
    }
    stw_node_describe(tree->root->items[7], text, sizeof text);
    CU_ASSERT_TRUE(strlen(text) < 85);
    CU_ASSERT_STRING_EQUAL(text + strlen(text) - 5, "x...\"");
    stw_tree_free(tree);
}

static stw_status schema_status(const char *document, stw_error *err) {
    stw_tree *tree = json_of(document);
    stw_status status =
        tree != NULL ? stw_tree_schema(tree, "stowage.plan", 1, err) : STW_STATUS_BUG;
    stw_tree_free(tree);
    return status;
}

static void schemas_are_checked(void) {
    CHECK_OK(schema_status("{\"schema\": \"stowage.plan/1\"}", err));
    CHECK_OK(schema_status("{\"schema\": \"stowage.plan/1.2\"}", err));
    CHECK_FAILS(schema_status("{\"schema\": \"stowage.plan/2\"}", err), STW_STATUS_BAD_INPUT,
                "found the string \"stowage.plan/2\", expected \"stowage.plan/1\"");
    CHECK_FAILS(schema_status("{\"schema\": \"stowage.plan/10\"}", err), STW_STATUS_BAD_INPUT,
                "stowage.plan/10");
    CHECK_FAILS(schema_status("{\"schema\": \"stowage.plan/1.\"}", err), STW_STATUS_BAD_INPUT,
                "expected");
    CHECK_FAILS(schema_status("{\"schema\": \"stowage.run/1\"}", err), STW_STATUS_BAD_INPUT,
                "stowage.run/1");
    CHECK_FAILS(schema_status("{\"schema\": 1}", err), STW_STATUS_BAD_INPUT,
                "expected \"stowage.plan/1\"");
    CHECK_FAILS(schema_status("{}", err), STW_STATUS_BAD_INPUT, "\"schema\" is missing");
    CHECK_FAILS(schema_status("[]", err), STW_STATUS_BAD_INPUT, "found an array");
}

static void files_are_read(void) {
    char path[] = "/tmp/stowage-test-tree-XXXXXX";
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    close(fd);
    stw_tree *tree = NULL;
    CHECK_OK(stw_file_write(path, "{\"a\": 1}", 8, err));
    CHECK_OK(stw_tree_read_json(path, &tree, err));
    CU_ASSERT_TRUE(tree != NULL && strcmp(tree->file, path) == 0);
    stw_tree_free(tree);
    CHECK_OK(stw_tree_read_yaml(path, &tree, err)); /* JSON is YAML as well */
    CU_ASSERT_TRUE(tree != NULL && stw_node_get(tree->root, "a")->integer == 1);
    stw_tree_free(tree);
    CHECK_OK(stw_file_write(path, "{", 1, err));
    CHECK_FAILS(stw_tree_read_json(path, &tree, err), STW_STATUS_BAD_INPUT, path);
    unlink(path);
    CHECK_FAILS(stw_tree_read_json(path, &tree, err), STW_STATUS_IO, path);
    CHECK_FAILS(stw_tree_read_yaml(path, &tree, err), STW_STATUS_IO, path);
    CU_ASSERT_PTR_NULL(tree);
    stw_tree_free(NULL);
}

static size_t n_own;

static void *own_malloc(size_t size) {
    n_own++;
    return malloc(size);
}

/* The program around the library has set its own allocator for jansson. faults.walk lets the
 * allocations of the parser fail. */
static void others_keep_their_allocator(void) {
    stw_tree *tree = NULL;
    json_set_alloc_funcs(own_malloc, free);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(stw_tree_parse_json("t.json", "{\"a\": [1, \"b\"]}", 15, &tree, err));
        stw_tree_free(tree);
        size_t before = n_own;
        json_t *theirs = json_string("theirs");
        CU_ASSERT_TRUE(theirs != NULL && n_own > before);
        json_decref(theirs);
    }
    json_set_alloc_funcs(malloc, free);
}

STW_TEST_MAIN("core tree", {"JSON has values and places", json_has_values_and_places},
              {"JSON numbers", json_numbers}, {"JSON errors have places", json_errors_have_places},
              {"depth is limited", depth_is_limited},
              {"YAML has values and places", yaml_has_values_and_places},
              {"YAML scalars", yaml_scalars}, {"YAML errors have places", yaml_errors_have_places},
              {"empty YAML is null", empty_yaml_is_null}, {"typed reads", typed_reads},
              {"paths are followed", paths_are_followed},
              {"unknown keys are refused", unknown_keys_are_refused},
              {"nearest is near", nearest_is_near}, {"descriptions", descriptions},
              {"schemas are checked", schemas_are_checked}, {"files are read", files_are_read},
              {"others keep their allocator", others_keep_their_allocator})
