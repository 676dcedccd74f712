/* SPDX-License-Identifier: Apache-2.0 */
/* Names of optimizers in every framework's file. AdamW's two moments are planned, and Megatron-LM's
 * Muon: each other name, and each option that keeps more or less, is refused where it stands. */
#include <stdlib.h>

#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/testing.h"

typedef struct file {
    const char *framework, *format; /* %s: the name */
} file;

static const file llamafactory = {"llamafactory",
                                  "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\n"
                                  "do_train: true\nfinetuning_type: full\ncutoff_len: 512\n"
                                  "per_device_train_batch_size: 1\nbf16: true\noptim: %s\n"};
static const file ms_swift = {
    "ms-swift", "swift sft --model Qwen/Qwen3-0.6B --train_type full --max_length 512 "
                "--per_device_train_batch_size 1 --torch_dtype bfloat16 "
                "--dataset x --optim %s\n"};
static const file ms_swift_own = {"ms-swift",
                                  "swift sft --model Qwen/Qwen3-0.6B --train_type full "
                                  "--max_length 512 --per_device_train_batch_size 1 "
                                  "--torch_dtype bfloat16 --dataset x --optimizer %s\n"};
static const file megatron = {
    "megatron", "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 256\n"
                "  --num-attention-heads: 4\n  --seq-length: 512\n"
                "  --max-position-embeddings: 512\n  --micro-batch-size: 1\n"
                "  --global-batch-size: 8\n  --bf16: true\n  --padded-vocab-size: 8000\n"
                "  --optimizer: %s\n"};
static const file verl = {"verl", "python3 -m verl.trainer.main_ppo "
                                  "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
                                  "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B "
                                  "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 "
                                  "actor_rollout_ref.actor.strategy=fsdp2 "
                                  "actor_rollout_ref.actor.optim.%s\n"};
static const file areal = {"areal", "total_train_epochs: 1\ntrain_dataset: {batch_size: 8, "
                                    "max_length: 4096}\nactor:\n  backend: 'fsdp:d8'\n"
                                    "  path: Qwen/Qwen3-8B\n  optimizer: {type: %s}\n"};
static const file deepspeed = {"deepspeed",
                               "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": "
                               "true}, \"zero_optimization\": {\"stage\": 2},\n"
                               "\"optimizer\": {%s}}\n"};

static stw_status parse(const file *f, const char *name, stw_import *out, stw_error *err) {
    char text[1024];
    int n = snprintf(text, sizeof text, f->format, name);
    CU_ASSERT_FATAL(n > 0 && (size_t)n < sizeof text);
    return stw_import_parse(f->framework, "file", text, (size_t)n, out, err);
}

/* @param word that the error has; a NULL name ends the list */
static void refuses(const file *f, const char *const *names, const char *word) {
    for (; *names != NULL; names++) {
        stw_import import;
        CHECK_FAILS(parse(f, *names, &import, err), STW_STATUS_NOT_BUILT_IN, word);
        CHECK_FAILS(parse(f, *names, &import, err), STW_STATUS_NOT_BUILT_IN, "file:");
        stw_import_free(&import);
    }
}

/* transformers 4.57, training_args.py, OptimizerNames */
static void names_of_transformers(void) {
    static const char *const others[] = {"adamw_torch_xla",
                                         "adamw_torch_npu_fused",
                                         "adamw_apex_fused",
                                         "adafactor",
                                         "adamw_anyprecision",
                                         "adamw_torch_4bit",
                                         "adamw_torch_8bit",
                                         "ademamix",
                                         "sgd",
                                         "adagrad",
                                         "adamw_bnb_8bit",
                                         "adamw_8bit",
                                         "ademamix_8bit",
                                         "lion_8bit",
                                         "lion_32bit",
                                         "paged_adamw_32bit",
                                         "paged_adamw_8bit",
                                         "paged_ademamix_32bit",
                                         "paged_ademamix_8bit",
                                         "paged_lion_32bit",
                                         "paged_lion_8bit",
                                         "rmsprop",
                                         "rmsprop_bnb",
                                         "rmsprop_bnb_8bit",
                                         "rmsprop_bnb_32bit",
                                         "galore_adamw",
                                         "galore_adamw_8bit",
                                         "galore_adafactor",
                                         "galore_adamw_layerwise",
                                         "lomo",
                                         "adalomo",
                                         "grokadamw",
                                         "schedule_free_radam",
                                         "schedule_free_adamw",
                                         "schedule_free_sgd",
                                         "apollo_adamw",
                                         "apollo_adamw_layerwise",
                                         "stable_adamw",
                                         "muon",
                                         NULL};
    stw_import import;
    refuses(&llamafactory, others, "use adamw_torch or adamw_torch_fused");
    refuses(&ms_swift, others, "use adamw_torch or adamw_torch_fused");
    CHECK_OK(parse(&ms_swift, "adamw_torch", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=foreach"));
    stw_import_free(&import);
    CHECK_OK(parse(&ms_swift, "adamw_torch_fused", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=fused"));
    stw_import_free(&import);
}

/* ms-swift 3.x, swift/plugin/optimizer.py, optimizers_map: by its own name beside --optim. */
static void names_of_swift(void) {
    static const char *const others[] = {"galore", "muon", "muonclip", "made_up", NULL};
    stw_import import;
    refuses(&ms_swift_own, others, "--optimizer");
    CHECK_OK(parse(&ms_swift_own, "multimodal", &import, err));
    stw_import_free(&import);
}

/* Megatron-LM, megatron/training/arguments.py, --optimizer: they were planned as adam. */
static void names_of_megatron(void) {
    static const char *const others[] = {"sgd", "lion", "adaptive_muon", "soap", NULL};
    stw_import import;
    refuses(&megatron, others, "--optimizer");
    CHECK_OK(parse(&megatron, "adam", &import, err));
    stw_import_free(&import);
    CHECK_OK(parse(&megatron, "muon", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.kind=muon"));
    stw_import_free(&import);
}

static void names_of_verl(void) {
    static const char *const others[] = {"optimizer=SGD",
                                         "optimizer=Adafactor",
                                         "optimizer=AdamW8bit",
                                         "optimizer_impl=torchao.optim",
                                         "optimizer_impl=bitsandbytes.optim",
                                         "override_optimizer_config.amsgrad=True",
                                         "override_optimizer_config={amsgrad:true}",
                                         NULL};
    stw_import import;
    refuses(&verl, others, "actor_rollout_ref.actor.optim.o");
    CHECK_OK(parse(&verl, "override_optimizer_config.amsgrad=False", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=foreach"));
    stw_import_free(&import);
    CHECK_OK(parse(&verl, "override_optimizer_config.fused=True", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=fused"));
    stw_import_free(&import);
}

static void names_of_areal(void) {
    static const char *const others[] = {"sgd", "adam_bf16", "muon", NULL};
    stw_import import;
    refuses(&areal, others, "actor.optimizer.type");
    CHECK_OK(parse(&areal, "adam", &import, err));
    stw_import_free(&import);
}

/* DeepSpeed 0.18, runtime/config.py, DEEPSPEED_OPTIMIZERS; runtime/engine.py,
 * _configure_basic_optimizer; ops/adam/cpu_adam.py */
static void names_of_deepspeed(void) {
    static const char *const others[] = {
        "\"type\": \"Lamb\"",        "\"type\": \"OneBitAdam\"", "\"type\": \"OneBitLamb\"",
        "\"type\": \"ZeroOneAdam\"", "\"type\": \"Lion\"",       "\"type\": \"MuAdam\"",
        "\"type\": \"MuAdamW\"",     "\"type\": \"MuSGD\"",      "\"type\": \"Muon\"",
        "\"type\": \"Adagrad\"",     "\"type\": \"SGD\"",        NULL};
    static const char *const more[] = {
        "\"type\": \"AdamW\", \"params\": {\"amsgrad\": true}",
        "\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"amsgrad\": true}",
        "\"type\": \"AdamW\", \"params\": {\"fp32_optimizer_states\": false}", NULL};
    static const char *const planned[][2] = {
        {"\"type\": \"AdamW\", \"params\": {\"amsgrad\": false, \"fp32_optimizer_states\": true}",
         NULL},
        {"\"type\": \"Adam\", \"params\": {\"torch_adam\": true}",
         "optimizer.implementation=foreach"},
        {"\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"fused\": true}",
         "optimizer.implementation=fused"}};
    stw_import import;
    refuses(&deepspeed, others, "optimizer.type");
    refuses(&deepspeed, more, "optimizer.params.");
    for (size_t i = 0; i < sizeof planned / sizeof planned[0]; i++) {
        CHECK_OK(parse(&deepspeed, planned[i][0], &import, err));
        if (planned[i][1] != NULL) CU_ASSERT_TRUE(has_setting(&import, planned[i][1]));
        CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
        stw_import_free(&import);
    }
}

STW_TEST_MAIN("planner optimizers", {"names of transformers", names_of_transformers},
              {"names of swift", names_of_swift}, {"names of Megatron-LM", names_of_megatron},
              {"names of verl", names_of_verl}, {"names of AReaL", names_of_areal},
              {"names of DeepSpeed", names_of_deepspeed})
