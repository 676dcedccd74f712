/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/host_pool.h"

#include "core/checked.h"

static int power_of(uint64_t bytes) {
    int power = 0;
    while (power < 62 && (1ull << power) < bytes) power++;
    return power;
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
