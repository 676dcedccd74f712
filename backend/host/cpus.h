/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a rank's threads: cores that the process may use, near the rank's GPU if the system
 * tells which, and a fair part of them if ranks share a node. Memory that such threads touch first
 * is near them, too. Plain values, any thread. */
#ifndef STW_BACKEND_HOST_CPUS_H
#define STW_BACKEND_HOST_CPUS_H

#include <stdint.h>

#define STW_MAX_CPUS 1024

typedef struct stw_cpus {
    uint32_t n;
    uint16_t cpu[STW_MAX_CPUS]; /* ascending */
} stw_cpus;

/** Give the cores of this process (affinity); at least one. */
void stw_cpus_allowed(stw_cpus *out);
/** Keep the cores of the NUMA node of a PCI device ("0000:17:00.0", as from cudaDeviceGetPCIBusId).
 * All stay if the system does not tell the node, or if none would be left.
 * @param sysfs path of /sys; NULL: /sys */
void stw_cpus_near_pci(stw_cpus *cpus, const char *bus_id, const char *sysfs);
/** Keep the index-th of `of` equal parts. All stay if there are fewer cores than parts. */
void stw_cpus_share(stw_cpus *cpus, uint32_t index, uint32_t of);
/** Keep the calling thread on these cores; does nothing if there are none. If the system refuses,
 * the thread stays unbound. */
void stw_cpus_keep(const stw_cpus *cpus);
/** Returns the number of NUMA nodes with cores; at least 1. @param sysfs as above */
uint32_t stw_cpus_numa_nodes(const char *sysfs);

#endif
