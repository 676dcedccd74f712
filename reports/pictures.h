/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures that stand beside a Markdown report, as SVG files: dark text on white, so that they are
 * read on light and dark pages. Equal input gives equal bytes. */
#ifndef STW_REPORTS_PICTURES_H
#define STW_REPORTS_PICTURES_H

#include "reports/reports.h"

/** Memory over time of the worst GPU and of the fullest node, stacked by component, with phases and
 * limits. Nothing is appended where the plan has no programs. @param item has a plan */
STW_MUST_USE stw_status stw_picture_memory(const stw_page_item *item, stw_text *out,
                                           stw_error *err);
/** Where parameters, gradients and moments are, and what becomes of the activations of each block.
 */
STW_MUST_USE stw_status stw_picture_tiers(const stw_plan *plan, stw_text *out, stw_error *err);

#endif
