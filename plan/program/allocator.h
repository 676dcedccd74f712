/* SPDX-License-Identifier: Apache-2.0 */
/* A model of torch's caching allocator for GPUs (c10/cuda/CUDACachingAllocator.cpp at 001074d): the
 * segments that it reserves and releases for a sequence of allocations and frees. No memory is
 * touched; addresses only order blocks. The caller owns an allocator and uses it from one
 * thread. */
#ifndef STW_PLAN_ALLOCATOR_H
#define STW_PLAN_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc,
 * kRoundLarge. */
#define STW_ALLOCATOR_BLOCK_BYTES 512ull       /* sizes are multiples of it */
#define STW_ALLOCATOR_SMALL_BYTES (1ull << 20) /* largest request of the small pool */
#define STW_ALLOCATOR_SMALL_SEGMENT_BYTES (2ull << 20)
#define STW_ALLOCATOR_LARGE_SEGMENT_BYTES (20ull << 20)
#define STW_ALLOCATOR_LARGE_BYTES                                                                  \
    (10ull << 20)                              /* larger requests get a segment of their own       \
                                                  size */
#define STW_ALLOCATOR_ROUND_BYTES (2ull << 20) /* their sizes are multiples of it */

/* Streams of one allocator: 0 is the stream of computation. */
#define STW_ALLOCATOR_STREAMS 32

/** The settings of PYTORCH_CUDA_ALLOC_CONF, and the device. */
typedef struct stw_allocator_settings {
    bool expandable_segments;
    uint64_t max_split_bytes;              /* max_split_size_mb; 0: no limit */
    uint64_t max_non_split_rounding_bytes; /* most bytes by which a block may exceed a request of at
                                              least max_split_bytes; 0: 20 MiB */
    uint32_t roundup_power2_divisions;     /* one number for all sizes; 0: multiples of 512 B */
    double garbage_collection_threshold;   /* share of fraction_bytes, which must be set; 0: none */
    uint64_t fraction_bytes;               /* set_per_process_memory_fraction, as bytes; 0: unset */
    uint64_t device_bytes;                 /* device bytes available for segments; 0: no limit */
} stw_allocator_settings;

typedef struct stw_allocator stw_allocator;

typedef struct stw_allocator_stats {
    uint64_t allocated_bytes, peak_allocated_bytes; /* blocks handed out, as torch counts them */
    uint64_t reserved_bytes, peak_reserved_bytes;   /* of segments */
    uint64_t retries; /* allocations that first released all cached segments */
} stw_allocator_stats;

/** The invalid handle. */
#define STW_NO_BLOCK UINT32_MAX

/** @param settings copied */
STW_MUST_USE stw_status stw_allocator_new(const stw_allocator_settings *settings,
                                          stw_allocator **out, stw_error *err);
void stw_allocator_free(stw_allocator *a);
/** Allocate on a stream (below STW_ALLOCATOR_STREAMS).
 * @param block out, the block's handle; STW_NO_BLOCK for 0 bytes, or if the device is full even
 * without cached segments
 * @param full out, may be NULL: true if the device is full */
STW_MUST_USE stw_status stw_allocator_take(stw_allocator *a, uint32_t stream, uint64_t bytes,
                                           uint32_t *block, bool *full, stw_error *err);
/** Tensor.record_stream: `stream` uses the block too, so that a free waits for it. */
void stw_allocator_record_stream(stw_allocator *a, uint32_t block, uint32_t stream);
/** Free a block. It can be reused after all recorded streams have caught up. */
STW_MUST_USE stw_status stw_allocator_drop(stw_allocator *a, uint32_t block, stw_error *err);
/** Mark all work queued on a stream so far as finished. The next allocation takes it into
 * account. */
void stw_allocator_caught_up(stw_allocator *a, uint32_t stream);
/** torch.cuda.empty_cache(): wait for all streams, release every free segment. */
STW_MUST_USE stw_status stw_allocator_empty_cache(stw_allocator *a, stw_error *err);
/** Reset the peaks to the present bytes. */
void stw_allocator_reset_peaks(stw_allocator *a);
const stw_allocator_stats *stw_allocator_stats_of(const stw_allocator *a);
/** Returns the bytes of free segments, which empty_cache would release. */
uint64_t stw_allocator_free_bytes(const stw_allocator *a);
/** Returns the request rounded to the allocator's block sizes. A remainder that is too small to
 * split off is not included. */
uint64_t stw_allocator_rounded(const stw_allocator_settings *settings, uint64_t bytes);

#endif
