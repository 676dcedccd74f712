/* SPDX-License-Identifier: Apache-2.0 */
/* Plans one point of a search over settings: the inputs of `stowage plan` are read once, and every
 * point adds settings of its own. A base is read-only; several threads may plan points of it at
 * once, each within its own deadline (core/deadline.h). */
#ifndef STW_PLANNER_POINT_H
#define STW_PLANNER_POINT_H

#include "planner/frameworks/import.h"
#include "planner/planner.h"

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
} stw_point_options;

/** The plan of a base with further settings. BAD_INPUT, USAGE, NOT_BUILT_IN: the settings are
 * refused. The caller frees *out. */
STW_MUST_USE stw_status stw_point_plan(const stw_point_base *base, const char *const *settings,
                                       size_t n_settings, const stw_point_options *options,
                                       stw_plan **out, stw_error *err);
/** A hash of cluster and run before all settings, as text. */
STW_MUST_USE stw_status stw_point_inputs_hash(const stw_point_base *base, stw_pool *pool,
                                              const char **out, stw_error *err);
/** Refused settings are an answer; other failures are not. */
bool stw_point_refuses(stw_status status);
/** What limits a plan: where it fits, the resource with the most seconds of demand in the phase
 * that takes longest in an iteration; else the limit that is exceeded most. */
typedef struct stw_point_bound {
    const char *resource; /* as in plan files, "nic", "gpu memory"; NULL: unknown */
    stw_phase phase;
    uint64_t over_bytes; /* 0 where it fits */
} stw_point_bound;
void stw_point_find_bound(const stw_plan *plan, stw_point_bound *out);
/** The highest peak of a GPU or of a node's host over all phases. */
uint64_t stw_point_peak(const stw_plan *plan, stw_tier tier);

#endif
