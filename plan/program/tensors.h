/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a program, for the model of torch's allocator. A program allocates related bytes
 * in one piece; torch allocates each tensor from the pool of the current stream. For a range of
 * operations an engine can list the tensors that torch takes and drops instead, in torch's order.
 * Other allocs are one tensor each (a region: one per tensor of the model), on the compute stream.
 * Only programs made for a replay hold tensors (stw_program_new_tensors); in other programs these
 * functions do nothing. */
#ifndef STW_PLAN_TENSORS_H
#define STW_PLAN_TENSORS_H

#include "plan/program/builder.h"

/** The invalid tensor number. */
#define STW_NO_TENSOR UINT32_MAX

/** True if the program holds tensors; else engines need not compute their sizes. */
static inline bool stw_tensors_wanted(const stw_builder *b) {
    return b->program->with_tensors && b->status == STW_STATUS_OK;
}
/** Returns the next operation's index, as the start of a range to replace. */
static inline uint32_t stw_tensors_begin(const stw_builder *b) { return b->program->n_ops; }
/** Replace the GPU allocs and frees from `first_op` to the last op so far by the tensors that are
 * taken and dropped from now on. */
void stw_tensors_instead(stw_builder *b, uint32_t first_op);
/** The same for a program whose other allocs stay as they are. */
void stw_tensors_instead_of_these(stw_builder *b, uint32_t first_op);
/** Take a tensor on a stream of the allocator. Returns its number; STW_NO_TENSOR for 0 bytes. */
uint32_t stw_tensor_take(stw_builder *b, uint32_t stream, uint64_t bytes);
/** The same with a known number: such a tensor may be taken once per iteration. */
void stw_tensor_take_as(stw_builder *b, uint32_t tensor, uint32_t stream, uint64_t bytes);
/** Give a taken tensor another, known number. Does nothing for STW_NO_TENSOR. */
void stw_tensor_rename(stw_builder *b, uint32_t tensor, uint32_t known);
/** Drop a tensor. Does nothing if it is not taken, and for STW_NO_TENSOR. */
void stw_tensor_drop(stw_builder *b, uint32_t tensor);
/** Reserve `n` consecutive tensor numbers. Returns the first. */
uint32_t stw_tensor_numbers(stw_builder *b, uint32_t n);
/** Later takes and drops do not happen in these micro batches (STW_TENSOR_NOT_*; 0: they happen in
 * all). */
void stw_tensors_unless(stw_builder *b, uint8_t micro_batches);
/** Record a call of torch.cuda.empty_cache(). */
void stw_tensors_empty_cache(stw_builder *b);

#endif
