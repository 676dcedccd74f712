/* SPDX-License-Identifier: Apache-2.0 */
/* What `stowage inspect` prints: JSON that reads back, a table that names every group. */
#include "core/tree.h"
#include "reports/reports.h"
#include "tests/unit/testing.h"

static stw_tensor tensors[3];
static stw_block_group groups[2];
static stw_model model;

static void set_up(void) {
    memset(tensors, 0, sizeof tensors);
    memset(groups, 0, sizeof groups);
    memset(&model, 0, sizeof model);
    for (int i = 0; i < 3; i++) {
        tensors[i].numel = i == 0 ? 1000 : 2000000;
        tensors[i].dtype = STW_DTYPE_BF16;
    }
    groups[0] = (stw_block_group){
        .name = "embed", .count = 1, .tensors = 1, .params = 1000, .active_params = 1000};
    groups[1] = (stw_block_group){
        .name = "moe_layer", .count = 2, .tensors = 2, .params = 4000000, .active_params = 400000};
    groups[1].facts = (stw_block_facts){
        .transformer = true, .q_heads = 16, .kv_heads = 8, .experts = 64, .experts_per_token = 4};
    model.name = "tiny \"quoted\"";
    model.model_type = "tiny_moe";
    model.facts_known = true;
    model.params = 4001000;
    model.active_params = 401000;
    model.n_tensors = 3;
    model.tensors = tensors;
    model.n_groups = 2;
    model.groups = groups;
    model.layers = 2;
    model.hidden = 64;
    model.vocab = 100;
}

static void json_reads_back(void) {
    stw_text out = STW_TEXT_INIT;
    stw_tree *tree = NULL;
    const stw_node *list = NULL;
    const char *name = NULL;
    uint64_t value = 0;
    set_up();
    CHECK_OK(stw_report_model(&model, STW_FORMAT_JSON, &out, err));
    CHECK_OK(stw_tree_parse_json("model", out.data, out.length, &tree, err));
    if (tree == NULL) return;
    CHECK_OK(stw_tree_schema(tree, "stowage.model", 1, err));
    CHECK_OK(stw_node_string(tree, tree->root, "name", &name, err));
    CU_ASSERT_STRING_EQUAL(name, "tiny \"quoted\"");
    CHECK_OK(stw_node_u64(tree, tree->root, "params", &value, err));
    CU_ASSERT_EQUAL(value, 4001000);
    CHECK_OK(stw_node_u64(tree, tree->root, "active_params", &value, err));
    CU_ASSERT_EQUAL(value, 401000);
    CHECK_OK(stw_node_u64(tree, tree->root, "tensors", &value, err));
    CU_ASSERT_EQUAL(value, 3);
    CHECK_OK(stw_node_array(tree, tree->root, "groups", &list, err));
    CU_ASSERT_EQUAL(list->n_items, 2);
    CHECK_OK(stw_node_u64(tree, list->items[1], "params", &value, err));
    CU_ASSERT_EQUAL(value, 4000000);
    CHECK_OK(stw_node_u64(tree, list->items[1], "count", &value, err));
    CU_ASSERT_EQUAL(value, 2);
    stw_tree_free(tree);
    stw_text_free(&out);
}

static void people_see_totals_and_groups(void) {
    stw_text out = STW_TEXT_INIT;
    set_up();
    CHECK_OK(stw_report_model(&model, STW_FORMAT_TERMINAL, &out, err));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "4,001,000 parameters in 3 tensors"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "401,000 parameters active"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "64 experts, 4 per token"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "2,000,000")); /* per block */
    CU_ASSERT_PTR_NULL(strstr(out.data, "cannot be predicted"));
    stw_text_free(&out);
    model.facts_known = false;
    model.model_type = "";
    CHECK_OK(stw_report_model(&model, STW_FORMAT_MARKDOWN, &out, err));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "# tiny"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "cannot be predicted"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out.data, "| moe_layer | 2 | 4,000,000 |"));
    stw_text_free(&out);
}

static void csv_has_a_row_for_each_group(void) {
    stw_text out = STW_TEXT_INIT;
    set_up();
    CHECK_OK(stw_report_model(&model, STW_FORMAT_CSV, &out, err));
    CU_ASSERT_STRING_EQUAL(out.data, "name,count,tensors,params,active_params\n"
                                     "embed,1,1,1000,1000\n"
                                     "moe_layer,2,2,4000000,400000\n");
    stw_text_free(&out);
}

STW_TEST_MAIN("reports model", {"JSON reads back", json_reads_back},
              {"people see totals and groups", people_see_totals_and_groups},
              {"CSV has a row for each group", csv_has_a_row_for_each_group})
