/* SPDX-License-Identifier: Apache-2.0 */
/* What the planner decides and nothing else: counts of quanta per placement, counts of blocks per
 * activation policy, the ring, the load method. Layout and program follow from it by one piece of
 * code. A plain value; `blocks` lies in the pool of whoever made it. */
#ifndef STW_PLAN_DECISIONS_H
#define STW_PLAN_DECISIONS_H

#include "plan/job/job.h"

/** Where the state of a quantum lies and who updates it. master and moments lie in one tier. */
typedef struct stw_place {
    stw_tier params, grads, moments; /* master goes with the moments */
    stw_update update;
} stw_place;

#define STW_MAX_PLACES 16

typedef struct stw_state_decision {
    stw_place place;
    uint32_t units; /* quanta of the largest kind of rank; smaller kinds are cut at the end */
} stw_state_decision;

typedef struct stw_block_decision {
    uint32_t group;
    stw_act act;
    uint32_t count; /* blocks; within a group in the order offload, recompute, keep */
} stw_block_decision;

typedef struct stw_decisions {
    uint32_t n_state;
    stw_state_decision state[STW_MAX_PLACES]; /* in canonical order: stw_place_order ascending */
    uint32_t n_blocks;
    stw_block_decision *blocks; /* transformer groups only */
    struct {
        bool by_group;         /* prefetch counts groups of tensors; false: buckets */
        uint32_t depth;        /* groups fetched ahead, or slots of the ring */
        uint64_t bucket_bytes; /* bytes of one slot; 0 by group */
    } prefetch;
    stw_load load;
} stw_decisions;

/** Position in canonical order: resident, streamed from the host, direct, cpu, streamed from NVMe.
 */
uint32_t stw_place_order(const stw_place *place);
/** "gpu/gpu/host stream": for people. */
void stw_place_format(const stw_place *place, char *out, size_t out_size);
/** Tier of a state component under a place. */
stw_tier stw_place_tier(const stw_place *place, stw_component component);
/** Tier in which the update of a place runs: host for cpu, else gpu. */
stw_tier stw_place_update_tier(const stw_place *place);
/** Is the component copied into (up) or out of (down) the update's tier each step? Never where
 * state is updated where it lies (resident, direct). */
bool stw_place_moves_up(const stw_job *job, const stw_place *place, stw_component component);
bool stw_place_moves_down(const stw_job *job, const stw_place *place, stw_component component);
/** Bytes per parameter of the ring slot that a place needs (in the update's tier, and on the host
 * for NVMe): the sum over components that move. 0 for resident, direct, and for cpu with everything
 * on the host. */
uint64_t stw_place_slot_element_bytes(const stw_job *job, const stw_place *place);
/** Bytes per parameter on NVMe, which pass through the disk ring; 0 where nothing lies there. */
uint64_t stw_place_disk_element_bytes(const stw_job *job, const stw_place *place);
/** Elements of one bucket of a place: what a slot of `bucket_bytes` holds, in whole multiples of
 * STW_BUCKET_STEP; a fixed size for places that use no slot. */
uint64_t stw_place_bucket_params(const stw_job *job, const stw_place *place, uint64_t bucket_bytes);
#define STW_BUCKET_STEP 2048
#define STW_BUCKET_MIN_BYTES (64ull << 10)
/** Elements of the optimizer space of `kind` that decision `i` covers: first element and count. */
void stw_decision_range(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                        uint32_t i, uint64_t *first_param, uint64_t *params);
/** Sums equal the job's counts, places admissible, ring present where needed: BAD_INPUT otherwise.
 */
STW_MUST_USE stw_status stw_decisions_check(const stw_job *job, const stw_decisions *decisions,
                                            stw_error *err);
/** The quanta of every update engine are those of the run's fixed shares: BAD_INPUT otherwise. */
STW_MUST_USE stw_status stw_decisions_check_shares(const stw_job *job,
                                                   const stw_decisions *decisions, stw_error *err);

#endif
