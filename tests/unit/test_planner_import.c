/* SPDX-License-Identifier: Apache-2.0 */
/* Import of Megatron-LM's arguments: flags of files, model, run. Expected sizes are worked out by
 * hand from megatron/core (see models/arch/megatron.csv). */
#include <math.h>
#include <stdlib.h>

#include "models/table.h"
#include "planner/frameworks/import/import.h"
#include "planner/frameworks/import/megatron.h"
#include "planner/reading.h"
#include "tests/unit/import_case.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

#define DENSE                                                                                      \
    "num-layers: 12\nhidden-size: 512\nnum-attention-heads: 8\nseq-length: 1024\n"                 \
    "max-position-embeddings: 1024\nmicro-batch-size: 4\nbf16: true\n"

static stw_status parse(const char *text, stw_import *out, stw_error *err) {
    return stw_import_parse("megatron", "args", text, strlen(text), out, err);
}

static uint64_t params_of(const char *text) {
    stw_import import;
    stw_model *model = NULL;
    uint64_t params = 0;
    CHECK_OK(parse(text, &import, err));
    CHECK_OK(stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, err));
    if (model != NULL) params = model->params;
    stw_model_free(model);
    stw_import_free(&import);
    return params;
}

/* h = 512: 12 h^2 + 13 h in a layer of GPT, vocabulary and positions once, a norm with bias. */
static void models_of_flags(void) {
    const uint64_t h = 512, layer = 12 * h * h + 13 * h, rest = (50257 + 1024 + 2) * h;
    CU_ASSERT_EQUAL(params_of(DENSE), 12 * layer + rest);
    CU_ASSERT_EQUAL(params_of(DENSE "untie-embeddings-and-output-weights: true\n"),
                    12 * layer + rest + 50257 * h);
    CU_ASSERT_EQUAL(params_of(DENSE "disable-bias-linear: true\n"), 12 * (layer - 9 * h) + rest);
    CU_ASSERT_EQUAL(params_of(DENSE "position-embedding-type: rope\nnormalization: RMSNorm\n"),
                    12 * (layer - 2 * h) + (50257 + 1) * h);
    CU_ASSERT_EQUAL(params_of(DENSE "num-query-groups: 2\n"), /* keys and values of 2 heads */
                    12 * (layer - 2 * 6 * 64 * (h + 1)) + rest);
    /* fc1 has 2 x 1344 rows: 512 * 8 / 3 to a multiple of 64 */
    CU_ASSERT_EQUAL(params_of(DENSE "swiglu: true\ndisable-bias-linear: true\n"),
                    12 * (4 * h * h + 3 * h * 1344 + 4 * h) + rest);
    CU_ASSERT_EQUAL(params_of(DENSE "vocab-size: 1000\n"), 12 * layer + rest - 49257 * h);
    CU_ASSERT_EQUAL(params_of(DENSE "vocab-size: 1000\ntokenizer-type: NullTokenizer\n"),
                    12 * layer + rest - 49256 * h);
}

/* 2 dense layers of 4, then experts. */
static void models_with_experts(void) {
    const uint64_t h = 512, bare = 4 * h * h + 4 * h, rest = (50257 + 1024 + 2) * h;
    const char *text = "num-layers: 4\nhidden-size: 512\nnum-attention-heads: 8\nbf16: true\n"
                       "max-position-embeddings: 1024\ndisable-bias-linear: true\n"
                       "num-experts: 8\nmoe-ffn-hidden-size: 128\nmoe-layer-freq: ([0]*2+[1]*2)\n";
    CU_ASSERT_EQUAL(params_of(text), 4 * bare + 2 * 8 * h * h + 2 * 8 * (2 * 128 * h + h) + rest);
    stw_import import;
    CHECK_FAILS(parse("num-layers: 4\nhidden-size: 8\nnum-attention-heads: 1\nnum-experts: 2\n"
                      "moe-layer-freq: ([0]*2+[1]*3)\n",
                      &import, err),
                STW_STATUS_BAD_INPUT, "moe-layer-freq");
    stw_import_free(&import);
}

static void latent_attention(void) {
    const uint64_t h = 512, kv = 512, q = 256;
    const uint64_t attention = q * h + 8 * 192 * q + (kv + 64) * h + 8 * 256 * kv + 8 * 128 * h;
    CU_ASSERT_EQUAL(params_of("num-layers: 1\nhidden-size: 512\nnum-attention-heads: 8\n"
                              "multi-latent-attention: true\nq-lora-rank: 256\nqk-layernorm: true\n"
                              "position-embedding-type: rope\nnormalization: RMSNorm\n"
                              "disable-bias-linear: true\n"),
                    attention + q + kv + 2 * h + 8 * h * h + (50257 + 1) * h);
}

#define T5                                                                                         \
    "encoder-num-layers: 3\ndecoder-num-layers: 2\nhidden-size: 768\nnum-attention-heads: 12\n"    \
    "encoder-seq-length: 512\ndecoder-seq-length: 128\nmax-position-embeddings: 512\nbf16: true\n" \
    "micro-batch-size: 4\ntokenizer-type: BertWordPieceCase\nvocab-extra-ids: 100\n"

static stw_status plan_of(const char *text, uint32_t gpus, const char *key, stw_plan **plan,
                          stw_error *out) {
    stw_import import;
    stw_model *model = NULL;
    stw_cluster cluster = fixture_cluster(gpus);
    stw_run_spec run = {0};
    stw_status status = parse(text, &import, out);
    *plan = NULL;
    if (status == STW_STATUS_OK)
        status = stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, out);
    if (status == STW_STATUS_OK) status = stw_run_spec_init(&run, out);
    if (status == STW_STATUS_OK) status = stw_import_run(&import, &run, out);
    if (status == STW_STATUS_OK && key != NULL)
        status = stw_run_spec_set(&run, key, "64", "test", out);
    if (status == STW_STATUS_OK) status = stw_import_batch(&import, &cluster, &run, out);
    if (status == STW_STATUS_OK) {
        status = stw_plan_new(model, &cluster, &run, plan, out);
        model = NULL;
    }
    stw_model_free(model);
    stw_run_spec_free(&run);
    stw_import_free(&import);
    return status;
}

/* T5: a block of the decoder has a second attention with a norm (4 h^2 + 6 h); each half has a
 * final norm, and the tied head a bias. Its blocks work on the target's tokens. */
static void encoder_and_decoder(void) {
    const uint64_t h = 768, layer = 12 * h * h + 13 * h, vocab = 28996 + 100;
    CU_ASSERT_EQUAL(params_of(T5),
                    5 * layer + 2 * (4 * h * h + 6 * h) + (vocab + 512 + 4) * h + vocab);
    CU_ASSERT_EQUAL(params_of("encoder-num-layers: 1\nhidden-size: 64\nnum-attention-heads: 4\n"
                              "decoder-seq-length: 8\nmax-position-embeddings: 8\n"),
                    2 * (12 * 64 * 64 + 13 * 64) + 4 * 64 * 64 + 6 * 64 + (30522 + 8 + 4) * 64 +
                        30522); /* its own tokenizer */
    stw_plan *plan = NULL;
    CHECK_OK(plan_of(T5, 2, NULL, &plan, err));
    if (plan != NULL) {
        const stw_model *model = plan->model;
        CU_ASSERT_EQUAL(plan->job->tokens, 4 * 512);
        CU_ASSERT_EQUAL(plan->job->decoder_tokens, 4 * 128);
        for (uint32_t g = 0; g < model->n_groups; g++)
            CU_ASSERT_EQUAL(stw_job_group_seq_len(plan->job, g),
                            strncmp(model->groups[g].name, "en", 2) == 0 ||
                                    strcmp(model->groups[g].name, "embed") == 0 ||
                                    strcmp(model->groups[g].name, "positions") == 0
                                ? 512
                                : 128);
    }
    stw_plan_free(plan);
    CHECK_OK(plan_of(T5, 1, NULL, &plan, err)); /* one GPU: no ranks to share state with */
    stw_plan_free(plan);
    CHECK_FAILS(plan_of(T5 "pipeline-model-parallel-size: 2\n", 2, NULL, &plan, err),
                STW_STATUS_BAD_INPUT, "parallel");
    stw_plan_free(plan);
    CHECK_FAILS(plan_of(DENSE, 2, "batch.decoder_seq_len", &plan, err), STW_STATUS_BAD_INPUT,
                "no encoder");
    stw_plan_free(plan);
    stw_import import;
    CHECK_FAILS(parse(T5 "position-embedding-type: relative\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "relative");
    stw_import_free(&import);
    CHECK_FAILS(parse(T5 "num-experts: 4\n", &import, err), STW_STATUS_BAD_INPUT, "num-experts");
    stw_import_free(&import);
    CHECK_FAILS(
        parse("encoder-num-layers: 2\nhidden-size: 8\nnum-attention-heads: 1\n", &import, err),
        STW_STATUS_BAD_INPUT, "decoder-seq-length");
    stw_import_free(&import);
}

static void runs_of_flags(void) {
    stw_import import;
    CHECK_OK(parse("MODEL_ARGS:\n  --num-layers: 16\n  --hidden-size: 64\n"
                   "  --num-attention-heads: 4\n  --tensor-model-parallel-size: 1\n"
                   "  --pipeline-model-parallel-size: 4\n  --sequence-parallel: true\n"
                   "  --num-layers-per-virtual-pipeline-stage: 2\n  --fp16: true\n"
                   "  --recompute-granularity: selective\n"
                   "  --recompute-modules: \"[layernorm mlp]\"\n  --attention-backend: unfused\n"
                   "  --optimizer-cpu-offload: true\n  --use-distributed-optimizer: true\n  "
                   "--micro-batch-size: 2\n"
                   "  --global-batch-size: 32\nENV_VARS:\n  X: 1\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "engine=megatron"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.pp=4"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.vpp=2"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.sequence_parallel=false")); /* tp is 1 */
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=fp16"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.grads=fp16"));
    CU_ASSERT_TRUE(has_setting(&import, "precision.master=fp32"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.modules=[layernorm,mlp]"));
    CU_ASSERT_TRUE(has_setting(&import, "attention=eager"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.optimizer_offload_fraction=1"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.precision_aware=true"));
    CU_ASSERT_EQUAL(use_of(&import, "use-precision-aware-optimizer"), STW_IMPORT_ASSUMED);
    CU_ASSERT_TRUE(has_setting(&import, "megatron.distributed_optimizer=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.hidden_dropout=0.1")); /* the default */
    CU_ASSERT_EQUAL(import.global_batch, 32);
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "deterministic-mode: true\n", &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "flash-attn"), STW_IMPORT_ASSUMED);
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "deterministic-mode: true\nattention-backend: unfused\n", &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "flash-attn"), STW_N_IMPORT_USES);
    stw_import_free(&import);
}

/* A layout says how many chunks there are; escapes of a shell do not count. */
static void stages_of_flags(void) {
#define SIXTEEN "num-layers: 16\nhidden-size: 64\nnum-attention-heads: 4\n"
    stw_import import;
    CHECK_OK(parse(SIXTEEN "pipeline-model-parallel-size: 2\nmtp-num-layers: 1\n"
                           "pipeline-model-parallel-layout: Et*3\\|\\(tt\\|\\)*6tmL\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.pipeline_layout=Et*3|(tt|)*6tmL"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.vpp=4"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.mtp_num_layers=1"));
    stw_import_free(&import);
    CHECK_OK(parse(SIXTEEN "pipeline-model-parallel-size: 6\n"
                           "account-for-embedding-in-pipeline-split: true\n"
                           "account-for-loss-in-pipeline-split: true\n"
                           "num-layers-per-virtual-pipeline-stage: 1\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.account_for_embedding=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.account_for_loss=true"));
    CU_ASSERT_TRUE(has_setting(&import, "parallel.vpp=3"));
    stw_import_free(&import);
    CHECK_OK(parse(SIXTEEN "pipeline-model-parallel-size: 4\n"
                           "decoder-first-pipeline-num-layers: 2\n"
                           "decoder-last-pipeline-num-layers: 4\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.first_stage_layers=2"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.last_stage_layers=4"));
    stw_import_free(&import);
    CHECK_FAILS(parse(SIXTEEN "pipeline-model-parallel-size: 4\n"
                              "pipeline-model-parallel-layout: Et*8|t*8L\n",
                      &import, err),
                STW_STATUS_BAD_INPUT, "a multiple of the pipeline stages");
    stw_import_free(&import);
}

/* Micro batches of an iteration follow from the cluster's GPUs. */
static void batches_of_clusters(void) {
    stw_import import;
    stw_run_spec run = {0};
    stw_cluster cluster;
    CHECK_OK(parse(DENSE "global-batch-size: 64\n", &import, err));
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_cluster_defaults(&cluster, err));
    cluster.nodes = 1;
    cluster.gpus = 8;
    run.batch.micro_batch = 4;
    run.parallel.tp = 2;
    CHECK_OK(stw_import_batch(&import, &cluster, &run, err));
    CU_ASSERT_EQUAL(run.batch.grad_accumulation, 4);
    run.batch.micro_batch = 3;
    CHECK_FAILS(stw_import_batch(&import, &cluster, &run, err), STW_STATUS_BAD_INPUT,
                "global-batch-size 64");
    run.parallel.tp = 3;
    CHECK_FAILS(stw_import_batch(&import, &cluster, &run, err), STW_STATUS_BAD_INPUT, "tp 3");
    stw_run_spec_free(&run);
    stw_import_free(&import);
}

static void command_lines(void) {
    stw_import import;
    CHECK_OK(parse("#!/bin/sh\ntorchrun --nproc-per-node 8 pretrain_gpt.py --num_layers=2 \\\n"
                   "  --hidden-size 64 --num-attention-heads 4 --bf16 \\\n"
                   "  --recompute-modules core_attn mlp --recompute-granularity 'selective' \\\n"
                   "  --hidden-size 128 # a comment\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "precision.params=bf16"));
    CU_ASSERT_TRUE(has_setting(&import, "recompute.modules=[core_attn,mlp]"));
    CU_ASSERT_EQUAL(use_of(&import, "nproc-per-node"), STW_N_IMPORT_USES);
    CU_ASSERT_EQUAL(use_of(&import, "num-layers"), STW_IMPORT_TAKEN);
    CU_ASSERT_PTR_NOT_NULL(strstr(import.config, "\"hidden_size\": 128"));
    stw_import_free(&import);
    CHECK_FAILS(
        parse("python pretrain_gpt.py --num-layers 2 # a comment\n  --bf16\n", &import, err),
        STW_STATUS_BAD_INPUT, "backslash");
    stw_import_free(&import);
    CHECK_FAILS(parse("--num-layers 2 stray\nx --bf16\n", &import, err), STW_STATUS_BAD_INPUT,
                "num-layers");
    stw_import_free(&import);
}

static void fp8_and_offload_are_taken(void) {
    stw_import import;
    CHECK_OK(parse(DENSE "fp8-format: e4m3\nfp8-recipe: blockwise\nfp8-param-gather: true\n"
                         "first-last-layers-bf16: true\nnum-layers-at-end-in-bf16: 2\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8=e4m3"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_recipe=blockwise"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_param_gather=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.first_layers_bf16=1"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.last_layers_bf16=2"));
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "fp8-format: hybrid\nfine-grained-activation-offloading: true\n"
                         "offload-modules: \"[core_attn attn_proj]\"\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.offload_modules=[core_attn,attn_proj]"));
    CU_ASSERT_FALSE(has_setting(&import, "megatron.fp8=hybrid"));
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "num-experts: 8\nexpert-model-parallel-size: 4\n"
                         "moe-token-dispatcher-type: flex\nmoe-enable-deepep: true\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "moe.dispatcher=deepep"));
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "num-experts: 8\nmoe-token-dispatcher-type: flex\n", &import, err));
    CU_ASSERT_FALSE(has_setting(&import, "moe.dispatcher=deepep")); /* one rank has all experts */
    stw_import_free(&import);
}

/* Each flag is understood, known to have no effect, listed, or refused. */
static void no_flag_is_ignored(void) {
    stw_import import;
    CHECK_OK(parse(DENSE "fp8-format: hybrid\nlog-interval: 1\nmade-up: 3\nhidden-dropout: 0.0\n"
                         "attention-dropout: 0.1\noptimizer: adam\n",
                   &import, err));
    CU_ASSERT_EQUAL(use_of(&import, "fp8-format"), STW_IMPORT_TAKEN);
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8=hybrid"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.fp8_recipe=delayed"));
    CU_ASSERT_EQUAL(use_of(&import, "attention-dropout"), STW_IMPORT_TAKEN);
    CU_ASSERT_EQUAL(use_of(&import, "hidden-dropout"), STW_IMPORT_TAKEN);
    CU_ASSERT_EQUAL(use_of(&import, "optimizer"), STW_IMPORT_TAKEN);
    CU_ASSERT_EQUAL(use_of(&import, "log-interval"), STW_IMPORT_NO_EFFECT);
    CU_ASSERT_EQUAL(use_of(&import, "made-up"), STW_IMPORT_UNKNOWN);
    CU_ASSERT_EQUAL(use_of(&import, "vocab-size"), STW_IMPORT_ASSUMED);
    CU_ASSERT_EQUAL(import.n_lines, 7 + 6 + 1); /* all of the file, and what was assumed */
    stw_import_free(&import);
    CHECK_FAILS(parse(DENSE "use-megatron-fsdp: true\n", &import, err), STW_STATUS_NOT_BUILT_IN,
                "no_shard");
    stw_import_free(&import);
    CHECK_FAILS(parse("hidden-size: 64\nnum-attention-heads: 4\n", &import, err),
                STW_STATUS_BAD_INPUT, "num-layers");
    stw_import_free(&import);
    CHECK_FAILS(parse(DENSE "num-query-groups: many\n", &import, err), STW_STATUS_BAD_INPUT,
                "num-query-groups");
    stw_import_free(&import);
    CHECK_FAILS(parse(DENSE "kv-channels: ${X}\n", &import, err), STW_STATUS_BAD_INPUT,
                "kv-channels");
    stw_import_free(&import);
    CHECK_FAILS(stw_import_parse("other", "x", "", 0, &import, err), STW_STATUS_USAGE, "megatron");
    stw_import_free(&import);
}

/* What contradicts itself is refused, and so are switches that are neither on nor off. */
static void contradictions_are_refused(void) {
    static const struct {
        const char *flags, *expected;
    } cases[] = {{"fp16: true\n", "--bf16: found \"true\", expected no --bf16 beside --fp16"},
                 {"swiglu: maybe\n", "--swiglu: found \"maybe\", expected true or false"},
                 {"qk-layernorm: 7\n", "expected true or false"},
                 {"num-experts: 9999999999\n", "a whole number from 0 to 1073741824"},
                 {"recompute-granularity: full\n", "recompute-method uniform or block"},
                 {"use-precision-aware-optimizer: true\n", "--use-distributed-optimizer"}};
    stw_import import;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", DENSE, cases[i].flags);
        CHECK_FAILS(parse(text, &import, err), STW_STATUS_BAD_INPUT, cases[i].expected);
        stw_import_free(&import);
    }
    CHECK_OK(parse(DENSE "swiglu: False\nqk-layernorm: 1\n", &import, err));
    stw_import_free(&import);
}

/* Flags of Muon have no effect with another optimizer. */
static void muon_of_flags(void) {
#define MUON "muon-num-ns-steps: 7\nmuon-no-split-qkv: true\nmuon-momentum: 0.95\n"
    stw_import import;
    CHECK_OK(parse(DENSE MUON "optimizer: muon\nmuon-tp-mode: blockwise\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.kind=muon"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.muon_ns_steps=7"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.muon_whole_qkv=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.muon_tp_mode=blockwise"));
    stw_import_free(&import);
    CHECK_OK(parse(DENSE MUON "optimizer: dist_muon\n", &import, err)); /* its older name */
    CU_ASSERT_TRUE(has_setting(&import, "optimizer.kind=muon"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.distributed_optimizer=true"));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.muon_ns_steps=7"));
    CU_ASSERT_EQUAL(use_of(&import, "optimizer"), STW_IMPORT_TAKEN);
    CU_ASSERT_EQUAL(use_of(&import, "muon-momentum"), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
    CHECK_OK(parse(DENSE MUON "optimizer: adam\n", &import, err));
    CU_ASSERT_FALSE(has_setting(&import, "megatron.muon_ns_steps=7"));
    CU_ASSERT_EQUAL(use_of(&import, "muon-num-ns-steps"), STW_IMPORT_NO_EFFECT);
    stw_import_free(&import);
    CHECK_FAILS(parse(DENSE "optimizer: soap\n", &import, err), STW_STATUS_NOT_BUILT_IN,
                "optimizer.kind");
    stw_import_free(&import);
    CHECK_FAILS(parse(DENSE "optimizer: muon\nmuon-fp32-matmul-prec: high\n", &import, err),
                STW_STATUS_NOT_BUILT_IN, "medium");
    stw_import_free(&import);
#undef MUON
}

static void optimizers_of_flags(void) {
#define AWARE "use-distributed-optimizer: true\nuse-precision-aware-optimizer: true\n"
    stw_import import;
    CHECK_OK(parse(DENSE AWARE "optimizer-cpu-offload: true\n", &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.precision_aware=true"));
    CU_ASSERT_EQUAL(use_of(&import, "use-precision-aware-optimizer"), STW_IMPORT_TAKEN);
    stw_import_free(&import);
    CHECK_OK(parse(DENSE AWARE, &import, err)); /* 16 bits of the main parameters are the model's */
    CU_ASSERT_TRUE(has_setting(&import, "megatron.precision_aware=false"));
    CU_ASSERT_EQUAL(stw_import_count(&import, STW_IMPORT_NOT_MODELLED), 1);
    stw_import_free(&import);
    CHECK_OK(parse(DENSE "cross-entropy-loss-fusion: true\ncross-entropy-fusion-impl: te\n",
                   &import, err));
    CU_ASSERT_TRUE(has_setting(&import, "megatron.cross_entropy_fusion_impl=te"));
    CU_ASSERT_EQUAL(use_of(&import, "cross-entropy-fusion-impl"), STW_IMPORT_TAKEN);
    stw_import_free(&import);
}

/* ---- golden rows ---- */

enum { GPUS = 1, FLAGS, MEASURED, MAX_ROWS = 1024 };

/* Bytes of the last stage at its peak. */
static uint64_t peak_of(const stw_job *job) {
    stw_place places[STW_MAX_PLACES];
    uint64_t most = 0;
    const uint32_t last = job->run->parallel.pp - 1;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const bool full = job->run->recompute.granularity == 1;
    for (uint32_t k = 0; k < job->n_kinds; k++) {
        stw_layout *layout = NULL;
        stw_program *program = NULL;
        stw_peaks peaks;
        if (job->kinds[k].stage != last) continue;
        const stw_simple simple = {.job = job,
                                   .kind = k,
                                   .place = places[0],
                                   .act = full ? STW_ACT_RECOMPUTE : STW_ACT_KEEP,
                                   .load = STW_LOAD_SHARDED_READ,
                                   .by_group = true,
                                   .depth = 1};
        CHECK_OK(stw_simple_build(&simple, &layout, &program, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(program);
        stw_program_walk(program, &peaks);
        for (int phase = 0; phase < STW_N_PHASES; phase++)
            most = stw_max_u64(most, stw_peak_allocated(&peaks.phase[phase][STW_TIER_GPU]));
        stw_program_free(program);
        stw_layout_free(layout);
    }
    return most;
}

/* The predicted peak, 0 if the flags are not planned. */
static uint64_t predicted(const char *flags, uint32_t gpus) {
    char text[2048], *at = text;
    stw_import import;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    stw_cluster cluster = fixture_cluster(gpus > 8 ? 8 : gpus);
    stw_run_spec run = {0};
    stw_error err = STW_ERROR_INIT;
    uint64_t bytes = 0;
    for (; *flags != '\0' && at + 2 < text + sizeof text; flags++)
        at += *flags == '=' ? sprintf(at, ": ") : sprintf(at, "%c", *flags == ';' ? '\n' : *flags);
    for (char *c = text; (c = strstr(c, "\n ")) != NULL;) memmove(c + 1, c + 2, strlen(c + 1));
    if (gpus > 8) cluster.nodes = gpus / 8;
    stw_status status = parse(text, &import, &err);
    if (status == STW_STATUS_OK)
        status = stw_import_model(&import, NULL, STW_SOURCE_DIR "/models", &model, &err);
    if (status == STW_STATUS_OK) status = stw_run_spec_init(&run, &err);
    if (status == STW_STATUS_OK) status = stw_import_run(&import, &run, &err);
    if (status == STW_STATUS_OK) status = stw_import_batch(&import, &cluster, &run, &err);
    if (status == STW_STATUS_OK) {
        status = stw_plan_new(model, &cluster, &run, &plan, &err);
        model = NULL;
    }
    if (status == STW_STATUS_OK) bytes = peak_of(plan->job);
    stw_plan_free(plan);
    stw_model_free(model);
    stw_run_spec_free(&run);
    stw_import_free(&import);
    return bytes;
}

#define EXPERTS                                                                                    \
    "num-layers=4; hidden-size=512; num-attention-heads=8; seq-length=1024; micro-batch-size=4; "  \
    "num-experts=8; moe-router-topk=2; disable-bias-linear=true; bf16=true"
#define STAGES                                                                                     \
    "num-layers=4; hidden-size=512; num-attention-heads=8; seq-length=1024; micro-batch-size=4; "  \
    "bf16=true; pipeline-model-parallel-size=2"

/* TransformerEngine's grouped products have four workspaces of 32 MiB. */
static void grouped_products(void) {
    const uint64_t bytes = predicted(EXPERTS, 2);
    CU_ASSERT_TRUE(bytes > 0);
    CU_ASSERT_EQUAL(predicted(EXPERTS "; moe-grouped-gemm=true", 2), bytes + 4 * (32ull << 20));
    const uint64_t local = predicted(EXPERTS "; transformer-impl=local", 2);
    CU_ASSERT_EQUAL(predicted(EXPERTS "; transformer-impl=local; moe-grouped-gemm=true", 2), local);
}

/* Of each earlier micro batch, up to the limit, the gradient of the logits and the head's input: 16
 * bits of 4096 rows, 50304 and 512 wide. */
static void deferred_gradients(void) {
    const uint64_t each = 4096ull * (50304 + 512) * 2;
    const uint64_t bytes = predicted(STAGES "; global-batch-size=16", 2);
    CU_ASSERT_TRUE(bytes > 0);
#define DEFERRED STAGES "; global-batch-size=16; defer-embedding-wgrad-compute=true"
    CU_ASSERT_EQUAL(predicted(DEFERRED, 2), bytes + 3 * each);
    CU_ASSERT_EQUAL(predicted(DEFERRED "; wgrad-deferral-limit=2", 2), bytes + 2 * each);
    CU_ASSERT_EQUAL(predicted(DEFERRED "; wgrad-deferral-limit=9", 2), bytes + 3 * each);
}

/* The head's gradient of a tied embedding waits for the embedding's: where backward is the widest
 * moment, an element of the vocabulary costs 2 bytes more than its 18 of state. */
static void tied_gradients(void) {
#define TIED                                                                                       \
    "num-layers=4; hidden-size=512; num-attention-heads=8; seq-length=1024; micro-batch-size=4; "  \
    "bf16=true; attention-backend=unfused; recompute-granularity=full; recompute-method=uniform; "
    const uint64_t small = predicted(TIED "vocab-size=1024", 2);
    CU_ASSERT_TRUE(small > 0);
    CU_ASSERT_EQUAL(predicted(TIED "vocab-size=2048", 2) - small, 20ull * 1024 * 512);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NVIDIA's functional tests: flags in, the last rank's peak out. */
static void golden_rows(void) {
    stw_table table = {0};
    stw_pool *pool = stw_pool_new();
    static double errors[MAX_ROWS];
    size_t n = 0, left_out = 0;
    CHECK_OK(
        stw_table_read(pool, STW_SOURCE_DIR "/tests/measured/megatron_golden.csv", &table, err));
    for (size_t r = 1; r < table.n_rows; r++) {
        const char *const *fields = (const char *const *)table.rows[r].fields;
        if (strstr(fields[0], "release") != NULL) continue;
        uint64_t bytes = predicted(fields[FLAGS], (uint32_t)atoi(fields[GPUS]));
        for (const char *m = fields[MEASURED]; m != NULL && n < MAX_ROWS; m = strchr(m, ';')) {
            double resting, peak;
            m += strspn(m, "; ");
            CU_ASSERT_EQUAL_FATAL(sscanf(m, "%*s %lf %lf", &resting, &peak), 2);
            if (bytes == 0)
                left_out++;
            else
                errors[n++] = fabs((double)bytes / 1073741824.0 / peak - 1);
        }
    }
    qsort(errors, n, sizeof errors[0], ascending);
    CU_ASSERT_TRUE_FATAL(n > 450);
    CU_ASSERT_TRUE(10 * left_out <= n + left_out);
    if (errors[n / 2] > 0.02) fprintf(stderr, "median of %zu rows: %.4f\n", n, errors[n / 2]);
    CU_ASSERT_TRUE(errors[n / 2] <= 0.02);
    CU_ASSERT_TRUE(errors[n * 4 / 5] <= 0.10);
    stw_pool_free(pool);
}

STW_TEST_MAIN("planner import", {"models of flags", models_of_flags},
              {"models with experts", models_with_experts}, {"latent attention", latent_attention},
              {"encoder and decoder", encoder_and_decoder}, {"runs of flags", runs_of_flags},
              {"stages of flags", stages_of_flags}, {"batches of clusters", batches_of_clusters},
              {"command lines", command_lines}, {"no flag is ignored", no_flag_is_ignored},
              {"fp8 and offload are taken", fp8_and_offload_are_taken},
              {"contradictions are refused", contradictions_are_refused},
              {"optimizers of flags", optimizers_of_flags}, {"muon of flags", muon_of_flags},
              {"grouped products", grouped_products}, {"deferred gradients", deferred_gradients},
              {"tied gradients", tied_gradients}, {"golden rows", golden_rows})
