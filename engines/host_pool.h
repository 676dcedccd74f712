/* SPDX-License-Identifier: Apache-2.0 */
/* Page-locked blocks of torch's caching host allocator (aten/src/ATen/core/CachingHostAllocator.h):
 * a block has the next power of two of what is asked for, and one that is freed is kept for the
 * next request of that power. A plain value; zero is empty. */
#ifndef STW_ENGINES_HOST_POOL_H
#define STW_ENGINES_HOST_POOL_H

#include <stdint.h>

typedef struct stw_host_pool {
    uint64_t free[64]; /* blocks by their power of two */
    uint64_t bytes;    /* of all blocks, free ones too */
    uint64_t kept;     /* of free blocks */
    uint64_t asked;    /* what was asked for in the others */
} stw_host_pool;

/** Zero bytes do nothing. */
void stw_host_pool_take(stw_host_pool *pool, uint64_t bytes);
void stw_host_pool_drop(stw_host_pool *pool, uint64_t bytes);

#endif
