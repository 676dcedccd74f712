/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sync: a trainer's parameters to the weights of the first rollout role. The transfer is the
 * meet of two spaces in pieces of at most a bucket: runs of the model's numbering, of which ranks
 * pack what they have and place what they need. How many bytes the pieces take on the way follows
 * from the method:
 * - tensors: whole tensors one at a time, each cast to the rollout's dtype and copied into one
 *   bucket that the inference engine reads (verl: FSDP's full_tensor() of each DTensor, then
 *   workers/rollout/vllm_rollout/bucketed_weight_transfer.py, BucketedWeightSender). A tensor
 * larger than the bucket is handed over by itself.
 * - buckets: tensors are gathered until they fill a bucket, then flattened into it (slime:
 *   update_weight/update_weight_from_tensor.py, FlattenedTensorBucket); both are there together.
 * A rollout on nodes of its own gets buckets by broadcast from rank 0, from two buffers in turn
 * (verl: checkpoint_engine/nccl_checkpoint_engine.py). */
#ifndef STW_ENGINES_WEIGHT_SYNC_H
#define STW_ENGINES_WEIGHT_SYNC_H

#include "engines/park.h"

/** One whole tensor on its way. */
typedef struct stw_whole_tensor {
    uint64_t elements;     /* of the tensor, as the rollout takes it */
    stw_extent extents[3]; /* what was allocated to make it */
    uint32_t ready;        /* the operation that made it */
} stw_whole_tensor;

/** How an engine makes tensors whole. */
typedef struct stw_sync_source {
    uint32_t n; /* tensors */
    uint64_t (*elements)(const void *state, const stw_builder *b, uint32_t index);
    stw_whole_tensor (*gather)(const void *state, stw_builder *b, uint32_t index);
    const void *state;
} stw_sync_source;

/** The role that the trainer's weights go to; NULL: there is none. */
const stw_role *stw_synced_role(const stw_job *job);
/** The movement; nothing without a rollout role. Parked parameters come back for it. */
void stw_build_weight_sync(stw_builder *b, const stw_sync_source *source);
/** The source of an engine whose ranks hold chunks of whole tensors (gather.h). */
stw_sync_source stw_sync_of_chunks(const stw_job *job);

#endif
