/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what into a checkpoint: every element of every state by one rank. It follows from what
 * all ranks hold, so that no rank asks another. A rank writes the elements
 * that it alone holds; replicas are divided by bytes between the ranks that hold them. A pure
 * function, the same on every rank. */
#ifndef STW_PLAN_CHECKPOINT_SHARES_H
#define STW_PLAN_CHECKPOINT_SHARES_H

#include "plan/checkpoint/saved.h"

/** A box of a tensor whose state of some kinds a rank holds. */
typedef struct stw_held {
    stw_box box;
    uint32_t rank, tensor;
    uint32_t kinds; /* a bit for each stw_saved_kind */
    uint32_t alike; /* ranks rank + 1 and on that hold it too */
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

/** Divide what some ranks hold. Pieces without elements are fine. Ranks that share no element with
 * a rank change nothing of what it writes.
 * @param pool of the result
 * @param held n pieces, those of a tensor and of the same kinds in one go
 * @return BAD_INPUT names a piece that lies outside its tensor */
STW_MUST_USE stw_status stw_shares_make(stw_pool *pool, const stw_saved_files *saved,
                                        uint32_t world, const stw_held *held, uint32_t n,
                                        stw_shares *out, stw_error *err);
/** Do the shares of all ranks hold every element of the state?
 * @return BAD_INPUT names a tensor and a kind of its state of which elements are missing */
STW_MUST_USE stw_status stw_shares_check(const stw_saved_files *saved, const stw_shares *shares,
                                         stw_error *err);

#endif
