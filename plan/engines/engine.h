/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine is: which placements it can execute and how decisions become a program. One const
 * table per engine, one file per engine. */
#ifndef STW_PLAN_ENGINES_ENGINE_H
#define STW_PLAN_ENGINES_ENGINE_H

#include "plan/program/program.h"
#include "plan/spec/registry.h"

/** A change of a run spec that is tried when nothing fits. */
typedef struct stw_engine_fix {
    const char *key, *value, *why;
} stw_engine_fix;

typedef struct stw_engine {
    stw_engine_spec spec;        /* first: what run specs know of the engine */
    const stw_engine_fix *fixes; /* ends with a key of NULL; or NULL */
    /** Placements that the run's spec and the engine admit, in canonical order.
     * @param places out, room for STW_MAX_PLACES
     * @return how many; 0 where the spec contradicts itself (err says how) */
    uint32_t (*places)(const stw_job *job, stw_place *places, stw_error *err);
    bool whole;             /* all quanta of a plan share one place */
    bool prefetch_by_group; /* depth counts groups, there are no bucket sizes */
    const uint32_t *depths; /* of prefetch that are worth trying, ends with 0; NULL: the usual */
    bool lazy_state;        /* moments appear at the first step, grads with the backward */
    STW_MUST_USE stw_status (*build)(const stw_job *job, const stw_decisions *decisions,
                                     const stw_layout *layout, stw_program *program,
                                     stw_error *err);
    /** Transient GPU bytes of the step that do not depend on counts of quanta: the ring or window
     * at this depth and bucket size, temporaries of the update. The planner's rows use it; equals
     * what the program allocates as `stage` when such a place is used at all. */
    uint64_t (*window_bytes)(const stw_job *job, const stw_place *place, uint32_t depth,
                             uint64_t bucket_bytes);
} stw_engine;

/** Groups of the per-layer streamed step: every wrapped block, and one of all the rest. */
uint32_t stw_prefetch_groups(const stw_job *job);

/** Engine number `index` of plan/spec/registry.h; NULL if it is not built in. */
const stw_engine *stw_engine_find(uint32_t index);
/** Add an engine to those that run specs can name; see stw_engine_spec_register. */
STW_MUST_USE stw_status stw_engine_register(const stw_engine *engine, stw_error *err);

#endif
