/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/executor/read_sums.h"

#include <string.h>

#include "backend/nvme/sum.h"
#include "core/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t stw_read_chunk_bytes(const stw_rank_run *run, const stw_read_chunk *chunk) {
    return stw_times(chunk->n, stw_dtype_bits(run->dtypes[chunk->tensor]) / 8);
}

uint64_t stw_read_sum(const stw_read_chunk *chunk, uint64_t content) {
    const uint64_t words[] = {chunk->first, chunk->n, content};
    return XXH3_64bits(words, sizeof words);
}

uint64_t stw_read_sum_of(const stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes) {
    return stw_read_sum(chunk, stw_nvme_sum(bytes, stw_read_chunk_bytes(run, chunk)));
}

void stw_read_sums_begin(stw_rank_run *run) {
    if (run->sums != NULL) memset(run->sums->content, 0, run->sums->n * sizeof(uint64_t));
}

void stw_read_sums_add(stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes) {
    stw_read_sums *sums = run->sums;
    if (sums == NULL || !(sums->all || sums->shared[chunk->tensor])) return;
    __atomic_fetch_add(&sums->content[chunk->tensor], stw_read_sum_of(run, chunk, bytes),
                       __ATOMIC_RELAXED);
}
