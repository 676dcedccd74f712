/* SPDX-License-Identifier: Apache-2.0 */
/* The order of fixes: with the same framework those whose plans have headroom before those at risk.
 * Of either first state that is parked while other roles use the GPUs; then what keeps numerics,
 * batch and machines; then more machines, the fewest first; then what changes numerics or length.
 * Then another engine; last a sequence so much shorter that it is another run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/fixes.h"

typedef enum stw_cost_class { PARKS, KEEPS, MACHINES, MEANING, FRAMEWORK, ANOTHER_RUN } cost_class;

typedef struct ranked {
    stw_fix fix;
    cost_class class;
    uint64_t nodes;
    uint32_t order; /* in which it was found */
} ranked;

stw_status stw_fix_note(stw_plan *plan, const stw_change *changes, uint32_t n, const char *why,
                        stw_trial trial, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_change all[STW_MAX_FIX_CHANGES + 1];
    uint64_t tokens = 0;
    const uint32_t given = n;
    if (plan->n_fixes == STW_MAX_FIXES || n > STW_MAX_FIX_CHANGES) return status;
    memcpy(all, changes, n * sizeof *all);
    STW_TRY(stw_fix_keep_step(plan, all, &n, &tokens, err));
    if (n > STW_MAX_FIX_CHANGES) return status;
    stw_fix *fix = &plan->fixes[plan->n_fixes++];
    fix->n_changes = n;
    fix->at_risk = trial == STW_TRIAL_AT_RISK;
    if (tokens > 0)
        fix->why = stw_pool_printf(plan->pool,
                                   "%s; a step then has %" PRIu64 " tokens instead of %" PRIu64,
                                   why, tokens, stw_job_step_tokens(plan->job));
    else
        fix->why = stw_pool_printf(plan->pool, "%s%s", why,
                                   n > given ? ", at the same tokens per step" : "");
    for (uint32_t i = 0; i < n; i++) {
        fix->changes[i].set = stw_pool_string(plan->pool, all[i].key);
        fix->changes[i].value = stw_pool_string(plan->pool, all[i].value);
        if (fix->changes[i].set == NULL || fix->changes[i].value == NULL) fix->why = NULL;
    }
    if (fix->why == NULL)
        status = stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for fixes");
out:
    return status;
}

static cost_class class_of(const stw_plan *plan, const stw_fix *fix) {
    cost_class worst = stw_plan_fix_is_remedy(plan, fix) ? PARKS : ANOTHER_RUN;
    for (uint32_t i = 0; i < fix->n_changes; i++) {
        const char *key = fix->changes[i].set;
        cost_class here = strncmp(key, "park.", 5) == 0 ? PARKS : KEEPS;
        if (strcmp(key, "nodes") == 0) here = MACHINES;
        if (strcmp(key, "precision.grads") == 0 || strcmp(key, "batch.seq_len") == 0)
            here = MEANING;
        if (strcmp(key, "engine") == 0) here = FRAMEWORK;
        if (here > worst) worst = here;
    }
    return worst;
}

static uint64_t nodes_of(const stw_plan *plan, const stw_fix *fix) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strcmp(fix->changes[i].set, "nodes") == 0)
            return strtoull(fix->changes[i].value, NULL, 10);
    return plan->cluster.nodes;
}

static int by_cost(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    const bool other = x->class >= FRAMEWORK, another = y->class >= FRAMEWORK;
    if (other != another) return other ? 1 : -1;
    if (x->fix.at_risk != y->fix.at_risk) return x->fix.at_risk ? 1 : -1;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    if (x->nodes != y->nodes) return x->nodes < y->nodes ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Does a fix differ from one before it, with the same headroom, in the values of its keys alone?
 * Who takes that needs no more of the same. */
static bool is_more_of_one(const stw_fix *before, uint32_t n, const stw_fix *fix) {
    for (uint32_t i = 0; i < n; i++) {
        bool same = before[i].n_changes == fix->n_changes && before[i].at_risk == fix->at_risk;
        for (uint32_t c = 0; same && c < fix->n_changes; c++)
            same = strcmp(before[i].changes[c].set, fix->changes[c].set) == 0;
        if (same) return true;
    }
    return false;
}

void stw_fixes_sort(stw_plan *plan) {
    ranked list[STW_MAX_FIXES];
    for (uint32_t i = 0; i < plan->n_fixes; i++)
        list[i] = (ranked){plan->fixes[i], class_of(plan, &plan->fixes[i]),
                           nodes_of(plan, &plan->fixes[i]), i};
    qsort(list, plan->n_fixes, sizeof *list, by_cost);
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_fixes; i++)
        if (!is_more_of_one(plan->fixes, n, &list[i].fix)) plan->fixes[n++] = list[i].fix;
    plan->n_fixes = n;
}
