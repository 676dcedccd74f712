/* SPDX-License-Identifier: Apache-2.0 */
/* torch/utils/checkpoint.py (not reentrant, with early stop) around head and cross-entropy of each
 * chunk, as torch 2.11 executes it: nothing is saved but the chunk's input, a part of the normed
 * states. Backward makes a chunk again up to its loss. */
#include "engines/head_chunks.h"

#include "core/checked.h"
#include "engines/bytes.h"

enum { COMPUTE = 0 }; /* the stream */

/* It belongs to the handle of a thread, and is taken by the thread's first product
 * (aten/src/ATen/cuda/CublasHandlePool.cpp). */
void stw_torch_take_workspace(stw_builder *b, const stw_job *job, uint32_t thread) {
    stw_tensor_take_as(b, b->shard_tensors + job->model->n_blocks + thread, COMPUTE,
                       stw_workspace_bytes(job) / 2);
}

void stw_torch_add_up(stw_builder *b, uint32_t *sum, uint32_t more, bool is_view, uint64_t bytes) {
    const uint32_t before = *sum;
    if (before == STW_NO_TENSOR) {
        *sum = more;
        return;
    }
    if (is_view) *sum = stw_tensor_take(b, COMPUTE, bytes);
    if (is_view) stw_tensor_drop(b, before);
    stw_tensor_drop(b, more);
}

/* embedding_dense_backward (aten/src/ATen/native/cuda/Embedding.cu): from 3072 rows on they are
 * sorted, and summed in parts of at most 10 (EmbeddingBackwardKernel.cu). */
void stw_torch_sum_embedding_rows(stw_builder *b, uint64_t rows, uint64_t entries,
                                  uint64_t columns) {
    enum { UNSORTED = 3072, PART = 10, WARP = 32 };
    if (rows <= UNSORTED) return;
    const uint64_t parts = rows / PART + stw_min_u64(rows, entries);
    const uint64_t stride = stw_round_up_u64(columns, WARP);
    stw_tensor_drop(b, stw_tensor_take(b, COMPUTE, stw_times(stw_times(parts, stride), 4)));
}

static uint64_t upcast_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->loss.upcast) / 8;
}

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

static uint32_t take_logits(stw_builder *b, const stw_job *job, uint64_t tokens, uint64_t element) {
    return stw_tensor_take(b, COMPUTE, stw_times(stw_times(tokens, job->model->vocab), element));
}

/* @return the log-softmax, which is saved or goes */
static uint32_t chunk_forward(stw_builder *b, const stw_job *job, uint64_t tokens,
                              uint32_t thread) {
    uint32_t logits = take_logits(b, job, tokens, compute_bytes(job));
    stw_torch_take_workspace(b, job, thread);
    if (job->run->loss.upcast != job->run->precision.compute) {
        const uint32_t narrow = logits;
        logits = take_logits(b, job, tokens, upcast_bytes(job));
        stw_tensor_drop(b, narrow);
    }
    const uint32_t softmax = take_logits(b, job, tokens, upcast_bytes(job));
    stw_tensor_drop(b, logits);
    return softmax;
}

void stw_torch_chunks_forward(stw_builder *b, const stw_job *job) {
    const uint64_t size = stw_loss_tokens(job);
    for (uint64_t at = 0; at < job->tokens; at += size)
        stw_tensor_drop(b, chunk_forward(b, job, stw_min_u64(size, job->tokens - at), 0));
}

/* From a chunk's loss to the gradient of its logits, in the dtype of computation. */
static uint32_t logits_backward(stw_builder *b, const stw_job *job, uint64_t tokens) {
    const uint32_t softmax = chunk_forward(b, job, tokens, 1);
    const uint32_t likelihood = take_logits(b, job, tokens, upcast_bytes(job));
    const uint32_t grad = take_logits(b, job, tokens, upcast_bytes(job));
    stw_tensor_drop(b, softmax);
    stw_tensor_drop(b, likelihood);
    if (job->run->loss.upcast == job->run->precision.compute) return grad;
    const uint32_t narrow = take_logits(b, job, tokens, compute_bytes(job));
    stw_tensor_drop(b, grad);
    return narrow;
}

/* A part's gradient is put into zeros for all tokens; a single chunk is no part. */
uint32_t stw_torch_chunks_backward(stw_builder *b, const stw_job *job, uint32_t *weight) {
    const uint64_t size = stw_loss_tokens(job), weight_bytes = stw_head_grad_bytes(job);
    const uint64_t row = stw_times(job->model->hidden, compute_bytes(job));
    uint32_t hidden = STW_NO_TENSOR;
    bool first_sum = true;
    for (uint64_t end = job->tokens; end > 0; end = (end - 1) / size * size) {
        const uint64_t tokens = end - (end - 1) / size * size;
        const uint32_t logits = logits_backward(b, job, tokens);
        const uint32_t of_weight =
            weight != NULL ? stw_tensor_take(b, COMPUTE, weight_bytes) : STW_NO_TENSOR;
        uint32_t part = stw_tensor_take(b, COMPUTE, stw_times(tokens, row));
        stw_tensor_drop(b, logits);
        if (weight != NULL) {
            const bool sums = *weight != STW_NO_TENSOR;
            stw_torch_add_up(b, weight, of_weight, first_sum, weight_bytes);
            first_sum = first_sum && !sums;
        }
        if (stw_loss_is_cut(job)) {
            const uint32_t all = stw_tensor_take(b, COMPUTE, stw_times(job->tokens, row));
            stw_tensor_drop(b, part);
            part = all;
        }
        stw_torch_add_up(b, &hidden, part, false, 0);
    }
    return hidden;
}
