/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: in which tiers the state of a quantum lies, and how it is updated. Pure functions;
 * any thread may call them. */
#ifndef STW_PLAN_JOB_PLACE_H
#define STW_PLAN_JOB_PLACE_H

#include "plan/job/job.h"

/** Tiers of the state of one quantum, and its update. Master copy and moments share a tier. */
typedef struct stw_place {
    stw_tier params, grads, moments; /* the master copy is in `moments` */
    stw_update update;
} stw_place;

#define STW_MAX_PLACES 16
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
/** True if the buckets of a place pass through this ring. */
bool stw_place_uses_ring(const stw_job *job, const stw_place *place, stw_ring_kind ring);

#endif
