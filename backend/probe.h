/* SPDX-License-Identifier: Apache-2.0 */
/* Describe this machine as a cluster of one node: what it has, and, where asked, what it does,
 * measured in less than twenty seconds. Without a GPU (or without CUDA in the program) `gpus` is 0
 * and gpu.memory is a quarter of the usable host memory, in which the host backend plays one rank's
 * GPU; host.limit is what remains.
 *
 * With several GPUs a calibration starts one process per GPU (fork), as a run does, to see what
 * NCCL takes and does: call it before this process uses CUDA or starts threads. */
#ifndef STW_BACKEND_PROBE_H
#define STW_BACKEND_PROBE_H

#include "backend/host/pool.h"
#include "plan/cluster.h"

/** @param measure false: only sizes are read; rates are those measured on machines of this kind
 * where the GPU is known, else the defaults. Fails DEVICE where a GPU does not work. */
STW_MUST_USE stw_status stw_machine_probe(stw_cluster *out, bool measure, stw_error *err);

/* ---- parts, shared with backend/cuda ---- */

/** Fill everything that concerns GPUs and their links and, measuring, host.dma and host.bandwidth
 * (CPU and GPUs together). *found is false and `out` untouched where there is no GPU. backend/cuda
 * defines it; a weak one that finds nothing stands in for it. */
STW_MUST_USE stw_status stw_probe_gpus(stw_cluster *out, bool measure, bool *found, stw_error *err);
/** Seconds of a clock that only goes forward. */
double stw_probe_now_s(void);
/** VmRSS of this process; 0 where unknown. */
uint64_t stw_probe_resident_bytes(void);

/** Whole pages of memory, touched by the threads that will use them; NULL where memory is out. */
unsigned char *stw_probe_map(stw_threads *threads, uint64_t bytes);
void stw_probe_unmap(unsigned char *memory, uint64_t bytes); /* NULL is fine */
/** Copies from one mapped buffer to another, past the caches, by all threads, for `seconds`.
 * @return bytes read and written per second */
double stw_probe_copy_bps(stw_threads *threads, unsigned char *to, const unsigned char *from,
                          uint64_t bytes, double seconds);

#endif
