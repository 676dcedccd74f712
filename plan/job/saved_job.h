/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a job: its files, and who writes what, from the spaces of all ranks. */
#ifndef STW_PLAN_JOB_SAVED_JOB_H
#define STW_PLAN_JOB_SAVED_JOB_H

#include "plan/checkpoint/shares.h"
#include "plan/job/job.h"

typedef struct stw_saved_job {
    stw_pool *pool;
    stw_saved *saved;
    stw_shares shares;
} stw_saved_job;

/** Component of the state that a kind is. */
stw_component stw_saved_component(stw_saved_kind kind);
/** Files and shares of a job; what run.checkpoint.contents leaves out is not saved. Costs time in
 * proportion to ranks and tensors. The job must outlive it. */
STW_MUST_USE stw_status stw_saved_job_new(const stw_job *job, stw_saved_job **out, stw_error *err);
void stw_saved_job_free(stw_saved_job *saved); /* NULL is fine */

#endif
