/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the GPU's calibration. Each leaves what it could not measure as it was. */
#ifndef STW_BACKEND_CUDA_PROBE_H
#define STW_BACKEND_CUDA_PROBE_H

#include "backend/probe.h"

/** Visible GPUs, counted in a process of its own so that this one has not used CUDA yet; -1 where
 * that fails. */
int stw_cuda_probe_count(void);

/** What one process per GPU sees: fills gpu.comm, nvlink and host.process. Only before this process
 * uses CUDA, with gpus > 1. A failure is a warning. */
void stw_cuda_probe_comm(stw_cluster *out);

/** Rates of copies: pcie.*, gpu.hbm, host.dma, host.bandwidth. */
STW_MUST_USE stw_status stw_cuda_probe_copies(stw_cluster *out, stw_error *err);

/** NCCL's version as ncclGetVersion gives it (22809); 0 where it cannot be opened. */
int stw_cuda_nccl_version(void);

#endif
