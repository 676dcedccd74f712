/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the CUDA backend share: the device, its arenas, and the one way in which CUDA
 * runtime calls are made and their failures told. */
#ifndef STW_BACKEND_CUDA_DEVICE_H
#define STW_BACKEND_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cuda/kernels.h"
#include "backend/host/pool.h"
#include "backend/nvme.h"

/* ---- CUDA runtime calls ---- */

/** Make a CUDA runtime call, or leave for `out:` with an error that keeps the native code, its
 * name, the function and what it was for. Needs `status`, `err` and `out:`. With
 * STOWAGE_FAIL_CUDA_CALL=k in the environment the k-th such call of the process (from 1) is not
 * made and reports cudaErrorUnknown. */
#define STW_CUDA_TRY(call, purpose)                                                                \
    do {                                                                                           \
        cudaError_t cuda_code_ = stw_cuda_call_must_fail() ? cudaErrorUnknown : (call);            \
        if (cuda_code_ != cudaSuccess) {                                                           \
            status = stw_cuda_fail(err, cuda_code_, #call, purpose);                               \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/** DEVICE, or NO_RESOURCES where memory is out. @param call its text; only the function's name
 * shows
 */
stw_status stw_cuda_fail(stw_error *err, cudaError_t code, const char *call, const char *purpose);
/** Counts a call; true for the one that is to fail. */
bool stw_cuda_call_must_fail(void);
/** Fail the k-th call from now (0: none), instead of what the environment says; for tests. */
void stw_cuda_fail_call(uint64_t k);
/** How many calls were counted since the start or the last stw_cuda_fail_call. */
uint64_t stw_cuda_calls(void);

/** Bytes in use on a GPU, others' included, without making a context (through NVML); false where
 * NVML is missing or does not say. @param bus_id as cudaDeviceGetPCIBusId gives it */
bool stw_cuda_used_without_context(const char *bus_id, uint64_t *bytes);
/** The driver's version as text ("580.159.04") through NVML; "" where it is missing. */
void stw_cuda_driver_version(char *out, size_t out_size);

/* ---- page-locked host memory ---- */

#define STW_CUDA_REGISTER_BYTES (64ull << 30) /* of one cudaHostRegister; 512 GiB at once fails */

/** Anonymous memory of whole pages, huge where the system has them, touched by all threads and then
 * page-locked: ten times faster than cudaHostAlloc, and exact. */
typedef struct stw_cuda_pinned {
    unsigned char *data;    /* NULL while empty */
    uint64_t bytes;         /* usable */
    unsigned char *mapping; /* what munmap gets */
    uint64_t mapping_bytes;
    uint64_t registered; /* bytes page-locked so far, from `data` on */
} stw_cuda_pinned;

/** @param pinned filled; on failure still to be freed. NO_RESOURCES where the system refuses. */
STW_MUST_USE stw_status stw_cuda_pinned_new(stw_cuda_pinned *pinned, uint64_t bytes,
                                            stw_threads *threads, stw_error *err);
void stw_cuda_pinned_free(stw_cuda_pinned *pinned); /* all zero is fine */

/* ---- the device ---- */

/** Small device memory, made before anything is measured. */
typedef struct stw_cuda_scalars {
    stw_norm_bins bins;
    uint64_t digest;
} stw_cuda_scalars;

#define STW_CUDA_SCALARS_BYTES 4096        /* stw_cuda_scalars, and room to warm up in */
#define STW_CUDA_BOUNCE_BYTES (4ull << 20) /* through which NVMe ranges are looked at */

/** What a wait on an event has to do. */
enum { STW_CUDA_EVENT_NEVER, STW_CUDA_EVENT_ON_GPU, STW_CUDA_EVENT_DONE };

struct stw_device {
    stw_device_config config; /* nvme_folder is not kept */
    int ordinal;
    uint32_t sms;
    bool host_on_device; /* kernels may use host arena addresses as they are */
    stw_device_info info;
    stw_threads *threads;
    cudaStream_t streams[STW_N_STREAMS]; /* NULL for host streams */
    cudaStream_t side; /* copies that were handed in on a host stream, and small reads */
    cudaEvent_t *events;
    atomic_uchar *event_state; /* STW_CUDA_EVENT_* */
    uint32_t n_events;         /* made so far */
    unsigned char *gpu;        /* the GPU arena */
    stw_cuda_pinned host;      /* the host arena */
    stw_nvme *nvme;
    unsigned char *bounce;     /* aligned, where there is an NVMe arena */
    stw_cuda_scalars *scalars; /* in device memory */
    stw_cuda_scalars *staged;  /* page-locked, where they arrive */
    atomic_uint norm_streams;  /* bit s: squares were added on GPU stream s since the reset */
    pthread_mutex_t mutex;     /* of host_bins, bounce and staged */
    stw_norm_bins host_bins;
};

/** Check limits, then make everything (memory.c). */
STW_MUST_USE stw_status stw_cuda_device_open(const stw_device_config *config, stw_device **out,
                                             stw_error *err);
void stw_cuda_device_close(stw_device *device);
/** Make the device current for the calling thread. */
STW_MUST_USE stw_status stw_cuda_device_use(const stw_device *device, stw_error *err);
/** Address of a range of the GPU or host arena; BUG outside it or for NVMe. */
STW_MUST_USE stw_status stw_cuda_range(const stw_device *device, stw_tier tier, uint64_t offset,
                                       uint64_t bytes, unsigned char **out, stw_error *err);
/** BUG where a range is outside a tier's arena. */
STW_MUST_USE stw_status stw_cuda_check_range(const stw_device *device, stw_tier tier,
                                             uint64_t offset, uint64_t bytes, stw_error *err);
/** Address of n floats; BUG outside the arena, and for an offset that is not that of a float. */
STW_MUST_USE stw_status stw_cuda_float_range(const stw_device *device, stw_tier tier,
                                             uint64_t offset, uint64_t n, float **out,
                                             stw_error *err);
/** Wait for everything that was issued on h2d, compute and d2h, and make the device current. (The
 * comm stream may hold a collective, for which only stw_comm_wait waits.) */
STW_MUST_USE stw_status stw_cuda_quiesce(stw_device *device, stw_error *err);

/* ---- slots of the table (values.c) ---- */

STW_MUST_USE stw_status stw_cuda_device_convert(stw_device *device, stw_stream stream, stw_tier to,
                                                uint64_t to_offset, stw_tier from,
                                                uint64_t from_offset, stw_dtype from_dtype,
                                                uint64_t n, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_seed_grads(stw_device *device, stw_tier tier,
                                                   uint64_t offset, uint64_t n, uint64_t element,
                                                   uint64_t seed, uint64_t step, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_zero(stw_device *device, stw_tier tier, uint64_t offset,
                                             uint64_t bytes, stw_error *err);
STW_MUST_USE stw_status stw_cuda_device_digest(stw_device *device, stw_tier tier, uint64_t offset,
                                               uint64_t n, uint64_t element, uint64_t *sum,
                                               stw_error *err);

#endif
