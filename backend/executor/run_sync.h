/* SPDX-License-Identifier: Apache-2.0 */
/* The weight sync of a plan, executed: a run stands for the rollout on its GPUs, too. What comes is
 * collected in GPU memory behind the sync's buffers (stw_layout.rollout_offset_bytes), as the
 * rollout's layers hold it. The schedule is that of plan/engines/sync_plan.h. Operations are called
 * from the threads of their streams, the rest from one thread. */
#ifndef STW_BACKEND_EXECUTOR_RUN_SYNC_H
#define STW_BACKEND_EXECUTOR_RUN_SYNC_H

#include "backend/executor/run.h"
#include "backend/executor/sync.h"

typedef struct stw_run_sync {
    const stw_movement *movement;
    stw_sync_schedule *schedule;
    const stw_sync_job *job;
    const stw_sync_view *view;
    stw_sync_device *device;
    uint32_t sets;
    uint64_t base, room;        /* of the buffers, in the GPU arena; bytes of one set */
    stw_comm_message *messages; /* room for those of a round */
    stw_comm_counts counts;     /* of all syncs so far */
    uint64_t version;           /* the step whose weights were received whole; 0: none */
} stw_run_sync;

/** Make the schedule, where the plan has a sync that is executed. */
STW_MUST_USE stw_status stw_run_sync_prepare(stw_rank_run *run, stw_error *err);
/** Once the device is there. */
STW_MUST_USE stw_status stw_run_sync_open(stw_rank_run *run, stw_error *err);
void stw_run_sync_close(stw_rank_run *run);
/** What a round is about, for messages: the tensor with which this rank's part of it begins. */
const char *stw_run_sync_tensor(const stw_rank_run *run, uint32_t round);

/** Is it the movement of the run's sync? */
static inline bool stw_run_sync_is(const stw_rank_run *run, const stw_movement *movement) {
    return run->sync != NULL && run->sync->movement == movement;
}

/* PACK, EXCHANGE and PLACE of that movement. */
STW_MUST_USE stw_status stw_run_sync_pack(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_run_sync_exchange(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_run_sync_place(stw_rank_run *run, const stw_op *op, stw_error *err);

/** A sync ended well. @param before what the communicator had counted when it began */
void stw_run_sync_end(stw_rank_run *run, stw_comm_counts before);
/** Compare digests of what was received last with those of the parameters, tensor by tensor, all
 * bytes; what differs is logged and counts in run->mismatched. Collective. */
STW_MUST_USE stw_status stw_run_sync_verify(stw_rank_run *run, stw_error *err);

#endif
