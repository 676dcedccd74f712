/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM's local layers as lists of calls (blocks/), on one rank for one micro batch. Pure
 * functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_CALLS_H
#define STW_ENGINES_MEGATRON_CALLS_H

#include "blocks/calls.h"

/** Is the order of all tensors of a group's layers known? Not that of multi-latent, linear, unfused
 * and gated attention, of selective recomputation, dropout, adapters, layers of TransformerEngine,
 * capacity and of other dispatchers than the all-to-all. */
bool stw_local_is_known(const stw_job *job, uint32_t group);
/** Of a group's layers. */
void stw_local_calls(const stw_job *job, uint32_t group, stw_calls *out);
/** Of the last stage: norm, head and loss. @param head out: the head's call */
void stw_local_loss_calls(const stw_job *job, stw_calls *out, uint32_t *head);

#endif
