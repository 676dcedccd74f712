/* SPDX-License-Identifier: Apache-2.0 */
/* The order of fixes, smallest intervention first: those that fit before those at risk; of either
 * first state that is parked while other roles use the GPUs, then what keeps numerics, batch and
 * machines, then smaller micro batches, shorter sequences,
 * other numerics, more machines (the fewest first), another engine. Of one reach the fewest
 * settings come first, then the values nearest to the run's, then the most tokens per second. Last
 * comes a sequence so much shorter that it is another run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/fixes.h"

stw_status stw_fix_note(stw_found_list *to, const stw_change *changes, uint32_t n, const char *why,
                        stw_trial trial, const stw_found *found, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = to->plan;
    stw_change all[STW_MAX_FIX_CHANGES + 1];
    uint64_t tokens = 0;
    const uint32_t given = n;
    if (to->n == STW_MAX_FIXES || n > STW_MAX_FIX_CHANGES) return status;
    memcpy(all, changes, n * sizeof *all);
    STW_TRY(stw_fix_keep_step(plan, all, &n, &tokens, err));
    if (n > STW_MAX_FIX_CHANGES) return status;
    to->list[to->n] = *found;
    stw_fix *fix = &to->list[to->n++].fix;
    *fix = (stw_fix){.n_changes = n, .at_risk = trial == STW_TRIAL_AT_RISK};
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
    if (fix->why == NULL) status = stw_planner_no_memory(err);
out:
    return status;
}

/* @return 0 where it is not among the changes */
static uint64_t nodes_of(const stw_fix *fix) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strcmp(fix->changes[i].set, "nodes") == 0)
            return strtoull(fix->changes[i].value, NULL, 10);
    return 0;
}

static bool follows(const stw_fix_change *c) {
    return strcmp(c->set, "batch.grad_accumulation") == 0 ||
           strcmp(c->set, "parallel.sequence_parallel") == 0;
}

/* Without those that follow from others. */
static uint32_t settings_of(const stw_fix *fix) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < fix->n_changes; i++) n += !follows(&fix->changes[i]);
    return n;
}

/* @return negative, 0 or positive, by the first difference */
static int compare(const stw_found *x, const stw_found *y) {
    const stw_fix *a = &x->fix, *b = &y->fix;
    const struct {
        double a, b;
    } by[] = {{a->at_risk, b->at_risk},
              {x->reach, y->reach},
              {(double)nodes_of(a), (double)nodes_of(b)},
              {settings_of(a), settings_of(b)},
              {x->amount, y->amount},
              {b->tokens_per_s, a->tokens_per_s}};
    for (size_t i = 0; i < sizeof by / sizeof by[0]; i++)
        if (by[i].a < by[i].b || by[i].a > by[i].b) return by[i].a < by[i].b ? -1 : 1;
    return 0;
}

static bool has_change(const stw_fix *fix, const stw_fix_change *c, bool any_value) {
    for (uint32_t i = 0; i < fix->n_changes; i++)
        if (strcmp(fix->changes[i].set, c->set) == 0 &&
            (any_value || strcmp(fix->changes[i].value, c->value) == 0))
            return true;
    return false;
}

/* Has a fix all changes of one before it that is as good, or its verdict and its keys with other
 * values? Who takes that needs no more of the same. */
static bool is_more_of_one(const stw_found *before, uint32_t n, const stw_fix *fix) {
    for (uint32_t i = 0; i < n; i++) {
        const stw_fix *other = &before[i].fix;
        const bool alike = settings_of(other) == settings_of(fix) && other->at_risk == fix->at_risk;
        bool more = other->at_risk <= fix->at_risk;
        for (uint32_t c = 0; more && c < other->n_changes; c++)
            more = (alike && follows(&other->changes[c])) ||
                   has_change(fix, &other->changes[c], alike);
        if (more) return true;
    }
    return false;
}

/* By insertion: a list is short, and equal ones stay in the order in which they were found. */
void stw_fixes_sort(stw_found_list *all) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < all->n; i++) {
        const stw_found it = all->list[i];
        const bool remedy = stw_plan_fix_is_remedy(all->plan, &it.fix);
        uint32_t at = i;
        for (; at > 0; at--) {
            const stw_found *before = &all->list[at - 1];
            const bool other = stw_plan_fix_is_remedy(all->plan, &before->fix);
            if (other != remedy ? other : compare(before, &it) <= 0) break;
            all->list[at] = *before;
        }
        all->list[at] = it;
    }
    for (uint32_t i = 0; i < all->n; i++)
        if (!is_more_of_one(all->list, n, &all->list[i].fix)) all->list[n++] = all->list[i];
    all->n = n;
}
