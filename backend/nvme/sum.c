/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "backend/nvme/sum.h"

#include <stddef.h>
#include <xxhash.h>

uint64_t stw_nvme_sum(const void *data, uint64_t bytes) {
#if STW_NVME_SUM_AVX2
    if (__builtin_cpu_supports("avx2")) return stw_nvme_sum_avx2(data, bytes);
#endif
    return XXH3_64bits(data, (size_t)bytes);
}
