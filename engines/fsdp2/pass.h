/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a forward and backward share: the state of every block, and how groups of
 * parameters are gathered (gather.c) and their gradients reduced (reduce.c). A unit is a parameter
 * group of FSDP: one block, or all blocks of the root, which are gathered and reduced together
 * (torch/distributed/fsdp/_fully_shard). A unit is named by any of its blocks. */
#ifndef STW_ENGINES_FSDP2_PASS_H
#define STW_ENGINES_FSDP2_PASS_H

#include "engines/block_work.h"
#include "engines/bytes.h"
#include "engines/fsdp2/tensors.h"
#include "engines/fsdp_keys.h"

typedef struct stw_pass_block {
    bool in_root;                          /* stw_job_in_root */
    stw_extent shard, all_gather, unshard; /* shard: of it, what comes from the host */
    stw_extent resharded;                  /* its part between forward and backward */
    stw_extent reduce, output;             /* output: what waits for its all-reduce */
    stw_extent saved, acts[2], grads[2];   /* acts: the MLP's part, the rest */
    stw_extent accumulated;                /* unsharded gradients of earlier micro batches */
    uint64_t saves, mlp_saves;             /* bytes for backward, of them the MLP's */
    uint32_t gathered;                     /* the last operation that made `unshard` */
    uint32_t reduced;                      /* the last operation on `reduce` and `output` */
    uint64_t host_params, host_grads;      /* elements of this rank's shard that lie on the host */
    stw_extent stash;                      /* offloaded activations on the host */
    uint32_t stashed;                      /* the copy of them, either way */
    uint32_t held_to;                      /* see stw_block_held_to */
    uint64_t side_offset;                  /* of the root: in side.root */
} stw_pass_block;

typedef struct stw_pass {
    stw_builder *b;
    stw_pass_block *blocks; /* [n] */
    stw_act *acts;          /* [n] */
    uint32_t n;             /* model.n_blocks */
    uint32_t *chain;        /* [n_chain] blocks outside the root group, in the order of forward */
    uint32_t n_chain;
    uint32_t root;   /* the last block of the root group, the head where there is one: the loss */
    uint32_t worked; /* the last computation */
    bool lazy_grads;
    bool accumulates;          /* sharded gradients of earlier micro batches are there */
    bool holds;                /* those of the step that goes on beside this forward are */
    uint32_t gathered_once_in; /* passes: parameters are gathered in the first one of so many */
    uint32_t stays;           /* micro batches: what backward gathered is there in the next forward,
                               * but for the first one of so many; 0: it goes */
    uint32_t reduced_once_in; /* micro batches: gradients are reduced in the last one of so many */
    stw_extent beside;        /* what is saved, and not by blocks */
    stw_torch *torch;         /* what torch's allocator sees */
    struct {
        stw_extent root, output;
        stw_extent staged[2];  /* shards on their way up, in turn */
        uint32_t staged_by[2]; /* the last collective that read each */
        stw_extent sent[2];    /* gradients on their way to the host, in turn */
        uint32_t sent_by[2];   /* the last copy out of each */
        uint32_t stage_turn, sent_turn;
    } side; /* see stw_pass_alloc_side */
} stw_pass;

static inline bool stw_pass_in_root(const stw_pass *p, uint32_t block) {
    return p->blocks[block].in_root;
}
/** Is a block of the unit that `unit` belongs to? */
static inline bool stw_pass_in_unit(const stw_pass *p, uint32_t unit, uint32_t block) {
    return block == unit || (stw_pass_in_root(p, unit) && stw_pass_in_root(p, block));
}
/** The blocks of a unit lie in [first, end); between them the root's unit has gaps. */
static inline uint32_t stw_pass_unit_first(const stw_pass *p, uint32_t unit) {
    return stw_pass_in_root(p, unit) ? 0 : unit;
}
static inline uint32_t stw_pass_unit_end(const stw_pass *p, uint32_t unit) {
    return stw_pass_in_root(p, unit) ? p->n : unit + 1;
}
/** Is this one of the blocks whose gradients pass through side.sent? */
static inline bool stw_pass_sends_in_turn(const stw_pass *p, uint32_t block) {
    return p->b->job->group > 1 && !stw_pass_in_root(p, block) &&
           !stw_reduced_last(p->b->job, block);
}
static inline bool stw_pass_has_root(const stw_pass *p) { return stw_pass_in_root(p, p->root); }

/* ---- pass.c ---- */

/** Blocks, their policies and what of them lies on the host; `b` and `n` are set. False after a
 * failure. */
bool stw_pass_begin(stw_pass *p);
/** Append a computation after the block is gathered, and after an operation. */
uint32_t stw_pass_compute(stw_pass *p, uint32_t block, stw_op_kind kind, const stw_work *work,
                          uint32_t after);
/** Free on the GPU, and forget. */
void stw_pass_drop(stw_pass *p, stw_component component, stw_extent *extent, uint32_t after);
/** Append a collective from one extent into another.
 * @param like kind, group, unit and bytes of its full result */
uint32_t stw_pass_collective(stw_pass *p, const stw_op *like, stw_extent from, stw_extent to,
                             uint32_t after);
stw_op stw_pass_comm_op(stw_op_kind kind, stw_rank_group group, uint32_t unit, uint64_t bytes);
/** Elements of a unit as they are communicated. */
stw_torch_elements stw_pass_elements(const stw_pass *p, uint32_t unit, bool trained);

/* ---- exchange.c ---- */

/** What a block's ranks exchange in a forward, in one that is recomputed, in a backward. */
typedef enum stw_exchange {
    STW_EXCHANGE_FORWARD,
    STW_EXCHANGE_AGAIN,
    STW_EXCHANGE_BACKWARD
} stw_exchange;
/** Rows of experts, keys and values of context parallelism, and rows of tensor parallelism, before
 * a block's computation. */
void stw_pass_exchange(stw_pass *p, uint32_t block, stw_exchange when);
/** Rows of tensor parallelism of the embedding, and of the head and the loss. */
void stw_pass_exchange_embedding(stw_pass *p, stw_exchange when);
void stw_pass_exchange_loss(stw_pass *p, stw_exchange when);
/** Gradients of a unit's tensors that are whole on every rank of tensor parallelism, each of which
 * has a part of the sum. */
void stw_pass_sum_whole(stw_pass *p, uint32_t unit);

/* ---- gather.c ---- */

/** Parameters of all blocks are there, as the backward of the micro batch before left them. */
void stw_pass_hold_all(stw_pass *p);
/** Start gathering a unit. */
void stw_pass_gather(stw_pass *p, uint32_t unit);
/** Its parameters are copied out of what was gathered. */
void stw_pass_copy_out(stw_pass *p, uint32_t unit);
/** What was gathered goes. */
void stw_pass_drop_gather(stw_pass *p, uint32_t unit);
/** Its parameters go. */
void stw_pass_release(stw_pass *p, uint32_t unit);
/** They go after forward; with fsdp.reshard_to_node the GPUs of a node keep a part each, a copy. */
void stw_pass_reshard(stw_pass *p, uint32_t unit);
/** The root is gathered and copied out; what was gathered of it goes. */
void stw_pass_gather_root(stw_pass *p);
void stw_pass_drop_root_gather(stw_pass *p);
bool stw_pass_is_released(const stw_pass *p, uint32_t block);
/** Room on other streams: torch drops the input or output of a collective as soon as it is issued,
 * but the bytes stay in the pool of the collective's stream, which its counters of allocated bytes
 * do not show. */
void stw_pass_alloc_side(stw_pass *p);
void stw_pass_free_side(stw_pass *p);

/* ---- reduce.c ---- */

/** Gradients of earlier micro batches, of which the movement stands for the last one. */
void stw_pass_accumulate(stw_pass *p);
/** Gradients of a step that goes on beside this forward (stw_job_hides_step) are there, and go
 * before the forward of their blocks: those of chain[at], or those of the root that are (not)
 * behind the chain. With several micro batches the movement stands for the last one, which has
 * none. */
void stw_pass_hold_grads(stw_pass *p);
void stw_pass_drop_held(stw_pass *p, uint32_t at);
void stw_pass_drop_held_root(stw_pass *p, bool behind);
/** A unit's gradients are reduced, after an operation. */
void stw_pass_reduce(stw_pass *p, uint32_t unit, uint32_t after);
/** The input of a unit's reduce-scatter goes. UINT32_MAX: nothing. */
void stw_pass_drop_reduced(stw_pass *p, uint32_t unit);
/** Backward has ended: what is left of all reductions goes. */
void stw_pass_end_reductions(stw_pass *p);

#endif
