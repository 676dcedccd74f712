/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a framework that realise a plan. They are read back as --from reads them before
 * anything is written: what they give has the plan's bytes and tokens, or they are refused. One
 * thread at a time. */
#ifndef STW_PLANNER_EMIT_H
#define STW_PLANNER_EMIT_H

#include "plan/files/plan.h"
#include "planner/frameworks/import/import.h"
#include "planner/simulate.h"

typedef struct stw_emit_options {
    const char *from;         /* "FRAMEWORK:FILE" that `import` was read from, or NULL */
    const stw_import *import; /* with the same framework its other keys stay, and changes against it
                                 are noted; or NULL */
    const char *data_folder;  /* of templates of models */
    stw_planner_simulate simulate; /* for the plan of the settings; or NULL */
} stw_emit_options;

/** Is this "FRAMEWORK" or "FRAMEWORK:FILE" with a framework whose settings can be written? */
bool stw_emit_is(const char *what);
/** Can its settings say that parts of a layer are recomputed (recompute.modules)? */
bool stw_emit_says_modules(const char *what);
/** Write settings.
 * @param what "FRAMEWORK" or "FRAMEWORK:FILE"; the file is the caller's concern
 * @param settings a file of the framework; @param notes what it does not say, and what changed
 * USAGE: another engine than the plan's. NOT_BUILT_IN: the settings cannot say the plan. Both texts
 * are then empty */
STW_MUST_USE stw_status stw_emit_plan(const char *what, const stw_plan *plan,
                                      const stw_emit_options *options, stw_text *settings,
                                      stw_text *notes, stw_error *err);
/** Put the fixes of a plan first that the framework's settings can say; the others name the key
 * that they cannot. @param from "FRAMEWORK:FILE" that `import` was read from */
STW_MUST_USE stw_status stw_emit_order_fixes(const char *from, const stw_import *import,
                                             stw_plan *plan, stw_error *err);

#endif
