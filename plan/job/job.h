/* SPDX-License-Identifier: Apache-2.0 */
/* A job: one model, one cluster, one run, and what follows from the three before any decision: how
 * the parameters are cut over ranks, which ranks and nodes are alike, and the quantum in which
 * state is placed. A job borrows its three inputs (they must outlive it) and owns the rest in its
 * pool.
 *
 * Partition (fsdp2, shared by the stowage engine): every tensor is cut along its first dimension
 * into chunks of ceil(dim0 / group) rows, the last ones shorter or empty (torch.chunk; FSDP2's
 * fully_shard, torch/distributed/fsdp/_fully_shard). The group is dp_shard x cp; routed experts are
 * cut by ep x etp first. A rank's shards laid end to end in canonical order are its flat space. */
#ifndef STW_PLAN_JOB_H
#define STW_PLAN_JOB_H

#include "models/model.h"
#include "plan/spec/cluster.h"
#include "plan/spec/run_spec.h"
#include "plan/spec/terms.h"

/** A contiguous run of one tensor's elements inside a rank's flat space. */
typedef struct stw_segment {
    uint32_t tensor;
    uint64_t tensor_first; /* first element inside the tensor */
    uint64_t flat_first;   /* first element inside the rank's flat space */
    uint64_t global_first; /* first element in the model's element numbering (tensors end to end) */
    uint64_t params;
} stw_segment;

/** Ranks that are alike: equal shard sizes and equal part in loading. */
typedef struct stw_rank_kind {
    char name[24]; /* "rank0", "leader", "rank", with a suffix where shards differ */
    uint32_t n_ranks;
    uint32_t *ranks;        /* ascending */
    bool first, leader;     /* global rank 0; first rank of its node (rank 0 is both) */
    uint32_t stage;         /* pipeline stage, 0 */
    uint64_t params;        /* elements of the flat space; may be 0 */
    uint64_t *block_params; /* [model.n_blocks] elements of each block in the flat space */
} stw_rank_kind;

/** Nodes that hold the same numbers of the same kinds of rank. */
typedef struct stw_host_kind {
    uint32_t n_nodes, first_node;
    uint32_t *kind_ranks; /* [n_kinds] ranks of each kind on such a node */
} stw_host_kind;

typedef struct stw_job {
    stw_pool *pool;
    const stw_model *model;
    const stw_cluster *cluster;
    const stw_run_spec *run;
    uint32_t world; /* ranks */
    uint32_t ranks_per_node;
    uint32_t group;        /* ranks over which dense state is sharded: dp_shard x cp */
    uint32_t expert_group; /* the same for routed experts after the ep x etp cut */
    uint32_t expert_cut;   /* ep x etp */
    uint32_t dp_shard;     /* resolved */
    uint64_t tokens;       /* per rank and micro batch: micro_batch x seq_len / cp */
    uint32_t n_kinds;
    stw_rank_kind *kinds; /* the kind with the largest flat space is kinds[largest] */
    uint32_t largest;
    uint32_t n_node_kinds;
    stw_host_kind *node_kinds;
    uint64_t unit_params; /* the quantum of placement, the same for all kinds */
    uint32_t n_units; /* of the largest kind: ceil(params / unit_params), at most STW_MAX_UNITS */
} stw_job;

#define STW_MAX_UNITS 1024

/** Cut the model. Fails BAD_INPUT where the parallel sizes do not divide or exceed the cluster. */
STW_MUST_USE stw_status stw_job_new(const stw_model *model, const stw_cluster *cluster,
                                    const stw_run_spec *run, stw_job **out, stw_error *err);
void stw_job_free(stw_job *job);
/** Index of the kind of a rank. */
uint32_t stw_job_kind_of(const stw_job *job, uint32_t rank);
/** The flat space of one rank, empty shards left out. *segments lies in `pool`. */
STW_MUST_USE stw_status stw_job_segments(const stw_job *job, uint32_t rank, stw_pool *pool,
                                         stw_segment **segments, uint32_t *n_segments,
                                         stw_error *err);
/** Bytes of one element of a state component under the run's precision; 0: the run has no such
 * state. */
uint64_t stw_job_element_bytes(const stw_job *job, stw_component component);
/** Quanta that the run's fixed shares give to an update engine, STW_AUTO where its share is free.
 * Shares are rounded to quanta in the order resident, stream, direct, cpu, each so that it and
 * those before it are together nearest to their sum: what is fixed as a whole is dealt as a whole.
 */
uint32_t stw_job_update_units(const stw_job *job, stw_update update);
/** Which rates a tensor has: 0 the optimizer's own, i those of run.optimizer.groups[i - 1], the
 * first group one of whose patterns matches its name ("1d": the tensor has one dimension). */
uint32_t stw_job_param_group(const stw_job *job, uint32_t tensor);
/** The same of master and moments together: what lies and moves as one. */
uint64_t stw_job_optimizer_bytes(const stw_job *job);
/** Elements of one block before sharding as one rank gathers it (after the ep x etp cut). */
uint64_t stw_job_gathered_params(const stw_job *job, uint32_t block);

#endif
