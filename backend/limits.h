/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine lets a process use: memory, cgroup limits, page-locking, cores. Read from /proc
 * and /sys under a root folder, so that tests can show it any machine. Pure reads, any thread. */
#ifndef STW_BACKEND_LIMITS_H
#define STW_BACKEND_LIMITS_H

#include <stdint.h>

#include "core/status.h"

typedef struct stw_limits {
    uint64_t memory_bytes;        /* MemTotal; some virtual machines let it grow with use */
    uint64_t available_bytes;     /* MemAvailable; 0 where the kernel does not say */
    uint64_t cgroup_bytes;        /* smallest limit up to the cgroup root; STW_UNLIMITED: none */
    uint64_t page_lock_bytes;     /* RLIMIT_MEMLOCK's hard limit, which a process may raise its own
                                     to; STW_UNLIMITED: none, or CAP_IPC_LOCK */
    uint64_t address_space_bytes; /* RLIMIT_AS; STW_UNLIMITED */
    uint32_t cores;               /* that this process may run on, cgroup quota included; >= 1 */
    uint32_t affinity_cores;      /* the same without the quota; >= 1 */
    uint32_t online_cores;        /* of the machine; 0 where it is not said */
    char cgroup_file[256];        /* the file that sets cgroup_bytes; "" where none does */
    char huge_pages[16];          /* transparent ones: "always", "madvise", "never"; "": unknown */
} stw_limits;

/** Read the limits. What is missing limits nothing, proc/meminfo excepted: IO, and so is a file for
 * which this process has no descriptor or memory left.
 * @param root "" for this machine, else a folder that holds `proc` and `sys`: resource limits and
 * cores then come from its proc/self/limits and proc/self/status */
STW_MUST_USE stw_status stw_limits_read(const char *root, stw_limits *out, stw_error *err);

/** Usable host bytes: the smaller of memory and cgroup limit. */
uint64_t stw_limits_usable_bytes(const stw_limits *limits);

/** Refuse (NO_RESOURCES, naming limit, need and what is allowed) what the cgroup or a resource
 * limit forbids; more than MemTotal only warns. @param host_bytes all ranks of the node together
 * @param page_locked_bytes of this process; 0 where nothing is page-locked */
STW_MUST_USE stw_status stw_limits_check(const stw_limits *limits, uint64_t host_bytes,
                                         uint64_t page_locked_bytes, stw_error *err);

/** Warn of what makes training slow or leaves memory unused without saying so: an affinity mask or
 * a quota smaller than the machine, a control group or RLIMIT_MEMLOCK far below the memory, no
 * transparent huge pages, OMP_NUM_THREADS below the cores.
 * @param omp_num_threads the variable's value, or NULL
 * @return how many warnings there were */
uint32_t stw_limits_warn(const stw_limits *limits, const char *omp_num_threads);

#endif
