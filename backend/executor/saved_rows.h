/* SPDX-License-Identifier: Apache-2.0 */
/* Where elements of tensors lie on a rank: between rows of checkpoint files and regions. Part of
 * the executor. */
#ifndef STW_BACKEND_EXECUTOR_SAVED_ROWS_H
#define STW_BACKEND_EXECUTOR_SAVED_ROWS_H

#include "backend/executor/run.h"
#include "plan/job/saved_job.h"

/** Elements of a run of a tensor's elements that lie together. */
typedef struct stw_located {
    const stw_region *region;
    uint64_t skip;  /* elements of the run before them */
    uint64_t param; /* element of the region's space */
    uint64_t n;
} stw_located;

typedef stw_status stw_located_fn(void *state, const stw_located *at, stw_error *err);

/** Elements [first, first + n) of a tensor's state of a kind, of which this rank holds all: those
 * that lie together, also cut where regions end. BUG where it does not hold one. */
STW_MUST_USE stw_status stw_exec_locate(const stw_rank_run *run, const stw_saved_source *of,
                                        const stw_saved_row *row, stw_located_fn *fn, void *state,
                                        stw_error *err);

#endif
