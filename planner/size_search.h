/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of a search for sizes (size.c), internal to it. Counts of GPUs are numbered:
 * 0 is one GPU, then each further GPU of a node, then each further node. Functions return failures
 * of the call; refused settings and time limits are answers. */
#ifndef STW_PLANNER_SIZE_SEARCH_H
#define STW_PLANNER_SIZE_SEARCH_H

#include "planner/size.h"

typedef struct stw_size_search {
    const stw_point_base *base;
    const stw_size_options *options;
    stw_pool *pool; /* the thread's pool */
    stw_size_answer *answer;
    stw_cluster node;              /* a whole node */
    uint32_t at, n_counts;         /* the present count */
    stw_cluster cluster;           /* cluster of the present count */
    const char *more;              /* a setting for every point; NULL: none */
    const char *best;              /* layout with which it fits, as in stw_point_fit */
    const char *other_engine;      /* a setting; NULL: the run names its engine, or there is no
                                      other */
    uint64_t seq_len, micro_batch; /* the run's */
    const char *free_tokens;       /* settings that free the tokens of a step */
    bool searches;                 /* the run asks for a layout (parallel: auto) */
    bool refused;                  /* the last point was refused */
    bool strict;                   /* a fit counts only after complete planning */
    stw_status refusal;            /* refusal of the settings on every cluster; OK: none */
    stw_error why;                 /* error of `refusal` */
} stw_size_search;

/** Make `at` the present count. */
void stw_size_go(stw_size_search *s, uint32_t at);
/** Returns the number of the count with `nodes` whole nodes. */
uint32_t stw_size_of_nodes(const stw_size_search *s, uint32_t nodes);
/** List the settings of a point: s->more, then the layout's, then those of `extra` (NULL: none).
 * @param out [STW_SIZE_MOST_SETTINGS]
 * @return false: no memory, or too many */
bool stw_size_settings(const stw_size_search *s, const char *layout, const char *extra,
                       const char **out, size_t *n);
stw_status stw_size_no_memory(stw_error *err);
/** Plan a layout at the present count; *out and failures as in stw_point_plan. */
stw_status stw_size_plan(stw_size_search *s, const char *layout, const stw_point_options *how,
                         stw_plan **out, stw_error *err);
/** Go to the first count from `from` on that fits, with its layout in s->best; if none fits, to the
 * last one tried. */
stw_status stw_size_find_first(stw_size_search *s, uint32_t from, bool *fits, stw_error *err);
/** Test whether some layout fits at the present count. */
stw_status stw_size_ask(stw_size_search *s, bool *fits, stw_error *err);
/** Find the largest multiple of `step` above `from` that fits with s->best, without risk if the row
 * has none; else `from`. A step keeps its number of micro batches, not its tokens. */
stw_status stw_size_find_most(stw_size_search *s, const char *key, uint64_t from, uint64_t step,
                              uint64_t cap, uint64_t *out, stw_error *err);
void stw_size_note_setup(const stw_plan *plan, stw_size_setup *out);
/** Find the cheapest cluster and, if the smallest one is at risk, the smallest without risk. Fills
 * these fields of the answer; the others must be filled. */
stw_status stw_size_find_cheapest(stw_size_search *s, stw_error *err);

#endif
