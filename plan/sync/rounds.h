/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds: which lots travel together. Each role of a rank (it sends, it receives, it has targets
 * without memory) has a part of the buffers, in proportion to what it moves in all and never less
 * than an eighth. A lot goes to the first round that has room for it on every rank that it
 * concerns: ranks whose tensors come late in the order work from the beginning, too. */
#ifndef STW_PLAN_SYNC_ROUNDS_H
#define STW_PLAN_SYNC_ROUNDS_H

#include "plan/sync/lots.h"

/** Fill stw_sync_lot.round. @param rounds receives how many there are */
STW_MUST_USE stw_status stw_sync_rounds_fill(const stw_sync_job *job, stw_sync_lots *lots,
                                             uint32_t *rounds, stw_error *err);

#endif
