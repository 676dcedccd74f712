/* SPDX-License-Identifier: Apache-2.0 */
/* The terms that plan, simulation and execution share, with their spelling in files: phases,
 * components, tiers, updates, streams, activations and load methods. */
#ifndef STW_PLAN_TERMS_H
#define STW_PLAN_TERMS_H

#include <stdbool.h>
#include <stdint.h>

/* X(enum suffix, spelling) */
#define STW_PHASE_TABLE(X)                                                                         \
    X(LOAD, "load")                                                                                \
    X(ROLLOUT, "rollout")                                                                          \
    X(LOG_PROB, "log_prob")                                                                        \
    X(FORWARD_BACKWARD, "forward_backward")                                                        \
    X(FIRST_OPTIMIZER_STEP, "first_optimizer_step") /* lazily made state appears here */           \
    X(OPTIMIZER_STEP, "optimizer_step")                                                            \
    X(WEIGHT_SYNC, "weight_sync")                                                                  \
    X(CHECKPOINT, "checkpoint")

#define STW_COMPONENT_TABLE(X)                                                                     \
    X(PARAMS, "params")                                                                            \
    X(GRADS, "grads")                                                                              \
    X(MASTER, "master")                                                                            \
    X(EXP_AVG, "exp_avg")                                                                          \
    X(EXP_AVG_SQ, "exp_avg_sq")                                                                    \
    X(ACTIVATIONS, "activations")                                                                  \
    X(LOGITS, "logits")                                                                            \
    X(UNSHARD, "unshard")                                                                          \
    X(REDUCE, "reduce")                                                                            \
    X(STAGE, "stage")                                                                              \
    X(KV_CACHE, "kv_cache")                                                                        \
    X(ROLLOUT_WEIGHTS, "rollout_weights")                                                          \
    X(COMM, "comm")                                                                                \
    X(CONTEXT, "context")                                                                          \
    X(SLACK, "slack")                                                                              \
    X(LOAD_STAGING, "load_staging")                                                                \
    X(PAGE_LOCK_ROUNDING, "page_lock_rounding")                                                    \
    X(PROCESS, "process")                                                                          \
    X(CHECKPOINT_STAGING, "checkpoint_staging")                                                    \
    X(OBJECT_STORE, "object_store")                                                                \
    X(DATA_LOADERS, "data_loaders")                                                                \
    X(ROLLOUT_WORK, "rollout_work")                                                                \
    X(ROLE_PROCESS, "role_process")                                                                \
    X(PAGE_LOCK_CACHE, "page_lock_cache")                                                          \
    X(CHECKPOINT_FILES, "checkpoint_files")

#define STW_TIER_TABLE(X) X(GPU, "gpu") X(HOST, "host") X(NVME, "nvme")

/* How a bucket is updated. resident: in place on the GPU. stream: through a ring of buffers on the
 * GPU; NVMe buckets pass through the host. direct: by a kernel that reads and writes page-locked
 * host memory. cpu: on the host. */
#define STW_UPDATE_TABLE(X)                                                                        \
    X(RESIDENT, "resident") X(STREAM, "stream") X(DIRECT, "direct") X(CPU, "cpu")

/* What updates the matrices of a model; blocks/optimizer.c says what each keeps and does. */
#define STW_OPTIMIZER_TABLE(X) X(ADAMW, "adamw") X(MUON, "muon")

#define STW_STREAM_TABLE(X)                                                                        \
    X(H2D, "h2d")                                                                                  \
    X(COMPUTE, "compute")                                                                          \
    X(D2H, "d2h")                                                                                  \
    X(COMM, "comm")                                                                                \
    X(DISK, "disk")         /* reads, and writes of weights files */                               \
    X(DISK_OUT, "disk_out") /* writes */                                                           \
    X(TO_CPU, "to_cpu")     /* params and grads of CPU buckets: GPU to host */                     \
    X(FROM_CPU, "from_cpu") /* the same: host to GPU */                                            \
    X(CPU, "cpu")

#define STW_ACT_TABLE(X) X(KEEP, "keep") X(RECOMPUTE, "recompute") X(OFFLOAD, "offload")

/* Which ranks read the weights, and where they build a whole model. all_ranks: every rank, on its
 * host. rank0_broadcast: global rank 0, on its host; it sends the weights to the other ranks.
 * node_leader: the same within every node. sharded_read: each rank reads its own shard.
 * all_ranks_gpu: every rank, on its GPU. */
#define STW_LOAD_TABLE(X)                                                                          \
    X(ALL_RANKS, "all_ranks")                                                                      \
    X(RANK0_BROADCAST, "rank0_broadcast")                                                          \
    X(NODE_LEADER, "node_leader")                                                                  \
    X(SHARDED_READ, "sharded_read")                                                                \
    X(ALL_RANKS_GPU, "all_ranks_gpu")

#define X(name, text) STW_PHASE_##name,
typedef enum stw_phase { STW_PHASE_TABLE(X) STW_N_PHASES } stw_phase;
#undef X
#define X(name, text) STW_COMPONENT_##name,
typedef enum stw_component { STW_COMPONENT_TABLE(X) STW_N_COMPONENTS } stw_component;
#undef X
#define X(name, text) STW_TIER_##name,
typedef enum stw_tier { STW_TIER_TABLE(X) STW_N_TIERS } stw_tier;
#undef X
#define X(name, text) STW_UPDATE_##name,
typedef enum stw_update { STW_UPDATE_TABLE(X) STW_N_UPDATES } stw_update;
#undef X
#define X(name, text) STW_OPTIMIZER_KIND_##name,
typedef enum stw_optimizer_kind { STW_OPTIMIZER_TABLE(X) STW_N_OPTIMIZER_KINDS } stw_optimizer_kind;
#undef X
#define X(name, text) STW_STREAM_##name,
typedef enum stw_stream { STW_STREAM_TABLE(X) STW_N_STREAMS } stw_stream;
#undef X
#define X(name, text) STW_ACT_##name,
typedef enum stw_act { STW_ACT_TABLE(X) STW_N_ACTS } stw_act;
#undef X
#define X(name, text) STW_LOAD_##name,
typedef enum stw_load { STW_LOAD_TABLE(X) STW_N_LOADS } stw_load;
#undef X

/** Number of components that are optimizer state or its inputs. */
#define STW_N_STATE 5 /* params, grads, master, exp_avg, exp_avg_sq: the first five components */

const char *stw_phase_name(stw_phase phase);
const char *stw_component_name(stw_component component);
const char *stw_tier_name(stw_tier tier);
const char *stw_update_name(stw_update update);
const char *stw_stream_name(stw_stream stream);
const char *stw_act_name(stw_act act);
const char *stw_load_name(stw_load load);
/** Parse a word; false if it is unknown. */
bool stw_phase_parse(const char *text, stw_phase *out);
bool stw_component_parse(const char *text, stw_component *out);
bool stw_tier_parse(const char *text, stw_tier *out);
bool stw_update_parse(const char *text, stw_update *out);
bool stw_act_parse(const char *text, stw_act *out);
bool stw_load_parse(const char *text, stw_load *out);

#endif
