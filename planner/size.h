/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the smallest machine of a kind on which a run fits, and how far that machine goes. */
#ifndef STW_PLANNER_SIZE_H
#define STW_PLANNER_SIZE_H

#include "plan/files/size.h"
#include "planner/point.h"

typedef struct stw_size_options {
    double time_limit_s; /* of each point */
    uint32_t jobs;       /* threads; 0: as many as cores */
} stw_size_options;

/** Part of a node: memory, cores, bandwidths and disks in proportion to its GPUs. */
void stw_size_part_of_node(const stw_cluster *node, uint32_t gpus, stw_cluster *out);
/** Answer for each kind: 1, 2, 4, ... GPUs of a node, then 2, 4, 8, ... nodes, then the exact
 * number of nodes by bisection. Where the run's own layout does not fit, others are tried: tensor,
 * pipeline, context and expert parallelism in powers of two, one or two of them, fewest ranks
 * first, as far as neither --set nor the run changes the key. The cluster of `base` is not used.
 * @param answers [n] name and cluster in, the rest out @param pool for strings */
STW_MUST_USE stw_status stw_size_find(const stw_point_base *base, const stw_size_options *options,
                                      stw_pool *pool, stw_size_answer *answers, uint32_t n,
                                      stw_error *err);

#endif
