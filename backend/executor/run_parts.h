/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of a rank's parameters, as parts of the sources of a weight sync. */
#ifndef STW_BACKEND_EXECUTOR_RUN_PARTS_H
#define STW_BACKEND_EXECUTOR_RUN_PARTS_H

#include "backend/executor/run.h"
#include "backend/executor/sync.h"
#include "engines/export.h"

/** Called for contiguous elements of one tensor in a region.
 * @param at byte offset in the region's tier */
typedef stw_status (*stw_on_run)(void *state, const stw_region *region, const stw_overlap *part,
                                 uint64_t at, stw_error *err);
/** Call `fn` for all parameters of the rank. */
STW_MUST_USE stw_status stw_each_run(const stw_rank_run *run, stw_on_run fn, void *state,
                                     stw_error *err);

/** As stw_export_run: gives the pieces of elements [first, first + n) of a tensor of the model. */
typedef stw_status (*stw_cut_run)(const void *cutter, uint32_t tensor, uint64_t first, uint64_t n,
                                  stw_export_take take, void *state, stw_error *err);
/** Fill out->first_part and out->parts. Memory 0 is the GPU's arena, 1 the host's.
 * @param n_tensors of the sync
 * @param pool holds the result */
STW_MUST_USE stw_status stw_find_parts(const stw_rank_run *run, uint32_t n_tensors, stw_cut_run cut,
                                       const void *cutter, stw_pool *pool, stw_sync_places *out,
                                       stw_error *err);

#endif
