/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer of an actor of FSDP: the class `optimizer` of the module `optimizer_impl`
 * (verl/workers/config/optimizer.py, build_optimizer). */
#ifndef STW_FRAMEWORKS_VERL_OPTIMIZER_H
#define STW_FRAMEWORKS_VERL_OPTIMIZER_H

#include "planner/frameworks/import/reading.h"

/** Which one it is, and the dtypes of its state. The precision of the rest was set before. */
void stw_verl_set_optimizer(stw_reading *r);
/** Does its state leave the GPU between updates? */
bool stw_verl_parks_moments(stw_reading *r);

#endif
