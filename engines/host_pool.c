/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/host_pool.h"

#include "core/checked.h"

/* The smallest power of two that holds the bytes, at most 2^62. Called for every tensor. */
static int power_of(uint64_t bytes) {
    if (bytes <= 1) return 0;
    const int power = 64 - __builtin_clzll(bytes - 1);
    return power < 62 ? power : 62;
}

void stw_host_pool_take(stw_host_pool *pool, uint64_t bytes) {
    const int power = power_of(bytes);
    if (bytes == 0) return;
    pool->asked = stw_plus(pool->asked, bytes);
    if (pool->free[power] > 0) {
        pool->free[power]--;
        pool->kept -= 1ull << power;
    } else {
        pool->bytes = stw_plus(pool->bytes, 1ull << power);
    }
}

void stw_host_pool_drop(stw_host_pool *pool, uint64_t bytes) {
    const int power = power_of(bytes);
    if (bytes == 0) return;
    pool->free[power]++;
    pool->kept = stw_plus(pool->kept, 1ull << power);
    pool->asked -= bytes;
}
