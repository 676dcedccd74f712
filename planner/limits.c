/* SPDX-License-Identifier: Apache-2.0 */
/* Limits to paste: the figures of a conflict come from rows, which are upper bounds, at limits that
 * differ from what a cluster says. Here each is planned anew as options of the command. */
#include <string.h>

#include "core/checked.h"
#include "planner/fixes.h"
#include "planner/resolve.h"

static const uint64_t GIB = 1ull << 30;

/* Operations of the programs that are walked for one limit. */
#define LIMIT_WORK 6000000

typedef struct limit_search {
    stw_trials *trials;
    stw_knob knob;
} limit_search;

static uint32_t changes_of(limit_search *s, uint64_t gib, stw_change *out) {
    const stw_mix mix = {1, {&s->knob}, {gib - s->knob.from}};
    return stw_mix_changes(s->trials->plan, &mix, out);
}

static stw_status fits_with(limit_search *s, uint64_t gib, bool *fits, stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    stw_tried tried;
    stw_status status = stw_fix_try(s->trials, changes, changes_of(s, gib, changes), &tried, err);
    *fits = tried.is >= STW_TRIAL_AT_RISK;
    return status;
}

/* The smallest whole figure with which the plan fits. @param gib in: a guess; out, 0: there is none
 * up to twice that */
static stw_status find_limit(limit_search *s, uint64_t *gib, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t guess = *gib, from = s->knob.from;
    uint64_t low = from, high = 0, at = guess;
    bool fits = false;
    for (uint64_t step = 1; at > from && at <= 2 * guess; step *= 2) {
        STW_TRY(fits_with(s, at, &fits, err));
        if (fits)
            high = at;
        else
            low = at;
        if (low > from && high > 0) break;
        at = !fits ? at + step : at > step ? at - step : 0;
    }
    while (high > low + 1) {
        const uint64_t mid = low + (high - low) / 2;
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

static stw_status note_limit(limit_search *s, uint64_t gib, stw_binding *out, stw_error *err) {
    stw_change changes[STW_MAX_MIX_CHANGES];
    stw_pool *pool = s->trials->plan->pool;
    out->enough_bytes = gib * GIB;
    out->n_changes = gib > 0 ? changes_of(s, gib, changes) : 0;
    for (uint32_t i = 0; i < out->n_changes; i++) {
        out->changes[i].set = stw_pool_string(pool, changes[i].key);
        out->changes[i].value = stw_pool_string(pool, changes[i].value);
        if (out->changes[i].set == NULL || out->changes[i].value == NULL)
            return stw_planner_no_memory(err);
    }
    return STW_STATUS_OK;
}

stw_status stw_planner_limits(stw_plan *plan, double time_limit_s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_trials *trials = stw_pool_array(plan->pool, 1, sizeof *trials);
    if (trials == NULL) return stw_planner_no_memory(err);
    *trials = (stw_trials){.plan = plan, .end_s = stw_planner_now_s() + time_limit_s};
    for (uint32_t b = 0; b < plan->n_bindings; b++) {
        stw_binding *here = &plan->bindings[b];
        limit_search search = {.trials = trials};
        uint64_t gib = stw_div_up_u64(here->enough_bytes, GIB);
        if (b > 0 && strcmp(here[-1].resource, here->resource) == 0) {
            const char *phase = here->phase;
            *here = here[-1];
            here->phase = phase;
            continue;
        }
        if (!stw_knob_of_limit(plan, here->resource, gib, &search.knob)) continue;
        trials->work_left = LIMIT_WORK;
        STW_TRY(find_limit(&search, &gib, err));
        STW_TRY(note_limit(&search, gib, here, err));
    }
out:
    return status;
}
