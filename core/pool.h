/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of small objects that are freed together. A model, a spec or a plan owns one pool, in
 * which everything that it points to is allocated. Not thread-safe: one thread at a time. */
#ifndef STW_CORE_POOL_H
#define STW_CORE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct stw_pool stw_pool;

/** A new, empty pool; NULL if out of memory. Free it with stw_pool_free. */
stw_pool *stw_pool_new(void);
/** Free the pool and everything in it. NULL is accepted. */
void stw_pool_free(stw_pool *pool);
/** `size` zeroed bytes, aligned for any type; NULL if out of memory. Size 0 gives a valid
 * pointer. */
void *stw_pool_alloc(stw_pool *pool, size_t size);
/** Has the pool ever had no memory? For code that makes many strings and asks once, at the end. */
bool stw_pool_has_failed(const stw_pool *pool);
/** n zeroed elements of `size` bytes; NULL if out of memory or if n * size overflows. */
void *stw_pool_array(stw_pool *pool, size_t n, size_t size);
/** A copy of a string (NULL gives NULL). */
char *stw_pool_string(stw_pool *pool, const char *text);
/** printf into the pool; NULL if out of memory. */
char *stw_pool_printf(stw_pool *pool, const char *format, ...) STW_PRINTF(2, 3);
/** Grow an array of the pool. Returns an array of at least `need` elements with the first `used`
 * copied, and updates *capacity. NULL if out of memory. */
void *stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                    size_t size);
/** The same for an array to which nothing else points: the old one is gone, so that a large array
 * does not leave its earlier sizes behind. What is new need not be zero. */
void *stw_pool_regrow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                      size_t size);

#endif
