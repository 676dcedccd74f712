/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds between the keys of a cluster. Pure functions; any thread may call. */
#ifndef STW_PLAN_CLUSTER_CHECK_H
#define STW_PLAN_CLUSTER_CHECK_H

#include "plan/spec/cluster.h"

/** Tells which keys the file or the settings gave. */
typedef struct stw_cluster_given {
    bool (*has)(const void *context, const char *key);
    const void *context;
} stw_cluster_given;

/** Lower each rate that was not given to the given rate that bounds it: node.pcie.both follows a
 * slower node.pcie.h2d. Contradictions between given keys stay; stw_cluster_check refuses them.
 * @param given NULL: lower every rate to its bound, for measurements that scatter */
void stw_cluster_lower_rates(stw_cluster *cluster, const stw_cluster_given *given);
/** Adapt the keys that were not set; call it after the last setting. node.host.limit keeps its
 * share of node.host.memory, and node.gpu.best_bf16 its share of node.gpu.bf16. Rates are lowered
 * as above. Unused keys are no longer assumed.
 * @param before the cluster before the first setting
 * @param items [n] "KEY=VALUE", all applied settings */
void stw_cluster_follow(const stw_cluster *before, const char *const *items, size_t n,
                        stw_cluster *cluster);

#endif
