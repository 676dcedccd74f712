/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of small objects that live and die together: a model, a spec, a plan owns one pool, and
 * everything it points to lies in it. Not thread-safe; one thread at a time. */
#ifndef STW_CORE_POOL_H
#define STW_CORE_POOL_H

#include <stddef.h>

#include "core/status.h"

typedef struct stw_pool stw_pool;

/** A new, empty pool; NULL when memory is out. Free with stw_pool_free. */
stw_pool *stw_pool_new(void);
/** Free the pool and everything in it; NULL is fine. */
void stw_pool_free(stw_pool *pool);
/** `size` zeroed bytes, aligned for any type; NULL when memory is out. size 0 gives a valid
 * pointer. */
void *stw_pool_alloc(stw_pool *pool, size_t size);
/** n zeroed elements of `size` bytes; NULL when memory is out or n * size overflows. */
void *stw_pool_array(stw_pool *pool, size_t n, size_t size);
/** A copy of a string (NULL gives NULL). */
char *stw_pool_string(stw_pool *pool, const char *text);
/** printf into the pool; NULL when memory is out. */
char *stw_pool_printf(stw_pool *pool, const char *format, ...) STW_PRINTF(2, 3);
/** Grow an array that lies in the pool: returns an array with room for at least `need` elements,
 * the first `used` copied; *capacity is updated. NULL when memory is out. */
void *stw_pool_grow(stw_pool *pool, void *array, size_t used, size_t need, size_t *capacity,
                    size_t size);

#endif
