/* SPDX-License-Identifier: Apache-2.0 */
/* What the movements of this engine share: how DeepSpeed cuts state, and bytes that live from one
 * movement to another. All sources are those of DeepSpeed 0.19.8, paths below deepspeed/runtime/:
 * zero/stage_1_and_2.py, zero/stage3.py, zero/partition_parameters.py,
 * zero/partitioned_param_coordinator.py, bf16_optimizer.py.
 *
 * Every parameter group (optimizer.groups; 0: what none of them matches) has a flat buffer of its
 * trained tensors in stages 1 and 2, and sub-groups of its own in stage 3. Frozen tensors are in
 * none; stage 3 cuts them like others.
 *
 * Element counts leave out the padding of flat buffers: up to two elements per rank and group in
 * stages 1 and 2, up to one per rank and tensor in stage 3. */
#ifndef STW_ENGINES_DEEPSPEED_ZERO_H
#define STW_ENGINES_DEEPSPEED_ZERO_H

#include "engines/deepspeed/keys.h"
#include "engines/deepspeed/uses.h"
#include "plan/program/builder.h"

/** Streams of torch's allocator beside that of computation. */
enum { STW_ZERO_GATHER_POOL = 1, STW_ZERO_REDUCE_POOL };

/** The group of a frozen tensor. */
#define STW_ZERO_FROZEN UINT32_MAX

/** The flat buffers of all parameter groups, tensor by tensor. */
typedef struct stw_flat {
    const stw_job *job;
    uint64_t params[STW_ZERO_GROUPS]; /* of each */
    uint64_t next[STW_ZERO_GROUPS];   /* where the next tensor of each begins */
} stw_flat;

/** Where a tensor lies in the flat buffer of its group. */
typedef struct stw_flat_place {
    uint32_t group;
    uint64_t first; /* element */
} stw_flat_place;

typedef struct stw_zero {
    stw_builder *b;
    const stw_job *job;
    stw_deepspeed_settings set;
    uint32_t ranks;                         /* that share the state */
    uint64_t element;                       /* bytes of a parameter and of its gradient */
    bool fp32_grads;                        /* gradients are collected in fp32 */
    bool bf16_optimizer;                    /* stage 1 with fp32_grads on the GPU: BF16_Optimizer */
    bool reduces_in_backward;               /* else when the last backward has ended */
    uint64_t placed;                        /* elements of the optimizer's state of this rank */
    uint64_t group_placed[STW_ZERO_GROUPS]; /* the same by parameter group */
    uint64_t group_trained[STW_ZERO_GROUPS]; /* elements of all its tensors */
    uint32_t group_tensors[STW_ZERO_GROUPS]; /* of which this rank owns elements */
    uint64_t trained;                        /* elements of all groups */
    uint32_t n_trained;                      /* tensors of all groups */
    uint64_t largest;                        /* elements of the largest trained tensor */
    stw_flat_place *places;                  /* [n_tensors] */
    /** Elements of the sub-groups of stage 3: tensors in order until they have sub_group_size
     * elements of the rank (stage3.py, _create_fp16_sub_groups). */
    uint64_t *sub_groups;        /* [n_sub_groups] */
    uint32_t *sub_group_tensors; /* [n_sub_groups] */
    uint32_t n_sub_groups;
    /** Twin-Flow: the first so many sub-groups keep master weights, gradients and moments on the
     * GPU (stage3.py, _create_fp32_partitions, subgroup_to_device); as many as there are where the
     * optimizer is not offloaded. */
    uint32_t on_gpu;
    uint64_t on_gpu_params; /* of an offloaded optimizer: elements of these */
    uint32_t *sub_group_of; /* [n_tensors] of trained tensors of which the rank has a shard */
    uint32_t normed;        /* in a step: the operation that knows the global norm */
    /** State on NVMe (swap.h). */
    bool *swapped;                      /* [n_sub_groups] master weights and moments lie there */
    struct stw_swap_group *swap_groups; /* [n_sub_groups] */
    uint64_t swapped_params;            /* elements of these */
    uint64_t largest_group;             /* elements of the largest sub-group */
    uint32_t host_sub_groups; /* the first so many have their shards in one buffer on the host */
    uint64_t host_params[STW_ZERO_GROUPS]; /* elements of these buffers */
    uint64_t unwritten; /* bytes of fp32 gradients that backward leaves in a buffer */
    stw_extent *left;   /* [n_tensors] fp32 gradients on the GPU that are not written */
    stw_uses *uses;     /* [n_groups] */
    /** What torch's allocator sees of forward and backward is known tensor by tensor, and asked
     * for. */
    bool traced;
    uint32_t param_tensors; /* the number of the first one's tensor */
    /** From backward to the step. */
    stw_extent partition; /* reduced gradients of the tensors that the rank owns, stages 1 and 2 */
    stw_extent *whole;    /* [n_tensors] gradients that no reduction has taken yet */
} stw_zero;

/** @param b begun; what `z` holds lies in the program's pool; false after a failure */
bool stw_zero_init(stw_zero *z, stw_builder *b);
/** The embedding that the head shares; UINT32_MAX where there is none. */
uint32_t stw_zero_embedding(const stw_zero *z);
/** Elements of a rank's shard of a tensor in stage 3, padding included. */
uint64_t stw_zero_shard(const stw_zero *z, uint32_t tensor);
/** Elements of a rank's part of a flat buffer of so many. */
uint64_t stw_zero_part(const stw_job *job, uint64_t params);
/** Elements of a tensor in the partition of stages 1 and 2 whose rank needs the most bytes: the
 * first one where all gradients wait for the end of backward and are reduced from the first tensor
 * on, else the last one, which fills first. */
uint64_t stw_zero_owned(const stw_zero *z, uint32_t tensor);
/** The sum over tensors that have elements in that partition, of all their elements. */
uint64_t stw_zero_owned_whole(const stw_zero *z);
/** The parts of the group's flat buffer in which a tensor begins and ends. */
void stw_zero_parts_of(const stw_zero *z, uint32_t tensor, uint64_t *first, uint64_t *last);
/* ---- the engine's partitions (stw_engine) ---- */

uint32_t stw_zero_representative(const stw_job *job, uint32_t rank);
stw_status stw_zero_cut(const stw_job *job, uint32_t space, uint32_t rank, stw_space *out,
                        stw_error *err);
bool stw_zero_counts(const stw_job *job, uint32_t space, uint32_t rank);

#endif
