/* SPDX-License-Identifier: Apache-2.0 */
/* What torch reserves: the tensors of a program, in the order of a run's movements, pass through a
 * model of torch's caching allocator (plan/program/allocator.h). A run loads, and goes through
 * three iterations, after which what is reserved grows no more in practice. Pure; any thread. */
#ifndef STW_PLAN_REPLAY_H
#define STW_PLAN_REPLAY_H

#include "plan/program/allocator.h"
#include "plan/program/program.h"

#define STW_REPLAY_ITERATIONS 3

/** The most of one pass through a phase, in torch's counting. */
typedef struct stw_replayed_phase {
    bool has;
    uint64_t allocated_bytes; /* of blocks */
    uint64_t reserved_bytes;  /* of segments */
    uint64_t cached_bytes;    /* of segments but not of blocks, when the phase is over */
} stw_replayed_phase;

typedef struct stw_replayed {
    stw_replayed_phase iteration[STW_REPLAY_ITERATIONS][STW_N_PHASES]; /* the load is in [0] */
    stw_replayed_phase most[STW_N_PHASES];                             /* over iterations */
    uint64_t retries;      /* allocations for which cached segments were given back first */
    uint64_t last_retries; /* those of the last iteration: later ones have them too */
    stw_phase retried_at;  /* the first of them, in this phase */
    bool full;             /* the device was full all the same; nothing after it was replayed */
    stw_phase full_at;     /* in this phase */
    uint64_t full_bytes;   /* for a tensor of so many bytes */
} stw_replayed;

/** @param program of stw_program_new_tensors
 * A movement of several micro batches is passed through as often, up to four times: after that
 * nothing new happens. */
STW_MUST_USE stw_status stw_program_replay(const stw_job *job, const stw_layout *layout,
                                           const stw_program *program,
                                           const stw_allocator_settings *settings,
                                           stw_replayed *out, stw_error *err);

#endif
