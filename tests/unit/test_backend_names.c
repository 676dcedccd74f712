/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of published files: experts one by one, transposed, split, packed, with block scales, tied,
 * and mixed with the model's own names. Files are written element by element from the parts of
 * stw_names_list (which unit.models_names spells out), and every element is read back, whole and in
 * ranges. Then files that do not suit. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/element.h"
#include "backend/executor/executor.h"
#include "models/internal.h"
#include "models/names.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

#define COMMON                                                                                     \
    "\"vocab_size\": 40, \"hidden_size\": 160, \"num_hidden_layers\": 2, "                         \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32"
#define FP8                                                                                        \
    ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"
#define MLA                                                                                        \
    "\"q_lora_rank\": 32, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": "  \
    "16, \"v_head_dim\": 16"
#define VISION                                                                                     \
    "\"vision_config\": {\"hidden_size\": 32, \"intermediate_size\": 48, \"num_heads\": 2, "       \
    "\"depth\": 1, \"out_hidden_size\": 160, \"patch_size\": 4, \"num_position_embeddings\": 4, "  \
    "\"deepstack_visual_indexes\": [0]}"

static const char qwen3[] =
    "{\"model_type\": \"qwen3\", \"intermediate_size\": 200, \"tie_word_embeddings\": true, " COMMON
    "}";
static const char qwen3_moe[] =
    "{\"model_type\": \"qwen3_moe\", \"intermediate_size\": 200, \"moe_intermediate_size\": 144, "
    "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [], " COMMON "}";
static const char qwen3_moe_fp8[] =
    "{\"model_type\": \"qwen3_moe\", \"intermediate_size\": 200, \"moe_intermediate_size\": 144, "
    "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [], " COMMON FP8 "}";
static const char mixtral[] = "{\"model_type\": \"mixtral\", \"intermediate_size\": 72, "
                              "\"num_local_experts\": 3, \"num_experts_per_tok\": 2, " COMMON "}";
static const char deepseek_fp8[] =
    "{\"model_type\": \"deepseek_v3\", \"intermediate_size\": 200, \"moe_intermediate_size\": 144, "
    "\"n_routed_experts\": 3, \"n_shared_experts\": 1, \"num_experts_per_tok\": 2, "
    "\"first_k_dense_replace\": 1, \"num_nextn_predict_layers\": 1, " MLA ", " COMMON FP8 "}";
static const char gpt_oss[] =
    "{\"model_type\": \"gpt_oss\", \"intermediate_size\": 64, \"num_local_experts\": 3, "
    "\"num_experts_per_tok\": 2, \"quantization_config\": {\"quant_method\": \"mxfp4\"}, " COMMON
    "}";
static const char kimi[] =
    "{\"model_type\": \"kimi_k2\", \"intermediate_size\": 200, \"moe_intermediate_size\": 144, "
    "\"n_routed_experts\": 3, \"n_shared_experts\": 1, \"num_experts_per_tok\": 2, "
    "\"first_k_dense_replace\": 1, " MLA ", \"quantization_config\": {\"quant_method\": "
    "\"compressed-tensors\"}, " COMMON "}";
static const char qwen3_vl_moe[] =
    "{\"model_type\": \"qwen3_vl_moe\", " VISION ", \"text_config\": {\"model_type\": "
    "\"qwen3_vl_moe_text\", \"intermediate_size\": 200, \"moe_intermediate_size\": 56, "
    "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [], " COMMON "}}";
static const char square[] =
    "{\"model_type\": \"qwen3_vl_moe\", " VISION ", \"text_config\": {\"model_type\": "
    "\"qwen3_vl_moe_text\", \"intermediate_size\": 200, \"moe_intermediate_size\": 80, "
    "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [], " COMMON "}}";
static const char gpt2[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 40, \"n_embd\": 48, "
                           "\"n_layer\": 2, \"n_head\": 4, \"n_positions\": 16}";

/* ---- files ---- */

/* A tensor of a file; NULL data is left out of it. */
typedef struct item {
    char name[200];
    stw_dtype dtype;
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK], bytes;
    unsigned char *data;
} item;

typedef struct folder {
    stw_model *model;
    stw_names_list *list;
    item *items; /* [n] in the order of the list, then those that a test adds */
    uint32_t n;
    float **values; /* [n_tensors] what each element must be read as */
} folder;

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static float fp8(unsigned bits) { /* E4M3: 4 bits of exponent with bias 7, 3 of mantissa */
    const float sign = bits >> 7 ? -1.0f : 1.0f;
    const int exponent = (int)(bits >> 3 & 15u), mantissa = (int)(bits & 7u);
    if (exponent == 0) return sign * ldexpf((float)mantissa, -9);
    return sign * ldexpf((float)(8 + mantissa), exponent - 10);
}

static float fp4(unsigned bits) {
    static const float sizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return bits >> 3 ? -sizes[bits & 7u] : sizes[bits & 7u];
}

/* Linear index of an element of a box's tensor. */
static uint64_t index_of(const stw_names_box *box, const uint64_t *at, const uint64_t *shape) {
    uint64_t index = 0;
    for (uint32_t d = 0; d < box->rank; d++) index = index * shape[d] + box->first[d] + at[d];
    return index;
}

/* Give an element of a published tensor its bits. @return what it must be read as */
static float set_element(folder *f, const stw_names_part *part, const uint64_t *at,
                         uint64_t index) {
    item *to = &f->items[part->published];
    const item *scale = part->scale != STW_NAMES_NONE ? &f->items[part->scale] : NULL;
    const uint64_t bits = mix(index + ((uint64_t)part->published << 32));
    if (part->way == STW_NAMES_MXFP4) {
        const unsigned nibble = (unsigned)(bits & 15u);
        to->data[index / 2] |= (unsigned char)(nibble << (index % 2 * 4));
        return ldexpf(fp4(nibble), (int)scale->data[index / 32] - 127);
    }
    if (to->dtype == STW_DTYPE_F8_E4M3) {
        const unsigned byte = (unsigned)(bits % 127);
        float factor = 1;
        to->data[index] = (unsigned char)byte;
        if (scale != NULL)
            memcpy(&factor, scale->data + 4 * (at[0] / 128 * scale->shape[1] + at[1] / 128), 4);
        return fp8(byte) * factor;
    }
    const uint16_t brain = (uint16_t)(0x3c00u + bits % 0x400u + (bits >> 32 & 1u) * 0x8000u);
    memcpy(to->data + 2 * index, &brain, 2);
    return stw_float_from_bf16(brain);
}

static void fill_part(folder *f, const stw_names_part *part) {
    stw_names_box own, other;
    stw_names_boxes(f->list, part, &own, &other);
    const stw_tensor *tensor = stw_names_tensor(f->model, part->tensor);
    const bool swapped = part->way == STW_NAMES_TRANSPOSED || part->way == STW_NAMES_MXFP4;
    uint64_t shape[STW_TENSOR_MAX_RANK] = {0}, n = 1;
    const uint32_t dropped = own.rank - other.rank;
    for (uint32_t d = 0; d < other.rank; d++) n *= other.count[d];
    memcpy(shape, f->items[part->published].shape, sizeof shape);
    for (uint32_t d = 0; d < other.rank && part->way == STW_NAMES_MXFP4; d++)
        shape[d] = other.count[d];
    for (uint64_t i = 0; i < n; i++) { /* an element of the published box */
        uint64_t at[STW_TENSOR_MAX_RANK] = {0}, own_at[STW_TENSOR_MAX_RANK] = {0}, rest = i;
        for (uint32_t d = other.rank; d-- > 0; rest /= other.count[d])
            at[d] = rest % other.count[d];
        for (uint32_t d = 0; d < other.rank; d++) own_at[dropped + d] = at[d];
        if (swapped) own_at[own.rank - 2] = at[other.rank - 1];
        if (swapped) own_at[own.rank - 1] = at[other.rank - 2];
        const float value = set_element(f, part, at, index_of(&other, at, shape));
        if (part->tensor < f->model->n_tensors)
            f->values[part->tensor][index_of(&own, own_at, tensor->shape)] = value;
    }
}

static void fill_scale(item *scale, uint32_t k) {
    for (uint64_t i = 0; i < scale->bytes && scale->dtype == STW_DTYPE_U8; i++)
        scale->data[i] = (unsigned char)(100 + mix(i + k) % 40);
    for (uint64_t i = 0; 4 * i < scale->bytes && scale->dtype == STW_DTYPE_F32; i++) {
        const float value = 0.5f + (float)(mix(i + k) % 1000) / 1024;
        memcpy(scale->data + 4 * i, &value, 4);
    }
}

static folder make(const char *config) {
    folder f = {.n = 0};
    CHECK_OK(stw_model_parse_config("config.json", config, strlen(config), STW_SOURCE_MODELS,
                                    &f.model, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(f.model);
    /* Elements that no quantization names come as BF16. */
    for (uint32_t t = 0; t < f.model->n_tensors + f.model->n_buffers + f.model->n_extras; t++) {
        stw_tensor *tensor = (stw_tensor *)(uintptr_t)stw_names_tensor(f.model, t);
        if (tensor->dtype == STW_DTYPE_F32) tensor->dtype = STW_DTYPE_BF16;
    }
    CHECK_OK(stw_names_list_make(f.model, &f.list, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(f.list);
    f.n = f.list->n_published;
    f.items = calloc(f.n + 8, sizeof *f.items);
    f.values = calloc(f.model->n_tensors, sizeof *f.values);
    for (uint32_t t = 0; t < f.model->n_tensors; t++)
        f.values[t] = calloc(f.model->tensors[t].numel, sizeof(float));
    for (uint32_t p = 0; p < f.n; p++) {
        const stw_published *from = &f.list->published[p];
        item *to = &f.items[p];
        snprintf(to->name, sizeof to->name, "%s", from->name);
        to->dtype = from->dtype;
        to->rank = from->rank;
        to->bytes = stw_dtype_bits(to->dtype) / 8;
        for (uint32_t d = 0; d < to->rank; d++) to->bytes *= to->shape[d] = from->shape[d];
        to->data = calloc(to->bytes, 1);
        if (from->kind == STW_PUBLISHED_SCALE) fill_scale(to, p);
    }
    for (uint32_t i = 0; i < f.list->n_parts; i++)
        if (f.list->parts[i].way != STW_NAMES_INT4) fill_part(&f, &f.list->parts[i]);
    return f;
}

static void drop(folder *f) {
    for (uint32_t p = 0; p < f->n; p++) free(f->items[p].data);
    for (uint32_t t = 0; t < f->model->n_tensors; t++) free(f->values[t]);
    free(f->items);
    free(f->values);
    stw_names_list_free(f->list);
    stw_model_free(f->model);
}

static item *named(folder *f, const char *name) {
    for (uint32_t p = 0; p < f->n; p++)
        if (strcmp(f->items[p].name, name) == 0) return &f->items[p];
    fprintf(stderr, "no tensor %s\n", name);
    exit(1);
}

static void write_file(const folder *f, const char *path) {
    FILE *file = fopen(path, "wb");
    char *header = malloc((size_t)f->n * 400 + 16);
    size_t length = (size_t)sprintf(header, "{");
    uint64_t at = 0;
    for (uint32_t p = 0; p < f->n; p++) {
        const item *i = &f->items[p];
        if (i->data == NULL) continue;
        length += (size_t)sprintf(header + length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                  at > 0 ? "," : "", i->name, stw_dtype_name(i->dtype));
        for (uint32_t d = 0; d < i->rank; d++)
            length += (size_t)sprintf(header + length, "%s%llu", d > 0 ? "," : "",
                                      (unsigned long long)i->shape[d]);
        length += (size_t)sprintf(header + length, "],\"data_offsets\":[%llu,%llu]}",
                                  (unsigned long long)at, (unsigned long long)(at + i->bytes));
        at += i->bytes;
    }
    length += (size_t)sprintf(header + length, "}");
    const uint64_t header_bytes = length;
    fwrite(&header_bytes, 8, 1, file);
    fwrite(header, 1, length, file);
    for (uint32_t p = 0; p < f->n; p++)
        if (f->items[p].data != NULL) fwrite(f->items[p].data, 1, f->items[p].bytes, file);
    fclose(file);
    free(header);
}

/* ---- reads ---- */

static bool read_as(const void *data, stw_dtype dtype, uint64_t i, float value) {
    float found = NAN;
    uint16_t brain;
    if (dtype == STW_DTYPE_F32) memcpy(&found, (const char *)data + 4 * i, 4);
    if (dtype == STW_DTYPE_BF16) memcpy(&brain, (const char *)data + 2 * i, 2);
    if (dtype == STW_DTYPE_BF16) found = stw_float_from_bf16(brain);
    if (dtype == STW_DTYPE_F8_E4M3) found = fp8(((const unsigned char *)data)[i]);
    return found == value && signbit(found) == signbit(value);
}

static void check_range(stw_weights *w, const folder *f, uint32_t t, uint64_t first,
                        uint64_t count) {
    const stw_dtype dtype = stw_weights_dtype(w, t);
    const uint64_t size = stw_dtype_bits(dtype) / 8;
    unsigned char *data = malloc(count * size + 8);
    uint64_t wrong = 0;
    memset(data + count * size, 0xA5, 8);
    CHECK_OK(stw_weights_read(w, t, first, count, data, err));
    for (uint64_t i = 0; i < count; i++) wrong += !read_as(data, dtype, i, f->values[t][first + i]);
    if (wrong > 0)
        fprintf(stderr, "%s: %llu + %llu: %llu elements differ\n", f->model->tensors[t].name,
                (unsigned long long)first, (unsigned long long)count, (unsigned long long)wrong);
    CU_ASSERT_EQUAL(wrong, 0);
    for (int k = 0; k < 8; k++) CU_ASSERT_EQUAL(data[count * size + (uint64_t)k], 0xA5);
    free(data);
}

static void check_folder(const folder *f, const char *path) {
    stw_weights *weights = NULL;
    stw_text sample = STW_TEXT_INIT;
    CHECK_OK(stw_weights_open(f->model, path, 1, &weights, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(weights);
    CHECK_OK(stw_weights_sample(weights, &sample, err));
    stw_text_free(&sample);
    for (uint32_t t = 0; t < f->model->n_tensors; t++) {
        const uint64_t n = f->model->tensors[t].numel;
        CU_ASSERT_STRING_EQUAL(stw_weights_file(weights, t), path);
        check_range(weights, f, t, 0, n);
        check_range(weights, f, t, n, 0);
        for (uint64_t k = 0; k < 12; k++) {
            const uint64_t first = mix(k + n) % n;
            check_range(weights, f, t, first, 1 + mix(k * 7 + t) % (n - first));
        }
    }
    stw_weights_close(weights);
}

static void kinds_of_files(void) {
    static const char *const configs[] = {qwen3,        qwen3_moe, qwen3_moe_fp8, mixtral,
                                          deepseek_fp8, gpt_oss,   qwen3_vl_moe,  gpt2};
    for (size_t k = 0; k < sizeof configs / sizeof configs[0]; k++) {
        folder f = make(configs[k]);
        write_file(&f, "whole.safetensors");
        check_folder(&f, "whole.safetensors");
        drop(&f);
    }
}

static const uint32_t *tensor_numbered(const stw_model *m, const char *name, uint32_t *out) {
    for (*out = 0; *out < m->n_tensors; ++*out)
        if (strcmp(m->tensors[*out].name, name) == 0) return out;
    CU_FAIL_FATAL("no such tensor");
    return NULL;
}

static void dtypes_that_are_read(void) {
    const struct {
        const char *config, *tensor;
        stw_dtype dtype;
    } cases[] = {
        {qwen3_moe, "model.layers.0.mlp.experts.gate_up_proj", STW_DTYPE_BF16},
        {qwen3_moe_fp8, "model.layers.0.mlp.experts.gate_up_proj", STW_DTYPE_F32},
        {qwen3_moe_fp8, "model.layers.0.mlp.gate.weight", STW_DTYPE_BF16},
        {gpt_oss, "model.layers.0.mlp.experts.down_proj", STW_DTYPE_F32},
        {gpt_oss, "model.layers.0.mlp.experts.down_proj_bias", STW_DTYPE_BF16},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        folder f = make(cases[k].config);
        stw_weights *weights = NULL;
        uint32_t t = 0;
        write_file(&f, "dtypes.safetensors");
        CHECK_OK(stw_weights_open(f.model, "dtypes.safetensors", 1, &weights, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(weights);
        CU_ASSERT_EQUAL(stw_weights_dtype(weights, *tensor_numbered(f.model, cases[k].tensor, &t)),
                        cases[k].dtype);
        stw_weights_close(weights);
        drop(&f);
    }
}

/* The model's own name is taken first; a tied embedding is found under the head's name. */
static void other_names(void) {
    folder f = make(qwen3);
    snprintf(named(&f, "model.embed_tokens.weight")->name, 200, "lm_head.weight");
    write_file(&f, "tied.safetensors");
    check_folder(&f, "tied.safetensors");
    drop(&f);
    f = make(gpt2);
    for (uint32_t p = 0; p < f.n; p++) { /* a mixed folder: every second one as in the model */
        char own[200];
        snprintf(own, sizeof own, "transformer.%.180s", f.items[p].name);
        if (p % 2 == 0) memcpy(f.items[p].name, own, sizeof own);
    }
    write_file(&f, "mixed.safetensors");
    check_folder(&f, "mixed.safetensors");
    drop(&f);
    f = make(qwen3_moe_fp8); /* one scale for all, in BF16; and none: fp8 as it is */
    item *one = named(&f, "model.layers.0.self_attn.q_proj.weight_scale_inv");
    one->dtype = STW_DTYPE_BF16;
    one->rank = 0;
    one->bytes = 2;
    memcpy(one->data, (const unsigned char[]){0, 0x40}, 2); /* 2.0 */
    item *none = named(&f, "model.layers.1.self_attn.q_proj.weight_scale_inv");
    free(none->data);
    none->data = NULL;
    uint32_t t = 0;
    const item *from = named(&f, "model.layers.0.self_attn.q_proj.weight");
    for (uint64_t i = 0; i < from->bytes; i++)
        f.values[*tensor_numbered(f.model, from->name, &t)][i] = 2 * fp8(from->data[i]);
    from = named(&f, "model.layers.1.self_attn.q_proj.weight");
    for (uint64_t i = 0; i < from->bytes; i++)
        f.values[*tensor_numbered(f.model, from->name, &t)][i] = fp8(from->data[i]);
    write_file(&f, "scales.safetensors");
    check_folder(&f, "scales.safetensors");
    drop(&f);
}

/* ---- files that do not suit ---- */

#define EXPERT "model.layers.1.mlp.experts.2."

static void refused(const char *config, const char *name, void (*change)(item *), const char *why) {
    folder f = make(config);
    stw_weights *weights = NULL;
    if (name != NULL) change(named(&f, name));
    write_file(&f, "bad.safetensors");
    CHECK_FAILS(stw_weights_open(f.model, "bad.safetensors", 1, &weights, err),
                STW_STATUS_BAD_INPUT, why);
    CU_ASSERT_PTR_NULL(weights);
    drop(&f);
}

static void leave_out(item *i) {
    free(i->data);
    i->data = NULL;
}
static void lose_a_row(item *i) {
    i->bytes -= i->bytes / i->shape[0];
    i->shape[0]--;
}
static void widen(item *i) {
    i->dtype = STW_DTYPE_F32;
    i->bytes *= 2;
    i->data = realloc(i->data, i->bytes);
}
static void flatten(item *i) {
    i->shape[0] *= i->shape[1];
    i->rank = 1;
}
static void as_is(item *i) { (void)i; }

static void files_that_do_not_suit(void) {
    refused(qwen3_moe, EXPERT "up_proj.weight", leave_out,
            "bad.safetensors: holds no tensor " EXPERT
            "up_proj.weight, a part of model.layers.1.mlp.experts.gate_up_proj");
    refused(qwen3_moe, "model.layers.1.mlp.experts.0.down_proj.weight", leave_out,
            "bad.safetensors: holds no tensor model.layers.1.mlp.experts.down_proj (published as "
            "model.layers.1.mlp.experts.{e}.down_proj.weight)");
    refused(qwen3_moe, EXPERT "gate_proj.weight", lose_a_row,
            "bad.safetensors: tensor " EXPERT
            "gate_proj.weight has shape [143, 160], expected [144, 160] for "
            "model.layers.1.mlp.experts.gate_up_proj of the plan's model");
    refused(qwen3_moe, EXPERT "up_proj.weight", widen,
            "tensor " EXPERT "up_proj.weight has dtype F32, "
            "model.layers.1.mlp.experts.0.gate_proj.weight of the same tensor of the plan's model "
            "has BF16");
    refused(mixtral, "model.layers.0.block_sparse_moe.gate.weight", leave_out,
            "holds no tensor model.layers.0.mlp.gate.weight (published as "
            "model.layers.0.block_sparse_moe.gate.weight)");
    refused(qwen3_moe_fp8, EXPERT "down_proj.weight_scale_inv", flatten,
            "down_proj.weight_scale_inv of dtype F32 has shape [4], expected scales of blocks of "
            "[160, 144] in F32, BF16 or F16");
    refused(gpt_oss, "model.layers.1.mlp.experts.down_proj_scales", leave_out,
            "holds no tensor model.layers.1.mlp.experts.down_proj_scales, the scales of "
            "model.layers.1.mlp.experts.down_proj");
    refused(kimi, NULL, as_is,
            "is packed as int4, which is not expanded; load files in bf16 or fp8");
    refused(square, NULL, as_is,
            "tensor model.language_model.layers.0.mlp.experts.gate_up_proj is square in its last "
            "two dimensions: whether it is transposed, as published, or not cannot be told");
}

static void a_file_that_becomes_shorter(void) {
    static const char *const configs[] = {qwen3_moe, qwen3_moe_fp8, gpt_oss, qwen3_vl_moe};
    for (size_t k = 0; k < sizeof configs / sizeof configs[0]; k++) {
        folder f = make(configs[k]);
        stw_weights *weights = NULL;
        float *out = NULL;
        write_file(&f, "short.safetensors");
        CHECK_OK(stw_weights_open(f.model, "short.safetensors", 1, &weights, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(weights);
        CU_ASSERT_EQUAL(truncate("short.safetensors", 100), 0);
        for (uint32_t t = 0; t < f.model->n_tensors; t++) {
            out = realloc(out, f.model->tensors[t].numel * sizeof *out);
            CHECK_FAILS(stw_weights_read(weights, t, 0, f.model->tensors[t].numel, out, err),
                        STW_STATUS_BAD_INPUT, "it has become shorter since its header was read");
        }
        free(out);
        stw_weights_close(weights);
        drop(&f);
    }
}

STW_TEST_MAIN("backend names", {"kinds of files", kinds_of_files},
              {"dtypes that are read", dtypes_that_are_read}, {"other names", other_names},
              {"files that do not suit", files_that_do_not_suit},
              {"a file that becomes shorter", a_file_that_becomes_shorter})
