/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of a comparison under construction. One thread at a time. */
#ifndef STW_MEASURED_COMPARE_LINES_H
#define STW_MEASURED_COMPARE_LINES_H

#include "plan/measured/compare.h"

typedef struct stw_comparer {
    const stw_plan *plan;
    const stw_run_result *run;
    const stw_peaks *ranks, *nodes; /* of the trainer, as runs measure */
    stw_tolerance tolerance;
    stw_comparison *out;
    size_t capacity;
    const char *host_note; /* why host bytes of processes are not judged, or NULL */
    stw_status status;     /* the first failure; later calls do nothing */
    stw_error *err;
} stw_comparer;

bool stw_compare_within(const stw_comparer *c, const stw_compare_line *line);
/** Add a line: compute its error, and its verdict unless it has one or a note explains its absence.
 */
void stw_compare_add(stw_comparer *c, stw_compare_line line);
/** Keep the line with the larger error in *worst. */
void stw_compare_keep_worse(stw_compare_line *worst, bool *any, const stw_compare_line *line);
/** "rank 3", "node 1, worst of 4" */
const char *stw_compare_who(stw_comparer *c, const char *what, uint32_t index, uint32_t of);
/** Returns (predicted - measured) / measured; 0 if both are 0. */
double stw_compare_error(double predicted, double measured);

#endif
