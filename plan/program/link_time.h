/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of collectives on the links between GPUs: the bytes that each rank's links carry, and the
 * latency of the steps, which grow with the number of ranks. Pure; any thread. */
#ifndef STW_PLAN_LINK_TIME_H
#define STW_PLAN_LINK_TIME_H

#include "plan/program/op.h"

typedef struct stw_link_time {
    double startup_s;       /* of all calls: nothing moves yet, or a little on every hop */
    double nvlink_s, nic_s; /* of a rank's links, at their rates; 0: not used */
} stw_link_time;

/** An all-gather, reduce-scatter or all-reduce of `bytes` (its full result) in `calls` parts over a
 * group, of which `on_node` ranks share a node; or a send from one rank to all others. */
stw_link_time stw_link_collective(const stw_cluster *cluster, stw_op_kind kind, uint32_t ranks,
                                  uint32_t on_node, double bytes, double calls);
/** Every rank sends an equal part of `bytes` to every other one, each by its own link. */
stw_link_time stw_link_all_to_all(const stw_cluster *cluster, uint32_t ranks, uint32_t on_node,
                                  double bytes, double calls);
/** Messages between pairs, issued together: the bytes of the busiest NVLink and NIC in one
 * direction, and how many messages a rank has between nodes. */
stw_link_time stw_link_messages(const stw_cluster *cluster, double near_bytes, double far_bytes,
                                double far_messages);

#endif
