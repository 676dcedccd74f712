/* SPDX-License-Identifier: Apache-2.0 */
/* Executes one rank's schedule of a weight sync on a device: packs the data that the rank sends in
 * a round, and places received data and the rank's own. The caller sends the messages in
 * between. */
#ifndef STW_BACKEND_EXECUTOR_SYNC_H
#define STW_BACKEND_EXECUTOR_SYNC_H

#include <stdbool.h>

#include "plan/sync/schedule.h"

typedef struct stw_sync_device stw_sync_device;

/** The memories of the rank, by number; NULL only for a memory without elements. With CUDA they are
 * GPU memory or page-locked host memory. Sources and targets do not overlap. */
typedef struct stw_sync_memories {
    const void *const *sources;
    void *const *targets;
    uint32_t n_sources, n_targets;
} stw_sync_memories;

/** The addresses of pieces that do not lie in one memory each: disjoint parts that cover the rank's
 * sources, and the places in which targets of buckets are collected. */
typedef struct stw_sync_places {
    const uint32_t *first_part;    /* [n_tensors + 1] */
    const stw_sync_piece *parts;   /* by tensor */
    const stw_sync_piece *targets; /* [n_targets] of the job; only the rank's are used. NULL:
                                      nothing is collected or digested */
} stw_sync_places;

typedef struct stw_sync_options {
    const char *backend; /* as stw_backend_select takes it */
    bool gpu_is_given;   /* CUDA: else the thread's current device is used */
    uint32_t gpu;
    const stw_sync_places *places; /* borrowed until stw_sync_device_open returns; NULL: the pieces
                                      have their addresses, and nothing is collected or digested */
} stw_sync_options;

/** @param schedule must outlive the device
 * @return USAGE, with its number, for a memory that is missing or not aligned to its elements */
STW_MUST_USE stw_status stw_sync_device_open(stw_sync_schedule *schedule, uint32_t rank,
                                             const stw_sync_options *options,
                                             const stw_sync_memories *memories,
                                             stw_sync_device **out, stw_error *err);
/** Waits for running work. NULL is fine. */
void stw_sync_device_close(stw_sync_device *device);
/** Set the memories from the next round on; if any has moved, waits for running rounds. */
STW_MUST_USE stw_status stw_sync_device_bind(stw_sync_device *device,
                                             const stw_sync_memories *memories, stw_error *err);
/** Fill the send buffer of a round.
 * @param native CUDA: the cudaStream_t on which it is queued; host: ignored, done on return */
STW_MUST_USE stw_status stw_sync_device_pack(stw_sync_device *device, uint32_t round, void *send,
                                             void *native, stw_error *err);
/** Fill target memories and the bucket from the receive buffer and from the rank's own data. Own
 * data that is also sent comes from the send buffer of the round, which must still hold it; USAGE
 * if the round was then not packed since it was last placed. */
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
/** With stw_sync_places: add this rank's digests, per tensor. The first sum covers source elements,
 * cast as for sending, once per target, on the lowest rank that has the element; the second covers
 * the collected elements. Summed over all ranks the two are equal if every target equals its
 * source. Blocking.
 * @param sums [2][n_tensors], added to: of sources, then of targets */
STW_MUST_USE stw_status stw_sync_device_digest(stw_sync_device *device, void *native,
                                               uint64_t *sums, stw_error *err);
/** Compute a sum of bytes that both sides of a message can compare; see backend/boxes.h. */
STW_MUST_USE stw_status stw_sync_device_sum(stw_sync_device *device, const void *address,
                                            uint64_t bytes, void *native, uint64_t *out,
                                            stw_error *err);

#endif
