/* SPDX-License-Identifier: Apache-2.0 */
/* A run: the settings of one training job (run.yaml). Every key has a default; `auto` means that
 * the planner decides. A key that is not implemented accepts only its default. A run spec can be
 * copied by value; its strings and lists stay in its pool. One thread at a time. */
#ifndef STW_PLAN_RUN_SPEC_H
#define STW_PLAN_RUN_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"
#include "core/pool.h"
#include "core/status.h"
#include "core/text.h"
#include "core/tree.h"
#include "models/model.h"
#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"
#include "plan/spec/terms.h"

#define STW_MOST_LR 1000.0 /* learning rates above are mistakes: AdamW moves by about lr a step */

#define STW_AUTO UINT32_MAX /* of a 32-bit count or choice: the planner decides */
#define STW_NONE (UINT32_MAX - 1)
#define STW_AUTO_BYTES UINT64_MAX
#define STW_AUTO_NUMBER 4294967295.0 /* of a number: the planner decides, or as for all others */

typedef enum stw_optimizer_implementation {
    STW_OPTIMIZER_AUTO,
    STW_OPTIMIZER_FUSED,
    STW_OPTIMIZER_FOREACH,
    STW_OPTIMIZER_LOOP,
    STW_OPTIMIZER_STREAMED,
    STW_OPTIMIZER_CPU,
    STW_OPTIMIZER_DIRECT,
    STW_OPTIMIZER_STOWAGE /* Stowage's, in a framework's job */
} stw_optimizer_implementation;
typedef enum stw_attention {
    STW_ATTENTION_FLASH,
    STW_ATTENTION_SDPA,
    STW_ATTENTION_EAGER,
    STW_ATTENTION_FLASH_TRITON, /* FlashAttention's first version, in Triton */
    STW_ATTENTION_FLASH3
} stw_attention;

typedef enum stw_checkpoint_format {
    STW_CHECKPOINT_AUTO, /* the framework's own */
    STW_CHECKPOINT_HF,   /* whole tensors, as from_pretrained reads them */
    STW_CHECKPOINT_DCP,  /* torch.distributed.checkpoint */
    STW_CHECKPOINT_TORCH_DIST,
    STW_CHECKPOINT_STOWAGE /* safetensors, written by Stowage */
} stw_checkpoint_format;

/** How parameters reach a rollout: plan/engines/weight_sync.h. */
typedef enum stw_sync_method { STW_SYNC_TENSORS, STW_SYNC_BUCKETS } stw_sync_method;

/** How log-probabilities follow from logits without gradients. */
typedef enum stw_log_prob_method {
    STW_LOG_PROB_WHOLE,   /* upcast and log-softmax of all tokens */
    STW_LOG_PROB_CHUNKED, /* the same of loss.chunk tokens at a time */
    STW_LOG_PROB_KERNEL,  /* one kernel reads the logits */
    STW_LOG_PROB_FUSED    /* the head's product, too, by chunks */
} stw_log_prob_method;

typedef struct stw_strings {
    uint32_t n;
    const char **items;
} stw_strings;

/** Tensors with their own rates. The first group that matches a tensor applies. */
typedef struct stw_param_group {
    stw_strings match; /* "1d": tensors of one dimension; else a shell pattern of their names */
    double lr, weight_decay; /* STW_AUTO_NUMBER: the optimizer's */
} stw_param_group;
#define STW_LOSS_CHUNK 1024        /* tokens of a loss at a time where loss.chunk is 0 */
#define STW_MAX_OWN_PARAM_GROUPS 7 /* besides the optimizer's own rates */

#define STW_MAX_SECTIONS 8
#define STW_SECTION_BYTES 256

/* X(enum, key). What a layout is made of: keys whose `auto` the planner searches. Then keys that
 * some engines have (stw_layout_rules.own). */
#define STW_SEARCH_TABLE(X)                                                                        \
    X(TP, "parallel.tp")                                                                           \
    X(PP, "parallel.pp")                                                                           \
    X(VPP, "parallel.vpp")                                                                         \
    X(CP, "parallel.cp")                                                                           \
    X(EP, "parallel.ep")                                                                           \
    X(ETP, "parallel.etp")                                                                         \
    X(REPLICAS, "parallel.dp_replicate")                                                           \
    X(MICRO_BATCH, "batch.micro_batch")                                                            \
    X(ACCUMULATION, "batch.grad_accumulation")                                                     \
    X(FUSED_LOSS, "loss.fused")                                                                    \
    X(SEQUENCE, "parallel.sequence_parallel")                                                      \
    X(OWN_1, NULL)                                                                                 \
    X(OWN_2, NULL)                                                                                 \
    X(OWN_3, NULL)

#define STW_SEARCH_N_OWN 3

#define X(name, key) STW_SEARCH_##name,
typedef enum stw_search { STW_SEARCH_TABLE(X) STW_N_SEARCHES } stw_search;
#undef X

typedef struct stw_parallel {
    uint32_t dp_shard; /* STW_AUTO: all GPUs that are left */
    uint32_t dp_replicate, tp, pp, vpp, cp, ep, etp;
    uint32_t cp_kind; /* 0 ring, 1 ulysses */
    bool sequence_parallel;
} stw_parallel;

typedef enum stw_role_kind {
    STW_ROLE_ROLLOUT,
    STW_ROLE_REFERENCE,
    STW_ROLE_CRITIC,
    STW_ROLE_REWARD
} stw_role_kind;
/** A role beside the trainer (plan/job/roles.h). */
typedef struct stw_role {
    const char *name;
    stw_role_kind kind;
    uint32_t nodes;     /* STW_AUTO: those of the role that it is with, else an equal share */
    const char *with;   /* name of the role whose nodes it shares, "none": own nodes */
    const char *engine; /* a name such as "vllm"; NULL: the usual one of its kind */
    stw_dtype dtype;    /* of the weights */
    uint32_t params;    /* stw_tier of a model that is not trained; STW_AUTO: host */
    stw_parallel parallel;
    double gpu_memory_utilization;
    uint32_t kv_dtype;      /* a stw_dtype; STW_AUTO: that of activations */
    uint64_t max_model_len; /* 0: the model's positions */
    uint64_t max_num_seqs, max_num_batched_tokens, update_bucket_bytes;
    bool enforce_eager, builds_trainer_model;
    uint32_t free_cache_engine; /* sleeps between rollouts; STW_AUTO: on nodes that it shares */
    uint32_t sleep_level;       /* STW_AUTO: the engine's own */
} stw_role;

typedef struct stw_run_spec {
    stw_pool *pool;  /* owns lists and their strings */
    uint32_t engine; /* index of a registered engine, see plan/spec/registry.h */
    stw_parallel parallel;
    bool search_all;       /* parallel.search: all that is not given and that the engine has */
    stw_searches searches; /* `auto` of single keys; see stw_run_spec_searched */
    struct {
        stw_dtype params, compute, grads, reduce, exp_avg, exp_avg_sq;
        bool has_master;
    } precision; /* master: fp32 or none */
    uint32_t
        given_precision; /* keys precision.* that have been set; the others follow the engine */
    struct {
        uint64_t micro_batch, seq_len /* 0: auto, until a plan resolves it */,
            decoder_seq_len /* 0: auto */, max_tokens_per_gpu /* 0: none */, grad_accumulation,
            log_prob_micro_batch /* 0: none */, tokens_per_step /* 0: none */, mini_batches,
            epochs /* stw_run_spec_steps */, image_tokens /* of a sequence; 0: text alone */;
        stw_log_prob_method log_prob_method;
        bool log_prob_entropy;
    } batch;
    struct {
        stw_optimizer_implementation implementation;
        uint32_t cpu_threads; /* of a rank; STW_AUTO: as the launcher sets it */
        double clip_norm;     /* 0: none */
        bool overlap;         /* Stowage's, in a framework's job: beside the next forward */
        double lr, beta1, beta2, eps, weight_decay;
        uint32_t n_groups;
        stw_param_group *groups;
    } optimizer; /* kind is adamw */
    struct {
        double resident, stream, direct, cpu;
    } update; /* shares of the parameters, 0 to 1, STW_AUTO_NUMBER: the planner decides */
    struct {
        uint32_t lora_rank; /* 0: none */
        stw_strings lora_targets;
        stw_strings freeze;
    } trainable;
    struct {
        uint32_t params, grads, master, moments; /* stw_tier or STW_AUTO */
        uint32_t activations;                    /* stw_act or STW_AUTO */
        uint32_t nvme_copies; /* 1: state on NVMe is written in place; 2: the last step stays */
        double gpu_fill;      /* share of a GPU's memory that a plan fills, where it can do so */
        bool accept_risk;     /* plans may be at risk though others fit */
    } placement;
    struct {
        bool params, grads, moments;
        bool moments_before_forward; /* they come back with the parameters */
        bool reuse_copies;           /* page-locked copies of parameters are made once */
        uint32_t backups;            /* page-locked copies of parameters for switching models */
    } park;
    struct {
        uint32_t depth;        /* STW_AUTO or slots */
        uint64_t bucket_bytes; /* STW_AUTO_BYTES */
    } prefetch;
    struct {
        uint32_t granularity; /* STW_AUTO, 0 none, 1 full, 2 selective */
        uint32_t method;      /* 0 none, 1 uniform, 2 block */
        uint32_t num_layers;
        stw_strings modules;
    } recompute;
    stw_attention attention;
    struct {
        bool fused, checkpoint;
        uint64_t chunk;
        stw_dtype upcast;
    } loss;
    struct {
        uint32_t dispatcher;    /* 0 alltoall, 1 allgather, 2 deepep */
        double capacity_factor; /* 0: none */
        double imbalance;
    } moe;
    /* Settings of the engines' own keys, one block for each section of plan/spec/registry.h. */
    _Alignas(8) unsigned char sections[STW_MAX_SECTIONS][STW_SECTION_BYTES];
    struct {
        bool expandable_segments;
        uint64_t max_split_bytes;          /* 0: none */
        uint64_t roundup_power2_divisions; /* 0: none */
    } allocator;                           /* PYTORCH_CUDA_ALLOC_CONF */
    struct {
        uint32_t method;     /* stw_load or STW_AUTO */
        uint32_t dtype;      /* stw_dtype, STW_AUTO: the params', STW_NONE: as stored */
        const char *weights; /* NULL: none */
        bool page_cached;    /* its files lie in memory */
    } load;
    struct {
        bool model, optimizer;
        uint64_t every;        /* iterations; 0: never */
        uint32_t format;       /* stw_checkpoint_format */
        bool async;            /* files are written beside the next iterations */
        uint64_t keep;         /* complete ones on disk; 0: all */
        uint64_t copies_bytes; /* of a rank's host, beside two buckets; or STW_AUTO_BYTES */
    } checkpoint;
    struct {
        uint32_t method; /* stw_sync_method */
    } weight_sync;
    uint32_t n_roles;
    stw_role *roles;
} stw_run_spec;

/** Set every key to its default and create the pool. Free with stw_run_spec_free. */
STW_MUST_USE stw_status stw_run_spec_init(stw_run_spec *run, stw_error *err);
/** The same with the defaults of the engine of `run`. */
STW_MUST_USE stw_status stw_run_spec_init_as(const stw_run_spec *run, stw_run_spec *out,
                                             stw_error *err);
void stw_run_spec_free(stw_run_spec *run);
/** Read run.yaml over the present values. The error for an unknown key names the nearest one. */
STW_MUST_USE stw_status stw_run_spec_read(const char *path, stw_run_spec *run, stw_error *err);
STW_MUST_USE stw_status stw_run_spec_from_node(const stw_tree *tree, const stw_node *node,
                                               stw_run_spec *run, stw_error *err);
/** `--set placement.moments=host`. */
STW_MUST_USE stw_status stw_run_spec_set(stw_run_spec *run, const char *key, const char *value,
                                         const char *origin, stw_error *err);
bool stw_run_spec_has_key(const char *key);
/** Keys of a layout that the planner is to choose, of those that the engine can search: bit
 * stw_search. @param engine bits of the engine */
uint32_t stw_run_spec_searched(const stw_run_spec *run, uint32_t engine);
/** Has the run any `auto` that a search of layouts must resolve before anything is planned? */
bool stw_run_spec_is_open(const stw_run_spec *run);
/** Share of the parameters that this update must have; STW_AUTO_NUMBER: the planner decides. With
 * optimizer.implementation direct, update.direct: 0 also means that the planner decides, because 0
 * is the default. */
double stw_run_spec_update_share(const stw_run_spec *run, stw_update update);
/** Optimizer steps of an iteration, which is one step of the trainer: those of batch.mini_batches,
 * each on sequences of its own, batch.epochs times over. */
uint64_t stw_run_spec_steps(const stw_run_spec *run);
/** Tokens of an optimizer step of so many ranks, all together: batch.tokens_per_step, or what the
 * other keys come to. Sequences that are packed (batch.max_tokens_per_gpu) fill micro batches; the
 * tokens of a rank do not depend on parallel.cp then. 0: unknown, batch.seq_len is auto. */
uint64_t stw_run_spec_step_tokens(const stw_run_spec *run, uint64_t world);
/** The same where every micro batch is full: batch.tokens_per_step does not count. */
uint64_t stw_run_spec_full_step_tokens(const stw_run_spec *run, uint64_t world);
/** Refuse contradictions (BAD_INPUT) and values that are not implemented (NOT_BUILT_IN). Errors
 * name key and value. What an engine refuses may depend on keys that are still searched: of a run
 * that is open it is checked when these have values. */
STW_MUST_USE stw_status stw_run_spec_check(const stw_run_spec *run, const char *origin,
                                           stw_error *err);
/** Write all keys, defaults included, as member `key` of a JSON document. Reading restores the same
 * values. */
void stw_run_spec_write_json(const stw_run_spec *run, stw_json *json, const char *key);
/** As run.yaml. */
void stw_run_spec_write_yaml(const stw_run_spec *run, stw_text *out);
/** Known keys of run and cluster specs that a wrong one may mean (for `--set`), as stw_spec_near.
 */
size_t stw_spec_near_keys(const char *key, const char **out, size_t most);
/** Those without keys that are merely spelt alike; a known key is meant by itself. */
size_t stw_spec_meant_keys(const char *key, const char **out, size_t most);
/** `KEY=VALUE` for the spec that has the key. @param origin "--set" and the like, for errors */
STW_MUST_USE stw_status stw_specs_set(stw_cluster *cluster, stw_run_spec *run, const char *setting,
                                      const char *origin, stw_error *err);
/** Settings in order, each error naming its own; then stw_cluster_follow.
 * @param option "--set" and the like, for errors */
STW_MUST_USE stw_status stw_specs_set_all(stw_cluster *cluster, stw_run_spec *run,
                                          const char *const *settings, size_t n, const char *option,
                                          stw_error *err);

#endif
