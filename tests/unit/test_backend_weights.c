/* SPDX-License-Identifier: Apache-2.0 */
/* Weights from safetensors: what is read, the sample that ranks compare (every line of it, computed
 * anew here), NaN and infinity in it, and files that do not suit or change under a run. */
#define _GNU_SOURCE
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/executor/executor.h"
#include "core/log.h"
#include "models/safetensors.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"
#include "tests/unit/weights_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SEED 9
static const stw_dtype dtypes[] = {STW_DTYPE_F64, STW_DTYPE_BF16, STW_DTYPE_F32, STW_DTYPE_F16,
                                   STW_DTYPE_BF16};
#define N_DTYPES 5

/* The tensors in files of `each`, and an index. */
static void write_folder(const stw_model *model, const char *folder, uint32_t each) {
    char path[300];
    (void)mkdir(folder, 0777);
    for (uint32_t t = 0; t < model->n_tensors; t += each) {
        snprintf(path, sizeof path, "%s/%03u.safetensors", folder, t / each);
        const uint32_t end = t + each < model->n_tensors ? t + each : model->n_tensors;
        weights_write_part(model, SEED, path, t, end, dtypes, N_DTYPES, UINT32_MAX);
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"weight_map\": {");
    for (uint32_t t = 0; t < model->n_tensors; t++)
        fprintf(file, "%s\"%s\": \"%03u.safetensors\"", t > 0 ? ", " : "", model->tensors[t].name,
                t / each);
    fprintf(file, "}}\n");
    fclose(file);
}

typedef struct bytes {
    unsigned char *data;
    uint64_t n, header; /* length of the header */
} bytes;

static bytes file_bytes(const char *folder, uint32_t file) {
    char path[300];
    struct stat about;
    bytes out = {NULL, 0, 0};
    snprintf(path, sizeof path, "%s/%03u.safetensors", folder, file);
    FILE *f = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fstat(fileno(f), &about), 0);
    out.n = (uint64_t)about.st_size;
    out.data = malloc(out.n);
    CU_ASSERT_EQUAL(fread(out.data, 1, out.n, f), out.n);
    memcpy(&out.header, out.data, 8);
    fclose(f);
    return out;
}

static uint64_t size_of(uint32_t tensor) { return stw_dtype_bits(dtypes[tensor % N_DTYPES]) / 8; }

/* Where a tensor's bytes begin in its file. */
static uint64_t offset_of(const stw_model *model, const bytes *file, uint32_t tensor,
                          uint32_t each) {
    uint64_t at = 8 + file->header;
    for (uint32_t t = tensor / each * each; t < tensor; t++)
        at += model->tensors[t].numel * size_of(t);
    return at;
}

/* Blocks of the sample of one file. */
static uint32_t blocks_of(const bytes *file, uint32_t n_files, uint64_t at[17], uint64_t *length) {
    const uint64_t data = file->n - 8 - file->header;
    uint64_t n = 1024 / n_files;
    uint32_t found = 0;
    if (n < 3) n = 3;
    if (n > 17) n = 17;
    *length = data < 65536 ? data : 65536;
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t here = 8 + file->header + (data - *length) * k / (n - 1);
        if (found == 0 || at[found - 1] != here) at[found++] = here;
    }
    return found;
}

/* ---- the sample ---- */

static void check_sample(const stw_model *model, const char *folder, uint32_t each) {
    const uint32_t n_files = (model->n_tensors + each - 1) / each;
    stw_text expected = STW_TEXT_INIT, found = STW_TEXT_INIT;
    stw_weights *weights = NULL;
    uint64_t places = 0;
    stw_text_printf(&expected, "weights: files = %u\n", n_files);
    for (uint32_t f = 0; f < n_files; f++) {
        bytes file = file_bytes(folder, f);
        uint64_t at[17], length;
        const uint32_t n = blocks_of(&file, n_files, at, &length);
        char name[40];
        snprintf(name, sizeof name, "weights: %03u.safetensors", f);
        stw_text_printf(&expected, "weights: file %u = %03u.safetensors\n", f + 1, f);
        stw_text_printf(&expected, "%s bytes = %llu\n", name, (unsigned long long)file.n);
        stw_text_printf(&expected, "%s header = %016llx\n", name,
                        (unsigned long long)XXH3_64bits(file.data + 8, file.header));
        for (uint32_t b = 0; b < n; b++)
            stw_text_printf(&expected, "%s at byte %llu = %016llx\n", name,
                            (unsigned long long)at[b],
                            (unsigned long long)XXH3_64bits(file.data + at[b], length));
        free(file.data);
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        bytes file = file_bytes(folder, t / each);
        const uint64_t place[] = {t / each, offset_of(model, &file, t, each)};
        places = XXH3_64bits_withSeed(place, sizeof place, places);
        free(file.data);
    }
    stw_text_printf(&expected, "weights: places of the tensors = %016llx\n",
                    (unsigned long long)places);
    CHECK_OK(stw_weights_open(model, folder, SEED, &weights, err));
    CHECK_OK(stw_weights_sample(weights, &found, err));
    CU_ASSERT_STRING_EQUAL(found.data, expected.data);
    if (strcmp(found.data, expected.data) != 0)
        fprintf(stderr, "found:\n%sexpected:\n%s", found.data, expected.data);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        char name[40];
        snprintf(name, sizeof name, "%03u.safetensors", t / each);
        CU_ASSERT_STRING_EQUAL(stw_weights_file(weights, t), name);
        CU_ASSERT_EQUAL(stw_weights_dtype(weights, t), dtypes[t % N_DTYPES]);
    }
    stw_weights_close(weights);
    stw_text_free(&expected);
    stw_text_free(&found);
}

static void the_sample_is_of_every_file(void) {
    static const struct {
        fixture_size size;
        uint32_t each;
    } cases[] = {{{2, 64, 136, 515}, 14},  /* one file, smaller than its 17 blocks */
                 {{2, 64, 1100, 4096}, 5}, /* three files with gaps between blocks */
                 {{12, 64, 300, 515}, 1}}; /* 74 files with 13 blocks each, many of one block */
    for (int i = 0; i < 3; i++) {
        stw_model *model = fixture_model(cases[i].size);
        char folder[32];
        snprintf(folder, sizeof folder, "sample-%d", i);
        write_folder(model, folder, cases[i].each);
        check_sample(model, folder, cases[i].each);
        stw_pool_free(model->pool);
    }
}

/* Seeded weights have no sample, and are numbered from the model's beginning. */
static void seeded_weights_are_numbered(void) {
    stw_model *model = fixture_model((fixture_size){2, 64, 136, 515});
    stw_weights *weights = NULL;
    stw_text text = STW_TEXT_INIT;
    float values[100];
    uint64_t first = 0;
    CHECK_OK(stw_weights_open(model, NULL, SEED, &weights, err));
    CHECK_OK(stw_weights_sample(weights, &text, err));
    CU_ASSERT_EQUAL(text.length, 0);
    for (uint32_t t = 0; t < model->n_tensors; first += model->tensors[t++].numel) {
        const uint64_t at = model->tensors[t].numel - 7;
        CU_ASSERT_EQUAL(stw_weights_dtype(weights, t), STW_DTYPE_F32);
        CHECK_OK(stw_weights_read(weights, t, at, 7, values, err));
        for (uint64_t i = 0; i < 7; i++)
            CU_ASSERT_EQUAL(values[i], stw_seeded_weight(SEED, first + at + i));
    }
    stw_weights_warn(weights);
    stw_weights_warn(NULL);
    stw_weights_close(weights);
    stw_weights_close(NULL);
    stw_text_free(&text);
    stw_pool_free(model->pool);
}

/* ---- reading ---- */

static void ranges_are_those_of_the_file(void) {
    stw_model *model = fixture_model((fixture_size){2, 64, 136, 515});
    stw_weights *weights = NULL;
    unsigned char out[1000];
    write_folder(model, "ranges", 5);
    CHECK_OK(stw_weights_open(model, "ranges", SEED, &weights, err));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const uint64_t numel = model->tensors[t].numel, size = size_of(t);
        const uint64_t firsts[] = {0, 1, numel / 2, numel - 9};
        bytes file = file_bytes("ranges", t / 5);
        const unsigned char *data = file.data + offset_of(model, &file, t, 5);
        for (int i = 0; i < 4; i++) {
            memset(out, 0xee, sizeof out);
            CHECK_OK(stw_weights_read(weights, t, firsts[i], 9, out, err));
            CU_ASSERT_EQUAL(memcmp(out, data + firsts[i] * size, 9 * size), 0);
            CU_ASSERT_EQUAL(out[9 * size], 0xee);
        }
        CHECK_OK(stw_weights_read(weights, t, numel, 0, out, err));
        char text[100];
        snprintf(text, sizeof text, "%s: elements %llu + 2 of %llu", model->tensors[t].name,
                 (unsigned long long)numel - 1, (unsigned long long)numel);
        CHECK_FAILS(stw_weights_read(weights, t, numel - 1, 2, out, err), STW_STATUS_BUG, text);
        CHECK_FAILS(stw_weights_read(weights, t, numel + 1, 0, out, err), STW_STATUS_BUG,
                    "elements ");
        free(file.data);
    }
    CU_ASSERT_EQUAL(truncate("ranges/000.safetensors", 2000), 0);
    CHECK_FAILS(stw_weights_read(weights, 0, 515 * 64 - 1, 1, out, err), STW_STATUS_BAD_INPUT,
                "ranges/000.safetensors: ends inside 0.embed.weight: it has become shorter since "
                "its header was read");
    stw_text text = STW_TEXT_INIT;
    CHECK_FAILS(stw_weights_sample(weights, &text, err), STW_STATUS_BAD_INPUT,
                "ranges/000.safetensors: ends inside its data");
    CU_ASSERT_EQUAL(truncate("ranges/000.safetensors", 5), 0);
    CHECK_FAILS(stw_weights_sample(weights, &text, err), STW_STATUS_BAD_INPUT,
                "ends inside its header");
    FILE *file = fopen("ranges/000.safetensors", "wb");
    fwrite("\0\0\0\0\0\0\1\0 and more bytes", 1, 24, file);
    fclose(file);
    CHECK_FAILS(stw_weights_sample(weights, &text, err), STW_STATUS_BAD_INPUT,
                "ranges/000.safetensors: its header is longer than when it was opened");
    stw_weights_close(weights);
    stw_text_free(&text);
    stw_pool_free(model->pool);
}

/* ---- numbers that are none ---- */

static char warnings[3000];
static void keep_warnings(stw_log_level level, const char *text, void *state) {
    (void)state;
    const size_t used = strlen(warnings);
    if (level == STW_LOG_WARN) snprintf(warnings + used, sizeof warnings - used, "%s\n", text);
}

/* NaN and infinity of both signs, as the bits of a dtype. */
static uint64_t odd_bits(stw_dtype dtype, uint32_t which) {
    const unsigned bits = stw_dtype_bits(dtype);
    const uint64_t sign = which % 2 == 1 ? 1ull << (bits - 1) : 0, nan = which % 4 > 1 ? 1 : 0;
    const uint64_t exponent = dtype == STW_DTYPE_F64   ? 0x7ffull << 52
                              : dtype == STW_DTYPE_F32 ? 0xffull << 23
                              : dtype == STW_DTYPE_F16 ? 0x1full << 10
                                                       : 0xffull << 7;
    return sign | exponent | nan;
}

/* In the file of tensor t: every stride-th element is none. */
static void poison(const stw_model *model, const char *folder, uint32_t tensor, uint32_t each,
                   uint64_t stride) {
    bytes file = file_bytes(folder, tensor / each);
    char path[300];
    unsigned char *data = file.data + offset_of(model, &file, tensor, each);
    for (uint64_t i = 0; i < model->tensors[tensor].numel; i += stride) {
        const uint64_t bits = odd_bits(dtypes[tensor % N_DTYPES], (uint32_t)(i / stride));
        memcpy(data + i * size_of(tensor), &bits, size_of(tensor));
    }
    snprintf(path, sizeof path, "%s/%03u.safetensors", folder, tensor / each);
    FILE *f = fopen(path, "wb");
    CU_ASSERT_EQUAL(fwrite(file.data, 1, file.n, f), file.n);
    fclose(f);
    free(file.data);
}

/* Elements of a tensor that lie whole in a block of the sample, and how many of them are none. */
static void count(const stw_model *model, const char *folder, uint32_t tensor, uint32_t each,
                  uint64_t stride, uint64_t *elements, uint64_t *odd) {
    bytes file = file_bytes(folder, tensor / each);
    const uint64_t size = size_of(tensor), first = offset_of(model, &file, tensor, each);
    uint64_t at[17], length;
    const uint32_t n = blocks_of(&file, (model->n_tensors + each - 1) / each, at, &length);
    *elements = *odd = 0;
    for (uint64_t i = 0; i < model->tensors[tensor].numel; i++)
        for (uint32_t b = 0; b < n; b++)
            if (first + i * size >= at[b] && first + (i + 1) * size <= at[b] + length) {
                ++*elements;
                *odd += i % stride == 0;
            }
    free(file.data);
}

static void odd_elements_of_the_sample_are_counted(void) {
    static const uint32_t tensors[] = {0, 3, 5, 6, 8, 9}; /* of all dtypes and files */
    const uint32_t each = 5, most = 3;
    stw_model *model = fixture_model((fixture_size){2, 64, 1100, 4096});
    stw_weights *weights = NULL;
    stw_text text = STW_TEXT_INIT;
    write_folder(model, "odd", each);
    stw_log_set(keep_warnings, NULL);
    for (uint32_t n = 0; n <= 6; n++) {
        char expected[2000] = "";
        if (n > 0) poison(model, "odd", tensors[n - 1], each, 7 + n);
        for (uint32_t i = 0; i < n && i < most; i++) {
            uint64_t elements, odd;
            count(model, "odd", tensors[i], each, 8 + i, &elements, &odd);
            CU_ASSERT_TRUE(odd > 0 && odd < elements);
            snprintf(expected + strlen(expected), 400,
                     "weights: %s: %llu of the %llu elements that were sampled are NaN or "
                     "infinite\n",
                     model->tensors[tensors[i]].name, (unsigned long long)odd,
                     (unsigned long long)elements);
        }
        if (n > most)
            snprintf(expected + strlen(expected), 200,
                     "weights: %u further tensors have NaN or infinite elements\n", n - most);
        warnings[0] = '\0';
        CHECK_OK(stw_weights_open(model, "odd", SEED, &weights, err));
        CHECK_OK(stw_weights_sample(weights, &text, err));
        stw_weights_warn(weights);
        CU_ASSERT_STRING_EQUAL(warnings, expected);
        if (strcmp(warnings, expected) != 0)
            fprintf(stderr, "found:\n%sexpected:\n%s", warnings, expected);
        stw_weights_close(weights);
    }
    stw_log_set(NULL, NULL);
    stw_text_free(&text);
    stw_pool_free(model->pool);
}

/* ---- files that do not suit ---- */

static void tensors_must_be_the_models(void) {
    static const stw_dtype bf16 = STW_DTYPE_BF16;
    stw_model *model = fixture_model((fixture_size){2, 64, 136, 515});
    const uint32_t n = model->n_tensors;
    stw_weights *weights = NULL;
    weights_write_part(model, SEED, "short.safetensors", 0, n, &bf16, 1, 3);
    CHECK_FAILS(stw_weights_open(model, "short.safetensors", SEED, &weights, err),
                STW_STATUS_BAD_INPUT,
                "short.safetensors: tensor 1.o.weight has shape [63, 64], the plan's model has "
                "[64, 64]");
    weights_write_part(model, SEED, "few.safetensors", 0, n - 1, &bf16, 1, UINT32_MAX);
    CHECK_FAILS(stw_weights_open(model, "few.safetensors", SEED, &weights, err),
                STW_STATUS_BAD_INPUT, "few.safetensors: holds no tensor 3.norm.weight");
    weights_write_part(model, SEED, "whole.safetensors", 0, n, &bf16, 1, UINT32_MAX);
    model->tensors[1].rank = 2; /* [64] in the file */
    model->tensors[1].shape[1] = 1;
    CHECK_FAILS(stw_weights_open(model, "whole.safetensors", SEED, &weights, err),
                STW_STATUS_BAD_INPUT,
                "tensor 1.norm1.weight has shape [64], the plan's model has [64, 1]");
    model->tensors[1].rank = 1;
    CHECK_FAILS(stw_weights_open(model, "nowhere.safetensors", SEED, &weights, err), STW_STATUS_IO,
                "nowhere.safetensors");
    CU_ASSERT_PTR_NULL(weights);
    CHECK_OK(stw_weights_open(model, "whole.safetensors", SEED, &weights, err));
    CU_ASSERT_STRING_EQUAL(stw_weights_file(weights, 2), "whole.safetensors");
    stw_weights_close(weights);
    stw_pool_free(model->pool);
}

STW_TEST_MAIN("backend weights", {"the sample is of every file", the_sample_is_of_every_file},
              {"seeded weights are numbered", seeded_weights_are_numbered},
              {"ranges are those of the file", ranges_are_those_of_the_file},
              {"odd elements of the sample are counted", odd_elements_of_the_sample_are_counted},
              {"tensors must be the model's", tensors_must_be_the_models})
