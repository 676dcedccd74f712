/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the CUDA backend: the device, its arenas, and the macro that makes CUDA
 * runtime calls and reports their failures. */
#ifndef STW_BACKEND_CUDA_DEVICE_H
#define STW_BACKEND_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cuda/kernels.h"
#include "backend/norm.h"
#include "backend/tiers.h"

/* ---- CUDA runtime calls ---- */

/* Tests compile this folder with calls that can fail (tests/faults/fail_cuda.h). */
#ifndef STW_CUDA_CALL
#define STW_CUDA_CALL(call) (call)
#define STW_NCCL_CALL(call) (call)
#endif

/** Make a CUDA runtime call. On failure go to `out:` with an error that has the native code, its
 * name, the function and the purpose. Needs `status`, `err` and `out:`. */
#define STW_CUDA_TRY(call, purpose)                                                                \
    do {                                                                                           \
        cudaError_t cuda_code_ = STW_CUDA_CALL(call);                                              \
        if (cuda_code_ != cudaSuccess) {                                                           \
            status = stw_cuda_fail(err, cuda_code_, #call, purpose);                               \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/** Returns DEVICE, or NO_RESOURCES if memory is exhausted.
 * @param call text of the call; the error shows only the function's name */
stw_status stw_cuda_fail(stw_error *err, cudaError_t code, const char *call, const char *purpose);

/** Give the used bytes of a GPU, other processes included, through NVML and without making a
 * context; false if NVML is missing or does not tell.
 * @param bus_id as cudaDeviceGetPCIBusId gives it */
bool stw_cuda_used_without_context(const char *bus_id, uint64_t *bytes);
/** Write the driver's version ("580.159.04") from NVML; "" if NVML is missing. */
void stw_cuda_driver_version(char *out, size_t out_size);

/* ---- page-locked host memory ---- */

/* Bytes of one cudaHostRegister call (512 GiB at once fails): small enough that one piece is
 * page-locked while the next is touched. A CUDA copy must not cross a piece's end. */
#define STW_CUDA_REGISTER_BYTES (2ull << 30)

/** Anonymous memory of whole pages, huge pages if the system has them. Threads touch it while it is
 * page-locked. This is faster than cudaHostAlloc and takes no additional page. */
typedef struct stw_cuda_pinned {
    unsigned char *data;    /* NULL while empty */
    uint64_t bytes;         /* usable */
    unsigned char *mapping; /* argument of munmap; NULL: the memory is the caller's */
    uint64_t mapping_bytes;
    uint64_t registered; /* bytes page-locked so far, from `data` on */
} stw_cuda_pinned;

/** Allocate memory, page-locked by the calling thread's current device; phases are logged (debug).
 * NO_RESOURCES if the system refuses.
 * @param pinned filled; must be freed also on failure */
STW_MUST_USE stw_status stw_cuda_pinned_new(stw_cuda_pinned *pinned, uint64_t bytes,
                                            stw_threads *threads, stw_error *err);
/** The same; the thread that is not in the pool also touches memory on these cores.
 * @param cpus NULL, or empty: any cores */
STW_MUST_USE stw_status stw_cuda_pinned_new_on(stw_cuda_pinned *pinned, uint64_t bytes,
                                               stw_threads *threads, const stw_cpus *cpus,
                                               stw_error *err);
/** Inspect memory that the caller owns: whether all of it is page-locked, and whether kernels can
 * use its host address (`mapped`; true if it is not page-locked yet). USAGE for other kinds of
 * memory, or if only a part is page-locked. */
STW_MUST_USE stw_status stw_cuda_pinned_look(unsigned char *address, uint64_t bytes, bool *locked,
                                             bool *mapped, stw_error *err);
/** Use such memory; page-lock it unless it is already. Freeing only undoes the page-locking. */
STW_MUST_USE stw_status stw_cuda_pinned_take(stw_cuda_pinned *pinned, unsigned char *address,
                                             uint64_t bytes, bool locked, stw_error *err);
void stw_cuda_pinned_free(stw_cuda_pinned *pinned); /* all zero is fine */
/** Returns the bytes from offset `at` of such memory to the end of its page-locked piece. */
static inline uint64_t stw_cuda_to_piece_end(uint64_t at) {
    return STW_CUDA_REGISTER_BYTES - at % STW_CUDA_REGISTER_BYTES;
}

/* ---- the device ---- */

/** The result of norm_factor. */
typedef struct stw_cuda_clip {
    double norm;
    float factor;
    float unused;
} stw_cuda_clip;

/** Small device memory, made before anything is measured. */
typedef struct stw_cuda_scalars {
    stw_norm_bins bins; /* squares that GPU streams added */
    uint64_t counters[STW_NORM_COUNTERS];
    stw_cuda_clip clip;
    uint64_t digest;
} stw_cuda_scalars;

/** Small page-locked memory. The GPU may still read the host's bins of one step while the next step
 * begins. Therefore the bins alternate between two slots, and a slot's event tells when it was
 * read. */
#define STW_CUDA_BINS_SLOTS 2
typedef struct stw_cuda_staged {
    stw_norm_bins host_bins[STW_CUDA_BINS_SLOTS];
    stw_cuda_clip clip; /* of the last finished norm_factor */
    uint64_t digest;
} stw_cuda_staged;

/** Queued tables of spans alternate, too: one is copied while the next is written. */
#define STW_CUDA_SPANS_SLOTS 3

#define STW_CUDA_SCALARS_BYTES 8192 /* scalars or staged, and room to warm up in */

/** What a wait on an event does. */
enum { STW_CUDA_EVENT_NEVER, STW_CUDA_EVENT_ON_GPU, STW_CUDA_EVENT_DONE };

typedef struct stw_cuda_link stw_cuda_link; /* link.c */

struct stw_device {
    stw_tiers tiers; /* first (backend/tiers.h); its spans: a page-locked table of span_slots */
    stw_device_config config; /* nvme_folder is not kept */
    int ordinal;
    char bus_id[32]; /* "0000:17:00.0" */
    bool fetches;    /* stw_cuda_fetches for its node */
    uint32_t sms;
    bool host_on_device; /* kernels may use host arena addresses as they are */
    stw_device_info info;
    stw_cpus cpus;                       /* cores of the threads; none: any cores */
    cudaStream_t streams[STW_N_STREAMS]; /* NULL for host streams; the caller's as in config */
    cudaStream_t side;                   /* copies issued on a host stream, and small reads */
    cudaEvent_t *events;
    atomic_uchar *event_state; /* STW_CUDA_EVENT_* */
    uint32_t n_events;         /* made so far */
    cudaEvent_t *marks;        /* timed events */
    uint32_t n_marks;          /* made so far */
    stw_cuda_pinned host;      /* the host arena */
    unsigned char *from_gpu;   /* STW_BOUNCE_BYTES, buffer for GPU data on its way to an NVMe
                                  arena */
    stw_cuda_scalars *scalars; /* in device memory */
    stw_cuda_staged *staged;   /* page-locked */
    stw_span *spans_on_gpu;    /* room for config.n_spans in device memory */
    stw_span *span_slots[STW_CUDA_SPANS_SLOTS]; /* page-locked; one unless spans are outside */
    cudaEvent_t spans_read[STW_CUDA_SPANS_SLOTS];
    uint64_t n_queued;       /* number of queue_spans calls, which selects the slot */
    cudaEvent_t join;        /* joins a stream of the caller with one of these */
    atomic_bool has_factor;  /* norm_factor was called since the device was opened */
    pthread_mutex_t mutex;   /* protects host_bins, from_gpu, staged and the members below */
    stw_norm_bins host_bins; /* squares that host streams added */
    cudaEvent_t bins_read[STW_CUDA_BINS_SLOTS];
    uint64_t n_counted;  /* number of norm_counters calls, which selects the slot */
    stw_cuda_link *link; /* NULL before the first link_seconds */
};

/* open.c */

/** Check limits, then open the device and allocate everything. */
STW_MUST_USE stw_status stw_cuda_device_open(const stw_device_config *config, stw_device **out,
                                             stw_error *err);
void stw_cuda_device_close(stw_device *device);
/* device.c */

/** Make the device current for the calling thread. */
STW_MUST_USE stw_status stw_cuda_device_use(const stw_device *device, stw_error *err);
/** Give free and total bytes of the current GPU. */
STW_MUST_USE stw_status stw_cuda_memory(uint64_t *free_bytes, uint64_t *total_bytes,
                                        stw_error *err);
/** Wait for all work on h2d, compute and d2h, and make the device current. (The comm stream may
 * have a collective, for which only stw_comm_wait waits.) */
STW_MUST_USE stw_status stw_cuda_quiesce(stw_device *device, stw_error *err);

/* ---- slots of the table ---- */

/* values.c */
STW_MUST_USE stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream,
                                                stw_typed_range to, stw_location from,
                                                stw_dtype from_dtype, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_seed_grads(stw_device *device, stw_typed_range to,
                                                   uint64_t element, uint64_t seed, uint64_t step,
                                                   stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_put(stw_device *device, stw_location to, const void *from,
                                            uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_zero(stw_device *device, stw_location to, uint64_t bytes,
                                             stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_digest(stw_device *device, stw_typed_range values,
                                               uint64_t element, uint64_t *sum, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_convert_from(stw_device *device, stw_stream stream,
                                                     stw_typed_range to, const void *from,
                                                     stw_dtype from_dtype, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_get(stw_device *device, void *to, stw_location from,
                                            uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_page_lock(stw_device *device, void *address, uint64_t bytes,
                                                  bool lock, stw_error *err);
/* bound.c */
STW_MUST_USE stw_status stw_cuda_device_queue_spans(stw_device *device, stw_stream stream,
                                                    const stw_span *spans, uint32_t n,
                                                    stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_norm_add_spans(stw_device *device, stw_stream stream,
                                                       stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_follow_native(stw_device *device, stw_stream stream,
                                                      void *native, stw_error *err);
/* link.c */
STW_MUST_USE stw_status stw_cuda_device_link_seconds(stw_device *device,
                                                     const stw_link_shape *shape, uint64_t bytes,
                                                     double *seconds, stw_error *err);
/** Returns the GPU bytes that link_seconds allocated; NULL is fine. */
uint64_t stw_cuda_link_gpu_bytes(const stw_cuda_link *link);
uint64_t stw_cuda_link_host_bytes(const stw_cuda_link *link); /* the same for page-locked bytes */
void stw_cuda_link_free(stw_cuda_link *link);                 /* NULL is fine */

#endif
