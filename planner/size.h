/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the smallest cluster of a kind on which a run fits, how far it goes, and the cluster
 * with the fewest GPU-hours. */
#ifndef STW_PLANNER_SIZE_H
#define STW_PLANNER_SIZE_H

#include "plan/files/size.h"
#include "planner/point.h"

typedef struct stw_size_options {
    double time_limit_s; /* of each point */
    uint32_t jobs;       /* threads; 0: as many as cores */
} stw_size_options;

/** Find each answer. The smallest: counts of GPUs of a node, then of nodes, one by one from below,
 * each with every layout of stw_point_fits; where neither few nodes nor STW_SIZE_MOST_NODES are
 * enough, none is. The cheapest: size_cheapest.c. Where the run says no engine, one that cuts
 * layers (tp, pp) is tried, too: for all where the run's own fits on no count, for the cheapest
 * where that computes for a part of its time only. The clusters of the bases are not used. Settings
 * that every cluster refuses are rows with the reason; where all answers are such rows, the error
 * of the first of them.
 * @param bases [n] of each answer @param answers [n] model, name and cluster in, the rest out
 * @param pool for strings */
STW_MUST_USE stw_status stw_size_find(const stw_point_base *const *bases,
                                      const stw_size_options *options, stw_pool *pool,
                                      stw_size_answer *answers, uint32_t n, stw_error *err);

#endif
