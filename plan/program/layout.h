/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of one kind of rank: which bytes lie where for the whole run (regions), in which
 * pieces the optimizer step handles them (buckets), and the rings through which buckets pass.
 * Derived from decisions, never stored apart from a hash and the list of regions that files show.
 */
#ifndef STW_PLAN_LAYOUT_H
#define STW_PLAN_LAYOUT_H

#include "plan/program/decisions.h"

#define STW_ALIGN_BYTES 4096 /* of every region and slot: whole pages, as direct I/O asks for */
#define STW_COMM_SCRATCH_BYTES                                                                     \
    (1ull << 20) /* small collectives' device buffer, with more than one rank */

/** Persistent bytes of one component: of the optimizer space (and of all spaces, where the engine
 * cuts them alike) one region per placement; of another space one for all of it. */
typedef struct stw_region {
    stw_component component;
    uint32_t space; /* of the rank: which one it holds elements of */
    stw_tier tier;
    stw_update update;
    uint32_t decision; /* index into decisions.state */
    uint32_t first_unit, units;
    uint64_t first_param, params; /* elements of the space */
    uint64_t offset_bytes, bytes; /* in the tier's arena; bytes = params x element bytes */
} stw_region;

/** A piece of the optimizer space that one update handles. */
typedef struct stw_bucket {
    uint32_t decision;
    uint32_t slot; /* of its place's ring; unused where the place has none */
    uint64_t first_param, params;
} stw_bucket;

/** A ring of equal slots in one tier, shared by all places of a layout that use that tier's ring.
 */
typedef struct stw_ring {
    uint32_t slots; /* 0: no ring */
    uint64_t slot_bytes;
    uint64_t offset_bytes; /* of slot 0 */
} stw_ring;

typedef struct stw_layout {
    stw_pool *pool;
    uint32_t kind;
    uint32_t n_regions, n_buckets;
    size_t region_room;
    stw_region *regions;
    stw_bucket *buckets;           /* in flat order; none where the engine prefetches by group */
    uint32_t *order;               /* [n_buckets] the order in which a step handles them */
    stw_ring rings[STW_N_RINGS];   /* lie above the regions: transient, step only */
    uint64_t rollout_offset_bytes; /* on the GPU: what a weight sync that is executed fills */
    uint64_t comm_offset_bytes;    /* scratch of small collectives on the GPU (world > 1) */
    uint64_t persistent_bytes[STW_N_TIERS]; /* end of the regions; NVMe: of one copy */
    uint64_t arena_bytes[STW_N_TIERS]; /* what the executed movements need: regions, rings, load
                                          staging, weight sync; NVMe: all copies */
    char hash[17];                     /* of everything above (hex, XXH3-64) */
} stw_layout;

#define STW_LAYOUT_VERSION 2

/* What CUDA keeps on the GPU for every byte of page-locked host memory (8 bytes of page table per
 * page of 4 KiB), and in what steps. */
#define STW_PAGE_TABLE_SHARE 512
#define STW_PAGE_TABLE_STEP_BYTES (2ull << 20)

STW_MUST_USE stw_status stw_layout_new(const stw_job *job, const stw_decisions *decisions,
                                       uint32_t kind, stw_layout **out, stw_error *err);
void stw_layout_free(stw_layout *layout);
/** Append a region of `params` elements from the first one of an engine's own space: for
 * stw_engine.more_regions. */
STW_MUST_USE stw_status stw_layout_add_region(stw_layout *layout, stw_component component,
                                              uint32_t space, stw_tier tier, uint64_t params,
                                              uint64_t element_bytes, stw_error *err);
/** The elements of its space that a region holds. @param space of the region's id */
static inline stw_view stw_region_view(const stw_region *region, const stw_space *space) {
    return (stw_view){space, region->first_param, region->params};
}
/** Do the layout's buckets cut a region? Where they do not, a step may change it at any time. */
static inline bool stw_layout_in_buckets(const stw_job *job, const stw_layout *layout,
                                         const stw_region *region) {
    return layout->n_buckets > 0 && (job->one_cut || region->space == STW_SPACE_OPTIMIZER);
}
/** The region that holds element `param` of a component's space; NULL where none does. */
const stw_region *stw_layout_region(const stw_layout *layout, stw_component component,
                                    uint64_t param);
/** Offset of element `param` of a component inside its tier's arena; the component must exist
 * there. */
uint64_t stw_layout_address(const stw_job *job, const stw_layout *layout, stw_component component,
                            uint64_t param);
/** How often state on NVMe lies there; region offsets reach the first copy, the second starts where
 * persistent_bytes of NVMe ends. */
uint64_t stw_nvme_copies(const stw_job *job);
/** GPU bytes of the page tables for the host arena, which is page-locked whole; 0 without GPUs. */
uint64_t stw_page_table_bytes(const stw_job *job, const stw_layout *layout);
/** Do buckets of a place pass through this ring? */
bool stw_place_uses_ring(const stw_job *job, const stw_place *place, stw_ring_kind ring);
/** Bytes of the slot that a place needs in a ring that it uses; a ring has the largest of its
 * places.
 * @param bucket_bytes of the run's prefetch */
uint64_t stw_ring_slot_bytes(const stw_job *job, const stw_place *place, stw_ring_kind ring,
                             uint64_t bucket_bytes);
/** Bytes that pass through the caches while a bucket of a place goes once around its ring of CPU
 * buckets: the ring, and master and moments of as many parameters. 0 where it uses none.
 * @param depth and bucket_bytes of the run's prefetch */
uint64_t stw_cpu_ring_bytes(const stw_job *job, const stw_place *place, uint32_t depth,
                            uint64_t bucket_bytes);
/** Offset inside a slot of one component of a bucket of `params` elements (components that move, in
 * component order, each aligned to STW_ALIGN_BYTES). */
uint64_t stw_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                         uint64_t params);

/** The same for the disk ring: the components that lie on NVMe, in component order. */
uint64_t stw_disk_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                              uint64_t params);

#endif
