/* SPDX-License-Identifier: Apache-2.0 */
/* The partition of FSDP2, which the stowage engine shares: every tensor is cut along its first
 * dimension into chunks of ceil(dim0 / group) rows, the last ones shorter or empty (torch.chunk;
 * fully_shard, torch/distributed/fsdp/_fully_shard). The group is dp_shard x cp; routed experts are
 * cut by ep x etp first, and what
 * tensor parallelism cuts by tp (engines/tensor_parallel.h): FSDP shards the local part of a
 * DTensor along dimension 0, which makes it a _StridedShard of the whole
 * (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param). Params, grads and
 * optimizer state are cut alike. */
#ifndef STW_ENGINES_PARTITION_H
#define STW_ENGINES_PARTITION_H

#include "plan/job/job.h"

/** Slots of stw_engine. */
uint32_t stw_chunks_representative(const stw_job *job, uint32_t rank);
uint64_t stw_chunks_parts(const stw_job *job, uint32_t rank);
STW_MUST_USE stw_status stw_chunks_cut(const stw_job *job, uint32_t space, uint32_t rank,
                                       stw_space *out, stw_error *err);
bool stw_chunks_count(const stw_job *job, uint32_t space, uint32_t rank);
/** Elements [*first, *first + *count) of tensor `t` that a rank holds; *count may be 0. */
void stw_chunks_range(const stw_job *job, uint32_t t, uint32_t rank, uint64_t *first,
                      uint64_t *count);

#endif
