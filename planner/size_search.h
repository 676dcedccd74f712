/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a search of sizes share (size.c). Internal to it. Counts of GPUs are numbered:
 * 0 is one GPU, then each further GPU of a node, then each further node. Functions return failures
 * of the call; settings that are refused, and a time that is over, are answers. */
#ifndef STW_PLANNER_SIZE_SEARCH_H
#define STW_PLANNER_SIZE_SEARCH_H

#include "planner/size.h"

typedef struct stw_size_search {
    const stw_point_base *base;
    const stw_size_options *options;
    stw_pool *pool; /* of the thread */
    stw_size_answer *answer;
    stw_cluster node;              /* a whole one */
    uint32_t at, n_counts;         /* the count at hand */
    stw_cluster cluster;           /* of it */
    const char *more;              /* a setting for every point; NULL: none */
    const char *best;              /* layout with which it fits, words of stw_point_fit */
    const char *other_engine;      /* a setting; NULL: the run says its own, or there is none */
    uint64_t seq_len, micro_batch; /* of the run */
    const char *free_tokens;       /* settings with which the tokens of a step are not fixed */
    bool searches;                 /* the run asks for a layout (parallel: auto) */
    bool refused;                  /* the last point asked */
    bool strict;                   /* what fits is planned to the end before it is believed */
    stw_status refusal;            /* of the settings, on every cluster; OK: there is none */
    stw_error why;                 /* of `refusal` */
} stw_size_search;

/** Go to a count. */
void stw_size_go(stw_size_search *s, uint32_t at);
/** The first count of whole nodes from so many on. */
uint32_t stw_size_of_nodes(const stw_size_search *s, uint32_t nodes);
/** Settings of a point: s->more, then the words of a layout, then those of `extra` (NULL: none).
 * @param out [STW_SIZE_MOST_SETTINGS] @return false: no memory, or too many */
bool stw_size_settings(const stw_size_search *s, const char *layout, const char *extra,
                       const char **out, size_t *n);
stw_status stw_size_no_memory(stw_error *err);
/** The plan of a layout where the search is; NULL as stw_point_plan. All of its failures. */
stw_status stw_size_plan(stw_size_search *s, const char *layout, const stw_point_options *how,
                         stw_plan **out, stw_error *err);
/** The first count from `from` on where it fits, with its layout in s->best; the last one looked at
 * where there is none. */
stw_status stw_size_find_first(stw_size_search *s, uint32_t from, bool *fits, stw_error *err);
/** Does it fit where the search is, with some layout? */
stw_status stw_size_ask(stw_size_search *s, bool *fits, stw_error *err);
/** The largest multiple of `step` above `from`, or `from`, with which it fits with s->best,
 * without risk where the row has none. The micro batches of a step stay, not its tokens. */
stw_status stw_size_find_most(stw_size_search *s, const char *key, uint64_t from, uint64_t step,
                              uint64_t cap, uint64_t *out, stw_error *err);
void stw_size_note_setup(const stw_plan *plan, stw_size_setup *out);
/** The cheapest, and where the smallest is at risk the smallest that is not. Fills these of the
 * answer, the rest of which is there. */
stw_status stw_size_find_cheapest(stw_size_search *s, stw_error *err);

#endif
