/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of a cluster that a recorded job has taught: where each value comes from. The value
 * stands under its own key, which is what plans use; the map `learned` of cluster.yaml says who
 * measured it. If that key is changed afterwards, the entry no longer holds. Pure functions; any
 * thread may call. */
#ifndef STW_PLAN_CLUSTER_LEARNED_H
#define STW_PLAN_CLUSTER_LEARNED_H

#include "plan/spec/cluster.h"
#include "plan/spec/spec_keys.h"

/** The key that the value is of: "node.torch.process". */
const char *stw_learned_key(stw_learnable which);
/** What it is, for people: "process base". */
const char *stw_learned_what(stw_learnable which);
/** Is the value a size, else a number? */
bool stw_learned_is_size(stw_learnable which);
/** "1.98 GiB", "0.43". @param value of this key */
void stw_learned_format(stw_learnable which, stw_learned_value value, char *out, size_t out_size);
/** What the key holds. */
stw_learned_value stw_cluster_learnable(const stw_cluster *cluster, stw_learnable which);
/** Was the key learned, and does it still hold that value? */
bool stw_cluster_holds_learned(const stw_cluster *cluster, stw_learnable which);
/** Set the key and its entry. `entry->was` is ignored: it is the key's value before anything was
 * learned. */
void stw_cluster_learn(stw_cluster *cluster, stw_learnable which, const stw_learned *entry);
/** Take over what another cluster of the same GPUs has learned, above fresh measurements. @return
 * how many values */
uint32_t stw_cluster_keep_learned(const stw_cluster *from, stw_cluster *cluster);
/** BAD_INPUT for an entry of which a part is missing. */
STW_MUST_USE stw_status stw_cluster_check_learned(const stw_cluster *cluster, const char *origin,
                                                  stw_error *err);
/** Append "learned from run.json (Qwen3-0.6B, 2026-11-22): process base 1.98 GiB (was 1.36 GiB),
 * ...", one sentence for each recording, then keys that were changed since. @return how many keys
 * were learned, changed ones too */
uint32_t stw_cluster_learned_words(const stw_cluster *cluster, stw_text *out);
/** The rows of a cluster without those of what was not learned. @param rows room for `most` of
 * them @param table whose rows are copied */
stw_spec_table stw_learned_rows(const stw_cluster *cluster, const stw_spec_table *table,
                                stw_spec_row *rows, size_t most);

#endif
