/* SPDX-License-Identifier: Apache-2.0 */
/* Going on from what a run with two copies left on NVMe. Part of the executor. */
#ifndef STW_BACKEND_EXECUTOR_RESUME_KEPT_H
#define STW_BACKEND_EXECUTOR_RESUME_KEPT_H

#include "backend/executor/run.h"
#include "backend/nvme/kept.h"

typedef struct stw_resume_kept {
    stw_kept_list list;
    const stw_kept *file; /* this rank's */
    stw_kept_step step;   /* the newest that all ranks of its node have */
} stw_resume_kept;

/** Is there any in a folder, or is it one? */
bool stw_resume_kept_is(const char *path);
/** Find this rank's, of the same plan, and verify it. BAD_INPUT where the plan's state does not
 * follow from it: master and moments must lie on NVMe, all of them.
 * @param out to be closed, whatever comes */
STW_MUST_USE stw_status stw_resume_kept_open(const stw_rank_run *run, stw_resume_kept *out,
                                             stw_error *err);
/** Its state, and the parameters that are its masters, rounded. */
STW_MUST_USE stw_status stw_resume_kept_load(const stw_rank_run *run, const stw_resume_kept *kept,
                                             stw_error *err);
void stw_resume_kept_close(stw_resume_kept *kept); /* zeros are fine */

#endif
