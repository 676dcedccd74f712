/* SPDX-License-Identifier: Apache-2.0 */
/* Values that several reports need and that a plan does not store: the worst rank and node of each
 * phase, the bottleneck of each phase, the bytes of state per tier. The caller owns the struct; the
 * plan must outlive the call only. Any thread may call. */
#ifndef STW_REPORTS_FACTS_H
#define STW_REPORTS_FACTS_H

#include "plan/files/plan.h"
#include "plan/program/demand.h"

typedef struct stw_phase_facts {
    bool present;                 /* the plan has such a movement */
    double time_s;                /* NaN: unknown */
    double whole_s;               /* the same with what is hidden beside another phase */
    bool is_bound;                /* the next two are known */
    stw_resource binds;           /* bottleneck: the resource with the most seconds of demand */
    double busy_s;                /* its seconds of demand */
    double busy[STW_N_RESOURCES]; /* seconds of demand of all resources in that movement */
    uint64_t gpu_bytes;           /* of the worst kind of rank */
    uint32_t gpu_kind;            /* that kind */
    uint64_t host_bytes;          /* of the worst kind of node */
    uint32_t host_kind;           /* that kind */
    uint64_t nvme_bytes;          /* of the worst node */
} stw_phase_facts;

/** A limit that the plan exceeds: its worst phase. */
typedef struct stw_excess {
    const char *resource; /* "gpu memory", as in stw_plan_over_bytes */
    stw_phase phase;
    uint64_t bytes; /* over the limit */
    uint64_t limit_bytes;
} stw_excess;
#define STW_MAX_EXCESSES 4

typedef struct stw_plan_facts {
    uint64_t gpu_capacity, host_capacity, nvme_capacity;
    stw_phase_facts phases[STW_N_PHASES];
    stw_phase gpu_phase, host_phase; /* of the highest peaks; STW_N_PHASES: no phase at all */
    uint64_t gpu_peak, host_peak, nvme_peak;
    uint64_t gpu_reserved; /* with all that the engine's allocator holds; 0: it has none, or the
                            * plan does not fit */
    stw_phase reserved_phase;
    /* Of the largest rank: parameters whose optimizer state each decision places, and bytes of its
     * regions, or at the peaks of the step where the engine has all state in one place. What has
     * another cut than that state belongs to the first decision. */
    uint64_t place_params[STW_MAX_PLACES];
    uint64_t place_bytes[STW_MAX_PLACES][STW_N_TIERS];
    uint64_t frozen_params; /* that rank's, which have no gradients and moments; in no decision */
    uint64_t frozen_bytes[STW_N_TIERS];
    uint64_t state_bytes[STW_N_TIERS]; /* sums of all these */
    uint32_t n_excesses;
    stw_excess excesses[STW_MAX_EXCESSES]; /* of the peaks over the limits */
} stw_plan_facts;

void stw_plan_facts_get(const stw_plan *plan, stw_plan_facts *facts);
/** What a component is, in a few words. */
const char *stw_component_words(stw_component component);
/** What binds a row of a sweep, "GPU compute in forward_backward"; "" where it is unknown. */
void stw_bound_words(const char *binds, char *out, size_t out_size);
/** The name of a resource in reports: "PCIe, both directions". */
const char *stw_resource_words(stw_resource resource);
/** The same for a name in a plan file ("pcie", "gpu memory"), written to `out`. */
void stw_resource_name_words(const char *name, char *out, size_t out_size);

#endif
