/* SPDX-License-Identifier: Apache-2.0 */
/* Plans one point of a search over settings: the inputs of `stowage plan` are read once, and every
 * point adds settings of its own. A base is read-only; several threads may plan points of it at
 * once, each within its own deadline (core/deadline.h). */
#ifndef STW_PLANNER_POINT_H
#define STW_PLANNER_POINT_H

#include "planner/frameworks/import/import.h"
#include "planner/point_bound.h"
#include "planner/simulate.h"

typedef struct stw_point_base {
    const stw_model *model;
    const stw_import *import;   /* NULL: none */
    const stw_cluster *cluster; /* before the settings */
    const stw_tree *run;        /* of run.yaml; NULL: none */
    const char *const *settings;
    size_t n_settings; /* KEY=VALUE, before those of the point */
    stw_planner_simulate simulate;
    /* Simulates and checks a plan that was solved. */
    stw_status (*finish)(stw_plan *plan, stw_error *err);
} stw_point_base;

typedef struct stw_point_options {
    double time_limit_s;
    bool fits_only; /* whether it fits is all that is asked: seconds are not minimal */
    bool quick;     /* the solver's choice, simulated, but not compared with others */
    double most_s;  /* of quick: > 0: only what takes less is of interest */
} stw_point_options;

/** The plan of a base with further settings. BAD_INPUT, USAGE, NOT_BUILT_IN: the settings are
 * refused. The caller frees *out, NULL where rows say that it is slower than most_s. */
STW_MUST_USE stw_status stw_point_plan(const stw_point_base *base, const char *const *settings,
                                       size_t n_settings, const stw_point_options *options,
                                       stw_plan **out, stw_error *err);
/** A brief search of the layouts that the settings leave open. Of *out->searched only
 * whether there is one counts. @param pool of the strings of *out */
STW_MUST_USE stw_status stw_point_layouts(const stw_point_base *base, const char *const *settings,
                                          size_t n_settings, const stw_point_options *options,
                                          stw_pool *pool, stw_layout_search *out, stw_error *err);
/** What forward and backward of an iteration compute at least, in seconds of a GPU: without
 * recomputation, whatever the memory. */
STW_MUST_USE stw_status stw_point_compute_seconds(const stw_point_base *base,
                                                  const char *const *settings, size_t n_settings,
                                                  double *out, stw_error *err);
typedef struct stw_point_fit_options {
    double time_limit_s;
    bool any_layout;   /* false: the run's own alone */
    bool without_risk; /* of the run's own, what is at risk does not fit */
} stw_point_fit_options;

/** What stw_point_fits finds. */
typedef struct stw_point_fit {
    bool fits;
    const char
        *layout; /* KEY=VALUE with spaces between, of keys that are not the run's; "": none */
} stw_point_fit;
/** Is there a layout with which a base fits, of the keys that nobody has given (stw_layouts_open)?
 * The run's own comes first, then plain ones. Where it does not fit with the load that the engine
 * usually does and load.method is auto, with sharded_read. Nothing is compared or simulated;
 * what is reserved counts where risk does.
 * @param pool of out->layout */
STW_MUST_USE stw_status stw_point_fits(const stw_point_base *base, const char *const *settings,
                                       size_t n_settings, const stw_point_fit_options *options,
                                       stw_pool *pool, stw_point_fit *out, stw_error *err);
/** A hash of cluster and run before all settings, as text. */
STW_MUST_USE stw_status stw_point_inputs_hash(const stw_point_base *base, stw_pool *pool,
                                              const char **out, stw_error *err);

#endif
