/* SPDX-License-Identifier: Apache-2.0 */
/* The layouts of ranks that an engine admits for a run, the plainest first. Internal to the search
 * (layouts.h). */
#ifndef STW_PLANNER_LAYOUTS_LIST_H
#define STW_PLANNER_LAYOUTS_LIST_H

#include "engines/layouts.h"

typedef struct stw_listed_layout {
    uint64_t value[STW_N_SEARCHES];
    uint32_t ways, changes; /* keys above 1; other keys that differ from the run's */
    uint64_t width;         /* product of all ways */
} stw_listed_layout;

typedef struct stw_layout_list {
    stw_layout_case c;
    const stw_layout_rules *rules;
    uint64_t tokens; /* of an optimizer step, over all ranks; the same in all layouts */
    uint64_t own[STW_N_SEARCHES];
    uint64_t values[STW_N_SEARCHES][STW_LAYOUT_MOST_VALUES];
    uint32_t n_values[STW_N_SEARCHES];
    bool divides; /* some layout divides these tokens */
    uint32_t n;
    stw_listed_layout *list; /* [n], the plainest first */
    size_t room;
} stw_layout_list;

/** List all layouts in `pool`, which must stay. BAD_INPUT if there are none, or if a searched key
 * has no effect with the engine. */
STW_MUST_USE stw_status stw_layouts_list(const stw_layout_case *c, const stw_layout_rules *rules,
                                         stw_pool *pool, stw_layout_list *out, stw_error *err);
/** True if two layouts differ by one step of one key (vpp: any change), or by one step up and one
 * step down. */
bool stw_layouts_are_near(const stw_layout_list *l, uint32_t a, uint32_t b);
/** True if all keys except tp, pp and ep have their plainest value. */
bool stw_layout_is_seed(const stw_layout_list *l, uint32_t i);
/** True if this is the run's own layout. */
bool stw_layout_is_own(const stw_layout_list *l, uint32_t i);
/** Give a run the values of a layout. Strings go to run->pool. */
STW_MUST_USE stw_status stw_layout_apply(const stw_layout_list *l, uint32_t i, stw_run_spec *run,
                                         stw_error *err);
/** The settings of a layout that differ from the run's, "parallel.tp=2 parallel.ep=8". */
const char *stw_layout_words(const stw_layout_list *l, uint32_t i, stw_pool *pool);

#endif
