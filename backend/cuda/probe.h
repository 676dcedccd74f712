/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the GPU's calibration. Values that a part cannot measure stay unchanged. */
#ifndef STW_BACKEND_CUDA_PROBE_H
#define STW_BACKEND_CUDA_PROBE_H

#include "backend/cuda/device.h"
#include "backend/probe/probe.h"

#define STW_CUDA_PROBE_MOST_GPUS 16

/** Returns the number of visible GPUs, counted in a separate process so that this one stays without
 * CUDA; -1 on failure. */
int stw_cuda_probe_count(void);

/** Measure with one process per GPU: fills gpu.comm, nvlink and, as host.process_comm, the resident
 * bytes of a whole process with NCCL. Call it before this process uses CUDA, with gpus > 1. A
 * failure is a warning. */
void stw_cuda_probe_comm(const stw_probe *probe, stw_cluster *out);

/** Measure the rates of the links: pcie.*, host.dma*, host.page_lock, host.bandwidth; and with
 * stw_cuda_probe_work those of the GPU's memory. */
STW_MUST_USE stw_status stw_cuda_probe_copies(const stw_probe *probe, stw_cluster *out,
                                              stw_error *err);

/** Returns NCCL's version as from ncclGetVersion (22809); 0 if it cannot be opened. */
int stw_cuda_nccl_version(void);

/* ---- one GPU's buffers and streams, shared by the parts ---- */

#define STW_CUDA_PROBE_SLOTS 4 /* largest copies of GPU memory per direction, used in turn */

typedef struct stw_cuda_probe_gpu {
    int ordinal;
    uint32_t sms;
    bool host_on_device;     /* kernels may use page-locked addresses as they are */
    uint64_t largest;        /* bytes of the largest copy */
    uint64_t host_bytes;     /* page-locked, in each direction; a multiple of `largest` */
    stw_cuda_pinned host;    /* the part copied up, then the part copied down */
    unsigned char *memory;   /* SLOTS x largest up, then as much down */
    cudaStream_t streams[2]; /* up, down */
    cudaEvent_t start, stop; /* timed events */
    cudaEvent_t batch[2][2]; /* per stream, alternating; a thread that waits for one sleeps */
} stw_cuda_probe_gpu;

/** What one GPU's kernels do: gpu.hbm, gpu.boxes, gpu.update, gpu.norm, gpu.norm_bf16 and
 * pcie.direct.
 * What fails is a warning. */
void stw_cuda_probe_work(const stw_probe *probe, stw_cuda_probe_gpu *gpu, stw_cluster *out);

/** host.cpu_adamw_ring: CPU updates of all ranks during the copies that fill and empty their rings.
 * Does nothing if the teams are not the ranks of the GPUs.
 * @param gpus [n] */
STW_MUST_USE stw_status stw_cuda_probe_ring(const stw_probe *probe, stw_cuda_probe_gpu *gpus,
                                            uint32_t n, stw_probe_teams *teams, stw_cluster *out,
                                            stw_error *err);

/* ---- collectives that Stowage's transports lack, in the processes of probe_comm.c ---- */

typedef struct stw_cuda_probe_peers {
    uint32_t rank, world;
    /** Send `bytes` of rank 0 to every rank. Collective. */
    stw_status (*share)(void *share_state, void *data, uint32_t bytes, stw_error *err);
    void *share_state;
    unsigned char *memory; /* GPU memory */
    uint64_t bytes;
    cudaStream_t stream;
} stw_cuda_probe_peers;

#define STW_CUDA_PROBE_COLLECTIVES 18 /* samples that the next one gives, at most */

/** Measure the bytes of a separate communicator, and all-gather, reduce-scatter, all-reduce and a
 * scatter by send and receive, by size. If a call hangs, its process is killed.
 * @return number of samples written */
uint32_t stw_cuda_probe_collectives(const stw_cuda_probe_peers *peers, stw_sample *out,
                                    stw_error *err);

#endif
