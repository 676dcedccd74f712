/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a cluster that decide plans, and that its file did not give: their defaults, which are
 * those of an H200, stand in for them. Pure functions; any thread may call. */
#ifndef STW_PLAN_CLUSTER_ASSUMED_H
#define STW_PLAN_CLUSTER_ASSUMED_H

#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"

/** Their words, the keys; each value is an index of stw_cluster.assumed. */
extern const stw_spec_word stw_cluster_assumable[];

/** Mark those that the document lacks. */
void stw_cluster_assume(stw_cluster *cluster, const stw_node *node);
/** Setting `key`, also as a map of keys, gives it.
 * @param value as in YAML */
void stw_cluster_give(stw_cluster *cluster, const char *key, const char *value);
/** Unmark those that this cluster does not use, as the network of one node. */
void stw_cluster_forget_unused(stw_cluster *cluster);

#endif
