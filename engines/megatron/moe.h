/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tokens on their way to experts and back, by token dispatcher and capacity. Sources:
 * moe.c. All figures are per micro batch and block. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_MOE_H
#define STW_ENGINES_MEGATRON_MOE_H

#include "engines/megatron/ranks.h"

typedef struct stw_megatron_moe {
    uint64_t rows;              /* that arrive at the experts of this rank */
    uint64_t router;            /* bytes that routing and permutation keep */
    uint64_t forward, backward; /* bytes of rows beside what is kept, at the widest moments */
    uint64_t gathered;          /* rows of all ranks that a dispatcher gathers; 0: it does not */
    uint64_t sent;              /* rows that this rank sends one by one; 0: it does not */
} stw_megatron_moe;

/** @param group with experts */
stw_megatron_moe stw_megatron_moe_of(const stw_job *job, uint32_t group);

#endif
