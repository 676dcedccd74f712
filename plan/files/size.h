/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest cluster of a kind of node on which a run fits. planner/size.h finds it; reports show
 * it. A plain value; its strings are in a pool of the caller. */
#ifndef STW_PLAN_SIZE_H
#define STW_PLAN_SIZE_H

#include "models/model.h"
#include "plan/files/sweep.h"
#include "plan/spec/cluster.h"

#define STW_SIZE_MOST_NODES 1024
#define STW_SIZE_MOST_SETTINGS 16

/** Returns the most nodes that the search for the cheapest cluster tries: 16, or 4 times the nodes
 * of the smallest cluster if that is more, up to STW_SIZE_MOST_NODES. */
static inline uint32_t stw_size_bound(uint32_t smallest_nodes) {
    const uint32_t most = smallest_nodes > 4 ? 4 * smallest_nodes : 16;
    return most < STW_SIZE_MOST_NODES ? most : STW_SIZE_MOST_NODES;
}

/** The setup that was planned. */
typedef struct stw_size_setup {
    const char *engine; /* static; NULL: nothing was planned */
    stw_dtype params, grads, exp_avg, exp_avg_sq;
    bool has_master;
    uint64_t step_tokens; /* 0: unknown */
} stw_size_setup;

/** The answer for one model on one kind of node. Strings are in the caller's pool. */
typedef struct stw_size_answer {
    const stw_model *model; /* borrowed */
    const char *name;       /* name of the kind of node */
    stw_cluster cluster;    /* in: one whole node; out: the smallest cluster on which the run
                               fits */
    bool fits;              /* fits on at most STW_SIZE_MOST_NODES nodes; if false, the values below
                               are for that many */
    uint32_t n_settings;    /* a parallel layout other than the run's own, KEY=VALUE */
    const char *settings[STW_SIZE_MOST_SETTINGS];
    stw_sweep_row row; /* the plan on that cluster */
    const char *needs; /* what that plan needs and the framework's own optimizers lack; NULL:
                          nothing */
    bool of_trainer;   /* tokens per second do not include the time of other roles */
    uint64_t longest_seq_len, largest_micro_batch; /* that fit on this cluster, the rest unchanged;
                                                      0: unknown */
    const char *help;                              /* if it does not fit: changes with which it
                                                      does */
    stw_size_setup setup;                          /* the plan's setup; all zeros: no plan */
    /* If the smallest cluster is at risk: the smallest one without risk, of at most stw_size_bound
     * nodes, and its parallel layout (KEY=VALUE, separated by spaces). 0 nodes and NULL: none was
     * found. */
    stw_cluster safe;
    const char *safe_layout;
    stw_cluster cheapest; /* of at most stw_size_bound nodes; 0 nodes: unknown */
    stw_sweep_row cheapest_row;
    stw_size_setup cheapest_setup;
    uint32_t n_cheapest_settings;
    const char *cheapest_settings[STW_SIZE_MOST_SETTINGS];
    double bound_hours; /* GPU-hours per 10^9 tokens for forward and backward alone; 0: unknown */
    const char *command, *cheapest_command; /* `stowage plan ...` for each of the two; NULL: none */
    uint32_t planned;                       /* points */
    uint32_t late; /* of these, stopped by the time limit before a result */
    double seconds;
} stw_size_answer;

#endif
