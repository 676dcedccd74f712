/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of the bytes that a rank reads from weights files, per tensor; weights_same.c compares
 * them. Part of the executor. */
#ifndef STW_BACKEND_EXECUTOR_READ_SUMS_H
#define STW_BACKEND_EXECUTOR_READ_SUMS_H

#include "backend/executor/run.h"

struct stw_read_sums {
    uint32_t n;        /* tensors */
    uint64_t *parts;   /* [n] hash that identifies the parts of a tensor that this rank reads; 0:
                          none */
    uint64_t *content; /* [n] sum of the hashes of these parts' bytes; atomic during a load */
    uint64_t *witness; /* [n] the same for the parts that `peer` reads, through this rank's files */
    bool *shared;      /* [n] another rank reads the same parts */
    bool any, all;     /* some tensor is shared; all reads are hashed and shared */
    uint32_t peer;
    uint64_t bytes[2]; /* bytes read; bytes of these hashed */
};

/** Returns the bytes of a chunk as stored. */
uint64_t stw_read_chunk_bytes(const stw_rank_run *run, const stw_read_chunk *chunk);
/** Returns a chunk's term of a sum, which does not depend on the order of chunks.
 * @param content hash of its bytes; 0: only its place counts */
uint64_t stw_read_sum(const stw_read_chunk *chunk, uint64_t content);
uint64_t stw_read_sum_of(const stw_rank_run *run, const stw_read_chunk *chunk, const void *bytes);

#endif
