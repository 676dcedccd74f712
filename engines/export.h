/* SPDX-License-Identifier: Apache-2.0 */
/* The weight sync of a trainer's parameters into published files: tensors are those that the files
 * of the model hold (models/names.h), each whole on the rank that writes it. Read-only once made;
 * any thread. */
#ifndef STW_ENGINES_EXPORT_H
#define STW_ENGINES_EXPORT_H

#include "models/names.h"
#include "plan/job/job.h"
#include "plan/sync/pieces.h"

typedef struct stw_export stw_export;

/** @param job must outlive the result
 * @return NOT_BUILT_IN where the published files are quantised, with the tensor */
STW_MUST_USE stw_status stw_export_new(const stw_job *job, stw_export **out, stw_error *err);
void stw_export_free(stw_export *e); /* NULL is fine */
/** Tensors of the sync, in the order of the files. Their dims and shapes are those of files, but of
 * more dimensions than four the last ones are one. */
const stw_sync_tensor *stw_export_tensors(const stw_export *e, uint32_t *n);
/** A tensor as the files have it. */
const stw_published *stw_export_published(const stw_export *e, uint32_t tensor);

/** Gets each piece of a run: its box in a published tensor, its stride, and as its offset the
 * elements from the run's first one to the box's. */
typedef stw_status (*stw_export_take)(void *state, const stw_sync_piece *piece, stw_error *err);
/** Elements [first, first + n) of a tensor of the model, as pieces of published ones. */
STW_MUST_USE stw_status stw_export_run(const stw_export *e, uint32_t tensor, uint64_t first,
                                       uint64_t n, stw_export_take take, void *state,
                                       stw_error *err);
/** The sync: sources are the chunks of all ranks, targets come in buckets to ranks 0 to writers -
 * 1, neighbouring tensors of about equal bytes to each.
 * @param pool of the result */
STW_MUST_USE stw_status stw_export_job(const stw_export *e, uint64_t bucket_bytes, uint32_t writers,
                                       stw_pool *pool, stw_sync_job *out, stw_error *err);

#endif
