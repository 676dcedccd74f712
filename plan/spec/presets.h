/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters that have a name: `<data>/clusters/`. Any thread may call. */
#ifndef STW_PLAN_PRESETS_H
#define STW_PLAN_PRESETS_H

#include "core/pool.h"
#include "plan/spec/cluster.h"

/** A cluster that has a name. */
typedef struct stw_listed_cluster {
    const char *name, *source;
    const stw_cluster *cluster;
} stw_listed_cluster;

typedef struct stw_presets {
    stw_pool *pool;
    size_t n, capacity;
    stw_listed_cluster *items;
} stw_presets;

/** Read all of them, one node each. The caller frees *out, also on failure.
 * @param data_folder share/stowage */
STW_MUST_USE stw_status stw_presets_read(const char *data_folder, stw_presets *out, stw_error *err);
void stw_presets_free(stw_presets *presets);

/** Read CLUSTER as users give it: a file, "-", a name, "4 x NAME" for that number of nodes, or
 * "NAME:2" (or FILE:2) for two GPUs of a node with their share of it (stw_cluster_part). A name
 * alone is one node. The error lists the nearest names.
 * @param data_folder share/stowage; only read for names */
STW_MUST_USE stw_status stw_cluster_open(const char *what, const char *data_folder,
                                         stw_cluster *out, stw_error *err);
/** True if CLUSTER is a file; false if it is a name, or a part of either. */
bool stw_cluster_is_file(const char *what);
/** True if CLUSTER is a name without a number of nodes. */
bool stw_cluster_is_node(const char *what);

#endif
