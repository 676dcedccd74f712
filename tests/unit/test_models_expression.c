/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "models/expression.h"
#include "models/template.h"
#include "tests/unit/testing.h"

static const char config[] =
    "{\"heads\": 8, \"kv\": null, \"zero\": 0, \"bias\": true,\n"
    " \"type\": \"full\", \"ratio\": 0.5,\n"
    " \"kinds\": [\"a\", \"b\", \"a\"], \"only\": [1, 3], \"mixed\": [1, {}],\n"
    " \"big\": 9223372036854775807,\n"
    " \"inner\": {\"heads\": 2, \"deep\": {\"x\": 5}}}";

static stw_tree *tree;
static stw_binding bindings[] = {
    {.name = "heads2", .text = "heads * 2", .file = "t.csv", .line = 7},
    {.name = "kv", .text = "default(kv, heads)", .file = "t.csv", .line = 8}, /* itself: the key */
    {.name = "ping", .text = "pong + 1", .file = "t.csv", .line = 9},
    {.name = "pong", .text = "ping + 1", .file = "t.csv", .line = 10},
};

static stw_environment environment(void) {
    return (stw_environment){.tree = tree,
                             .bindings = bindings,
                             .n_bindings = sizeof bindings / sizeof bindings[0],
                             .has_index = true,
                             .index = 2,
                             .file = "t.csv",
                             .line = 3};
}

static void begin(void) {
    CHECK_OK(stw_tree_parse_json("config.json", config, sizeof config - 1, &tree, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(tree);
}

static void end(void) {
    stw_tree_free(tree);
    tree = NULL;
}

static const struct {
    const char *text;
    int64_t value;
} numbers[] = {
    {"1 + 2 * 3", 7},
    {"(1 + 2) * 3", 9},
    {"10 - 2 - 3", 5},
    {"7 // 2", 3},
    {"6 / 2 / 3", 1}, /* without a rest */
    {"-6 / 2", -3},
    {"-7 // 2", -4}, /* as Python: towards minus infinity */
    {"-7 % 4", 1},
    {"7 % 4", 3},
    {"--3", 3},
    {"heads", 8},
    {"inner.heads", 2},
    {"inner.deep.x", 5},
    {"heads2 + 1", 17},
    {"kv", 8},
    {"i * 10", 20},
    {"default(missing, 4)", 4},
    {"default(heads, missing)", 8}, /* the default is not evaluated */
    {"default(inner.none, heads // 4)", 2},
    {"default(only[1], 9)", 3},
    {"default(none[1], 9)", 9},
    {"if(bias, 1, missing)", 1},
    {"if(not bias, missing, 2)", 2},
    {"len(kinds)", 3},
    {"len(none)", 0},
    {"only[0] + only[1]", 4},
    {"big", INT64_MAX},
};

static void computes_numbers(void) {
    begin();
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
        stw_environment env = environment();
        stw_value value = {.integer = -999};
        CHECK_OK(stw_expression_value(&env, numbers[k].text, &value, err));
        if (value.integer != numbers[k].value)
            fprintf(stderr, "%s: %" PRId64 "\n", numbers[k].text, value.integer);
        CU_ASSERT_EQUAL(value.kind, STW_VALUE_INT);
        CU_ASSERT_EQUAL(value.integer, numbers[k].value);
        CU_ASSERT_EQUAL(env.depth, 0);
    }
    end();
}

static const struct {
    const char *text;
    bool value;
} truths[] = {
    {"", true},
    {"true", true},
    {"not true", false},
    {"not not bias", true},
    {"1 < 2 and 2 <= 2 and 3 > 2 and 3 >= 3", true},
    {"1 == 2 or 2 != 2", false},
    {"true or missing", true}, /* not evaluated */
    {"false and missing", false},
    {"false and missing or true", true},
    {"kinds[i] == 'a'", true},
    {"kinds[1] == 'a'", false},
    {"type != 'full'", false},
    {"has(heads)", true},
    {"has(zero)", true},
    {"has(none)", false},
    {"has(inner.deep)", true},
    {"given(none)", false},
    {"in(3, only)", true},
    {"in(2, only)", false},
    {"in(2, none)", false},
    {"in('b', kinds)", true},
    {"not in(i, only) and (i + 1) % 3 == 0", true},
};

static void computes_truths(void) {
    begin();
    for (size_t k = 0; k < sizeof truths / sizeof truths[0]; k++) {
        stw_environment env = environment();
        bool value = !truths[k].value;
        CHECK_OK(stw_expression_bool(&env, truths[k].text, &value, err));
        if (value != truths[k].value) fprintf(stderr, "wrong: %s\n", truths[k].text);
        CU_ASSERT_EQUAL(value, truths[k].value);
    }
    end();
}

static void null_is_given_but_absent(void) {
    begin();
    stw_environment env = environment();
    env.n_bindings = 0;
    bool value = true;
    CHECK_OK(stw_expression_bool(&env, "has(kv)", &value, err));
    CU_ASSERT(!value);
    CHECK_OK(stw_expression_bool(&env, "given(kv)", &value, err));
    CU_ASSERT(value);
    stw_value number;
    CHECK_FAILS(stw_expression_value(&env, "kv", &number, err), STW_STATUS_BAD_INPUT, "is null");
    end();
}

static void scope_comes_first(void) {
    begin();
    stw_environment env = environment();
    env.scope = stw_node_get(tree->root, "inner");
    stw_value value = {.integer = 0};
    CHECK_OK(stw_expression_value(&env, "heads", &value, err));
    CU_ASSERT_EQUAL(value.integer, 2);
    CHECK_OK(stw_expression_value(&env, "zero", &value, err)); /* only in the root */
    CU_ASSERT_EQUAL(value.integer, 0);
    CHECK_OK(stw_expression_value(&env, "heads2", &value, err)); /* written in the root's scope */
    CU_ASSERT_EQUAL(value.integer, 16);
    end();
}

static const struct {
    const char *text, *word;
} bad[] = {
    {"missing", "\"missing\" is missing"},
    {"missing", "t.csv:3"},
    {"1 +", "the end"},
    {"1 2", "an operator"},
    {"(1", "closing bracket"},
    {"'a", "closing quote"},
    {"1 + true", "whole number"},
    {"bias + 1", "\"bias\""},
    {"ratio", "\"ratio\""},
    {"not 1", "true or false"},
    {"1 and true", "true or false"},
    {"type == 1", "same type"},
    {"kinds", "\"kinds\""},
    {"kinds[7]", "has 3 elements"},
    {"kinds[0 - 1]", "has 3 elements"},
    {"heads[0]", "a list"},
    {"in(1, heads)", "a list"},
    {"in(1, mixed) and in(2, mixed)", "config.json:3"},
    {"in('x', only)", "a string"},
    {"big + 1", "does not fit"},
    {"big * 2", "does not fit"},
    {"0 - big - 2", "does not fit"},
    {"1 // zero", "division by zero"},
    {"1 / zero", "division by zero"},
    {"7 / 2", "7 is not a multiple of 2"},
    {"1 % zero", "division by zero"},
    {"99999999999999999999", "63 bits"},
    {"ping", "missing"}, /* a cycle ends at the config, which has no such key */
    {"default(1, 2)", "a key"},
    {"default(heads)", "a comma"},
    {"if(true, 1)", "a comma"},
    {"heads..x", "missing"},
    {"@", "a key"},
};

static void refuses(void) {
    begin();
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        stw_environment env = environment();
        stw_value value;
        CHECK_FAILS(stw_expression_value(&env, bad[k].text, &value, err), STW_STATUS_BAD_INPUT,
                    bad[k].word);
        for (size_t b = 0; b < env.n_bindings; b++) CU_ASSERT(!bindings[b].busy);
    }
    char deep[400];
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    stw_environment env = environment();
    stw_value value;
    CHECK_FAILS(stw_expression_value(&env, deep, &value, err), STW_STATUS_BAD_INPUT, "fewer");
    end();
}

static void index_only_where_there_is_one(void) {
    begin();
    stw_environment env = environment();
    env.has_index = false;
    stw_value value;
    CHECK_FAILS(stw_expression_value(&env, "i + 1", &value, err), STW_STATUS_BAD_INPUT, "no i");
    end();
}

static void shapes(void) {
    begin();
    stw_environment env = environment();
    uint64_t sizes[4] = {0};
    uint32_t n = 9;
    CHECK_OK(stw_expression_shape(&env, "[heads * 2, default(none, 3), 1]", 4, sizes, &n, err));
    CU_ASSERT_EQUAL(n, 3);
    CU_ASSERT(sizes[0] == 16 && sizes[1] == 3 && sizes[2] == 1);
    CHECK_OK(stw_expression_shape(&env, " [ ] ", 4, sizes, &n, err));
    CU_ASSERT_EQUAL(n, 0);
    CHECK_FAILS(stw_expression_shape(&env, "[heads, zero]", 4, sizes, &n, err),
                STW_STATUS_BAD_INPUT, "\"zero\": found the number 0, expected at least 1");
    CHECK_FAILS(stw_expression_shape(&env, "[heads - 9]", 4, sizes, &n, err), STW_STATUS_BAD_INPUT,
                "comes to -1");
    CHECK_FAILS(stw_expression_shape(&env, "[1, 2, 3, 4, 5]", 4, sizes, &n, err),
                STW_STATUS_BAD_INPUT, "fewer dimensions");
    CHECK_FAILS(stw_expression_shape(&env, "[1, 2", 4, sizes, &n, err), STW_STATUS_BAD_INPUT,
                "comma or a closing");
    CHECK_FAILS(stw_expression_shape(&env, "[1] 2", 4, sizes, &n, err), STW_STATUS_BAD_INPUT,
                "end");
    CHECK_FAILS(stw_expression_shape(&env, "1", 4, sizes, &n, err), STW_STATUS_BAD_INPUT,
                "square brackets");
    CHECK_FAILS(stw_expression_shape(&env, "[true]", 4, sizes, &n, err), STW_STATUS_BAD_INPUT,
                "whole number");
    end();
}

static void patterns(void) {
    CU_ASSERT(stw_template_matches("a b", "b"));
    CU_ASSERT(!stw_template_matches("a b", "ab"));
    CU_ASSERT(stw_template_matches("*_layer", "moe_layer"));
    CU_ASSERT(!stw_template_matches("*_layer", "layer"));
    CU_ASSERT(stw_template_matches("vision_*", "vision_embed"));
    CU_ASSERT(!stw_template_matches("ab*ba", "aba")); /* both ends need characters of their own */
    CU_ASSERT(stw_template_matches("*", "anything"));
    CU_ASSERT(!stw_template_matches("", "anything"));
}

STW_TEST_MAIN("models expression", {"computes numbers", computes_numbers},
              {"computes truths", computes_truths},
              {"null is given but absent", null_is_given_but_absent},
              {"scope comes first", scope_comes_first}, {"refuses", refuses},
              {"index only where there is one", index_only_where_there_is_one}, {"shapes", shapes},
              {"patterns", patterns})
