/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes around each block in forward and backward. They are read off one program per policy, in
 * which all blocks have that policy. rows_forward.c makes rows of them.
 *
 * Every instant of forward and backward belongs to one block. In forward a block's instants end
 * with its compute. In backward they begin when the activations of the next block are freed, and
 * end when its own are freed. The loss belongs to the last block; the instants after the first
 * block's backward belong to none. The bytes around block j are the live bytes of its policy's
 * program at its instants, minus the bytes that earlier blocks saved. */
#ifndef STW_PLANNER_AROUND_H
#define STW_PLANNER_AROUND_H

#include "planner/rows.h"

/** Returns which shards of a place are on the host: gradients 1, parameters 2, both 3. */
#define STW_STAGED_KINDS 4
static inline unsigned stw_staged_kind(const stw_place *place) {
    return (place->params == STW_TIER_HOST ? 2u : 0u) + (place->grads == STW_TIER_HOST ? 1u : 0u);
}

typedef struct stw_around {
    stw_build *build;
    const stw_cost *cost;
    uint32_t n;       /* blocks in the order of their forward */
    uint32_t *blocks; /* [n] */
    uint32_t *group;  /* [n] group of each block */
    uint32_t *later;  /* [n] number of later blocks of its group */
    bool has[STW_N_ACTS];
    int64_t *bytes[STW_N_ACTS]; /* [n] around each block under a policy */
    int64_t tail;               /* after the first block's backward */
    /** Additional bytes if all shards of one kind are on the host. */
    int64_t *host_stage[STW_STAGED_KINDS]; /* [n] */
    int64_t host_tail[STW_STAGED_KINDS];
    uint32_t *position;           /* [blocks of the model]; n: not in the forward */
    uint64_t *before[STW_N_ACTS]; /* [n + 1] bytes saved by the blocks before a position */
    double uneven; /* most by which a block's share of a placement exceeds the space's share */
} stw_around;

/** Read the programs of all policies of the problem; also fills build->saved. All memory is from
 * the build's pool. */
STW_MUST_USE stw_status stw_read_around(stw_build *build, stw_around *out, stw_error *err);

/** Return the bytes that the block at position i saves under a policy, and the most that one block
 * of a group saves. */
uint64_t stw_around_saved(const stw_around *around, uint32_t i, stw_act act);
uint64_t stw_around_group_saves(const stw_around *around, uint32_t group, stw_act act);

#endif
