/* SPDX-License-Identifier: Apache-2.0 */
/* Limits to paste: the figures of a conflict come from rows, which are upper bounds, at limits that
 * differ from what a cluster says. Here each is planned anew as options of the command. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"
#include "planner/resolve.h"

static const uint64_t GIB = 1ull << 30;

/* For one limit; a search by halves needs twice the digits of a figure at most. */
#define MOST_TRIALS 64

typedef struct limit_search {
    stw_plan *plan;
    const char *resource;
    stw_fix_budget *budget;
} limit_search;

static void set_gib(stw_change *c, const char *key, uint64_t gib) {
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->value, sizeof c->value, "%lluGiB", (unsigned long long)gib);
}

/* Memory alone does not move a limit that the user has set: both are stated. @param out room for
 * STW_MAX_LIMIT_CHANGES */
static uint32_t changes_of(const limit_search *s, uint64_t gib, stw_change *out) {
    static const char *const keys[][2] = {{"gpu memory", "node.gpu.memory"},
                                          {"host memory", "node.host.limit"},
                                          {"page-locked memory", "node.host.page_lock_limit"},
                                          {"nvme", "node.nvme.capacity"}};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(s->resource, keys[i][0]) != 0) continue;
        if (i == 1 && gib > s->plan->cluster.host.memory_bytes / GIB)
            set_gib(&out[n++], "node.host.memory", gib);
        set_gib(&out[n++], keys[i][1], gib);
    }
    return n;
}

static stw_status fits_with(const limit_search *s, uint64_t gib, bool *fits, stw_error *err) {
    stw_change changes[STW_MAX_LIMIT_CHANGES];
    uint32_t n = changes_of(s, gib, changes);
    stw_trial trial = STW_TRIAL_UNFIT;
    stw_status status = stw_fix_try(s->plan, s->budget, changes, n, &trial, err);
    *fits = n > 0 && trial >= STW_TRIAL_AT_RISK;
    return status;
}

/* The smallest whole figure with which the plan fits. @param gib in: a guess; out, 0: there is none
 * up to twice that */
static stw_status find_limit(const limit_search *s, uint64_t *gib, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t guess = *gib;
    uint64_t low = 0, high = 0, at = guess;
    bool fits = false;
    for (uint64_t step = 1; at > 0 && at <= 2 * guess; step *= 2) {
        STW_TRY(fits_with(s, at, &fits, err));
        if (fits)
            high = at;
        else
            low = at;
        if (low > 0 && high > 0) break;
        at = !fits ? at + step : at > step ? at - step : 0;
    }
    while (high > low + 1) {
        uint64_t mid = low + (high - low) / 2;
        STW_TRY(fits_with(s, mid, &fits, err));
        if (fits)
            high = mid;
        else
            low = mid;
    }
    *gib = high;
out:
    return status;
}

static stw_status note_limit(const limit_search *s, uint64_t gib, stw_binding *out,
                             stw_error *err) {
    stw_change changes[STW_MAX_LIMIT_CHANGES];
    out->enough_bytes = gib * GIB;
    out->n_changes = gib > 0 ? changes_of(s, gib, changes) : 0;
    for (uint32_t i = 0; i < out->n_changes; i++) {
        out->changes[i].set = stw_pool_string(s->plan->pool, changes[i].key);
        out->changes[i].value = stw_pool_string(s->plan->pool, changes[i].value);
        if (out->changes[i].set == NULL || out->changes[i].value == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for limits");
    }
    return STW_STATUS_OK;
}

stw_status stw_planner_limits(stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const double end_s = stw_planner_now_s() + time_limit_s;
    for (uint32_t b = 0; b < plan->n_bindings; b++) {
        stw_binding *here = &plan->bindings[b];
        stw_fix_budget budget = {.trials = MOST_TRIALS, .end_s = end_s};
        const limit_search search = {plan, here->resource, &budget};
        uint64_t gib = stw_div_up_u64(here->enough_bytes, GIB);
        if (b > 0 && strcmp(here[-1].resource, here->resource) == 0) {
            const char *phase = here->phase;
            *here = here[-1];
            here->phase = phase;
            continue;
        }
        if (gib == 0) continue;
        STW_TRY(find_limit(&search, &gib, err));
        STW_TRY(note_limit(&search, gib, here, err));
    }
out:
    return status;
}
