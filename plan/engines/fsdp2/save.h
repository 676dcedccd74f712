/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of FSDP2 writes into a checkpoint. */
#ifndef STW_PLAN_FSDP2_SAVE_H
#define STW_PLAN_FSDP2_SAVE_H

#include "plan/engines/checkpoint.h"

/** @param place of the rank's state */
stw_save stw_fsdp2_save(const stw_builder *b, const stw_place *place);

#endif
