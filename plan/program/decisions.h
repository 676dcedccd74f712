/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions of the planner: quanta per placement, blocks per activation policy, prefetch ring, load
 * method. Layout and program are derived from them. Decisions are a plain value. The caller owns
 * the pool that holds `blocks`. All functions are pure; any thread may call them. */
#ifndef STW_PLAN_DECISIONS_H
#define STW_PLAN_DECISIONS_H

#include "plan/job/job.h"

/** Tiers of the state of one quantum, and its update. Master copy and moments share a tier. */
typedef struct stw_place {
    stw_tier params, grads, moments; /* the master copy is in `moments` */
    stw_update update;
} stw_place;

#define STW_MAX_PLACES 16
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

/** Canonical order of a place: resident, streamed from host, direct, cpu, streamed from NVMe. */
uint32_t stw_place_order(const stw_place *place);
/** Format a place as text, e.g. "params gpu, grads gpu, moments host: stream". */
void stw_place_format(const stw_place *place, char *out, size_t out_size);
/** Tier of a state component. */
stw_tier stw_place_tier(const stw_place *place, stw_component component);
/** Tier where the update runs: host for cpu, otherwise gpu. */
stw_tier stw_place_update_tier(const stw_place *place);
/** True if each step copies the component into (up) or out of (down) the update's tier. Always
 * false for resident and direct updates, which work in place. */
bool stw_place_moves_up(const stw_job *job, const stw_place *place, stw_component component);
bool stw_place_moves_down(const stw_job *job, const stw_place *place, stw_component component);
/** Bytes per parameter of the ring slot that a place needs, in the update's tier and, for NVMe, on
 * the host. It is the sum over the components that move; 0 if none moves. */
uint64_t stw_place_slot_element_bytes(const stw_job *job, const stw_place *place);
/** Bytes per parameter that are stored on NVMe and pass through the disk ring; may be 0. */
uint64_t stw_place_disk_element_bytes(const stw_job *job, const stw_place *place);
/** Returns the elements of one bucket: the largest multiple of STW_BUCKET_STEP that fits in a slot
 * of `bucket_bytes`. A place without slots has a fixed bucket size. */
uint64_t stw_place_bucket_params(const stw_job *job, const stw_place *place, uint64_t bucket_bytes);
#define STW_BUCKET_STEP 2048
#define STW_BUCKET_MIN_BYTES (64ull << 10)
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
