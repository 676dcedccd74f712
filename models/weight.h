/* SPDX-License-Identifier: Apache-2.0 */
/* Which weight of its block a tensor is. Engines ask this and look at no name: a template's row
 * says it, and where it does not, or where a model is a list of tensors, the name does. */
#ifndef STW_MODELS_WEIGHT_H
#define STW_MODELS_WEIGHT_H

#include <stdbool.h>

/* Of a weight and its bias alike. */
typedef enum stw_weight {
    STW_WEIGHT_OTHER, /* nothing asks which */
    STW_WEIGHT_EMBED,
    STW_WEIGHT_POSITION, /* table of learned positions */
    STW_WEIGHT_PATCH,    /* makes vectors of image patches */
    STW_WEIGHT_HEAD,
    STW_WEIGHT_NORM,
    STW_WEIGHT_Q_NORM, /* of queries, per head or over all */
    STW_WEIGHT_K_NORM,
    STW_WEIGHT_Q,
    STW_WEIGHT_K,
    STW_WEIGHT_V,
    STW_WEIGHT_KV,      /* keys and values in one */
    STW_WEIGHT_QKV,     /* queries, keys and values in one */
    STW_WEIGHT_Q_DOWN,  /* to the low rank of latent attention */
    STW_WEIGHT_Q_UP,    /* from it */
    STW_WEIGHT_KV_DOWN, /* to the low rank and the rotary part of the key */
    STW_WEIGHT_KV_UP,
    STW_WEIGHT_O, /* of attention's output */
    STW_WEIGHT_SINKS,
    STW_WEIGHT_LINEAR_IN,    /* all that linear attention makes of its input */
    STW_WEIGHT_CONVOLUTION,  /* of linear attention */
    STW_WEIGHT_LINEAR_STATE, /* decay and step width of linear attention, per head */
    STW_WEIGHT_GATE,
    STW_WEIGHT_UP,
    STW_WEIGHT_GATE_UP, /* both in one; `up` alone where the block is not gated */
    STW_WEIGHT_DOWN,
    STW_WEIGHT_ROUTER,
    STW_WEIGHT_SHARED_GATE, /* scales the output of shared experts */
    STW_N_WEIGHTS
} stw_weight;

/* The module of the block in which a tensor lies. */
typedef enum stw_module {
    STW_MODULE_NONE, /* the block itself: norms between modules, embeddings, head */
    STW_MODULE_ATTENTION,
    STW_MODULE_LINEAR_ATTENTION,
    STW_MODULE_MLP, /* a dense MLP; routers, too */
    STW_MODULE_EXPERTS,
    STW_MODULE_SHARED_EXPERTS
} stw_module;

/* Of LoRA's two matrices: "<module>.lora_A.weight", which has the product's inputs, and
 * "<module>.lora_B.weight", which has its outputs. */
typedef enum stw_adapter { STW_ADAPTER_NONE, STW_ADAPTER_A, STW_ADAPTER_B } stw_adapter;

typedef struct stw_weight_use {
    stw_weight weight; /* of an adapter: that of the product which it belongs to */
    stw_module module;
    stw_adapter adapter;
    bool bias;
} stw_weight_use;

/** What a tensor's name says of it. */
stw_weight_use stw_weight_of_name(const char *name);
/** The word for a weight in templates and plan files: "q", "gate_up". */
const char *stw_weight_name(stw_weight weight);
/** @return false: no weight has this word */
bool stw_weight_parse(const char *word, stw_weight *out);

static inline bool stw_module_is_mlp(stw_module m) {
    return m == STW_MODULE_MLP || m == STW_MODULE_EXPERTS || m == STW_MODULE_SHARED_EXPERTS;
}
static inline bool stw_module_is_attention(stw_module m) {
    return m == STW_MODULE_ATTENTION || m == STW_MODULE_LINEAR_ATTENTION;
}

#endif
