/* SPDX-License-Identifier: Apache-2.0 */
/* The flex dispatcher with DeepEP (moe.dispatcher: deepep): every token goes once to each rank that
 * has one of its experts, through buffers that are not torch's. Sources: deepep.c. Pure functions
 * of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_DEEPEP_H
#define STW_ENGINES_MEGATRON_DEEPEP_H

#include "engines/megatron/moe.h"

STW_MUST_USE stw_status stw_megatron_check_deepep(const stw_run_spec *run, const char *origin,
                                                  stw_error *err);
bool stw_megatron_uses_deepep(const stw_job *job);
/** Rows that a rank gets, before they are copied for its experts. @param group with experts */
uint64_t stw_megatron_deepep_rows(const stw_job *job, uint32_t group);
/** What routing keeps, and what rows take at the widest moments.
 * @param out its rows at the experts are known */
void stw_megatron_deepep_moe(const stw_job *job, uint32_t group, stw_megatron_moe *out);
/** Bytes of the buffers of a rank, outside of torch's allocator; 0 without DeepEP. */
uint64_t stw_megatron_deepep_bytes(const stw_job *job);

#endif
