/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of Megatron-LM that recompute what a plan recomputes. Pure; any thread. */
#ifndef STW_PLAN_MEGATRON_RECOMPUTE_H
#define STW_PLAN_MEGATRON_RECOMPUTE_H

#include "plan/job/job.h"
#include "plan/program/decisions.h"

/** See stw_engine.acts_note. */
void stw_megatron_acts_note(const stw_job *job, const stw_decisions *decisions, char *out,
                            size_t out_size);

#endif
