/* SPDX-License-Identifier: Apache-2.0 */
/* How weights files are read: what one thread takes at a time, and how many threads a rank has for
 * it. The executor and the calibration of file_read go by it. Pure functions; any thread. */
#ifndef STW_BACKEND_READERS_H
#define STW_BACKEND_READERS_H

#include <stdint.h>

/* Constants: bench/results/constants.md. */
#define STW_READ_BYTES (512u << 10)
#define STW_MAX_READERS 16u

/** Threads of each of `ranks` ranks of a node that read at the same time. Some cores are left to
 * the threads that issue copies; several ranks together are limited by memory, not by cores.
 * @param ranks at least 1 */
static inline uint32_t stw_reader_threads(uint32_t cores, uint32_t ranks) {
    uint32_t threads = ranks > 1 ? cores / ranks / 2 : cores - cores / 4;
    return threads < 1 ? 1 : threads > STW_MAX_READERS ? STW_MAX_READERS : threads;
}

#endif
