/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a job: its files, and who writes what, from the spaces of its ranks. Ranks that
 * have no element in common have nothing to divide, so a rank's part follows from the ranks that
 * hold what it holds. Those are the ones with its representative (stw_engine.representative), in
 * every engine whose checkpoints Stowage writes. */
#ifndef STW_PLAN_JOB_SAVED_JOB_H
#define STW_PLAN_JOB_SAVED_JOB_H

#include "plan/checkpoint/shares.h"
#include "plan/job/job.h"

/** Component of the state that a kind is. */
stw_component stw_saved_component(stw_saved_kind kind);
/** Files of a job; what run.checkpoint.contents leaves out is not saved. The job must outlive them.
 */
STW_MUST_USE stw_status stw_job_saved(const stw_job *job, stw_saved_files **out, stw_error *err);

/** Ranks that divide state among themselves, and what each of them writes. */
typedef struct stw_job_shares {
    uint32_t n;        /* ranks */
    uint32_t *ranks;   /* [n] ascending */
    uint32_t own;      /* of these: the one that was asked for */
    stw_shares shares; /* of n ranks, in the order of `ranks` */
} stw_job_shares;
/** What a rank writes, and those with which it divides. Costs time in proportion to these ranks and
 * the tensors. @param pool of the result */
STW_MUST_USE stw_status stw_job_share(const stw_job *job, const stw_saved_files *saved,
                                      uint32_t rank, stw_pool *pool, stw_job_shares *out,
                                      stw_error *err);

#endif
