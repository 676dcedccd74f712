/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward as torch's allocator sees them: which tensors each part of the program takes
 * and drops, in the order of the Python code, and on which stream. Every function stands for the
 * operations that were appended since `first_op` (plan/program/tensors.h) and does nothing where no
 * tensors are asked for, and for jobs of which a part is not known tensor by tensor: these keep one
 * tensor per allocation.
 */
#ifndef STW_ENGINES_FSDP2_TENSORS_H
#define STW_ENGINES_FSDP2_TENSORS_H

#include "engines/decoder.h"

/** The group of the root's blocks, among units: else a unit is a block. */
#define STW_TORCH_ROOT UINT32_MAX

/** Streams of the allocator. */
enum {
    STW_TORCH_COMPUTE_POOL,
    STW_TORCH_GATHER_POOL,
    STW_TORCH_REDUCE_POOL,
    STW_TORCH_ALL_REDUCE_POOL,
    STW_TORCH_UP_POOL /* of the streamed step */
};

typedef struct stw_torch stw_torch;

/** Elements as FSDP communicates them: every tensor is padded to chunks of dimension 0 of equal
 * length. Experts that are cut by ep x etp are sharded over the ranks with the same experts and
 * have collectives of their own (torchtitan/models/llama4/infra/parallelize.py, apply_fsdp, shards
 * moe.experts over a mesh of their own); without such a cut they are among `dense`. */
typedef struct stw_torch_elements {
    uint64_t dense, experts; /* gathered */
    uint64_t own;            /* of one rank's shards of both */
} stw_torch_elements;
/** Of a block. @param trained only tensors that have gradients */
stw_torch_elements stw_torch_elements_of(const stw_job *job, uint32_t block, bool trained);

/** Is every part of the job known tensor by tensor, and are tensors asked for? */
bool stw_torch_is_known(const stw_builder *b);
/** NULL where no tensors are asked for, or where not all is known; all functions take that.
 * @param acts [model.n_blocks]
 * @param no_grad a forward under torch.no_grad(): nothing is kept */
stw_torch *stw_torch_begin(stw_builder *b, const stw_act *acts, bool no_grad);
/** A forward without labels ends: final norm and logits, beside what the norm gives to the head. */
void stw_torch_logits(stw_torch *t, uint32_t first_op, uint64_t bytes,
                      const stw_torch_beside *beside);
/** What is made of the logits, before they go. */
void stw_torch_log_prob(stw_torch *t, uint32_t first_op, const stw_torch_beside *beside);
/** In forward: the unit is gathered, the output of the last gather goes, parameters are copied
 * out. */
void stw_torch_unshard_in_forward(stw_torch *t, uint32_t first_op, uint32_t unit);
/** The output of the last gather goes, and the logits (the model returns). */
void stw_torch_end_forward(stw_torch *t, uint32_t first_op);
/** In backward: gather, or copy out and drop what was gathered. */
void stw_torch_gather(stw_torch *t, uint32_t first_op, uint32_t unit);
void stw_torch_copy_out(stw_torch *t, uint32_t first_op, uint32_t unit);
/** A block's forward has returned: its input goes. */
void stw_torch_return(stw_torch *t, uint32_t first_op);
/** Parameters are resharded. */
void stw_torch_release(stw_torch *t, uint32_t first_op, uint32_t unit);
void stw_torch_forward(stw_torch *t, uint32_t first_op, uint32_t block);
void stw_torch_loss(stw_torch *t, uint32_t first_op);
void stw_torch_loss_backward(stw_torch *t, uint32_t first_op);
void stw_torch_backward(stw_torch *t, uint32_t first_op, uint32_t block);
void stw_torch_embedding_backward(stw_torch *t, uint32_t first_op);
/** A unit's gradients are added to those of earlier micro batches that were not reduced. */
void stw_torch_accumulate(stw_torch *t, uint32_t first_op, uint32_t unit);
/** The input of the last reduce-scatter goes; the unit's gradients are copied into one, reduced and
 * cast. */
void stw_torch_reduce(stw_torch *t, uint32_t first_op, uint32_t unit);
/** Everything that waits for the end of backward goes. */
void stw_torch_end_backward(stw_torch *t, uint32_t first_op);

/** Gradients of the shards go with the step; the first one finds them where backward left them. */
void stw_torch_shard_grads(stw_builder *b, uint32_t first_op, bool alloc);
/** Those of a block that a step still needed go before its forward. */
void stw_torch_drop_shard_grads(stw_builder *b, uint32_t first_op, uint32_t block);
/** Work areas of cuBLAS are tensors that the first products of forward and backward take. */
void stw_torch_workspace(stw_builder *b, uint32_t first_op);
/** The roots of exp_avg_sq that foreach makes, one per tensor of a group of the streamed step, or
 * of all (STW_TORCH_ALL). */
#define STW_TORCH_ALL UINT32_MAX
void stw_torch_roots(stw_builder *b, uint32_t first_op, uint32_t group, bool alloc);
/** What a group of the streamed step brings to the GPU. */
void stw_torch_window(stw_builder *b, uint32_t first_op, uint32_t group, bool alloc);
/** The streamed step is over. */
void stw_torch_end_streamed(stw_builder *b);

#endif
