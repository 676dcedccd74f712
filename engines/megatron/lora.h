/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters beside frozen products of TransformerEngine. Sources: lora.c. All figures are per micro
 * batch. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_LORA_H
#define STW_ENGINES_MEGATRON_LORA_H

#include "plan/job/job.h"

/** What adapters of a block hold on a rank. */
typedef struct stw_megatron_lora {
    uint64_t saved;    /* what their backward needs */
    uint64_t unsaved;  /* inputs of products that keep none because they are frozen */
    uint64_t backward; /* beside what is saved, at the widest moment of the backward */
} stw_megatron_lora;

stw_megatron_lora stw_megatron_lora_of(const stw_job *job, uint32_t group);
/** Slot of stw_engine. */
uint32_t stw_megatron_adapted(const stw_tensor *tensor);
/** Are there adapters? They alone are trained then. */
bool stw_megatron_has_lora(const stw_run_spec *run);
/** Part of stw_engine_spec.check. */
STW_MUST_USE stw_status stw_megatron_check_lora(const stw_run_spec *run, const char *origin,
                                                stw_error *err);

#endif
