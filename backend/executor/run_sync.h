/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the weight sync of a plan. The run also plays the rollout on its GPUs: received weights
 * are collected in GPU memory after the sync's buffers (stw_layout.rollout_offset_bytes), in the
 * form of the rollout's layers. engines/sync_plan.h makes the schedule. Operations are called
 * from the threads of their streams, other functions from one thread. */
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
    uint64_t base, room;        /* offset of the buffers in the GPU arena; bytes of one set */
    stw_comm_message *messages; /* room for the messages of a round */
    stw_comm_counts counts;     /* totals of all syncs so far */
    uint64_t version;           /* the step whose weights were received completely; 0: none */
} stw_run_sync;

/** Make the schedule if the plan has an executed sync. */
STW_MUST_USE stw_status stw_run_sync_prepare(stw_rank_run *run, stw_error *err);
/** Call it after the device is open. */
STW_MUST_USE stw_status stw_run_sync_open(stw_rank_run *run, stw_error *err);
void stw_run_sync_close(stw_rank_run *run);
/** Returns the first tensor of this rank's part of a round, for messages. */
const char *stw_run_sync_tensor(const stw_rank_run *run, uint32_t round);

/** True if this is the movement of the run's sync. */
static inline bool stw_run_sync_is(const stw_rank_run *run, const stw_movement *movement) {
    return run->sync != NULL && run->sync->movement == movement;
}

/* PACK, EXCHANGE and PLACE of that movement. */
STW_MUST_USE stw_status stw_run_sync_pack(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_run_sync_exchange(stw_rank_run *run, const stw_op *op, stw_error *err);
STW_MUST_USE stw_status stw_run_sync_place(stw_rank_run *run, const stw_op *op, stw_error *err);

/** Record that a sync has succeeded. @param before the communicator's counts when it began */
void stw_run_sync_end(stw_rank_run *run, stw_comm_counts before);
/** Compare digests over all bytes of the last received weights with those of the parameters, tensor
 * by tensor. Differences are logged and count in run->mismatched. Collective. */
STW_MUST_USE stw_status stw_run_sync_verify(stw_rank_run *run, stw_error *err);

#endif
