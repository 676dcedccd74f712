/* SPDX-License-Identifier: Apache-2.0 */
/* What the stages leave open is settled here, within the slack that they allow: the smallest ring,
 * and no place for the sake of a few quanta, as every place costs the executor regions and buckets
 * of its own. */
#include <string.h>

#include "planner/solvers.h"

/* A place with no more than this share of the quanta is a crumb. */
#define CRUMB_SHARE 64

/* Host bytes are what the last stage orders: simplicity may take a little of them. */
static const double HOST_SLACK = 0.02;

/* The ring row of a steady stream in both directions is two thirds of its time with three slots and
 * all of it with two. */
static const double RING_SHARE = 0.75;

typedef struct tidy_limits {
    double seconds, gpu_bytes, host_bytes;
} tidy_limits;

static bool within(const stw_cost *cost, const stw_choice *choice, const tidy_limits *limits) {
    stw_evaluation e;
    stw_cost_evaluate(cost, choice, &e);
    return e.fits && e.objective_s <= limits->seconds && (double)e.gpu_bytes <= limits->gpu_bytes &&
           (double)e.host_bytes <= limits->host_bytes;
}

static bool merge(const stw_cost *cost, const tidy_limits *limits, uint32_t crumb,
                  stw_choice *choice) {
    uint32_t units = choice->units[crumb];
    for (uint32_t p = 0; p < cost->n_places; p++) {
        if (p == crumb || choice->units[p] <= units) continue;
        choice->units[crumb] = 0;
        choice->units[p] += units;
        if (within(cost, choice, limits)) return true;
        choice->units[crumb] = units;
        choice->units[p] -= units;
    }
    return false;
}

static void merge_crumbs(const stw_cost *cost, const tidy_limits *limits, stw_choice *choice) {
    for (bool merged = true; merged;) {
        merged = false;
        for (uint32_t p = 0; p < cost->n_places && !merged; p++)
            if (choice->units[p] > 0 && choice->units[p] <= cost->n_units / CRUMB_SHARE)
                merged = merge(cost, limits, p, choice);
    }
}

static bool smaller(const stw_cost_ring *a, const stw_cost_ring *b) {
    uint64_t of_a = a->depth * a->bucket_bytes, of_b = b->depth * b->bucket_bytes;
    return of_a != of_b ? of_a < of_b : a->depth < b->depth;
}

/* Is the ring row well below the step's time? At the limit every hitch of one bucket would show. */
static bool has_ease(const stw_cost *cost, const stw_choice *choice) {
    stw_evaluation e;
    stw_cost_evaluate(cost, choice, &e);
    for (uint32_t r = 0; r < cost->n_time_rows; r++)
        if (cost->time_rows[r].ring && stw_cost_row_seconds(cost, &cost->time_rows[r], choice) >
                                           RING_SHARE * e.stretch_s[STW_STRETCH_STEP])
            return false;
    return true;
}

/* The smallest ring that keeps the limits at ease; the one that the solver chose where none does.
 */
static void settle_ring(const stw_cost *cost, const tidy_limits *limits, stw_choice *choice) {
    uint32_t chosen = choice->ring, best = cost->n_rings;
    for (uint32_t r = 0; r < cost->n_rings; r++) {
        if (best < cost->n_rings && !smaller(&cost->rings[r], &cost->rings[best])) continue;
        choice->ring = r;
        if (within(cost, choice, limits) && has_ease(cost, choice)) best = r;
    }
    choice->ring = best < cost->n_rings ? best : chosen;
}

void stw_choice_tidy(const stw_cost *cost, double seconds, stw_choice *choice) {
    stw_evaluation now;
    stw_cost_evaluate(cost, choice, &now);
    if (!now.fits) return;
    const tidy_limits limits = {seconds, (double)now.gpu_bytes * (1 + STW_STAGE_SLACK),
                                (double)now.host_bytes * (1 + HOST_SLACK)};
    if (!cost->whole) merge_crumbs(cost, &limits, choice);
    settle_ring(cost, &limits, choice);
}
