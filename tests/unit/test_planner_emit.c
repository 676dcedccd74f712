/* SPDX-License-Identifier: Apache-2.0 */
/* Emitted settings, read back, plan to the same bytes: random settings of every framework.
 * Any keys at all: what is emitted, with what it says is to be set beside it, plans to the same
 * bytes, or nothing is emitted. STW_EMIT_ROUNDS and STW_EMIT_KEYS set how many of each file
 * (bench/emit.sh runs 200). */
#include <stdlib.h>

#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/point.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif
#define MODELS STW_SOURCE_DIR "/models"

enum { MOST_VALUES = 6, MOST_KEYS = 24 };

typedef struct knob {
    const char *key;
    const char *values[MOST_VALUES]; /* NULL at the end */
} knob;

typedef struct kind {
    const char *framework, *text, *model; /* model: where the file names none */
    knob knobs[MOST_KEYS];
} kind;

#define ZERO                                                                                       \
    {"deepspeed.zero_stage", {"1", "2", "3"}}, {"batch.micro_batch", {"1", "2", "3"}},             \
        {"batch.grad_accumulation", {"1", "3", "8"}}, {"optimizer.clip_norm", {"none", "0.5"}}, {  \
        "deepspeed.offload_optimizer", {                                                           \
            "none", "cpu", "cpu; deepspeed.offload_param=cpu",                                     \
                "cpu; deepspeed.zero_stage=3; deepspeed.ratio=0.4",                                \
                "nvme; deepspeed.zero_stage=3; deepspeed.offload_param=cpu",                       \
                "nvme; deepspeed.zero_stage=3; deepspeed.offload_param=nvme; "                     \
                "deepspeed.param_buffer_size=2e8; deepspeed.optimizer_buffer_count=8"              \
        }                                                                                          \
    }
#define FSDP                                                                                       \
    {"batch.micro_batch", {"1", "2", "5"}}, {"batch.grad_accumulation", {"1", "2", "7"}},          \
        {"optimizer.clip_norm", {"1", "0.25", "none"}}, {"batch.seq_len", {"512", "768"}}, {       \
        "recompute.granularity", { "full", "none" }                                                \
    }

#define SAVES_MODEL "20; checkpoint.contents=[model]; checkpoint.format=hf"

static const kind kinds[] = {
    {"deepspeed",
     "{\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e7, \"round\": 1},\n"
     "\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1,\n"
     "\"gradient_accumulation_steps\": 2, \"steps_per_print\": 10}\n",
     "Qwen3-0.6B",
     {ZERO,
      {"deepspeed.reduce_bucket", {"1000000", "40000000"}},
      {"deepspeed.prefetch_bucket", {"1000000", "30000000"}},
      {"deepspeed.persistence_threshold", {"0", "20000"}},
      {"deepspeed.pin_memory", {"true", "false"}},
      {"deepspeed.overlap_comm", {"true"}},
      {"deepspeed.sub_group_size", {"50000000"}},
      {"deepspeed.max_live_parameters", {"20000000"}},
      {"deepspeed.max_reuse_distance", {"0", "5000000"}},
      {"precision.reduce", {"fp32"}},
      {"precision.grads", {"bf16", "fp32"}}}},
    {"llamafactory",
     "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
     "deepspeed: examples/deepspeed/ds_z3_config.json\ncutoff_len: 1024\ndataset: x\n"
     "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\n",
     NULL,
     {FSDP,
      {"attention", {"flash", "sdpa", "eager"}},
      {"checkpoint.every", {"20", "30; checkpoint.keep=2", SAVES_MODEL}},
      {"deepspeed.offload_optimizer", {"none"}}}},
    {"llamafactory", /* DistributedDataParallel; images */
     "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nstage: sft\nbf16: true\ncutoff_len: 1024\n"
     "lora_target: all\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 2\n",
     NULL,
     {FSDP,
      {"batch.image_tokens", {"100", "512"}},
      {"trainable.lora.rank", {"4", "16"}},
      {"trainable.lora.targets", {"[all-linear]", "[q_proj,v_proj]"}},
      {"optimizer.implementation", {"fused", "foreach"}}}},
    {"ms-swift", /* images */
     "MAX_PIXELS=401408 NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct \\\n"
     " --torch_dtype bfloat16 --max_length 1024 --deepspeed zero2\n",
     NULL,
     {FSDP, {"batch.image_tokens", {"100", "512"}}, {"trainable.lora.rank", {"4", "16"}}}},
    {"ms-swift",
     "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 --dataset x \\\n"
     " --deepspeed zero3 --max_length 1024 --per_device_train_batch_size 2 --tuner_type full\n",
     NULL,
     {FSDP,
      {"attention", {"flash", "sdpa"}},
      {"checkpoint.every", {"20", "30; checkpoint.keep=2", SAVES_MODEL}},
      {"allocator.expandable_segments", {"true", "false"}}}},
    {"ms-swift", /* DistributedDataParallel */
     "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 --dataset x \\\n"
     " --max_length 1024 --per_device_train_batch_size 2 --lora_rank 16\n",
     NULL,
     {FSDP,
      {"attention", {"flash", "sdpa"}},
      {"checkpoint.every", {"20; checkpoint.contents=[optimizer]"}},
      {"trainable.lora.rank", {"4", "8"}},
      {"optimizer.implementation", {"fused", "foreach"}}}},
    {"ms-swift",
     "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 1024 \\\n"
     " --tensor_model_parallel_size 2 --global_batch_size 32 --packing true --dataset 'a#1'\n",
     NULL,
     {{"parallel.tp", {"1", "2", "4"}},
      {"parallel.pp", {"1", "2"}},
      {"parallel.cp", {"1", "2"}},
      {"batch.micro_batch", {"1", "2"}},
      {"batch.grad_accumulation", {"2", "4"}},
      {"recompute.granularity", {"none", "selective", "full"}},
      {"checkpoint.every", {"0", "20", "20; checkpoint.async=true; checkpoint.keep=2"}},
      {"megatron.overlap_grad_reduce", {"true", "false"}}}},
    {"ms-swift",
     "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 1024 \\\n"
     " --tensor_model_parallel_size 2 --global_batch_size 32 --tuner_type lora --lora_rank 4 \\\n"
     " --target_modules linear_qkv linear_fc2 --packing true\n",
     NULL,
     {{"parallel.tp", {"1", "2", "4"}},
      {"trainable.lora.rank", {"8", "32"}},
      {"megatron.lora_dropout", {"0", "0.1"}},
      {"recompute.granularity", {"none", "full"}}}},
    {"megatron",
     "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 \\\n"
     "--micro-batch-size 2 --global-batch-size 64 --swiglu --untie-embeddings-and-output-weights "
     "\\\n"
     "--max-position-embeddings 4096 --use-distributed-optimizer --data-path a b --lr 1e-4\n",
     NULL,
     {{"parallel.tp", {"1", "2", "4"}},
      {"parallel.pp", {"1", "2"}},
      {"parallel.vpp", {"1", "2"}},
      {"parallel.cp", {"1", "2"}},
      {"parallel.sequence_parallel", {"true", "false"}},
      {"batch.micro_batch", {"1", "2"}},
      {"batch.grad_accumulation", {"4", "8"}},
      {"batch.seq_len", {"1024", "2048"}},
      {"recompute.granularity", {"none", "selective", "full"}},
      {"recompute.modules", {"[core_attn]", "[mlp, layernorm]"}},
      {"recompute.method", {"uniform", "block"}},
      {"recompute.num_layers", {"1", "2"}},
      {"megatron.distributed_optimizer", {"true", "false"}},
      {"megatron.overlap_grad_reduce", {"true", "false"}},
      {"megatron.optimizer_cpu_offload",
       {"true; megatron.optimizer_offload_fraction=0.5",
        "true; megatron.optimizer_offload_fraction=1"}},
      {"megatron.precision_aware", {"true"}},
      {"megatron.cross_entropy_fusion", {"true", "false"}},
      {"megatron.vocab_multiple", {"128", "256"}},
      {"megatron.hidden_dropout", {"0", "0.1"}},
      {"attention", {"flash", "eager"}},
      {"megatron.transformer_impl", {"local; attention=eager", "transformer_engine"}},
      {"optimizer.clip_norm", {"1", "none"}}}},
    {"megatron", /* a launch script */
     "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nTP=2\nARGS=(--num-layers 8\n"
     "--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 --micro-batch-size 2)\n"
     "torchrun --nproc_per_node 8 $X/pretrain_gpt.py ${ARGS[@]} --global-batch-size 64 \\\n"
     "--tensor-model-parallel-size $TP --use-distributed-optimizer --save $1 --save-interval 9\n",
     NULL,
     {{"parallel.tp", {"1", "2", "4"}},
      {"parallel.cp", {"1", "2"}},
      {"batch.seq_len", {"1024", "2048"}},
      {"allocator.expandable_segments", {"true", "false"}},
      {"allocator.max_split_size", {"none", "64 MiB"}},
      {"checkpoint.every",
       {"0", "20", "20; checkpoint.async=true", "20; checkpoint.contents=[model]"}},
      {"optimizer.kind",
       {"adamw", "muon; megatron.overlap_grad_reduce=true",
        "muon; megatron.distributed_optimizer=false; megatron.muon_nesterov=true",
        "muon; megatron.distributed_optimizer=false; megatron.muon_ns_steps=7; "
        "megatron.muon_tp_mode=distributed"}},
      {"recompute.granularity", {"none", "full"}}}},
    {"megatron",
     "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 \\\n"
     "--micro-batch-size 1 --global-batch-size 32 --swiglu --num-experts 8 --moe-router-topk 2 \\\n"
     "--max-position-embeddings 4096 --use-distributed-optimizer --moe-grouped-gemm\n",
     NULL,
     {{"parallel.ep", {"1", "2", "4"}},
      {"parallel.tp", {"1", "2"}},
      {"parallel.etp", {"1", "2"}},
      {"moe.dispatcher", {"alltoall", "allgather"}},
      {"moe.capacity_factor", {"none", "1.25"}},
      {"megatron.pad_to_capacity", {"true", "false"}},
      {"megatron.grouped_gemm", {"true", "false"}},
      {"megatron.fsdp", {"none", "optim", "optim_grads", "optim_grads_params"}},
      {"recompute.granularity", {"none", "full"}}}},
    {"verl",
     "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 \\\n"
     " actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm \\\n"
     " actor_rollout_ref.actor.strategy=fsdp2 trainer.n_gpus_per_node=8 trainer.nnodes=1 \\\n"
     " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 algorithm.adv_estimator=grpo \\\n"
     " actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 \\\n"
     " actor_rollout_ref.actor.use_kl_loss=True trainer.logger=['console','wandb']\n",
     NULL,
     {FSDP,
      {"park.params", {"none", "host"}},
      {"park.moments", {"none", "host; park.moments_back=forward_backward"}},
      {"fsdp.reshard_after_forward", {"true", "false"}},
      {"parallel.cp", {"1", "2"}},
      {"precision.params", {"fp32", "bf16"}},
      {"batch.log_prob_micro_batch", {"1", "8"}},
      {"allocator.expandable_segments", {"true", "false"}},
      {"roles.0.parallel.tp", {"1", "2", "4"}},
      {"roles.0.gpu_memory_utilization", {"0.4", "0.55"}},
      {"roles.0.max_num_seqs", {"64", "1024"}},
      {"roles.0.engine", {"vllm", "sglang; weight_sync.method=buckets; roles.0.sleep_level=auto"}},
      {"roles.0.enforce_eager", {"true", "false"}},
      {"checkpoint.every", {"0", "20", "30; checkpoint.contents=[model]", "20; checkpoint.keep=3"}},
      {"roles.0.update_bucket", {"512 MiB", "1 GiB"}}}},
    {"verl",
     "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer \\\n"
     " data.max_prompt_length=512 data.max_response_length=1536 algorithm.adv_estimator=grpo \\\n"
     " actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm \\\n"
     " trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\\n"
     " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2\n",
     NULL,
     {{"parallel.tp", {"1", "2", "4"}},
      {"parallel.pp", {"1", "2"}},
      {"batch.micro_batch", {"1", "2"}},
      {"batch.grad_accumulation", {"2", "4"}},
      {"park.params", {"none", "host"}},
      {"park.grads", {"none", "host"}},
      {"park.moments", {"none", "host; park.moments_back=forward_backward"}},
      {"recompute.granularity", {"none", "selective", "full"}},
      {"megatron.overlap_grad_reduce", {"true", "false"}},
      {"checkpoint.every", {"20", "20; checkpoint.async=true"}},
      {"roles.0.parallel.tp", {"1", "2"}}}},
    {"verl",
     "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 \\\n"
     " actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm \\\n"
     " actor_rollout_ref.actor.strategy=fsdp2 algorithm.adv_estimator=grpo \\\n"
     " actor_rollout_ref.model.lora_rank=16 actor_rollout_ref.actor.use_dynamic_bsz=True \\\n"
     " actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096\n",
     NULL,
     {{"trainable.lora.rank", {"8", "64"}},
      {"trainable.lora.targets", {"[q_proj,v_proj]", "[o_proj]"}},
      {"batch.max_tokens_per_gpu", {"2048", "8192"}},
      {"batch.grad_accumulation", {"1", "2", "6"}},
      {"fsdp.offload_policy", {"true; optimizer.implementation=auto"}}}},
    {"areal", /* the streamed step */
     "cluster: {n_nodes: 2, n_gpus_per_node: 8}\nscheduler: {type: ray}\n"
     "train_dataset: {batch_size: 64, max_length: 512, path: x}\nactor:\n"
     "  backend: fsdp:d16\n  path: Qwen/Qwen3-0.6B\n  mb_spec: {max_tokens_per_mb: 4096}\n"
     "  fsdp: {per_layer_optim_step: true, optim_step_prefetch_layers: 2}\n",
     NULL,
     {{"prefetch.depth", {"1", "3"}},
      {"recompute.granularity", {"full", "none"}},
      {"optimizer.clip_norm", {"1", "none"}},
      {"optimizer.implementation", {"fused; placement.moments=gpu", "streamed"}}}},
    {"areal",
     "allocation_mode: sglang:d4t2+fsdp:d8\ncluster: {n_nodes: 2, n_gpus_per_node: 8}\n"
     "gconfig: {n_samples: 4, max_new_tokens: 512}\n"
     "train_dataset: {batch_size: 64, max_length: 512, path: x}\n"
     "sglang: {mem_fraction_static: 0.7, context_length: 4096}\nactor:\n"
     "  path: Qwen/Qwen3-0.6B\n  dtype: bfloat16\n  mb_spec: {max_tokens_per_mb: 4096}\n"
     "  optimizer: {type: adam, lr: 1e-5}\n  kl_ctl: 0.0\n  recompute_logprob: true\n",
     NULL,
     {{"batch.max_tokens_per_gpu",
       {"2048; batch.log_prob_micro_batch=2", "8192; batch.log_prob_micro_batch=8"}},
      {"batch.grad_accumulation", {"1", "2", "4"}},
      {"recompute.granularity", {"full", "none"}},
      {"optimizer.clip_norm", {"1", "0.25", "none"}},
      {"parallel.cp", {"2; batch.max_tokens_per_gpu=2048; batch.log_prob_micro_batch=4"}},
      {"load.method", {"all_ranks_gpu", "rank0_broadcast"}},
      {"checkpoint.every",
       {"0", "20; checkpoint.keep=1", "20; checkpoint.contents=[model]; checkpoint.format=hf",
        "20; checkpoint.contents=[model]; checkpoint.keep=1"}},
      {"roles.0.parallel.tp", {"1", "2", "4"}},
      {"roles.0.gpu_memory_utilization", {"0.6", "0.8"}},
      {"roles.0.max_model_len", {"2048", "8192"}}}},
};

/* ---- plans ---- */

static uint64_t seed = 20261122;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static stw_status plan_of(const stw_import *import, const stw_model *model,
                          const stw_cluster *cluster, const char *const *settings, size_t n,
                          stw_plan **out, stw_error *err) {
    const stw_point_base base = {
        .model = model, .import = import, .cluster = cluster, .simulate = stw_sim_seconds};
    const stw_point_options options = {.time_limit_s = 20, .fits_only = true};
    *out = NULL;
    return stw_point_plan(&base, settings, n, &options, out, err);
}

static bool equal_bytes(const stw_plan *a, const stw_plan *b) {
    if (a->job->n_kinds != b->job->n_kinds) return false;
    for (uint32_t k = 0; k < a->job->n_kinds; k++)
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            for (uint32_t m = 0; m < 3; m++)
                if (stw_peaks_bytes(&a->shown[k], p, m) != stw_peaks_bytes(&b->shown[k], p, m))
                    return false;
    return true;
}

/* ---- round trips ---- */

/* Some of the knobs; settings are KEY=VALUE in the pool. A value may bring others after "; ". */
static size_t choose(const kind *k, stw_pool *pool, const char **out) {
    size_t n = 0;
    for (size_t i = 0; i < MOST_KEYS && k->knobs[i].key != NULL; i++) {
        uint32_t values = 0;
        while (values < MOST_VALUES && k->knobs[i].values[values] != NULL) values++;
        if (below(2) == 0) continue;
        const char *value = k->knobs[i].values[below(values)];
        size_t length = strcspn(value, ";");
        out[n++] = stw_pool_printf(pool, "%s=%.*s", k->knobs[i].key, (int)length, value);
        while (value[length] == ';') {
            value += length + 2;
            length = strcspn(value, ";");
            out[n++] = stw_pool_printf(pool, "%.*s", (int)length, value);
        }
    }
    return n;
}

/* A DeepSpeed config says nothing of these. */
static const char *const untold[] = {"batch.seq_len=1024", "recompute.granularity=full",
                                     "attention=flash"};

static bool round_trip(const kind *k, const stw_cluster *cluster, const stw_import *import,
                       const stw_model *model, const char *const *settings, size_t n) {
    stw_plan *first = NULL, *second = NULL;
    stw_import again = {.pool = NULL};
    stw_text text = STW_TEXT_INIT, notes = STW_TEXT_INIT;
    const char *from = k->framework;
    const bool told = k->model == NULL;
    bool planned = plan_of(import, model, cluster, settings, n, &first, NULL) == STW_STATUS_OK;
    if (planned) {
        stw_error why = STW_ERROR_INIT;
        const stw_emit_options options = {
            .from = from, .import = import, .data_folder = MODELS, .simulate = stw_sim_seconds};
        const stw_status emitted =
            stw_emit_plan(k->framework, first, &options, &text, &notes, &why);
        planned = strstr(why.text, "is no multiple of") == NULL; /* steps that it cannot have */
        if (!planned) goto out;
        CU_ASSERT_EQUAL(emitted, STW_STATUS_OK);
        if (emitted != STW_STATUS_OK) {
            fprintf(stderr, "%s:", k->framework);
            for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", settings[i]);
            fprintf(stderr, "\n%s\n", why.text);
            goto out;
        }
        CHECK_OK(stw_import_parse(k->framework, "again", text.data, text.length, &again, err));
        stw_model *own = NULL;
        CHECK_OK(stw_import_model(&again, k->model, MODELS, &own, err));
        CHECK_OK(plan_of(&again, own, cluster, untold, told ? 0 : 3, &second, err));
        const bool equal = second != NULL && equal_bytes(first, second);
        CU_ASSERT_TRUE(equal);
        CU_ASSERT_PTR_NULL(told && notes.data != NULL ? strstr(notes.data, "do not say") : NULL);
        if (!equal || (told && notes.data != NULL && strstr(notes.data, "do not say") != NULL)) {
            fprintf(stderr, "%s:", k->framework);
            for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", settings[i]);
            fprintf(stderr, "\n%s\n", notes.data != NULL ? notes.data : "");
        }
        stw_plan_free(second);
        stw_model_free(own);
    }
out:
    stw_plan_free(first);
    stw_import_free(&again);
    stw_text_free(&text);
    stw_text_free(&notes);
    return planned;
}

static void round_trips_of(const kind *k, unsigned rounds) {
    stw_import import;
    stw_model *model = NULL;
    stw_cluster cluster;
    unsigned done = 0, tries = 0;
    const bool two = strcmp(k->framework, "areal") == 0;
    CHECK_OK(stw_import_parse(k->framework, "file", k->text, strlen(k->text), &import, err));
    CHECK_OK(stw_import_model(&import, k->model, MODELS, &model, err));
    CHECK_OK(stw_cluster_defaults(&cluster, err));
    CHECK_OK(stw_cluster_read(MODELS "/examples/h100-80g-x8.yaml", &cluster, err));
    CHECK_OK(stw_cluster_set(&cluster, "nodes", two ? "2" : "1", "test", err));
    CHECK_OK(stw_cluster_set(&cluster, "node.nvme.capacity", "10 TB", "test", err));
    for (; done < rounds && tries < 40 * rounds; tries++) {
        const char *settings[2 * MOST_KEYS + 4];
        stw_pool *pool = stw_pool_new();
        size_t n = choose(k, pool, settings);
        for (size_t i = 0; i < 3 && k->model != NULL; i++) settings[n++] = untold[i];

        done += round_trip(k, &cluster, &import, model, settings, n);
        stw_pool_free(pool);
    }
    if (done < rounds) fprintf(stderr, "%s: %u of %u tries planned\n", k->framework, done, tries);
    CU_ASSERT_EQUAL(done, rounds);
    if (done == 0) {
        stw_plan *plan = NULL;
        CHECK_OK(plan_of(&import, model, &cluster, NULL, 0, &plan, err));
        stw_plan_free(plan);
    }
    stw_model_free(model);
    stw_import_free(&import);
}

static void round_trips(void) {
    const char *text = getenv("STW_EMIT_ROUNDS");
    const unsigned rounds = text != NULL ? (unsigned)strtoul(text, NULL, 10) : 4;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) round_trips_of(&kinds[i], rounds);
}

/* ---- any key ---- */

enum { MOST_SAID = 96, MOST_ANY = 3 };

/* Keys that settings of no framework say, or of a few: these are tried more often. */
static const char *const hidden[] = {
    "load.method",           "load.dtype",          "optimizer.implementation",
    "prefetch.depth",        "prefetch.bucket",     "placement.moments",
    "placement.params",      "placement.grads",     "placement.activations",
    "update.stream",         "update.cpu",          "weight_sync.method",
    "roles.0.update_bucket", "roles.0.engine",      "roles.0.sleep_level",
    "roles.0.dtype",         "roles.0.max_num_seqs"};

/* A value that the key may have; in the pool. NULL: none is known. */
static const char *value_of(const stw_spec_row *row, stw_pool *pool) {
    static const double numbers[] = {1, 2, 3, 8, 0.25, 0.5, 64, 4096, 1e6, 1e8};
    uint32_t words = 0;
    while (row->words != NULL && row->words[words].word != NULL) words++;
    if (row->kind == STW_SPEC_BOOL && words == 0) return below(2) == 0 ? "true" : "false";
    if (words > 0 && (row->kind == STW_SPEC_WORDS || below(2) == 0))
        return row->words[below(words)].word;
    if (row->kind != STW_SPEC_COUNT && row->kind != STW_SPEC_NUMBER && row->kind != STW_SPEC_BYTES)
        return NULL;
    const double number = numbers[below(sizeof numbers / sizeof numbers[0])];
    if (row->kind != STW_SPEC_BYTES) return stw_pool_printf(pool, "%.9g", number);
    return stw_pool_printf(pool, "%.0f MiB", number < 1 || number > 4096 ? 512 : number);
}

/* KEY=VALUE of the run, or of its first role; in the pool. NULL: try again. */
static const char *any_setting(const stw_import *import, stw_pool *pool) {
    const stw_spec_table *run = stw_run_spec_table(), *role = stw_role_table();
    const char *key = below(3) > 0 ? hidden[below(sizeof hidden / sizeof hidden[0])]
                                   : run->rows[below((uint32_t)run->n_rows)].key;
    const bool of_role = strncmp(key, "roles.0.", 8) == 0;
    const stw_spec_row *row = of_role ? stw_spec_find(role, key + 8, strlen(key + 8))
                                      : stw_spec_find(run, key, strlen(key));
    if (row == NULL || row->kind == STW_SPEC_ITEMS || (of_role && import->n_settings == 0))
        return NULL;
    const char *value = strcmp(key, "engine") == 0 ? NULL : value_of(row, pool);
    return value != NULL ? stw_pool_printf(pool, "%s=%s", key, value) : NULL;
}

/* What the notes ask the user to set: "  KEY: VALUE"; in the pool. @return how many */
static size_t said_by(const stw_text *notes, stw_pool *pool, const char **out) {
    size_t n = 0;
    const char *at = notes->data != NULL ? strstr(notes->data, "do not say; set it") : NULL;
    if (at != NULL) at = strchr(at, '\n');
    while (at != NULL && strncmp(at, "\n  ", 3) == 0 && n < MOST_SAID) {
        const size_t length = strcspn(at + 3, "\n"), key = strcspn(at + 3, ":");
        if (strncmp(at + 3 + key, ": of the planned", 16) != 0)
            out[n++] = stw_pool_printf(pool, "%.*s=%.*s", (int)key, at + 3, (int)(length - key - 2),
                                       at + 3 + key + 2);
        at += 3 + length;
    }
    return n;
}

static void show(const char *what, const kind *k, const char *const *settings, size_t n,
                 const char *said) {
    fprintf(stderr, "%s: %s:", what, k->framework);
    for (size_t i = 0; i < n; i++) fprintf(stderr, " --set \"%s\"", settings[i]);
    fprintf(stderr, "\n%s\n", said);
}

/* Settings that are written, with what they say is to be set beside them, plan to the same bytes.
 * @return was anything written? */
static bool is_kept(const kind *k, const stw_cluster *cluster, const stw_import *import,
                    const stw_plan *plan, const char *const *settings, size_t n, stw_pool *pool) {
    const char *said[MOST_SAID];
    stw_plan *second = NULL;
    stw_import again = {.pool = NULL};
    stw_model *own = NULL;
    stw_error why = STW_ERROR_INIT;
    stw_text text = STW_TEXT_INIT, notes = STW_TEXT_INIT;
    const stw_emit_options options = {
        .from = k->framework, .import = import, .data_folder = MODELS, .simulate = stw_sim_seconds};
    const bool written =
        stw_emit_plan(k->framework, plan, &options, &text, &notes, &why) == STW_STATUS_OK;
    if (!written) {
        const bool named = why.status == STW_STATUS_NOT_BUILT_IN ||
                           why.status == STW_STATUS_USAGE || why.status == STW_STATUS_BAD_INPUT;
        CU_ASSERT_TRUE(named && text.length == 0 && notes.length == 0);
        if (!named) show("emission fails", k, settings, n, why.text);
        goto out;
    }
    CHECK_OK(stw_import_parse(k->framework, "again", text.data, text.length, &again, err));
    CHECK_OK(stw_import_model(&again, k->model, MODELS, &own, err));
    const stw_status status =
        plan_of(&again, own, cluster, said, said_by(&notes, pool, said), &second, &why);
    const bool equal = status == STW_STATUS_OK && equal_bytes(plan, second);
    CU_ASSERT_TRUE(equal);
    if (!equal) show("other bytes", k, settings, n, notes.data != NULL ? notes.data : "no notes");
    if (status != STW_STATUS_OK) fprintf(stderr, "%s %s\n", why.where, why.text);
out:
    stw_plan_free(second);
    stw_model_free(own);
    stw_import_free(&again);
    stw_text_free(&text);
    stw_text_free(&notes);
    return written;
}

static void any_keys_of(const kind *k, unsigned rounds) {
    stw_import import;
    stw_model *model = NULL;
    stw_cluster cluster;
    unsigned done = 0, written = 0;
    CHECK_OK(stw_import_parse(k->framework, "file", k->text, strlen(k->text), &import, err));
    CHECK_OK(stw_import_model(&import, k->model, MODELS, &model, err));
    CHECK_OK(stw_cluster_defaults(&cluster, err));
    CHECK_OK(stw_cluster_read(MODELS "/examples/h100-80g-x8.yaml", &cluster, err));
    CHECK_OK(stw_cluster_set(&cluster, "nodes", strcmp(k->framework, "areal") == 0 ? "2" : "1",
                             "test", err));
    CHECK_OK(stw_cluster_set(&cluster, "node.nvme.capacity", "10 TB", "test", err));
    for (unsigned tries = 0; done < rounds && tries < 60 * rounds; tries++) {
        const char *settings[MOST_ANY + 3];
        size_t n = 0;
        stw_plan *plan = NULL;
        stw_pool *pool = stw_pool_new();
        for (uint32_t want = 1 + below(MOST_ANY); n < want;) {
            const char *setting = any_setting(&import, pool);
            if (setting != NULL) settings[n++] = setting;
        }
        for (size_t i = 0; i < 3 && k->model != NULL; i++) settings[n++] = untold[i];
        if (plan_of(&import, model, &cluster, settings, n, &plan, NULL) == STW_STATUS_OK) {
            written += is_kept(k, &cluster, &import, plan, settings, n, pool);
            done++;
        }
        stw_plan_free(plan);
        stw_pool_free(pool);
    }
    if (getenv("STW_EMIT_KEYS") != NULL)
        fprintf(stderr, "any keys: %s: %u plans, %u written, %u refused\n", k->framework, done,
                written, done - written);
    CU_ASSERT_EQUAL(done, rounds);
    stw_model_free(model);
    stw_import_free(&import);
}

static void any_keys(void) {
    const char *text = getenv("STW_EMIT_KEYS");
    const unsigned rounds = text != NULL ? (unsigned)strtoul(text, NULL, 10) : 6;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) any_keys_of(&kinds[i], rounds);
}

STW_TEST_MAIN("planner emit", {"round trips", round_trips}, {"any keys", any_keys})
