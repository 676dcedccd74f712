/* SPDX-License-Identifier: Apache-2.0 */
/* Maps rows of checkpoint files to the regions of a rank. Part of the executor. */
#ifndef STW_BACKEND_EXECUTOR_SAVED_ROWS_H
#define STW_BACKEND_EXECUTOR_SAVED_ROWS_H

#include "backend/executor/run.h"
#include "plan/job/saved_job.h"

/** Contiguous elements of a row in one region. */
typedef struct stw_located {
    const stw_region *region;
    uint64_t skip;  /* elements of the row before these */
    uint64_t param; /* element of the region's space */
    uint64_t n;
} stw_located;

typedef stw_status stw_located_fn(void *state, const stw_located *at, stw_error *err);

/** Call `fn` for each contiguous part of a row's elements; a part ends where its region ends. BUG
 * if this rank does not hold all elements. */
STW_MUST_USE stw_status stw_exec_locate(const stw_rank_run *run, const stw_saved_source *of,
                                        const stw_saved_row *row, stw_located_fn *fn, void *state,
                                        stw_error *err);

#endif
