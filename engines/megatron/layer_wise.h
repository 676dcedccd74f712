/* SPDX-License-Identifier: Apache-2.0 */
/* The layer-wise distributed optimizer: each data-parallel rank has the state of whole matrices.
 * Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_LAYER_WISE_H
#define STW_ENGINES_MEGATRON_LAYER_WISE_H

#include "engines/megatron/params.h"

/** Does the run deal matrices to ranks? */
bool stw_megatron_deals(const stw_job *job);
/** Deal the matrices of a list, dense ones or those of experts: fills `owner` of each, and
 * dealt_padded, dealt_share and dealt_rank. Does nothing where the run does not.
 * @param full elements of a bucket; UINT64_MAX: there is one for each chunk of the model */
STW_MUST_USE stw_status stw_megatron_deal(const stw_job *job, stw_megatron_params *params,
                                          bool expert, uint64_t full, stw_error *err);

#endif
