/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that move between ranks: who sends which bytes to whom, in which round, from which place
 * of which buffer. A pure function of the pieces of all ranks, the same on every rank, made once;
 * plan/sync/pieces.h has the words. Cost: a sort of the pieces of each tensor, and some 200 ns for
 * every pair of a source and a target that meet. */
#ifndef STW_PLAN_SYNC_SCHEDULE_H
#define STW_PLAN_SYNC_SCHEDULE_H

#include "plan/sync/view.h"

typedef struct stw_sync_schedule stw_sync_schedule;

/** Make the schedule. Pieces without elements are valid.
 * @param pool holds everything that the job points to; the schedule takes it, and a failure frees
 * it
 * @return BAD_INPUT with the tensor, the piece and its error, or an element that a target needs
 * and no source has; USAGE for a world of 0 or a bucket below STW_SYNC_LEAST_BUCKET */
STW_MUST_USE stw_status stw_sync_schedule_new(stw_pool *pool, const stw_sync_job *job,
                                              stw_sync_schedule **out, stw_error *err);
void stw_sync_schedule_free(stw_sync_schedule *schedule); /* NULL is fine */
const stw_sync_job *stw_sync_schedule_job(const stw_sync_schedule *schedule);
const stw_sync_lots *stw_sync_schedule_lots(const stw_sync_schedule *schedule);
uint32_t stw_sync_schedule_rounds(const stw_sync_schedule *schedule);
/** Of all decisions and of the boxes, dtypes and ranks behind them: equal where ranks agree. */
uint64_t stw_sync_schedule_sum(const stw_sync_schedule *schedule);
/** What a rank does; made by the first call for it. Any thread may call.
 * @param out belongs to the schedule */
STW_MUST_USE stw_status stw_sync_schedule_view(stw_sync_schedule *schedule, uint32_t rank,
                                               const stw_sync_view **out, stw_error *err);
/** The box of a lot, in which a part lies in C order in its bucket. */
const stw_box *stw_sync_schedule_lot(const stw_sync_schedule *schedule, uint32_t lot);

#endif
