/* SPDX-License-Identifier: Apache-2.0 */
/* What torch's allocator sees of a program. A program allocates what belongs together in one piece;
 * torch allocates tensor by tensor, each from the pool of the stream that is current. An engine
 * says for a range of operations which tensors come and go instead, in torch's order; what it says
 * nothing about is one tensor per allocation (regions: one per tensor of the model), on the stream
 * of computation. Only programs that are made for a replay hold tensors (stw_program_new_tensors);
 * elsewhere these functions do nothing. */
#ifndef STW_PLAN_TENSORS_H
#define STW_PLAN_TENSORS_H

#include "plan/program/builder.h"

/** Number of no tensor. */
#define STW_NO_TENSOR UINT32_MAX

/** Are tensors asked for? Engines need not compute their sizes otherwise. */
static inline bool stw_tensors_wanted(const stw_builder *b) {
    return b->program->with_tensors && b->status == STW_STATUS_OK;
}
/** The next operation: a range that is to be replaced starts there. */
static inline uint32_t stw_tensors_begin(const stw_builder *b) { return b->program->n_ops; }
/** Allocs and frees of GPU memory from `first_op` on to the last one so far are replaced by the
 * tensors that are taken and dropped from now on. */
void stw_tensors_instead(stw_builder *b, uint32_t first_op);
/** The same in a program whose other allocs stand for themselves. */
void stw_tensors_instead_of_these(stw_builder *b, uint32_t first_op);
/** A tensor appears, on a stream of the allocator; its number. 0 bytes: STW_NO_TENSOR. */
uint32_t stw_tensor_take(stw_builder *b, uint32_t stream, uint64_t bytes);
/** The same for a tensor whose number is known: it may appear once per iteration. */
void stw_tensor_take_as(stw_builder *b, uint32_t tensor, uint32_t stream, uint64_t bytes);
/** A tensor that has been taken gets a number that is known elsewhere; STW_NO_TENSOR does nothing.
 */
void stw_tensor_rename(stw_builder *b, uint32_t tensor, uint32_t known);
/** It goes; nothing if it is not there. STW_NO_TENSOR does nothing. */
void stw_tensor_drop(stw_builder *b, uint32_t tensor);
/** `n` numbers for tensors; the first. */
uint32_t stw_tensor_numbers(stw_builder *b, uint32_t n);
/** What comes and goes from now on does not in these micro batches (STW_TENSOR_NOT_*; 0: in all).
 */
void stw_tensors_unless(stw_builder *b, uint8_t micro_batches);
/** torch.cuda.empty_cache(). */
void stw_tensors_empty_cache(stw_builder *b);

#endif
