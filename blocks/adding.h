/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that blocks of transformers have in common, one after the other. One thread; nothing to
 * free. */
#ifndef STW_BLOCKS_ADDING_H
#define STW_BLOCKS_ADDING_H

#include "blocks/calls.h"

/** A list that is being made of a block. */
typedef struct stw_adding {
    const stw_job *job;
    const stw_block *block;
    const stw_block_facts *facts;
    uint64_t rows, own_rows; /* tokens or patches; those that the rank has between products */
    uint64_t element;        /* bytes, in the dtype of computation */
    uint32_t tp;
    stw_part part; /* of calls from now on */
    stw_calls *out;
    uint64_t *bytes; /* sizes of the last call */
} stw_adding;

/** Begin a block's list. @param out empty, with its input afterwards */
stw_adding stw_add_begin(const stw_job *job, uint32_t block, stw_calls *out);

/* ---- weights: numbers of the block's tensors ---- */

const stw_tensor *stw_adding_tensor(const stw_adding *a, uint32_t weight);
/** The block's weight, of several the first or the last one; no routed expert's.
 * @return STW_NO_WEIGHT: it has none */
uint32_t stw_adding_weight(const stw_adding *a, stw_weight weight, bool last);
/** The bias of a weight, or a matrix of its adapter. */
uint32_t stw_adding_beside(const stw_adding *a, uint32_t weight, bool bias, stw_adapter adapter);
/** @param weight may be STW_NO_WEIGHT */
bool stw_adding_trains(const stw_adding *a, uint32_t weight);

/* ---- calls; each returns the value that it makes ---- */

/** Bytes of so many elements of every row. */
uint64_t stw_adding_column(const stw_adding *a, uint64_t width);
/** @param n sizes, of which the output's is `size`; they are 0 in a->bytes */
stw_call *stw_add_call(stw_adding *a, stw_function_kind kind, uint8_t in, int n, int size);
/** After the last call forward has no reference to a value. */
void stw_add_end(stw_adding *a, uint8_t value);
/** The last call reads a part of an input, whose gradient is made of those of all parts. */
void stw_add_part(stw_adding *a, int input);
/** @param second may be STW_NO_VALUE */
uint8_t stw_add_element(stw_adding *a, stw_function_kind kind, uint8_t in, uint8_t second,
                        uint64_t bytes);
/** The gradient has the input's size. */
uint8_t stw_add_resized(stw_adding *a, stw_function_kind kind, uint8_t in, uint64_t bytes,
                        uint64_t in_bytes);
/** @param tokens that are normalised, each in so many rows of together `width` elements */
uint8_t stw_add_norm(stw_adding *a, uint8_t in, uint64_t tokens, uint64_t width, uint64_t rows,
                     uint32_t weight);
/** A product whose weight has no name is a part of another one, whose input is kept. */
uint8_t stw_add_product(stw_adding *a, uint8_t in, uint32_t weight, uint64_t width,
                        uint64_t inputs);
/** A product whose output is transposed: its gradient is copied into rows of tokens. */
uint8_t stw_add_head_product(stw_adding *a, uint8_t in, uint32_t weight, uint64_t width,
                             uint64_t inputs);
/** Attention. @param in queries, keys, values */
uint8_t stw_add_kernel(stw_adding *a, const uint8_t in[3], uint64_t q_heads, uint64_t kv_heads,
                       uint64_t v_dim);

#endif
