/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of transformers as torch's allocator sees it, forward and backward: which tensors the
 * embedding, the blocks (blocks/), the norm after them, the head, and the loss take and drop,
 * in the order of the Python code. What an engine does with parameters and gradients around that is
 * its own. The caller begins the ranges of tensors (plan/program/tensors.h). */
#ifndef STW_ENGINES_DECODER_H
#define STW_ENGINES_DECODER_H

#include "blocks/trace.h"
#include "engines/tower.h"
#include "plan/job/engine.h"
#include "plan/program/decisions.h"

typedef struct stw_decoder {
    stw_builder *b;
    const stw_job *job;
    const stw_act *acts;          /* [n_blocks] */
    const stw_trace_hooks *hooks; /* NULL: gradients are tensors */
    bool no_grad;
    stw_calls **calls; /* [2 n_groups] of a group's blocks; of one whose input has no gradient */
    stw_calls norm;    /* after the last block */
    uint32_t norm_block;
    uint32_t **tensors;    /* [n_blocks] those of a block, in the order of registration */
    uint32_t *grads;       /* [model.n_tensors] gradients that are there */
    stw_kept *kept;        /* [n_blocks + 1], that of the norm last */
    uint32_t normed, loss; /* input of the head; log-softmax */
    uint32_t narrow;       /* the logits, which the model's output holds until it returns */
    uint32_t hidden, grad; /* between two blocks */
    uint32_t passed;       /* a block's input, until the block returns */
    uint32_t embedded;     /* the first block's, until the decoder returns */
    uint32_t leaf;         /* a frozen embedding's output of which a gradient is asked for */
    uint32_t first;        /* the first transformer block */
    uint32_t tables[2];    /* cosines and sines of positions */
    uint32_t mask;         /* of windows; checkpoints hold it until backward */
    uint32_t at;           /* the block that is called */
    stw_tower tower;
} stw_decoder;

/** Are all parts of a job's decoder known tensor by tensor? Not known are blocks without an order
 * (stw_group_is_known), activations that are offloaded, tensor parallelism, frozen tensors,
 * adapters beside experts, fused losses, soft-capped logits, and vision towers that have no images
 * or adapters beside them. */
bool stw_decoder_is_known(const stw_job *job, const stw_decisions *decisions);
/** An engine's margins, or those of blocks whose figures are known to be too low: latent attention
 * that is not known tensor by tensor, and vision towers without an order that are not recomputed
 * (tests/measured/corners.csv: what vlm_none was). */
stw_margins stw_decoder_margins(const stw_job *job, stw_margins margins);
/** Bytes of the mask of windows, which layers under a checkpoint hold from forward to the end of
 * backward; 0: there is none. */
uint64_t stw_decoder_mask_bytes(const stw_job *job);
/** @param acts [n_blocks], kept
 * @param no_grad a forward under torch.no_grad(): nothing is kept
 * @param hooks kept; NULL: gradients are tensors in `grads`
 * @return false: out of memory, which the builder's status says */
bool stw_decoder_begin(stw_decoder *d, stw_builder *b, const stw_act *acts, bool no_grad,
                       const stw_trace_hooks *hooks);

/* ---- forward ---- */

/** The model is called. */
void stw_decoder_begin_forward(stw_decoder *d);
/** Before a transformer block. Before the first one: its input, the tables of positions, the mask
 * of windows. */
void stw_decoder_begin_block(stw_decoder *d, uint32_t block);
void stw_decoder_forward(stw_decoder *d, uint32_t block);
/** A block's forward has returned: its input goes. */
void stw_decoder_return(stw_decoder *d);
/** The norm, the head and the loss. */
void stw_decoder_loss(stw_decoder *d);
/** The model's forward has returned: the logits go. */
void stw_decoder_end_forward(stw_decoder *d);

/* ---- backward ---- */

/** From the loss to the gradient of the head's input, then that of the norm's. */
void stw_decoder_head_backward(stw_decoder *d);
void stw_decoder_norm_backward(stw_decoder *d);
/** Before a block's backward: that of what stands between it and the next block. */
void stw_decoder_begin_backward(stw_decoder *d, uint32_t block);
/** A block is recomputed, if it is to be; its backward comes next. */
void stw_decoder_again(stw_decoder *d, uint32_t block);
void stw_decoder_backward(stw_decoder *d, uint32_t block);
/** A tied embedding has a second gradient, and their sum may be a third one for a moment. */
void stw_decoder_embedding_backward(stw_decoder *d);
/** All that waits for the end of backward goes. */
void stw_decoder_end_backward(stw_decoder *d);

/* ---- a forward without labels ---- */

/** Tensors that come one after the other beside logits, then all go. */
#define STW_TORCH_MOST_BESIDE 4
typedef struct stw_torch_beside {
    uint32_t n;
    uint64_t bytes[STW_TORCH_MOST_BESIDE];
} stw_torch_beside;
/** Final norm and logits, beside what the norm gives to the head. */
void stw_decoder_logits(stw_decoder *d, uint64_t bytes, const stw_torch_beside *beside);
/** What is made of the logits, before they go. */
void stw_decoder_log_prob(stw_decoder *d, const stw_torch_beside *beside);
/** The most bytes of a block's forward that keeps nothing, its input included. Of a block that is
 * not known tensor by tensor: all that a backward would need.
 * @param pool for work */
uint64_t stw_decoder_forward_bytes(const stw_job *job, uint32_t block, stw_pool *pool);

#endif
