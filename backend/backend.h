/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend is: memory in three tiers, streams, and the few operations that an optimizer step,
 * a load and their checks are made of. One const table per backend; the executor is written once
 * against it. Slots marked optional may be NULL.
 *
 * Asynchrony: a call on a GPU stream (h2d, compute, d2h) may return before the work is done; on the
 * host streams (cpu, disk) every call returns when done. Each stream is driven by one thread.
 * Ranges are offsets into the arenas, which are allocated once by `open` with exactly the sizes
 * asked for: an offset beyond them is refused (BUG), a size beyond the limits is refused before
 * anything is allocated (NO_RESOURCES). */
#ifndef STW_BACKEND_BACKEND_H
#define STW_BACKEND_BACKEND_H

#include "backend/element.h"
#include "core/status.h"
#include "plan/layout.h"

typedef struct stw_device stw_device; /* one rank's device; opaque, owned by the backend */

typedef struct stw_device_config {
    uint64_t arena_bytes[STW_N_TIERS];
    uint64_t
        capacity_bytes[STW_N_TIERS]; /* limits: the plan's, per rank; arenas above are refused */
    uint64_t machine_host_bytes;     /* host bytes that all ranks of the node will take together */
    uint32_t local_rank;             /* which GPU of the node */
    uint32_t n_events;               /* events that the executor will use */
    uint32_t threads;                /* for CPU work of this rank; 0: cores / ranks on the node */
    const char *nvme_folder; /* where the NVMe arena's file is made; NULL: $TMPDIR or /tmp */
} stw_device_config;

typedef struct stw_device_info {
    char name[96]; /* "NVIDIA H200", or the CPU's name */
    uint64_t used_before, used_after_context, used_now, total; /* device bytes; 0 where no GPU */
    uint64_t page_locked;                                      /* bytes */
} stw_device_info;

/** Operands of an update or norm in the tier where it runs; offsets are into that tier's arena. */
typedef struct stw_operands {
    stw_tier tier;                               /* gpu or host */
    uint64_t params, grads, exp_avg, exp_avg_sq; /* offsets in bytes */
    uint64_t n;                                  /* elements */
} stw_operands;

typedef struct stw_backend {
    const char *name; /* "host", "cuda" */
    bool gpu;         /* real GPU memory and time */
    /** Is there a device for it on this machine? optional error text. */
    bool (*available)(char *why, size_t why_size);
    STW_MUST_USE stw_status (*open)(const stw_device_config *config, stw_device **out,
                                    stw_error *err);
    void (*close)(stw_device *device);
    void (*info)(stw_device *device, stw_device_info *out);

    /** Host address of a range of the host arena (valid for its whole life); NULL outside. */
    void *(*host_address)(stw_device *device, uint64_t offset, uint64_t bytes);

    /* ---- operations on streams ---- */
    STW_MUST_USE stw_status (*copy)(stw_device *device, stw_stream stream, stw_tier to,
                                    uint64_t to_offset, stw_tier from, uint64_t from_offset,
                                    uint64_t bytes, stw_error *err);
    STW_MUST_USE stw_status (*update)(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                                      const stw_operands *operands, stw_error *err);
    /** Add the squares of operands->grads to the bins of that tier. */
    STW_MUST_USE stw_status (*norm_add)(stw_device *device, stw_stream stream,
                                        const stw_operands *operands, stw_error *err);
    STW_MUST_USE stw_status (*norm_reset)(stw_device *device, stw_stream stream, stw_error *err);
    /** All bins of both tiers, added; waits for the norm work issued so far. */
    STW_MUST_USE stw_status (*norm_read)(stw_device *device, stw_norm_bins *out, stw_error *err);
    /** Host <-> NVMe; blocking. */
    STW_MUST_USE stw_status (*read)(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                                    uint64_t bytes, stw_error *err);
    STW_MUST_USE stw_status (*write)(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                                     uint64_t bytes, stw_error *err);
    /** Elements of a staged load piece into fp32: to[i] = float(from[i]) for n elements. */
    STW_MUST_USE stw_status (*convert)(stw_device *device, stw_stream stream, stw_tier to,
                                       uint64_t to_offset, stw_tier from, uint64_t from_offset,
                                       stw_dtype from_dtype, uint64_t n, stw_error *err);
    /** Seeded gradients of global elements [element, element + n) into fp32 at an offset of a tier.
     */
    STW_MUST_USE stw_status (*seed_grads)(stw_device *device, stw_tier tier, uint64_t offset,
                                          uint64_t n, uint64_t element, uint64_t seed,
                                          uint64_t step, stw_error *err);
    STW_MUST_USE stw_status (*zero)(stw_device *device, stw_tier tier, uint64_t offset,
                                    uint64_t bytes, stw_error *err);
    /** Digest of n fp32 values that lie in a tier (NVMe included), global elements from `element`:
     * added to *digest. Blocking. */
    STW_MUST_USE stw_status (*digest)(stw_device *device, stw_tier tier, uint64_t offset,
                                      uint64_t n, uint64_t element, uint64_t *digest,
                                      stw_error *err);

    /* ---- order between streams; events are numbered 0 .. n_events-1 ---- */
    STW_MUST_USE stw_status (*record)(stw_device *device, stw_stream stream, uint32_t event,
                                      stw_error *err);
    /** GPU stream waits for a recorded event without blocking the caller. */
    STW_MUST_USE stw_status (*wait)(stw_device *device, stw_stream stream, uint32_t event,
                                    stw_error *err);
    /** Caller waits for a recorded event. */
    STW_MUST_USE stw_status (*wait_host)(stw_device *device, uint32_t event, stw_error *err);
    STW_MUST_USE stw_status (*synchronize)(stw_device *device, stw_error *err);
    /** Address of a range of the GPU arena, for collectives: device memory under CUDA, plain memory
     * on the host backend (for MPI); NULL outside the arena. */
    void *(*device_address)(stw_device *device, uint64_t offset, uint64_t bytes);
    /** The native stream handle of a stream (cudaStream_t), for NCCL; NULL on the host backend. */
    void *(*native_stream)(stw_device *device, stw_stream stream);
} stw_backend;

/** Work of a stream that the GPU does on its own (h2d, compute, d2h, comm) as against host threads.
 */
static inline bool stw_stream_is_gpu(stw_stream stream) {
    return stream != STW_STREAM_CPU && stream != STW_STREAM_DISK;
}

extern const stw_backend stw_backend_host;
/** The CUDA backend where it is built in, else NULL. */
const stw_backend *stw_backend_cuda_find(void);
/** "auto", "cuda" or "host"; NOT_BUILT_IN or DEVICE where it is not to be had. */
STW_MUST_USE stw_status stw_backend_select(const char *name, const stw_backend **out,
                                           stw_error *err);

#endif
