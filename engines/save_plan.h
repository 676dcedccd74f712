/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what into a checkpoint of Stowage's own (plan/checkpoint, plan/job/saved_job.h), read
 * for planning. Ranks with the same shards divide alike, so one group of ranks of each kind is
 * looked at, whatever the number of ranks. */
#ifndef STW_ENGINES_SAVE_PLAN_H
#define STW_ENGINES_SAVE_PLAN_H

#include "plan/job/saved_job.h"

/** Of a kind of rank: the rank of it that writes the most. */
typedef struct stw_save_kind {
    uint32_t rank;
    uint64_t held[STW_N_SAVED];    /* elements of its spaces */
    uint64_t written[STW_N_SAVED]; /* of which it writes so many */
    uint64_t bytes;                /* that it writes, rank 0 the headers of the files too */
} stw_save_kind;

typedef struct stw_save_plan {
    uint32_t n_files;      /* safetensors */
    uint64_t bytes;        /* of all files */
    uint64_t header_bytes; /* of these, which rank 0 writes */
    stw_save_kind *kinds;  /* [n_kinds] of the job */
    uint64_t *rank_bytes;  /* [world] that each rank writes */
} stw_save_plan;

/** Made by the first call for a job. @param out belongs to the job
 * @return BAD_INPUT where models/names cannot cut the model's tensors */
STW_MUST_USE stw_status stw_save_plan_of(const stw_job *job, const stw_save_plan **out,
                                         stw_error *err);
/** Elements that a rank of a kind writes of [first, first + n) of the space of a kind of state:
 * apart ranges add up to what it writes. Of replicas each writes a part of every tensor, which is
 * taken to be the same share of every range. */
uint64_t stw_save_written(const stw_save_kind *kind, stw_saved_kind state, uint64_t first,
                          uint64_t n);

#endif
