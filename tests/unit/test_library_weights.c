/* SPDX-License-Identifier: Apache-2.0 */
/* Published files through the library: the list of a model, its parts, and reads of boxes, against
 * files that the list says how to write. */
#include <stdlib.h>

#include "tests/unit/library_case.h"

static const char config[] =
    "{\"model_type\": \"mixtral\", \"vocab_size\": 40, \"hidden_size\": 24, "
    "\"intermediate_size\": 20, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"num_local_experts\": 3, \"num_experts_per_tok\": 2}";

static uint16_t value_of(uint32_t published, uint64_t index) {
    return (uint16_t)(published * 977 + index * 31 + 5);
}

static uint64_t elements_of(const stw_published_t *p) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < p->dimensions; d++) n *= p->shape[d];
    return n;
}

/* All published tensors in one file, as BF16 with the bits of value_of. */
static void write_files(const stw_published_list_t *list, const char *path) {
    char header[20000] = "{";
    size_t length = 1;
    uint64_t at = 0;
    stw_published_t p;
    for (uint32_t i = 0; stw_get_published(list, i, &p, sizeof p); i++) {
        length += (size_t)sprintf(header + length, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[",
                                  i > 0 ? "," : "", p.name);
        for (uint32_t d = 0; d < p.dimensions; d++)
            length += (size_t)sprintf(header + length, "%s%llu", d > 0 ? "," : "",
                                      (unsigned long long)p.shape[d]);
        length +=
            (size_t)sprintf(header + length, "],\"data_offsets\":[%llu,%llu]}",
                            (unsigned long long)at, (unsigned long long)(at + 2 * elements_of(&p)));
        at += 2 * elements_of(&p);
    }
    length += (size_t)sprintf(header + length, "}");
    const uint64_t bytes = length;
    FILE *file = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fwrite(&bytes, 8, 1, file);
    fwrite(header, 1, length, file);
    for (uint32_t i = 0; stw_get_published(list, i, &p, sizeof p); i++)
        for (uint64_t k = 0; k < elements_of(&p); k++) {
            const uint16_t value = value_of(i, k);
            fwrite(&value, 2, 1, file);
        }
    fclose(file);
}

static stw_model_t *open_case(stw_published_list_t **list) {
    stw_model_t *model = NULL;
    library_files();
    library_write("mixtral.json", config);
    library_ok(stw_open_model("mixtral.json", &model, error), "open a model");
    library_ok(stw_list_published(model, list, error), "list");
    CU_ASSERT_PTR_NOT_NULL_FATAL(*list);
    return model;
}

/* The box of a part in the model's tensor holds the published tensor, in order. */
static void check_part(stw_weights_t *weights, const stw_published_part_t *part) {
    uint64_t n = 1, wrong = 0;
    for (uint32_t d = 0; d < part->dimensions; d++) n *= part->count[d];
    uint16_t *found = calloc(n, sizeof *found);
    CU_ASSERT_STRING_EQUAL(stw_get_weights_dtype(weights, part->tensor), "BF16");
    library_ok(
        stw_read_weights(weights, part->tensor, part->first, part->count, found, 2 * n, error),
        "read");
    for (uint64_t k = 0; k < n; k++) wrong += found[k] != value_of(part->published, k);
    CU_ASSERT_EQUAL(wrong, 0);
    free(found);
}

static void reads_what_the_list_says(void) {
    stw_published_list_t *list = NULL;
    stw_model_t *model = open_case(&list);
    stw_weights_t *weights = NULL;
    stw_published_part_t part;
    uint32_t n = 0, singly = 0;
    write_files(list, "mixtral.safetensors");
    library_ok(stw_open_weights(model, "mixtral.safetensors", &weights, error), "open weights");
    CU_ASSERT_PTR_NOT_NULL_FATAL(weights);
    for (; stw_get_published_part(list, n, &part, sizeof part); n++) {
        check_part(weights, &part);
        singly += part.published_dimensions + 1 == part.dimensions;
        CU_ASSERT_STRING_EQUAL(part.way, "as is");
        CU_ASSERT_EQUAL(part.scale, STOWAGE_NONE);
    }
    CU_ASSERT_EQUAL(n, 19);
    CU_ASSERT_EQUAL(singly, 9);
    stw_free_weights(weights);
    stw_free_published(list);
    stw_free_model(model);
}

/* Columns of a fused tensor: elements of two published ones in each row. */
static void reads_boxes(void) {
    stw_published_list_t *list = NULL;
    stw_model_t *model = open_case(&list);
    stw_weights_t *weights = NULL;
    stw_published_part_t gate = {.tensor = STOWAGE_NONE}, up = gate, part;
    uint16_t found[4 * 5];
    const uint64_t first[] = {1, 18, 7}, count[] = {1, 4, 5};
    for (uint32_t i = 0; stw_get_published_part(list, i, &part, sizeof part); i++) {
        if (strstr(part.tensor_name, "gate_up_proj") == NULL || part.first[0] != 1) continue;
        if (part.first[1] == 0) gate = part;
        if (part.first[1] != 0) up = part;
    }
    CU_ASSERT_FATAL(gate.tensor != STOWAGE_NONE && up.tensor == gate.tensor);
    write_files(list, "boxes.safetensors");
    library_ok(stw_open_weights(model, "boxes.safetensors", &weights, error), "open weights");
    library_ok(stw_read_weights(weights, gate.tensor, first, count, found, sizeof found, error),
               "read");
    for (uint64_t r = 0; r < 4; r++)
        for (uint64_t c = 0; c < 5; c++) {
            const uint64_t row = 18 + r, index = row % 20 * 24 + 7 + c;
            CU_ASSERT_EQUAL(found[r * 5 + c],
                            value_of(row < 20 ? gate.published : up.published, index));
        }
    library_refused(stw_read_weights(weights, gate.tensor, first, count, found, 39, error),
                    STOWAGE_USAGE, "bytes: found 39, the box of");
    library_refused(stw_read_weights(weights, gate.tensor, (const uint64_t[]){1, 37, 7}, count,
                                     found, sizeof found, error),
                    STOWAGE_USAGE, "dimension 1: elements 37 + 4 of 40");
    library_refused(stw_read_weights(weights, 99, first, count, found, sizeof found, error),
                    STOWAGE_USAGE, "tensor: 99 of");
    library_refused(stw_read_weights(weights, gate.tensor, NULL, count, found, 40, error),
                    STOWAGE_USAGE, "first");
    library_refused(stw_read_weights(weights, gate.tensor, first, count, NULL, 40, error),
                    STOWAGE_USAGE, "out");
    CU_ASSERT_STRING_EQUAL(stw_get_weights_dtype(weights, 99), "");
    stw_free_weights(weights);
    stw_free_published(list);
    stw_free_model(model);
}

static void refuses_nothing(void) {
    stw_published_list_t *list = NULL;
    stw_weights_t *weights = NULL;
    stw_published_t p;
    stw_published_part_t part;
    stw_model_t *model = open_case(&list);
    stw_free_published(list);
    library_refused(stw_list_published(NULL, &list, error), STOWAGE_USAGE, "model");
    library_refused(stw_list_published(model, NULL, error), STOWAGE_USAGE, "out");
    library_refused(stw_open_weights(NULL, "x", &weights, error), STOWAGE_USAGE, "model");
    library_refused(stw_open_weights(model, NULL, &weights, error), STOWAGE_USAGE, "path");
    library_refused(stw_open_weights(model, "x", NULL, error), STOWAGE_USAGE, "out");
    library_refused(stw_open_weights(model, "there/is/none", &weights, error), STOWAGE_IO,
                    "there/is/none");
    CU_ASSERT_PTR_NULL(weights);
    CU_ASSERT_FALSE(stw_get_published(NULL, 0, &p, sizeof p));
    CU_ASSERT_FALSE(stw_get_published_part(NULL, 0, &part, sizeof part));
    CU_ASSERT_STRING_EQUAL(stw_get_weights_dtype(NULL, 0), "");
    stw_free_published(NULL);
    stw_free_weights(NULL);
    stw_free_model(model);
}

STW_TEST_MAIN("library weights", {"reads what the list says", reads_what_the_list_says},
              {"reads boxes", reads_boxes}, {"refuses nothing", refuses_nothing})
