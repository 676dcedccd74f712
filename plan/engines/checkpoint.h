/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what a rank writes, and what it holds on the host for that. An engine fills a
 * stw_save; the functions append staging and movement. Copies on the host that torch's host
 * allocator page-locks stay after the first save, and those of an asynchronous save are there while
 * the next iterations run: both are allocated at the end of the first step, so that every later
 * phase has them. */
#ifndef STW_PLAN_ENGINES_CHECKPOINT_H
#define STW_PLAN_ENGINES_CHECKPOINT_H

#include "plan/engines/park.h"

/** State of one component that a rank writes. */
typedef struct stw_saved {
    stw_component component;
    stw_tier tier; /* where it lies when the save begins */
    uint64_t bytes;
} stw_saved;

#define STW_MOST_SAVED 8

typedef struct stw_save {
    uint32_t n;
    stw_saved parts[STW_MOST_SAVED];
    uint64_t staged_bytes;   /* copies on the host at a time */
    uint64_t rounding_bytes; /* of page-locked ones, beyond that */
    uint64_t copied_bytes;   /* further pageable copies while the save goes on */
    bool pageable;           /* the copies */
    bool all_first;          /* everything is copied before anything is written */
    bool gathers;            /* whole tensors on rank 0, which writes all */
    uint64_t file_bytes;     /* gathers: all that rank 0 writes */
    uint32_t files;          /* of a rank that writes */
} stw_save;

void stw_save_add(stw_save *save, stw_component component, stw_tier tier, uint64_t bytes);
/** Does the run write checkpoints? */
static inline bool stw_saves(const stw_job *job) { return job->run->checkpoint.every > 0; }
/** Staging that stays; within the movement of the first step, at its end. */
void stw_build_checkpoint_staging(stw_builder *b, const stw_save *save);
/** The movement. Parked parameters come back for it. */
void stw_build_checkpoint(stw_builder *b, const stw_save *save);

#endif
