/* SPDX-License-Identifier: Apache-2.0 */
/* Settings are read back as --from reads them before anything is written: they must plan to the
 * bytes and tokens of the plan that they are to realise. One thread at a time. */
#ifndef STW_PLANNER_EMIT_CHECK_H
#define STW_PLANNER_EMIT_CHECK_H

#include "planner/frameworks/emit/emission.h"
#include "planner/planner.h"

/** What reading settings back gives. Free with stw_emit_given_free. */
typedef struct stw_emit_given {
    const char *name; /* of the framework */
    stw_run_spec run;
    stw_model *model;        /* of settings that describe one; NULL: the plan's */
    const char *const *idle; /* KEY=VALUE that have no effect on one data-parallel rank; or NULL */
    uint64_t gpus;           /* of the launch; 0: not in the settings */
    /* Beginnings of keys that the framework's settings do not say because the program that trains
     * does, or the shell that starts it; NULL at the end. */
    const char *const *elsewhere;
} stw_emit_given;

void stw_emit_given_free(stw_emit_given *given);
/** Do two readings give the same run on as many GPUs? */
bool stw_emit_given_same(const stw_emit_given *a, const stw_emit_given *b, stw_pool *pool);
/** Compare with the plan; what is said elsewhere is taken from the plan, and a line of `elsewhere`.
 * Where anything else differs, the settings are planned, too; differences that move nothing are
 * lines of `notes`.
 * NOT_BUILT_IN: other bytes or tokens; the error names keys, and what to set */
STW_MUST_USE stw_status stw_emit_check(const stw_emission *e, stw_emit_given *given,
                                       stw_planner_simulate simulate, stw_text *elsewhere,
                                       stw_text *notes, stw_error *err);

#endif
