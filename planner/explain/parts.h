/* SPDX-License-Identifier: Apache-2.0 */
/* What the judgement is made of. Internal to planner/explain. */
#ifndef STW_PLANNER_EXPLAIN_PARTS_H
#define STW_PLANNER_EXPLAIN_PARTS_H

#include "planner/explain/explain.h"

/** Add a sentence, printf-like, to the advice or the unknown things; too many are dropped. */
void stw_explain_advise(stw_explanation *e, const char *format, ...) STW_PRINTF(2, 3);
void stw_explain_unknown(stw_explanation *e, const char *format, ...) STW_PRINTF(2, 3);

/** Phase, component and what was held, by stacks and logs. (stacks.c) */
void stw_explain_stacks(stw_explanation *e);
/** Say which of the two are not known. After the plan had its say. */
void stw_explain_untold(stw_explanation *e);
/** What the plan has for that moment. Needs phase and component. (figures.c) */
void stw_explain_figures(stw_explanation *e);
/** Cause, what was available, and advice. Needs figures. (cause.c) */
void stw_explain_cause(stw_explanation *e);
/** Plan anew within what the run had; fills changes. (changes.c) */
STW_MUST_USE stw_status stw_explain_changes(stw_explanation *e, const stw_explain_options *options,
                                            stw_error *err);
/** Lines of the framework's own settings with which `now` differs from `before`, in the pool of the
 * explanation; NULL: they cannot be said. (settings.c) */
const char *stw_explain_settings(stw_explanation *e, const stw_explain_options *options,
                                 const stw_plan *before, const stw_plan *now);

#endif
