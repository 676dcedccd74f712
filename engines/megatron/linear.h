/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that a gated delta net holds on a rank, in the place of softmax attention. Sources:
 * linear.c. All figures are per micro batch. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_LINEAR_H
#define STW_ENGINES_MEGATRON_LINEAR_H

#include "plan/job/job.h"

typedef struct stw_megatron_linear {
    uint64_t saved;       /* what backward needs, beside the norm of the block's input */
    uint64_t forward;     /* beside what is saved, at the widest moment of the forward */
    uint64_t backward;    /* the same of the backward */
    uint64_t weight_grad; /* of its largest matrix */
    uint64_t sent_out,
        sent_back; /* bytes that context parallelism sends before and after the rule */
} stw_megatron_linear;

/** @param te the layers are those of TransformerEngine */
stw_megatron_linear stw_megatron_linear_of(const stw_job *job, uint32_t group, bool te);

#endif
