/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of one weight sync after another, queued ahead of the device as far as two sets of
 * buffers allow: round r + 1 is packed and sent while round r is placed. The caller is asked for
 * what the loop cannot do itself, one step at a time. */
#ifndef STW_BACKEND_EXECUTOR_SYNC_LOOP_H
#define STW_BACKEND_EXECUTOR_SYNC_LOOP_H

#include "backend/comm/lent.h"
#include "backend/executor/sync.h"

#define STW_SYNC_SETS 2

typedef struct stw_sync_buffers {
    void *send, *receive, *bucket;
} stw_sync_buffers;

/** What a step asks for. */
typedef enum stw_sync_action {
    STW_SYNC_DONE,    /* nothing: all rounds are placed */
    STW_SYNC_POST,    /* begin the messages of the round, after the work of the comm stream */
    STW_SYNC_RECEIVE, /* wait for them: all, or the place stream alone */
    STW_SYNC_RELEASE, /* let the place stream wait until the set's bucket was taken */
    STW_SYNC_TAKE,    /* take what the bucket holds */
    STW_SYNC_WAIT     /* call again: the round is still under way */
} stw_sync_action;

/** How rounds are run. Streams are native ones; the host backend looks at none. */
typedef struct stw_sync_loop_options {
    stw_sync_buffers sets[STW_SYNC_SETS];
    void *pack, *comm, *place, *take;
    void *lent; /* a communicator that sends the messages; NULL: STW_SYNC_POST, STW_SYNC_RECEIVE */
    const stw_lent_ops *with; /* what it is one of; NULL: NCCL */
    bool releases;    /* STW_SYNC_RELEASE is asked for: buckets are taken by more than work of the
                       * take stream, by another process or by threads */
    double timeout_s; /* of NCCL, to connect two ranks */
} stw_sync_loop_options;

typedef struct stw_sync_step {
    stw_sync_action action;
    uint32_t round, set;
} stw_sync_step;

typedef struct stw_sync_loop stw_sync_loop;

/** @param device must outlive the loop
 * @return NOT_BUILT_IN or DEVICE for `lent` where there is no NCCL */
STW_MUST_USE stw_status stw_sync_loop_open(stw_sync_device *device, uint32_t rounds,
                                           stw_sync_loop **out, stw_error *err);
void stw_sync_loop_close(stw_sync_loop *loop); /* NULL is fine */
/** Begin a sync: what the take stream has queued comes first. One that had not ended is given up.
 */
STW_MUST_USE stw_status stw_sync_loop_begin(stw_sync_loop *loop,
                                            const stw_sync_loop_options *options, stw_error *err);
/** Go on to the next thing that the caller has to do; the call says that the last one is done, or
 * queued. An error leaves `out->round` at the round that it is about. */
STW_MUST_USE stw_status stw_sync_loop_step(stw_sync_loop *loop, stw_sync_step *out, stw_error *err);

#endif
