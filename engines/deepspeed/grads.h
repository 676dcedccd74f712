/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients from the moment at which autograd has made one until the step: buckets and their
 * reductions, and where the reduced gradients stay. */
#ifndef STW_ENGINES_DEEPSPEED_GRADS_H
#define STW_ENGINES_DEEPSPEED_GRADS_H

#include "engines/deepspeed/swap.h"

typedef struct stw_grads {
    stw_zero *z;
    stw_extent buffers[2]; /* stages 1 and 2; that of stage 3 is there from the start */
    bool begun;
    bool silent;       /* bytes come and go, but no collective is issued */
    uint32_t *tensors; /* [n_tensors] in the bucket */
    uint32_t n;
    uint64_t filled; /* elements */
    stw_swap_writer writer;
    stw_extent fresh; /* stage 2: of this micro batch, to be added to what earlier ones have left */
    stw_extent large; /* a gradient that is larger than the bucket stays where it is */
    uint32_t worked;  /* the computation that made the last gradient */
    uint32_t block;
} stw_grads;

/** Begin a backward. What earlier micro batches of the same step have left is there already.
 * @return false after a failure */
bool stw_grads_begin(stw_grads *g, stw_zero *z);
/** Backward made the gradient of a tensor; its bytes appear and go where DeepSpeed takes them. */
void stw_grads_add(stw_grads *g, uint32_t tensor, uint32_t block, uint32_t worked);
/** The same for a gradient that is there already. */
void stw_grads_take(stw_grads *g, uint32_t tensor, stw_extent grad);
/** The backward of the step's last micro batch has ended. What is reduced only then, once in a
 * step, takes its bytes here; with accumulation its collective is the step's
 * (stw_grads_reduce_once). */
void stw_grads_end(stw_grads *g);
void stw_grads_reduce_once(stw_zero *z);

/** Gradients as a step finds them, for a step without a backward before it. */
void stw_grads_appear(stw_zero *z);
/** Of reduced gradients those of parameter groups from `group` on stay. */
void stw_grads_keep(stw_zero *z, uint32_t group);
/** The step has taken them. */
void stw_grads_go(stw_zero *z);

#endif
