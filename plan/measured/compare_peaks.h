/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements without phases against the plan: peaks since a job began, seconds of iterations. One
 * thread at a time. */
#ifndef STW_MEASURED_COMPARE_PEAKS_H
#define STW_MEASURED_COMPARE_PEAKS_H

#include "plan/measured/compare_lines.h"

/** Add the lines of an external run, and one for each quantity that the plan predicts and no line
 * is of. */
void stw_compare_run_peaks(stw_comparer *c);

#endif
