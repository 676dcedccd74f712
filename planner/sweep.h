/* SPDX-License-Identifier: Apache-2.0 */
/* Plans all combinations of some settings, on several threads. */
#ifndef STW_PLANNER_SWEEP_H
#define STW_PLANNER_SWEEP_H

#include "plan/files/sweep.h"
#include "planner/point.h"

/** Add "KEY=FIRST:LAST" (doubled), "KEY=FIRST:LAST:+STEP" or "KEY=A,B,C" to the axes. Bounds of a
 * range are whole numbers with the same suffix ("4k:128k"). USAGE: another form, an unknown key, or
 * a key that varies already.
 * @param option "--vary", for errors */
STW_MUST_USE stw_status stw_sweep_add_axis(stw_sweep *sweep, const char *text, const char *option,
                                           stw_error *err);

typedef struct stw_sweep_options {
    uint32_t jobs; /* threads; 0: as many as cores */
    /* Called with the finished rows, at most every `save_every_s` seconds; may be NULL. */
    stw_status (*save)(const stw_sweep *sweep, void *user, stw_error *err);
    void *user;
    double save_every_s;
    void (*count)(uint64_t planned); /* progress; from any thread; may be NULL */
} stw_sweep_options;

/** Plan the rows that are not planned yet, and mark the front. Refused settings and time limits
 * give rows; any other failure ends the sweep. */
STW_MUST_USE stw_status stw_sweep_run(stw_sweep *sweep, const stw_point_base *base,
                                      const stw_sweep_options *options, stw_error *err);
/** Fill a row from a plan. Its strings are in `pool`. NO_MEMORY. */
STW_MUST_USE stw_status stw_sweep_fill_row(const stw_plan *plan, stw_pool *pool, stw_sweep_row *row,
                                           stw_error *err);

#endif
