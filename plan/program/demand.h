/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation asks of each resource, in seconds of having it alone: the one place where bytes
 * become time. The planner's rows sum demands, the simulator shares resources by them.
 *
 * Resources that all ranks of a node share (host memory, DMA in all, CPU, disk, NIC is per GPU) are
 * charged for all ranks of the node at once, as if every rank issued the operation together. */
#ifndef STW_PLAN_DEMAND_H
#define STW_PLAN_DEMAND_H

#include "plan/program/program.h"

#define STW_RESOURCE_TABLE(X)                                                                      \
    X(GPU, "gpu_compute")                                                                          \
    X(HBM, "hbm")                                                                                  \
    X(PCIE_UP, "pcie_up")                                                                          \
    X(PCIE_DOWN, "pcie_down")                                                                      \
    X(PCIE, "pcie_both")                                                                           \
    X(DMA, "host_dma")                                                                             \
    X(DMA_UP, "host_dma_up")     /* one direction of all GPUs' copies */                           \
    X(DMA_DOWN, "host_dma_down") /* the other */                                                   \
    X(HOST_MEMORY, "host_memory")                                                                  \
    X(CPU, "cpu")                                                                                  \
    X(NVLINK, "nvlink")                                                                            \
    X(NIC, "nic")                                                                                  \
    X(DISK, "disk") /* reads and writes together */                                                \
    X(DISK_READ, "disk_read")                                                                      \
    X(DISK_WRITE, "disk_write")

#define X(name, text) STW_RESOURCE_##name,
typedef enum stw_resource { STW_RESOURCE_TABLE(X) STW_N_RESOURCES } stw_resource;
#undef X

typedef struct stw_demand {
    double seconds[STW_N_RESOURCES];
    double startup_s; /* before the first byte moves; overlaps with other operations */
    double priority;  /* against others where they share a resource; 0 stands for 1 */
} stw_demand;

const char *stw_resource_name(stw_resource resource);
/** Demand of a copy of `bytes` between tiers (gpu-host either way, host-nvme either way). */
void stw_demand_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                     stw_demand *out);
/** The same through a ring of CPU buckets, whose bytes were written a moment ago or will be read in
 * a moment: most of them stay in the CPU's caches.
 * @param ring_bytes of the whole ring */
void stw_demand_cached_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                            uint64_t ring_bytes, stw_demand *out);
/** Share of what passes through such a ring that the caches do not hold, 0 to 1: the rings of all
 * ranks of the node have to fit, beside what else passes through. */
double stw_ring_missed(const stw_job *job, uint64_t ring_bytes);
/** Demand of the update of `params` elements by an engine, without the copies that a ring makes.
 * @param ring_bytes of the whole ring that a CPU update's bucket lies in; 0: all operands lie in
 *        memory */
void stw_demand_update(const stw_job *job, stw_update update, uint64_t params, uint64_t ring_bytes,
                       stw_demand *out);
/** Demand of any operation of a program. */
void stw_demand_op(const stw_job *job, const stw_op *op, stw_demand *out);
/** Seconds when nothing else runs: the largest demand plus the start-up. */
double stw_demand_alone_s(const stw_demand *demand);

#endif
