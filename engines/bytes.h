/* SPDX-License-Identifier: Apache-2.0 */
/* The one accounting of transient bytes and of work in forward and backward: engines allocate with
 * these numbers, the planner's rows sum them. Every formula names its source in bytes.c. All
 * figures are per rank and micro batch. Pure functions of the job, any thread. */
#ifndef STW_ENGINES_BYTES_H
#define STW_ENGINES_BYTES_H

#include "plan/job/job.h"

/** Bytes of saved activations of one block of a group under a policy (keep: all that backward
 * needs; recompute and offload: what stays on the GPU, the block's input for recompute, nothing for
 * offload). */
uint64_t stw_activation_bytes(const stw_job *job, uint32_t group, stw_act act);
/** All that backward needs, whatever is recomputed. */
uint64_t stw_full_activation_bytes(const stw_job *job, uint32_t group);
/** Of a block that saves nothing because backward does not reach it (a frozen vision tower): what
 * its forward holds at once, at most. 0 of others, whose backward holds more. */
uint64_t stw_forward_work_bytes(const stw_job *job, uint32_t group);
/** Blocks that keep a part of what their backward needs and make the rest again
 * (recompute.modules). Of each pair the first is the MLP's part. */
typedef struct stw_selective {
    bool is_used;
    bool at_once;      /* all is made before the block's backward; else each part before its own */
    uint64_t saved[2]; /* bytes from forward to backward */
    uint64_t again[2]; /* bytes that are made again */
} stw_selective;
stw_selective stw_selective_of(const stw_job *job, uint32_t group);
/** Parts of a block's forward without their element-wise operations: what recomputation adds. */
typedef struct stw_block_parts {
    bool attention, mlp; /* attention itself; products of the MLP or the experts */
    double columns;      /* further products from the hidden size, of so many columns in all */
} stw_block_parts;
/** What is computed again where stw_selective_of is used. */
stw_block_parts stw_selective_parts(const stw_job *job, uint32_t group);
/** Of what a kept block saves, the part that its MLP's backward reads and frees first. */
uint64_t stw_mlp_activation_bytes(const stw_job *job, uint32_t group);
/** What a block's backward needs beside its saved activations, at its two widest moments: inside
 * the MLP all that is saved, gradients of activations and the down projection's weight gradient;
 * inside the attention the rest of what is saved, and the weight gradients of the whole block. */
typedef struct stw_backward_bytes {
    uint64_t mlp_acts, mlp_grads;   /* gradients of activations, of weights: inside the MLP */
    uint64_t attention_acts, grads; /* the same inside the attention; all weights */
} stw_backward_bytes;
stw_backward_bytes stw_block_backward_bytes(const stw_job *job, uint32_t block);
/** Bytes of the gathered block in the compute dtype; 0 where nothing is gathered or cast. */
uint64_t stw_unshard_bytes(const stw_job *job, uint32_t block);
/** The all-gather's output, beside the unsharded parameters that are copied out of it; 0 with a
 * group of one. */
uint64_t stw_all_gather_bytes(const stw_job *job, uint32_t block);
/** Stowage's optimizer on one GPU: a plain loop. Nothing is gathered or reduced, and gradients stay
 * where autograd made them. */
bool stw_trains_in_place(const stw_job *job);
/** Unsharded gradients of a block while its backward runs (compute dtype). */
uint64_t stw_unsharded_grad_bytes(const stw_job *job, uint32_t block);
/** The same of earlier micro batches that were not reduced (reduce dtype). */
uint64_t stw_accumulated_grad_bytes(const stw_job *job, uint32_t block);
/** Input of the block's reduce-scatter (reduce dtype); 0: gradients stay as backward makes them. */
uint64_t stw_reduce_bytes(const stw_job *job, uint32_t block);
/** Outputs of the block's reduce-scatters where they are not the sharded gradient itself. */
uint64_t stw_reduce_output_bytes(const stw_job *job, uint32_t block);
/** Reduce-scatter outputs that wait for their all-reduce among replicas until backward ends; 0
 * without replicas, or where they are the sharded gradients. */
uint64_t stw_replica_reduce_bytes(const stw_job *job, uint64_t params);
/** Final norm, head output and loss: the most of forward, what stays until backward, the most of
 * backward up to the gradient of the logits, and that gradient while the head's weights get
 * theirs. */
uint64_t stw_logits_forward_bytes(const stw_job *job);
uint64_t stw_logits_saved_bytes(const stw_job *job);
uint64_t stw_logits_backward_bytes(const stw_job *job);
uint64_t stw_logits_grad_bytes(const stw_job *job);
/** Tokens of which logits are there at a time (loss.fused, loss.checkpoint). */
uint64_t stw_loss_tokens(const stw_job *job);
/** Is a checkpointed loss of several chunks? */
bool stw_loss_is_cut(const stw_job *job);
/** Is a tied embedding's gradient added to the head's in place? Otherwise the sum is a new tensor.
 */
bool stw_sums_into_head(const stw_job *job);
/** The gradient of the head's weight in the dtype of computation; 0 where it is frozen. */
uint64_t stw_head_grad_bytes(const stw_job *job);
/** The largest tensor among these. */
uint64_t stw_logits_tensor_bytes(const stw_job *job);
/** Rows of all tokens that sequence parallelism gathers for the embedding's gradient; 0 without. */
uint64_t stw_embedding_rows_bytes(const stw_job *job);
/** Does a block lie outside the chain of residual blocks although it is gathered by itself (a
 * wrapped embedding)? Its input has no gradient, so its gradients are reduced after the root's. */
bool stw_reduced_last(const stw_job *job, uint32_t block);
/** Work areas of cuBLAS that torch's allocator holds from the first forward on; 0 for an engine
 * whose step is not torch's. */
uint64_t stw_workspace_bytes(const stw_job *job);
/** Floating-point operations of one block's forward (block_work.h: what they consist of), before
 * tensor parallelism cuts them. */
double stw_block_forward_flops(const stw_job *job, uint32_t block);
/** Of its backward as a model's operations are counted: as many for the inputs' gradients, and the
 * trained part of them for the weights'; twice the forward's for attention, whose kernels do more.
 */
double stw_block_backward_flops(const stw_job *job, uint32_t block);
/** The part of it that is attention: products of tokens with each other; of one block of a group
 * without its attention to an encoder. */
double stw_block_attention_flops(const stw_job *job, uint32_t block);
double stw_group_attention_flops(const stw_job *job, uint32_t group);
/** Does its backward reach it? Not the blocks of a frozen vision tower, nor of one without images.
 */
bool stw_block_saves(const stw_job *job, uint32_t block);
/** Backward of the head and the loss, relative to their forward. */
double stw_head_backward_share(const stw_job *job);
/** Bytes that page-locking a buffer adds under torch's caching host allocator (next power of two).
 */
uint64_t stw_page_lock_rounding_bytes(uint64_t bytes);
/** The same for one component of the state of a kind of rank, page-locked tensor by tensor. */
uint64_t stw_state_rounding_bytes(const stw_job *job, uint32_t kind, stw_component component);
/** Returns bytes above all that grow with the tokens of a node's micro batches; see
 * stw_engine.batch_bytes. */
uint64_t stw_batch_bytes(const stw_job *job);

/** Does this block belong to FSDP's root group (gathered for the whole of forward and backward)? */
bool stw_job_in_root(const stw_job *job, uint32_t block);

#endif
