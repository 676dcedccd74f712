/* SPDX-License-Identifier: Apache-2.0 */
/* A small pool of threads for CPU work on large arrays. Any thread may hand work in, several at
 * once: the workers help whoever came first, and who hands work in works on it too. */
#ifndef STW_BACKEND_HOST_POOL_H
#define STW_BACKEND_HOST_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/host/cpus.h"
#include "core/status.h"

typedef struct stw_threads stw_threads;
/** Work on items [first, first + count) of an array; called from several threads at once. */
typedef void (*stw_threads_fn)(void *arg, uint64_t first, uint64_t count);

/** @param n threads that work together, including the caller of stw_threads_for; 0: one per core
 * that this process may use */
STW_MUST_USE stw_status stw_threads_new(uint32_t n, stw_threads **out, stw_error *err);
/** The same with worker i bound to cpus->cpu[i modulo n]; the caller of stw_threads_for is not
 * bound.
 * @param cpus NULL: as stw_threads_new */
STW_MUST_USE stw_status stw_threads_new_on(uint32_t n, const stw_cpus *cpus, stw_threads **out,
                                           stw_error *err);
/** End the threads; no work may be running. NULL is fine. */
void stw_threads_free(stw_threads *threads);
uint32_t stw_threads_count(const stw_threads *threads);
/** Divide [0, n) into pieces of `grain` items (the last one shorter), run `fn` on all, return when
 * done. `threads` NULL: only the caller works. Never fails. */
void stw_threads_for(stw_threads *threads, uint64_t n, uint64_t grain, stw_threads_fn fn,
                     void *arg);
/** Keep the calling thread, which submits work repeatedly, on the core that the workers leave free.
 * Does nothing if the workers are not bound to cores. */
void stw_threads_keep_caller(const stw_threads *threads);
/** Returns the cores that this process may use (affinity), at least 1. */
uint32_t stw_threads_cores(void);

#endif
