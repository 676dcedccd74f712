/* SPDX-License-Identifier: Apache-2.0 */
/* AReaL's pipeline stages: layers by their parameters, not by their number. */
#ifndef STW_PLANNER_IMPORT_AREAL_STAGES_H
#define STW_PLANNER_IMPORT_AREAL_STAGES_H

#include "planner/frameworks/import/reading.h"

/** Set megatron.pipeline_layout where stages differ in their number of layers.
 * @param stages pipeline stages of all ranks together
 * @param ep ranks that share the experts */
void stw_areal_set_stages(stw_reading *r, const stw_model *model, uint32_t stages, uint32_t ep);

#endif
