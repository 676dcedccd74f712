/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a weight sync of Stowage's own (plan/sync), read for planning: how many rounds it
 * has, which buffers ranks need, and what they send and receive. Sources are the pieces that the
 * engine's partition gives to the trainer's ranks; targets are the pieces that the layers of each
 * rank of the first rollout role hold. A rollout on the trainer's nodes is a process of its own: it
 * is handed over the buckets of its GPU's trainer, or its weights are opened
 * (roles.N.update_in_place). One on nodes of its own receives in place. */
#ifndef STW_ENGINES_SYNC_PLAN_H
#define STW_ENGINES_SYNC_PLAN_H

#include "plan/job/job.h"
#include "plan/sync/traffic.h"

/** Of a kind of rank: a rank that receives the most of them, or sends the most if none receives. */
typedef struct stw_sync_kind {
    uint32_t rank;
    stw_sync_load total;   /* of the rank: sums of all rounds, and the most of rooms */
    stw_sync_load *rounds; /* [n_rounds] of the rank */
    bool *packs, *places;  /* [n_rounds]: does a rank of the kind? */
    uint64_t weights;      /* bytes of the targets of a rank of the kind, each aligned; the most */
} stw_sync_kind;

/** The busiest rank of a round. */
typedef struct stw_sync_busiest {
    uint64_t near_bytes, far_bytes; /* in one direction */
    uint32_t far_messages;
} stw_sync_busiest;

typedef struct stw_sync_plan {
    uint32_t n_rounds;
    uint32_t sets;             /* of buffers: one is packed and sent while another is placed */
    stw_sync_load trainer;     /* sums and rooms of the rank of the trainer with most room */
    stw_sync_load receiver;    /* the same of a rollout on nodes of its own */
    stw_sync_kind *kinds;      /* [n_kinds] of the job; zero of those that take no part */
    stw_sync_busiest *busiest; /* [n_rounds] */
    uint64_t element;          /* bytes on the way */
    uint64_t placed, near_received, far_received; /* the most that any rank has of each */
} stw_sync_plan;

/** What the schedule is made of, in `pool`. Ranks are those of the job, memories are numbers
 * without a meaning. BAD_INPUT for a bucket that is too small. The job must have a rollout role. */
STW_MUST_USE stw_status stw_sync_job_of(const stw_job *job, stw_pool *pool, stw_sync_job *out,
                                        stw_error *err);
/** Does Stowage execute the sync? To a rollout on the trainer's nodes, in 16 bits or more: other
 * nodes' ranks are not of a run, and engines quantize what they load. */
bool stw_sync_is_executed(const stw_job *job);
/** Does it write into the rollout's weights? Otherwise it fills buckets to copy from. */
bool stw_sync_is_in_place(const stw_job *job);
/** Bytes of GPU memory of a kind of rank above its regions: buffers, and then what the rollout on
 * its GPU holds. 0 unless the sync is executed. */
STW_MUST_USE stw_status stw_sync_gpu_room(const stw_job *job, uint32_t kind, uint64_t *buffers,
                                          uint64_t *weights, stw_error *err);
/** Made by the first call for a job. @param out belongs to the job */
STW_MUST_USE stw_status stw_sync_plan_of(const stw_job *job, const stw_sync_plan **out,
                                         stw_error *err);

#endif
