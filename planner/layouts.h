/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the layout of ranks where keys of a run are `auto`: every layout that the engine admits
 * if these are few; else those around the best ones of a coarse grid. Each is planned by the
 * integer program and simulated, on several threads, in batches of a fixed size: between batches,
 * what can only be slower than the best plan so far is left out. The few best are planned again
 * with all that the planner compares. The answer does not depend on the number of threads. */
#ifndef STW_PLANNER_LAYOUTS_H
#define STW_PLANNER_LAYOUTS_H

#include "planner/planner.h"

typedef struct stw_layouts_options {
    double time_limit_s; /* of the whole search; 0: STW_PLANNER_TIME_LIMIT_S */
    uint32_t jobs;       /* threads; 0: as many as cores */
    bool fits_only;      /* the first layout that fits will do; nothing is simulated */
    bool brief;          /* a good layout will do: fewer are planned, and none is compared */
    double most_s;       /* of an iteration: > 0: only what is faster is of interest */
    bool tells_turns;    /* as stw_planner_options has it */
    stw_planner_simulate simulate;
    /* Simulates and checks a plan that was solved. */
    stw_status (*finish)(stw_plan *plan, stw_error *err);
} stw_layouts_options;

/** Keys whose search can only save memory, of those that the engine searches and that nobody has
 * given: `auto` from now on. Replicas, larger micro batches and parameters that stay gathered never
 * hold less, and are left as they are. @return false: there are none */
bool stw_layouts_open(const stw_model *model, stw_run_spec *run);
/** Give all keys of `run` that are `auto` the values of the best layout: of those that fit without
 * risk the fastest; of equally fast ones (STW_LEAST_GAIN) the one with the fewest ways. Where none
 * fits, the one that is the least over. Nothing happens where no key is `auto`.
 * @param out strings lie in `pool`; may be NULL */
STW_MUST_USE stw_status stw_layouts_choose(const stw_model *model, const stw_cluster *cluster,
                                           stw_run_spec *run, const stw_layouts_options *options,
                                           stw_pool *pool, stw_layout_search *out, stw_error *err);
/** TIME_LIMIT where the plan of the layout that was chosen does not fit, but the search ended by
 * its time: whether another one fits is not known. @param time_limit_s of the whole call, for the
 * words */
STW_MUST_USE stw_status stw_layouts_settle(const stw_layout_search *found, stw_verdict verdict,
                                           double time_limit_s, stw_error *err);

#endif
