/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the smallest machine of a kind on which a run fits, and how far that machine goes. */
#ifndef STW_PLANNER_SIZE_H
#define STW_PLANNER_SIZE_H

#include "plan/files/size.h"
#include "planner/point.h"

#define STW_SIZE_TRIED_NODES 16

typedef struct stw_size_options {
    double time_limit_s; /* of each point */
    uint32_t jobs;       /* threads; 0: as many as cores */
} stw_size_options;

/** Part of a node: memory, cores, bandwidths and disks in proportion to its GPUs. */
void stw_size_part_of_node(const stw_cluster *node, uint32_t gpus, stw_cluster *out);
/** Find each answer: the fewest GPUs of a node, tried one by one; else the fewest nodes, tried one
 * by one up to STW_SIZE_TRIED_NODES, then by bisection. On each the layouts of stw_point_fits are
 * searched. The clusters of the bases are not used. Settings that every cluster refuses are rows
 * with the reason; where all answers are such rows, the error of the first of them.
 * @param bases [n] of each answer @param answers [n] model, name and cluster in, the rest out
 * @param pool for strings */
STW_MUST_USE stw_status stw_size_find(const stw_point_base *const *bases,
                                      const stw_size_options *options, stw_pool *pool,
                                      stw_size_answer *answers, uint32_t n, stw_error *err);

#endif
