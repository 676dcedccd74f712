/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a layout and its program: what must hold whatever was decided. Regions of a
 * tier do not overlap and cover each component's space exactly once; buckets cover the optimizer
 * space, or there are none where the engine prefetches by group; every free has its alloc; no
 * operation reads what was not there; `after` names earlier operations of other streams; every
 * collective names its group; what writes to NVMe commits. Pure function, any thread. */
#ifndef STW_PLAN_PROGRAM_CHECK_H
#define STW_PLAN_PROGRAM_CHECK_H

#include "plan/program/program.h"

/** BUG names the first violation. */
STW_MUST_USE stw_status stw_program_check(const stw_job *job, const stw_layout *layout,
                                          const stw_program *program, stw_error *err);

#endif
