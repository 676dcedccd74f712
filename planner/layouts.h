/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the layout of ranks if keys of a run are `auto`. If the engine admits few layouts, all
 * are tried; else the neighbours of the best layouts of a coarse grid. Each layout is planned by
 * the integer program and simulated, on several threads, in batches of a fixed size. After a batch,
 * layouts whose bounds are slower than the best plan are dropped. The few best are planned again
 * with all that the planner compares. The answer does not depend on the number of threads. */
#ifndef STW_PLANNER_LAYOUTS_H
#define STW_PLANNER_LAYOUTS_H

#include "planner/planner.h"

typedef struct stw_layouts_options {
    double time_limit_s; /* for the whole search; 0: STW_PLANNER_TIME_LIMIT_S */
    uint32_t jobs;       /* threads; 0: as many as cores */
    bool fits_only;      /* stop at the first layout that fits; nothing is simulated */
    bool brief;          /* search a good layout: fewer are planned, none is compared */
    double most_s;       /* > 0: keep only layouts with faster iterations */
    bool tells_turns;    /* as in stw_planner_options */
    stw_planner_simulate simulate;
    /* Simulates and checks a solved plan. */
    stw_status (*finish)(stw_plan *plan, stw_error *err);
} stw_layouts_options;

/** Set the keys of a layout that can save memory to `auto`, if the engine searches them and the run
 * does not set them. Replicas, larger micro batches and parameters that stay gathered never save
 * memory, so they stay as they are.
 * @return false: the run has no keys to search */
bool stw_layouts_open(const stw_model *model, stw_run_spec *run);
/** Set all `auto` keys of `run` to the values of the best layout: the fastest that fits without
 * risk; of equally fast ones (STW_LEAST_GAIN) the one with the fewest ways. If none fits, the one
 * with the least excess. Does nothing if no key is `auto`.
 * @param out strings lie in `pool`; may be NULL */
STW_MUST_USE stw_status stw_layouts_choose(const stw_model *model, const stw_cluster *cluster,
                                           stw_run_spec *run, const stw_layouts_options *options,
                                           stw_pool *pool, stw_layout_search *out, stw_error *err);
/** TIME_LIMIT if the plan of the chosen layout does not fit but the search ran out of time, so that
 * another layout may fit.
 * @param time_limit_s of the whole call, for the message */
STW_MUST_USE stw_status stw_layouts_settle(const stw_layout_search *found, stw_verdict verdict,
                                           double time_limit_s, stw_error *err);

#endif
