/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a job: its files, and the share of each rank in them, from the spaces of all
 * ranks. */
#ifndef STW_PLAN_JOB_SAVED_JOB_H
#define STW_PLAN_JOB_SAVED_JOB_H

#include "plan/checkpoint/shares.h"
#include "plan/job/job.h"

typedef struct stw_saved_job {
    stw_pool *pool;
    stw_saved *saved;
    stw_shares shares;
} stw_saved_job;

/** Returns the component of the state that a saved kind holds. */
stw_component stw_saved_component(stw_saved_kind kind);
/** Make the files and shares of a job; they hold only run.checkpoint.contents. The time is
 * proportional to ranks x tensors. The job must outlive it. */
STW_MUST_USE stw_status stw_saved_job_new(const stw_job *job, stw_saved_job **out, stw_error *err);
void stw_saved_job_free(stw_saved_job *saved); /* NULL is fine */

#endif
