/* SPDX-License-Identifier: Apache-2.0 */
/* Import of launch scripts and configs: what a shell makes of a command, names of models, flags of
 * ms-swift, DeepSpeed configs, settings of verl. */
#include <stdlib.h>

#include "planner/frameworks/import/import.h"
#include "planner/frameworks/shell/shell.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MODELS STW_SOURCE_DIR "/models"
#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

/* Does a note say so? */
static bool has_note(const stw_import *import, const char *words) {
    bool found = false;
    for (size_t i = 0; i < import->n_lines; i++)
        found = found || strstr(import->lines[i].note, words) != NULL;
    return found;
}

/* ---- the shell ---- */

static bool begins_with_run(const stw_shell_word *words, size_t n) {
    return n > 0 && strcmp(words[0].text, "run") == 0;
}

/* Words of the last command `run`, joined by |. */
static const char *words_of(const char *text) {
    static char joined[1024];
    stw_shell shell;
    stw_pool *pool = stw_pool_new();
    CHECK_OK(stw_shell_find("x", text, strlen(text), begins_with_run, pool, &shell, err));
    joined[0] = '\0';
    for (size_t i = 1; i < shell.n_words; i++) {
        if (i > 1) strncat(joined, "|", sizeof joined - strlen(joined) - 1);
        strncat(joined, shell.words[i].text, sizeof joined - strlen(joined) - 1);
    }
    stw_pool_free(pool);
    return joined;
}

#define WORDS(text, expected) CU_ASSERT_STRING_EQUAL(words_of(text), expected)

static void commands_of_scripts(void) {
    WORDS("#!/bin/sh\nset -x\nrun a  b # c\nother d\n", "a|b");
    WORDS("run \\\n  --x 1 \\\n  --y='a b'\n", "--x|1|--y=a b");
    WORDS("n=4\nrun $n ${n} \"$n x\" '$n' $((n * 2 + 1)) $(expr 16 / $n) `date`\n",
          "4|4|4 x|$n|9|4|`date`");
    WORDS("run $unset ${unset:-7} ${unset:-$HOME} \"$@\"\n", "$unset|7|$HOME");
    WORDS("A=(--x 1 # comment\n --y \"2 3\")\nA+=(--z)\nrun ${A[@]} \"${A[@]}\"\n",
          "--x|1|--y|2|3|--z|--x|1|--y|2 3|--z");
    WORDS("A=\"--x 1\"\nA=\"$A --y\"\nrun $A \"$A\"\n", "--x|1|--y|--x 1 --y");
    WORDS("export X=1; X+=2; env Y=3 run $X >log 2>&1 && run $X$Y | tee log\n", "12$Y");
    WORDS("run a=1  2>&1 | tee -i $logs\n", "a=1");
    WORDS("run a 2 >log b2>c 12\n", "a|2|b2|12");
    WORDS("run $(expr 1 / 0) $((2 **)) $(nproc)\n", "$(expr 1 / 0)|$((2 **))|$(nproc)");
    WORDS("A=${A:-\"$HOME/a b\"}\nrun \"$A\" ${B:-'c'}\n", "$HOME/a b|c");
    stw_shell shell;
    stw_pool *pool = stw_pool_new();
    CHECK_OK(stw_shell_find("x", "run a\n\"b\n", 9, begins_with_run, pool, &shell, err));
    CU_ASSERT_EQUAL(shell.unread, 2); /* bash ends there, too */
    CHECK_FAILS(stw_shell_find("x", "run \"a\n", 7, begins_with_run, pool, &shell, err),
                STW_STATUS_BAD_INPUT, "quotes");
    stw_pool_free(pool);
}

/* A text that doubles does not fill the memory. */
static void shells_have_bounds(void) {
    char text[2048] = "a=0123456789\n";
    for (int i = 0; i < 60; i++) strcat(text, "a=\"$a$a\"\n");
    stw_shell shell;
    stw_pool *pool = stw_pool_new();
    CHECK_FAILS(stw_shell_find("x", text, strlen(text), begins_with_run, pool, &shell, err),
                STW_STATUS_BAD_INPUT, "bytes of");
    stw_pool_free(pool);
}

/* ---- ms-swift ---- */

static stw_status parse(const char *framework, const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse(framework, "file", text, strlen(text), out, err);
}

#define SFT                                                                                        \
    "per_node=4\nNPROC_PER_NODE=$per_node \\\nswift sft \\\n  --model Qwen/Qwen2.5-7B \\\n"        \
    "  --torch_dtype bfloat16 --per_device_train_batch_size 1 --max_length 8192 "

static void zero_of_swift(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("ms-swift",
                   SFT "--tuner_type full --deepspeed zero3 --packing true --attn_impl flash_attn "
                       "--gradient_accumulation_steps $(expr 16 / $per_node) "
                       "--use_liger_kernel true --dataset 'a#1' --made_up 3\n",
                   &import, err));
    CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
    CU_ASSERT_EQUAL(import.gpus, 4);
    CU_ASSERT_TRUE(has_setting(&import, "engine=deepspeed"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.zero_stage=3"));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.implementation=foreach")); /* torch's AdamW */
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=4"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=8192"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=bf16"));
    /* hidden 3584: squared, nine tenths of that, ten times */
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.reduce_bucket=12845056"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.prefetch_bucket=11560550"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.persistence_threshold=35840"));
    /* 8192 rows in ceil(152064 / 3584) = 43 parts: 191 rows, to a power of two */
    CU_ASSERT_TRUE(has_setting(&import, "loss.chunk=256"));
    CU_ASSERT_EQUAL(use_of(&import, "dataset"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "made-up"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, "length of sequences"), STW_N_IMPORT_USES);
    stw_model_free(model);
    stw_import_free(&import);
}

static void adapters_of_swift(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("ms-swift", SFT "--deepspeed zero2_offload\n", &import, err));
    CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.lora.rank=8")); /* defaults */
    CU_ASSERT_TRUE(has_setting(&import, "trainable.lora.targets=[all-linear]"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.reduce_bucket=200000000"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.offload_optimizer=cpu"));
    CU_ASSERT_FALSE(has_setting(&import, "optimizer.implementation=foreach"));
    CU_ASSERT_TRUE(has_setting(&import, "attention=sdpa"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=4")); /* 16 sequences */
    CU_ASSERT_EQUAL(use_of(&import, "length of sequences"), STW_IMPORT_ASSUMED);
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("ms-swift", SFT "--fsdp fsdp2 --target_modules q_proj v_proj\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
    CU_ASSERT_TRUE(has_setting(&import, "trainable.lora.targets=[q_proj,v_proj]"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=fp32"));
    stw_import_free(&import);
    /* fsdp2.json has activation_checkpointing; weights in fp32 are trained in fp16 */
    CHECK_OK(parse("ms-swift",
                   "swift sft --model Qwen/Qwen2.5-7B --fsdp fsdp2 --tuner_type full "
                   "--torch_dtype float32 --gradient_checkpointing false --max_length 8\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.compute=fp16"));
    stw_import_free(&import);
}

/* Without a sharding engine: torch on one GPU, DistributedDataParallel on several. */
static void torch_of_swift(void) {
#define ONE "CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-7B --max_length 2048 "
    static const struct {
        const char *text;
        bool replicas;
        const char *implementation;
    } cases[] = {{ONE "--torch_dtype bfloat16\n", false, "optimizer.implementation=foreach"},
                 {ONE "--tuner_type full --optim adamw_torch_fused\n", false,
                  "optimizer.implementation=fused"},
                 {SFT "--tuner_type lora\n", true, "optimizer.implementation=foreach"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        CHECK_OK(parse("ms-swift", cases[i].text, &import, err));
        CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
        CU_ASSERT_TRUE(has_setting(&import, "parallel.dp_shard=1"));
        CU_ASSERT_TRUE(has_setting(&import, "precision.params=bf16"));
        CU_ASSERT_TRUE(has_setting(&import, "precision.exp_avg_sq=bf16"));
        CU_ASSERT_TRUE(has_setting(&import, cases[i].implementation));
        CU_ASSERT_EQUAL(has_setting(&import, "parallel.dp_replicate=4"), cases[i].replicas);
        CU_ASSERT_EQUAL(has_setting(&import, "precision.reduce=bf16"), cases[i].replicas);
        CU_ASSERT_EQUAL(has_note(&import, "without its buckets"), cases[i].replicas);
        stw_import_free(&import);
    }
}

/* Liger's loss knows no weights of tokens. */
static void weights_of_tokens(void) {
    static const char *const cases[][2] = {{"react", NULL}, {"last_round", "loss.fused=true"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        char text[512];
        snprintf(text, sizeof text, ONE "--use_liger_kernel true --loss_scale %s\n", cases[i][0]);
        CHECK_OK(parse("ms-swift", text, &import, err));
        CU_ASSERT_EQUAL(has_setting(&import, "loss.fused=true"), cases[i][1] != NULL);
        CU_ASSERT_EQUAL(import.derived.loss_tokens, cases[i][1] != NULL ? 2048 : 0);
        stw_import_free(&import);
    }
}

/* Sizes beside the name of a model would be another model under its name. */
static void sizes_beside_a_name(void) {
#define LAUNCH                                                                                     \
    "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --packing true --max_length 2048 "        \
    "--dataset x "
    static const struct {
        const char *flags, *expected;
    } cases[] = {{"--num_layers 4\n", "a number of layers of 4, where Qwen3-8B has 36"},
                 {"--hidden_size 1024\n", "a hidden size of 1024, where Qwen3-8B has 4096"},
                 {"--num_layers 36 --hidden_size 4096\n", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        stw_model *model = NULL;
        char text[512];
        snprintf(text, sizeof text, LAUNCH "%s", cases[i].flags);
        CHECK_OK(parse("ms-swift", text, &import, err));
        if (cases[i].expected == NULL) {
            CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, err));
        } else {
            CHECK_FAILS(stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, err),
                        STW_STATUS_NOT_BUILT_IN, cases[i].expected);
        }
        stw_model_free(model);
        stw_import_free(&import);
    }
}

static void megatron_of_swift(void) {
    stw_import import;
    CHECK_OK(parse("ms-swift",
                   "NPROC_PER_NODE=4 megatron sft --load Qwen3-30B-A3B-Base-mcore "
                   "--expert_model_parallel_size 4 --packing true --recompute_granularity full "
                   "--recompute_method uniform --recompute_num_layers 1 --max_length 8192 "
                   "--optimizer_cpu_offload true --dataset x --moe_permute_fusion true\n",
                   &import, err));
    CU_ASSERT_STRING_EQUAL(import.model, "Qwen3-30B-A3B-Base-mcore");
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.ep=4"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=8192"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.transformer_impl=transformer_engine"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.optimizer_offload_fraction=1"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.hidden_dropout=0")); /* not Megatron's 0.1 */
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=bf16"));
    CU_ASSERT_EQUAL(import.global_batch, 16);
    CU_ASSERT_EQUAL(use_of(&import, "moe-permute-fusion"), STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "hidden-dropout"), STW_N_IMPORT_USES); /* no line */
    stw_import_free(&import);
}

/* Adapters beside products as Megatron has them: experts, too, routers not. */
static void adapters_of_megatron_swift(void) {
#define MEGATRON_LORA                                                                              \
    "NPROC_PER_NODE=4 megatron sft --tuner_type lora --expert_model_parallel_size 4 "              \
    "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1 "            \
    "--packing true --max_length 8192 --model Qwen/Qwen3-30B-A3B "
    static const char *const cases[][3] = {
        {MEGATRON_LORA "--lora_rank 32\n", "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj",
         "megatron.lora_dropout=0.05"},
        {MEGATRON_LORA "--moe_shared_expert_overlap true --tensor_model_parallel_size 2 "
                       "--sequence_parallel true --target_modules linear_qkv linear_fc2 "
                       "--lora_dropout 0\n",
         "q_proj,k_proj,v_proj,down_proj", "megatron.lora_dropout=0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_import import;
        stw_model *model = NULL;
        char targets[128];
        snprintf(targets, sizeof targets, "trainable.lora.targets=[%s]", cases[i][1]);
        CHECK_OK(parse("ms-swift", cases[i][0], &import, err));
        CHECK_OK(stw_import_model(&import, NULL, MODELS, &model, err));
        CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
        CU_ASSERT_TRUE(
            has_setting(&import, i == 0 ? "trainable.lora.rank=32" : "trainable.lora.rank=8"));
        CU_ASSERT_TRUE(has_setting(&import, targets));
        CU_ASSERT_TRUE(has_setting(&import, cases[i][2]));
        CU_ASSERT_TRUE(has_setting(&import, "megatron.grouped_gemm=true"));
        CU_ASSERT_TRUE(has_setting(&import, "megatron.shared_expert_overlap=false"));
        stw_model_free(model);
        stw_import_free(&import);
    }
}

/* What is not planned is refused, with what to use instead. */
static void refused_scripts(void) {
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"swift rlhf --rlhf_type dpo --model x\n", "rlhf"},
        {SFT "--tuner_type full\n", "ZeRO-2"},
        {SFT "--torch_dtype float16\n", "use bfloat16"},
        {SFT "--optim adamw_torch_4bit\n", "adamw_torch_fused"},
        {"CUDA_VISIBLE_DEVICES=0,1 swift sft --model x --max_length 8\n", "NPROC_PER_NODE=2"},
        {SFT "--deepspeed my.json\n", "no such file beside this one"},
        {SFT "--deepspeed zero2 --sequence_parallel_size 2\n", "sequence-parallel-size"},
        {SFT "--deepspeed zero2 --quant_method bnb\n", "quant-method"},
        {SFT "--deepspeed zero2 --train_type longlora\n", "full or lora"},
        {"megatron sft --model x --tuner_type longlora\n", "full or lora"},
        {"megatron sft --model x --tuner_type lora --target_modules all-router\n", "linear_qkv"},
    };
    stw_import import;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_FAILS(parse("ms-swift", cases[i].text, &import, err), STW_STATUS_NOT_BUILT_IN,
                    cases[i].word);
        stw_import_free(&import);
    }
    CHECK_FAILS(parse("ms-swift", "swift export --model x\n", &import, err), STW_STATUS_BAD_INPUT,
                "swift sft|pt");
    stw_import_free(&import);
    CHECK_FAILS(parse("ms-swift", "swift sft --deepspeed zero2 --max_length $x\n", &import, err),
                STW_STATUS_BAD_INPUT, "whole number");
    stw_import_free(&import);
}

/* Experts have no adapters here, and the zoo does not have every model. */
static void models_of_scripts(void) {
    stw_import import;
    stw_model *model = NULL;
    CHECK_OK(parse("ms-swift", "swift sft --deepspeed zero3 --model Qwen/Qwen3-30B-A3B\n", &import,
                   err));
    CHECK_FAILS(stw_import_model(&import, NULL, MODELS, &model, err), STW_STATUS_NOT_BUILT_IN,
                "all-linear");
    CHECK_OK(stw_import_model(&import, "Qwen3-8B", MODELS, &model, err));
    stw_model_free(model);
    stw_import_free(&import);
    CHECK_OK(parse("ms-swift", "swift sft --deepspeed zero3 --model a/b\n", &import, err));
    CHECK_FAILS(stw_import_model(&import, NULL, MODELS, &model, err), STW_STATUS_BAD_INPUT,
                "add --model");
    stw_import_free(&import);
}

/* ---- DeepSpeed ---- */

static void configs_of_zero(void) {
    stw_import import;
    CHECK_OK(parse("deepspeed",
                   "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3,\n"
                   "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true},\n"
                   "\"reduce_bucket_size\": 5e8, \"stage3_prefetch_bucket_size\": \"auto\",\n"
                   "\"zero_quantized_weights\": true, \"made_up\": 1},\n"
                   "\"gradient_clipping\": 0.5, \"train_micro_batch_size_per_gpu\": 2,\n"
                   "\"gradient_accumulation_steps\": \"auto\", \"steps_per_print\": 10,\n"
                   "\"other\": {\"x\": 1}, \"fp16\": {\"enabled\": false}}",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=deepspeed"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.offload_optimizer=cpu"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.pin_memory=true"));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.reduce_bucket=500000000"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=1"));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.clip_norm=0.5"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.reduce=bf16"));
    CU_ASSERT_TRUE(import.derived.prefetch_bucket && !import.derived.reduce_bucket);
    CU_ASSERT_EQUAL(use_of(&import, "steps_per_print"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "zero_optimization.zero_quantized_weights"),
                    STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "zero_optimization.made_up"), STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "other.x"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_FALSE(stw_import_has_model(&import));
    stw_import_free(&import);
}

static void automatic_configs(void) {
    stw_import import;
    CHECK_OK(parse("deepspeed",
                   "zero_optimization: {stage: 2}\nbf16: {enabled: auto}\n"
                   "gradient_clipping: auto\ntrain_batch_size: 64\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.clip_norm=1"));
    CU_ASSERT_EQUAL(import.global_batch, 64); /* the others follow from it and the ranks */
    CU_ASSERT_TRUE(import.triple);
    CU_ASSERT_EQUAL(import.micro, 0);
    CU_ASSERT_EQUAL(use_of(&import, "train_micro_batch_size_per_gpu"), STW_N_IMPORT_USES);
    CU_ASSERT_EQUAL(use_of(&import, "bf16.enabled"), STW_IMPORT_ASSUMED);
    stw_import_free(&import);
    CHECK_FAILS(parse("deepspeed", "{\"bf16\": {\"enabled\": true}}", &import, err),
                STW_STATUS_NOT_BUILT_IN, "stage 0");
    stw_import_free(&import);
    CHECK_FAILS(parse("deepspeed", "zero_optimization: {stage: 2}\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "fp32");
    stw_import_free(&import);
    CHECK_FAILS(parse("deepspeed",
                      "zero_optimization: {stage: 3, offload_param: {device: nvme}}\n"
                      "bf16: {enabled: true}\n",
                      &import, err),
                STW_STATUS_NOT_BUILT_IN, "use it with offload_optimizer");
    stw_import_free(&import);
}

/* ZeRO-Infinity, as transformers documents it; stage 2 keeps the same on the host. */
static void configs_with_nvme(void) {
    static const char config[] =
        "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": %d,\n"
        "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/nvme\",\n"
        "\"pin_memory\": true, \"buffer_count\": 8, \"pipeline_read\": true,\n"
        "\"fast_init\": false}%s},\n"
        "\"aio\": {\"block_size\": 2097152, \"queue_depth\": 32, \"use_gds\": false,\n"
        "\"intra_op_parallelism\": 2, \"single_submit\": false}}";
    static const char param[] =
        ", \"offload_param\": {\"device\": \"nvme\", \"pin_memory\": true,\n"
        "\"nvme_path\": \"/nvme\", \"buffer_count\": 9,\n"
        "\"buffer_size\": 2e8, \"max_in_cpu\": 1e8}";
    static const char *const settings[] = {"deepspeed.offload_optimizer=nvme",
                                           "deepspeed.offload_param=nvme",
                                           "deepspeed.optimizer_buffer_count=8",
                                           "deepspeed.pipeline_read=true",
                                           "deepspeed.pipeline_write=false",
                                           "deepspeed.param_buffer_count=9",
                                           "deepspeed.param_buffer_size=200000000",
                                           "deepspeed.max_in_cpu=100000000",
                                           "deepspeed.aio_block_size=2097152 B",
                                           "deepspeed.aio_intra_op_parallelism=2",
                                           "deepspeed.pin_memory=true"};
    char text[1024];
    stw_import import;
    snprintf(text, sizeof text, config, 3, param);
    CHECK_OK(parse("deepspeed", text, &import, err));
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        CU_ASSERT_TRUE(has_setting(&import, settings[i]));
    CU_ASSERT_EQUAL(use_of(&import, "aio.queue_depth"), STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "aio.use_gds"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_FALSE(has_setting(&import, "deepspeed.ratio=1"));
    CU_ASSERT_EQUAL(use_of(&import, "zero_optimization.offload_optimizer.nvme_path"),
                    STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
    snprintf(text, sizeof text, config, 2, "");
    CHECK_OK(parse("deepspeed", text, &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.offload_optimizer=cpu"));
    CU_ASSERT_FALSE(has_setting(&import, "deepspeed.pipeline_read=true"));
    stw_import_free(&import);
    CHECK_FAILS(parse("deepspeed",
                      "bf16: {enabled: true}\nzero_optimization: {stage: 3, offload_optimizer: "
                      "{device: nvme}}\naio: {use_gds: true}\n",
                      &import, err),
                STW_STATUS_NOT_BUILT_IN, "buffers are on the GPU");
    stw_import_free(&import);
    CHECK_OK(parse("deepspeed",
                   "bf16: {enabled: true}\nzero_optimization: {stage: 3, offload_optimizer: "
                   "{device: cpu, ratio: 0.3}}\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "deepspeed.ratio=0.3"));
    stw_import_free(&import);
}

/* ---- verl ---- */

#define A "actor_rollout_ref.actor."
#define PPO                                                                                        \
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 \\\n"                            \
    "  data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\\n"   \
    "  trainer.n_gpus_per_node=8 trainer.nnodes=1 actor_rollout_ref.rollout.name=vllm \\\n"        \
    "  actor_rollout_ref.rollout.n=5 " A "ppo_mini_batch_size=256 "

static void actors_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO "algorithm.adv_estimator=grpo " A "ppo_micro_batch_size_per_gpu=16 " A
                       "use_kl_loss=True " A "fsdp_config.param_offload=True " A
                       "fsdp_config.optimizer_offload=True trainer.logger=['a','b'] x.y=1 "
                       "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 $@\n",
                   &import, err));
    CU_ASSERT_EQUAL(import.gpus, 8);
    CU_ASSERT_STRING_EQUAL(import.model, "Qwen/Qwen2.5-7B-Instruct");
    CU_ASSERT_TRUE(has_setting(&import, "engine=fsdp2"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=2048"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=16"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=10")); /* 256 x 5 / 8 / 16 */
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=fp32"));
    CU_ASSERT_TRUE(has_setting(&import, "park.params=host"));
    CU_ASSERT_TRUE(has_setting(&import, "park.moments=host"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.granularity=full"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_method=kernel"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.kind=rollout"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.parallel.tp=2")); /* verl's default */
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.gpu_memory_utilization=0.6"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.max_model_len=2048"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.max_num_seqs=256")); /* defaults of 0.9.1 */
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.update_bucket=2048 MiB"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.sleep_level=2"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.kind=reference"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.placement.params=host"));
    CU_ASSERT_EQUAL(use_of(&import, A "strategy"), STW_IMPORT_ASSUMED); /* FSDP1 */
    CU_ASSERT_EQUAL(use_of(&import, "trainer.logger"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "x.y"), STW_IMPORT_UNKNOWN);
    stw_import_free(&import);
}

/* GAE needs a critic; FSDP2's policy sets verl's own offload aside. */
static void packed_actors_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO A "strategy=fsdp2 " A "use_dynamic_bsz=True " A
                         "ppo_max_token_len_per_gpu=$((1024 * 8)) " A
                         "ulysses_sequence_parallel_size=2 " A "fsdp_config.fsdp_size=4 " A
                         "fsdp_config.offload_policy=True " A "fsdp_config.param_offload=True\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.max_tokens_per_gpu=8192"));
    /* 256 x 5 sequences of 2048 tokens on 4 pairs, 16384 tokens at a time */
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=40"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.cp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.dp_shard=2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.dp_replicate=2"));
    CU_ASSERT_TRUE(has_setting(&import, "fsdp.offload_policy=true"));
    for (size_t i = 0; i < import.n_settings; i++)
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "park."));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_micro_batch=8"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.kind=critic"));
    stw_import_free(&import);
}

static void megatron_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO "--config-name='ppo_megatron_trainer.yaml' algorithm.adv_estimator=grpo " A
                       "ppo_micro_batch_size_per_gpu=1 " A
                       "megatron.tensor_model_parallel_size=4 " A "megatron.param_offload=True " A
                       "megatron.grad_offload=True +" A
                       "megatron.override_transformer_config.num_layers_in_first_pipeline_stage=5 "
                       "+" A "megatron.override_transformer_config.made_up=5 " A
                       "megatron.optimizer_offload=True +" A
                       "optim.override_optimizer_config.optimizer_cpu_offload=True +" A
                       "megatron.override_ddp_config.overlap_grad_reduce=True " A
                       "megatron.made_up=1 algorithm.use_kl_in_reward=True +" A
                       "megatron.override_transformer_config.bias_activation_fusion=True\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.tp=4"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.sequence_parallel=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.first_stage_layers=5"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=640")); /* 256 x 5 / 2 */
    CU_ASSERT_TRUE(has_setting(&import, "park.grads=host"));
    for (size_t i = 0; i < import.n_settings; i++) /* it is on the host already */
        CU_ASSERT_PTR_NULL(strstr(import.settings[i], "park.moments"));
    CU_ASSERT_EQUAL(use_of(&import, A "megatron.override_transformer_config."
                                      "bias_activation_fusion"),
                    STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, A "megatron.override_transformer_config.made_up"),
                    STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, A "megatron.made_up"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_TRUE(has_setting(&import, "megatron.overlap_grad_reduce=true"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.kind=reference"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.1.placement.params=host")); /* as the actor */
    stw_import_free(&import);
}

/* Keys of older versions, and what has another default than it had. */
static void older_keys_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   PPO A "ppo_micro_batch_size=64 " A "optim.optimizer_impl=torch.optim "
                         "actor_rollout_ref.rollout.layered_summon=True "
                         "actor_rollout_ref.rollout.log_prob_micro_batch_size=32 "
                         "actor_rollout_ref.rollout.update_weights_bucket_megabytes=512\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.micro_batch=8")); /* 64 on 8 GPUs */
    CU_ASSERT_TRUE(has_setting(&import, "batch.grad_accumulation=20"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_micro_batch=4"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.sleep_level=1"));
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.update_bucket=512 MiB"));
    stw_import_free(&import);
    CHECK_FAILS(parse("verl",
                      PPO A "ppo_micro_batch_size_per_gpu=1 " A
                            "optim.optimizer_impl=bitsandbytes.optim\n",
                      &import, err),
                STW_STATUS_NOT_BUILT_IN, "use torch.optim");
    stw_import_free(&import);
}

/* YAML with references, as verl prints its config. */
static void files_of_verl(void) {
    stw_import import;
    CHECK_OK(parse("verl",
                   "actor_rollout_ref:\n"
                   "  actor: {strategy: fsdp2, ppo_micro_batch_size_per_gpu: null,\n"
                   "    use_dynamic_bsz: true, ppo_max_token_len_per_gpu: 16384,\n"
                   "    fsdp_config: {param_offload: false, fsdp_size: -1}}\n"
                   "  rollout: {name: sglang, tensor_model_parallel_size: 4,\n"
                   "    log_prob_use_dynamic_bsz: '${oc.select:actor_rollout_ref.actor."
                   "use_dynamic_bsz,false}'}\n"
                   "  model: {path: '${HOME}/models/Qwen3-8B', lora_rank: 0}\n"
                   "data: {max_prompt_length: 512, max_response_length: 3584}\n"
                   "trainer: {nnodes: 2, n_gpus_per_node: 8}\n"
                   "algorithm: {adv_estimator: grpo}\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "batch.seq_len=4096"));
    CU_ASSERT_TRUE(has_setting(&import, "batch.log_prob_micro_batch=4")); /* 16384 / 4096 */
    CU_ASSERT_TRUE(has_setting(&import, "roles.0.engine=sglang"));
    CU_ASSERT_TRUE(has_setting(&import, "weight_sync.method=buckets"));
    CU_ASSERT_EQUAL(import.gpus, 16);
    CU_ASSERT_STRING_EQUAL(import.model, "${HOME}/models/Qwen3-8B");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", PPO "\n", &import, err), STW_STATUS_BAD_INPUT,
                "ppo_micro_batch_size_per_gpu");
    stw_import_free(&import);
    CHECK_FAILS(
        parse("verl", PPO A "ppo_micro_batch_size_per_gpu=1 " A "strategy=veomni\n", &import, err),
        STW_STATUS_NOT_BUILT_IN, "use fsdp");
    stw_import_free(&import);
    static const char *const both[] = {"rollout.nnodes=1", "actor_rollout_ref.rollout.nnodes=1"};
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, PPO A "ppo_micro_batch_size_per_gpu=1 %s\n", both[i]);
        CHECK_FAILS(parse("verl", text, &import, err), STW_STATUS_NOT_BUILT_IN,
                    "actor_rollout_ref.hybrid_engine=False");
        stw_import_free(&import);
    }
    CHECK_FAILS(
        parse("verl", PPO A "ppo_micro_batch_size_per_gpu=1 model_engine=veomni\n", &import, err),
        STW_STATUS_NOT_BUILT_IN, "use dp or megatron");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", "torchrun -m verl.trainer.fsdp_sft_trainer x=1\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "main_ppo");
    stw_import_free(&import);
}

#define GAE PPO A "strategy=fsdp2 " A "ppo_micro_batch_size_per_gpu=4 critic.strategy=fsdp2 "

/* A critic is the actor's model; what repeats the actor's settings is no matter of a warning. */
static void critics_of_verl(void) {
    static const char *const alike[] = {
        "critic.model.path",
        "critic.strategy",
        "critic.ppo_micro_batch_size_per_gpu",
        "critic.model.enable_gradient_checkpointing",
        "critic.model.use_remove_padding",
        "critic.model.trust_remote_code",
        "critic.model.fsdp_config.param_offload",
        "critic.model.fsdp_config.optimizer_offload",
        "critic.fsdp.dtype",
        "critic.grad_clip",
        "critic.optim.lr",
    };
    stw_import import;
    CHECK_OK(parse("verl",
                   GAE "critic.model.path=/models/Qwen2.5-7B-Instruct/ critic.optim.lr=1e-5 "
                       "critic.ppo_micro_batch_size_per_gpu=4 critic.grad_clip=1 "
                       "critic.model.enable_gradient_checkpointing=True "
                       "critic.model.use_remove_padding=True critic.fsdp.dtype=bfloat16 "
                       "actor_rollout_ref.model.use_remove_padding=true "
                       "critic.model.trust_remote_code=True "
                       "critic.model.fsdp_config.param_offload=False "
                       "critic.model.fsdp_config.optimizer_offload=True " A
                       "fsdp_config.optimizer_offload=true\n",
                   &import, err));
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
        CU_ASSERT_EQUAL(use_of(&import, alike[i]), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
    CHECK_OK(parse("verl",
                   GAE
                   "critic.ppo_micro_batch_size_per_gpu=8 critic.ulysses_sequence_parallel_size=1 "
                   "critic.model.fsdp_config.param_offload=True " A
                   "fsdp_config.ulysses_sequence_parallel_size=2\n",
                   &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "critic.ppo_micro_batch_size_per_gpu"),
                    STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "critic.ulysses_sequence_parallel_size"),
                    STW_IMPORT_NOT_MODELLED);
    CU_ASSERT_EQUAL(use_of(&import, "critic.model.fsdp_config.param_offload"),
                    STW_IMPORT_NOT_MODELLED);
    stw_import_free(&import);
    CHECK_FAILS(parse("verl", GAE "critic.model.path=Qwen/Qwen2.5-0.5B-Instruct\n", &import, err),
                STW_STATUS_NOT_BUILT_IN,
                "critic.model.path Qwen/Qwen2.5-0.5B-Instruct: not implemented: one model per run; "
                "plan the critic apart");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl",
                      "python3 -m verl.trainer.main_ppo " A "ppo_micro_batch_size_per_gpu=1 "
                      "critic.model.path=Qwen/Qwen2.5-7B\n",
                      &import, err),
                STW_STATUS_NOT_BUILT_IN, "name the actor's model, too");
    stw_import_free(&import);
    /* no critic is trained */
    CHECK_OK(parse(
        "verl", GAE "algorithm.adv_estimator=grpo critic.model.path=Qwen/Qwen2.5-0.5B-Instruct\n",
        &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "critic.model.path"), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
}

/* YAML's words, and those of Python. */
static void switches_of_verl(void) {
    static const char *const yes[] = {"1", "yes", "True", "on", "true", "TRUE"};
    static const char *const no[] = {"0", "no", "False", "off", "null"};
    char text[1024];
    stw_import import;
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        snprintf(text, sizeof text,
                 PPO A "ppo_micro_batch_size_per_gpu=1 " A "fsdp_config.param_offload=%s\n",
                 yes[i]);
        CHECK_OK(parse("verl", text, &import, err));
        CU_ASSERT_TRUE(has_setting(&import, "park.params=host"));
        stw_import_free(&import);
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        snprintf(text, sizeof text,
                 PPO A "ppo_micro_batch_size_per_gpu=1 " A "fsdp_config.param_offload=%s\n", no[i]);
        CHECK_OK(parse("verl", text, &import, err));
        for (size_t k = 0; k < import.n_settings; k++)
            CU_ASSERT_PTR_NULL(strstr(import.settings[k], "park."));
        stw_import_free(&import);
    }
    CHECK_FAILS(parse("verl",
                      PPO A "ppo_micro_batch_size_per_gpu=1 " A "fsdp_config.param_offload=maybe\n",
                      &import, err),
                STW_STATUS_BAD_INPUT,
                A "fsdp_config.param_offload: found \"maybe\", expected true or false");
    stw_import_free(&import);
    CHECK_FAILS(parse("verl",
                      PPO A "ppo_micro_batch_size_per_gpu=1 +x.y=perhaps "
                            "actor_rollout_ref.rollout.free_cache_engine='${x.y}'\n",
                      &import, err),
                STW_STATUS_BAD_INPUT, "free_cache_engine: found \"perhaps\"");
    stw_import_free(&import);
}

STW_TEST_MAIN("planner scripts", {"commands of scripts", commands_of_scripts},
              {"shells have bounds", shells_have_bounds}, {"zero of swift", zero_of_swift},
              {"adapters of swift", adapters_of_swift}, {"torch of swift", torch_of_swift},
              {"weights of tokens", weights_of_tokens}, {"megatron of swift", megatron_of_swift},
              {"adapters of megatron swift", adapters_of_megatron_swift},
              {"sizes beside a name", sizes_beside_a_name}, {"refused scripts", refused_scripts},
              {"models of scripts", models_of_scripts}, {"configs of zero", configs_of_zero},
              {"automatic configs", automatic_configs}, {"actors of verl", actors_of_verl},
              {"configs with NVMe", configs_with_nvme},
              {"packed actors of verl", packed_actors_of_verl},
              {"megatron of verl", megatron_of_verl}, {"older keys of verl", older_keys_of_verl},
              {"files of verl", files_of_verl}, {"switches of verl", switches_of_verl},
              {"critics of verl", critics_of_verl})
