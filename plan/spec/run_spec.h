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

#define STW_MOST_LR 1000.0 /* larger ones are mistakes: AdamW moves by about lr per step */

#define STW_AUTO UINT32_MAX /* a 32-bit count or choice: the planner decides */
#define STW_NONE (UINT32_MAX - 1)
#define STW_AUTO_BYTES UINT64_MAX
#define STW_AUTO_NUMBER 4294967295.0 /* a number: the planner decides, or the common value */

typedef enum stw_optimizer_implementation {
    STW_OPTIMIZER_AUTO,
    STW_OPTIMIZER_FUSED,
    STW_OPTIMIZER_FOREACH,
    STW_OPTIMIZER_LOOP,
    STW_OPTIMIZER_STREAMED,
    STW_OPTIMIZER_CPU,
    STW_OPTIMIZER_DIRECT,
    STW_OPTIMIZER_STOWAGE /* Stowage's optimizer in a framework's process */
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

/** How parameters reach a rollout: engines/weight_sync.h. */
typedef enum stw_sync_method { STW_SYNC_TENSORS, STW_SYNC_BUCKETS } stw_sync_method;

/** How log-probabilities are computed from logits, without gradients. */
typedef enum stw_log_prob_method {
    STW_LOG_PROB_WHOLE,   /* upcast and log-softmax of all tokens */
    STW_LOG_PROB_CHUNKED, /* the same for loss.chunk tokens at a time */
    STW_LOG_PROB_KERNEL,  /* one kernel reads the logits */
    STW_LOG_PROB_FUSED    /* the head's product is computed by chunks, too */
} stw_log_prob_method;

typedef struct stw_strings {
    uint32_t n;
    const char **items;
} stw_strings;

/** Tensors with their own learning rate and weight decay. The first group that matches a tensor
 * applies. */
typedef struct stw_param_group {
    stw_strings match; /* "1d": tensors of one dimension; else a shell pattern of their names */
    double lr, weight_decay; /* STW_AUTO_NUMBER: the optimizer's */
} stw_param_group;
#define STW_LOSS_CHUNK 1024        /* tokens per chunk of the loss if loss.chunk is 0 */
#define STW_MAX_OWN_PARAM_GROUPS 7 /* in addition to the optimizer's own rates */

#define STW_MAX_SECTIONS 8
#define STW_SECTION_BYTES 256

/* X(enum, key). The keys of a parallel layout; the planner chooses the keys that are `auto`. The
 * OWN entries are keys of some engines (stw_layout_rules.own). */
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
    uint32_t nodes;     /* STW_AUTO: the nodes of the role `with`, else an equal share */
    const char *with;   /* name of the role whose nodes it shares; "none": own nodes */
    const char *engine; /* a name such as "vllm"; NULL: the default of its kind */
    stw_dtype dtype;    /* dtype of the weights */
    uint32_t params;    /* stw_tier of the weights of an untrained model; STW_AUTO: host */
    stw_parallel parallel;
    double gpu_memory_utilization;
    uint32_t kv_dtype;      /* a stw_dtype; STW_AUTO: the dtype of activations */
    uint64_t max_model_len; /* 0: the model's positions */
    uint64_t max_num_seqs, max_num_batched_tokens, update_bucket_bytes;
    bool enforce_eager, update_in_place, builds_trainer_model;
    uint32_t free_cache_engine; /* sleeps between rollouts; STW_AUTO: only on shared nodes */
    uint32_t sleep_level;       /* STW_AUTO: the engine's own */
} stw_role;

typedef struct stw_run_spec {
    stw_pool *pool;  /* owns lists and their strings */
    uint32_t engine; /* index of a registered engine, see plan/spec/registry.h */
    stw_parallel parallel;
    bool search_all;       /* parallel.search: every key that the engine has and the run does not
                              set */
    stw_searches searches; /* single keys set to `auto`; see stw_run_spec_searched */
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
            epochs /* stw_run_spec_steps */, image_tokens /* per sequence; 0: text only */;
        stw_log_prob_method log_prob_method;
        bool log_prob_entropy;
    } batch;
    struct {
        stw_optimizer_kind kind;
        stw_optimizer_implementation implementation;
        uint32_t cpu_threads; /* of a rank; STW_AUTO: as the launcher sets it */
        double clip_norm;     /* 0: none */
        bool overlap;         /* Stowage's step inside a framework overlaps the next forward */
        double lr, beta1, beta2, eps, weight_decay;
        uint32_t n_groups;
        stw_param_group *groups;
    } optimizer;
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
        uint32_t nvme_copies; /* 1: state on NVMe is written in place; 2: the last step's copy stays
                               */
        double gpu_fill;      /* share of a GPU's memory that plans fill, if they can */
        bool accept_risk;     /* plans may be at risk though others fit */
    } placement;
    struct {
        bool params, grads, moments;
        bool moments_before_forward; /* moments return to the GPU together with the parameters */
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
        uint32_t dtype;      /* stw_dtype; STW_AUTO: as the params; STW_NONE: as stored */
        const char *weights; /* NULL: none */
        bool page_cached;    /* the files are in the page cache */
    } load;
    struct {
        bool model, optimizer;
        uint64_t every;        /* iterations; 0: never */
        uint32_t format;       /* stw_checkpoint_format */
        bool async;            /* files are written during the next iterations */
        uint64_t keep;         /* complete checkpoints on disk; 0: all */
        uint64_t copies_bytes; /* host bytes of a rank for copies, in addition to two buckets; or
                                  STW_AUTO_BYTES */
    } checkpoint;
    struct {
        uint32_t method; /* stw_sync_method */
    } weight_sync;
    uint32_t n_roles;
    stw_role *roles;
} stw_run_spec;

/** Set every key to its default and create the pool. Free with stw_run_spec_free. */
STW_MUST_USE stw_status stw_run_spec_init(stw_run_spec *run, stw_error *err);
/** The same, with the defaults of the engine that `run` names. */
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
/** Returns the keys of a parallel layout that the planner chooses, one bit for each stw_search:
 * keys set to `auto`, and with parallel.search all keys in `engine` that the run does not set.
 * @param engine bits of the keys that the engine can search */
uint32_t stw_run_spec_searched(const stw_run_spec *run, uint32_t engine);
/** True if a search of parallel layouts must choose values of keys before the run can be planned.
 */
bool stw_run_spec_is_open(const stw_run_spec *run);
/** Returns the share of the parameters that must have this update kind; STW_AUTO_NUMBER: the
 * planner decides. With optimizer.implementation direct, update.direct: 0 also means that the
 * planner decides, because 0 is the default. */
double stw_run_spec_update_share(const stw_run_spec *run, stw_update update);
/** Returns the optimizer steps of an iteration: batch.mini_batches x batch.epochs. Each mini batch
 * has sequences of its own. */
uint64_t stw_run_spec_steps(const stw_run_spec *run);
/** Returns the tokens of an optimizer step, summed over `world` ranks: batch.tokens_per_step, or
 * the product of the other keys. Packed sequences (batch.max_tokens_per_gpu) fill micro batches, so
 * that a rank's tokens do not depend on parallel.cp. 0: unknown, because batch.seq_len is auto. */
uint64_t stw_run_spec_step_tokens(const stw_run_spec *run, uint64_t world);
/** The same if every micro batch is full; ignores batch.tokens_per_step. */
uint64_t stw_run_spec_full_step_tokens(const stw_run_spec *run, uint64_t world);
/** Refuse contradictions (BAD_INPUT) and values that are not implemented (NOT_BUILT_IN). Errors
 * name key and value. The engine's own checks may depend on searched keys, so an open run passes
 * them only after the search has set these keys. */
STW_MUST_USE stw_status stw_run_spec_check(const stw_run_spec *run, const char *origin,
                                           stw_error *err);
/** Write all keys, defaults included, as member `key` of a JSON document. Reading restores the same
 * values. */
void stw_run_spec_write_json(const stw_run_spec *run, stw_json *json, const char *key);
/** Write as run.yaml. */
void stw_run_spec_write_yaml(const stw_run_spec *run, stw_text *out);
/** Find known keys of run and cluster specs that resemble a wrong key, as stw_spec_near (for
 * `--set`). */
size_t stw_spec_near_keys(const char *key, const char **out, size_t most);
/** The same without keys that are only spelt alike. A known key gives itself. */
size_t stw_spec_meant_keys(const char *key, const char **out, size_t most);
/** Set `KEY=VALUE` in the spec that has the key. @param origin "--set" and the like, for errors */
STW_MUST_USE stw_status stw_specs_set(stw_cluster *cluster, stw_run_spec *run, const char *setting,
                                      const char *origin, stw_error *err);
/** Apply the settings in order, then call stw_cluster_follow. An error names its setting.
 * @param option "--set" and the like, for errors */
STW_MUST_USE stw_status stw_specs_set_all(stw_cluster *cluster, stw_run_spec *run,
                                          const char *const *settings, size_t n, const char *option,
                                          stw_error *err);

#endif
