/* SPDX-License-Identifier: Apache-2.0 */
/* The explanation of an out-of-memory failure, with changes that avoid it.
 * planner/explain/explain.h makes it; reports write it. It borrows the failures and the plan, and
 * owns the rest. */
#ifndef STW_MEASURED_EXPLANATION_H
#define STW_MEASURED_EXPLANATION_H

#include "plan/files/plan.h"
#include "plan/measured/failure.h"

/* X(enum suffix, spelling in files) */
#define STW_CAUSE_TABLE(X)                                                                         \
    X(UNKNOWN, "unknown")                                                                          \
    X(NONE, "no_failure")         /* the file has only figures */                                  \
    X(TOO_MUCH, "too_much")       /* the job needs more memory than the machine has */             \
    X(FRAGMENTS, "fragmentation") /* the bytes were free, in pieces */                             \
    X(OTHERS, "other_processes")  /* it would fit without them */                                  \
    X(LIMIT, "own_limit")         /* the process's own limit, below the GPU's memory */            \
    X(CACHE, "kv_cache")                                                                           \
    X(HOST, "host_memory")                                                                         \
    X(SHARED, "shared_memory")
#define X(name, text) STW_CAUSE_##name,
typedef enum stw_cause { STW_CAUSE_TABLE(X) STW_N_CAUSES } stw_cause;
#undef X
const char *stw_cause_name(stw_cause cause);

/** Bytes of a component at the failure (STW_NOT_SAID: unknown) and in the plan. */
typedef struct stw_explained_part {
    stw_component component;
    uint64_t held, planned;
} stw_explained_part;

/** A change with which a new plan fits in the memory that the run had. */
typedef struct stw_explained_change {
    uint32_t n;
    stw_fix_change set[STW_MAX_FIX_CHANGES]; /* keys of the plan, with values other than `auto` */
    const char *why;
    const char *settings; /* new lines of the framework's own settings; NULL: unknown */
    bool at_risk;
    uint64_t gpu_bytes, host_bytes; /* peaks of the worst GPU and node */
    double iteration_s;             /* NaN: unknown */
} stw_explained_change;

#define STW_MOST_EXPLAINED 6

typedef struct stw_explanation {
    stw_pool *pool;
    bool failed; /* out of memory while the explanation was made */
    const stw_failures *found;
    const stw_failure *failure; /* the first one with a reason; NULL: none */
    const stw_plan *plan;       /* NULL: none was given */
    const char *program;        /* the program that the stack belongs to; NULL: unknown */
    const char *plan_command;   /* the command that makes a plan; NULL: there is a plan */
    int phase;                  /* STW_N_PHASES: unknown */
    const char *part;           /* "forward", "backward", ...; NULL */
    const char *phase_from;     /* the evidence for the phase; NULL: none */
    int component;              /* STW_N_COMPONENTS: unknown */
    const char *component_from;
    uint64_t iterations, of_iterations; /* finished, from the log; STW_NOT_SAID */
    stw_cause cause;
    const char *cause_text; /* a sentence */
    bool on_host;
    /* The plan's bytes on the worst GPU (on_host: node) at the peak of the phase, or of the highest
     * phase if it is unknown. STW_NOT_SAID without a plan. */
    stw_phase planned_phase;
    bool planned_later; /* not the failure's, where the plan has nothing of the component, but the
                           first phase that has it */
    uint64_t planned_bytes, planned_allocated, planned_reserved, planned_limit;
    uint64_t planned_component; /* at that peak */
    uint64_t available;         /* bytes that the run could have had; STW_NOT_SAID */
    uint64_t beyond;            /* bytes that the run needed beyond the plan */
    uint64_t planned_within; /* limit for which the changes were planned; STW_NOT_SAID: none were */
    uint32_t n_parts;
    stw_explained_part parts[STW_N_COMPONENTS];
    uint64_t held_unknown; /* allocated before a snapshot's history begins, or by unknown code */
    uint32_t n_changes;
    stw_explained_change changes[STW_MOST_EXPLAINED];
    uint32_t n_advice;
    const char *advice[STW_MOST_EXPLAINED]; /* advice without a plan */
    uint32_t n_unknown;
    const char *unknown[STW_MOST_EXPLAINED]; /* what is unknown, and why */
} stw_explanation;

void stw_explanation_free(stw_explanation *explanation);

#endif
