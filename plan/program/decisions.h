/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions of the planner: quanta per placement, blocks per activation policy, prefetch ring, load
 * method. Layout and program are derived from them. Decisions are a plain value. The caller owns
 * the pool that holds `blocks`. All functions are pure; any thread may call them. */
#ifndef STW_PLAN_DECISIONS_H
#define STW_PLAN_DECISIONS_H

#include "plan/job/place.h"

/** The planner fetches the activations of an offloaded block at most this many blocks ahead. */
#define STW_MAX_FETCH_AHEAD 8

typedef struct stw_state_decision {
    stw_place place;
    uint32_t units; /* quanta of the largest kind of rank; smaller kinds have fewer in the last
                       decisions */
} stw_state_decision;

typedef struct stw_block_decision {
    uint32_t group;
    stw_act act;
    uint32_t count; /* number of blocks; blocks.h says which */
} stw_block_decision;

typedef struct stw_decisions {
    uint32_t n_state;
    stw_state_decision state[STW_MAX_PLACES]; /* ascending by stw_place_order */
    uint32_t n_blocks;
    stw_block_decision *blocks; /* transformer groups only */
    bool blocks_in_turn;  /* a group's offloaded blocks come first, then its recomputed ones; false:
                             both are spread evenly among the kept blocks */
    uint32_t fetch_ahead; /* most blocks by which an offloaded block's activations are fetched ahead
                             of its backward, if kept blocks have freed the room; at least one */
    struct {
        bool by_group;         /* prefetch by groups of tensors; false: by buckets */
        uint32_t depth;        /* groups to prefetch, or slots of the ring */
        uint64_t bucket_bytes; /* bytes of one slot; 0 if by_group */
    } prefetch;
    stw_load load;
} stw_decisions;

/** Give the range of the optimizer space of `kind` that decision `i` covers.
 * @param first_param out, first element
 * @param params out, number of elements */
void stw_decision_range(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                        uint32_t i, uint64_t *first_param, uint64_t *params);
/** Check sums, placements and the prefetch ring. BAD_INPUT describes the first error. */
STW_MUST_USE stw_status stw_decisions_check(const stw_job *job, const stw_decisions *decisions,
                                            stw_error *err);
/** Check that the quanta of every update match the run's fixed shares (update.*). BAD_INPUT
 * otherwise. */
STW_MUST_USE stw_status stw_decisions_check_shares(const stw_job *job,
                                                   const stw_decisions *decisions, stw_error *err);

#endif
