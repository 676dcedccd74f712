/* SPDX-License-Identifier: Apache-2.0 */
/* A weight sync of Stowage's own as a movement: the rounds of the schedule that the library
 * executes (stw_plan_sync), with the buffers that it needs. It is planned; no run of stowage-run
 * issues it yet. */
#ifndef STW_ENGINES_PIECE_SYNC_H
#define STW_ENGINES_PIECE_SYNC_H

#include "plan/program/builder.h"

/** The movement; nothing without a rollout role. The partition is that of partition.h. */
void stw_build_piece_sync(stw_builder *b);

#endif
