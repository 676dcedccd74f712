/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkdtemp, nftw */
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/internal.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static char folder[64], path[160];

static void begin(void) {
    strcpy(folder, "/tmp/stowage-st-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}

static int remove_one(const char *name, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(name);
}

static void end(void) { CU_ASSERT_EQUAL(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0); }

static const char *in_folder(const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(in_folder(name), "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* A file with this header, the length that `claimed` says (0: the true one) and n bytes of data. */
static const char *write_file(const char *name, const char *header, uint64_t claimed, size_t data) {
    unsigned char bytes[8192] = {0};
    size_t n = strlen(header);
    uint64_t length = claimed != 0 ? claimed : n;
    CU_ASSERT_FATAL(8 + n + data <= sizeof bytes);
    for (unsigned k = 0; k < 8; k++) bytes[k] = (unsigned char)(length >> (8 * k));
    memcpy(bytes + 8, header, n);
    write_bytes(name, bytes, 8 + n + data);
    return path;
}

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}   ";

static void reads_one_file(void) {
    stw_safetensors *set = NULL;
    begin();
    CHECK_OK(stw_safetensors_open(write_file("x.safetensors", two, 0, 20), &set, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT_EQUAL(set->n_files, 1);
    CU_ASSERT_EQUAL_FATAL(set->n_entries, 2);
    const stw_safetensors_entry *b = stw_safetensors_find(set, "b");
    CU_ASSERT_PTR_NOT_NULL_FATAL(b);
    CU_ASSERT_EQUAL(b->dtype, STW_DTYPE_F32);
    CU_ASSERT_EQUAL(b->offset_bytes, 8 + strlen(two) + 8);
    CU_ASSERT_EQUAL(b->bytes, 12);
    CU_ASSERT_EQUAL(b->rank, 1);
    CU_ASSERT_EQUAL(b->shape[0], 3);
    CU_ASSERT_STRING_EQUAL(set->entries[0].name, "a");
    CU_ASSERT_PTR_NULL(stw_safetensors_find(set, "c"));
    CU_ASSERT_EQUAL(set->file_bytes[0], 8 + strlen(two) + 20);
    stw_safetensors_free(set);
    end();
}

static void reads_odd_but_valid(void) {
    stw_safetensors *set = NULL;
    begin();
    /* a scalar, an empty tensor, four-bit elements */
    CHECK_OK(stw_safetensors_open(
        write_file("x.safetensors",
                   "{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                   "\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[8,8]},"
                   "\"q\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[8,11]}}",
                   0, 11),
        &set, err));
    if (set != NULL) CU_ASSERT_EQUAL(set->n_entries, 3);
    stw_safetensors_free(set);
    CHECK_OK(stw_safetensors_open(write_file("y.safetensors", "{}", 0, 0), &set, err));
    if (set != NULL) CU_ASSERT_EQUAL(set->n_entries, 0);
    if (set != NULL) CU_ASSERT_PTR_NULL(stw_safetensors_find(set, "a"));
    stw_safetensors_free(set);
    end();
}

#define T(shape, offsets)                                                                          \
    "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header;
    uint64_t claimed;
    size_t data;
    const char *word;
} hostile[] = {
    {"{}", 99, 0, "truncated"},
    {"{}", 100000001, 0, "expected at most 100000000"},
    {"{}", UINT64_MAX, 0, "expected at most 100000000"},
    {"[]", 0, 0, "does not begin with '{'"},
    {" {}", 0, 0, "does not begin with '{'"},
    {"{x}", 0, 0, "x.safetensors:1"},
    {"{\"t\":", 0, 0, "x.safetensors:1"},
    {"{} {}", 0, 0, "x.safetensors:1"},
    {"{\"t\":7}", 0, 0, "an object with dtype"},
    {"{\"t\":{}}", 0, 0, "dtype"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "name of 1 to"},
    {"{\"__metadata__\":[]}", 0, 0, "an object of strings"},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, "a string"},
    {"{\"t\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "F33"},
    {"{\"t\":{\"dtype\":\"fp32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "fp32"},
    {"{\"t\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, "a string"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 0, 4, "\"x\""},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 0, 4, "shape"},
    {T("[-1]", "[0,4]"), 0, 4, "the number -1"},
    {T("[1.0]", "[0,4]"), 0, 4, "whole number"},
    {T("[\"1\"]", "[0,4]"), 0, 4, "whole number"},
    {T("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 0, 4, "8 dimensions"},
    {T("[4294967296,4294967296]", "[0,0]"), 0, 0, "fits in 64 bits"},
    {T("[1152921504606846976]", "[0,0]"), 0, 0, "fits in 64 bits"}, /* times 32 bits: 2^65 */
    {T("[2]", "[0,4]"), 0, 4, "8 bytes by its shape"},
    {T("[1]", "[0]"), 0, 4, "two offsets"},
    {T("[1]", "[0,4,8]"), 0, 4, "two offsets"},
    {T("[1]", "[-4,0]"), 0, 4, "two offsets"},
    {T("[1]", "[4,0]"), 0, 4, "begin before end"},
    {T("[1]", "[4,8]"), 0, 8, "a hole"},
    {T("[1]", "[0,4]"), 0, 8, "4 bytes follow"},
    {T("[2]", "[0,8]"), 0, 4, "4 bytes past the end"},
    {T("[1]", "[9223372036854775803,9223372036854775807]"), 0, 4, "a hole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
     0, 6, "an overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
     0, 10, "a hole"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
     0, 8, "a second time"},
    {"{\"q\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 0, 1, "whole bytes"},
};

static void refuses_hostile_headers(void) {
    begin();
    for (size_t k = 0; k < sizeof hostile / sizeof hostile[0]; k++) {
        stw_safetensors *set = NULL;
        write_file("x.safetensors", hostile[k].header, hostile[k].claimed, hostile[k].data);
        CHECK_FAILS(stw_safetensors_open(path, &set, err), STW_STATUS_BAD_INPUT, hostile[k].word);
        CU_ASSERT_PTR_NULL(set);
    }
    end();
}

/* Every prefix of a good file is refused. */
static void refuses_truncation(void) {
    begin();
    unsigned char bytes[512] = {0};
    size_t n = 8 + strlen(two) + 20;
    bytes[0] = (unsigned char)strlen(two);
    memcpy(bytes + 8, two, strlen(two));
    CU_ASSERT_FATAL(strlen(two) < 256);
    for (size_t k = 0; k < n; k++) {
        stw_safetensors *set = NULL;
        write_bytes("x.safetensors", bytes, k);
        CHECK_FAILS(stw_safetensors_open(path, &set, err), STW_STATUS_BAD_INPUT, "x.safetensors");
    }
    end();
}

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static void write_index(const char *map) {
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":8},\"weight_map\":%s}", map);
    write_bytes("model.safetensors.index.json", text, strlen(text));
}

static void reads_shards(void) {
    stw_safetensors *set = NULL;
    begin();
    write_file("m-1.safetensors", ONE("a"), 0, 4);
    write_file("m-2.safetensors", ONE("b"), 0, 4);
    CHECK_OK(stw_safetensors_open(folder, &set, err)); /* no index: every file */
    if (set != NULL) CU_ASSERT(set->n_files == 2 && set->n_entries == 2);
    stw_safetensors_free(set);
    write_index("{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}");
    CHECK_OK(stw_safetensors_open(folder, &set, err));
    if (set != NULL) {
        CU_ASSERT(set->n_files == 2 && set->n_entries == 2);
        CU_ASSERT_EQUAL(stw_safetensors_find(set, "b")->file, 1);
    }
    stw_safetensors_free(set);
    CHECK_OK(stw_safetensors_open(in_folder("model.safetensors.index.json"), &set, err));
    stw_safetensors_free(set);
    write_file("m-3.safetensors", ONE("a"), 0, 4);
    CHECK_OK(stw_safetensors_open(folder, &set, err)); /* the index does not name it */
    if (set != NULL) CU_ASSERT_EQUAL(set->n_files, 2);
    stw_safetensors_free(set);
    unlink(in_folder("model.safetensors.index.json"));
    CHECK_FAILS(stw_safetensors_open(folder, &set, err), STW_STATUS_BAD_INPUT, "is also in");
    end();
}

static const struct {
    const char *map, *word;
    stw_status status;
} bad_maps[] = {
    {"7", "weight_map", STW_STATUS_BAD_INPUT},
    {"{}", "at least one tensor", STW_STATUS_BAD_INPUT},
    {"{\"a\":7}", "the name of a file", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"../m-1.safetensors\"}", "own folder", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"/etc/m-1.safetensors\"}", "own folder", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"sub\\\\m-1.safetensors\"}", "own folder", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"..\"}", "own folder", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"\"}", "own folder", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"m-9.safetensors\"}", "m-9.safetensors", STW_STATUS_IO},
    {"{\"c\":\"m-1.safetensors\"}", "\"c\" is not in m-1", STW_STATUS_BAD_INPUT},
    {"{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}", "\"a\" is not in m-2",
     STW_STATUS_BAD_INPUT},
};

static void refuses_bad_indexes(void) {
    begin();
    write_file("m-1.safetensors", ONE("a"), 0, 4);
    write_file("m-2.safetensors", ONE("b"), 0, 4);
    for (size_t k = 0; k < sizeof bad_maps / sizeof bad_maps[0]; k++) {
        stw_safetensors *set = NULL;
        write_index(bad_maps[k].map);
        CHECK_FAILS(stw_safetensors_open(folder, &set, err), bad_maps[k].status, bad_maps[k].word);
        CU_ASSERT_PTR_NULL(set);
    }
    write_bytes("model.safetensors.index.json", "{}", 2);
    stw_safetensors *set = NULL;
    CHECK_FAILS(stw_safetensors_open(folder, &set, err), STW_STATUS_BAD_INPUT, "weight_map");
    end();
}

static void refuses_what_is_no_file(void) {
    stw_safetensors *set = NULL;
    begin();
    CHECK_FAILS(stw_safetensors_open(folder, &set, err), STW_STATUS_BAD_INPUT, "contains neither");
    CHECK_FAILS(stw_safetensors_open(in_folder("none.safetensors"), &set, err), STW_STATUS_IO,
                "cannot be opened");
    CU_ASSERT_EQUAL(mkdir(in_folder("d.safetensors"), 0700), 0);
    CHECK_FAILS(stw_safetensors_open(folder, &set, err), STW_STATUS_BAD_INPUT,
                "is a folder, expected a regular file");
    end();
}

/* A checkpoint of two blocks becomes a model; what is no parameter is a buffer. */
static void becomes_a_model(void) {
    stw_model *m = NULL;
    begin();
    write_file("model.safetensors",
               "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[8,2],"
               "\"data_offsets\":[0,32]},"
               "\"model.layers.0.w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[32,36]},"
               "\"model.layers.10.w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[36,40]},"
               "\"model.layers.2.w\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[40,44]},"
               "\"model.layers.2.mlp.gate.e_score_correction_bias\":{\"dtype\":\"F32\","
               "\"shape\":[4],\"data_offsets\":[44,60]},"
               "\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[60,64]}}",
               0, 64);
    CHECK_OK(stw_model_open(folder, STW_SOURCE_MODELS, &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    CU_ASSERT_EQUAL(m->params, 16 + 6 + 2);
    CU_ASSERT_EQUAL(m->buffers, 4);
    CU_ASSERT_EQUAL_FATAL(m->n_buffers, 1);
    CU_ASSERT_EQUAL(m->buffer_tensors[0].block, 2); /* embedding, layer 0, layer 2 */
    CU_ASSERT_STRING_EQUAL(m->tensors[3].name, "model.layers.10.w");
    CU_ASSERT_EQUAL_FATAL(m->n_groups, 3);
    CU_ASSERT_EQUAL(m->groups[1].count, 3);
    CU_ASSERT_EQUAL(m->vocab, 8);
    CU_ASSERT(m->tied_embeddings);
    CU_ASSERT(!m->facts_known);
    stw_model_free(m);
    CHECK_OK(stw_model_open(in_folder("model.safetensors"), STW_SOURCE_MODELS, &m, err));
    stw_model_free(m);
    write_bytes("config.json", "{\"model_type\":\"mamba9\"}", 23);
    CHECK_FAILS(stw_model_open(folder, STW_SOURCE_MODELS, &m, err), STW_STATUS_BAD_INPUT, "mamba9");
    write_bytes("weights.bin", "x", 1);
    CHECK_FAILS(stw_model_open(in_folder("weights.bin"), STW_SOURCE_MODELS, &m, err),
                STW_STATUS_BAD_INPUT, "expected a model");
    write_file("empty.safetensors", "{}", 0, 0);
    CHECK_FAILS(stw_model_open(path, STW_SOURCE_MODELS, &m, err), STW_STATUS_BAD_INPUT,
                "no tensors");
    end();
}

STW_TEST_MAIN("models safetensors", {"reads one file", reads_one_file},
              {"reads odd but valid", reads_odd_but_valid},
              {"refuses hostile headers", refuses_hostile_headers},
              {"refuses truncation", refuses_truncation}, {"reads shards", reads_shards},
              {"refuses bad indexes", refuses_bad_indexes},
              {"refuses what is no file", refuses_what_is_no_file},
              {"becomes a model", becomes_a_model})
