/* SPDX-License-Identifier: Apache-2.0 */
/* The table of functions that a block calls in forward, and autograd in backward: which tensors
 * each of them takes and drops, step by step. A row is a function in one implementation; its source
 * is said in the file of the implementation. Constant data. */
#ifndef STW_BLOCKS_FUNCTION_H
#define STW_BLOCKS_FUNCTION_H

#include <stdbool.h>
#include <stdint.h>

/** Limits of a row. */
enum { STW_MOST_SLOTS = 32, STW_MOST_SIZES = 9, STW_MOST_INPUTS = 3, STW_MOST_WEIGHTS = 3 };

/** Tensors of a call that its caller knows; rows have names of their own for others. */
enum {
    STW_SLOT_OUT,  /* its output */
    STW_SLOT_GRAD, /* the gradient of that */
    STW_SLOT_KNOWN /* what the last call makes of the gradient alone: there before backward */,
    STW_SLOT_FREE /* the first one with a name of the row's own */
};

typedef enum stw_call_act {
    STW_STEP_END,
    STW_STEP_TAKE,
    STW_STEP_NEED, /* take, if it is not there */
    STW_STEP_DROP,
    STW_STEP_RELEASE,     /* backward has read input `slot` */
    STW_STEP_RELEASE_OUT, /* backward has read the output */
    STW_STEP_GRAD,        /* take the gradient of weight `slot` of the call */
    STW_STEP_SUM,         /* sum into it over so many rows as the size has in fp32 (size 0: over
                             tokens): room for partial sums comes and goes */
    STW_STEP_NEXT,        /* take the gradient of the MLP's next matrix, from the last one on */
    STW_STEP_REST,        /* take all gradients of the MLP (slot 1: attention) that are left */
    STW_STEP_ADD,         /* add to the gradient of input `size`, or to those of its parts, of which
                             the gradient is made when all are there */
    STW_STEP_ADD_VIEW,    /* the same with a view, which sums are not made into */
    STW_STEP_PASS, /* the output's gradient is that of both inputs; the first one keeps it, unless
                      it is constant */
    STW_STEP_STOP  /* what checkpoint recomputes ends here: nothing more is taken */
} stw_call_act;

/** Conditions of a step: of the call, and of the run. */
enum {
    STW_IF_TRAINED = 1,   /* the weight has a gradient */
    STW_IF_BIASED = 2,    /* a bias has one */
    STW_IF_CONSTANT = 4,  /* the input has none */
    STW_IF_HEADS = 8,     /* the output is transposed: its gradient is copied into rows of tokens */
    STW_IF_KEPT = 16,     /* backward will follow */
    STW_IF_REPEATED = 32, /* forward was recomputed: torch's checkpoint holds what it saved */
    STW_IF_IDLE = 64,     /* nothing of the call has a gradient */
    STW_IF_UNREAD = 128   /* a frozen product: backward reads no input */
};

typedef struct stw_call_step {
    uint8_t act, slot, size;
    uint8_t with, without; /* all of these conditions, none of those */
} stw_call_step;

/** A slot that forward takes and does not drop is saved for backward. */
typedef struct stw_function {
    const stw_call_step *forward, *backward; /* up to STW_STEP_END; backward NULL: only what is
                                                saved is known, and no order */
    uint32_t reads;                          /* inputs that backward reads, a bit each */
    bool reads_out;
    bool adapts; /* it has weights of its own that are trained */
} stw_function;

typedef enum stw_function_kind {
    STW_FUNCTION_NORM,
    STW_FUNCTION_WIDE_NORM,  /* multiplies by its weight in fp32 */
    STW_FUNCTION_LAYER_NORM, /* one kernel, as RMS norms are none */
    STW_FUNCTION_PRODUCT,    /* with a matrix; with LoRA: the next one */
    STW_FUNCTION_ADAPTED_PRODUCT,
    STW_FUNCTION_ROTARY,
    STW_FUNCTION_TURN,       /* rotary, as complex numbers */
    STW_FUNCTION_TURN_PAIRS, /* rotary, of even and odd elements */
    STW_FUNCTION_CONCAT,     /* of two; the gradient of the second one is a view */
    STW_FUNCTION_KEYS, /* of latent attention: each head's part, and the part with positions */
    STW_FUNCTION_PARTIAL_ROTARY, /* of a part of each head */
    STW_FUNCTION_ATTENTION,
    STW_FUNCTION_MASKED_ATTENTION, /* the kernel adds a mask of every pair of tokens */
    STW_FUNCTION_EAGER_ATTENTION,
    STW_FUNCTION_VISION_ATTENTION,    /* of a tower, image by image, with its rotary embeddings */
    STW_FUNCTION_VISION_FLASH,        /* the same of all images at once */
    STW_FUNCTION_CONVOLUTION,         /* of linear attention, with its activation */
    STW_FUNCTION_DELTA_RULE,          /* with its decay and step width */
    STW_FUNCTION_REPEATED_DELTA_RULE, /* of fewer key heads than value heads */
    STW_FUNCTION_GATED_NORM,
    STW_FUNCTION_OTHER_ATTENTION, /* indexers: what they save, as one */
    STW_FUNCTION_ACTIVATION,
    STW_FUNCTION_SIGMOID,
    STW_FUNCTION_GATE, /* activated gate times up */
    STW_FUNCTION_EXPERTS,
    STW_FUNCTION_PART,         /* a part that is copied, in an order that is not known */
    STW_FUNCTION_WIDE_PRODUCT, /* with a matrix that is cast to fp32 */
    STW_FUNCTION_SOFTMAX_SCORES,
    STW_FUNCTION_SIGMOID_SCORES,
    STW_FUNCTION_WIDE_EXPERTS,   /* scores are an input, in fp32 */
    STW_FUNCTION_GATHER,         /* rows of all ranks of tensor parallelism */
    STW_FUNCTION_RESIZE,         /* a cast, padding, or what is cropped, into a tensor of its own */
    STW_FUNCTION_COPY,           /* of heads, into rows of tokens: the gradient is a view */
    STW_FUNCTION_SUM,            /* of two; the gradient passes to both */
    STW_FUNCTION_REST,           /* gradients of the MLP that no other call has made */
    STW_FUNCTION_REST_ATTENTION, /* of all others */
    STW_N_FUNCTIONS
} stw_function_kind;

/** Of transformers' modules, run operation by operation. */
extern const stw_function stw_functions_eager[STW_N_FUNCTIONS];

/* ---- sizes of the calls of these rows, in bytes ---- */

enum { STW_NORM_WIDE, STW_NORM_NARROW, STW_NORM_ROW, STW_NORM_WEIGHT };
enum { STW_PRODUCT_OUT, STW_PRODUCT_IN, STW_PRODUCT_RANK };
enum { STW_ROTARY_OUT, STW_ROTARY_HALF, STW_ROTARY_PART, STW_N_ROTARY_SIZES };
enum { STW_CONVOLUTION_OUT, STW_CONVOLUTION_PADDED, STW_N_CONVOLUTION_SIZES };
/* Query or key of all value heads and of key heads, value, a number of every head in fp32 and in
 * the dtype of computation, a triangle of every head, states of chunks, the input's three together.
 */
enum {
    STW_RULE_QUERY,
    STW_RULE_KEY,
    STW_RULE_VALUE,
    STW_RULE_ROW,
    STW_RULE_STEP,
    STW_RULE_TRIANGLE,
    STW_RULE_STATES,
    STW_RULE_ALL,
    STW_N_RULE_SIZES
};
enum { STW_TURN_OUT, STW_TURN_WIDE, STW_TURN_TABLE }; /* in fp32, of positions */
/* All heads' parts with positions, and without; the part with positions, which all share. */
enum { STW_KEYS_OUT, STW_KEYS_TURNED, STW_KEYS_STRAIGHT, STW_KEYS_SHARED };
enum { STW_WIDE_PRODUCT_OUT, STW_WIDE_PRODUCT_IN, STW_WIDE_PRODUCT_WEIGHT };
/* Of all experts, a flag of each; weights and indices of those that are chosen. */
enum { STW_SCORES_ALL, STW_SCORES_FLAGS, STW_SCORES_CHOSEN, STW_SCORES_INDEX };
enum { STW_ATTENTION_Q, STW_ATTENTION_K, STW_ATTENTION_V, STW_ATTENTION_OUT, STW_ATTENTION_ROW };
enum { STW_ATTENTION_WORK = STW_ATTENTION_ROW + 1, STW_N_ATTENTION_SIZES };
/* With a mask: it, and gradients of keys and values of every query head, where there are fewer. */
enum {
    STW_ATTENTION_BIAS = STW_N_ATTENTION_SIZES,
    STW_ATTENTION_ALL_K,
    STW_ATTENTION_ALL_V,
    STW_N_MASKED_SIZES
};
/* Eager attention: copies of keys and values, capped scores, softmax in fp32, its cast. */
enum { STW_EAGER_COPIES, STW_EAGER_CAPPED, STW_EAGER_WIDE, STW_EAGER_OUT, STW_EAGER_CAST };
/* Attention of vision: queries in fp32, half of that, a table of positions in fp32, queries,
 * queries with keys and values, the sums of rows, room for backward. */
enum {
    STW_VISION_WIDE,
    STW_VISION_HALF,
    STW_VISION_TABLE,
    STW_VISION_NARROW,
    STW_VISION_ALL,
    STW_VISION_ROW,
    STW_VISION_WORK,
    STW_N_VISION_SIZES
};
enum { STW_ELEMENTS_OUT, STW_ELEMENTS_IN }; /* of all others; in: of gathers, resizing */
enum {
    STW_EXPERTS_SCORES, /* of all experts: in the dtype of computation, twice as wide, in fp32 */
    STW_EXPERTS_WIDE,
    STW_EXPERTS_PROBS,
    STW_EXPERTS_INDEX, /* of routed rows: indices, hidden states, the width of experts, its gate,
                          both */
    STW_EXPERTS_COPIES,
    STW_EXPERTS_INNER,
    STW_EXPERTS_ACTIVE,
    STW_EXPERTS_BOTH,
    STW_EXPERTS_HIDDEN /* of tokens */
};
/* With scores in fp32: what they weigh, and of routed rows their scores and a flag. */
enum {
    STW_WIDE_EXPERTS_INDEX,
    STW_WIDE_EXPERTS_SCORE,
    STW_WIDE_EXPERTS_FLAG,
    STW_WIDE_EXPERTS_COPIES,
    STW_WIDE_EXPERTS_WEIGHED,
    STW_WIDE_EXPERTS_INNER,
    STW_WIDE_EXPERTS_BOTH,
    STW_WIDE_EXPERTS_HIDDEN,
    STW_WIDE_EXPERTS_SUM,
    STW_N_WIDE_EXPERTS_SIZES
};

#endif
