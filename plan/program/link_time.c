/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: bus bandwidth in NVIDIA/nccl-tests doc/PERFORMANCE.md at 03a204a. Latencies and shares of
 * the bandwidth by protocol: the tuning model of NVIDIA/nccl, src/graph/tuning.cc at b647562
 * (ncclTopoTuneModel: baseLat, hwLat, steps of rings and trees; bandwidths of protocols). */
#include "plan/program/link_time.h"

#include <math.h>

/* Protocols: low latency, 128 bytes, simple. */
enum { LL, LL128, SIMPLE, N_PROTOCOLS };
static const double US = 1e-6;
static const double ring_base[] = {6.6, 14.0, 8.4}, tree_base[] = {6.8, 14.0, 0};
/* of a hop: inside a node by NVLink or by PCIe, between nodes */
static const double ring_nvlink[] = {0.6, 1.9, 3.4}, ring_pcie[] = {1.0, 2.5, 5.7},
                    ring_net[] = {2.7, 4.0, 14.0};
static const double tree_nvlink[] = {0.6, 1.25, 28}, tree_pcie[] = {1.0, 1.9, 28},
                    tree_net[] = {5.0, 8.5, 28};
/* Posting a network operation, in every step of a ring that leaves the node; three times for the
 * simple protocol (getNetOverhead). */
static const double POST[] = {1.0, 1.0, 3.0};

/* Default. What a GPU sends while as much comes, of what one that sends alone reaches: an
 * all-gather and a broadcast (bench/results/constants.md). */
static const double MESSAGES_OF_NVLINK = 0.7;

/* Slower links inside a node are taken for PCIe. */
static const double PCIE_BPS = 64e9;

typedef struct way {
    double ranks, on_node, nodes;
    bool pcie;
    double nvlink_s, nic_s; /* of the bytes of a ring */
} way;

/* Shares of the bandwidth that a protocol reaches (busBw in ncclTopoTuneModel). */
static double ring_share(int protocol, const way *w, bool all_reduce) {
    if (protocol == LL) return w->nodes > 1 || all_reduce ? 1.0 / 4 : 1.0 / 3;
    return protocol == LL128 ? 0.92 : 1.0;
}

static double tree_share(int protocol, const way *w) {
    if (protocol == LL) return 0.92 / 3.8;
    return 0.92 * (protocol == SIMPLE ? 1.0 : w->nodes > 1 ? 120.0 / 128 : 7.0 / 9);
}

static double ring_latency(int protocol, const way *w, bool all_reduce) {
    const double steps = (all_reduce ? 2 : 1) * (w->ranks - 1);
    const double between = w->nodes > 1 ? (all_reduce ? 2 * w->nodes : w->nodes - 1) : 0;
    double hop = (w->pcie ? ring_pcie : ring_nvlink)[protocol];
    if (w->nodes > 1 && hop < POST[protocol]) hop = POST[protocol];
    return US *
           (ring_base[protocol] + fmax(steps - between, 0) * hop + between * ring_net[protocol]);
}

static double tree_latency(int protocol, const way *w) {
    const double hop = (w->pcie ? tree_pcie : tree_nvlink)[protocol];
    return US * (tree_base[protocol] +
                 2 * ((w->on_node - 1) * hop + floor(log2(w->nodes)) * tree_net[protocol]));
}

static void take_best(stw_link_time *best, double *least, double calls, double latency_s,
                      double share, const way *w) {
    const double moves = fmax(w->nvlink_s, w->nic_s) / share, whole = calls * latency_s + moves;
    if (whole >= *least) return;
    *least = whole;
    *best = (stw_link_time){
        .startup_s = calls * latency_s, .nvlink_s = w->nvlink_s / share, .nic_s = w->nic_s / share};
}

static way way_of(const stw_cluster *c, uint32_t ranks, uint32_t on_node) {
    return (way){.ranks = ranks,
                 .on_node = on_node > 0 ? on_node : 1,
                 .nodes = on_node > 0 ? ceil((double)ranks / on_node) : ranks,
                 .pcie = c->nvlink_bps < PCIE_BPS};
}

static double per(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

/* Across nodes, each rank of a node runs one ring through its own NIC. A NIC therefore carries the
 * traffic of one ring divided by the ranks per node. Every hop inside a node uses NVLink. */
stw_link_time stw_link_collective(const stw_cluster *cluster, stw_op_kind kind, uint32_t ranks,
                                  uint32_t on_node, double bytes, double calls) {
    stw_link_time best = {0};
    double least = INFINITY;
    if (ranks <= 1) return best;
    way w = way_of(cluster, ranks, on_node);
    const bool all_reduce = kind == STW_OP_ALL_REDUCE;
    const double others = (w.ranks - 1) / w.ranks;
    const double moved = bytes * (kind == STW_OP_SEND ? 1 : all_reduce ? 2 * others : others);
    if (on_node > 1) w.nvlink_s = per(moved, cluster->nvlink_bps);
    if (ranks > on_node) w.nic_s = per(moved, w.on_node * cluster->nic_bps);
    if (kind == STW_OP_SEND) { /* one hop */
        const double hop = w.nodes > 1 ? ring_net[SIMPLE] : ring_nvlink[SIMPLE];
        best = (stw_link_time){calls * US * (ring_base[SIMPLE] + hop), w.nvlink_s, w.nic_s};
        return best;
    }
    for (int p = 0; p < N_PROTOCOLS; p++) {
        take_best(&best, &least, calls, ring_latency(p, &w, all_reduce),
                  ring_share(p, &w, all_reduce), &w);
        if (all_reduce) /* a tree moves all bytes twice */
            take_best(&best, &least, calls, tree_latency(p, &w), tree_share(p, &w) * others, &w);
    }
    return best;
}

/* Sends to all others are issued together (ncclGroupStart): the first hop's latency counts, and
 * posting the rest. */
stw_link_time stw_link_all_to_all(const stw_cluster *cluster, uint32_t ranks, uint32_t on_node,
                                  double bytes, double calls) {
    if (ranks <= 1) return (stw_link_time){0};
    const way w = way_of(cluster, ranks, on_node);
    const double part = bytes / w.ranks, away = w.ranks - w.on_node;
    const double hop = away > 0 ? ring_net[SIMPLE] : ring_nvlink[SIMPLE];
    return (stw_link_time){
        .startup_s = calls * US * (ring_base[SIMPLE] + hop + (away > 0 ? POST[LL] * away : 0)),
        .nvlink_s = on_node > 1 ? per(part * (w.on_node - 1), cluster->nvlink_bps) : 0,
        .nic_s = away > 0 ? per(part * away, cluster->nic_bps) : 0};
}

stw_link_time stw_link_messages(const stw_cluster *cluster, double near_bytes, double far_bytes,
                                double far_messages) {
    const double hop = far_bytes > 0 ? ring_net[SIMPLE] : ring_nvlink[SIMPLE];
    if (near_bytes <= 0 && far_bytes <= 0) return (stw_link_time){0};
    const double near_bps = cluster->messages_bps > 0 ? cluster->messages_bps
                                                      : MESSAGES_OF_NVLINK * cluster->nvlink_bps;
    return (stw_link_time){.startup_s = US * (ring_base[SIMPLE] + hop + POST[LL] * far_messages),
                           .nvlink_s = per(near_bytes, near_bps),
                           .nic_s = per(far_bytes, cluster->nic_bps)};
}
