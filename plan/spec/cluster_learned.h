/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of a cluster that were learned from a recorded job. Plans use the key that holds the
 * value; the map `learned` of cluster.yaml names the recording. If the key is changed afterwards,
 * the entry no longer holds. Pure functions; any thread may call. */
#ifndef STW_PLAN_CLUSTER_LEARNED_H
#define STW_PLAN_CLUSTER_LEARNED_H

#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"

/** The key of a learned value: "node.torch.process". */
const char *stw_learned_key(stw_learnable which);
/** A name for reports: "process base". */
const char *stw_learned_what(stw_learnable which);
/** True if the value is a size in bytes; else it is a number. */
bool stw_learned_is_size(stw_learnable which);
/** "1.98 GiB", "0.43". @param value of this key */
void stw_learned_format(stw_learnable which, stw_learned_value value, char *out, size_t out_size);
/** Returns the key's present value. */
stw_learned_value stw_cluster_learnable(const stw_cluster *cluster, stw_learnable which);
/** True if the key was learned and still holds the learned value. */
bool stw_cluster_holds_learned(const stw_cluster *cluster, stw_learnable which);
/** Set the key and its entry. `entry->was` is ignored; the function stores the key's value before
 * anything was learned. */
void stw_cluster_learn(stw_cluster *cluster, stw_learnable which, const stw_learned *entry);
/** Copy the learned values of another cluster over fresh measurements, if its GPU has the same
 * name.
 * @return number of values copied */
uint32_t stw_cluster_keep_learned(const stw_cluster *from, stw_cluster *cluster);
/** BAD_INPUT for an incomplete entry. */
STW_MUST_USE stw_status stw_cluster_check_learned(const stw_cluster *cluster, const char *origin,
                                                  stw_error *err);
/** Append "learned from run.json (Qwen3-0.6B, 2026-11-22): process base 1.98 GiB (was 1.36 GiB),
 * ...", one sentence for each recording, then the keys that were changed since.
 * @return number of learned keys, changed ones included */
uint32_t stw_cluster_learned_words(const stw_cluster *cluster, stw_text *out);
/** Copy the rows of `table`, except the rows of entries that were not learned.
 * @param rows room for `most` rows */
stw_spec_table stw_learned_rows(const stw_cluster *cluster, const stw_spec_table *table,
                                stw_spec_row *rows, size_t most);

#endif
