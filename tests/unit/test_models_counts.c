/* SPDX-License-Identifier: Apache-2.0 */
/* Every zoo model and every model_type against what the reference implementation builds. The counts
 * of the small configs below were taken from transformers 5.17 to 5.23 on torch's meta device, the
 * zoo's are in models/zoo/counts.csv. */
#include <inttypes.h>
#include <stdlib.h>

#include "models/internal.h"
#include "models/table.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

/* The sums that every reader must deliver, whatever the model. */
static void check_sums(const stw_model *m) {
    uint64_t params = 0, active = 0, of_blocks = 0;
    uint32_t blocks = 0, tensors = 0, next = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        params += m->groups[g].params;
        active += m->groups[g].active_params;
        blocks += m->groups[g].count;
        tensors += m->groups[g].tensors;
        CU_ASSERT(m->groups[g].active_params <= m->groups[g].params);
    }
    CU_ASSERT_EQUAL(params, m->params);
    CU_ASSERT_EQUAL(active, m->active_params);
    CU_ASSERT_EQUAL(blocks, m->n_blocks);
    CU_ASSERT_EQUAL(tensors, m->n_tensors);
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        CU_ASSERT_EQUAL(m->blocks[b].first_tensor, next);
        next += m->blocks[b].n_tensors;
        of_blocks += m->blocks[b].params;
        CU_ASSERT(m->blocks[b].instance < m->groups[m->blocks[b].group].count);
    }
    CU_ASSERT_EQUAL(of_blocks, m->params);
    CU_ASSERT_EQUAL(next, m->n_tensors);
    CU_ASSERT_EQUAL(strlen(m->digest), 32);
}

static void zoo_counts(void) {
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    CHECK_OK(stw_table_read(pool, STW_SOURCE_MODELS "/zoo/counts.csv", &table, err));
    CU_ASSERT_EQUAL(table.n_rows, 115); /* a header and 114 models */
    for (size_t r = 1; r < table.n_rows; r++) {
        const char *name = table.rows[r].fields[0], *type = table.rows[r].fields[1];
        uint64_t count = strtoull(table.rows[r].fields[2], NULL, 10);
        stw_model *model = NULL;
        CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
        if (model == NULL) continue;
        if (model->params != count)
            fprintf(stderr, "%s: %" PRIu64 ", expected %" PRIu64 "\n", name, model->params, count);
        CU_ASSERT_EQUAL(model->params, count);
        CU_ASSERT_EQUAL(model->stored_bytes, strtoull(table.rows[r].fields[3], NULL, 10));
        CU_ASSERT(model->max_positions > 0);
        CU_ASSERT_STRING_EQUAL(model->model_type, type);
        CU_ASSERT_STRING_EQUAL(model->name, name);
        CU_ASSERT(model->facts_known);
        CU_ASSERT(model->vocab > 0 && model->hidden > 0 && model->layers > 0);
        check_sums(model);
        stw_model_free(model);
    }
    stw_pool_free(pool);
}

#define BASE                                                                                       \
    "\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":160,\"num_hidden_layers\":6,"    \
    "\"num_attention_heads\":8,\"max_position_embeddings\":512"
#define MLA                                                                                        \
    ",\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":16,"       \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48"
#define LINEAR                                                                                     \
    ",\"num_key_value_heads\":2,\"head_dim\":16,\"linear_num_key_heads\":2,"                       \
    "\"linear_num_value_heads\":4,\"linear_key_head_dim\":8,\"linear_value_head_dim\":8"
#define VISION                                                                                     \
    "\"vision_config\":{\"depth\":2,\"hidden_size\":48,\"intermediate_size\":96,\"num_heads\":4,"  \
    "\"out_hidden_size\":64,\"patch_size\":16,\"num_position_embeddings\":64,"                     \
    "\"deepstack_visual_indexes\":[0]}"
#define EXPERTS ",\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":2"

static const struct {
    uint64_t count;
    const char *config;
} small[] = {
    {811120, "{\"model_type\":\"deepseek_v2\"," BASE MLA
             ",\"q_lora_rank\":null,\"n_shared_experts\":2,\"first_k_dense_replace\":1,"
             "\"attention_bias\":true}"},
    {838032, "{\"model_type\":\"deepseek_v2\"," BASE MLA
             ",\"q_lora_rank\":24,\"n_shared_experts\":2,\"attention_bias\":true,"
             "\"mlp_bias\":true}"},
    {727696, "{\"model_type\":\"kimi_k2\"," BASE MLA
             ",\"q_lora_rank\":24,\"n_shared_experts\":1,\"first_k_dense_replace\":1}"},
    {544832, "{\"model_type\":\"gemma2\"," BASE ",\"num_key_value_heads\":4,\"head_dim\":32}"},
    {612288, "{\"model_type\":\"gemma2\"," BASE ",\"num_key_value_heads\":4,\"head_dim\":32,"
             "\"tie_word_embeddings\":false,\"attention_bias\":true}"},
    {625408, "{\"model_type\":\"gemma3_text\",\"vocab_size\":1000,\"hidden_size\":64,"
             "\"intermediate_size\":160,\"num_hidden_layers\":7,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":4,\"head_dim\":32}"},
    {634304, "{\"model_type\":\"gemma3\",\"text_config\":{" BASE
             ",\"num_key_value_heads\":4,\"head_dim\":32},\"vision_config\":{\"hidden_size\":48,"
             "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
             "\"image_size\":56,\"patch_size\":14}}"},
    {462528, "{\"model_type\":\"qwen2_moe\"," BASE EXPERTS
             ",\"num_key_value_heads\":4,\"shared_expert_intermediate_size\":96,"
             "\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]}"},
    {557440, "{\"model_type\":\"qwen3_moe\"," BASE EXPERTS
             ",\"num_key_value_heads\":4,\"head_dim\":16,\"mlp_only_layers\":[1],"
             "\"attention_bias\":true}"},
    {551008, "{\"model_type\":\"qwen3_5\",\"text_config\":{" BASE LINEAR "}," VISION "}"},
    {487392,
     "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":true,\"text_config\":{" BASE LINEAR
     ",\"attention_bias\":true}," VISION "}"},
    {386736, "{\"model_type\":\"qwen3_5_text\"," BASE LINEAR "}"},
    {546864, "{\"model_type\":\"qwen3_5_moe_text\"," BASE LINEAR EXPERTS
             ",\"shared_expert_intermediate_size\":40}"},
    {493872, "{\"model_type\":\"qwen3_next\"," BASE LINEAR EXPERTS
             ",\"shared_expert_intermediate_size\":40,\"mlp_only_layers\":[0,3],"
             "\"attention_bias\":true}"},
    {351296, "{\"model_type\":\"llama\"," BASE
             ",\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true}"},
    {497472, "{\"model_type\":\"llama\"," BASE ",\"num_key_value_heads\":2,\"head_dim\":24}"},
    {460608, "{\"model_type\":\"mistral\"," BASE ",\"num_key_value_heads\":4,\"head_dim\":16}"},
    {388608,
     "{\"model_type\":\"olmo2\"," BASE ",\"num_key_value_heads\":4,\"attention_bias\":true}"},
    {854976, "{\"model_type\":\"llama4_text\"," BASE
             ",\"intermediate_size_mlp\":200,\"num_key_value_heads\":4,\"num_local_experts\":4,"
             "\"interleave_moe_layer_step\":2,\"head_dim\":16,\"attention_bias\":true}"},
    {585728, "{\"model_type\":\"glm4_moe\"," BASE
             ",\"num_key_value_heads\":4,\"head_dim\":16,\"use_qk_norm\":true,"
             "\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
             "\"n_shared_experts\":2,\"first_k_dense_replace\":2}"},
    {502008, "{\"model_type\":\"qwen2_5_vl\",\"text_config\":{" BASE
             ",\"num_key_value_heads\":4,\"tie_word_embeddings\":true},\"vision_config\":{"
             "\"depth\":3,\"hidden_size\":48,\"intermediate_size\":100,\"num_heads\":4,"
             "\"out_hidden_size\":64,\"fullatt_block_indexes\":[1]}}"},
    {610864, "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":true,\"text_config\":{" BASE
             ",\"num_key_value_heads\":4,\"head_dim\":16}," VISION "}"},
    {960392, "{\"model_type\":\"gpt_oss\"," BASE
             ",\"num_key_value_heads\":4,\"head_dim\":16,\"num_local_experts\":4,"
             "\"num_experts_per_tok\":2,\"attention_bias\":false,\"tie_word_embeddings\":true}"},
    {944360, "{\"model_type\":\"phimoe\"," BASE
             ",\"num_key_value_heads\":4,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
             "\"attention_bias\":true,\"lm_head_bias\":true}"},
    {942208, "{\"model_type\":\"phimoe\"," BASE
             ",\"num_key_value_heads\":4,\"num_local_experts\":4,\"num_experts_per_tok\":2}"},
    {471792, "{\"model_type\":\"internvl\",\"tie_word_embeddings\":false,\"text_config\":{" BASE
             ",\"num_key_value_heads\":4},\"vision_config\":{\"hidden_size\":48,"
             "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
             "\"image_size\":[56,56],\"patch_size\":[14,14],\"attention_bias\":true}}"},
    {407504, "{\"model_type\":\"internvl\",\"tie_word_embeddings\":true,\"text_config\":{" BASE
             ",\"num_key_value_heads\":4,\"tie_word_embeddings\":true},\"vision_config\":{"
             "\"hidden_size\":48,\"intermediate_size\":96,\"num_hidden_layers\":2,"
             "\"num_attention_heads\":4,\"image_size\":[56,56],\"patch_size\":[14,14],"
             "\"use_qk_norm\":true,\"norm_type\":\"rms_norm\"}}"},
    {544656, "{\"model_type\":\"internvl\",\"tie_word_embeddings\":false,\"text_config\":{" BASE
             ",\"model_type\":\"qwen3\",\"num_key_value_heads\":4,\"head_dim\":16},"
             "\"vision_config\":{\"hidden_size\":48,\"intermediate_size\":96,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"image_size\":[56,56],"
             "\"patch_size\":[14,14]}}"},
    {658320,
     "{\"model_type\":\"internvl\",\"tie_word_embeddings\":false,\"text_config\":{" BASE EXPERTS
     ",\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":4,\"head_dim\":16},"
     "\"vision_config\":{\"hidden_size\":48,\"intermediate_size\":96,"
     "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"image_size\":[56,56],"
     "\"patch_size\":[14,14]}}"},
    {464832, "{\"model_type\":\"seed_oss\"," BASE
             ",\"num_key_value_heads\":4,\"head_dim\":16,\"attention_bias\":true,"
             "\"attention_out_bias\":true,\"mlp_bias\":true}"},
    {322880, "{\"model_type\":\"smollm3\"," BASE ",\"num_key_value_heads\":4}"},
    {389184, "{\"model_type\":\"smollm3\"," BASE
             ",\"num_key_value_heads\":4,\"tie_word_embeddings\":false,\"mlp_bias\":true}"},
    {773776,
     "{\"model_type\":\"glm4_moe_lite\"," BASE MLA ",\"q_lora_rank\":24,\"n_shared_experts\":2}"},
    {744784, "{\"model_type\":\"deepseek_v32\"," BASE MLA
             ",\"q_lora_rank\":24,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
             "\"index_n_heads\":4,\"index_head_dim\":16}"},
    {788528, "{\"model_type\":\"qwen3_vl_moe\",\"text_config\":{" BASE EXPERTS
             ",\"num_key_value_heads\":4,\"head_dim\":16}," VISION "}"},
    {387648,
     "{\"model_type\":\"mimo\"," BASE ",\"num_key_value_heads\":4,\"num_nextn_predict_layers\":1}"},
    {314904, "{\"model_type\":\"gpt2\",\"vocab_size\":1000,\"n_embd\":64,\"n_layer\":3,"
             "\"n_head\":4,\"n_positions\":128,\"n_inner\":200,\"add_cross_attention\":true,"
             "\"tie_word_embeddings\":false}"},
};

static stw_status parse(const char *config, stw_model **out, stw_error *err) {
    return stw_model_parse_config("config.json", config, strlen(config), STW_SOURCE_MODELS, out,
                                  err);
}

static void small_counts(void) {
    for (size_t k = 0; k < sizeof small / sizeof small[0]; k++) {
        stw_model *model = NULL;
        CHECK_OK(parse(small[k].config, &model, err));
        if (model == NULL) continue;
        if (model->params != small[k].count)
            fprintf(stderr, "%s: %" PRIu64 ", expected %" PRIu64 "\n", model->model_type,
                    model->params, small[k].count);
        CU_ASSERT_EQUAL(model->params, small[k].count);
        check_sums(model);
        stw_model_free(model);
    }
}

static const stw_block_group *group_named(const stw_model *model, const char *name) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (strcmp(model->groups[g].name, name) == 0) return &model->groups[g];
    return NULL;
}

static void groups_and_facts(void) {
    stw_model *model = NULL;
    CHECK_OK(stw_model_open("deepseek-ai/deepseek-v3", STW_SOURCE_MODELS, &model, err));
    if (model == NULL) return;
    const stw_block_group *dense = group_named(model, "dense_layer");
    const stw_block_group *moe = group_named(model, "moe_layer");
    CU_ASSERT_PTR_NOT_NULL_FATAL(dense);
    CU_ASSERT_PTR_NOT_NULL_FATAL(moe);
    CU_ASSERT_EQUAL(dense->count, 3);
    CU_ASSERT_EQUAL(moe->count, 58);
    CU_ASSERT_EQUAL(moe->facts.qk_dim, 192);
    CU_ASSERT_EQUAL(moe->facts.kv_rank, 512);
    CU_ASSERT_EQUAL(moe->facts.experts_per_token, 8);
    CU_ASSERT_EQUAL(moe->facts.ffn, 0);
    CU_ASSERT_EQUAL(dense->facts.experts, 0);
    CU_ASSERT_EQUAL(model->buffers, UINT64_C(58) * 256);
    CU_ASSERT_EQUAL(model->active_params, UINT64_C(37552282624)); /* published: 37 billion */
    CU_ASSERT_EQUAL(model->tensors[0].dtype, STW_DTYPE_BF16);
    CU_ASSERT_STRING_EQUAL(model->tensors[0].name, "model.embed_tokens.weight");
    CU_ASSERT_STRING_EQUAL(model->tensors[model->n_tensors - 1].name, "lm_head.weight");
    for (uint32_t k = 0; k < model->n_tensors; k++)
        if (strstr(model->tensors[k].name, ".experts.") != NULL)
            CU_ASSERT(model->tensors[k].expert && model->tensors[k].experts == 256);
    stw_model_free(model);

    CHECK_OK(stw_model_open("Gemma-3-27b", STW_SOURCE_MODELS, &model, err));
    if (model == NULL) return;
    CU_ASSERT_STRING_EQUAL(model->groups[0].name, "vision_embed");
    CU_ASSERT(model->tied_embeddings);
    CU_ASSERT_EQUAL(model->vocab, 262208);
    CU_ASSERT_PTR_NULL(group_named(model, "head"));
    const stw_block_group *sliding = group_named(model, "sliding_layer");
    const stw_block_group *full = group_named(model, "layer");
    CU_ASSERT_PTR_NOT_NULL_FATAL(sliding);
    CU_ASSERT_PTR_NOT_NULL_FATAL(full);
    CU_ASSERT_EQUAL(sliding->count, 52);
    CU_ASSERT_EQUAL(sliding->facts.window, 1024);
    CU_ASSERT_EQUAL(full->count, 10);
    CU_ASSERT_EQUAL(full->facts.window, 0);
    CU_ASSERT(!full->facts.vision && model->groups[0].facts.vision);
    stw_model_free(model);

    CHECK_OK(stw_model_open("Qwen3.5-35B-A3B", STW_SOURCE_MODELS, &model, err));
    if (model == NULL) return;
    const stw_block_group *linear = group_named(model, "linear_moe_layer");
    CU_ASSERT_PTR_NOT_NULL_FATAL(linear);
    CU_ASSERT_EQUAL(linear->count, 30);
    CU_ASSERT_EQUAL(linear->facts.linear_v_heads, 32);
    CU_ASSERT_EQUAL(linear->facts.q_heads, 0);
    CU_ASSERT_EQUAL(linear->facts.shared_ffn, 512);
    stw_model_free(model);
}

static void dtype_of_config(void) {
    stw_model *model = NULL;
    CHECK_OK(parse("{\"model_type\":\"llama\"," BASE "}", &model, err));
    if (model != NULL) CU_ASSERT_EQUAL(model->tensors[0].dtype, STW_DTYPE_F32);
    stw_model_free(model);
    CHECK_OK(parse("{\"model_type\":\"llama\",\"dtype\":\"float16\"," BASE "}", &model, err));
    if (model != NULL) CU_ASSERT_EQUAL(model->tensors[0].dtype, STW_DTYPE_F16);
    stw_model_free(model);
    CHECK_FAILS(parse("{\"model_type\":\"llama\",\"dtype\":\"wide\"," BASE "}", &model, err),
                STW_STATUS_BAD_INPUT, "wide");
}

/* Each: a config, and what its error must mention. */
static const struct {
    const char *config, *word;
} bad[] = {
    {"[1]", "object"},
    {"{}", "model_type"},
    {"{\"model_type\":7}", "model_type"},
    {"{\"model_type\":\"mamba9\"}", "mamba9"},
    {"{\"model_type\":\"mamba9\"}", "safetensors files"},
    {"{\"model_type\":\"../zoo/counts\"}", "no template"},
    {"{\"model_type\":\"_decoder\"}", "no template"},
    {"{\"model_type\":\"\"}", "no template"},
    {"{\"model_type\":\"llama\"}", "vocab_size"},
    {"{\"model_type\":\"llama\",\"vocab_size\":null}", "vocab_size"},
    {"{\"model_type\":\"llama\",\n\"vocab_size\":\"1000\"}", "config.json:2"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":160,"
     "\"num_hidden_layers\":6,\n\"num_attention_heads\":-8}",
     "num_attention_heads"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":0,"
     "\"num_hidden_layers\":6,\"num_attention_heads\":8}",
     "\"intermediate_size\": found the number 0, expected at least 1"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":0}",
     "\"hidden_size\": found the number 0, expected at least 1"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":-3}",
     "\"hidden_size\": found the number -3, expected at least 1"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"num_hidden_layers\":6,"
     "\"max_position_embeddings\":0}",
     "\"max_position_embeddings\": found the number 0, expected at least 1"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":68,\"intermediate_size\":9,"
     "\"num_hidden_layers\":6,\"num_attention_heads\":8}",
     "68 is not a multiple of 8"},
    /* errors of sums name the file, too */
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":1,"
     "\"intermediate_size\":9000000000000000000,\"num_hidden_layers\":6,"
     "\"num_attention_heads\":1}",
     "config.json: "},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":9,"
     "\"num_hidden_layers\":6,\"num_attention_heads\":0}",
     "division by zero"},
    {"{\"model_type\":\"llama\",\"vocab_size\":9000000000000000000,\"hidden_size\":64,"
     "\"intermediate_size\":9,\"num_hidden_layers\":6,\"num_attention_heads\":8}",
     "does not fit"},
    {"{\"model_type\":\"llama\",\"vocab_size\":99999999999999999999}", "config.json:1"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1000.5}", "vocab_size"},
    {"{\"model_type\":\"llama\",\"vocab_size\":10,\"hidden_size\":64,\"intermediate_size\":9,"
     "\"num_hidden_layers\":1000000000000,\"num_attention_heads\":8}",
     "num_hidden_layers"},
    {"{\"model_type\":\"llama\"," BASE ",\"tie_word_embeddings\":\"yes\"}", "tie_word_embeddings"},
    {"{\"model_type\":\"gemma3_text\"," BASE ",\"layer_types\":[\"full_attention\"]}",
     "has 1 elements"},
    {"{\"model_type\":\"qwen3_5_text\"," BASE LINEAR ",\"layer_types\":[\"mamba\"]}",
     "no kind of block"},
    {"{\"model_type\":\"qwen3_moe\"," BASE ",\"num_experts\":8,\"num_experts_per_tok\":9,"
     "\"moe_intermediate_size\":32}",
     "9 experts"},
    {"{\"model_type\":\"qwen3_vl\",\"vision_config\":[]}", "vision_config.hidden_size"},
    {"{\"model_type\":\"llama\",\"model_type\":\"llama\"}", "a second time"},
    {"{\"model_type\":\"llama\"", "config.json"},
};

/* Some models state head_dim, and heads that do not divide hidden_size. */
static void head_dim_need_not_divide(void) {
    stw_model *model = NULL;
    CHECK_OK(parse("{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":68,"
                   "\"intermediate_size\":9,\"num_hidden_layers\":6,\"num_attention_heads\":8,"
                   "\"head_dim\":16}",
                   &model, err));
    stw_model_free(model);
}

static void bad_configs(void) {
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        stw_model *model = NULL;
        CHECK_FAILS(parse(bad[k].config, &model, err), STW_STATUS_BAD_INPUT, bad[k].word);
        CU_ASSERT_PTR_NULL(model);
    }
}

static void unknown_names(void) {
    stw_model *model = NULL;
    CHECK_FAILS(stw_model_open("Qwen3-0.5B", STW_SOURCE_MODELS, &model, err), STW_STATUS_BAD_INPUT,
                "did you mean Qwen3-0.6B?");
    CHECK_FAILS(stw_model_open("", STW_SOURCE_MODELS, &model, err), STW_STATUS_BAD_INPUT,
                "is empty");
    CHECK_FAILS(stw_model_open("Qwen3-4B", "/nonexistent", &model, err), STW_STATUS_BAD_INPUT,
                "not found");
    CU_ASSERT_PTR_NULL(model);
}

STW_TEST_MAIN("models counts", {"zoo counts", zoo_counts}, {"small counts", small_counts},
              {"groups and facts", groups_and_facts}, {"dtype of the config", dtype_of_config},
              {"head_dim need not divide", head_dim_need_not_divide}, {"bad configs", bad_configs},
              {"unknown names", unknown_names})
