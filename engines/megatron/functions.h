/* SPDX-License-Identifier: Apache-2.0 */
/* The table of functions of Megatron-LM's local layers, and the sizes of their calls in bytes. */
#ifndef STW_ENGINES_MEGATRON_FUNCTIONS_H
#define STW_ENGINES_MEGATRON_FUNCTIONS_H

#include "blocks/function.h"

typedef enum stw_local_function {
    STW_LOCAL_NORM,
    STW_LOCAL_PRODUCT,      /* its weight gradient goes into the main gradient */
    STW_LOCAL_GATHERED,     /* the same of rows that sequence parallelism gathers */
    STW_LOCAL_TIED_PRODUCT, /* the head's with the embedding's weight, whose gradient waits */
    STW_LOCAL_SCATTER,      /* sums of rows; a rank keeps its own */
    STW_LOCAL_COPY,
    STW_LOCAL_ROTARY,
    STW_LOCAL_ATTENTION,
    STW_LOCAL_ACTIVATION,
    STW_LOCAL_EXPERTS,
    STW_LOCAL_SUM,
    STW_LOCAL_LOSS,
    STW_LOCAL_FUSED_LOSS,
    STW_LOCAL_N
} stw_local_function;

enum { STW_LOCAL_OUT, STW_LOCAL_IN, STW_LOCAL_OWN, STW_LOCAL_WEIGHT }; /* of most of them */
enum { STW_LOCAL_ROOT = STW_LOCAL_IN };                                /* of norms */
enum { STW_LOCAL_HALF = STW_LOCAL_IN, STW_LOCAL_TABLE };               /* of rotary embeddings */
enum { STW_LOCAL_WIDE = STW_LOCAL_OWN };                               /* of the loss */
enum {
    STW_LOCAL_ROUTER = STW_LOCAL_IN, /* of experts: what router and permutations keep */
    STW_LOCAL_SENT,                  /* rows that the rank sends, rows that its experts have */
    STW_LOCAL_ROWS,
    STW_LOCAL_FIRST, /* output of the first product, its activation */
    STW_LOCAL_ACTIVE,
    STW_LOCAL_MATRIX /* the gradient of an expert's largest matrix */
};

extern const stw_function stw_functions_local[STW_LOCAL_N];

#endif
