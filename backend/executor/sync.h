/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule of a weight sync on a device, of one rank: packs what the rank sends in a round, and
 * places what came and what it has itself. The caller sends messages in between. */
#ifndef STW_BACKEND_EXECUTOR_SYNC_H
#define STW_BACKEND_EXECUTOR_SYNC_H

#include <stdbool.h>

#include "plan/sync/schedule.h"

typedef struct stw_sync_device stw_sync_device;

/** Memories of the rank, by their numbers. NULL only for one without elements. With CUDA they are
 * GPU memory or page-locked host memory. Those of sources and targets are apart. */
typedef struct stw_sync_memories {
    const void *const *sources;
    void *const *targets;
    uint32_t n_sources, n_targets;
} stw_sync_memories;

/** Where a rank's pieces lie that are not in one memory each: parts of its sources, which are apart
 * and together all of them, and where targets of buckets are collected. */
typedef struct stw_sync_places {
    const uint32_t *first_part;    /* [n_tensors + 1] */
    const stw_sync_piece *parts;   /* by tensor */
    const stw_sync_piece *targets; /* [n_targets] of the job; looked at for those of the rank. NULL:
                                    * nothing is collected or digested */
} stw_sync_places;

typedef struct stw_sync_options {
    const char *backend; /* as stw_backend_select takes it */
    bool gpu_is_given;   /* CUDA: else it is the thread's current device */
    uint32_t gpu;
    const stw_sync_places *places; /* borrowed until stw_sync_device_open returns; NULL: pieces say
                                    * where they lie, and nothing is collected or digested */
} stw_sync_options;

/** @param schedule must outlive the device
 * @return USAGE for a memory that is missing or not aligned to its elements, with its number */
STW_MUST_USE stw_status stw_sync_device_open(stw_sync_schedule *schedule, uint32_t rank,
                                             const stw_sync_options *options,
                                             const stw_sync_memories *memories,
                                             stw_sync_device **out, stw_error *err);
/** Waits for work under way. NULL is fine. */
void stw_sync_device_close(stw_sync_device *device);
/** Memories are elsewhere from the next round on; waits for rounds under way if any has moved. */
STW_MUST_USE stw_status stw_sync_device_bind(stw_sync_device *device,
                                             const stw_sync_memories *memories, stw_error *err);
/** Fill the send buffer of a round. @param native CUDA: cudaStream_t on which it is queued; host:
 * done on return */
STW_MUST_USE stw_status stw_sync_device_pack(stw_sync_device *device, uint32_t round, void *send,
                                             void *native, stw_error *err);
/** Fill target memories and the bucket from the receive buffer and from what the rank has itself;
 * what it sends, too, comes from the send buffer, which the round was packed into and which must
 * still hold it. USAGE for a round that was not packed since it was placed, where that is so. */
STW_MUST_USE stw_status stw_sync_device_place(stw_sync_device *device, uint32_t round,
                                              const void *receive, void *bucket, void *native,
                                              stw_error *err);
/** The two halves of stw_sync_device_place, in this order: what the rank has itself, which needs no
 * message, and what came. */
STW_MUST_USE stw_status stw_sync_device_place_own(stw_sync_device *device, uint32_t round,
                                                  void *bucket, void *native, stw_error *err);
STW_MUST_USE stw_status stw_sync_device_place_came(stw_sync_device *device, uint32_t round,
                                                   const void *receive, void *bucket, void *native,
                                                   stw_error *err);
/** What the rank does; belongs to the schedule. */
const stw_sync_view *stw_sync_device_view(const stw_sync_device *device);
/** Marks on streams; see backend/boxes.h. */
STW_MUST_USE stw_status stw_sync_device_mark(stw_sync_device *device, uint32_t number, void *native,
                                             stw_error *err);
STW_MUST_USE stw_status stw_sync_device_follow(stw_sync_device *device, uint32_t number,
                                               void *native, stw_error *err);
STW_MUST_USE stw_status stw_sync_device_passed(stw_sync_device *device, uint32_t number, bool *out,
                                               stw_error *err);
/** Copy what a round brought into its bucket to the targets of stw_sync_places. */
STW_MUST_USE stw_status stw_sync_device_collect(stw_sync_device *device, uint32_t round,
                                                const void *bucket, void *native, stw_error *err);
/** With stw_sync_places: digests of the rank's own, tensor by tensor. Of a source's elements, cast
 * as they travel, each as often as targets get it, where no rank of a lower number has it; and of
 * the elements that were collected. Over all ranks the two sums of a tensor are equal if every
 * target has what its source has. Blocks.
 * @param sums [2][n_tensors], added to: of sources, then of targets */
STW_MUST_USE stw_status stw_sync_device_digest(stw_sync_device *device, void *native,
                                               uint64_t *sums, stw_error *err);
/** A sum of bytes that both sides of a message can compare; see backend/boxes.h. */
STW_MUST_USE stw_status stw_sync_device_sum(stw_sync_device *device, const void *address,
                                            uint64_t bytes, void *native, uint64_t *out,
                                            stw_error *err);

#endif
