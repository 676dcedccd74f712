/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of what a rank reads from weights files, tensor by tensor (weights_same.c compares them).
 * Part of the executor. */
#ifndef STW_BACKEND_EXECUTOR_READ_SUMS_H
#define STW_BACKEND_EXECUTOR_READ_SUMS_H

#include "backend/executor/run.h"

struct stw_read_sums {
    uint32_t n;        /* tensors */
    uint64_t *parts;   /* [n] hash of which parts of a tensor this rank reads; 0: none */
    uint64_t *content; /* [n] sum of the hashes of these parts; atomic while a load is under way */
    uint64_t *witness; /* [n] the same of what `peer` reads, through the files of this rank */
    bool *shared;      /* [n] another rank reads the same parts */
    bool any, all;     /* some rank shares a tensor; everything is hashed and read by another */
    uint32_t peer;
    uint64_t bytes[2]; /* read; of these hashed */
};

/** Bytes of a chunk as it is stored. */
uint64_t stw_read_chunk_bytes(const stw_rank_run *run, const stw_read_chunk *chunk);
/** A chunk's share of a sum, which does not depend on the order of chunks.
 * @param content hash of its bytes; 0: of its place alone */
uint64_t stw_read_sum(const stw_read_chunk *chunk, uint64_t content);
uint64_t stw_read_sum_of(const stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes);

#endif
