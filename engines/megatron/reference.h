/* SPDX-License-Identifier: Apache-2.0 */
/* A model of Megatron-LM that is not trained: the reference of a trainer in RL. */
#ifndef STW_ENGINES_MEGATRON_REFERENCE_H
#define STW_ENGINES_MEGATRON_REFERENCE_H

#include "plan/program/program.h"

/** Slot of stw_engine. */
STW_MUST_USE stw_status stw_megatron_build_untrained(const stw_job *job, bool on_host,
                                                     stw_program *program, stw_error *err);

#endif
