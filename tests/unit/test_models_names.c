/* SPDX-License-Identifier: Apache-2.0 */
/* Published names: every model of the zoo maps completely both ways, the bytes are those of the
 * published files, names of some models spelled out, and rows that are refused. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "models/names.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static uint64_t volume(const stw_names_box *box) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < box->rank; d++) n *= box->count[d];
    return n;
}

/* Elements of a published tensor, unpacked; scales are not asked for. */
static uint64_t elements_of(const stw_published *p, stw_names_way way) {
    uint64_t n = way == STW_NAMES_MXFP4 ? 2 : way == STW_NAMES_INT4 ? 8 : 1;
    for (uint32_t d = 0; d < p->rank; d++) n *= p->shape[d];
    return n;
}

/* Parts of a tensor come in the order of its elements: expert by expert, along one dimension. */
static bool tensors_are_whole(const stw_names_list *list) {
    const stw_model *m = list->model;
    const uint32_t n = m->n_tensors + m->n_buffers + m->n_extras;
    uint32_t at = 0;
    for (uint32_t t = 0; t < n; t++) {
        const stw_tensor *tensor = stw_names_tensor(m, t);
        uint64_t expert = 0, next = 0, seen = 0;
        for (; at < list->n_parts && list->parts[at].tensor == t; at++) {
            const stw_names_part *part = &list->parts[at];
            stw_names_box own, other;
            stw_names_boxes(list, part, &own, &other);
            if (tensor->rank > 0 && next == tensor->shape[part->dim]) next = 0, expert++;
            if (part->expert != expert || part->first != next || volume(&own) != volume(&other))
                return false;
            next += part->count;
            seen += volume(&own);
        }
        if (seen != tensor->numel) {
            fprintf(stderr, "%s: %s: %" PRIu64 " of %" PRIu64 " elements\n", m->name, tensor->name,
                    seen, tensor->numel);
            return false;
        }
    }
    return at == list->n_parts;
}

/* Each published tensor but scales is covered by its parts, each of scales belongs to one. */
static bool files_are_whole(const stw_names_list *list) {
    uint64_t *seen = calloc(list->n_published + 1u, sizeof *seen);
    uint32_t *scaled = calloc(list->n_published + 1u, sizeof *scaled);
    bool right = true;
    for (uint32_t i = 0; i < list->n_parts; i++) {
        const stw_names_part *part = &list->parts[i];
        stw_names_box own, other;
        stw_names_boxes(list, part, &own, &other);
        const stw_published *p = &list->published[part->published];
        if (part->way == STW_NAMES_AS_IS || part->way == STW_NAMES_TRANSPOSED) {
            right = right && other.rank == p->rank;
            for (uint32_t d = 0; right && d < p->rank; d++)
                right = other.first[d] + other.count[d] <= p->shape[d];
        }
        seen[part->published] += volume(&other);
        if (seen[part->published] > elements_of(p, part->way)) right = false;
        if (seen[part->published] == elements_of(p, part->way)) seen[part->published] = UINT64_MAX;
        if (part->scale != STW_NAMES_NONE) scaled[part->scale]++;
    }
    for (uint32_t p = 0; p < list->n_published; p++) {
        const bool is_scale = list->published[p].kind == STW_PUBLISHED_SCALE;
        if (seen[p] != (is_scale ? 0 : UINT64_MAX) || scaled[p] != is_scale) right = false;
    }
    free(seen);
    free(scaled);
    return right;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool names_are_unique(const stw_names_list *list) {
    const char **names = calloc(list->n_published + 1u, sizeof *names);
    bool right = true;
    for (uint32_t p = 0; p < list->n_published; p++) names[p] = list->published[p].name;
    qsort(names, list->n_published, sizeof *names, by_text);
    for (uint32_t p = 1; p < list->n_published; p++)
        if (strcmp(names[p - 1], names[p]) == 0) right = false;
    free(names);
    return right;
}

static void whole_zoo(void) {
    DIR *folder = opendir(STW_SOURCE_MODELS "/zoo");
    struct dirent *entry = NULL;
    uint32_t models = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(folder);
    while ((entry = readdir(folder)) != NULL) {
        const size_t n = strlen(entry->d_name);
        char path[600];
        stw_model *model = NULL;
        stw_names_list *list = NULL;
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0) continue;
        snprintf(path, sizeof path, STW_SOURCE_MODELS "/zoo/%s", entry->d_name);
        CHECK_OK(stw_model_open(path, STW_SOURCE_MODELS, &model, err));
        if (model != NULL) CHECK_OK(stw_names_list_make(model, &list, err));
        if (list != NULL) {
            const bool right = tensors_are_whole(list) && files_are_whole(list) &&
                               names_are_unique(list) && list->bytes == model->stored_bytes;
            if (!right)
                fprintf(stderr, "%s: %u tensors, %" PRIu64 " bytes, expected %" PRIu64 "\n",
                        entry->d_name, list->n_published, list->bytes, model->stored_bytes);
            CU_ASSERT(right);
            models++;
        }
        stw_names_list_free(list);
        stw_model_free(model);
    }
    closedir(folder);
    CU_ASSERT(models > 100);
}

/* ---- names of some models, as their index files have them ---- */

static const stw_names_part *part_of(const stw_names_list *list, const char *published) {
    for (uint32_t i = 0; i < list->n_parts; i++)
        if (strcmp(list->published[list->parts[i].published].name, published) == 0)
            return &list->parts[i];
    return NULL;
}

typedef struct spelled {
    const char *model, *published, *tensor, *scale;
    uint64_t first[3], published_shape[3];
} spelled;

static void check_spelled(const spelled *s) {
    stw_model *model = NULL;
    stw_names_list *list = NULL;
    CHECK_OK(stw_model_open(s->model, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    CHECK_OK(stw_names_list_make(model, &list, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(list);
    const stw_names_part *part = part_of(list, s->published);
    if (part == NULL) fprintf(stderr, "%s has no %s\n", s->model, s->published);
    CU_ASSERT_PTR_NOT_NULL_FATAL(part);
    const stw_published *p = &list->published[part->published];
    stw_names_box own, other;
    stw_names_boxes(list, part, &own, &other);
    CU_ASSERT_STRING_EQUAL(stw_names_tensor(model, part->tensor)->name, s->tensor);
    CU_ASSERT_EQUAL(part->scale != STW_NAMES_NONE, s->scale != NULL);
    if (s->scale != NULL && part->scale != STW_NAMES_NONE)
        CU_ASSERT_STRING_EQUAL(list->published[part->scale].name, s->scale);
    for (uint32_t d = 0; d < 3; d++) {
        CU_ASSERT_EQUAL(own.first[d], s->first[d]);
        CU_ASSERT_EQUAL(p->shape[d], s->published_shape[d]);
    }
    stw_names_list_free(list);
    stw_model_free(model);
}

static void spelled_out(void) {
    static const spelled cases[] = {
        {"Qwen3-30B-A3B",
         "model.layers.47.mlp.experts.127.up_proj.weight",
         "model.layers.47.mlp.experts.gate_up_proj",
         NULL,
         {127, 768},
         {768, 2048}},
        {"Qwen3-30B-A3B",
         "model.layers.0.mlp.experts.3.down_proj.weight",
         "model.layers.0.mlp.experts.down_proj",
         NULL,
         {3},
         {2048, 768}},
        {"Mixtral-8x7B",
         "model.layers.31.block_sparse_moe.experts.7.w3.weight",
         "model.layers.31.mlp.experts.gate_up_proj",
         NULL,
         {7, 14336},
         {14336, 4096}},
        {"Mixtral-8x7B",
         "model.layers.0.block_sparse_moe.gate.weight",
         "model.layers.0.mlp.gate.weight",
         NULL,
         {0},
         {8, 4096}},
        {"MiniMax-M2",
         "model.layers.0.block_sparse_moe.e_score_correction_bias",
         "model.layers.0.mlp.e_score_correction_bias",
         NULL,
         {0},
         {256}},
        {"Phi-3.5-MoE",
         "model.layers.0.block_sparse_moe.gate.weight",
         "model.layers.0.mlp.router.weight",
         NULL,
         {0},
         {16, 4096}},
        {"DeepSeek-V3",
         "model.layers.60.mlp.experts.255.gate_proj.weight",
         "model.layers.60.mlp.experts.gate_up_proj",
         "model.layers.60.mlp.experts.255.gate_proj.weight_scale_inv",
         {255},
         {2048, 7168}},
        {"DeepSeek-V3",
         "model.layers.61.mlp.experts.0.down_proj.weight",
         "model.layers.61.mlp.experts.down_proj",
         "model.layers.61.mlp.experts.0.down_proj.weight_scale_inv",
         {0},
         {7168, 2048}},
        {"Kimi-K2-Thinking",
         "model.layers.1.mlp.experts.0.up_proj.weight_packed",
         "model.layers.1.mlp.experts.gate_up_proj",
         "model.layers.1.mlp.experts.0.up_proj.weight_scale",
         {0, 2048},
         {2048, 896}},
        {"gpt-oss-20b",
         "model.layers.0.mlp.experts.down_proj_blocks",
         "model.layers.0.mlp.experts.down_proj",
         "model.layers.0.mlp.experts.down_proj_scales",
         {0},
         {32, 2880, 90}},
        {"Qwen3-VL-30B-A3B",
         "model.language_model.layers.0.mlp.experts.gate_up_proj",
         "model.language_model.layers.0.mlp.experts.gate_up_proj",
         NULL,
         {0},
         {128, 2048, 1536}},
        {"Qwen2.5-VL-7B-Instruct",
         "visual.blocks.0.attn.qkv.weight",
         "model.visual.blocks.0.attn.qkv.weight",
         NULL,
         {0},
         {3840, 1280}},
        {"Qwen2.5-VL-7B-Instruct",
         "model.embed_tokens.weight",
         "model.language_model.embed_tokens.weight",
         NULL,
         {0},
         {152064, 3584}},
        {"Gemma-3-4b",
         "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
         "model.vision_tower.encoder.layers.0.mlp.fc1.bias",
         NULL,
         {0},
         {4304}},
        {"Gemma-3-4b",
         "language_model.model.norm.weight",
         "model.language_model.norm.weight",
         NULL,
         {0},
         {2560}},
        {"InternVL3-8B",
         "language_model.lm_head.weight",
         "lm_head.weight",
         NULL,
         {0},
         {151674, 3584}},
        {"Llama-4-Scout",
         "language_model.model.layers.0.feed_forward.experts.gate_up_proj",
         "language_model.model.layers.0.feed_forward.experts.gate_up_proj",
         NULL,
         {0},
         {16, 5120, 16384}},
        {"Qwen3-Next-80B-A3B",
         "mtp.layers.0.mlp.experts.511.down_proj.weight",
         "mtp.layers.0.mlp.experts.down_proj",
         NULL,
         {511},
         {2048, 512}},
        {"GPT-2",
         "h.11.attn.c_attn.weight",
         "transformer.h.11.attn.c_attn.weight",
         NULL,
         {0},
         {768, 2304}},
        {"Qwen3-0.6B", "lm_head.weight", "lm_head.weight", NULL, {0}, {151936, 1024}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) check_spelled(&cases[k]);
}

/* ---- rows ---- */

static void patterns(void) {
    stw_names_stars stars = {.n = 0};
    stw_pool *pool = stw_pool_new();
    CU_ASSERT(stw_names_match("*.mlp.*.weight", "a.mlp.b.mlp.c.weight", &stars));
    CU_ASSERT_EQUAL(stars.n, 2);
    CU_ASSERT_STRING_EQUAL(stw_names_apply(pool, "<*|*>", &stars), "<a|b.mlp.c>");
    stars.n = 0;
    CU_ASSERT_FALSE(stw_names_match("*.mlp.*.weight", "a.mlp.b.bias", &stars));
    stars.n = 0;
    CU_ASSERT(stw_names_match("x*", "x", &stars));
    stars.n = 0;
    CU_ASSERT_FALSE(stw_names_match("x*", "", &stars));
    stars.n = 0;
    CU_ASSERT_FALSE(stw_names_match("*****", "a", &stars));
    stw_pool_free(pool);
}

static void refused(void) {
#define HEADER "row,tensor,published,value\n"
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"part,a,b,\n", "here:1: expected the header row,tensor,published,value"},
        {HEADER "part,a,b\n", "here:2: expected four fields"},
        {HEADER "part,a,b,,\n", "here:2: expected four fields"},
        {HEADER "#\n\nparts,a,b,\n", "here:4: unknown kind of row"},
        {HEADER "part,a,b,x\n", "here:2: expected a dimension"},
        {HEADER "split,a,b,8\n", "here:2: expected a dimension"},
        {HEADER "packed,fp4,_a,_b\n", "here:2: expected mxfp4 or int4"},
        {HEADER "rename,,b,\n", "here:2: the second field is empty"},
        {HEADER "part,a*,b**,\n", "here:2: a star of the published name that the tensor's lacks"},
        {HEADER "include,nothing,,\n", "models/names: nothing cannot be included"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        stw_pool *pool = stw_pool_new();
        stw_names_rules rules = {.n = 0};
        CHECK_FAILS(stw_names_rules_parse(pool, "here", cases[k].text, &rules, err),
                    STW_STATUS_BAD_INPUT, cases[k].why);
        stw_pool_free(pool);
    }
}

STW_TEST_MAIN("models names", {"whole zoo", whole_zoo}, {"spelled out", spelled_out},
              {"patterns", patterns}, {"refused", refused})
