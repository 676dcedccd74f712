/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a backend: memory in three tiers, streams, and the operations of which loads,
 * optimizer steps and their checks consist. Each backend is one const table of functions, and the
 * executor calls backends through that table only. Slots marked optional may be NULL.
 *
 * Streams: a call on a GPU stream (h2d, compute, d2h, comm, to_cpu, from_cpu) may return before its
 * work is done. A call on a host stream (cpu, disk, disk_out) returns when its work is done. One
 * thread at a time may use a stream; different streams may be used from different threads.
 *
 * Memory: a range is an offset into the arena of its tier. `open` allocates each arena once, with
 * exactly the size asked for, or uses memory that the caller owns. A range outside its arena is an
 * error (BUG). A size above the limits is an error (NO_RESOURCES) before anything is allocated. */
#ifndef STW_BACKEND_BACKEND_H
#define STW_BACKEND_BACKEND_H

#include "backend/element.h"
#include "backend/nvme/nvme.h"
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
    bool urgent;         /* CUDA: kernels of `compute`, if its own, go before others that wait */
    bool gpu_is_given;   /* CUDA: `gpu` is the device's ordinal */
    bool gpu_is_current; /* CUDA: else, it is the one that the calling thread has set */
    uint32_t gpu;
    uint32_t local_world;    /* ranks of this node, which share its cores; 0: 1 */
    uint32_t n_events;       /* events that the executor will use */
    uint32_t n_marks;        /* marks of time; 0: none */
    uint32_t n_spans;        /* the most that set_spans will be given */
    bool spans_outside;      /* spans may refer to params and grads outside the arenas, unchecked */
    stw_element_types types; /* of the run's state */
    uint32_t threads;        /* for CPU work of this rank; 0: cores / ranks on the node */
    const char *nvme_folder; /* folder of the NVMe arena's file; NULL: $TMPDIR, else /tmp */
    uint32_t nvme_copies;    /* 1: written in place; 2: see `commit` */
    const stw_nvme_shape *nvme_shape; /* looked at by `open`; NULL: no cuts, no names */
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

/** Location of one component of a bucket during its update. */
typedef struct stw_operand {
    stw_tier tier;   /* gpu or host; a kernel accesses host memory directly */
    bool in_spans;   /* params and grads only: the span table gives the offsets */
    uint64_t offset; /* bytes in the tier's arena, of the bucket's first element */
} stw_operand;

/** The operands of an update of one bucket. */
typedef struct stw_bucket_operands {
    uint64_t first, n;            /* elements of the flat space */
    uint32_t first_span, n_spans; /* entries of the span table that cover the bucket */
    stw_operand params, grads, master /* where the run has one */, exp_avg, exp_avg_sq;
} stw_bucket_operands;

/** A measurement of the link: copies in both directions at once. */
typedef struct stw_link_shape {
    uint64_t bytes;   /* of one copy */
    uint32_t streams; /* in each direction */
    /** 0: the directions are not ordered, and each has host memory of its own. Else the slots of a
     * ring in GPU memory, on one stream each way: what went up returns to where it came from, and a
     * slot is filled again once it is empty, as in a step. Fewer where GPU memory is short. */
    uint32_t ring;
} stw_link_shape;

typedef struct stw_backend {
    const char *name; /* "host", "cuda" */
    bool gpu;         /* real GPU memory and time */
    /** Whether this machine has a device for the backend. @param why NULL, or receives the reason
     * if it has none */
    bool (*available)(char *why, size_t why_size);
    STW_MUST_USE stw_status (*open)(const stw_device_config *config, stw_device **out,
                                    stw_error *err);
    void (*close)(stw_device *device);
    void (*info)(stw_device *device, stw_device_info *out);

    /** Each thread that serves a stream calls this once, before its first operation. It binds the
     * thread to cores near the device; the thread of `cpu` joins the pool's cores. */
    void (*enter)(stw_device *device, stw_stream stream);

    /** Host address of a range of the host arena, valid until `close`; NULL outside the arena. */
    void *(*host_address)(stw_device *device, uint64_t offset, uint64_t bytes);

    /* ---- operations on streams ---- */

    /** Copy between or inside the gpu and host arenas. Source and target must not overlap. */
    STW_MUST_USE stw_status (*copy)(stw_device *device, stw_stream stream, stw_location to,
                                    stw_location from, uint64_t bytes, stw_error *err);
    /** Set the span table of the whole flat space. It is copied and replaces the one before.
     * Blocking; not while a step runs. */
    STW_MUST_USE stw_status (*set_spans)(stw_device *device, const stw_span *spans, uint32_t n,
                                         stw_error *err);
    /** The same in the order of a GPU stream, without waiting: work that this stream was given
     * before goes by the old table, and other streams must have none under way that needs it.
     * Blocks only where the call before the last one has not had its turn yet. */
    STW_MUST_USE stw_status (*queue_spans)(stw_device *device, stw_stream stream,
                                           const stw_span *spans, uint32_t n, stw_error *err);
    /** AdamW on a bucket: on the GPU for a GPU stream, on the calling thread and the pool for
     * `cpu`. With adamw->clip it uses the factor of the last norm_factor in the order of the
     * stream. For `cpu` that norm_factor must be done: call wait_host on an event after it. */
    STW_MUST_USE stw_status (*update)(stw_device *device, stw_stream stream, const stw_adamw *adamw,
                                      const stw_bucket_operands *bucket, stw_error *err);

    /* ---- the global norm ----
     * In this order: reset, add (any number), counters, a sum over ranks by the caller, factor,
     * result. */

    /** Set the bins of both tiers to zero. */
    STW_MUST_USE stw_status (*norm_reset)(stw_device *device, stw_stream stream, stw_error *err);
    /** Add the squares of gradients to the bins of their tier (gpu or host). */
    STW_MUST_USE stw_status (*norm_add)(stw_device *device, stw_stream stream,
                                        stw_typed_range grads, stw_error *err);
    /** Add the squares of all gradients of the span table, which counts from the gpu arena. */
    STW_MUST_USE stw_status (*norm_add_spans)(stw_device *device, stw_stream stream,
                                              stw_error *err);
    /** Give the bins of both tiers as STW_NORM_COUNTERS normalised counters, or zeros if `counts`
     * is false (replicas). *counters is GPU memory for a GPU backend, else host memory; its content
     * is ready in the order of the stream, and the caller may sum it over ranks in place. norm_add
     * calls on host streams must have returned. */
    STW_MUST_USE stw_status (*norm_counters)(stw_device *device, stw_stream stream, bool counts,
                                             uint64_t **counters, stw_error *err);
    /** Compute norm and clip factor from the counters, in the order of the stream. The call does
     * not wait for the result. */
    STW_MUST_USE stw_status (*norm_factor)(stw_device *device, stw_stream stream, double clip_norm,
                                           stw_error *err);
    /** The results of norm_factor. It must be done: wait for an event after it, or synchronize. */
    void (*norm_result)(stw_device *device, double *norm, float *factor);

    /* ---- NVMe and values; all of these block ---- */

    /** Copy from the NVMe arena to the host arena, and verify its checksums: DISAGREE where they
     * differ. */
    STW_MUST_USE stw_status (*read)(stw_device *device, uint64_t host_offset, uint64_t nvme_offset,
                                    uint64_t bytes, stw_error *err);
    /** Copy from the host arena to the NVMe arena. */
    STW_MUST_USE stw_status (*write)(stw_device *device, uint64_t nvme_offset, uint64_t host_offset,
                                     uint64_t bytes, stw_error *err);
    /** Make the writes to an NVMe arena with two copies visible and durable. Until then, reads and
     * digests see the state of the last commit, and other writes (write, convert, seed_grads, zero)
     * are seen by nobody. A commit keeps all bytes that were not written since the last one. A
     * commit without writes changes only the step that the file names. A write counts at the next
     * commit, whichever movement issues it. Without an NVMe arena, or with one copy, this does
     * nothing: one copy is written in place. */
    STW_MUST_USE stw_status (*commit)(stw_device *device, uint64_t step, stw_error *err);
    /** The NVMe arena, for what concerns its file alone; NULL where there is none. */
    stw_nvme *(*nvme)(stw_device *device);
    /** Convert the to.n elements of `from_dtype` at `from`: to[i] = to.type(float(from[i])). On a
     * GPU stream it does not block, unless the target is NVMe. The source must not be NVMe. */
    STW_MUST_USE stw_status (*convert)(stw_device *device, stw_stream stream, stw_typed_range to,
                                       stw_location from, stw_dtype from_dtype, stw_error *err);
    /** The same for elements of the caller's, outside the arenas, which work on the GPU reaches;
     * `to` is in the gpu or host arena and the stream a GPU stream. It does not block. */
    STW_MUST_USE stw_status (*convert_from)(stw_device *device, stw_stream stream,
                                            stw_typed_range to, const void *from,
                                            stw_dtype from_dtype, stw_error *err);
    /** Write the seeded gradients of the global elements from `element` on. */
    STW_MUST_USE stw_status (*seed_grads)(stw_device *device, stw_typed_range to, uint64_t element,
                                          uint64_t seed, uint64_t step, stw_error *err);
    /** Write bytes of the caller's memory to the gpu or host arena. */
    STW_MUST_USE stw_status (*put)(stw_device *device, stw_location to, const void *from,
                                   uint64_t bytes, stw_error *err);
    /** Read bytes of the gpu or host arena into the caller's memory. */
    STW_MUST_USE stw_status (*get)(stw_device *device, void *to, stw_location from, uint64_t bytes,
                                   stw_error *err);
    /** Optional: page-lock memory of the caller's, or with `lock` false give that back, so that
     * `get` and `put` are as fast as the link. */
    STW_MUST_USE stw_status (*page_lock)(stw_device *device, void *address, uint64_t bytes,
                                         bool lock, stw_error *err);
    /** Set bytes to zero. */
    STW_MUST_USE stw_status (*zero)(stw_device *device, stw_location to, uint64_t bytes,
                                    stw_error *err);
    /** Add to *digest the digest of values, which are the global elements from `element` on. */
    STW_MUST_USE stw_status (*digest)(stw_device *device, stw_typed_range values, uint64_t element,
                                      uint64_t *digest, stw_error *err);
    /** Optional: measure the link. Copy `bytes` in each direction in the given shape and give the
     * seconds. Reads the host arena. Writes a buffer of its own, which the first call makes and
     * `info` does not count; with a ring, writes to the arena what it has read there. Blocking; not
     * while a step runs. */
    STW_MUST_USE stw_status (*link_seconds)(stw_device *device, const stw_link_shape *shape,
                                            uint64_t bytes, double *seconds, stw_error *err);

    /* ---- order between streams; events are numbered 0 .. n_events-1 ---- */

    /** Record an event after the work that the stream was given. */
    STW_MUST_USE stw_status (*record)(stw_device *device, stw_stream stream, uint32_t event,
                                      stw_error *err);
    /** Make a stream wait for a recorded event. Blocks the caller for host streams only. */
    STW_MUST_USE stw_status (*wait)(stw_device *device, stw_stream stream, uint32_t event,
                                    stw_error *err);
    /** Block the caller until a recorded event is reached. */
    STW_MUST_USE stw_status (*wait_host)(stw_device *device, uint32_t event, stw_error *err);
    /** Has a recorded event been reached? */
    STW_MUST_USE stw_status (*reached)(stw_device *device, uint32_t event, bool *out,
                                       stw_error *err);
    /** Make a GPU stream wait for all work that the caller has given a native stream of its own
     * (cudaStream_t; NULL: cudaStreamLegacy) so far. Nothing on the host backend. */
    STW_MUST_USE stw_status (*follow_native)(stw_device *device, stw_stream stream, void *native,
                                             stw_error *err);
    /** Make such a native stream wait for a recorded event. Nothing on the host backend. */
    STW_MUST_USE stw_status (*native_wait)(stw_device *device, void *native, uint32_t event,
                                           stw_error *err);
    /** Optional, together with mark_seconds: take the time in the order of a GPU stream. Marks are
     * numbered 0 .. n_marks-1. */
    STW_MUST_USE stw_status (*mark)(stw_device *device, stw_stream stream, uint32_t mark,
                                    stw_error *err);
    /** Seconds from one mark to another. Both must be reached. */
    STW_MUST_USE stw_status (*mark_seconds)(stw_device *device, uint32_t from, uint32_t to,
                                            double *seconds, stw_error *err);
    /** Block until the work of all streams is done. */
    STW_MUST_USE stw_status (*synchronize)(stw_device *device, stw_error *err);
    /** Address of a range of the gpu arena, for collectives: device memory with CUDA (NCCL), plain
     * memory on the host backend (MPI). NULL outside the arena. */
    void *(*device_address)(stw_device *device, uint64_t offset, uint64_t bytes);
    /** The native handle (cudaStream_t) of a GPU stream, for NCCL; NULL on the host backend. */
    void *(*native_stream)(stw_device *device, stw_stream stream);
} stw_backend;

/** Whether the GPU does the work of a stream; host threads do that of cpu, disk and disk_out. */
static inline bool stw_stream_is_gpu(stw_stream stream) {
    return stream != STW_STREAM_CPU && stream != STW_STREAM_DISK && stream != STW_STREAM_DISK_OUT;
}

extern const stw_backend stw_backend_host;
/** The CUDA backend; NULL if the program was built without it. */
const stw_backend *stw_backend_cuda_find(void);
/** Select a backend by name. @param name "auto" (CUDA if available, else host), "cuda" or "host"
 * @return NOT_BUILT_IN or DEVICE if "cuda" is not available, USAGE for other names */
STW_MUST_USE stw_status stw_backend_select(const char *name, const stw_backend **out,
                                           stw_error *err);

#endif
