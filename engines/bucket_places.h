/* SPDX-License-Identifier: Apache-2.0 */
/* The placements of steps of buckets: which ones Stowage can execute, and what the keys
 * placement.*, optimizer.implementation and update.* leave of them. Pure functions; any thread. */
#ifndef STW_ENGINES_BUCKET_PLACES_H
#define STW_ENGINES_BUCKET_PLACES_H

#include "plan/program/decisions.h"
#include "plan/spec/registry.h"

/** Admissible placements in canonical order; inside a framework's process those with parameters and
 * gradients on the GPU, which updates there.
 * @param places out, room for STW_MAX_PLACES
 * @return how many; 0 if there is none for some quanta (err says why) */
uint32_t stw_stowage_places(const stw_job *job, stw_place *places, stw_error *err);
/** Refuse fixed shares in update.* that other keys exclude, or that do not sum to 1. */
STW_MUST_USE stw_status stw_stowage_check_shares(const stw_run_spec *run, const char *origin,
                                                 stw_error *err);

#endif
