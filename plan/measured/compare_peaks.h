/* SPDX-License-Identifier: Apache-2.0 */
/* Compares measurements without phases with the plan: peaks since a job began, seconds of
 * iterations. One thread at a time. */
#ifndef STW_MEASURED_COMPARE_PEAKS_H
#define STW_MEASURED_COMPARE_PEAKS_H

#include "plan/measured/compare_lines.h"

/** Add the lines of an external run, and a line for each predicted quantity without a
 * measurement. */
void stw_compare_run_peaks(stw_comparer *c);

#endif
