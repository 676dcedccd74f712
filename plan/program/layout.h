/* SPDX-License-Identifier: Apache-2.0 */
/* The memory layout of one kind of rank: the bytes that live for the whole run (regions), the
 * pieces that the optimizer step handles (buckets), and the rings through which buckets pass.
 * Derived from decisions. Files store only its hash and the list of regions. */
#ifndef STW_PLAN_LAYOUT_H
#define STW_PLAN_LAYOUT_H

#include "plan/program/decisions.h"

#define STW_ALIGN_BYTES 4096 /* every region and slot has whole pages, as direct I/O requires */
#define STW_COMM_SCRATCH_BYTES                                                                     \
    (1ull << 20) /* small collectives' device buffer, with more than one rank */

/** Persistent bytes of one component. The optimizer space has one region per placement, and so have
 * all spaces of a job with one_cut. Any other space has a single region. */
typedef struct stw_region {
    stw_component component;
    uint32_t space; /* the rank's space whose elements it holds */
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
    uint32_t slot; /* slot of its place's ring; unused if the place has none */
    uint64_t first_param, params;
} stw_bucket;

/** A ring of equal slots in one tier, shared by all places of a layout that use that tier's ring.
 */
typedef struct stw_ring {
    uint32_t slots; /* 0: no ring */
    uint64_t slot_bytes;
    uint64_t offset_bytes; /* offset of slot 0 */
} stw_ring;

typedef struct stw_layout {
    stw_pool *pool;
    uint32_t kind;
    uint32_t n_regions, n_buckets;
    size_t region_room;
    stw_region *regions;
    stw_bucket *buckets;           /* in flat order; none if the engine prefetches by group */
    uint32_t *order;               /* [n_buckets] buckets in the order of a step */
    stw_ring rings[STW_N_RINGS];   /* above the regions, transient, only in a step */
    uint64_t rollout_offset_bytes; /* on the GPU: the weights that an executed weight sync fills */
    uint64_t comm_offset_bytes;    /* scratch of small collectives on the GPU (world > 1) */
    uint64_t persistent_bytes[STW_N_TIERS]; /* end of the regions; NVMe: end of one copy */
    uint64_t arena_bytes[STW_N_TIERS];      /* needs of the executed movements: regions, rings, load
                                               staging, weight sync; NVMe: all copies */
    char hash[17];                          /* hash of everything above (hex, XXH3-64) */
} stw_layout;

#define STW_LAYOUT_VERSION 2

/* CUDA keeps page tables of page-locked host memory on the GPU: 1/512 of its bytes (8 bytes per
 * page of 4 KiB), allocated in steps. */
#define STW_PAGE_TABLE_SHARE 512
#define STW_PAGE_TABLE_STEP_BYTES (2ull << 20)

STW_MUST_USE stw_status stw_layout_new(const stw_job *job, const stw_decisions *decisions,
                                       uint32_t kind, stw_layout **out, stw_error *err);
void stw_layout_free(stw_layout *layout);
/** Append a region with the first `params` elements of an engine's own space, for
 * stw_engine.more_regions. */
STW_MUST_USE stw_status stw_layout_add_region(stw_layout *layout, stw_component component,
                                              uint32_t space, stw_tier tier, uint64_t params,
                                              uint64_t element_bytes, stw_error *err);
/** Returns the elements of `space` that a region holds.
 * @param space the space with id region->space */
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
/** Returns the offset of element `param` of a component inside its tier's arena; a region must hold
 * it. */
uint64_t stw_layout_address(const stw_job *job, const stw_layout *layout, stw_component component,
                            uint64_t param);
/** Returns the number of copies of state on NVMe. Region offsets are in the first copy; the second
 * starts at persistent_bytes of NVMe. */
uint64_t stw_nvme_copies(const stw_job *job);
/** Returns the GPU bytes of the page tables for the host arena, all of which is page-locked; 0
 * without GPUs. */
uint64_t stw_page_table_bytes(const stw_job *job, const stw_layout *layout);
/** Returns the slot bytes that a place needs in a ring that it uses; the ring's slots are as large
 * as the largest need.
 * @param bucket_bytes of the prefetch decision */
uint64_t stw_ring_slot_bytes(const stw_job *job, const stw_place *place, stw_ring_kind ring,
                             uint64_t bucket_bytes);
/** Returns the bytes that pass through the CPU's caches in one turn of a place's ring of CPU
 * buckets: the ring itself, and master and moments of the same parameters. 0 if it uses no such
 * ring.
 * @param depth, bucket_bytes of the prefetch decision */
uint64_t stw_cpu_ring_bytes(const stw_job *job, const stw_place *place, uint32_t depth,
                            uint64_t bucket_bytes);
/** Returns the offset of a component inside the slot of a bucket of `params` elements. A slot holds
 * the components that move, in component order, each aligned to STW_ALIGN_BYTES. */
uint64_t stw_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                         uint64_t params);

/** The same for the disk ring, whose slots hold the components on NVMe. */
uint64_t stw_disk_slot_offset(const stw_job *job, const stw_place *place, stw_component component,
                              uint64_t params);

#endif
