/* SPDX-License-Identifier: Apache-2.0 */
/* A weight sync of Stowage's own: from shards, on the GPU, on the host or parked there, to what the
 * layers of each rank of the rollout hold, cast before they travel. It goes in rounds: in a round
 * every rank packs one run of its own parameters, as many bytes as every other rank's at most, and
 * sends each receiver what that one needs of it. So no rank packs more than its share of
 * roles.update_bucket nor receives more than a bucket, however tensors are cut. What comes to a
 * rank is what it lacks. It is planned; no executor issues it yet. */
#ifndef STW_PLAN_ENGINES_PIECE_SYNC_H
#define STW_PLAN_ENGINES_PIECE_SYNC_H

#include "plan/program/builder.h"

/** The movement; nothing without a rollout role. The partition is that of partition.h. */
void stw_build_piece_sync(stw_builder *b);

/** What comes to a receiver, in elements of the rollout's dtype: of a kind's ranks the one that
 * lacks most; where the rollout has nodes of its own, of its ranks. */
typedef struct stw_sync_needs {
    uint64_t needs; /* what its layers hold of the model's tensors */
    uint64_t lacks; /* of it, what it does not have as a trainer's rank */
} stw_sync_needs;
STW_MUST_USE stw_status stw_sync_needs_of(const stw_job *job, uint32_t kind, stw_sync_needs *out,
                                          stw_error *err);

#endif
