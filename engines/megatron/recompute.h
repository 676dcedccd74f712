/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of Megatron-LM that recompute what a plan recomputes. Pure; any thread. */
#ifndef STW_ENGINES_MEGATRON_RECOMPUTE_H
#define STW_ENGINES_MEGATRON_RECOMPUTE_H

#include "plan/job/job.h"
#include "plan/program/decisions.h"

/** What --recompute-granularity full needs. */
typedef struct stw_megatron_recompute {
    const char *method; /* uniform or block; NULL: nothing is recomputed, or no arguments do that */
    uint64_t num_layers;
    bool any; /* is anything recomputed? */
} stw_megatron_recompute;
stw_megatron_recompute stw_megatron_recompute_of(const stw_job *job,
                                                 const stw_decisions *decisions);

/** See stw_engine.acts_note. */
void stw_megatron_acts_note(const stw_job *job, const stw_decisions *decisions, char *out,
                            size_t out_size);

#endif
