/* SPDX-License-Identifier: Apache-2.0 */
/* A list of calls: the functions that a block calls, in the order of forward, with their sizes on
 * one rank for one micro batch. Those of transformers' blocks are made by calls.h and tower.h. Pure
 * functions; any thread. */
#ifndef STW_BLOCKS_LIST_H
#define STW_BLOCKS_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "blocks/function.h"

/* A list lies on stacks, which may be small: see unit.library_stack. The longest one that facts
 * may ask for (rows that are gathered, latents of queries and of keys, an indexer, experts
 * and shared ones) has 35 calls, 36 values and 95 sizes. */
enum { STW_MOST_CALLS = 35, STW_MOST_VALUES = 36, STW_MOST_BYTES = 95 };
/** No value, no weight. */
#define STW_NO_VALUE UINT8_MAX
#define STW_NO_WEIGHT UINT16_MAX
/** The value that is the block's input. */
enum { STW_VALUE_INPUT };

/** Parts of a block. */
typedef enum stw_part {
    STW_PART_NORMS,  /* those of the residual */
    STW_PART_INPUTS, /* their outputs: inputs of attention and MLP */
    STW_PART_ATTENTION,
    STW_PART_MLP,
    STW_N_PARTS
} stw_part;

typedef struct stw_call {
    uint8_t function, part;            /* stw_function_kind, stw_part */
    uint8_t conditions;                /* STW_IF_* that hold for every run */
    uint8_t parts;                     /* inputs that are a part of the value, a bit each */
    uint8_t in[STW_MOST_INPUTS], out;  /* values */
    uint8_t sizes;                     /* the first of its sizes in stw_calls.bytes */
    uint16_t weight[STW_MOST_WEIGHTS]; /* of the block's tensors: matrix, then bias or LoRA's two */
} stw_call;

/** A value is the output of a call, and the input of others. */
typedef struct stw_value {
    uint8_t size;  /* in stw_calls.bytes */
    uint8_t part;  /* stw_part */
    uint8_t ends;  /* the call after which forward has no reference to it */
    uint8_t reads; /* calls whose backward reads it */
    bool constant; /* it has no gradient */
} stw_value;

/** Calls under a checkpoint of their own, which backward does again. */
typedef struct stw_call_region {
    uint8_t first, last;
    uint8_t stop; /* the call with which a recomputation ends */
} stw_call_region;

/** The same for all blocks of a group. */
typedef struct stw_calls {
    const stw_function *table;
    uint64_t rows; /* that gradients of biases are summed over; 0: the micro batch's tokens */
    uint8_t n, n_values, n_ended, n_bytes;
    uint8_t stop; /* the call with which a recomputation ends */
    uint8_t n_regions;
    stw_call_region regions[2];        /* in a block that is not under a checkpoint itself */
    uint8_t to_attention, to_mlp, out; /* values: inputs of both, the block's output */
    stw_call list[STW_MOST_CALLS];
    stw_value values[STW_MOST_VALUES];
    uint8_t ended[STW_MOST_VALUES]; /* values in the order in which forward drops them */
    uint64_t bytes[STW_MOST_BYTES]; /* sizes of the input and of the calls */
} stw_calls;

static inline const stw_function *stw_function_of(const stw_calls *calls, const stw_call *call) {
    return &calls->table[call->function];
}

/* ---- making a list ---- */

/** Begin a list with its input.
 * @param table of the functions that are called */
void stw_calls_begin(stw_calls *out, const stw_function *table, uint64_t input_bytes);
/** Add a call of a function with one input and without weights.
 * @param n sizes, which are 0 as yet
 * @param size of them that of the output
 * @param bytes out: the sizes */
stw_call *stw_calls_add(stw_calls *out, uint8_t function, uint8_t in, int n, int size,
                        uint64_t **bytes);
/** After the last call forward has no reference to a value. */
void stw_calls_end_value(stw_calls *out, uint8_t value);
/** What backward reads, which inputs have no gradient, and where a recomputation ends.
 * @param constant the input has no gradient */
void stw_calls_finish(stw_calls *out, bool constant);

typedef struct stw_attention_shape {
    uint64_t rows, element_bytes, q_heads, kv_heads, qk_dim, v_dim;
} stw_attention_shape;
/** Sizes of a call of torch's flash attention (STW_ATTENTION_*). @param bytes out */
void stw_calls_attention_bytes(const stw_attention_shape *shape, uint64_t *bytes);

/** Put the calls of a part under a checkpoint. */
void stw_calls_checkpoint(stw_calls *out, stw_part part);

/** Bytes that the calls of each part save for backward. */
void stw_calls_saved(const stw_calls *calls, uint64_t bytes[STW_N_PARTS]);

#endif
