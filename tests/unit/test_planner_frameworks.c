/* SPDX-License-Identifier: Apache-2.0 */
/* Import of AReaL's and LLaMA-Factory's YAML files. */
#include <stdlib.h>

#include "planner/frameworks/import/allocation.h"
#include "planner/frameworks/import/import.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif
#define MODELS STW_SOURCE_DIR "/models"

static bool sets(const stw_import *import, const char *beginning) {
    for (size_t i = 0; i < import->n_settings; i++)
        if (strncmp(import->settings[i], beginning, strlen(beginning)) == 0) return true;
    return false;
}

static stw_status parse(const char *framework, const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse(framework, "file", text, strlen(text), out, err);
}

/* ---- LLaMA-Factory ---- */

#define SFT                                                                                        \
    "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\ndo_train: true\n"                   \
    "dataset: a,b\ncutoff_len: 4096\nbf16: true\n"

static void full_of_llamafactory(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("llamafactory",
                   SFT "finetuning_type: full\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
                       "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\n"
                       "flash_attn: fa2\nenable_liger_kernel: true\nmade_up: 1\n"
                       "resume_from_checkpoint: null\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=deepspeed"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.zero_stage=3"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=1"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=2"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_TRUE(has_setting(&import, "attention=flash"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.reduce_bucket=12845056")); /* 3584 squared */
    CU_ASSERT_TRUE(has_setting(&import, "loss.fused=true"));
    CU_ASSERT_FALSE(sets(&import, "trainable.lora"));
    CU_ASSERT_EQUAL(use_of(&import, "made_up"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, "dataset"), STW_IMPORT_NO_EFFECT);
    stw_model_free(model);
    stw_import_free(&import);
}

/* Defaults: LoRA of rank 8 beside all linear layers, 8 sequences, 2,048 tokens. */
static void defaults_of_llamafactory(void) {
    stw_import import;
    CHECK_OK(parse("llamafactory",
                   "model_name_or_path: Qwen/Qwen2.5-7B\nbf16: true\n"
                   "deepspeed: ds_z2_offload_config.json\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.lora.rank=8"));
    CU_ASSERT_TRUE(import.derived.all_linear);
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=8"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=2048"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.offload_optimizer=cpu"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.reduce_bucket=500000000"));
    CU_ASSERT_TRUE(has_setting(&import, "attention=sdpa"));
    stw_import_free(&import);
    CHECK_OK(parse("llamafactory",
                   SFT "deepspeed: ds_z3_config.json\nlora_target: q_proj, v_proj\n", &import,
                   err));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.lora.targets=[q_proj,v_proj]"));
    stw_import_free(&import);
}

static void refused_by_llamafactory(void) {
    static const struct {
        const char *text, *word;
    } cases[] = {
        {SFT "deepspeed: mine.json\n", "no such file beside this one"},
        {SFT "deepspeed: ds_z3_config.json\nquantization_bit: 4\n", "16 bits"},
        {SFT "deepspeed: ds_z3_config.json\nfinetuning_type: freeze\n", "full or lora"},
        {SFT "deepspeed: ds_z3_config.json\noptim: paged_adamw_8bit\n", "adamw_torch"},
        {SFT "deepspeed: ds_z3_config.json\nfp8: true\n", "use bf16"},
        {"deepspeed: ds_z3_config.json\nmodel_name_or_path: x\n", "fp32"},
        {"stage: dpo\ndeepspeed: ds_z3_config.json\nbf16: true\n", "sft and pt"},
    };
    stw_import import;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_FAILS(parse("llamafactory", cases[i].text, &import, err), STW_STATUS_NOT_BUILT_IN,
                    cases[i].word);
        stw_import_free(&import);
    }
}

/* ---- allocations ---- */

static void allocations_of_areal(void) {
    stw_allocation found[4];
    stw_pool *pool = stw_pool_new();
    CU_ASSERT_EQUAL(stw_allocation_read("sglang:d4t2+fsdp:d8", pool, found, 4), 2);
    CU_ASSERT_STRING_EQUAL(found[0].backend, "sglang");
    CU_ASSERT_EQUAL(stw_allocation_gpus(&found[0]), 8);
    CU_ASSERT_EQUAL(found[1].d, 8);
    CU_ASSERT_EQUAL(
        stw_allocation_read("megatron:(attn:d1p12t4c2 | ffn:d1p12t2e4)", pool, found, 4), 1);
    CU_ASSERT_EQUAL(stw_allocation_gpus(&found[0]), 96);
    CU_ASSERT_TRUE(found[0].e == 4 && found[0].etp == 2 && found[0].t == 4);
    CU_ASSERT_EQUAL(stw_allocation_read("sglang[r]:d4|fsdp[actor]:d4", pool, found, 4), 2);
    CU_ASSERT_TRUE(found[1].shared && strcmp(found[1].name, "actor") == 0);
    CU_ASSERT_EQUAL(stw_allocation_read("sglang.d4p1t1+d4p1t1", pool, found, 4), 2);
    CU_ASSERT_STRING_EQUAL(found[1].backend, "");
    static const char *const wrong[] = {
        "",       "fsdp",     "fsdp:",          "fsdp:d0",     "fsdp:x2",
        "fsdp:d", "fsdp:d4+", "fsdp:d99999999", "sglang[r:d4", "a:d4"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CU_ASSERT_EQUAL(stw_allocation_read(wrong[i], pool, found, 4), 0);
    stw_pool_free(pool);
}

/* ---- AReaL ---- */

#define GRPO                                                                                       \
    "cluster: {n_nodes: 3, n_gpus_per_node: 8, fileroot: /x}\n"                                    \
    "gconfig: {n_samples: 4, max_new_tokens: 3072, temperature: 1.0}\n"                            \
    "train_dataset: {batch_size: 64, max_length: 1024, path: x}\n"                                 \
    "sglang: {mem_fraction_static: 0.8, context_length: 16384, dtype: '${actor.dtype}'}\n"         \
    "vllm: {max_num_seqs: 64, kv_cache_dtype: fp8}\n"
#define ACTOR                                                                                      \
    "actor:\n  path: Qwen/Qwen2.5-7B-Instruct\n  dtype: bfloat16\n"                                \
    "  gradient_checkpointing: true\n  mb_spec: {max_tokens_per_mb: 8192}\n"                       \
    "  optimizer: {type: adam, lr: 1e-5, gradient_clipping: 0.5}\n  ppo_n_minibatches: 2\n"        \
    "  recompute_logprob: true\n"
#define REF "ref:\n  path: '${actor.path}'\n  dtype: '${actor.dtype}'\n  optimizer: null\n"

static void actors_of_areal(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("areal",
                   GRPO "allocation_mode: sglang:d4t2+fsdp:d8\n" ACTOR "  made_up: 1\n" REF
                        "  mb_spec: {max_tokens_per_mb: 4096}\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
    CU_ASSERT_EQUAL(import.gpus, 16);
    CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=fp32")); /* optimizer_dtype */
    CU_ASSERT_TRUE(has_setting(&import, "precision.compute=bf16"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.max_tokens_per_gpu=8192"));
    /* 64 x 4 sequences in 2 parts on 8 GPUs: 16 of 4096 tokens, 8192 tokens at a time */
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=8"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_micro_batch=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_method=chunked"));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.clip_norm=0.5"));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=fused"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_TRUE(has_setting(&import, "fsdp.wrap_embeddings=true")); /* 7B: not tied */
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.engine=sglang"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.with=none"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.nodes=1"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.parallel.tp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.gpu_memory_utilization=0.8"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.max_model_len=16384"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.kind=reference")); /* kl_ctl is 0.1 */
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.dtype=fp32"));
    CU_ASSERT_EQUAL(use_of(&import, "sglang.dtype"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "vllm.kv_cache_dtype"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "ref.mb_spec.max_tokens_per_mb"), STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "actor.made_up"), STW_IMPORT_UNKNOWN);
    stw_model_free(model);
    stw_import_free(&import);
}

/* A rollout on a part of a node is left out; without a penalty there is no reference model. */
static void parts_of_areal(void) {
    stw_import import;
    CHECK_OK(parse("areal", GRPO "allocation_mode: vllm:d4+d4p1t1\n" ACTOR "  kl_ctl: 0.0\n" REF,
                   &import, err));
    CU_ASSERT_EQUAL(import.gpus, 4);
    CU_ASSERT_FALSE(sets(&import, "roles."));
    CU_ASSERT_EQUAL(use_of(&import, "rollout"), STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "vllm.kv_cache_dtype"), STW_IMPORT_NOT_MODELLED);
    stw_import_free(&import);
    /* supervised: nothing is generated, and the whole batch is one step */
    CHECK_OK(parse("areal",
                   "train_dataset: {batch_size: 128, max_length: 2048}\nactor:\n"
                   "  backend: fsdp:d8c2\n  path: Qwen3-8B\n  mb_spec: {max_tokens_per_mb: 4096}\n"
                   "  optimizer_dtype: bfloat16\n  fsdp: {memory_efficient_load: true}\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.cp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.max_tokens_per_gpu=2048"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=8")); /* 16 x 2048 / 4096 */
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=bf16"));
    CU_ASSERT_TRUE(has_setting(&import, "load.method=rank0_broadcast"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=none"));
    CU_ASSERT_FALSE(sets(&import, "batch.log_prob_micro_batch"));
    CU_ASSERT_EQUAL(import.gpus, 16);
    stw_import_free(&import);
}

static void megatron_of_areal(void) {
    stw_import import;
    CHECK_OK(parse("areal",
                   GRPO ACTOR "  backend: 'megatron:(attn:d2p2t4|ffn:d1p2e8)'\n"
                              "  megatron: {virtual_pipeline_parallel_size: 2,\n"
                              "    ddp: {overlap_grad_reduce: true, bucket_size: 100,\n"
                              "      grad_reduce_in_fp32: false}}\n"
                              "  fsdp: {offload_params: true}\n"
                              "rollout: {backend: 'sglang:d2t4', max_concurrent_rollouts: 8}\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.tp=4"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.pp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.vpp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.ep=8"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.etp=1"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.sequence_parallel=true"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.method=uniform"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.overlap_grad_reduce=true"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.grads=bf16"));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.clip_norm=0.5"));
    CU_ASSERT_EQUAL(import.gpus, 24);
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    CU_ASSERT_EQUAL(use_of(&import, "actor.fsdp.offload_params"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "actor.megatron.ddp.bucket_size"), STW_IMPORT_NOT_MODELLED);
    stw_import_free(&import);
}

/* Ranks of tp and cp share sequences in equal parts. */
static void eight_bits_of_areal(void) {
    stw_import import;
    CHECK_OK(parse("areal",
                   GRPO ACTOR "  backend: megatron:d8\n  megatron:\n"
                              "    fp8_config: {mode: hybrid, recipe: blockwise, param: true}\n"
                              "    ddp: {fp8_param_gather: true}\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8=hybrid"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_recipe=blockwise"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_param_gather=true"));
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_NOT_MODELLED), 0);
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    stw_import_free(&import);
    CHECK_FAILS(parse("areal",
                      GRPO ACTOR "  backend: megatron:d8\n  megatron:\n"
                                 "    fp8_config: {param: true}\n",
                      &import, err),
                STW_STATUS_NOT_BUILT_IN, "ddp.fp8_param_gather alike");
    stw_import_free(&import);
}

static void padding_of_areal(void) {
    stw_import import;
    CHECK_OK(parse("areal",
                   "train_dataset: {batch_size: 8, max_length: 4095}\nactor:\n"
                   "  backend: 'megatron:d1t2c4'\n  path: Qwen3-8B\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    stw_import_free(&import);
}

static void refused_by_areal(void) {
    static const struct {
        const char *text, *word;
    } cases[] = {
        {GRPO ACTOR, "without a trainer"},
        {GRPO ACTOR "  backend: archon:d8\n", "fsdp or megatron"},
        {GRPO ACTOR "  backend: fsdp:q8\n", "sglang:d4t2+fsdp:d8"},
        {GRPO "allocation_mode: 'sglang[r]:d8|fsdp[a]:d8'\n" ACTOR, "park.*"},
        {GRPO ACTOR "  backend: fsdp:d8\n  peft_type: x\n", "use lora"},
        {GRPO "allocation_mode: sglang:d16+fsdp:d16\n" ACTOR, "park.*"}, /* 24 GPUs */
        {GRPO ACTOR "  backend: fsdp:d8\ncpu_staged: {enabled: true}\n", "park.*"},
        {GRPO ACTOR "  backend: megatron:d8\n  use_lora: true\n", "not planned; use fsdp"},
        {GRPO "actor: {backend: 'fsdp:d8', optimizer: {type: adam_bf16}}\n", "use adam"},
        {GRPO ACTOR "  backend: megatron:d8\n  use_merged_lora: true\n", "use use_lora"},
        {GRPO "model: {path: Qwen/Qwen3-8B, backend: fsdp}\n", "name it actor"},
        {GRPO ACTOR "  backend: fsdp:d8\ncritic: {path: Qwen/Qwen2.5-0.5B}\n", "critic apart"},
        {GRPO ACTOR "  backend: fsdp:d8\nref: {path: Qwen/Qwen2.5-0.5B}\n", "reference apart"},
    };
    stw_import import;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_FAILS(parse("areal", cases[i].text, &import, err), STW_STATUS_NOT_BUILT_IN,
                    cases[i].word);
        stw_import_free(&import);
    }
    CHECK_FAILS(parse("areal", GRPO ACTOR "  backend: fsdp:d4p2\n", &import, err),
                STW_STATUS_BAD_INPUT, "d, t and c");
    stw_import_free(&import);
    CHECK_FAILS(parse("areal", GRPO ACTOR "  backend: fsdp:d8\n  use_decoupled_loss: maybe\n",
                      &import, err),
                STW_STATUS_BAD_INPUT,
                "actor.use_decoupled_loss: found \"maybe\", expected true or false");
    stw_import_free(&import);
}

/* A pair is two sequences; keys of the examples' own programs are told apart from unknown ones. */
static void pairs_of_areal(void) {
    const char *text = "cluster: {n_nodes: 1, n_gpus_per_node: 8}\nbeta: 0.1\nloss_type: sigmoid\n"
                       "actor: {backend: 'fsdp:d8', path: Qwen/Qwen2.5-7B, is_critic: false,\n"
                       "  mb_spec: {n_mbs: 4}, tree_training_mode: disabled}\n"
                       "train_dataset: {batch_size: 64, type: dpo, max_length: 2048}\n";
    stw_import import;
    CHECK_OK(parse("areal", text, &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=4")); /* 128 by 8 ranks and 4 parts */
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_UNKNOWN), 0);
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_NOT_MODELLED), 0);
    stw_import_free(&import);
}

/* Stages by parameters, against AReaL's own function (pipeline_parallel.py at 1.0.4). */
static void stages_of_areal(void) {
    static const struct {
        const char *model, *backend, *layout; /* NULL: equal stages */
    } cases[] = {
        {"Qwen3-8B", "megatron:d1p4t2", "megatron.pipeline_layout=Et*7|t*11|t*11|t*7L"},
        {"Qwen3-32B", "megatron:d1p8t1",
         "megatron.pipeline_layout=Et*7|t*8|t*8|t*8|t*8|t*9|t*9|t*7L"},
        {"Qwen3-30B-A3B", "'megatron:(attn:d4p4t1|ffn:d1p4e4)'",
         "megatron.pipeline_layout=Et*11|t*13|t*13|t*11L"},
        {"Qwen3-30B-A3B", "'megatron:(attn:d1p4t2|ffn:d1p4e2)'", NULL},
        {"Qwen3-1.7B", "megatron:d4p2t1", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        stw_import import;
        stw_model *model = NULL;
        snprintf(text, sizeof text,
                 "cluster: {n_nodes: 2, n_gpus_per_node: 8}\nactor: {path: Qwen/%s, backend: %s}\n"
                 "train_dataset: {batch_size: 64, max_length: 2048}\n",
                 cases[i].model, cases[i].backend);
        CHECK_OK(parse("areal", text, &import, err));
        CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, err));
        if (cases[i].layout != NULL) CU_ASSERT_TRUE(has_setting(&import, cases[i].layout));
        for (size_t k = 0; k < import.n_settings && cases[i].layout == NULL; k++)
            CU_ASSERT_PTR_NULL(strstr(import.settings[k], "pipeline_layout"));
        stw_model_free(model);
        stw_import_free(&import);
    }
}

/* A map in braces is YAML; names in quotes, or a file's name, say that it is JSON. */
static void maps_in_braces_are_yaml(void) {
    static const char braces[] = "{zero_optimization: {stage: 2, reduce_bucket_size: auto}, "
                                 "bf16: {enabled: true}}\n";
    stw_import import;
    stw_text text = STW_TEXT_INIT;
    CHECK_OK(stw_import_parse("deepspeed", "x.yaml", braces, strlen(braces), &import, err));
    stw_import_write(&import, &text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    CU_ASSERT_PTR_NOT_NULL(strstr(text.data, "auto  -> hidden size squared"));
    stw_text_free(&text);
    stw_import_free(&import);
    CHECK_FAILS(stw_import_parse("deepspeed", "x.json", braces, strlen(braces), &import, err),
                STW_STATUS_BAD_INPUT, "not valid JSON");
    stw_import_free(&import);
}

STW_TEST_MAIN("planner frameworks", {"maps in braces are YAML", maps_in_braces_are_yaml},
              {"full of llamafactory", full_of_llamafactory},
              {"defaults of llamafactory", defaults_of_llamafactory},
              {"refused by llamafactory", refused_by_llamafactory},
              {"allocations of areal", allocations_of_areal}, {"actors of areal", actors_of_areal},
              {"parts of areal", parts_of_areal}, {"megatron of areal", megatron_of_areal},
              {"padding of areal", padding_of_areal}, {"eight bits of areal", eight_bits_of_areal},
              {"refused by areal", refused_by_areal}, {"pairs of areal", pairs_of_areal},
              {"stages of areal", stages_of_areal})
