/* SPDX-License-Identifier: Apache-2.0 */
/* A job: one model, one cluster, one run and one engine, with everything that follows from them
 * before any decision: the spaces of each rank, the groups of ranks, the kinds of ranks and nodes,
 * and the quantum of placement. A job borrows its inputs (they must outlive it) and owns the rest
 * in its pool. Read-only after stw_job_new; any thread. */
#ifndef STW_PLAN_JOB_H
#define STW_PLAN_JOB_H

#include <pthread.h>

#include "models/model.h"
#include "plan/job/engine.h"
#include "plan/job/roles.h"
#include "plan/job/space.h"
#include "plan/spec/cluster.h"
#include "plan/spec/run_spec.h"
#include "plan/spec/terms.h"

/** A kind of rank: ranks with the same shard sizes and the same part in loading. */
typedef struct stw_rank_kind {
    char name[24]; /* "rank0", "leader", "rank", with a suffix if shards differ */
    uint32_t n_ranks;
    uint32_t *ranks;        /* ascending */
    bool first, leader;     /* global rank 0; first rank of its node (rank 0 is both) */
    uint32_t stage;         /* pipeline stage, 0: the first or only one */
    uint32_t home;          /* the role on whose nodes it runs; 0: the trainer. Others have empty
                               spaces */
    stw_space *spaces;      /* [job.n_spaces] the spaces of ranks[0]; the other ranks' spaces have
                               the same sizes */
    uint64_t params;        /* elements of the params space; may be 0 */
    uint64_t *block_params; /* [model.n_blocks] elements of each block in the params space */
    uint64_t *block_grads;  /* [model.n_blocks] the same in the grads space (trained tensors) */
} stw_rank_kind;

/** A kind of node: nodes with the same number of ranks of each kind. */
typedef struct stw_host_kind {
    uint32_t n_nodes, first_node;
    uint32_t *kind_ranks; /* [n_kinds] ranks of each kind on such a node */
} stw_host_kind;

/** What engines derive from a job when they first need it: made once, by any thread. */
typedef enum stw_once { STW_ONCE_SYNC, STW_ONCE_SAVE, STW_N_ONCE } stw_once;
typedef struct stw_job_once {
    pthread_mutex_t mutex;
    const struct stw_job *job; /* the owner; jobs derived from it share the value */
    stw_pool *pool;            /* holds the value */
    const void *value;         /* NULL: not made yet */
} stw_job_once;

typedef struct stw_job {
    stw_pool *pool;
    stw_job_once *once;     /* [STW_N_ONCE] */
    const stw_model *model; /* with what the engine adds and the adapters of trainable.lora */
    bool *frozen;           /* [model.n_tensors] without gradients and moments; NULL: none is */
    bool one_cut;           /* params, grads and optimizer state share one partition */
    const stw_cluster *cluster;
    const stw_run_spec *run;
    const stw_engine *engine;
    uint32_t n_spaces; /* spaces of a rank: STW_N_STATE_SPACES and the engine's own */
    stw_space files;   /* the model's files: all tensors, end to end */
    uint32_t n_roles;  /* including the trainer, which is the first */
    stw_job_role *roles;
    uint32_t world; /* ranks of the trainer */
    uint32_t ranks; /* ranks of all nodes; roles with nodes of their own come last */
    uint32_t ranks_per_node;
    uint32_t group;          /* ranks over which dense state is sharded: dp_shard x cp */
    uint32_t expert_group;   /* the same for routed experts after the ep x etp cut */
    uint32_t expert_cut;     /* ep x etp */
    uint32_t dp_shard;       /* resolved */
    uint32_t *chunks;        /* [model.n_blocks] the pipeline chunk of each block, counted over all
                                stages; NULL: the engine has no stages */
    uint64_t tokens;         /* per rank and micro batch: micro_batch x seq_len / cp */
    uint64_t decoder_tokens; /* the same for the decoder if the model has an encoder; else equal to
                                `tokens` */
    uint32_t n_kinds;
    stw_rank_kind *kinds; /* kinds[largest] has the largest optimizer space */
    uint32_t largest;
    double node_copies; /* ranks of a node that hold the same parameters: >= 1 */
    uint32_t n_node_kinds;
    stw_host_kind *node_kinds;
    uint64_t unit_params;   /* the quantum of placement, the same for all kinds */
    uint32_t n_units;       /* quanta of the largest kind: ceil(params / unit_params), at most
                               STW_MAX_UNITS */
    uint64_t spread_params; /* step of stw_space_spread in state spaces; 0: not spread */
} stw_job;

#define STW_MAX_UNITS 1024
#define STW_MAX_RANKS (1u << 18) /* ranks of the largest cluster */
/* A stretch of a spread space is a fraction of a quantum, so that a placement takes small parts of
 * every block. It is long enough to be read and converted at full speed. */
#define STW_SPREADS_PER_UNIT 4
#define STW_SPREAD_MIN_PARAMS (512ull << 10)

/** Make a value in a pool that becomes the job's. The job is the one that was cut. */
typedef stw_status stw_once_fn(const stw_job *job, stw_pool *pool, const void **out,
                               stw_error *err);
/** The value, made by the first call for a job. @param out belongs to the job */
STW_MUST_USE stw_status stw_job_once_get(const stw_job *job, stw_once which, stw_once_fn *make,
                                         const void **out, stw_error *err);

/** Cut the model. Fails BAD_INPUT where the parallel sizes do not divide or exceed the cluster. */
STW_MUST_USE stw_status stw_job_new(const stw_model *model, const stw_cluster *cluster,
                                    const stw_run_spec *run, const stw_engine *engine,
                                    stw_job **out, stw_error *err);
void stw_job_free(stw_job *job);
/** Returns the index of the rank's kind. */
uint32_t stw_job_kind_of(const stw_job *job, uint32_t rank);
/** Returns the number of ranks of a role. */
uint32_t stw_job_role_ranks(const stw_job *job, uint32_t role);
/** Returns the index of the node's kind. */
uint32_t stw_job_node_kind_of(const stw_job *job, uint32_t node);
/** Write the ranks of some kinds in words: "rank 0", "all 8 ranks", "ranks 1-7".
 * @param kinds [n_kinds] true: included */
void stw_job_ranks_words(const stw_job *job, const bool *kinds, char *out, size_t out_size);
void stw_job_kind_words(const stw_job *job, uint32_t kind, char *out, size_t out_size);
/** The same for nodes. @param node_kinds [n_node_kinds] true: included */
void stw_job_nodes_words(const stw_job *job, const bool *node_kinds, char *out, size_t out_size);
/** Build the space `id` of one rank; its segments lie in `pool`. */
STW_MUST_USE stw_status stw_job_space(const stw_job *job, uint32_t id, uint32_t rank,
                                      stw_pool *pool, stw_space *out, stw_error *err);
/** Returns the space that contains a component of the state. */
stw_space_id stw_component_space(stw_component component);
/** Returns the number of a tensor's first element in the model's numbering. */
uint64_t stw_job_tensor_first(const stw_job *job, uint32_t tensor);
/** True if norms and digests include this rank's copy of a space. */
bool stw_job_counts(const stw_job *job, uint32_t id, uint32_t rank);
/** Returns the elements of a kind's optimizer space, which quanta and buckets divide. */
uint64_t stw_job_placed_params(const stw_job *job, uint32_t kind);
/** True if the model has an encoder, whose output its decoder reads. */
bool stw_job_has_encoder(const stw_job *job);
/** The tokens that the blocks of a tensor group process: in a micro batch on a rank, and in a whole
 * sequence. */
uint64_t stw_job_group_tokens(const stw_job *job, uint32_t group);
uint64_t stw_job_group_seq_len(const stw_job *job, uint32_t group);
/** Give the number of ranks in a group, and how many of them share a node. */
void stw_job_group_size(const stw_job *job, stw_rank_group group, uint32_t *ranks,
                        uint32_t *on_node);
const char *stw_rank_group_name(stw_rank_group group);
/** Returns the elements of a tensor that a rank has before sharding over data-parallel ranks: after
 * ep x etp for an expert, else see stw_engine.part. */
uint64_t stw_job_part(const stw_job *job, uint32_t tensor);
/** Returns the number of ranks that hold the same shard (STW_RANK_GROUP_REPLICATE). */
uint32_t stw_job_replicas(const stw_job *job);
/** Returns parallel.tp for engines with stw_engine.part; 1 for other engines. */
static inline uint32_t stw_job_tp(const stw_job *job) {
    return job->engine->part != NULL ? job->run->parallel.tp : 1;
}
/** Returns the tokens of which a rank has all elements between the products: its share of them with
 * sequence parallelism. */
static inline uint64_t stw_job_own_tokens(const stw_job *job) {
    return job->run->parallel.sequence_parallel ? job->tokens / stw_job_tp(job) : job->tokens;
}
/** True if a step of Stowage's optimizer may overlap the next forward: the optimizer runs in a
 * framework's process, and neither a rollout nor a log-probability pass follows the step. */
bool stw_job_may_hide_step(const stw_job *job);
/** True if the run also asks for this (optimizer.overlap). Gradients then stay until the forward of
 * their block. */
bool stw_job_hides_step(const stw_job *job);
/** Bytes of one element of a state component under the run's precision; 0: the run has no such
 * state. */
uint64_t stw_job_element_bytes(const stw_job *job, stw_component component);
/** Returns the quanta that the run's fixed shares give to an update kind; STW_AUTO if its share is
 * not fixed. Fixed shares are rounded together, in the order resident, stream, direct, cpu, so that
 * their quanta add up. */
uint32_t stw_job_update_units(const stw_job *job, stw_update update);
/** Returns the parameter group of a tensor: 0 for the optimizer's own rates, else i for
 * run.optimizer.groups[i - 1]. That is the first group with a pattern that matches the tensor's
 * name ("1d": the tensor has one dimension). */
uint32_t stw_job_param_group(const stw_job *job, uint32_t tensor);
/** Returns the bytes of master, exp_avg and exp_avg_sq of one element together; they lie and move
 * together. */
uint64_t stw_job_optimizer_bytes(const stw_job *job);
/** Returns the elements of a block that one rank gathers: stw_job_part of all its tensors. */
uint64_t stw_job_gathered_params(const stw_job *job, uint32_t block);
/** Returns the tokens of a rank in a micro batch of batch.log_prob_micro_batch sequences; 0: there
 * is no log-probability pass. */
uint64_t stw_job_log_prob_tokens(const stw_job *job);
/** The tokens of an optimizer step, and of all steps of an iteration, summed over all ranks. */
uint64_t stw_job_step_tokens(const stw_job *job);
uint64_t stw_job_iteration_tokens(const stw_job *job);
/** Returns how often an iteration executes a phase's movement. Forward and backward: once for each
 * micro batch of each optimizer step. log_prob: once for each of its micro batches over the
 * sequences of all mini batches. */
uint64_t stw_job_passes(const stw_job *job, stw_phase phase);
/** As stw_job_gathered_params, for the trained tensors only. */
uint64_t stw_job_gathered_grads(const stw_job *job, uint32_t block);
/** The expert elements included in the two counts above, which are sharded over the ranks with the
 * same experts. 0 if ep x etp is 1. */
uint64_t stw_job_gathered_experts(const stw_job *job, uint32_t block);
uint64_t stw_job_gathered_expert_grads(const stw_job *job, uint32_t block);
static inline bool stw_job_trains(const stw_job *job, uint32_t tensor) {
    return job->frozen == NULL || !job->frozen[tensor];
}

#endif
