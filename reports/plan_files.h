/* SPDX-License-Identifier: Apache-2.0 */
/* The capacity report as CSV and JSON: the values of the text report, not rounded. The caller owns
 * `out`. */
#ifndef STW_REPORTS_PLAN_FILES_H
#define STW_REPORTS_PLAN_FILES_H

#include "reports/reports.h"

/** {"schema":"stowage.report/1","plan":..,"run":..,"comparison":..}: the three complete documents;
 * a missing one is null. */
STW_MUST_USE stw_status stw_report_plan_json(const stw_plan *plan, const stw_run_result *run,
                                             const stw_comparison *comparison, stw_text *out,
                                             stw_error *err);

#endif
