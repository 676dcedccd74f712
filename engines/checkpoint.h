/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that frameworks write: what a rank writes, what it holds on the host for that, and
 * by how many collectives ranks agree on it. An engine fills a stw_save; the functions append
 * staging and movement. Copies on the host that torch's host allocator page-locks stay after the
 * first save, and those of an asynchronous save are there while the next iterations run: both are
 * allocated at the end of the first step, so that every later phase has them. Stowage's own are in
 * own_save.h. */
#ifndef STW_ENGINES_CHECKPOINT_H
#define STW_ENGINES_CHECKPOINT_H

#include "engines/park.h"
#include "plan/spec/registry.h"

/** State of one component that a rank writes. */
typedef struct stw_save_part {
    stw_component component;
    stw_tier tier; /* where it lies when the save begins */
    uint64_t bytes;
    bool alone; /* no other rank of the node writes anything like it */
} stw_save_part;

#define STW_MOST_SAVED 8

/** Collectives by which ranks agree on metadata, one after the other. */
typedef struct stw_agreement {
    stw_rank_group group;
    uint32_t calls;
} stw_agreement;

typedef struct stw_save {
    stw_agreement before[2], after; /* anything is copied, everything is written */
    uint32_t n;
    stw_save_part parts[STW_MOST_SAVED];
    uint64_t staged_bytes;   /* copies on the host at a time */
    uint64_t rounding_bytes; /* of page-locked ones, beyond that */
    uint64_t copied_bytes;   /* further pageable copies while the save goes on */
    bool pageable;           /* the copies */
    bool all_first;          /* everything is copied before anything is written */
    bool gathers;            /* whole tensors on rank 0, which writes all */
    uint64_t file_bytes;     /* gathers: all that rank 0 writes */
    uint32_t files;          /* of a rank that writes */
} stw_save;

/** Format hf: the whole model goes through rank 0, which keeps all of it (pageable), and writes
 * files of at most 50 GB (save_pretrained of transformers 5, max_shard_size). */
void stw_save_whole(const stw_job *job, stw_save *save);
void stw_save_add(stw_save *save, stw_component component, stw_tier tier, uint64_t bytes);
/** Does the framework write checkpoints? */
static inline bool stw_saves(const stw_job *job) {
    return job->run->checkpoint.every > 0 && !stw_run_spec_saves_own(job->run);
}
/** A file of a checkpoint on the node's disk: bytes that lie on the host. @param unit bucket of the
 * layout, or STW_OP_NONE @param after an operation that it waits for @return the op's index */
uint32_t stw_build_file_write(stw_builder *b, stw_component component, uint32_t unit,
                              uint64_t bytes, stw_op_ranks ranks, uint32_t after);
/** Are files held to the node's disk? Not where all are kept, or the disk's size is not known. */
bool stw_counts_checkpoint_files(const stw_job *job);
/** Files of the checkpoints that are kept (checkpoint.keep), from now on; of the one that is being
 * written, within its movement, until it takes the place of the oldest. Nothing where they are not
 * held to the disk. @param bytes that a rank writes of one */
void stw_build_kept_files(stw_builder *b, uint64_t bytes);
void stw_build_new_files(stw_builder *b, uint64_t bytes, bool alloc);
/** Staging that stays; within the movement of the first step, at its end. */
void stw_build_checkpoint_staging(stw_builder *b, const stw_save *save);
/** The movement. Parked parameters come back for it. */
void stw_build_checkpoint(stw_builder *b, const stw_save *save);

#endif
