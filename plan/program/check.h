/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a layout and its program, which hold for all decisions. Regions of a tier do
 * not overlap and cover each component's space exactly once. Buckets cover the optimizer space, or
 * there are none because the engine prefetches by group. Every free has its alloc. No operation
 * reads bytes that are not allocated. `after` names earlier operations of other streams. Every
 * collective names its group. A movement that writes to NVMe commits. Pure function, any thread. */
#ifndef STW_PLAN_PROGRAM_CHECK_H
#define STW_PLAN_PROGRAM_CHECK_H

#include "plan/program/program.h"

/** BUG names the first violation. */
STW_MUST_USE stw_status stw_program_check(const stw_job *job, const stw_layout *layout,
                                          const stw_program *program, stw_error *err);

#endif
