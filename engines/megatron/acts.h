/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that forward and backward of Megatron-LM's local layers (transformer-impl local) hold on a
 * rank. Sources: acts.c. All figures are per micro batch. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_ACTS_H
#define STW_ENGINES_MEGATRON_ACTS_H

#include "engines/megatron/params.h"

/** One transformer block. */
typedef struct stw_megatron_layer {
    uint64_t input;    /* its input: all that a block keeps that is recomputed as a whole */
    uint64_t whole;    /* all that its backward needs, the input included */
    uint64_t kept;     /* the same without what selective recomputation leaves out */
    uint64_t again;    /* what selective recomputation brings back at once, at most */
    uint64_t forward;  /* beside what is kept, at the widest moment of the forward */
    uint64_t backward; /* beside what is kept, at the widest moment of the backward */
    bool router;       /* a block with experts */
} stw_megatron_layer;

/** @param fp8 its products are in 8 bits (fp8.h) */
stw_megatron_layer stw_megatron_layer_of(const stw_job *job, uint32_t group, bool fp8);

/** A layer of multi-token prediction: its transformer layer, and what its projection keeps. */
stw_megatron_layer stw_megatron_mtp_of(const stw_job *job, uint32_t group, bool fp8);
/** Hidden states that a chunk with multi-token prediction, or one after it, hands on: those of the
 * last layer and of every further prediction. 1 without it. */
uint64_t stw_megatron_hidden_states(const stw_job *job);

/** Final norm, logits and loss of the last stage: what forward keeps; what the loss needs beside it
 * in forward, in backward; what the head's weight gradient needs. */
typedef struct stw_megatron_loss {
    uint64_t kept, logits, forward, backward, head;
    uint64_t predictions; /* of multi-token prediction: what all its losses keep */
} stw_megatron_loss;

stw_megatron_loss stw_megatron_loss_of(const stw_job *job);
/** What deferred weight gradients of the head keep of earlier micro batches on the last stage. */
uint64_t stw_megatron_deferred_bytes(const stw_job *job);
/** The global buffer that stays from the first forward on: rows that sequence parallelism gathers,
 * or scores of unfused attention. */
uint64_t stw_megatron_buffer_bytes(const stw_job *job);
/** A row of hidden states of a micro batch: what pipeline stages send. */
uint64_t stw_megatron_hidden_bytes(const stw_job *job);
/** Elements of q, k and v that a context-parallel ring moves: keys and values of a micro batch. */
uint64_t stw_megatron_key_value_bytes(const stw_job *job, uint32_t group);
/** Of linear attention under context parallelism: what two all-to-alls send, rows of all heads out
 * and back; 0 otherwise. */
uint64_t stw_megatron_heads_sent_bytes(const stw_job *job, uint32_t group);

/** What products hold from the first forward on, beside the workspace that the load leaves: that of
 * the thread of the backward, TransformerEngine's own and its dummy gradients. */
uint64_t stw_megatron_work_areas(const stw_job *job, const stw_megatron_params *params);
/** Do rotary embeddings turn query and key? */
bool stw_megatron_turns(const stw_job *job);
/** Do queries have a norm, and does their product make a gate of attention's output, too
 * (attention_output_gate)? */
bool stw_megatron_has_query_norm(const stw_job *job, uint32_t group);
bool stw_megatron_has_output_gate(const stw_job *job, uint32_t group);
/** Are the layers those of TransformerEngine? */
bool stw_megatron_te(const stw_job *job);
/** Do their products add weight gradients to the main gradients themselves? */
bool stw_megatron_fuses_grads(const stw_job *job);
/** Of the embedding's output, if there is dropout. */
uint64_t stw_megatron_embedding_mask_bytes(const stw_job *job);
/** What the first stage keeps before and between its blocks: masks of the embeddings' outputs, if
 * there is dropout; input and output of an encoder's final norm. */
uint64_t stw_megatron_outer_bytes(const stw_job *job);

#endif
