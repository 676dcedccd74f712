/* SPDX-License-Identifier: Apache-2.0 */
/* Resumes from the NVMe state that a run with two copies left. Part of the executor. */
#ifndef STW_BACKEND_EXECUTOR_RESUME_KEPT_H
#define STW_BACKEND_EXECUTOR_RESUME_KEPT_H

#include "backend/executor/run.h"
#include "backend/nvme/kept.h"

typedef struct stw_resume_kept {
    stw_kept_list list;
    const stw_kept *file; /* this rank's file */
    stw_kept_step step;   /* the newest step that all ranks of its node have */
} stw_resume_kept;

/** True if the path is such a file, or a folder with one. */
bool stw_resume_kept_is(const char *path);
/** Find this rank's file of the same plan, and verify it. BAD_INPUT if the file cannot give the
 * plan's state: all master and moments must lie on NVMe.
 * @param out to be closed, also on failure */
STW_MUST_USE stw_status stw_resume_kept_open(const stw_rank_run *run, stw_resume_kept *out,
                                             stw_error *err);
/** Load the file's state, and the parameters as rounded masters. */
STW_MUST_USE stw_status stw_resume_kept_load(const stw_rank_run *run, const stw_resume_kept *kept,
                                             stw_error *err);
void stw_resume_kept_close(stw_resume_kept *kept); /* zeros are fine */

#endif
