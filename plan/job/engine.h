/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine is: how it cuts state over ranks, which placements it can execute, what it needs
 * while a step runs, and how decisions become a program. One const table per engine, one file or
 * folder per engine in plan/engines/. Everything else asks this table and never the name.
 *
 * Tables are constant. Functions are pure functions of their arguments; any thread. */
#ifndef STW_PLAN_JOB_ENGINE_H
#define STW_PLAN_JOB_ENGINE_H

#include "plan/job/space.h"
#include "plan/spec/registry.h"
#include "plan/spec/terms.h"

struct stw_job;
struct stw_place;
struct stw_decisions;
struct stw_layout;
struct stw_program;

/** Spaces of a rank that every engine has: one for each kind of state that may be cut otherwise
 * than the rest. An engine's further spaces follow, from STW_N_STATE_SPACES on. Quanta of placement
 * and buckets of a step are runs of the optimizer space. */
typedef enum stw_space_id {
    STW_SPACE_PARAMS,
    STW_SPACE_GRADS,
    STW_SPACE_OPTIMIZER, /* master, exp_avg, exp_avg_sq */
    STW_N_STATE_SPACES
} stw_space_id;

/** What a ring of a layout is for. */
typedef enum stw_ring_kind {
    STW_RING_GPU,       /* streamed buckets: what the update kernel works on */
    STW_RING_HOST_DISK, /* NVMe buckets on their way through the host */
    STW_RING_HOST_CPU,  /* CPU buckets whose params or grads lie on the GPU */
    STW_N_RINGS
} stw_ring_kind;

/** A change of a run spec that is tried when nothing fits. */
typedef struct stw_engine_fix {
    const char *key, *value, *why;
} stw_engine_fix;

typedef struct stw_engine {
    stw_engine_spec spec;        /* first: what run specs know of the engine */
    const stw_engine_fix *fixes; /* ends with a key of NULL; or NULL */

    /* ---- partition ---- */
    bool one_cut; /* params, grads and optimizer state are cut alike: one space stands for all */
    uint32_t n_more_spaces; /* beyond STW_N_STATE_SPACES */
    /** A rank that stands for all which hold the same elements of every space. */
    uint32_t (*representative)(const struct stw_job *job, uint32_t rank);
    /** Append the elements that a rank holds of a space, in the model's order. */
    STW_MUST_USE stw_status (*cut)(const struct stw_job *job, uint32_t space, uint32_t rank,
                                   stw_space *out, stw_error *err);
    /** Of several ranks that hold the same elements of a space one counts, in the gradient norm and
     * in digests: is it this one? */
    bool (*counts)(const struct stw_job *job, uint32_t space, uint32_t rank);

    /* ---- placement ---- */
    /** Placements that the run's spec and the engine admit, in canonical order.
     * @param places out, room for STW_MAX_PLACES
     * @return how many; 0 where the spec contradicts itself (err says how) */
    uint32_t (*places)(const struct stw_job *job, struct stw_place *places, stw_error *err);
    bool whole;             /* all quanta of a plan share one place */
    bool prefetch_by_group; /* depth counts groups of tensors, there are no bucket sizes */
    const uint32_t *depths; /* of prefetch that are worth trying, ends with 0; NULL: the usual */

    /* ---- layout ---- */
    bool nvme_commits; /* state on NVMe may have two copies, of which one survives a crash */
    /** Slots of a ring and bytes of a slot at the decided prefetch; 0 slots: no ring. NULL: depth
     * slots of the largest bucket that passes through it. */
    uint32_t (*ring)(const struct stw_job *job, const struct stw_decisions *decisions,
                     stw_ring_kind ring, uint64_t *slot_bytes);
    /** Regions of the engine's own spaces, after those of the state; NULL: none. */
    STW_MUST_USE stw_status (*more_regions)(const struct stw_job *job, struct stw_layout *layout,
                                            stw_error *err);

    /* ---- program ---- */
    STW_MUST_USE stw_status (*build)(const struct stw_job *job,
                                     const struct stw_decisions *decisions,
                                     const struct stw_layout *layout, struct stw_program *program,
                                     stw_error *err);
} stw_engine;

#endif
