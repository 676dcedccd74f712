/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the calls of a block forward and backward: the tensors that each takes and drops go into a
 * program (plan/program/tensors.h), in torch's order. */
#ifndef STW_BLOCKS_TRACE_H
#define STW_BLOCKS_TRACE_H

#include "blocks/calls.h"
#include "plan/program/tensors.h"

typedef struct stw_trace stw_trace;

/** What a block keeps for its backward: tensors, STW_NO_TENSOR where there is none. */
typedef struct stw_kept {
    uint32_t (*slots)[STW_MOST_SLOTS]; /* [calls.n] */
    uint32_t *values; /* [calls.n_values]; that of the input: checkpoint holds it */
} stw_kept;

/** No tensor's number. */
#define STW_GRAD_HOOKED (STW_NO_TENSOR - 1)

/** What an engine does around the calls of a trace, in operations of its own. */
typedef struct stw_trace_hooks {
    void *owner;
    /** A call begins, or it has ended, forward or backward: the parameters of its modules are
     * needed, or they are not any more. A recomputation that stops early enters the others, too. */
    void (*enter)(void *owner, const stw_trace *trace, uint32_t call, bool backward);
    void (*leave)(void *owner, const stw_trace *trace, uint32_t call, bool backward);
    /** The gradient of a tensor of the model is made. */
    void (*grad)(void *owner, uint32_t tensor);
} stw_trace_hooks;

struct stw_trace {
    stw_builder *b;
    const stw_job *job;
    const stw_calls *calls;
    stw_kept *kept;
    uint32_t first_tensor; /* of the block */
    uint32_t n_tensors;
    const uint32_t *tensors;      /* [n_tensors] of the model, in the order of registration */
    uint32_t *grads;              /* [model.n_tensors] out: gradients; STW_GRAD_HOOKED: a hook's */
    const stw_trace_hooks *hooks; /* NULL: none */
};

typedef enum stw_trace_kind {
    STW_TRACE_FORGET, /* nothing is kept: no gradient is asked for, or checkpoint does it again */
    STW_TRACE_KEEP,
    STW_TRACE_AGAIN /* checkpoint does it again, up to the last tensor that is saved */
} stw_trace_kind;

/** @return false: out of memory */
bool stw_kept_new(stw_pool *pool, const stw_calls *calls, stw_kept *out);
/** @return the block's output; STW_NO_TENSOR with AGAIN */
uint32_t stw_trace_forward(stw_trace *t, stw_trace_kind kind);
/** @param grad of the output: goes
 * @param again forward was recomputed
 * @return the gradient of the input; STW_NO_TENSOR: it has none */
uint32_t stw_trace_backward(stw_trace *t, uint32_t grad, bool again);
/** Before a forward with AGAIN: the gradient of the last product's adapter is scaled by a number,
 * that of a wide norm is copied in fp32. Both need nothing of forward and run first. */
void stw_trace_scale(stw_trace *t);

/** Room for partial sums over the rows of a matrix comes and goes, where torch takes any. */
void stw_trace_sum_rows(stw_builder *b, uint64_t rows, uint64_t columns);
/** Make the gradient of a tensor of the model, if it has none, in its whole or of so many bytes. */
void stw_trace_grad(stw_builder *b, const stw_trace_hooks *hooks, uint32_t *grads, uint32_t tensor,
                    uint64_t bytes);

#endif
