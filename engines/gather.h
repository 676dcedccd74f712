/* SPDX-License-Identifier: Apache-2.0 */
/* Whole tensors out of a sharded model, one at a time, as DTensor.full_tensor() makes them
 * (torch/distributed/tensor/_redistribute.py, _to_replicate_tensor: the shard is padded to equal
 * parts, all-gathered along dimension 0, the padding cut off by a view). A shard on the host is
 * copied up first. */
#ifndef STW_ENGINES_GATHER_H
#define STW_ENGINES_GATHER_H

#include "plan/program/builder.h"

typedef struct stw_gathered {
    stw_extent shard, full; /* shard: of one that lies on the host */
    uint32_t ready;         /* the operation that made it; STW_OP_NONE: it was whole */
    uint64_t bytes;         /* of the tensor, without padding */
} stw_gathered;

/** Elements of a tensor that the kind's ranks hold (of a space that is not spread), and of the
 * gathered one with its padding. */
uint64_t stw_gather_own(const stw_job *job, uint32_t kind, uint32_t tensor);
uint64_t stw_gather_full(const stw_job *job, uint32_t tensor);
/** Gather one tensor of the parameters within the movement that was begun last.
 * @param after an operation that it waits for; STW_OP_NONE: none */
stw_gathered stw_gather_tensor(stw_builder *b, uint32_t tensor, uint32_t after);
/** Free it after an operation, or STW_OP_NONE. */
void stw_gather_drop(stw_builder *b, stw_gathered *gathered, uint32_t after);

#endif
