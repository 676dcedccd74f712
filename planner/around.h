/* SPDX-License-Identifier: Apache-2.0 */
/* What lies around each block in forward and backward, read off one program for every policy, in
 * which all blocks are alike. rows_forward.c makes rows of it.
 *
 * Every instant of forward and backward belongs to one block: in forward until its compute, in
 * backward from where its successor's activations have gone until its own have; the loss belongs to
 * the last block, and what comes after the first block's backward to none. Around block j is what
 * its policy's program has live there less what the blocks before saved in it. */
#ifndef STW_PLANNER_AROUND_H
#define STW_PLANNER_AROUND_H

#include "planner/rows.h"

/** Which shards a place has on the host: gradients 1, parameters 2, both 3. */
#define STW_STAGED_KINDS 4
static inline unsigned stw_staged_kind(const stw_place *place) {
    return (place->params == STW_TIER_HOST ? 2u : 0u) + (place->grads == STW_TIER_HOST ? 1u : 0u);
}

typedef struct stw_around {
    stw_build *build;
    const stw_cost *cost;
    uint32_t n;       /* blocks in the order of their forward */
    uint32_t *blocks; /* [n] */
    uint32_t *group;  /* [n] of the block */
    uint32_t *later;  /* [n] blocks of its group that come after it */
    bool has[STW_N_ACTS];
    int64_t *bytes[STW_N_ACTS]; /* [n] around each block under a policy */
    int64_t tail;               /* after the first block's backward */
    /** By how much more where all shards of one kind are on the host. */
    int64_t *host_stage[STW_STAGED_KINDS]; /* [n] */
    int64_t host_tail[STW_STAGED_KINDS];
    uint32_t *position;           /* [blocks of the model]; n: in no forward */
    uint64_t *before[STW_N_ACTS]; /* [n + 1] saved by the blocks before a position */
    double uneven; /* a block's share of them is larger by at most this than that of the space */
} stw_around;

/** Read the programs of all policies that the problem has, and build->saved with them. All that it
 * makes lies in the build's pool. */
STW_MUST_USE stw_status stw_read_around(stw_build *build, stw_around *out, stw_error *err);

/** What the block at position i saves under a policy, and what one block of a group saves. */
uint64_t stw_around_saved(const stw_around *around, uint32_t i, stw_act act);
uint64_t stw_around_group_saves(const stw_around *around, uint32_t group, stw_act act);

#endif
