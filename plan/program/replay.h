/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts the bytes that torch reserves: the tensors of a program pass through a model of torch's
 * caching allocator (plan/program/allocator.h), in the order of a run's movements. The replay
 * covers the load and three iterations; in practice the reserved bytes do not grow afterwards.
 * Pure; any thread. */
#ifndef STW_PLAN_REPLAY_H
#define STW_PLAN_REPLAY_H

#include "plan/program/allocator.h"
#include "plan/program/program.h"

#define STW_REPLAY_ITERATIONS 3

/** The peaks of one pass through a phase, as torch counts them. */
typedef struct stw_replayed_phase {
    bool has;
    uint64_t allocated_bytes; /* in blocks */
    uint64_t reserved_bytes;  /* in segments */
    uint64_t cached_bytes;    /* in segments but not in blocks, at the end of the phase */
} stw_replayed_phase;

typedef struct stw_replayed {
    stw_replayed_phase iteration[STW_REPLAY_ITERATIONS][STW_N_PHASES]; /* the load is in [0] */
    stw_replayed_phase most[STW_N_PHASES];                             /* maximum over iterations */
    uint64_t retries;      /* allocations that first released cached segments */
    uint64_t last_retries; /* retries in the last iteration; later iterations have them, too */
    stw_phase retried_at;  /* phase of the first retry */
    bool full;             /* the device was full in spite of a retry; the replay stopped there */
    stw_phase full_at;     /* phase in which it was full */
    uint64_t full_bytes;   /* bytes of the tensor that did not fit */
} stw_replayed;

/** Replay a program. A movement is replayed once for each of its micro batches, at most four times,
 * because later ones change nothing.
 * @param program made by stw_program_new_tensors */
STW_MUST_USE stw_status stw_program_replay(const stw_job *job, const stw_layout *layout,
                                           const stw_program *program,
                                           const stw_allocator_settings *settings,
                                           stw_replayed *out, stw_error *err);

#endif
