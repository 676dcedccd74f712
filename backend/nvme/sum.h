/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of NVMe state: XXH3, 64 bits, with the machine's fastest instructions. Any thread. */
#ifndef STW_BACKEND_NVME_SUM_H
#define STW_BACKEND_NVME_SUM_H

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define STW_NVME_SUM_AVX2 1
uint64_t stw_nvme_sum_avx2(const void *data, uint64_t bytes);
#else
#define STW_NVME_SUM_AVX2 0
#endif

uint64_t stw_nvme_sum(const void *data, uint64_t bytes);

#endif
