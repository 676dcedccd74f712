/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest cluster of a kind of node on which a run fits: what planner/size.h finds and reports
 * show. A plain value; its strings are in a pool of the caller's. */
#ifndef STW_PLAN_SIZE_H
#define STW_PLAN_SIZE_H

#include "models/model.h"
#include "plan/files/sweep.h"
#include "plan/spec/cluster.h"

#define STW_SIZE_MOST_NODES 1024
#define STW_SIZE_MOST_SETTINGS 16

/** The cheapest is sought up to so many nodes: 16, or 4 times those of the smallest. */
static inline uint32_t stw_size_bound(uint32_t smallest_nodes) {
    const uint32_t most = smallest_nodes > 4 ? 4 * smallest_nodes : 16;
    return most < STW_SIZE_MOST_NODES ? most : STW_SIZE_MOST_NODES;
}

/** What was planned. */
typedef struct stw_size_setup {
    const char *engine; /* static; NULL: nothing was */
    stw_dtype params, grads, exp_avg, exp_avg_sq;
    bool has_master;
    uint64_t step_tokens; /* 0: unknown */
} stw_size_setup;

/** The answer for one model on one kind of node. Strings are in the pool of the call. */
typedef struct stw_size_answer {
    const stw_model *model; /* borrowed */
    const char *name;       /* of the kind */
    stw_cluster cluster;    /* in: one whole node; out: the smallest cluster on which it fits */
    bool fits;           /* on at most STW_SIZE_MOST_NODES nodes; else what follows is of these */
    uint32_t n_settings; /* layout that is not the run's own, KEY=VALUE */
    const char *settings[STW_SIZE_MOST_SETTINGS];
    stw_sweep_row row; /* of the plan on it */
    const char *needs; /* of that plan: what the framework's own optimizers lack; NULL: nothing */
    bool of_trainer;   /* tokens per second are without the seconds of other roles */
    uint64_t longest_seq_len, largest_micro_batch; /* on it, the rest unchanged; 0: unknown */
    const char *help;                              /* with what it fits where it does not */
    stw_size_setup setup;                          /* of the plan; all zeros: there is none */
    /* Where the smallest is at risk: the smallest that is not, of at most stw_size_bound nodes, and
     * its layout (words of KEY=VALUE); no nodes, NULL: none was found */
    stw_cluster safe;
    const char *safe_layout;
    stw_cluster cheapest; /* of at most stw_size_bound nodes; no nodes: unknown */
    stw_sweep_row cheapest_row;
    stw_size_setup cheapest_setup;
    uint32_t n_cheapest_settings;
    const char *cheapest_settings[STW_SIZE_MOST_SETTINGS];
    double bound_hours; /* GPU-hours of 10^9 tokens that forward and backward compute; 0: unknown */
    const char *command, *cheapest_command; /* `stowage plan ...` of these; NULL: none */
    uint32_t planned;                       /* points */
    uint32_t late; /* of these, ended by the time limit before it was known whether they fit */
    double seconds;
} stw_size_answer;

#endif
