/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one decoder layer in forward and backward, in torch's order. */
#ifndef STW_PLAN_FSDP2_LAYER_H
#define STW_PLAN_FSDP2_LAYER_H

#include "plan/job/job.h"
#include "plan/program/tensors.h"

/** What a norm keeps for its backward: the input in fp32, reciprocal roots, the normalised input.
 */
typedef struct stw_torch_norm {
    uint32_t wide, root, normed;
    uint32_t with; /* a tensor that goes when backward has used all of them */
} stw_torch_norm;

/** What a norm works on. */
typedef struct stw_torch_shape {
    uint64_t width, rows; /* elements of a token, in so many rows that are normalised apart */
    bool frozen;          /* its weight has no gradient */
    bool again;           /* its forward was recomputed */
} stw_torch_shape;

/** Products of a layer, those of attention and MLP from the last one on. */
typedef enum stw_torch_product {
    STW_TORCH_O,
    STW_TORCH_V,
    STW_TORCH_K,
    STW_TORCH_Q,
    STW_TORCH_MLP,
    STW_TORCH_DOWN = STW_TORCH_MLP,
    STW_TORCH_UP,
    STW_TORCH_GATE,
    STW_TORCH_N_PRODUCTS
} stw_torch_product;

/** What a layer keeps for its backward. */
typedef struct stw_torch_saved {
    stw_torch_norm first, q_norm, k_norm, second;
    uint32_t normed_first, q, k, v, attended, lse, normed_second;
    uint32_t gate, active, up, product; /* the MLP, or its shared experts */
    uint32_t probs, copies, e_gate, e_active, e_product, e_down, order[3]; /* routed experts */
    uint32_t low[STW_TORCH_N_PRODUCTS]; /* outputs of LoRA's first products */
    uint32_t hidden;                    /* the layer's input, where the layer is recomputed */
} stw_torch_saved;

typedef struct stw_torch_layer {
    stw_builder *b;
    const stw_job *job;
    const stw_block_facts *facts;
    bool constant;       /* its input has no gradient */
    uint32_t scaled;     /* the gradient of LoRA's part of the last product, where it is there */
    bool qk_norm, again; /* again: backward of a recomputed layer */
    uint32_t n_tensors;
    const uint32_t *tensors; /* [n_tensors] of the model, in the order of registration */
    uint32_t *grads;         /* [n_tensors] out: unsharded gradients */
} stw_torch_layer;

/** Are all tensors of such a layer known? Softmax attention by a fused kernel, an MLP, experts or
 * both. */
bool stw_torch_layer_is_known(const stw_job *job, const stw_block_facts *facts);
stw_torch_norm stw_torch_norm_forward(stw_builder *b, const stw_job *job,
                                      const stw_torch_shape *shape, bool keep, uint32_t *out);
/** Does LoRA add to a product? */
bool stw_torch_is_adapted(const stw_torch_layer *l, stw_torch_product which);
/** @param grad of its output: goes; the gradient of its input is returned
 * @param weight out: the gradient of its weight; NULL: it has none */
uint32_t stw_torch_norm_backward(stw_builder *b, const stw_job *job, const stw_torch_shape *shape,
                                 stw_torch_norm *norm, uint32_t grad, uint32_t *weight);
/** @param keep what backward needs stays (in *saved), and the layer's last product is left out
 * where `again` (torch's checkpoint stops there); else everything goes
 * @return the layer's output; STW_NO_TENSOR where `again` */
uint32_t stw_torch_layer_forward(stw_torch_layer *l, bool keep, bool again, stw_torch_saved *saved);
/** @param grad of the output: goes
 * @return the gradient of the input */
uint32_t stw_torch_layer_backward(stw_torch_layer *l, uint32_t grad, stw_torch_saved *saved);

#endif
