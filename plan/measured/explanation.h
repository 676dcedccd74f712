/* SPDX-License-Identifier: Apache-2.0 */
/* Why memory ended, and what to change: what planner/explain.h finds and reports write. It borrows
 * the failures and the plan, and owns the rest. */
#ifndef STW_MEASURED_EXPLANATION_H
#define STW_MEASURED_EXPLANATION_H

#include "plan/files/plan.h"
#include "plan/measured/failure.h"

/* X(enum suffix, spelling in files) */
#define STW_CAUSE_TABLE(X)                                                                         \
    X(UNKNOWN, "unknown")                                                                          \
    X(NONE, "no_failure")         /* the file has figures alone */                                 \
    X(TOO_MUCH, "too_much")       /* the job needs more than there is */                           \
    X(FRAGMENTS, "fragmentation") /* the bytes were free, in pieces */                             \
    X(OTHERS, "other_processes")  /* it had had room without them */                               \
    X(LIMIT, "own_limit")         /* of the process, below what the GPU has */                     \
    X(CACHE, "kv_cache")                                                                           \
    X(HOST, "host_memory")                                                                         \
    X(SHARED, "shared_memory")
#define X(name, text) STW_CAUSE_##name,
typedef enum stw_cause { STW_CAUSE_TABLE(X) STW_N_CAUSES } stw_cause;
#undef X
const char *stw_cause_name(stw_cause cause);

/** Bytes of a component at the failure (STW_NOT_SAID: the file does not say) and in the plan. */
typedef struct stw_explained_part {
    stw_component component;
    uint64_t held, planned;
} stw_explained_part;

/** A change that was planned anew within what the run had, and fits. */
typedef struct stw_explained_change {
    uint32_t n;
    stw_fix_change set[STW_MAX_FIX_CHANGES]; /* keys of the plan, with values of no `auto` */
    const char *why;
    const char *settings; /* lines of the framework's own settings that are new; NULL: not known */
    bool at_risk;
    uint64_t gpu_bytes, host_bytes; /* peaks of the worst GPU and node */
    double iteration_s;             /* NaN: unknown */
} stw_explained_change;

#define STW_MOST_EXPLAINED 6

typedef struct stw_explanation {
    stw_pool *pool;
    bool failed; /* memory is out: while it is made */
    const stw_failures *found;
    const stw_failure *failure; /* the first that tells a reason; NULL: there is none */
    const stw_plan *plan;       /* NULL: none was given */
    const char *program;        /* whose stack it is; NULL: unknown */
    const char *plan_command;   /* that makes a plan; NULL: there is one */
    int phase;                  /* STW_N_PHASES: unknown */
    const char *part;           /* "forward", "backward", ...; NULL */
    const char *phase_from;     /* what says so; NULL: nothing */
    int component;              /* STW_N_COMPONENTS: unknown */
    const char *component_from;
    uint64_t iterations, of_iterations; /* finished, by the log; STW_NOT_SAID */
    stw_cause cause;
    const char *cause_text; /* a sentence */
    bool on_host;
    /* Of the plan, on the worst GPU (on_host: node), at the peak of the phase; of an unknown phase,
     * of its highest one. STW_NOT_SAID without a plan. */
    stw_phase planned_phase;
    uint64_t planned_bytes, planned_allocated, planned_reserved, planned_limit;
    uint64_t planned_component; /* at that peak */
    uint64_t available;         /* bytes that the run could have had; STW_NOT_SAID */
    uint64_t beyond;            /* that the run needed beyond what was planned */
    uint64_t planned_within; /* limit that the changes were planned for; STW_NOT_SAID: none were */
    uint32_t n_parts;
    stw_explained_part parts[STW_N_COMPONENTS];
    uint64_t held_unknown; /* made before the history of a snapshot begins, or by no known code */
    uint32_t n_changes;
    stw_explained_change changes[STW_MOST_EXPLAINED];
    uint32_t n_advice;
    const char *advice[STW_MOST_EXPLAINED]; /* that nothing was planned for */
    uint32_t n_unknown;
    const char *unknown[STW_MOST_EXPLAINED]; /* what could not be told, and why */
} stw_explanation;

void stw_explanation_free(stw_explanation *explanation);

#endif
