/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a config.json that no row of a template reads: those that place parameters are errors,
 * other unknown ones are named in one warning, and the zoo's models have neither. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "models/internal.h"
#include "models/zoo.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

typedef struct warnings {
    unsigned n;
    char last[600];
} warnings;

static void note(stw_log_level level, const char *text, void *user) {
    warnings *w = user;
    if (level > STW_LOG_WARN) return;
    w->n++;
    snprintf(w->last, sizeof w->last, "%s", text);
}

static void the_zoo_is_understood(void) {
    warnings w = {.n = 0};
    stw_pool *pool = stw_pool_new();
    const char *const *names = NULL;
    size_t n = 0;
    stw_log_set(note, &w);
    CHECK_OK(stw_zoo_list(STW_SOURCE_MODELS, pool, &names, &n, err));
    CU_ASSERT(n > 50);
    for (size_t i = 0; i < n; i++) {
        stw_model *model = NULL;
        w.n = 0;
        CHECK_OK(stw_model_open(names[i], STW_SOURCE_MODELS, &model, err));
        if (w.n > 0) fprintf(stderr, "%s: %s\n", names[i], w.last);
        CU_ASSERT_EQUAL(w.n, 0);
        stw_model_free(model);
    }
    stw_log_set(NULL, NULL);
    stw_pool_free(pool);
}

#define LLAMA                                                                                      \
    "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":160,"  \
    "\"num_hidden_layers\":2,\n\"num_attention_heads\":8,"
#define QWEN2                                                                                      \
    "{\"model_type\":\"qwen2\",\"vocab_size\":1000,\"hidden_size\":64,\"intermediate_size\":160,"  \
    "\"num_hidden_layers\":2,\n\"num_attention_heads\":8,"

static stw_status open_text(const char *start, const char *more, stw_model **out, stw_error *err) {
    char text[1024];
    const int n = snprintf(text, sizeof text, "%s%s}", start, more);
    return stw_model_parse_config("config.json", text, (size_t)n, STW_SOURCE_MODELS, out, err);
}

static void keys_that_place_parameters_are_errors(void) {
    static const struct {
        const char *start, *more, *word;
    } cases[] = {
        {LLAMA, "\"num_experts\":8", "config.json:2:25: num_experts: found the number 8"},
        {LLAMA, "\"num_local_experts\":8", "num_local_experts"},
        {LLAMA, "\"n_routed_experts\":64", "n_routed_experts"},
        {LLAMA, "\"num_experts_per_tok\":2", "num_experts_per_tok"},
        {LLAMA, "\"moe_intermediate_size\":96", "moe_intermediate_size"},
        {LLAMA, "\"kv_lora_rank\":512", "kv_lora_rank"},
        {LLAMA, "\"qk_rope_head_dim\":64", "qk_rope_head_dim"},
        {LLAMA, "\"num_nextn_predict_layers\":1", "num_nextn_predict_layers"},
        {LLAMA, "\"vision_config\":{\"depth\":32}", "vision_config"},
        {LLAMA, "\"tie_embeddings\":true", "tie_embeddings"},
        {LLAMA, "\"use_qk_norm\":true", "use_qk_norm"},
        {LLAMA, "\"layer_types\":[\"linear_attention\",\"full_attention\"]", "layer_types"},
        {LLAMA, "\"moe_layer_freq\":2", "moe_layer_freq"},
        {QWEN2, "\"mlp_bias\":true", "mlp_bias"}, /* a name that its template binds to false */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_model *model = NULL;
        CHECK_FAILS(open_text(cases[i].start, cases[i].more, &model, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
        CU_ASSERT_PTR_NULL(model);
    }
}

static void others_are_silent_or_one_warning(void) {
    static const struct {
        const char *more, *warned;
    } cases[] = {
        {"\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,\"rope_theta\":1e6", NULL},
        {"\"architectures\":[\"LlamaForCausalLM\"],\"attention_dropout\":0.1", NULL},
        {"\"num_experts\":0,\"vision_config\":null,\"use_qk_norm\":false", NULL},
        {"\"moe_layer_freq\":1,\"layer_types\":[\"full_attention\",\"sliding_attention\"]", NULL},
        {"\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true", NULL},
        {"\"fridge\":7", "1 key is not understood and ignored: fridge"},
        {"\"fridge\":7,\"oven\":{}", "2 keys are not understood and ignored: fridge, oven"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        warnings w = {.n = 0};
        stw_model *model = NULL;
        stw_log_set(note, &w);
        CHECK_OK(open_text(LLAMA, cases[i].more, &model, err));
        stw_log_set(NULL, NULL);
        CU_ASSERT_EQUAL(w.n, cases[i].warned != NULL);
        if (cases[i].warned != NULL) CU_ASSERT_PTR_NOT_NULL(strstr(w.last, cases[i].warned));
        stw_model_free(model);
    }
}

static void a_template_has_keys_built_in(void) {
    static const char moonlight[] = STW_SOURCE_MODELS "/zoo/Moonlight-16B-A3B.json";
    stw_model *model = NULL; /* num_key_value_heads, which latent attention does not have */
    CHECK_OK(stw_model_open(moonlight, STW_SOURCE_MODELS, &model, err));
    stw_model_free(model);
}

STW_TEST_MAIN("models keys", {"the zoo is understood", the_zoo_is_understood},
              {"keys that place parameters are errors", keys_that_place_parameters_are_errors},
              {"others are silent or one warning", others_are_silent_or_one_warning},
              {"a template has keys built in", a_template_has_keys_built_in})
