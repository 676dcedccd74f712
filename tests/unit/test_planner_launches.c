/* SPDX-License-Identifier: Apache-2.0 */
/* Imports of launches as people have them: LoRA without a sharding engine, DeepSpeed configs by
 * name, nodes, Ray's line, images, the streamed step. */
#include <stdlib.h>

#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

static stw_status parse(const char *framework, const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse(framework, "file", text, strlen(text), out, err);
}

static bool sets(const stw_import *import, const char *beginning) {
    for (size_t i = 0; i < import->n_settings; i++)
        if (strncmp(import->settings[i], beginning, strlen(beginning)) == 0) return true;
    return false;
}

/* The run of an import on GPUs of so many nodes. */
static stw_status run_of(const stw_import *import, uint32_t nodes, uint32_t gpus, stw_run_spec *run,
                         stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = fixture_cluster(gpus);
    cluster.nodes = nodes;
    STW_TRY(stw_run_spec_init(run, err));
    STW_TRY(stw_import_run(import, run, err));
    status = stw_import_batch(import, &cluster, run, err);
out:
    return status;
}

#define LORA                                                                                       \
    "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nstage: sft\ncutoff_len: 1024\n"              \
    "per_device_train_batch_size: 1\nlora_target: all\n"

/* Weights in 16 bits, adapters with gradients and moments in fp32; as many copies as GPUs. */
static void lora_without_shards(void) {
    stw_import import;
    stw_run_spec run;
    stw_model *model = NULL;
    CHECK_OK(parse("llamafactory", LORA "bf16: true\n", &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    static const char *const expected[] = {"engine=fsdp2",
                                           "precision.params=bf16",
                                           "precision.grads=fp32",
                                           "precision.exp_avg=fp32",
                                           "precision.compute=bf16",
                                           "parallel.dp_shard=1",
                                           "load.method=all_ranks",
                                           "recompute.granularity=full",
                                           "trainable.lora.rank=8",
                                           "batch.image_tokens=752",
                                           "optimizer.implementation=foreach",
                                           "trainable.lora.targets=[all-linear]"};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        CU_ASSERT_TRUE(has_setting(&import, expected[i]));
    CU_ASSERT_EQUAL(use_of(&import, "images of a sequence"), STW_IMPORT_ASSUMED);
    CU_ASSERT_EQUAL(use_of(&import, "dtype of adapters"), STW_IMPORT_ASSUMED);
    for (uint32_t gpus = 1; gpus <= 4; gpus += 3) {
        CHECK_OK(run_of(&import, 2, gpus, &run, err));
        CU_ASSERT_EQUAL(run.parallel.dp_shard, 1);
        CU_ASSERT_EQUAL(run.parallel.dp_replicate, 2 * gpus);
        stw_run_spec_free(&run);
    }
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("llamafactory", LORA "pure_bf16: true\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "precision.grads=bf16"));
    stw_import_free(&import);
}

/* All parameters: in fp32 under autocast, the tower frozen, on one GPU alone. */
static void full_without_shards(void) {
    stw_import import;
    stw_run_spec run;
    stw_model *model = NULL;
    CHECK_OK(parse("llamafactory",
                   LORA "bf16: true\nfinetuning_type: full\nimage_max_pixels: 78400\n", &import,
                   err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=fp32"));
    CU_ASSERT_TRUE(has_setting(&import, "fsdp.reshard_after_forward=false"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.image_tokens=100"));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.freeze=[model.visual.patch_embed.proj.weight*,"
                                        "model.visual.blocks.*,model.visual.merger.*]"));
    CHECK_OK(run_of(&import, 1, 1, &run, err));
    stw_run_spec_free(&run);
    CHECK_FAILS(run_of(&import, 1, 2, &run, err), STW_STATUS_NOT_BUILT_IN, "ZeRO-2");
    stw_run_spec_free(&run);
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("llamafactory",
                   LORA "bf16: true\nfinetuning_type: full\nfreeze_vision_tower: false\n"
                        "freeze_multi_modal_projector: false\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_FALSE(sets(&import, "trainable.freeze"));
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("llamafactory", LORA "bf16: true\nfreeze_vision_tower: false\n", &import, err));
    CHECK_FAILS(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err),
                STW_STATUS_NOT_BUILT_IN, "adapters in the vision tower");
    stw_import_free(&import);
}

/* The names that LLaMA-Factory's configs have had. */
static void configs_by_name(void) {
    static const struct {
        const char *name, *stage, *device;
    } cases[] = {{"examples/deepspeed/ds_z2_config.json", "2", NULL},
                 {"ds_z3_offload_config.json", "3", "cpu"},
                 {"ds_z3_offload.json", "3", "cpu"},
                 {"../ds_z2_offload.json", "2", "cpu"}};
    stw_import import;
    char text[512], setting[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, LORA "bf16: true\ndeepspeed: %s\n", cases[i].name);
        CHECK_OK(parse("llamafactory", text, &import, err));
        snprintf(setting, sizeof setting, "deepspeed.zero_stage=%s", cases[i].stage);
        CU_ASSERT_TRUE(has_setting(&import, setting));
        CU_ASSERT_EQUAL(sets(&import, "deepspeed.offload_optimizer=cpu"), cases[i].device != NULL);
        CU_ASSERT_EQUAL(use_of(&import, "contents of deepspeed"), STW_IMPORT_ASSUMED);
        stw_import_free(&import);
    }
}

#define VERL                                                                                       \
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "                               \
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.strategy=fsdp2 "         \
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.name=vllm "

/* What a launch says of nodes, and which of them share a copy of the state on other GPUs. */
static void nodes_of_launches(void) {
    stw_import import;
    stw_run_spec run;
    CHECK_OK(parse("verl",
                   VERL "trainer.nnodes=16 actor_rollout_ref.actor.fsdp_config.fsdp_size=64\n",
                   &import, err));
    CU_ASSERT_EQUAL(import.nodes, 16);
    CU_ASSERT_STRING_EQUAL(import.nodes_name, "trainer.nnodes 16");
    CU_ASSERT_EQUAL(stw_import_nodes(&import, 8), 16);
    CU_ASSERT_EQUAL(stw_import_nodes(&import, 4), 32);
    CU_ASSERT_EQUAL(stw_import_nodes(&import, 7), 0);
    CHECK_OK(run_of(&import, 16, 8, &run, err));
    CU_ASSERT_EQUAL(run.parallel.dp_shard, 64);
    CU_ASSERT_EQUAL(run.parallel.dp_replicate, 2);
    stw_run_spec_free(&run);
    CHECK_OK(run_of(&import, 2, 8, &run, err));
    CU_ASSERT_EQUAL(run.parallel.dp_shard, STW_AUTO);
    CU_ASSERT_EQUAL(run.parallel.dp_replicate, 1);
    stw_run_spec_free(&run);
    stw_import_free(&import);
    CHECK_OK(
        parse("ms-swift",
              "NNODES=4 NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --deepspeed zero3\n",
              &import, err));
    CU_ASSERT_EQUAL(stw_import_nodes(&import, 8), 4);
    CU_ASSERT_STRING_EQUAL(import.nodes_name, "NNODES 4");
    stw_import_free(&import);
}

/* Ray's share, unless the cluster has its own; the trainer of SFT has no Ray. */
static void line_of_ray(void) {
    static const struct {
        const char *framework, *text;
        double share;
    } cases[] = {
        {"verl", VERL "\n", 0.95},
        {"verl", "RAY_memory_usage_threshold=0.8 " VERL "\n", 0.8},
        {"verl", "export RAY_memory_usage_threshold=0.99\n" VERL "\n", 0.99},
        {"verl", "export RAY_memory_usage_threshold=$T\n" VERL "\n", 0.95},
        {"verl", "export RAY_memory_monitor_refresh_ms=0\n" VERL "\n", 1},
        {"verl",
         "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer "
         "model.path=Qwen/Qwen2.5-7B data.micro_batch_size_per_gpu=1\n",
         1},
        {"areal", "actor: {backend: 'fsdp:d8', path: x}\nscheduler: {type: ray}\n", 0.95},
        {"areal", "actor: {backend: 'fsdp:d8', path: x}\nscheduler: {type: local}\n", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        stw_cluster cluster = fixture_cluster(8), own = cluster;
        own.host.kill_share = 0.7;
        CHECK_OK(parse(cases[i].framework, cases[i].text, &import, err));
        CHECK_OK(stw_import_cluster(&import, &cluster, err));
        CHECK_OK(stw_import_cluster(&import, &own, err));
        CU_ASSERT_DOUBLE_EQUAL(cluster.host.kill_share, cases[i].share, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(own.host.kill_share, 0.7, 1e-9);
        stw_import_free(&import);
    }
}

#define STREAMED(more)                                                                             \
    "actor: {backend: 'fsdp:d8', path: x, fsdp: {per_layer_optim_step: true" more "}}\n"

/* AReaL's step by layers; the key that the pull request's text names, too. */
static void streamed_steps(void) {
    static const struct {
        const char *text, *depth;
    } cases[] = {{STREAMED(""), "prefetch.depth=1"},
                 {STREAMED(", optim_step_prefetch_layers: 3"), "prefetch.depth=3"},
                 {STREAMED(", optimizer_step_prefetch_layers: 2"), "prefetch.depth=2"}};
    stw_import import;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(parse("areal", cases[i].text, &import, err));
        CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=streamed"));
        CU_ASSERT_TRUE(has_setting(&import, "placement.moments=host"));
        CU_ASSERT_TRUE(has_setting(&import, cases[i].depth));
        CU_ASSERT_EQUAL(use_of(&import, "actor.fsdp.per_layer_optim_step"), STW_IMPORT_TAKEN);
        stw_import_free(&import);
    }
    CHECK_FAILS(parse("areal", STREAMED(", offload_params: true"), &import, err),
                STW_STATUS_NOT_BUILT_IN, "offload_params: false");
    stw_import_free(&import);
    CHECK_FAILS(parse("areal", STREAMED(", optim_step_prefetch_layers: 0"), &import, err),
                STW_STATUS_NOT_BUILT_IN, "use 1 or more");
    stw_import_free(&import);
}

/* Flags of parts that a model has or lacks. */
static void parts_of_models(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("verl",
                   "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
                   "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct "
                   "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
                   "actor_rollout_ref.actor.freeze_vision_tower=True\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.freeze=[model.visual.patch_embed.proj.weight*,"
                                        "model.visual.blocks.*,model.visual.merger.*]"));
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("ms-swift",
                   "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --max_length 1024 "
                   "--moe_shared_expert_overlap true\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.shared_expert_overlap=false"));
    stw_model_free(model);
    stw_import_free(&import);
}

/* A map without a space after its colon is one key to YAML: left out, it would change the run. */
static void maps_without_spaces(void) {
    stw_import import;
    CHECK_FAILS(parse("areal", "actor: {backend: 'fsdp:d8', path: x}\ncluster: {n_nodes:2}\n",
                      &import, err),
                STW_STATUS_BAD_INPUT, "write a space after the colon: {n_nodes: 2}");
    stw_import_free(&import);
}

/* A file without a word of images is planned as text; rank 0 sends no model with a tower. */
static void images_are_text(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("areal",
                   "actor: {backend: 'fsdp:d8', path: Qwen/Qwen2.5-VL-32B-Instruct, "
                   "fsdp: {memory_efficient_load: true}}\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, err));
    CU_ASSERT_FALSE(sets(&import, "batch.image_tokens"));
    CU_ASSERT_STRING_EQUAL(import.settings[import.n_settings - 1], "fsdp.wrap_embeddings=true");
    CU_ASSERT_TRUE(has_setting(&import, "load.method=all_ranks"));
    CU_ASSERT_EQUAL(use_of(&import, "images of a sequence"), STW_IMPORT_ASSUMED);
    stw_model_free(model);
    stw_import_free(&import);
}

STW_TEST_MAIN("planner launches", {"LoRA without shards", lora_without_shards},
              {"full without shards", full_without_shards}, {"configs by name", configs_by_name},
              {"nodes of launches", nodes_of_launches}, {"line of Ray", line_of_ray},
              {"streamed steps", streamed_steps}, {"parts of models", parts_of_models},
              {"maps without spaces", maps_without_spaces}, {"images are text", images_are_text})
