/* SPDX-License-Identifier: Apache-2.0 */
/* Why nothing fits: a minimal set of limits that no choice keeps together, found by the deletion
 * filter (Chinneck, Dravnieks 1991). A limit that can be dropped while nothing fits is no part of
 * it. First resources are filtered, then the phases of those that are left. */
#include <string.h>

#include "plan/files/verdict.h"
#include "planner/resolve.h"

typedef struct filter {
    stw_plan *plan;
    stw_cost *cost;
    stw_choice choice;
    uint64_t *limits; /* [n_byte_rows] as the cluster states them */
    double end_s;
} filter;

static bool is_of(const stw_byte_row *row, const char *resource, const stw_phase *phase) {
    return strcmp(row->resource, resource) == 0 && (phase == NULL || row->phase == *phase);
}

static void set_limit(filter *f, const char *resource, const stw_phase *phase, uint64_t bytes) {
    for (uint32_t r = 0; r < f->cost->n_byte_rows; r++)
        if (is_of(&f->cost->byte_rows[r], resource, phase))
            f->cost->byte_rows[r].limit_bytes = bytes;
}

static void restore(filter *f, const char *resource, const stw_phase *phase) {
    for (uint32_t r = 0; r < f->cost->n_byte_rows; r++)
        if (is_of(&f->cost->byte_rows[r], resource, phase))
            f->cost->byte_rows[r].limit_bytes = f->limits[r];
}

static stw_status fits_now(filter *f, bool *fits, stw_error *err) {
    return stw_planner_feasible(f->cost, f->end_s - stw_planner_now_s(), &f->choice, fits, err);
}

/* Drop a limit for good if nothing fits without it. */
static stw_status try_drop(filter *f, const char *resource, const stw_phase *phase, bool *needed,
                           stw_error *err) {
    set_limit(f, resource, phase, UINT64_MAX);
    stw_status status = fits_now(f, needed, err);
    if (status != STW_STATUS_OK || *needed) restore(f, resource, phase);
    return status;
}

/* Phases of a resource, those with the smallest excess first and forward and backward, which hold
 * the most, after their equals: what is left names the worst. @return how many have rows */
static uint32_t order_phases(const filter *f, const char *resource, stw_phase *order) {
    uint32_t n = 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        stw_phase phase = (stw_phase)((p + STW_PHASE_FORWARD_BACKWARD + 1) % STW_N_PHASES);
        uint64_t over = stw_plan_over_bytes(f->plan, resource, phase);
        bool any = false;
        for (uint32_t r = 0; r < f->cost->n_byte_rows; r++)
            any = any || is_of(&f->cost->byte_rows[r], resource, &phase);
        if (!any) continue;
        uint32_t at = n++;
        for (; at > 0 && stw_plan_over_bytes(f->plan, resource, order[at - 1]) > over; at--)
            order[at] = order[at - 1];
        order[at] = phase;
    }
    return n;
}

static stw_status note(filter *f, const char *resource, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_plan *plan = f->plan;
    stw_phase order[STW_N_PHASES];
    uint32_t n = order_phases(f, resource, order);
    for (uint32_t i = 0; i < n; i++) {
        stw_phase phase = order[i];
        bool needed = false;
        STW_TRY(try_drop(f, resource, &phase, &needed, err));
        if (needed)
            plan->bindings[plan->n_bindings++] =
                (stw_binding){.resource = resource, .phase = stw_phase_name(phase)};
    }
out:
    return status;
}

stw_status stw_planner_conflict(stw_plan *plan, stw_cost *cost, double time_limit_s,
                                stw_error *err) {
    /* in the order in which one would do without them */
    static const char *const resources[] = {"nvme", "page-locked memory", "host memory",
                                            "gpu memory"};
    enum { N = sizeof resources / sizeof resources[0] };
    stw_status status = STW_STATUS_OK;
    bool needed[N] = {false};
    filter f = {.plan = plan, .cost = cost, .end_s = stw_planner_now_s() + time_limit_s};
    f.choice = stw_choice_new(cost, cost->pool);
    f.limits = stw_pool_array(cost->pool, cost->n_byte_rows, sizeof *f.limits);
    plan->n_bindings = 0;
    plan->bindings = stw_pool_array(plan->pool, cost->n_byte_rows, sizeof *plan->bindings);
    if (f.choice.acts == NULL || f.limits == NULL || plan->bindings == NULL)
        return stw_planner_no_memory(err);
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) f.limits[r] = cost->byte_rows[r].limit_bytes;
    for (int i = 0; i < N; i++) STW_TRY(try_drop(&f, resources[i], NULL, &needed[i], err));
    for (int i = N; i-- > 0;)
        if (needed[i]) STW_TRY(note(&f, resources[i], err));
out:
    for (uint32_t r = 0; r < cost->n_byte_rows; r++) cost->byte_rows[r].limit_bytes = f.limits[r];
    return status;
}
