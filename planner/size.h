/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the smallest cluster of a kind of node on which a run fits, the longest sequence and
 * largest micro batch on it, and the cluster with the fewest GPU-hours. */
#ifndef STW_PLANNER_SIZE_H
#define STW_PLANNER_SIZE_H

#include "plan/files/size.h"
#include "planner/point.h"

typedef struct stw_size_options {
    double time_limit_s; /* for each point */
    uint32_t jobs;       /* threads; 0: as many as cores */
} stw_size_options;

/** Find each answer. The smallest cluster: counts of GPUs in a node, then of nodes, in ascending
 * order, each with every layout of stw_point_fits. If neither a few nodes nor STW_SIZE_MOST_NODES
 * suffice, no count does. The cheapest: size_cheapest.c. If the run names no engine, an engine with
 * tp and pp is tried, too: for everything if the run's own engine fits on no count, for the
 * cheapest cluster if the own engine computes only part of the time. The clusters of the bases are
 * not used. Settings that every cluster refuses give rows with the reason; if all answers are such
 * rows, the first error is returned.
 * @param bases [n] the base of each answer
 * @param answers [n] model, name and cluster in, the rest out
 * @param pool for strings */
STW_MUST_USE stw_status stw_size_find(const stw_point_base *const *bases,
                                      const stw_size_options *options, stw_pool *pool,
                                      stw_size_answer *answers, uint32_t n, stw_error *err);

#endif
