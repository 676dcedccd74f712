/* SPDX-License-Identifier: Apache-2.0 */
/* Plans one point of a search over settings. The base holds the inputs of `stowage plan`, read
 * once; every point adds its own settings. A base is read-only; several threads may plan its points
 * at once, each within its own deadline (core/deadline.h). */
#ifndef STW_PLANNER_POINT_H
#define STW_PLANNER_POINT_H

#include "planner/frameworks/import/import.h"
#include "planner/point_bound.h"
#include "planner/simulate.h"

typedef struct stw_point_base {
    const stw_model *model;
    const stw_import *import;   /* NULL: none */
    const stw_cluster *cluster; /* before the settings */
    const stw_tree *run;        /* the tree of run.yaml; NULL: none */
    const char *const *settings;
    size_t n_settings; /* KEY=VALUE, applied before the point's */
    stw_planner_simulate simulate;
    /* Simulates and checks a solved plan. */
    stw_status (*finish)(stw_plan *plan, stw_error *err);
} stw_point_base;

typedef struct stw_point_options {
    double time_limit_s;
    bool fits_only; /* only test whether it fits: seconds are not minimal */
    bool quick;     /* simulate the solver's choice, without comparing others */
    double most_s;  /* with quick: > 0: only faster plans are of interest */
} stw_point_options;

/** Plan a base with further settings. BAD_INPUT, USAGE, NOT_BUILT_IN: the settings are refused. The
 * caller frees *out, which is NULL if the rows show that it is slower than most_s. */
STW_MUST_USE stw_status stw_point_plan(const stw_point_base *base, const char *const *settings,
                                       size_t n_settings, const stw_point_options *options,
                                       stw_plan **out, stw_error *err);
/** Briefly search the layouts that the settings leave open. out->searched is "" if there was a
 * search, else NULL.
 * @param pool holds the strings of *out */
STW_MUST_USE stw_status stw_point_layouts(const stw_point_base *base, const char *const *settings,
                                          size_t n_settings, const stw_point_options *options,
                                          stw_pool *pool, stw_layout_search *out, stw_error *err);
/** Give a lower bound on the GPU seconds of an iteration's forward and backward: without
 * recomputation, with any memory. */
STW_MUST_USE stw_status stw_point_compute_seconds(const stw_point_base *base,
                                                  const char *const *settings, size_t n_settings,
                                                  double *out, stw_error *err);
typedef struct stw_point_fit_options {
    double time_limit_s;
    bool any_layout;   /* false: only the run's own */
    bool without_risk; /* a plan at risk does not count as fitting (run's own layout) */
} stw_point_fit_options;

/** The result of stw_point_fits. */
typedef struct stw_point_fit {
    bool fits;
    const char
        *layout; /* KEY=VALUE, separated by spaces, where it differs from the run; "": none */
} stw_point_fit;
/** Search a layout with which a base fits, over the keys that the run does not set
 * (stw_layouts_open): first the run's own, then the plainest. If it does not fit with the engine's
 * usual load and load.method is auto, sharded_read is tried. Nothing is compared or simulated.
 * Reserved bytes count only if risk does.
 * @param pool holds out->layout */
STW_MUST_USE stw_status stw_point_fits(const stw_point_base *base, const char *const *settings,
                                       size_t n_settings, const stw_point_fit_options *options,
                                       stw_pool *pool, stw_point_fit *out, stw_error *err);
/** Hash cluster and run before all settings, as text. */
STW_MUST_USE stw_status stw_point_inputs_hash(const stw_point_base *base, stw_pool *pool,
                                              const char **out, stw_error *err);

#endif
