/* SPDX-License-Identifier: Apache-2.0 */
/* Which weight a tensor is: by names, for every model of the zoo, and as a template's row says. */
#include <stdlib.h>

#include "models/model.h"
#include "models/template.h"
#include "models/weight.h"
#include "models/zoo.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static void names_say(void) {
    static const struct {
        const char *name;
        stw_weight_use use;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj.weight",
         {STW_WEIGHT_Q, STW_MODULE_ATTENTION, STW_ADAPTER_NONE, false}},
        {"model.layers.0.self_attn.q_proj.bias",
         {STW_WEIGHT_Q, STW_MODULE_ATTENTION, STW_ADAPTER_NONE, true}},
        {"model.layers.0.self_attn.q_proj.lora_A.weight",
         {STW_WEIGHT_Q, STW_MODULE_ATTENTION, STW_ADAPTER_A, false}},
        {"model.layers.0.mlp.experts.gate_up_proj.lora_B.weight",
         {STW_WEIGHT_GATE_UP, STW_MODULE_EXPERTS, STW_ADAPTER_B, false}},
        {"model.layers.0.mlp.experts.gate_up_proj_bias",
         {STW_WEIGHT_GATE_UP, STW_MODULE_EXPERTS, STW_ADAPTER_NONE, true}},
        {"model.layers.0.block_sparse_moe.experts.7.w2.weight",
         {STW_WEIGHT_DOWN, STW_MODULE_EXPERTS, STW_ADAPTER_NONE, false}},
        {"model.layers.0.mlp.shared_expert.down_proj.weight",
         {STW_WEIGHT_DOWN, STW_MODULE_SHARED_EXPERTS, STW_ADAPTER_NONE, false}},
        {"model.layers.0.mlp.shared_expert_gate.weight",
         {STW_WEIGHT_SHARED_GATE, STW_MODULE_MLP, STW_ADAPTER_NONE, false}},
        {"model.layers.0.mlp.gate.weight",
         {STW_WEIGHT_ROUTER, STW_MODULE_MLP, STW_ADAPTER_NONE, false}},
        {"model.layers.0.mlp.gate_proj.weight",
         {STW_WEIGHT_GATE, STW_MODULE_MLP, STW_ADAPTER_NONE, false}},
        {"model.layers.0.linear_attn.in_proj_ba.weight",
         {STW_WEIGHT_LINEAR_IN, STW_MODULE_LINEAR_ATTENTION, STW_ADAPTER_NONE, false}},
        {"model.layers.0.linear_attn.dt_bias",
         {STW_WEIGHT_LINEAR_STATE, STW_MODULE_LINEAR_ATTENTION, STW_ADAPTER_NONE, false}},
        {"model.layers.0.linear_attn.norm.weight",
         {STW_WEIGHT_NORM, STW_MODULE_LINEAR_ATTENTION, STW_ADAPTER_NONE, false}},
        {"model.layers.0.post_attention_layernorm.weight",
         {STW_WEIGHT_NORM, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {"transformer.h.0.attn.c_proj.weight",
         {STW_WEIGHT_O, STW_MODULE_ATTENTION, STW_ADAPTER_NONE, false}},
        {"transformer.h.0.mlp.c_proj.weight",
         {STW_WEIGHT_DOWN, STW_MODULE_MLP, STW_ADAPTER_NONE, false}},
        {"model.visual.patch_embed.proj.weight",
         {STW_WEIGHT_PATCH, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {"decoder.layers.0.mlp.shared_experts.gate_weight",
         {STW_WEIGHT_SHARED_GATE, STW_MODULE_SHARED_EXPERTS, STW_ADAPTER_NONE, false}},
        {"lm_head.weight", {STW_WEIGHT_HEAD, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {"bias", {STW_WEIGHT_OTHER, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {"", {STW_WEIGHT_OTHER, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {".weight", {STW_WEIGHT_OTHER, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
        {"something.else.weight", {STW_WEIGHT_OTHER, STW_MODULE_NONE, STW_ADAPTER_NONE, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const stw_weight_use found = stw_weight_of_name(cases[i].name), *expected = &cases[i].use;
        const bool same = found.weight == expected->weight && found.module == expected->module &&
                          found.adapter == expected->adapter && found.bias == expected->bias;
        if (!same)
            fprintf(stderr, "%s: found %s, module %d, adapter %d, bias %d\n", cases[i].name,
                    stw_weight_name(found.weight), (int)found.module, (int)found.adapter,
                    (int)found.bias);
        CU_ASSERT_TRUE(same);
    }
}

static void words_are_read_back(void) {
    stw_weight weight;
    for (int w = 0; w < STW_N_WEIGHTS; w++) {
        CU_ASSERT_PTR_NOT_NULL(stw_weight_name((stw_weight)w));
        CU_ASSERT_TRUE(stw_weight_parse(stw_weight_name((stw_weight)w), &weight));
        CU_ASSERT_EQUAL(weight, w);
    }
    CU_ASSERT_FALSE(stw_weight_parse("query", &weight));
}

/* Of transformer blocks of language models, every tensor; what an indexer of sparse attention has
 * is told apart by nothing. */
static void whole_zoo(void) {
    stw_pool *pool = stw_pool_new();
    const char *const *names = NULL;
    size_t n = 0, seen = 0;
    CHECK_OK(stw_zoo_list(STW_SOURCE_MODELS, pool, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        stw_model *model = NULL;
        CHECK_OK(stw_model_open(names[i], STW_SOURCE_MODELS, &model, err));
        for (uint32_t t = 0; model != NULL && t < model->n_tensors; t++) {
            const stw_tensor *tensor = &model->tensors[t];
            const stw_block_facts *facts = &model->groups[model->blocks[tensor->block].group].facts;
            if (!facts->transformer || facts->vision || strstr(tensor->name, ".indexer.") != NULL)
                continue;
            seen++;
            if (tensor->use.weight == STW_WEIGHT_OTHER)
                fprintf(stderr, "%s: %s is of no use\n", names[i], tensor->name);
            CU_ASSERT_NOT_EQUAL(tensor->use.weight, STW_WEIGHT_OTHER);
            CU_ASSERT_EQUAL(tensor->expert, tensor->use.module == STW_MODULE_EXPERTS);
        }
        stw_model_free(model);
    }
    CU_ASSERT_TRUE(n > 60 && seen > 20000);
    stw_pool_free(pool);
}

STW_TEST_MAIN("which weight a tensor is", {"names say it", names_say},
              {"words are read back", words_are_read_back}, {"every tensor of the zoo", whole_zoo})
