/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of blocks of lists in which every block differs: the work grows with the number of tensors,
 * not with its square. */
#include <inttypes.h>

#include "core/text.h"
#include "models/kinds.h"
#include "tests/unit/testing.h"

enum { N_DISTINCT = 100000 };

/* A list of n blocks that all differ. */
static stw_model *read_distinct(uint32_t n) {
    stw_text text = STW_TEXT_INIT;
    stw_model *model = NULL;
    stw_text_printf(&text, "name,shape,dtype\n");
    for (uint32_t k = 0; k < n; k++)
        stw_text_printf(&text, "model.layers.%" PRIu32 ".weight,\"[%" PRIu32 ", 2]\",BF16\n", k,
                        k + 1);
    CHECK_OK(stw_text_status(&text, err));
    CHECK_OK(stw_model_parse_csv("list.csv", text.data, text.length, &model, err));
    stw_text_free(&text);
    return model;
}

static void every_block_differs(void) {
    stw_model *model = read_distinct(N_DISTINCT);
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    CU_ASSERT_EQUAL_FATAL(model->n_groups, N_DISTINCT);
    CU_ASSERT_EQUAL(model->n_blocks, N_DISTINCT);
    CU_ASSERT_STRING_EQUAL(model->groups[0].name, "layer");
    CU_ASSERT_STRING_EQUAL(model->groups[1].name, "layer_2");
    CU_ASSERT_STRING_EQUAL(model->groups[N_DISTINCT - 1].name, "layer_100000");
    CU_ASSERT_EQUAL(model->params, (uint64_t)N_DISTINCT * (N_DISTINCT + 1));
    stw_model_free(model);
}

/* Entries looked at in all tables: three lookups for a block, a few entries each. */
static void work_is_linear(void) {
    stw_model *model = read_distinct(N_DISTINCT);
    stw_kinds kinds;
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    CU_ASSERT_FATAL(stw_kinds_init(&kinds, model));
    for (unsigned round = 0; round < 2; round++) { /* all new, then all known */
        for (uint32_t b = 0; b < model->n_blocks; b++) {
            uint32_t index = 0;
            const char *name = NULL;
            CU_ASSERT_FATAL(stw_kinds_join(&kinds, &model->blocks[b], "layer", &index, &name));
            CU_ASSERT_EQUAL_FATAL(index, b);
            CU_ASSERT_EQUAL_FATAL(name == NULL, round == 1);
        }
    }
    CU_ASSERT_EQUAL(kinds.n, N_DISTINCT);
    CU_ASSERT_EQUAL(kinds.n_bases, 1);
    CU_ASSERT(kinds.probes < UINT64_C(12) * N_DISTINCT);
    stw_model_free(model);
}

/* Numbers that other base names have taken are skipped, each once. */
static void taken_names(void) {
    stw_model *model = read_distinct(2000);
    stw_kinds kinds;
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    CU_ASSERT_FATAL(stw_kinds_init(&kinds, model));
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        uint32_t index = 0;
        const char *name = NULL;
        char base[32] = "x", expected[32];
        if (b < 1000) snprintf(base, sizeof base, "x_%" PRIu32, b + 2);
        memcpy(expected, base, sizeof expected);
        if (b > 1000) snprintf(expected, sizeof expected, "x_%" PRIu32, b + 1);
        const char *kept = stw_pool_string(model->pool, base);
        CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
        CU_ASSERT_FATAL(stw_kinds_join(&kinds, &model->blocks[b], kept, &index, &name));
        CU_ASSERT_STRING_EQUAL(name, expected);
    }
    CU_ASSERT(kinds.probes < UINT64_C(16) * model->n_blocks);
    stw_model_free(model);
}

/* Equal shapes under another base name are another kind; names stay unique. */
static void same_shape_other_base(void) {
    static const char text[] = "name,shape,dtype,group\n"
                               "a.layers.0.w,\"[2, 2]\",F32,x\n"
                               "a.layers.1.w,\"[3, 2]\",F32,x\n"
                               "a.layers.2.w,\"[2, 2]\",F32,x_2\n"
                               "a.layers.3.w,\"[2, 2]\",F32,x\n"
                               "a.layers.4.w,\"[3, 2]\",BF16,x\n";
    static const char *const names[] = {"x", "x_2", "x_2_2", "x", "x_3"};
    stw_model *model = NULL;
    CHECK_OK(stw_model_parse_csv("list.csv", text, sizeof text - 1, &model, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    CU_ASSERT_EQUAL_FATAL(model->n_blocks, 5);
    for (uint32_t b = 0; b < 5; b++)
        CU_ASSERT_STRING_EQUAL(model->groups[model->blocks[b].group].name, names[b]);
    stw_model_free(model);
}

STW_TEST_MAIN("models kinds", {"every block differs", every_block_differs},
              {"work is linear", work_is_linear}, {"taken names", taken_names},
              {"same shape, other base", same_shape_other_base})
