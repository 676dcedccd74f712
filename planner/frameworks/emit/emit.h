/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a framework that realise a plan. They are read back as --from reads them: what the
 * framework cannot say follows from the keys that then differ. One thread at a time. */
#ifndef STW_PLANNER_EMIT_H
#define STW_PLANNER_EMIT_H

#include "plan/files/plan.h"
#include "planner/frameworks/import/import.h"

/** Is this "FRAMEWORK" or "FRAMEWORK:FILE" with a framework whose settings can be written? */
bool stw_emit_is(const char *what);
/** Write settings.
 * @param what "FRAMEWORK" or "FRAMEWORK:FILE"; the file is the caller's concern
 * @param from "FRAMEWORK:FILE" that `import` was read from, or NULL: with the same framework its
 * other keys stay, and changes against it are noted
 * @param settings a file of the framework; @param notes what it does not say, and what changed
 * USAGE: another engine than the plan's */
STW_MUST_USE stw_status stw_emit_plan(const char *what, const stw_plan *plan, const char *from,
                                      const stw_import *import, stw_text *settings, stw_text *notes,
                                      stw_error *err);

#endif
