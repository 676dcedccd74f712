/* SPDX-License-Identifier: Apache-2.0 */
/* The demand of an operation: the seconds for which it needs each resource, if it has the resource
 * alone. Only this file converts bytes to time. The planner's rows sum demands; the simulator
 * divides resources by them.
 *
 * An operation charges a resource that the ranks of a node share (host memory, host DMA, CPU, disk;
 * not the NIC, which is per GPU) for all ranks of the node, as if every rank issued it together,
 * unless only one rank issues it (stw_op.ranks). */
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
    X(DMA_UP, "host_dma_up")     /* copies of all GPUs, host to device */                          \
    X(DMA_DOWN, "host_dma_down") /* the same, device to host */                                    \
    X(HOST_MEMORY, "host_memory")                                                                  \
    X(CPU, "cpu")                                                                                  \
    X(NVLINK, "nvlink")                                                                            \
    X(NIC, "nic")                                                                                  \
    X(DISK, "disk") /* reads and writes together */                                                \
    X(DISK_READ, "disk_read")                                                                      \
    X(DISK_WRITE, "disk_write")                                                                    \
    X(PAGE_CACHE, "page_cache") /* reads of page-cached files */

#define X(name, text) STW_RESOURCE_##name,
typedef enum stw_resource { STW_RESOURCE_TABLE(X) STW_N_RESOURCES } stw_resource;
#undef X

typedef struct stw_demand {
    double seconds[STW_N_RESOURCES];
    double startup_s; /* latency before the first byte; overlaps with other operations */
    double priority;  /* weight when sharing a resource; 0 means 1 */
} stw_demand;

const char *stw_resource_name(stw_resource resource);
/** Demand of a copy between tiers (gpu and host, or host and nvme, in either direction). */
void stw_demand_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                     stw_demand *out);
/** Demand of a copy through a ring of CPU buckets. The ring's data mostly stays in the CPU's
 * caches.
 * @param ring_bytes see stw_op.ring_bytes */
void stw_demand_cached_copy(const stw_job *job, stw_tier from, stw_tier to, uint64_t bytes,
                            uint64_t ring_bytes, stw_demand *out);
/** Share of a ring's traffic that misses the CPU's caches, 0 to 1. The rings of all ranks of a node
 * share the caches.
 * @param ring_bytes bytes of one rank, see stw_op.ring_bytes */
double stw_ring_missed(const stw_job *job, uint64_t ring_bytes);
/** Demand of an update of `params` elements, without the copies to and from a ring.
 * @param ring_bytes for a CPU update, see stw_op.ring_bytes; 0: all operands are in host memory */
void stw_demand_update(const stw_job *job, stw_update update, uint64_t params, uint64_t ring_bytes,
                       stw_demand *out);
/** False for operations that never take time, such as allocs and frees. */
bool stw_op_takes_time(const stw_op *op);
/** Demand of one operation of a program. */
void stw_demand_op(const stw_job *job, const stw_op *op, stw_demand *out);
/** Add the demands of all operations of a movement. @param seconds [STW_N_RESOURCES] */
void stw_demand_add_movement(const stw_job *job, const stw_program *program,
                             const stw_movement *movement, double *seconds);
/** Duration in seconds if no other operation runs: start-up plus the largest demand. */
double stw_demand_alone_s(const stw_demand *demand);

/** Returns the bytes per second that one rank reads from page-cached weights files; 0: unknown. */
double stw_demand_reader_bps(const stw_job *job);

#endif
