/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores a rank's threads run on: those that the process may use, near its GPU's memory where
 * the system says which those are, and a fair part of them where ranks share a node. Memory that
 * such threads touch first lies near them too. Plain values, any thread. */
#ifndef STW_BACKEND_HOST_CPUS_H
#define STW_BACKEND_HOST_CPUS_H

#include <stdint.h>

#define STW_MAX_CPUS 1024

typedef struct stw_cpus {
    uint32_t n;
    uint16_t cpu[STW_MAX_CPUS]; /* ascending */
} stw_cpus;

/** The cores of this process (affinity); at least one. */
void stw_cpus_allowed(stw_cpus *out);
/** Keep those of the NUMA node of a PCI device ("0000:17:00.0", as cudaDeviceGetPCIBusId writes
 * it); all stay where the system does not say, or none would be left.
 * @param sysfs where /sys is; NULL: /sys */
void stw_cpus_near_pci(stw_cpus *cpus, const char *bus_id, const char *sysfs);
/** Keep the index-th of `of` parts of equal size; all stay where there are fewer cores than parts.
 */
void stw_cpus_share(stw_cpus *cpus, uint32_t index, uint32_t of);
/** Keep the calling thread on these cores; nothing where there are none. A wish: where the system
 * refuses, the thread runs wherever it may. */
void stw_cpus_keep(const stw_cpus *cpus);
/** NUMA nodes that have cores; at least 1. @param sysfs as above */
uint32_t stw_cpus_numa_nodes(const char *sysfs);

#endif
