/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that Stowage writes: safetensors of whole tensors, of which every element is written
 * once, by a rank that has it; replicas share what they have alike. Who writes what follows from
 * the plan, so that ranks tell each other nothing: the movement has no collective.
 *
 * Nothing of the state changes until the next step reaches it. So a save goes on beside the
 * training that follows, in this order:
 * - what lies on the GPU leaves through buckets on the host, before the next step begins;
 * - what lies on the host is written from there, and what lies on NVMe through the buckets: bucket
 *   after bucket of the layout, in the order in which the step reaches them. Where the step comes
 *   first it copies the bucket into a free one on the host, or waits until it is written
 *   (sim/stall.h). */
#ifndef STW_PLAN_ENGINES_OWN_SAVE_H
#define STW_PLAN_ENGINES_OWN_SAVE_H

#include "plan/engines/park.h"

/** A bucket on the host, at most, and how many there are beside checkpoint.copies. */
#define STW_OWN_SAVE_BUCKET_BYTES (32ull << 20)
#define STW_OWN_SAVE_BUCKETS 2u
/** Files hold whole tensors, up to so many bytes or one tensor. */
#define STW_OWN_SAVE_FILE_BYTES (5ull << 30)

/** Buckets of a rank on the host, and the bytes of each. */
typedef struct stw_save_buckets {
    uint32_t n;
    uint64_t bytes;
} stw_save_buckets;
stw_save_buckets stw_own_save_buckets(const stw_builder *b);

/** Files of a checkpoint, those of the model and of the optimizer's state. */
uint32_t stw_own_save_files(const stw_job *job);
/** Buckets and files that stay, within the movement in which the state appears; nothing where
 * Stowage writes no checkpoints. */
void stw_build_own_staging(stw_builder *b);
/** The movement. */
void stw_build_own_save(stw_builder *b);

#endif
