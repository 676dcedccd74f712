/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a cluster that decide plans and that its file lacks. The defaults apply, which are an
 * H200's. Pure functions; any thread may call. */
#ifndef STW_PLAN_CLUSTER_ASSUMED_H
#define STW_PLAN_CLUSTER_ASSUMED_H

#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"

/** The keys that can be assumed, as words; each value is an index of stw_cluster.assumed. */
extern const stw_spec_word stw_cluster_assumable[];

/** Mark the keys that the document lacks. */
void stw_cluster_assume(stw_cluster *cluster, const stw_node *node);
/** Unmark the keys that this setting gives; `key` may be a map of keys.
 * @param value as in YAML */
void stw_cluster_give(stw_cluster *cluster, const char *key, const char *value);
/** Unmark the keys that this cluster does not use, such as the network of a single node. */
void stw_cluster_forget_unused(stw_cluster *cluster);

#endif
