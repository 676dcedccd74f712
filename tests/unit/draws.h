/* SPDX-License-Identifier: Apache-2.0 */
/* Random runs: a model of the zoo, a cluster that has a name, an engine and plausible keys. A draw
 * is a function of a seed and a number, so that a number is enough to see it again. Keys that the
 * run refuses are dropped one by one until it is a run. */
#ifndef STW_TESTS_UNIT_DRAWS_H
#define STW_TESTS_UNIT_DRAWS_H

#include "core/checked.h"
#include "plan/job/effect.h"
#include "plan/spec/presets.h"
#include "planner/problem.h"
#include "planner/solvers.h"
#include "tests/unit/planner_case.h"

enum { DRAWS_STOWAGE = 1, DRAWS_FSDP2 = 2, DRAWS_MEGATRON = 4, DRAWS_DEEPSPEED = 8 };
enum { DRAWS_MOST_SETTINGS = 32, DRAWS_SETTING_BYTES = 128, DRAWS_OF = 24 };
#define DRAWS_ANY 15u

static const char *const draws_engines[] = {"stowage", "fsdp2", "megatron", "deepspeed"};

/* Small ones first: of the first third as many draws as of all. */
static const char *const draws_models[] = {"SmolLM2-135M",
                                           "Qwen2.5-0.5B",
                                           "Qwen3-0.6B",
                                           "Gemma-3-1b",
                                           "Qwen3.5-0.8B",
                                           "InternVL3-1B",
                                           "TinyLlama-1.1B",
                                           "GPT-2",
                                           "Llama-3.2-1B",
                                           "Qwen3-1.7B",
                                           "Gemma-2-2b",
                                           "Phi-3-mini",
                                           "Qwen3-4B",
                                           "Mistral-7B-v0.3",
                                           "DeepSeek-V2-Lite",
                                           "OLMo-2-7B",
                                           "Qwen3-8B",
                                           "Qwen1.5-MoE-A2.7B",
                                           "gpt-oss-20b",
                                           "Moonlight-16B-A3B",
                                           "Gemma-3-27b",
                                           "Qwen3-30B-A3B",
                                           "Qwen3.5-35B-A3B",
                                           "Mixtral-8x7B",
                                           "Llama-3.1-70B",
                                           "Qwen2.5-VL-3B-Instruct",
                                           "Qwen3-VL-4B",
                                           "Phi-3.5-MoE",
                                           "GLM-4.5-Air",
                                           "gpt-oss-120b",
                                           "SmolLM3-3B",
                                           "Phi-4-mini",
                                           "Gemma-2-9b",
                                           "Qwen3-Next-80B-A3B",
                                           "InternVL3.5-30B-A3B",
                                           "Qwen3-VL-30B-A3B",
                                           "Llama-4-Scout",
                                           "MiniMax-M2",
                                           "Qwen3-235B-A22B",
                                           "Llama-3.1-405B",
                                           "GLM-5",
                                           "DeepSeek-V3",
                                           "Kimi-K2",
                                           "Qwen3.5-397B-A17B"};

static const char *const draws_clusters[] = {
    "h200-x1",      "h200-x2",     "h200-x4",     "h200-x8",      "h100-80g-x1", "h100-80g-x2",
    "h100-80g-x8",  "a100-80g-x1", "a100-80g-x4", "a100-80g-x8",  "a100-40g-x1", "a100-40g-x4",
    "a100-40g-x8",  "l40s-x1",     "l40s-x8",     "l4-x4",        "rtx-4090-x1", "rtx-4090-x8",
    "rtx-3090-x2",  "v100-16g-x4", "mi300x-x8",   "b200-x8",      "gh200-x1",    "gb200-x4",
    "p4d.24xlarge", "p5.48xlarge", "g5.48xlarge", "g6e.12xlarge", "cpu-only",    "a3-highgpu-8g"};

/* A key with its values; `of` of DRAWS_OF draws have it. */
typedef struct draws_key {
    unsigned engines, of;
    const char *key;
    const char *values[9];
} draws_key;

#define S DRAWS_STOWAGE
#define F DRAWS_FSDP2
#define M DRAWS_MEGATRON
#define D DRAWS_DEEPSPEED
static const draws_key draws_keys[] = {
    {DRAWS_ANY, 8, "nodes", {"2", "3", "4", "8", "2"}},
    {DRAWS_ANY, 3, "node.gpus", {"1", "2", "3", "4", "6", "7"}},
    {DRAWS_ANY, 16, "batch.seq_len", {"512", "1000", "2048", "4096", "8192", "16384", "32768"}},
    {DRAWS_ANY, 12, "batch.micro_batch", {"2", "3", "4", "5", "7", "8", "11", "16"}},
    {DRAWS_ANY, 8, "batch.grad_accumulation", {"2", "3", "4", "8"}},
    {DRAWS_ANY, 2, "batch.max_tokens_per_gpu", {"4096", "16384", "6000"}},
    {DRAWS_ANY, 2, "batch.mini_batches", {"2", "4"}},
    {S | F | M, 2, "batch.log_prob_micro_batch", {"1", "4", "16"}},
    {S | F | M, 1, "batch.log_prob_method", {"chunked", "kernel", "fused"}},
    {DRAWS_ANY, 2, "batch.image_tokens", {"256", "1024"}},
    {S | F, 8, "precision.params", {"bf16", "fp16"}},
    {S | F, 8, "precision.master", {"fp32"}},
    {S | F | M | D, 5, "precision.grads", {"bf16", "fp32", "fp16"}},
    {S | F, 4, "precision.reduce", {"bf16"}},
    {S | F | M, 2, "precision.exp_avg", {"bf16"}},
    {DRAWS_ANY, 5, "recompute.granularity", {"none", "full", "full", "selective"}},
    {M, 4, "recompute.method", {"uniform", "block"}},
    {M, 4, "recompute.num_layers", {"1", "2", "5"}},
    {S, 4, "placement.activations", {"keep", "recompute", "offload"}},
    {S, 2, "placement.params", {"gpu", "host"}},
    {S, 2, "placement.grads", {"gpu", "host"}},
    {S | F, 3, "placement.moments", {"gpu", "host", "nvme"}},
    {S, 2, "placement.master", {"gpu", "host", "nvme"}},
    {S, 1, "placement.nvme_copies", {"2"}},
    {S, 3, "update.direct", {"auto", "0.25"}},
    {S, 2, "update.cpu", {"0", "0.5", "1"}},
    {S, 2, "update.stream", {"0", "0.3"}},
    {S, 2, "prefetch.depth", {"1", "2", "4"}},
    {S, 2, "prefetch.bucket", {"4MiB", "16MiB", "100MiB"}},
    {F | M | D,
     3,
     "optimizer.implementation",
     {"fused", "foreach", "streamed", "cpu", "loop", "stowage"}},
    {DRAWS_ANY, 2, "optimizer.clip_norm", {"none", "0.5"}},
    {DRAWS_ANY, 3, "trainable.lora.rank", {"8", "64"}},
    {DRAWS_ANY, 2, "trainable.freeze", {"[*embed*]", "[*mlp*]", "[*layers.0.*]", "[*visual*]"}},
    {DRAWS_ANY, 4, "attention", {"sdpa", "eager", "flash3"}},
    {S | F | D, 5, "loss.fused", {"true"}},
    {S | F, 2, "loss.checkpoint", {"true"}},
    {S | F | D, 1, "loss.chunk", {"128", "4096"}},
    {DRAWS_ANY, 1, "loss.upcast", {"bf16"}},
    {S | F | M, 3, "parallel.dp_replicate", {"2", "4"}},
    {F | M, 5, "parallel.tp", {"2", "4", "8"}},
    {M, 4, "parallel.sequence_parallel", {"true"}},
    {M, 6, "parallel.pp", {"2", "4", "3"}},
    {M, 3, "parallel.vpp", {"2", "3"}},
    {S | F | M, 4, "parallel.cp", {"2", "4"}},
    {S | F | M, 8, "parallel.ep", {"2", "4", "8"}},
    {M, 2, "parallel.etp", {"2"}},
    {S | F | M, 2, "moe.imbalance", {"1.5", "4"}},
    {M, 1, "moe.capacity_factor", {"1.25"}},
    {M, 2, "moe.dispatcher", {"allgather", "deepep"}},
    {F | M, 2, "park.params", {"host"}},
    {F | M, 2, "park.moments", {"host"}},
    {F | M, 1, "park.grads", {"host"}},
    {DRAWS_ANY,
     3,
     "load.method",
     {"all_ranks", "rank0_broadcast", "node_leader", "sharded_read", "all_ranks_gpu"}},
    {F | M | D, 1, "load.dtype", {"fp32", "stored"}},
    {F | M, 2, "checkpoint.every", {"10"}},
    {F | M, 1, "checkpoint.format", {"hf", "dcp", "torch_dist"}},
    {F | M, 1, "checkpoint.async", {"true"}},
    {DRAWS_ANY,
     1,
     "roles",
     {"[{name: a, kind: reference}]", "[{name: a}]", "[{name: a, kind: critic}]"}},
    {DRAWS_ANY, 2, "node.nvme.capacity", {"4 TB", "0"}},
    {DRAWS_ANY, 2, "node.host.page_lock_limit", {"64GiB", "500GiB"}},
    {F, 5, "fsdp.reshard_after_forward", {"false"}},
    {F, 2, "fsdp.reshard_to_node", {"true"}},
    {F, 2, "fsdp.reshard_after_backward", {"false"}},
    {F, 4, "fsdp.offload_policy", {"true"}},
    {F, 3, "fsdp.wrap_embeddings", {"true"}},
    {F, 3, "fsdp.sync_each_micro_batch", {"false"}},
    {F, 2, "fsdp.loss_parallel", {"false"}},
    {M, 4, "megatron.distributed_optimizer", {"false"}},
    {M, 4, "megatron.fsdp", {"optim", "optim_grads", "optim_grads_params", "optim_grads_params"}},
    {M, 2, "megatron.fsdp_double_buffer", {"true"}},
    {M, 4, "megatron.optimizer_cpu_offload", {"true"}},
    {M, 2, "megatron.optimizer_offload_fraction", {"0", "0.5", "1"}},
    {M, 2, "megatron.overlap_d2h_h2d", {"true"}},
    {M, 2, "megatron.precision_aware", {"true"}},
    {M, 4, "megatron.overlap_grad_reduce", {"true"}},
    {M, 4, "megatron.overlap_param_gather", {"true"}},
    {M, 2, "megatron.cross_entropy_fusion", {"true"}},
    {M, 2, "megatron.first_stage_layers", {"2", "5"}},
    {M, 2, "megatron.account_for_loss", {"true"}},
    {M, 2, "megatron.account_for_embedding", {"true"}},
    {M, 2, "megatron.mtp_num_layers", {"1"}},
    {M, 6, "megatron.transformer_impl", {"transformer_engine"}},
    {M, 4, "megatron.grouped_gemm", {"true"}},
    {M, 2, "megatron.hidden_dropout", {"0.1"}},
    {M, 2, "megatron.fp8", {"e4m3", "hybrid"}},
    {M, 1, "megatron.fp8_recipe", {"blockwise", "tensorwise"}},
    {M, 2, "megatron.offload_modules", {"[core_attn]", "[mlp_norm]", "[moe_act]"}},
    {D, 8, "deepspeed.zero_stage", {"1", "2", "2"}},
    {D, 7, "deepspeed.offload_optimizer", {"cpu", "cpu", "nvme"}},
    {D, 4, "deepspeed.offload_param", {"cpu", "cpu", "nvme"}},
    {D, 2, "deepspeed.pin_memory", {"false"}},
    {D, 1, "deepspeed.ratio", {"0.3", "0.7"}},
    {D, 4, "deepspeed.reduce_bucket", {"1e6", "5e7", "2e9"}},
    {D, 2, "deepspeed.overlap_comm", {"true"}},
    {D, 2, "deepspeed.sub_group_size", {"1e7", "1e8", "1e10"}},
    {D, 6, "deepspeed.prefetch_bucket", {"0", "1e5", "3e6", "1e7", "5e8"}},
    {D, 4, "deepspeed.max_live_parameters", {"0", "1e7", "1e8", "3e9"}},
    {D, 4, "deepspeed.max_reuse_distance", {"0", "1e7", "1e8", "3e9"}},
    {D, 3, "deepspeed.persistence_threshold", {"0", "1e4", "1e6", "1e8"}},
    {D, 2, "deepspeed.param_buffer_count", {"50", "500"}},
    {D, 1, "deepspeed.max_in_cpu", {"0", "1e8"}},
};
#undef S
#undef F
#undef M
#undef D

/** A draw: what a command line would say. */
typedef struct draws_run {
    const char *model, *cluster;
    uint32_t engine; /* of draws_engines */
    uint32_t n;
    char text[DRAWS_MOST_SETTINGS][DRAWS_SETTING_BYTES];
} draws_run;

/* Opened once. */
typedef struct draws_zoo {
    stw_model *models[sizeof draws_models / sizeof draws_models[0]];
    stw_cluster clusters[sizeof draws_clusters / sizeof draws_clusters[0]];
    bool has[sizeof draws_clusters / sizeof draws_clusters[0]];
} draws_zoo;

static inline void draws_zoo_free(draws_zoo *zoo) {
    for (size_t i = 0; i < sizeof zoo->models / sizeof zoo->models[0]; i++)
        stw_model_free(zoo->models[i]);
}

/* NULL where the zoo has no such model, which ends the program. */
static inline const stw_model *draws_model(draws_zoo *zoo, const char *name) {
    stw_error err = STW_ERROR_INIT;
    size_t i = 0;
    while (strcmp(draws_models[i], name) != 0) i++;
    if (zoo->models[i] == NULL &&
        stw_model_open(name, STW_SOURCE_MODELS, &zoo->models[i], &err) != STW_STATUS_OK) {
        fprintf(stderr, "draws: %s: %s\n", err.where, err.text);
        exit(2);
    }
    return zoo->models[i];
}

static inline const stw_cluster *draws_cluster(draws_zoo *zoo, const char *name) {
    stw_error err = STW_ERROR_INIT;
    size_t i = 0;
    while (strcmp(draws_clusters[i], name) != 0) i++;
    if (!zoo->has[i] &&
        stw_cluster_open(name, STW_SOURCE_MODELS, &zoo->clusters[i], &err) != STW_STATUS_OK) {
        fprintf(stderr, "draws: %s: %s\n", err.where, err.text);
        exit(2);
    }
    zoo->has[i] = true;
    return &zoo->clusters[i];
}

/* Neighbouring numbers give unrelated draws (splitmix64, public domain, Vigna 2015). */
static inline uint64_t draws_seed(uint64_t seed, uint64_t number) {
    uint64_t x = seed + (number + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline void draws_set(draws_run *run, const char *setting) {
    snprintf(run->text[run->n], DRAWS_SETTING_BYTES, "%s", setting);
    run->n++;
}

static inline void draws_add(draws_run *run, const char *key, const char *value) {
    char setting[DRAWS_SETTING_BYTES];
    snprintf(setting, sizeof setting, "%s=%s", key, value);
    draws_set(run, setting);
}

/* @param engines bits of those that may be drawn @param out in: its model, NULL: any */
static inline void draws_take(uint64_t *seed, unsigned engines, draws_run *out) {
    const uint32_t models = sizeof draws_models / sizeof draws_models[0];
    const uint32_t clusters = sizeof draws_clusters / sizeof draws_clusters[0];
    const char *model = draws_models[case_random(seed, case_random(seed, 2) ? models : models / 3)];
    *out = (draws_run){.model = out->model != NULL ? out->model : model};
    out->cluster = draws_clusters[case_random(seed, clusters)];
    do out->engine = case_random(seed, 4);
    while ((engines & 1u << out->engine) == 0);
    draws_add(out, "engine", draws_engines[out->engine]);
    for (size_t k = 0; k < sizeof draws_keys / sizeof draws_keys[0]; k++) {
        const draws_key *key = &draws_keys[k];
        uint32_t n = 0;
        while (n < sizeof key->values / sizeof key->values[0] && key->values[n] != NULL) n++;
        const uint32_t value = case_random(seed, n);
        if (case_random(seed, DRAWS_OF) >= key->of || out->n == DRAWS_MOST_SETTINGS) continue;
        if (key->engines & 1u << out->engine) draws_add(out, key->key, key->values[value]);
    }
}

/* The command line. */
static inline void draws_show(const draws_run *run, FILE *to) {
    fprintf(to, "plan --model %s --cluster %s", run->model, run->cluster);
    for (uint32_t i = 0; i < run->n; i++) {
        const bool quoted = strpbrk(run->text[i], " *[") != NULL;
        fprintf(to, quoted ? " --set '%s'" : " --set %s", run->text[i]);
    }
    fprintf(to, "\n");
}

static inline stw_status draws_read(const draws_run *run, stw_cluster *cluster, stw_run_spec *spec,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *list[DRAWS_MOST_SETTINGS];
    for (uint32_t i = 0; i < run->n; i++) list[i] = run->text[i];
    STW_TRY(stw_run_spec_init(spec, err));
    STW_TRY(stw_specs_set_all(cluster, spec, list, run->n, "--set", err));
    STW_TRY(stw_cluster_check(cluster, "--set", err));
    STW_TRY(stw_run_spec_check(spec, "--set", err));
out:
    return status;
}

/** The plan of a run, with nothing decided; refused settings are an error. */
static inline stw_status draws_plan(draws_zoo *zoo, const draws_run *run, stw_plan **out,
                                    stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = *draws_cluster(zoo, run->cluster);
    stw_run_spec spec = {0};
    stw_plan *plan = NULL;
    STW_TRY(draws_read(run, &cluster, &spec, err));
    STW_TRY(stw_plan_new_sharing(draws_model(zoo, run->model), &cluster, &spec, &plan, err));
    for (uint32_t i = 0; i < run->n; i++)
        STW_TRY(stw_job_check_setting(plan->job, run->text[i], "--set", err));
    plan->walk_alone = true;
    *out = plan;
    plan = NULL;
out:
    stw_plan_free(plan);
    stw_run_spec_free(&spec);
    return status;
}

/* The setting that an error is about, else any but the engine. */
static inline uint32_t draws_refused(const draws_run *run, const stw_error *why, uint64_t *seed) {
    for (uint32_t i = 1; i < run->n; i++) {
        const size_t length = strcspn(run->text[i], "=");
        char key[DRAWS_SETTING_BYTES];
        snprintf(key, sizeof key, "%.*s", (int)length, run->text[i]);
        if (strstr(why->where, key) != NULL || strncmp(why->text, key, length) == 0) return i;
    }
    return 1 + case_random(seed, run->n - 1);
}

/** Draw number `number` of a seed, as a plan with nothing decided. @return NULL: no run was found
 */
static inline stw_plan *draws_make(draws_zoo *zoo, uint64_t seed, uint64_t number, unsigned engines,
                                   draws_run *run, uint64_t *rest) {
    *rest = draws_seed(seed, number);
    draws_take(rest, engines, run);
    for (;;) {
        stw_error why = STW_ERROR_INIT;
        stw_plan *plan = NULL;
        if (draws_plan(zoo, run, &plan, &why) == STW_STATUS_OK) return plan;
        if (run->n <= 1) return NULL;
        const uint32_t gone = draws_refused(run, &why, rest);
        for (uint32_t i = gone; i + 1 < run->n; i++)
            memcpy(run->text[i], run->text[i + 1], DRAWS_SETTING_BYTES);
        run->n--;
    }
}

/* All blocks of every group under one policy, or as many as possible. */
static inline void draws_pure(const stw_cost *cost, stw_act act, stw_choice *choice) {
    for (uint32_t a = 0; a < cost->n_acts; a++) choice->acts[a] = 0;
    for (uint32_t a = 0; a < cost->n_acts;) {
        uint32_t take = a, end = a;
        for (; end < cost->n_acts && cost->acts[end].group == cost->acts[a].group; end++)
            if (cost->acts[end].act == act || end == a) take = end;
        choice->acts[take] = cost->acts[take].blocks;
        a = end;
    }
}

/** A choice at random, now and then with one policy for all blocks. */
static inline void draws_choice(const stw_cost *cost, uint64_t *seed, stw_choice *choice) {
    case_choice(cost, seed, choice);
    const uint32_t pure = case_random(seed, 8);
    if (pure < STW_N_ACTS) draws_pure(cost, (stw_act)pure, choice);
}

static inline void draws_show_choice(const stw_cost *cost, const stw_choice *choice, FILE *to) {
    for (uint32_t p = 0; p < cost->n_places; p++)
        if (choice->units[p] > 0)
            fprintf(to, " %u units %s/%s/%s %s,", choice->units[p],
                    stw_tier_name(cost->places[p].params), stw_tier_name(cost->places[p].grads),
                    stw_tier_name(cost->places[p].moments),
                    stw_update_name(cost->places[p].update));
    for (uint32_t a = 0; a < cost->n_acts; a++)
        if (choice->acts[a] > 0)
            fprintf(to, " %u %s of group %u,", choice->acts[a], stw_act_name(cost->acts[a].act),
                    cost->acts[a].group);
    fprintf(to, " ring %u x %llu, load %s\n", cost->rings[choice->ring].depth,
            (unsigned long long)cost->rings[choice->ring].bucket_bytes,
            stw_load_name(cost->loads[choice->load]));
}

/** Hold the rows of a plan's problem to the walk of a choice. BUG where one lies below it. */
static inline stw_status draws_check(stw_plan *plan, const stw_cost *cost, const stw_choice *choice,
                                     stw_pool *pool, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_cost_decide(cost, choice, pool, &plan->decisions, err));
    STW_TRY(stw_plan_derive_bytes(plan, err));
    STW_TRY(stw_cost_check_walk(cost, choice, plan->peaks, plan->node_peaks, err));
out:
    return status;
}

#endif
