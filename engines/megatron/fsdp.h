/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-FSDP (megatron/core/distributed/fsdp): which parameters share a bucket, how long buckets
 * are, and the part of each that a rank holds. Sources: fsdp.c. Pure functions of the job; any
 * thread. */
#ifndef STW_ENGINES_MEGATRON_FSDP_H
#define STW_ENGINES_MEGATRON_FSDP_H

#include "engines/megatron/params.h"

/** Number of no unit: of embeddings, head, final norm. */
#define STW_MEGATRON_NO_UNIT UINT32_MAX

/** Parameters that are gathered and reduced together. */
typedef struct stw_megatron_bucket {
    uint64_t elements;    /* padding included; a rank holds 1 / ways of them where they are cut */
    uint32_t ways;        /* ranks that share it */
    uint32_t unit;        /* block of the model that it belongs to, or STW_MEGATRON_NO_UNIT */
    uint32_t first, last; /* blocks whose parameters it holds: the first and the last one */
    bool expert;
    bool kept;   /* it has buffers of its own that stay (fsdp_db_use_persist_buf_on_alloc_fail) */
    bool pooled; /* its unit is one of those that share two buffers (fsdp_double_buffer) */
} stw_megatron_bucket;

typedef struct stw_megatron_fsdp {
    uint32_t n;
    stw_megatron_bucket *buckets; /* [n] in the order of their numbers */
    uint64_t reduce_capacity;     /* elements that may wait for their reduction */
    uint64_t prefetch;            /* elements that are gathered ahead */
    uint64_t pool;                /* elements of one of the two buffers, 0: none */
    uint64_t kept;                /* elements of other buffers that stay */
} stw_megatron_fsdp;

/** @param params of the rank; the padded lengths become those of the buckets
 * @param shard out: what the first rank of the group holds of each parameter
 * @param out buckets lie in `pool`; none without Megatron-FSDP */
STW_MUST_USE stw_status stw_megatron_fsdp_of(const stw_job *job, stw_megatron_params *params,
                                             stw_pool *pool, stw_megatron_params *shard,
                                             stw_megatron_fsdp *out, stw_error *err);
/** Bytes of 16-bit parameters, gathered buckets and shards that there are at once at most while
 * the buffers are made one after the other. */
uint64_t stw_megatron_fsdp_init_bytes(const stw_job *job, const stw_megatron_params *params,
                                      const stw_megatron_fsdp *fsdp);

#endif
