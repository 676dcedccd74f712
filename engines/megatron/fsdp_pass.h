/* SPDX-License-Identifier: Apache-2.0 */
/* What Megatron-FSDP gathers and reduces in forward and backward of a micro batch. pass.c tells it
 * which block comes next; all functions do nothing without Megatron-FSDP. */
#ifndef STW_ENGINES_MEGATRON_FSDP_PASS_H
#define STW_ENGINES_MEGATRON_FSDP_PASS_H

#include "engines/megatron/fsdp.h"
#include "plan/program/builder.h"

typedef struct stw_megatron_flow {
    stw_builder *b;
    const stw_megatron_fsdp *fsdp;
    bool grads, params; /* cut */
    uint64_t passes;    /* micro batches of an iteration */
    struct stw_megatron_held {
        stw_extent weights, grads;
        bool recycled;                   /* goes with the next all-gather */
        bool gathered, reducing, filled; /* filled: its gradients are there, or on their way */
        uint32_t ready;                  /* its all-gather, or its reduction */
    } * held;                            /* [fsdp->n] */
    bool *in_unit;                       /* [model.n_blocks] */
    uint32_t *queue; /* [fsdp->n] buckets whose gradients wait for the end of their reduction */
    uint32_t n_queue;
    stw_extent pools[2]; /* of weights, of gradients */
    uint32_t worked;     /* the last computation that used a bucket */
} stw_megatron_flow;

/** Begin the movement's transient bytes: two buffers of a pool; blocks of no unit are gathered for
 * the whole iteration. */
void stw_megatron_flow_begin(stw_megatron_flow *flow, stw_builder *b,
                             const stw_megatron_fsdp *fsdp);
/** A block is about to run. @return the operation that its computation waits for, or STW_OP_NONE */
uint32_t stw_megatron_flow_before(stw_megatron_flow *flow, uint32_t block, bool backward);
/** It has run. @param worked its computation */
void stw_megatron_flow_after(stw_megatron_flow *flow, uint32_t block, bool backward,
                             uint32_t worked);
/** The forward has ended. */
void stw_megatron_flow_turn(stw_megatron_flow *flow);
/** The backward of a micro batch has ended: all reductions end, all is released. */
void stw_megatron_flow_end(stw_megatron_flow *flow);
/** Buffers that stay between micro batches and during steps. */
uint64_t stw_megatron_flow_pool_bytes(const stw_job *job, const stw_megatron_fsdp *fsdp);

#endif
