/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend is: memory in three tiers, streams, and the few operations that an optimizer step,
 * a load and their checks are made of. One const table per backend; the executor is written once
 * against it. Slots marked optional may be NULL.
 *
 * Asynchrony: a call on a GPU stream (h2d, compute, d2h) may return before the work is done; on the
 * host streams (cpu, disk) every call returns when done. Each stream is driven by one thread.
 * Ranges are offsets into the arenas. `open` allocates them once with exactly the sizes asked for,
 * or takes memory that the caller owns. An offset beyond an arena is refused (BUG); a size beyond
 * the limits is refused before anything is allocated (NO_RESOURCES). */
#ifndef STW_BACKEND_BACKEND_H
#define STW_BACKEND_BACKEND_H

#include "backend/element.h"
#include "core/status.h"
#include "plan/program/layout.h"

typedef struct stw_device stw_device; /* one rank's device; opaque, owned by the backend */

/** Memory that the caller owns and keeps until the device is closed. */
typedef struct stw_external_arena {
    void *address;  /* on a multiple of 4096 bytes; NULL: the backend allocates the arena */
    uint64_t bytes; /* at least the arena's */
} stw_external_arena;

typedef struct stw_device_config {
    uint64_t arena_bytes[STW_N_TIERS];
    uint64_t capacity_bytes[STW_N_TIERS]; /* the plan's, per rank; arenas above are refused */
    uint64_t machine_host_bytes; /* host bytes that all ranks of the node will take together */
    uint32_t local_rank;         /* which GPU of the node, unless gpu_is_given */
    /** Memory of the gpu and host tiers that the caller owns. The backend allocates, fills and
     * frees nothing there. CUDA: device memory of the rank's GPU; host memory that is not
     * page-locked is registered by `open` and unregistered by `close`. Host backend: any memory. */
    stw_external_arena external[STW_N_TIERS];
    /** CUDA: native streams (cudaStream_t) that the caller owns, by GPU stream; NULL: one of the
     * backend's own. The default stream is cudaStreamLegacy here. Never destroyed; `close` waits
     * for what they were given. The host backend has no native streams. */
    void *streams[STW_N_STREAMS];
    bool gpu_is_given; /* CUDA: `gpu` is the device's ordinal */
    uint32_t gpu;
    uint32_t local_world; /* ranks of this node, which share its cores; 0: 1 */
    uint32_t n_events;    /* events that the executor will use */
    uint32_t n_marks;     /* marks of time; 0: none */
    uint32_t n_spans;     /* the most that set_spans will be given */
    bool spans_outside; /* spans may lead to params and grads outside the arenas: the caller answers
                           for those */
    stw_element_types types; /* of the run's state */
    uint32_t threads;        /* for CPU work of this rank; 0: cores / ranks on the node */
    const char *nvme_folder; /* where the NVMe arena's file is made; NULL: $TMPDIR or /tmp */
    uint32_t nvme_copies;    /* 1: written in place; 2: the last committed step stays readable */
} stw_device_config;

typedef struct stw_device_info {
    char name[96]; /* "NVIDIA H200", or the CPU's name */
    uint64_t used_before, used_after_context, used_now, total; /* device bytes; 0 where no GPU */
    uint64_t page_locked; /* bytes that the backend page-locked */
    uint64_t link_bytes;  /* host bytes of link_seconds' own buffers, in no other figure */
} stw_device_info;

/** Where bytes begin. */
typedef struct stw_location {
    stw_tier tier;
    uint64_t offset; /* bytes in the tier's arena */
} stw_location;

/** n values of one type, one after the other. */
typedef struct stw_typed_range {
    stw_tier tier;
    uint64_t offset; /* bytes in the tier's arena, of the first value */
    stw_element type;
    uint64_t n;
} stw_typed_range;

static inline stw_location stw_at(stw_tier tier, uint64_t offset) {
    return (stw_location){tier, offset};
}

static inline stw_typed_range stw_typed(stw_tier tier, uint64_t offset, stw_element type,
                                        uint64_t n) {
    return (stw_typed_range){tier, offset, type, n};
}

/** Where one component of a bucket lies while its update runs. */
typedef struct stw_operand {
    stw_tier tier;   /* gpu, or host: for the CPU, or for a GPU that reaches it by itself */
    bool in_spans;   /* params and grads: offsets are those of the spans */
    uint64_t offset; /* bytes in the tier's arena, of the bucket's first element */
} stw_operand;

/** A bucket on its way through an update. */
typedef struct stw_bucket_operands {
    uint64_t first, n;            /* elements of the flat space */
    uint32_t first_span, n_spans; /* of the table: those that meet the bucket */
    stw_operand params, grads, master /* where the run has one */, exp_avg, exp_avg_sq;
} stw_bucket_operands;

/** What the link does by itself: copies both ways at once without any order between them. */
typedef struct stw_link_shape {
    uint64_t bytes;   /* of one copy */
    uint32_t streams; /* in each direction */
} stw_link_shape;

typedef struct stw_backend {
    const char *name; /* "host", "cuda" */
    bool gpu;         /* real GPU memory and time */
    /** Is there a device for it on this machine? optional error text. */
    bool (*available)(char *why, size_t why_size);
    STW_MUST_USE stw_status (*open)(const stw_device_config *config, stw_device **out,
                                    stw_error *err);
    void (*close)(stw_device *device);
    void (*info)(stw_device *device, stw_device_info *out);

    /** Called once by each thread that serves streams, before the first operation: it moves near
     * the device, the one of `cpu` where it hands in work for the others. */
    void (*enter)(stw_device *device, stw_stream stream);

    /** Host address of a range of the host arena (valid for its whole life); NULL outside. */
    void *(*host_address)(stw_device *device, uint64_t offset, uint64_t bytes);

    /* ---- operations on streams ---- */
    STW_MUST_USE stw_status (*copy)(stw_device *device, stw_stream stream, stw_location to,
                                    stw_location from, uint64_t bytes, stw_error *err);
    /** The table of the whole flat space, kept until the next call; blocking. Not while a step
     * runs.
     */
    STW_MUST_USE stw_status (*set_spans)(stw_device *device, const stw_span *spans, uint32_t n,
                                         stw_error *err);
    /** AdamW on a bucket: on the GPU for a GPU stream, on this thread and its pool for `cpu`. With
     * adamw->clip the factor is that of the last norm_factor, in the order of the stream; for `cpu`
     * that must be done (wait_host on an event after it). */
    STW_MUST_USE stw_status (*update)(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                                      const stw_bucket_operands *bucket, stw_error *err);

    /* ---- the global norm: reset, add ..., counters, (sum over ranks,) factor, result ---- */
    STW_MUST_USE stw_status (*norm_reset)(stw_device *device, stw_stream stream, stw_error *err);
    /** Add the squares of gradients to the bins of their tier. */
    STW_MUST_USE stw_status (*norm_add)(stw_device *device, stw_stream stream,
                                        stw_typed_range grads, stw_error *err);
    /** Both tiers' bins as STW_NORM_COUNTERS normalised counters, zeros unless `counts`: ready in
     * the order of the stream at *counters, which is GPU memory for a GPU backend (for an in-place
     * sum over ranks on that stream), else host memory. Work of host streams must be done. */
    STW_MUST_USE stw_status (*norm_counters)(stw_device *device, stw_stream stream, bool counts,
                                             uint64_t **counters, stw_error *err);
    /** From the counters to norm and clip factor, in the order of the stream; the host is not
     * waited for. */
    STW_MUST_USE stw_status (*norm_factor)(stw_device *device, stw_stream stream, double clip_norm,
                                           stw_error *err);
    /** What norm_factor found; only after it is done (an event waited for, or synchronize). */
    void (*norm_result)(stw_device *device, double *norm, float *factor);

    /** Host <-> NVMe; blocking. */
    STW_MUST_USE stw_status (*read)(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                                    uint64_t bytes, stw_error *err);
    STW_MUST_USE stw_status (*write)(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                                     uint64_t bytes, stw_error *err);
    /** NVMe arenas of two copies: until a commit, reads (and digests) see the state of the last
     * one, whatever was written since. A commit makes those writes count, by whichever movement,
     * and keeps all other bytes; without any write it changes nothing but the step that the file
     * names. Blocking. With one copy or no NVMe arena: nothing. */
    STW_MUST_USE stw_status (*commit)(stw_device *device, uint64_t step, stw_error *err);
    /** Elements of a staged load piece, or of parameters for their master:
     * to[i] = to.type(float(from[i])) for the to.n elements of `from_dtype` at `from`. */
    STW_MUST_USE stw_status (*convert)(stw_device *device, stw_stream stream, stw_typed_range to,
                                       stw_location from, stw_dtype from_dtype, stw_error *err);
    /** Seeded gradients: those of global element `element` and the ones after it. Blocking. */
    STW_MUST_USE stw_status (*seed_grads)(stw_device *device, stw_typed_range to, uint64_t element,
                                          uint64_t seed, uint64_t step, stw_error *err);
    /** Blocking. */
    STW_MUST_USE stw_status (*zero)(stw_device *device, stw_location to, uint64_t bytes,
                                    stw_error *err);
    /** Digest of values in any tier, which are global elements from `element` on: added to *digest.
     * Blocking. */
    STW_MUST_USE stw_status (*digest)(stw_device *device, stw_typed_range values, uint64_t element,
                                      uint64_t *digest, stw_error *err);
    /** Optional: copy `bytes` each way in the given shape, host arena upwards, a buffer of its own
     * downwards, and give the seconds. The first call makes buffers, which `info` leaves out.
     * Blocking; not while a step runs. */
    STW_MUST_USE stw_status (*link_seconds)(stw_device *device, const stw_link_shape *shape,
                                            uint64_t bytes, double *seconds, stw_error *err);

    /* ---- order between streams; events are numbered 0 .. n_events-1 ---- */
    STW_MUST_USE stw_status (*record)(stw_device *device, stw_stream stream, uint32_t event,
                                      stw_error *err);
    /** GPU stream waits for a recorded event without blocking the caller. */
    STW_MUST_USE stw_status (*wait)(stw_device *device, stw_stream stream, uint32_t event,
                                    stw_error *err);
    /** Caller waits for a recorded event. */
    STW_MUST_USE stw_status (*wait_host)(stw_device *device, uint32_t event, stw_error *err);
    /** Optional, both or none: a mark of time in the order of a GPU stream, 0 .. n_marks-1; and the
     * seconds from one mark to another once both are done. */
    STW_MUST_USE stw_status (*mark)(stw_device *device, stw_stream stream, uint32_t mark,
                                    stw_error *err);
    STW_MUST_USE stw_status (*mark_seconds)(stw_device *device, uint32_t from, uint32_t to,
                                            double *seconds, stw_error *err);
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
    return stream != STW_STREAM_CPU && stream != STW_STREAM_DISK && stream != STW_STREAM_DISK_OUT;
}

extern const stw_backend stw_backend_host;
/** The CUDA backend where it is built in, else NULL. */
const stw_backend *stw_backend_cuda_find(void);
/** "auto", "cuda" or "host"; NOT_BUILT_IN or DEVICE where it is not to be had. */
STW_MUST_USE stw_status stw_backend_select(const char *name, const stw_backend **out,
                                           stw_error *err);

#endif
