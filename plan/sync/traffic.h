/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that every rank moves in every round of a schedule, without the lists of what they are: for
 * planning. They are those of the views (plan/sync/view.h), at a small part of their cost. */
#ifndef STW_PLAN_SYNC_TRAFFIC_H
#define STW_PLAN_SYNC_TRAFFIC_H

#include "plan/sync/schedule.h"

/** Bytes of one rank in one round. */
typedef struct stw_sync_load {
    uint64_t send_room, receive_room, bucket_room; /* of its buffers */
    uint64_t packed;                               /* written into the send buffer */
    uint64_t near_sent, near_received;             /* from and to ranks of its node */
    uint64_t far_sent, far_received;               /* those of other nodes */
    uint64_t placed;                               /* of its targets */
    uint64_t own;                                  /* of them, from sources of its own, */
    uint64_t own_sent;                             /* which were packed, and are not read again */
    uint32_t messages, far_messages;               /* that leave or come; between nodes */
} stw_sync_load;

/** Bytes of one set of a rank's buffers. */
static inline uint64_t stw_sync_room(const stw_sync_load *load) {
    return load->send_room + load->receive_room + load->bucket_room;
}

/** Go through the rounds in order. Ranks of a node are neighbours.
 * @param take called once a round with the loads of all ranks, [world] */
STW_MUST_USE stw_status stw_sync_traffic(const stw_sync_schedule *schedule, uint32_t ranks_per_node,
                                         void (*take)(void *state, const stw_sync_load *loads),
                                         void *state, stw_error *err);

#endif
