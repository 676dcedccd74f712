/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a head and loss that are computed by chunks of tokens, each under a checkpoint of its
 * own (loss.checkpoint), and what else the parts of a pass share. */
#ifndef STW_ENGINES_HEAD_CHUNKS_H
#define STW_ENGINES_HEAD_CHUNKS_H

#include "plan/program/tensors.h"

/** The work area of cuBLAS, which stays. @param thread 0: forward's; 1: that of autograd */
void stw_torch_take_workspace(stw_builder *b, const stw_job *job, uint32_t thread);
/** A gradient is added to what waits in `sum`, if anything does.
 * @param is_view of what waits: the sum is a new tensor of so many bytes */
void stw_torch_add_up(stw_builder *b, uint32_t *sum, uint32_t more, bool is_view, uint64_t bytes);
/** Room in which the gradient of an embedding is summed, which comes and goes.
 * @param rows that are looked up
 * @param entries of the embedding, of so many columns each */
void stw_torch_sum_embedding_rows(stw_builder *b, uint64_t rows, uint64_t entries,
                                  uint64_t columns);
/** All chunks of a forward: nothing stays. */
void stw_torch_chunks_forward(stw_builder *b, const stw_job *job);
/** Their backward, in reverse.
 * @param weight in, out: the gradient of the head's weight; NULL where it is frozen
 * @return the gradient of the head's input */
uint32_t stw_torch_chunks_backward(stw_builder *b, const stw_job *job, uint32_t *weight);

#endif
