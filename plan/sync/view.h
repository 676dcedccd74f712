/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank does in every round: messages, and copies to and from its buffers. */
#ifndef STW_PLAN_SYNC_VIEW_H
#define STW_PLAN_SYNC_VIEW_H

#include "plan/sync/lots.h"

/** In the same order on both sides. */
typedef struct stw_sync_message {
    uint32_t peer;
    bool sends;             /* else it comes */
    uint64_t offset, bytes; /* in the send buffer, or the receive buffer */
} stw_sync_message;

/** A box of a target without memory, in C order in the bucket of a round. */
typedef struct stw_sync_part {
    uint32_t tensor, target; /* `target` counts in job.targets */
    stw_box box;
    uint64_t offset; /* bytes, in the bucket */
    bool last;       /* the target is whole with this part */
} stw_sync_part;

/** Elements that one rank copies from one place to another. */
typedef struct stw_sync_copy {
    stw_box box;
    uint32_t source; /* in job.sources; NONE: in a buffer, in C order of `box` */
    uint32_t target; /* in job.targets; NONE: in the send buffer, in C order of `box` */
    uint32_t lot;    /* its box is that of the part, for targets without memory */
    uint64_t from;   /* bytes, in the receive buffer; or, if `sent`, in the send buffer */
    uint64_t to;     /* bytes, in the send buffer; or those of the part in the bucket */
    bool sent; /* the rank sends what it has itself: it was packed, and is not read once more */
} stw_sync_copy;

/** Everything of one rank, by rounds: entries first_x[r] to first_x[r + 1] - 1 are of round r. */
typedef struct stw_sync_view {
    uint64_t send_bytes, receive_bytes, bucket_bytes; /* of buffers: the most of any round */
    uint64_t sent_bytes, received_bytes;              /* that travel */
    uint64_t own_bytes;                               /* of targets, from sources of its own */
    uint32_t *first_message, *first_part, *first_pack, *first_place; /* [rounds + 1] */
    stw_sync_message *messages;
    stw_sync_part *parts;
    stw_sync_copy *packs;  /* to the send buffer */
    stw_sync_copy *places; /* from the receive and send buffers and from sources, to targets */
} stw_sync_view;

/** What `rank` does. A sender's buffer holds its grains by the set of ranks that lack them, each
 * group aligned and without gaps inside, grains of more aligned sizes first; a group is one message
 * to each of these ranks, whose receive buffer holds messages in the order of senders and sets.
 * @param pool of the result */
STW_MUST_USE stw_status stw_sync_view_make(stw_pool *pool, const stw_sync_job *job,
                                           const stw_sync_lots *lots, uint32_t rounds,
                                           uint32_t rank, stw_sync_view *out, stw_error *err);

#endif
