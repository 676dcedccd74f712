/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkdtemp */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "models/internal.h"
#include "models/table.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static stw_status parse(const char *text, stw_model **out, stw_error *err) {
    return stw_model_parse_csv("list.csv", text, strlen(text), out, err);
}

/* Every zoo model, written and read back: tensors, order, groups and so the digest are the same. */
static void round_trip(void) {
    char folder[] = "/tmp/stowage-csv-XXXXXX", path[64];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tensors.csv", folder);
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    CHECK_OK(stw_table_read(pool, STW_SOURCE_MODELS "/zoo/counts.csv", &table, err));
    for (size_t r = 1; r < table.n_rows; r++) {
        stw_model *model = NULL, *again = NULL;
        CHECK_OK(stw_model_open(table.rows[r].fields[0], STW_SOURCE_MODELS, &model, err));
        if (model == NULL) continue;
        CHECK_OK(stw_model_write_csv(model, path, err));
        CHECK_OK(stw_model_open(path, STW_SOURCE_MODELS, &again, err));
        if (again != NULL) {
            CU_ASSERT_STRING_EQUAL(again->digest, model->digest);
            CU_ASSERT_EQUAL(again->params, model->params);
            CU_ASSERT_EQUAL(again->n_blocks, model->n_blocks);
            CU_ASSERT_EQUAL_FATAL(again->n_groups, model->n_groups);
            for (uint32_t g = 0; g < model->n_groups; g++) {
                CU_ASSERT_STRING_EQUAL(again->groups[g].name, model->groups[g].name);
                CU_ASSERT_EQUAL(again->groups[g].count, model->groups[g].count);
                CU_ASSERT_EQUAL(again->groups[g].params, model->groups[g].params);
            }
            for (uint32_t k = 0; k < model->n_tensors; k++) {
                CU_ASSERT_EQUAL(again->tensors[k].expert, model->tensors[k].expert);
                CU_ASSERT_EQUAL(again->tensors[k].experts, model->tensors[k].experts);
            }
            CU_ASSERT_EQUAL(again->vocab, model->vocab);
            CU_ASSERT_EQUAL(again->layers, model->layers);
            CU_ASSERT_EQUAL(again->tied_embeddings, model->tied_embeddings);
            CU_ASSERT(!again->facts_known);
            CU_ASSERT_STRING_EQUAL(again->model_type, "");
        }
        stw_model_free(again);
        stw_model_free(model);
    }
    stw_pool_free(pool);
    unlink(path);
    rmdir(folder);
}

static void blocks_from_names(void) {
    stw_model *m = NULL;
    /* out of order, columns too; ten blocks, so that "10" must not come before "2" */
    char text[4096] = "dtype,name,shape\n"
                      "BF16,lm_head.weight,\"[10, 4]\"\n"
                      "# a comment\n"
                      "BF16,model.norm.weight,[4]\n\n";
    for (int i = 11; i >= 0; i--) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n,
                 "BF16,model.layers.%d.b,[4]\nBF16,model.layers.%d.a,%s\n", i, i,
                 i == 3 ? "\"[5, 4]\"" : "\"[4, 4]\"");
    }
    strcat(text, "BF16,model.embed_tokens.weight,\"[10, 4]\"\n");
    CHECK_OK(parse(text, &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT_EQUAL(m->n_blocks, 15);
    CU_ASSERT_STRING_EQUAL(m->tensors[0].name, "model.embed_tokens.weight");
    CU_ASSERT_STRING_EQUAL(m->tensors[1].name, "model.layers.0.b");
    CU_ASSERT_STRING_EQUAL(m->tensors[2].name, "model.layers.0.a");
    CU_ASSERT_STRING_EQUAL(m->tensors[5].name, "model.layers.2.b");
    CU_ASSERT_STRING_EQUAL(m->tensors[25].name, "model.norm.weight");
    CU_ASSERT_STRING_EQUAL(m->tensors[26].name, "lm_head.weight");
    CU_ASSERT_EQUAL_FATAL(m->n_groups, 5); /* the third layer has another shape */
    CU_ASSERT_STRING_EQUAL(m->groups[1].name, "layer");
    CU_ASSERT_EQUAL(m->groups[1].count, 11);
    CU_ASSERT_STRING_EQUAL(m->groups[2].name, "layer_2");
    CU_ASSERT_EQUAL(m->groups[2].count, 1);
    CU_ASSERT_EQUAL(m->params, 11 * 20 + 24 + 40 + 4 + 40);
    CU_ASSERT_EQUAL(m->vocab, 10);
    CU_ASSERT_EQUAL(m->hidden, 4);
    CU_ASSERT_EQUAL(m->layers, 12);
    CU_ASSERT(!m->tied_embeddings);
    stw_model_free(m);
}

static void groups_by_column(void) {
    stw_model *m = NULL;
    CHECK_OK(parse("name,shape,dtype,group\n"
                   "layers.0.attn,[4],F32,attention\n"
                   "layers.0.mlp,[9],F32,mlp\n"
                   "layers.1.attn,[4],F32,attention\n"
                   "layers.1.mlp,[9],F32,mlp\n"
                   "scale,[],float32,\n",
                   &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT_EQUAL_FATAL(m->n_groups, 3);
    CU_ASSERT_STRING_EQUAL(m->groups[0].name, "attention");
    CU_ASSERT_EQUAL(m->groups[0].count, 2);
    CU_ASSERT_STRING_EQUAL(m->groups[1].name, "mlp");
    CU_ASSERT_EQUAL(m->groups[1].params, 18);
    CU_ASSERT_EQUAL(m->groups[2].params, 1); /* a scalar */
    stw_model_free(m);
}

static void experts_by_name(void) {
    stw_model *m = NULL;
    CHECK_OK(parse("name,shape,dtype\n"
                   "model.layers.0.mlp.experts.0.up_proj.weight,\"[2, 3]\",F32\n"
                   "model.layers.0.mlp.experts.1.up_proj.weight,\"[2, 3]\",F32\n"
                   "model.layers.0.mlp.shared_experts.up_proj.weight,\"[2, 3]\",F32\n"
                   "model.layers.1.mlp.experts.up_proj,\"[8, 2, 3]\",F32\n",
                   &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT(m->tensors[0].expert && m->tensors[0].experts == 1);
    CU_ASSERT(m->tensors[1].expert && m->tensors[1].experts == 1);
    CU_ASSERT(!m->tensors[2].expert);
    CU_ASSERT(m->tensors[3].expert && m->tensors[3].experts == 8);
    CU_ASSERT_EQUAL(m->active_params, m->params); /* how many a token uses is not known */
    CU_ASSERT_STRING_EQUAL(m->groups[0].name, "moe_layer");
    stw_model_free(m);
}

static void sequences_are_no_blocks(void) {
    stw_name_parts parts;
    stw_name_read("model.visual.merger.mlp.2.weight", &parts);
    CU_ASSERT(parts.prefix == 0 && parts.vision && parts.stage == 2);
    stw_name_read("transformer.h.3.attn.c_attn.weight", &parts);
    CU_ASSERT(parts.prefix == strlen("transformer.h.") && parts.number == 3 && parts.stage == 4);
    stw_name_read("model.layers.7.mlp.experts.17.w1", &parts);
    CU_ASSERT(parts.number == 7 && parts.expert && parts.expert_number);
    stw_name_read("layers.99999999999999999999.w", &parts); /* no block has such a number */
    CU_ASSERT_EQUAL(parts.prefix, 0);
    stw_name_read("", &parts);
    CU_ASSERT_EQUAL(parts.stage, 5);
}

static const struct {
    const char *text, *word;
} bad[] = {
    {"", "list.csv:1: expected the header"},
    {"a\n", "\"a\""},
    {"name,shape\n", "expected the header"},
    {"name,shape,dtype,name\n", "twice"},
    {"name,shape,dtype\n", "no tensors"},
    {"name,shape,dtype\nw,[2]\n", "list.csv:2: found 2 columns"},
    {"name,shape,dtype\nw,[2],F32,x\n", "found 4 columns"},
    {"name,shape,dtype\n,[2],F32\n", "name is empty"},
    {"name,shape,dtype\n\n# x\nw,[2],F33\n", "list.csv:4: the dtype is \"F33\""},
    {"name,shape,dtype\nw,2,F32\n", "the shape is \"2\""},
    {"name,shape,dtype\nw,[-2],F32\n", "the shape"},
    {"name,shape,dtype\nw,[2],I64\n", "no parameters"},
    {"name,shape,dtype\nw,[2 3],F32\n", "the shape"},
    {"name,shape,dtype\nw,\"[2,]\",F32\n", "the shape"},
    {"name,shape,dtype\nw,[2]x,F32\n", "the shape"},
    {"name,shape,dtype\nw,[1e3],F32\n", "the shape"},
    {"name,shape,dtype\nw,[99999999999999999999],F32\n", "the shape"},
    {"name,shape,dtype\nw,\"[1,1,1,1,1,1,1,1,1]\",F32\n", "the shape"},
    {"name,shape,dtype\nw,\"[4294967296,4294967296]\",F32\n", "does not fit"},
    {"name,shape,dtype\na,[18446744073709551615],F32\nb,[2],F32\n", "does not fit"},
    {"name,shape,dtype\nw,[2],F32\nv,[2],F32\nw,[3],F32\n",
     "list.csv:4: the tensor \"w\" is already in line 2"},
    {"name,shape,dtype\n\"w,[2],F32\n", "is not CSV"},
    {"name,shape,dtype\nw\"x,[2],F32\n", "is not CSV"},
};

static void bad_lists(void) {
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        stw_model *model = NULL;
        CHECK_FAILS(parse(bad[k].text, &model, err), STW_STATUS_BAD_INPUT, bad[k].word);
        CU_ASSERT_PTR_NULL(model);
    }
    stw_model *model = NULL;
    static const char nul[] = "name,shape,dtype\nw\0x,[2],F32\n";
    CHECK_FAILS(stw_model_parse_csv("list.csv", nul, sizeof nul - 1, &model, err),
                STW_STATUS_BAD_INPUT, "NUL");
    CHECK_FAILS(stw_model_read_csv("/nonexistent/list.csv", &model, err), STW_STATUS_IO,
                "/nonexistent/list.csv");
}

/* Integers are never trained; an empty tensor is a tensor. */
static void buffers_and_empty_tensors(void) {
    stw_model *m = NULL;
    CHECK_OK(parse("name,shape,dtype,group\n"
                   "layers.0.w,[0],F32,a\n"
                   "layers.0.position_ids,[7],I64,a\n"
                   "layers.1.w,[3],F32,b\n"
                   "layers.1.mask,[5],BOOL,b\n",
                   &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT_EQUAL(m->params, 3);
    CU_ASSERT_EQUAL(m->n_tensors, 2);
    CU_ASSERT_EQUAL(m->n_buffers, 2);
    CU_ASSERT_EQUAL(m->buffers, 12);
    CU_ASSERT_EQUAL(m->buffer_tensors[1].block, 1);
    CU_ASSERT_STRING_EQUAL(m->groups[m->blocks[1].group].name, "b");
    stw_model_free(m);
}

static void quoting(void) {
    stw_model *m = NULL, *again = NULL;
    char path[] = "/tmp/stowage-csv-XXXXXX";
    int fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    close(fd);
    CHECK_OK(parse("\xEF\xBB\xBFname,shape,dtype,group\r\n"
                   "\"#a,\"\"b\"\"\",[2],F32,\"x, y\"\r\n"
                   "\"two\nlines\",[2],F32,z",
                   &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT_STRING_EQUAL(m->tensors[0].name, "#a,\"b\"");
    CU_ASSERT_STRING_EQUAL(m->tensors[1].name, "two\nlines");
    CHECK_OK(stw_model_write_csv(m, path, err));
    CHECK_OK(stw_model_read_csv(path, &again, err));
    if (again != NULL) {
        CU_ASSERT_STRING_EQUAL(again->digest, m->digest);
        CU_ASSERT_STRING_EQUAL(again->groups[0].name, "x, y");
    }
    stw_model_free(again);
    stw_model_free(m);
    unlink(path);
}

static void dtypes(void) {
    stw_dtype dtype;
    for (unsigned d = 0; d < STW_N_DTYPES; d++) {
        CU_ASSERT(stw_dtype_parse(stw_dtype_name((stw_dtype)d), &dtype));
        CU_ASSERT_EQUAL(dtype, (stw_dtype)d);
        CU_ASSERT(stw_dtype_bits((stw_dtype)d) >= 4);
    }
    CU_ASSERT(stw_dtype_parse("torch.bfloat16", &dtype) && dtype == STW_DTYPE_BF16);
    CU_ASSERT(stw_dtype_parse("bf16", &dtype) && dtype == STW_DTYPE_BF16);
    CU_ASSERT(stw_dtype_parse("fp32", &dtype) && dtype == STW_DTYPE_F32);
    CU_ASSERT(stw_dtype_parse("float8_e4m3fn", &dtype) && dtype == STW_DTYPE_F8_E4M3);
    CU_ASSERT(!stw_dtype_parse("", &dtype));
    CU_ASSERT(!stw_dtype_parse("float", &dtype));
    CU_ASSERT_EQUAL(stw_dtype_bits(STW_DTYPE_F4), 4);
    CU_ASSERT_EQUAL(stw_dtype_bits(STW_DTYPE_BF16), 16);
}

STW_TEST_MAIN("models csv", {"round trip", round_trip}, {"blocks from names", blocks_from_names},
              {"groups by column", groups_by_column}, {"experts by name", experts_by_name},
              {"sequences are no blocks", sequences_are_no_blocks}, {"bad lists", bad_lists},
              {"buffers and empty tensors", buffers_and_empty_tensors}, {"quoting", quoting},
              {"dtypes", dtypes})
