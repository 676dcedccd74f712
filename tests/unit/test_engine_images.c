/* SPDX-License-Identifier: Apache-2.0 */
/* Images of engines that run transformers' vision towers: what blocks save for patches, what a
 * frozen tower does not, and which tensors adapters beside all linear layers are for. */
#include <string.h>

#include "engines/block_work.h"
#include "engines/bytes.h"
#include "engines/vision.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

/* Roomy, so that all is kept. */
#define FSDP2 "engine=fsdp2", "node.gpus=8", "batch.seq_len=4096", "recompute.granularity=full"

static uint32_t group_named(const stw_plan *plan, const char *name) {
    uint32_t g = 0;
    while (g + 1 < plan->model->n_groups && strcmp(plan->model->groups[g].name, name) != 0) g++;
    return g;
}

static uint32_t block_of(const stw_plan *plan, uint32_t group) {
    uint32_t b = 0;
    while (b + 1 < plan->model->n_blocks && plan->model->blocks[b].group != group) b++;
    return b;
}

/* Pixels of a token: 28 x 28 of Qwen2.5-VL, 32 x 32 of Qwen3-VL; towers with fixed tiles have
 * none. */
static void tokens_of_pixels(void) {
    static const struct {
        const char *model;
        uint64_t pixels, merged;
    } cases[] = {{"Qwen2.5-VL-7B-Instruct", 784, 4},
                 {"Qwen3-VL-8B", 1024, 4},
                 {"InternVL3-8B", 0, 4},
                 {"Gemma-3-4b", 0, 0},
                 {"Qwen3-8B", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_model *model = NULL;
        CHECK_OK(stw_model_open(cases[i].model, STW_SOURCE_MODELS, &model, err));
        CU_ASSERT_EQUAL(stw_model_token_pixels(model), cases[i].pixels);
        CU_ASSERT_EQUAL(stw_model_merged_patches(model), cases[i].merged);
        stw_model_free(model);
    }
}

/* A block of Qwen2.5-VL: 1,280 wide, 16 heads of 80, a gated MLP of 3,420; patches are four times
 * the tokens. */
static void blocks_save_patches(void) {
    static const char *const settings[] = {FSDP2, "batch.image_tokens=1000", NULL};
    stw_plan *plan = case_zoo("Qwen2.5-VL-7B-Instruct", settings);
    const uint32_t g = group_named(plan, "vision_layer");
    const uint64_t patches = 4000, norms = 2 * (1280 * (4 + 2) + 4);
    const uint64_t row = 2 * (2 * 1280 + 3 * 1280 + 1280 + 4 * 3420) + 4 * 16 + norms;
    CU_ASSERT_EQUAL(stw_job_patches(plan->job), patches);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_KEEP), patches * row);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_RECOMPUTE), patches * 1280 * 2);
    CU_ASSERT_EQUAL(stw_forward_work_bytes(plan->job, g), 0);
    /* all patches of an image see each other; those of a window the window alone */
    const uint32_t full = block_of(plan, g),
                   window = block_of(plan, group_named(plan, "vision_window_layer"));
    CU_ASSERT_DOUBLE_EQUAL(stw_block_forward_flops(plan->job, full) -
                               stw_block_forward_flops(plan->job, window),
                           4.0 * 1280 * 4000 * (4000 - 64), 1e6);
    CU_ASSERT(stw_vision_saved_bytes(plan->job) > patches * 2 * 1176);
    stw_plan_free(plan);
}

/* LayerNorm saves its input in the dtype of computation, and there is no gate. Attention saves
 * queries and keys beside the product that they and values are made of, and tables in fp32. */
static void layer_norms_are_narrow(void) {
    static const char *const settings[] = {FSDP2, "batch.image_tokens=1000", NULL};
    stw_plan *plan = case_zoo("Qwen3-VL-8B", settings);
    const uint32_t g = group_named(plan, "vision_layer");
    const uint64_t attention = 2 * (3 + 2 + 1) * 1152 + 4 * 16 + 2 * 4 * 72;
    const uint64_t row = 2 * (2 * 1152 + 2 * 4304) + attention + 2 * (2 * 1152 + 8);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_KEEP), 4000 * row);
    stw_plan_free(plan);
}

/* Of a frozen tower nothing is saved and nothing goes backward; its forward needs room. Of one
 * whose merger alone is trained, the merger saves. */
static void frozen_towers_save_nothing(void) {
    static const char *const frozen[] = {FSDP2, "batch.image_tokens=1000",
                                         "trainable.freeze=[model.visual.*]", NULL};
    static const char *const merger[] = {FSDP2, "batch.image_tokens=1000",
                                         "trainable.freeze=[model.visual.blocks.*,"
                                         "model.visual.patch_embed.*]",
                                         NULL};
    stw_plan *plan = case_zoo("Qwen2.5-VL-7B-Instruct", frozen);
    const uint32_t g = group_named(plan, "vision_layer"), b = block_of(plan, g);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_KEEP), 0);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_RECOMPUTE), 0);
    CU_ASSERT(stw_forward_work_bytes(plan->job, g) > 4000 * 40000);
    CU_ASSERT(stw_block_forward_flops(plan->job, b) > 0);
    const stw_work_style style = stw_work_style_eager(plan->job);
    stw_work work;
    stw_block_forward_work(plan->job, b, &style, &work);
    CU_ASSERT_DOUBLE_EQUAL(stw_work_flops(work.items, work.n),
                           stw_block_forward_flops(plan->job, b), 1e6);
    stw_block_backward_work(plan->job, b, &style, &work);
    CU_ASSERT_EQUAL(work.n, 0);
    CU_ASSERT_FALSE(stw_block_saves(plan->job, b));
    CU_ASSERT_EQUAL(stw_vision_saved_bytes(plan->job), 0);
    stw_plan_free(plan);
    plan = case_zoo("Qwen2.5-VL-7B-Instruct", merger);
    CU_ASSERT_EQUAL(stw_activation_bytes(plan->job, g, STW_ACT_KEEP), 0);
    CU_ASSERT_EQUAL(stw_vision_saved_bytes(plan->job), 4000 * (1280 * 6 + 4 + 3 * 2 * 1280));
    stw_plan_free(plan);
}

/* Rows of plans with images hold the walk, and images cost memory and time. */
static void plans_with_images(void) {
    static const char *const engines[][6] = {{"engine=fsdp2"},
                                             {"engine=stowage"},
                                             {"engine=deepspeed", "precision.params=bf16",
                                              "precision.grads=bf16", "precision.reduce=bf16",
                                              "precision.master=fp32"}};
    for (size_t i = 0; i < 3; i++) {
        uint64_t peak[2] = {0};
        for (int images = 0; images < 2; images++) {
            const char *settings[12] = {
                "node.gpus=8", "batch.seq_len=4096", "recompute.granularity=none",
                images ? "batch.image_tokens=2048" : "batch.image_tokens=0"};
            for (size_t k = 0; k < 6 && engines[i][k] != NULL; k++) settings[4 + k] = engines[i][k];
            stw_plan *plan = case_zoo("Qwen2.5-VL-7B-Instruct", settings);
            const stw_planner_options options = {.simulate = stw_sim_seconds};
            CHECK_OK(stw_planner_solve(plan, &options, err));
            peak[images] = plan->peaks[plan->job->largest]
                               .phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU]
                               .total;
            stw_plan_free(plan);
        }
        CU_ASSERT(peak[1] > peak[0]);
    }
}

/* PEFT's word: products of the language model's blocks, not of the tower, the head or a router. */
static void all_linear_targets(void) {
    static const char *const vision[] = {FSDP2, "trainable.lora.rank=8",
                                         "trainable.lora.targets=all-linear", NULL};
    static const char *const experts[] = {FSDP2, "trainable.lora.rank=8",
                                          "trainable.lora.targets=[all-linear]", NULL};
    stw_plan *plan = case_zoo("Qwen2.5-VL-7B-Instruct", vision);
    uint32_t adapters = 0;
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++) {
        const char *name = plan->job->model->tensors[t].name;
        if (strstr(name, ".lora_") == NULL) continue;
        CU_ASSERT_PTR_NULL(strstr(name, "visual"));
        CU_ASSERT_PTR_NULL(strstr(name, "lm_head"));
        adapters++;
    }
    CU_ASSERT_EQUAL(adapters, 28 * 7 * 2);
    stw_plan_free(plan);
    plan = case_zoo("Qwen3-30B-A3B", experts);
    adapters = 0;
    for (uint32_t t = 0; t < plan->job->model->n_tensors; t++)
        adapters += strstr(plan->job->model->tensors[t].name, ".lora_") != NULL;
    CU_ASSERT_EQUAL(adapters, 48 * 4 * 2);
    stw_plan_free(plan);
}

STW_TEST_MAIN("engine images", {"tokens of pixels", tokens_of_pixels},
              {"blocks save patches", blocks_save_patches},
              {"layer norms are narrow", layer_norms_are_narrow},
              {"frozen towers save nothing", frozen_towers_save_nothing},
              {"plans with images", plans_with_images}, {"all-linear", all_linear_targets})
