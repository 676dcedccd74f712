/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of collectives on the links between GPUs: the bytes that each rank's links carry, and the
 * latency of the steps, which grow with the number of ranks. Pure; any thread. */
#ifndef STW_PLAN_LINK_TIME_H
#define STW_PLAN_LINK_TIME_H

#include "plan/program/op.h"

typedef struct stw_link_time {
    double startup_s;       /* latency of all calls */
    double nvlink_s, nic_s; /* busy time of a rank's links; 0: not used */
} stw_link_time;

/** The time of an all-gather, reduce-scatter or all-reduce of `bytes` (its full result), or of a
 * send from one rank to all others, in `calls` parts. `on_node` ranks of the group share a node. */
stw_link_time stw_link_collective(const stw_cluster *cluster, stw_op_kind kind, uint32_t ranks,
                                  uint32_t on_node, double bytes, double calls);
/** The time of an all-to-all: every rank sends an equal part of `bytes` to every other rank over
 * its own link. */
stw_link_time stw_link_all_to_all(const stw_cluster *cluster, uint32_t ranks, uint32_t on_node,
                                  double bytes, double calls);
/** The time of messages between pairs of ranks, issued together.
 * @param near_bytes, far_bytes of the busiest NVLink and the busiest NIC, in one direction
 * @param far_messages of one rank between nodes */
stw_link_time stw_link_messages(const stw_cluster *cluster, double near_bytes, double far_bytes,
                                double far_messages);

#endif
