/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a block of transformers: which of them a call uses, and in which order its modules
 * register them. Pure functions; any thread. */
#ifndef STW_BLOCKS_BLOCK_TENSORS_H
#define STW_BLOCKS_BLOCK_TENSORS_H

#include "blocks/list.h"
#include "plan/job/job.h"

/** Tensors of a block that a call of it uses.
 * @param tensors out, numbers from the block's first tensor on; NULL: they are counted
 * @return their number */
uint32_t stw_call_uses(const stw_job *job, uint32_t block, const stw_call *call, uint32_t *tensors);
/** A block's tensors in the order in which transformers registers them: attention, norms of heads,
 * MLP, norms. A vision tower's norms come first; of linear attention convolution, norm and last
 * product do, and what is no module comes last. @param tensors [n_tensors] out */
void stw_block_tensors(const stw_model *model, uint32_t block, uint32_t *tensors);

#endif
