/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what into a checkpoint: every element of every state by one rank. It follows from what
 * all ranks hold, so that no rank asks another. What one rank alone holds, that rank writes;
 * replicas are divided between those that have them, by bytes. A pure function, the same on every
 * rank. */
#ifndef STW_PLAN_CHECKPOINT_SHARES_H
#define STW_PLAN_CHECKPOINT_SHARES_H

#include "plan/checkpoint/saved.h"

/** A box of a tensor whose state of some kinds a rank holds. */
typedef struct stw_held {
    stw_box box;
    uint32_t rank, tensor;
    uint32_t kinds; /* a bit for each stw_saved_kind */
} stw_held;

/** A box that a rank writes. */
typedef struct stw_share {
    stw_box box;
    uint32_t tensor;
    uint32_t kinds;
    uint32_t held; /* which of the pieces has it */
} stw_share;

typedef struct stw_shares {
    uint32_t world;
    uint32_t *first;   /* [world + 1] shares of each rank, */
    stw_share *shares; /* ascending by tensor */
    uint64_t *bytes;   /* [world] */
} stw_shares;

/** Divide the state. Pieces without elements are fine.
 * @param pool of the result
 * @param held n pieces, those of a tensor and of the same kinds in one go
 * @return BAD_INPUT names a tensor and a kind of its state of which no rank holds all elements, or
 * a piece that lies outside its tensor */
STW_MUST_USE stw_status stw_shares_make(stw_pool *pool, const stw_saved *saved, uint32_t world,
                                        const stw_held *held, uint32_t n, stw_shares *out,
                                        stw_error *err);

#endif
